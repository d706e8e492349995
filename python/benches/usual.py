"""What people write today against one call of Transload, over the arrays that people have: sizes, layouts, types, memories.

    python python/benches/usual.py [--json FILE] [--only TEXT] [--most BYTES]

A cell is one copy, done in turn by Transload, by the usual way, and by the usual way again (A/A): medians of one run, and bytes
compared outside the timed region. A cell whose A/A differs by more than 5 % is not counted. At the end: the geometric mean of
(usual / Transload), the ten worst cells, and all below 1. Wants numpy and safetensors; torch and wgpu take part where they are
installed.
"""

import argparse
import json
import math
import os
import pathlib
import platform
import shutil
import statistics
import tempfile
import time

# The threads of torch's OpenMP would run on for milliseconds, beside the contestant that comes next.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import numpy as np
import safetensors.numpy

import transload

try:
    import torch
except ImportError:
    torch = None
try:
    import wgpu
except ImportError:
    wgpu = None

SIZES = [1 << 10, 16 << 10, 256 << 10, 4 << 20, 32 << 20, 256 << 20]
NUMBERS = np.random.default_rng(0)


def name_of(nbytes):
    for unit, size in (("MiB", 1 << 20), ("KiB", 1 << 10)):
        if nbytes >= size:
            return f"{nbytes // size} {unit}"
    return f"{nbytes} B"


def array(shape, dtype, offset=0):
    """Random elements, `offset` bytes after an address as allocators give it."""
    count = math.prod(shape) * np.dtype(dtype).itemsize
    raw = np.resize(NUMBERS.integers(0, 64, min(count, 1 << 20) + 8, np.uint8), count + offset)
    return raw[offset:].view(dtype).reshape(shape)


def views(nbytes, dtype):
    """Arrays with that much payload: a name, and the view."""
    count = nbytes // np.dtype(dtype).itemsize
    side = 1 << (count.bit_length() - 1) // 2
    rows, columns = count // side, side
    yield "contiguous", array((count,), dtype)
    yield "odd address", array((count,), dtype, offset=1)
    yield "rows with gaps", array((rows, columns + max(columns // 4, 1)), dtype)[:, :columns]
    yield "every second element", array((rows, 2 * columns), dtype)[:, ::2]
    yield "every second row", array((2 * rows, columns), dtype)[::2]
    yield "reversed", array((rows, columns), dtype)[..., ::-1]
    yield "rows reversed", array((rows, columns), dtype)[::-1]
    yield "transposed", array((columns, rows), dtype).T
    batch = 8 if count >= 1 << 12 else 1
    square = 1 << ((count // 4 // batch).bit_length() - 1) // 2
    height = count // 4 // batch // square
    yield "channels last to first", array((batch, height, square, 4), dtype).transpose(0, 3, 1, 2)
    yield "channels first to last", array((batch, 4, height, square), dtype).transpose(0, 2, 3, 1)


class Grid:
    def __init__(self, only):
        self.cells, self.only = [], only

    def cell(self, name, usual, ours, check, way):
        """Times one cell. `check` is called after a run of each and says whether the bytes are right."""
        if self.only and self.only not in name:
            return
        contestants = {"transload": ours, "usual": usual, "again": usual}
        once = []
        for run in (ours, usual):
            begin = time.perf_counter()
            run()
            once.append(time.perf_counter() - begin)
        if not check():
            raise AssertionError(f"{name}: other bytes")
        # Samples of half a millisecond at least; a second for a cell, as far as seven rounds are less.
        times = max(1, int(5e-4 / max(min(once), 1e-7)))
        rounds = max(7, min(41, int(1 / (sum(once) * 1.5 * times))))
        taken = {who: [] for who in contestants}
        order = list(contestants)
        for number in range(rounds):
            for who in order[number % 3 :] + order[: number % 3]:
                run = contestants[who]
                begin = time.perf_counter()
                for _ in range(times):
                    run()
                taken[who].append((time.perf_counter() - begin) / times)
        medians = {who: statistics.median(seconds) for who, seconds in taken.items()}
        spread = abs(medians["usual"] - medians["again"]) / min(medians["usual"], medians["again"])
        ratio = min(medians["usual"], medians["again"]) / medians["transload"]
        self.cells.append({"cell": name, "way": way, "ratio": ratio, "a_a": spread, **{f"{who}_s": of for who, of in medians.items()}})
        print(f"{name:<70} {way:<22} {spell(medians['usual']):>9} {spell(medians['transload']):>9} {ratio:6.2f}  A/A {spread:.0%}", flush=True)


def spell(seconds):
    for unit, factor in (("s", 1), ("ms", 1e3), ("us", 1e6)):
        if seconds * factor >= 1:
            return f"{seconds * factor:.3g} {unit}"
    return f"{seconds * 1e9:.0f} ns"


def arrays(grid, most):
    """NumPy to NumPy, into kept memory and new."""
    for nbytes in [of for of in SIZES if of <= most]:
        for dtype in ("u1", "f2", "f4", "f8"):
            for layout, src in views(nbytes, dtype):
                where = f"{name_of(nbytes)} {dtype} {layout}"
                dst, other = np.zeros(src.shape, dtype), np.zeros(src.shape, dtype)
                grid.cell(
                    f"{where}, kept",
                    lambda: np.copyto(other, src),
                    lambda: transload.copy(src, dst),
                    lambda: dst.tobytes() == other.tobytes(),
                    "np.copyto",
                )
                if layout in ("contiguous", "transposed", "every second element", "channels last to first"):
                    grid.cell(
                        f"{where}, new",
                        lambda: np.array(src, order="C"),
                        lambda: transload.copy(src, "cpu:0"),
                        lambda: transload.copy(src, "cpu:0").numpy().tobytes() == src.tobytes(),
                        "np.array(order='C')",
                    )
                if layout in ("rows with gaps", "transposed", "reversed"):
                    # The other way round: from dense memory into the view.
                    dense = np.ascontiguousarray(src)
                    grid.cell(
                        f"{where}, into the view",
                        lambda: np.copyto(src, dense),
                        lambda: transload.copy(dense, src),
                        lambda: src.tobytes() == dense.tobytes(),
                        "np.copyto",
                    )


def conversions(grid, most):
    for nbytes in [of for of in SIZES if of <= most]:
        for from_, to in (("f4", "f2"), ("f2", "f4"), ("f8", "f4")):
            for layout, bits in views(nbytes, from_):
                if layout not in ("contiguous", "transposed", "every second element"):
                    continue
                src = bits
                src[...] = 1.5
                dst, other = np.zeros(src.shape, to), np.zeros(src.shape, to)
                grid.cell(
                    f"{name_of(nbytes)} {from_} to {to} {layout}, kept",
                    lambda: np.copyto(other, src, casting="same_kind"),
                    lambda: transload.copy(src, dst, dtype=to),
                    lambda: (dst == other).all(),
                    "np.copyto",
                )
                if layout == "contiguous":
                    grid.cell(
                        f"{name_of(nbytes)} {from_} to {to} {layout}, new",
                        lambda: src.astype(to),
                        lambda: transload.copy(src, "cpu:0", dtype=to),
                        lambda: True,
                        "astype",
                    )


def blocks(grid):
    for block, count in ((64, 10_000), (4096, 10_000), (65536, 1000), (1 << 20, 32)):
        src, dst, other = array((count, block), "u1"), np.zeros((count, block), "u1"), np.zeros((count, block), "u1")
        order, places = NUMBERS.permutation(count), NUMBERS.permutation(count)

        def usual():
            other[places] = src[order]

        grid.cell(
            f"{count} blocks of {name_of(block)}, shuffled",
            usual,
            lambda: transload.copy_blocks(src, dst, order, places),
            lambda: (dst == other).all(),
            "dst[i] = src[j]",
        )


def many(grid):
    """Ten thousand copies, one call each, as loops of programs do them."""
    for nbytes in (64, 1024, 4096):
        src, dst, other = array((10_000, nbytes), "u1"), np.zeros((10_000, nbytes), "u1"), np.zeros((10_000, nbytes), "u1")

        def loop(copy, into):
            for at in range(0, 10_000, 10):
                copy(into[at], src[at])

        grid.cell(
            f"1,000 calls of {nbytes} B",
            lambda: loop(np.copyto, other),
            lambda: loop(lambda into, of: transload.copy(of, into), dst),
            lambda: (dst == other).all(),
            "np.copyto in a loop",
        )


def tensors(grid, most):
    if torch is None:
        return
    for nbytes in [of for of in SIZES if of <= most]:
        for dtype in ("u1", "f4"):
            for layout, view in views(nbytes, dtype):
                if layout in ("odd address", "reversed", "rows reversed"):
                    continue
                src = torch.from_numpy(view)
                dst, other = torch.zeros(view.shape, dtype=src.dtype), torch.zeros(view.shape, dtype=src.dtype)
                grid.cell(
                    f"torch {name_of(nbytes)} {dtype} {layout}, kept",
                    lambda: other.copy_(src),
                    lambda: transload.copy(src, dst),
                    lambda: torch.equal(dst, other),
                    "torch copy_",
                )


def files(grid, folder, most):
    for nbytes in [of for of in SIZES if 4096 < of <= most]:
        for count in (1, 100):
            if nbytes // count < 1024:
                continue
            arrays = {f"layer.{at}.weight": array((nbytes // count // 4,), "f4") for at in range(count)}
            ours, theirs = str(folder / "ours.safetensors"), str(folder / "theirs.safetensors")

            def usual():
                safetensors.numpy.save_file(arrays, theirs)
                with open(theirs, "rb") as opened:
                    os.fsync(opened.fileno())

            where = f"{count} tensors, {name_of(nbytes)}"
            grid.cell(
                f"save {where}",
                usual,
                lambda: transload.save(arrays, ours),
                lambda: all((of == arrays[name]).all() for name, of in safetensors.numpy.load_file(ours).items()),
                "save_file, fsync",
            )
            if not os.path.exists(theirs):
                usual()
            grid.cell(
                f"load {where}",
                lambda: safetensors.numpy.load_file(theirs),
                lambda: {name: tensor.numpy() for name, tensor in transload.load(theirs).items()},
                lambda: all((of.numpy() == arrays[name]).all() for name, of in transload.load(theirs).items()),
                "load_file",
            )


def adapters(grid, most):
    if wgpu is None:
        return
    found = {of.info["device"]: of for of in wgpu.gpu.enumerate_adapters_sync() if of.info["backend_type"] == "Vulkan"}
    place = next((of for of in transload.devices() if of.backend == "wgpu" and of.name in found), None)
    if place is None:
        return
    device = found[place.name].request_device_sync()
    usage = wgpu.BufferUsage.COPY_DST | wgpu.BufferUsage.COPY_SRC
    for nbytes in [of for of in SIZES if of <= min(most, 32 << 20)]:
        for layout, src in views(nbytes, "f4"):
            if layout not in ("contiguous", "rows with gaps", "transposed", "every second element"):
                continue
            buffer, kept = device.create_buffer(size=nbytes, usage=usage), transload.empty(src.shape, "f4", place)
            back, other = np.zeros(src.shape, "f4"), np.zeros(src.shape, "f4")

            def up():
                device.queue.write_buffer(buffer, 0, np.ascontiguousarray(src))
                # Waits for all that was submitted before it.
                device.queue.read_buffer(buffer, 0, 4)

            def down():
                other[...] = np.frombuffer(device.queue.read_buffer(buffer), "f4").reshape(src.shape)

            where = f"{name_of(nbytes)} {layout}"
            right = lambda: (kept.to("cpu:0").numpy() == src).all()
            grid.cell(f"{where} to {place.name}", up, lambda: transload.copy(src, kept), right, "write_buffer, wait")
            if layout == "contiguous":
                grid.cell(f"{where} from {place.name}", down, lambda: transload.copy(kept, back), lambda: (back == other).all(), "read_buffer")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=pathlib.Path, help="write the figures to this file")
    parser.add_argument("--only", help="cells whose name has this text")
    parser.add_argument("--most", type=int, default=256 << 20, help="leave larger arrays out")
    options = parser.parse_args()
    folder = pathlib.Path(tempfile.mkdtemp(prefix="transload-usual-"))
    grid = Grid(options.only)
    load = os.getloadavg()[0]
    try:
        arrays(grid, options.most)
        conversions(grid, options.most)
        blocks(grid)
        many(grid)
        tensors(grid, options.most)
        files(grid, folder, options.most)
        adapters(grid, options.most)
    finally:
        shutil.rmtree(folder)
    counted = [of for of in grid.cells if of["a_a"] <= 0.05 and of["usual_s"] >= 1e-6]
    short = sum(of["usual_s"] < 1e-6 for of in grid.cells)
    noisy = len(grid.cells) - len(counted) - short
    print(f"\n{len(grid.cells)} cells: {len(counted)} counted, {short} of less than 1 us, {noisy} with an A/A of more than 5 %")
    if counted:
        mean = statistics.geometric_mean(of["ratio"] for of in counted)
        slower = sorted((of for of in counted if of["ratio"] < 1), key=lambda of: of["ratio"])
        print(f"geometric mean {mean:.2f}; {len(slower)} below 1; the worst:")
        for of in slower[:10]:
            print(f"  {of['ratio']:.2f}  {of['cell']} ({of['way']})")
    if options.json:
        machine = {"machine": platform.processor() or platform.machine(), "processors": os.cpu_count(), "load": load}
        options.json.write_text(json.dumps({**machine, "cells": grid.cells}, indent=1) + "\n")


if __name__ == "__main__":
    main()

"""Compares the package with what Python programs use today: medians and spreads of one run, contestants in turn.

    python python/benches/compare.py [--json FILE] [--model FILE_OR_FOLDER]

Bytes are compared outside the timed region. Wants numpy and safetensors; torch and wgpu take part where they are
installed.
"""

import argparse
import json
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


def compare(name, contestants, rounds, before=lambda: None, times=1):
    """Runs each contestant once a round, in another order each time. Returns seconds for one call."""
    for run in contestants.values():
        before()
        run()
    taken = {who: [] for who in contestants}
    order = list(contestants)
    for number in range(rounds):
        for who in order[number % len(order) :] + order[: number % len(order)]:
            before()
            run = contestants[who]
            begin = time.perf_counter()
            for _ in range(times):
                run()
            taken[who].append((time.perf_counter() - begin) / times)
    rows = {}
    for who, seconds in taken.items():
        seconds.sort()
        rows[who] = {
            "median_s": statistics.median(seconds),
            "low_s": seconds[len(seconds) // 10],
            "high_s": seconds[-1 - len(seconds) // 10],
        }
        row = rows[who]
        print(f"{name:<18} {who:<22} {_time(row['median_s']):>9}  ({_time(row['low_s'])} to {_time(row['high_s'])})")
    return rows


def _time(seconds):
    for unit, factor in (("s", 1), ("ms", 1e3), ("us", 1e6)):
        if seconds * factor >= 1:
            return f"{seconds * factor:.3g} {unit}"
    return f"{seconds * 1e9:.0f} ns"


def copies(nbytes, rounds, times):
    # All read the same memory, and write memory of the same kind that was touched before.
    src = np.random.default_rng(0).integers(0, 255, nbytes, np.uint8)
    to_ours, to_numpy, to_torch = (np.ones_like(src) for _ in range(3))
    contestants = {
        "transload.copy": lambda: transload.copy(src, to_ours),
        "numpy.copyto": lambda: np.copyto(to_numpy, src),
        "numpy.copyto again": lambda: np.copyto(to_numpy, src),
    }
    if torch:
        source, target = torch.from_numpy(src), torch.from_numpy(to_torch)
        contestants["torch.Tensor.copy_"] = lambda: target.copy_(source)
    rows = compare(f"copy {nbytes} B", contestants, rounds, times=times)
    assert (to_ours == src).all()
    return rows


def make_model(path, nbytes, count):
    each = nbytes // count // 2
    tensors = {
        f"layer.{at}.weight": np.frombuffer(np.random.default_rng(at).bytes(each * 2), np.float16) for at in range(count)
    }
    safetensors.numpy.save_file(tensors, path)


def loads(path, files, rounds, cold):
    def before():
        if cold:
            for file in files:
                with open(file, "rb") as opened:
                    os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)

    def ours():
        return {name: tensor.numpy() for name, tensor in transload.load(path).items()}

    def theirs():
        tensors = {}
        for file in files:
            tensors.update(safetensors.numpy.load_file(file))
        return tensors

    loaded, expected = ours(), theirs()
    assert loaded.keys() == expected.keys()
    assert all(loaded[name].tobytes() == of.tobytes() for name, of in expected.items())
    del loaded, expected
    contestants = {"transload.load": ours, "safetensors.load_file": theirs, "safetensors again": theirs}
    return compare("load cold" if cold else "load warm", contestants, rounds, before)


def adapter_loads(path, files, rounds):
    """To the memory of an adapter that both see, each time the same buffers of wgpu's, or memory that transload keeps."""
    adapters = {of.info["device"]: of for of in wgpu.gpu.enumerate_adapters_sync() if of.info["backend_type"] == "Vulkan"}
    place = next((of for of in transload.devices() if of.backend == "wgpu" and of.name in adapters), None)
    if place is None:
        return None
    device = adapters[place.name].request_device_sync()
    usage = wgpu.BufferUsage.COPY_DST | wgpu.BufferUsage.COPY_SRC
    buffers = {}

    def ours():
        return transload.load(path, device=place)

    def theirs():
        for file in files:
            for name, array in safetensors.numpy.load_file(file).items():
                if name not in buffers:
                    buffers[name] = device.create_buffer(size=array.nbytes, usage=usage)
                device.queue.write_buffer(buffers[name], 0, array)
        # Waits for all that was submitted before it.
        device.queue.read_buffer(buffers[name], 0, 4)

    loaded = ours()
    theirs()
    for name, tensor in loaded.items():
        assert device.queue.read_buffer(buffers[name]) == tensor.to("cpu:0").numpy().tobytes(), name
    del loaded
    print(f"to {place.name}")
    contestants = {"transload.load": ours, "wgpu write_buffer": theirs, "write_buffer again": theirs}
    return compare("load to an adapter", contestants, rounds)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=pathlib.Path, help="write the figures to this file")
    parser.add_argument("--model", type=pathlib.Path, help="load this model and not a made one of 1 GiB")
    options = parser.parse_args()
    folder = tempfile.mkdtemp(prefix="transload-compare-")
    results = {"machine": platform.processor() or platform.machine(), "processors": os.cpu_count()}
    results["devices"] = [device.name for device in transload.devices()]
    try:
        path = options.model
        if path is None:
            path = pathlib.Path(folder, "model.safetensors")
            make_model(path, 1 << 30, 100)
            os.sync()
        files = [pathlib.Path(file) for file in transload.inspect(path)["files"]]
        results["copy 4 KiB"] = copies(4096, 21, 2000)
        results["copy 128 MiB"] = copies(128 << 20, 15, 1)
        results["load warm"] = loads(path, files, 7, cold=False)
        if hasattr(os, "posix_fadvise"):
            results["load cold"] = loads(path, files, 7, cold=True)
        if wgpu:
            results["load to an adapter"] = adapter_loads(path, files, 5)
    finally:
        shutil.rmtree(folder)
    if options.json:
        options.json.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()

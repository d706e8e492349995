# Copies by PyTorch and CuPy when told to: one request a line, one answer a line.
#   argv[1]               the device: cuda:0
#   prepare up|down BYTES makes memory at both ends; answers the ways as a list in JSON
#   prepare load PATH     the ways to load the tensors of a safetensors file
#   verify WAY            poisons, copies once, compares; answers `equal` or `different`
#   time WAY TURNS        copies so often; answers nanoseconds altogether
#   release               gives the memory back; answers `released`
# A way is its place in the list. An answer that begins with `error` says what went wrong.
# The first line says which libraries are here, and of the others why not.
import gc
import json
import sys
from time import perf_counter_ns

DEVICE = sys.argv[1]
POISON = 0xA5


def absence(error):
    return f"{type(error).__name__}: {error}".splitlines()[0]


def load_torch():
    import torch

    torch.ones(1, device=DEVICE)
    return torch


def load_cupy():
    import cupy

    cupy.cuda.Device(int(DEVICE.split(":")[1])).use()
    cupy.ones(1)
    return cupy


present, absent, libraries = {}, {}, {}
for name, load in (("torch", load_torch), ("cupy", load_cupy)):
    try:
        libraries[name] = load()
        present[name] = libraries[name].__version__
    except Exception as error:
        absent[name] = absence(error)


class Torch:
    """Every way returns what it wrote; the end of the copy is waited for outside, as users must."""

    def __init__(self, torch, direction, length):
        self.torch, self.length = torch, length
        self.host = torch.randint(0, 256, (length,), dtype=torch.uint8)
        self.there = torch.full((length,), POISON, dtype=torch.uint8, device=DEVICE)
        if direction == "up":
            self.ways = {
                "torch .to": lambda: self.host.to(DEVICE),
                "torch pin_memory().to": lambda: self.host.pin_memory().to(DEVICE),
                "torch copy_": lambda: self.there.copy_(self.host),
            }
        else:
            self.there.copy_(self.host)
            self.back = torch.full((length,), POISON, dtype=torch.uint8)
            self.pinned = torch.full((length,), POISON, dtype=torch.uint8).pin_memory()
            self.ways = {
                "torch .to": lambda: self.there.to("cpu"),
                "torch copy_": lambda: self.back.copy_(self.there),
                "torch copy_ to pinned": lambda: self.pinned.copy_(self.there),
            }
        self.direction = direction

    def wait(self):
        self.torch.cuda.synchronize(DEVICE)

    def poison(self):
        if self.direction == "up":
            self.there.fill_(POISON)
            # The allocator hands the block that was used last out again: it must not hold the right bytes.
            self.torch.full((self.length,), POISON, dtype=self.torch.uint8, device=DEVICE)
        else:
            self.back.fill_(POISON)
            self.pinned.fill_(POISON)

    def equal(self, got):
        return self.torch.equal(got.cpu(), self.host)

    def release(self):
        self.torch.cuda.empty_cache()
        # Private, and the only way to have pinned memory given back.
        empty = getattr(self.torch._C, "_host_emptyCache", None)
        if empty is not None:
            empty()


class Cupy:
    def __init__(self, cupy, direction, length):
        import numpy

        self.cupy, self.numpy, self.length = cupy, numpy, length
        self.host = numpy.random.default_rng(length).integers(0, 256, length, dtype=numpy.uint8)
        self.there = cupy.full(length, POISON, dtype=cupy.uint8)
        if direction == "up":
            self.ways = {
                "cupy asarray": lambda: cupy.asarray(self.host),
                "cupy set": self.set,
            }
        else:
            self.there.set(self.host)
            self.back = numpy.full(length, POISON, dtype=numpy.uint8)
            self.ways = {
                "cupy asnumpy": lambda: cupy.asnumpy(self.there),
                "cupy get": lambda: self.there.get(out=self.back),
            }
        self.direction = direction

    def set(self):
        self.there.set(self.host)
        return self.there

    def wait(self):
        self.cupy.cuda.get_current_stream().synchronize()

    def poison(self):
        if self.direction == "up":
            self.there.fill(POISON)
            self.cupy.full(self.length, POISON, dtype=self.cupy.uint8)
        else:
            self.back.fill(POISON)

    def equal(self, got):
        return bool((self.cupy.asnumpy(got) == self.host).all())

    def release(self):
        self.cupy.get_default_memory_pool().free_all_blocks()
        self.cupy.get_default_pinned_memory_pool().free_all_blocks()


class Safetensors:
    """The tensors of a file, in new memory of the device."""

    def __init__(self, torch, path):
        from safetensors.torch import load_file

        self.torch, self.path = torch, path
        self.ways = {"safetensors load_file": lambda: load_file(path, device=DEVICE)}

    def wait(self):
        self.torch.cuda.synchronize(DEVICE)

    def poison(self):
        # The allocator hands the same blocks out again.
        for load in self.ways.values():
            for tensor in load().values():
                tensor.fill_(POISON)

    def equal(self, got):
        with open(self.path, "rb") as file:
            header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
            start = file.tell()
            for name, tensor in got.items():
                begin, end = header.pop(name)["data_offsets"]
                file.seek(start + begin)
                if tensor.cpu().numpy().tobytes() != file.read(end - begin):
                    return False
        return not header

    def release(self):
        self.torch.cuda.empty_cache()


users, ways = [], []


def prepare(direction, what):
    if direction == "load":
        if "torch" not in libraries:
            raise LookupError("there is no torch")
        users.append(Safetensors(libraries["torch"], what))
    else:
        for name, made in (("torch", Torch), ("cupy", Cupy)):
            if name in libraries:
                users.append(made(libraries[name], direction, int(what)))
    ways.extend((user, way, copy) for user in users for way, copy in user.ways.items())
    return json.dumps([way for _, way, _ in ways])


def verify(way):
    user, _, copy = ways[int(way)]
    user.poison()
    user.wait()
    got = copy()
    user.wait()
    return "equal" if user.equal(got) else "different"


def time(way, turns):
    user, _, copy = ways[int(way)]
    user.wait()
    begin = perf_counter_ns()
    for _ in range(int(turns)):
        copy()
        user.wait()
    return str(perf_counter_ns() - begin)


def release():
    ways.clear()
    last = list(users)
    users.clear()
    for user in last:
        # The ways refer to what they copy.
        kept = user.release
        for name in ("ways", "host", "there", "back", "pinned"):
            user.__dict__.pop(name, None)
        gc.collect()
        kept()
    return "released"


print(json.dumps({"present": present, "absent": absent}), flush=True)
for line in sys.stdin:
    verb, *arguments = line.split()
    try:
        answer = {"prepare": prepare, "verify": verify, "time": time, "release": release}[verb](*arguments)
    except Exception as error:
        answer = "error " + absence(error)
    print(answer, flush=True)

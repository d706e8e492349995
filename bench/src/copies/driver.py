# Copies with NumPy and PyTorch when told to: one request a line, one answer a line.
#   argv[1]              the length of both buffers in bytes
#   time LIBRARY TURNS   copies so often; answers nanoseconds altogether
#   verify LIBRARY 1     poisons, copies once, compares; answers `equal` or `different`
# The first line says which libraries are there.
import json
import sys
from time import perf_counter_ns

length = int(sys.argv[1])
present, absent, ways = {}, {}, {}

try:
    import numpy

    src = numpy.random.default_rng(length).integers(0, 256, length, dtype=numpy.uint8)
    dst = numpy.full(length, 0xA5, dtype=numpy.uint8)
    ways["numpy"] = (
        lambda: numpy.copyto(dst, src),
        lambda: dst.fill(0xA5),
        lambda: numpy.array_equal(dst, src),
    )
    present["numpy"] = numpy.__version__
except ImportError as error:
    absent["numpy"] = str(error)

try:
    import torch

    t_src = torch.randint(0, 256, (length,), dtype=torch.uint8)
    t_dst = torch.full((length,), 0xA5, dtype=torch.uint8)
    ways["torch"] = (
        lambda: t_dst.copy_(t_src),
        lambda: t_dst.fill_(0xA5),
        lambda: torch.equal(t_dst, t_src),
    )
    present["torch"] = torch.__version__
except ImportError as error:
    absent["torch"] = str(error)

print(json.dumps({"present": present, "absent": absent}), flush=True)

for line in sys.stdin:
    verb, library, turns = line.split()
    copy, poison, equal = ways[library]
    if verb == "time":
        begin = perf_counter_ns()
        for _ in range(int(turns)):
            copy()
        print(perf_counter_ns() - begin, flush=True)
    else:
        poison()
        copy()
        print("equal" if equal() else "different", flush=True)

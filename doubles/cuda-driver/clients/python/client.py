"""What the tests of the double through NVIDIA's bindings for Python have in common.

The bindings were made by NVIDIA for the real driver. They load `libcuda.so.1` from the loader's path, and ask
`cuGetProcAddress` for every function, by its name and the version of CUDA that the bindings were made for.
`cargo xtask test --only clients` builds the double and sets that path.
"""

import ctypes
import os
import random
import subprocess
import sys
import unittest
from pathlib import Path

FOLDER = Path(__file__).resolve().parent
MACHINES = FOLDER.parent.parent / "topologies"

# Two devices that reach each other, unless a test asks for another machine in a process of its own.
os.environ.setdefault("TRANSLOAD_DOUBLE_TOPOLOGY", str(MACHINES / "pcie-peer.toml"))

from cuda.bindings import driver as cuda  # noqa: E402
from cuda.bindings.driver import CUresult  # noqa: E402

LIBRARY = ctypes.CDLL("libcuda.so.1")
if not hasattr(LIBRARY, "transload_double_control"):
    sys.exit("the libcuda.so.1 on the loader's path is not the double")

OWN_PROCESS = "TRANSLOAD_CLIENT_TEST"


def done(answer):
    """What a function gives besides its result, which must be success."""
    result, *values = answer
    if result != CUresult.CUDA_SUCCESS:
        raise AssertionError(f"it answered {result!r}")
    return values[0] if len(values) == 1 else tuple(values)


def failure(answer):
    """What a function failed with."""
    if answer[0] == CUresult.CUDA_SUCCESS:
        raise AssertionError(f"it succeeded, with {answer[1:]}")
    return answer[0]


def pattern(length, seed):
    """Bytes that are told from any others made so."""
    return random.Random(seed).randbytes(length)


class Host:
    """Pageable memory of the host."""

    def __init__(self, content):
        self.buffer = (ctypes.c_ubyte * len(content)).from_buffer_copy(content)
        self.address = ctypes.addressof(self.buffer)

    def __bytes__(self):
        return bytes(self.buffer)


def at(address, length):
    """The bytes at an address that the host reaches."""
    return ctypes.string_at(int(address), length)


def put(address, content):
    """Writes bytes to an address that the host reaches."""
    ctypes.memmove(int(address), content, len(content))


def opaque(handle):
    """The bytes of a handle that only the driver understands, as text for another process."""
    return at(handle.getPtr(), 64).hex()


def from_opaque(handle, text):
    """The handle of another process."""
    put(handle.getPtr(), bytes.fromhex(text))
    return handle


def upload(address, content):
    """Writes to memory of a device, and waits for the bytes to arrive there.

    From pageable memory cuMemcpyHtoD returns once they are staged (API Synchronization Behavior)."""
    host = Host(content)
    done(cuda.cuMemcpyHtoD(address, host.address, len(content)))
    done(cuda.cuCtxSynchronize())


def download(address, length):
    """Reads memory of a device."""
    host = Host(bytes(length))
    done(cuda.cuMemcpyDtoH(host.address, address, length))
    return bytes(host)


def control(command):
    """Tells the double something, or asks it."""
    answer = ctypes.create_string_buffer(1 << 16)
    length = LIBRARY.transload_double_control(command.encode(), answer, ctypes.c_size_t(len(answer)))
    if length < 0:
        raise AssertionError(f"{command}: {answer.value.decode()}")
    return answer.value.decode()


def counter(name):
    """A counter of the double; 0 when it never counted."""
    lines = (line.rsplit(" ", 1) for line in control("counters").splitlines())
    return next((int(count) for of, count in lines if of == name), 0)


class Client(unittest.TestCase):
    """A test with device 0's context current."""

    def setUp(self):
        done(cuda.cuInit(0))
        self.contexts = []
        self.use(0)

    def tearDown(self):
        for device in self.contexts:
            done(cuda.cuDevicePrimaryCtxRelease(device))

    def use(self, device):
        """Makes a device's context the current one."""
        context = done(cuda.cuDevicePrimaryCtxRetain(device))
        self.contexts.append(device)
        done(cuda.cuCtxSetCurrent(context))
        return context

    def allocate(self, length):
        """Memory of the current device, freed at the end of the test."""
        address = done(cuda.cuMemAlloc(length))
        self.addCleanup(cuda.cuMemFree, address)
        return address

    def stream(self):
        """A stream that waits for no other, destroyed at the end of the test."""
        flags = cuda.CUstream_flags.CU_STREAM_NON_BLOCKING
        stream = done(cuda.cuStreamCreate(flags))
        self.addCleanup(cuda.cuStreamDestroy, stream)
        return stream

    def in_own_process(self, machine="pcie-peer", variables=None, descriptors=()):
        """Whether this is the process of its own that the test asked for; if not, it has been run."""
        if os.environ.get(OWN_PROCESS) == self.id():
            return True
        environment = dict(os.environ, **(variables or {}))
        environment[OWN_PROCESS] = self.id()
        environment["TRANSLOAD_DOUBLE_TOPOLOGY"] = str(MACHINES / f"{machine}.toml")
        ran = subprocess.run(
            [sys.executable, "-m", "unittest", self.id()],
            cwd=FOLDER,
            env=environment,
            pass_fds=descriptors,
            capture_output=True,
            text=True,
            timeout=300,
        )
        self.assertEqual(ran.returncode, 0, ran.stderr)
        self.assertIn("Ran 1 test", ran.stderr)
        return False

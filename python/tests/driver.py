"""The CUDA driver by ctypes, as another library of the process uses it: memory, streams and events of its own."""

import ctypes as c
import os

import numpy as np

import capsules

lib = c.CDLL(os.environ["TRANSLOAD_CUDA_DRIVER"])
LEGACY, PER_THREAD = 1, 2


def call(name, *arguments):
    code = getattr(lib, name)(*arguments)
    assert code == 0, f"{name} answered {code}"


def control(command):
    answer = c.create_string_buffer(1 << 20)
    length = lib.transload_double_control(command.encode(), answer, len(answer))
    assert length >= 0, answer.value
    return answer.value.decode()


def enter(device=0):
    """Makes the device's primary context the thread's."""
    call("cuInit", 0)
    context = c.c_void_p()
    call("cuDevicePrimaryCtxRetain", c.byref(context), device)
    call("cuCtxSetCurrent", context)


class Memory:
    """Memory of a device with a NumPy array's bytes."""

    def __init__(self, array, stream=None):
        self.nbytes, self.address, self.array = array.nbytes, c.c_uint64(), array
        call("cuMemAlloc_v2", c.byref(self.address), c.c_size_t(max(array.nbytes, 1)))
        self.write(array)

    def write(self, array):
        call("cuMemcpyHtoD_v2", self.address, c.c_void_p(array.ctypes.data), c.c_size_t(array.nbytes))

    def read(self):
        array = np.empty_like(self.array)
        call("cuMemcpyDtoH_v2", c.c_void_p(array.ctypes.data), self.address, c.c_size_t(array.nbytes))
        return array

    def copy_from(self, other, stream):
        """Orders a copy in a stream, and does not wait."""
        call("cuMemcpyDtoDAsync_v2", self.address, other.address, c.c_size_t(self.nbytes), stream)


def stream():
    made = c.c_void_p()
    call("cuStreamCreate", c.byref(made), 1)
    return made


def follow(waiting, of):
    """Has a stream wait for what was ordered in another one."""
    event = c.c_void_p()
    call("cuEventCreate", c.byref(event), 2)
    call("cuEventRecord", event, of)
    call("cuStreamWaitEvent", waiting, event, 0)
    call("cuEventDestroy_v2", event)


class Producer(capsules.Producer):
    """An array of another library on a device: by the standard, the consumer's stream waits for the producer's."""

    def __init__(self, memory, *, work=None, device=0, **fields):
        self.memory, self.work = memory, work
        super().__init__(memory.array, device=(capsules.CUDA, device), data=memory.address.value, **fields)

    def __dlpack__(self, *, stream=None, **keywords):
        self.stream = stream
        assert stream != 0
        if self.work is not None and stream != -1:
            follow(c.c_void_p(LEGACY if stream is None else stream), self.work)
        return super().__dlpack__(**keywords)

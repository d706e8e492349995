"""Tensors of CUDA devices, over the double of the driver. `test_cuda.py` runs this file."""

import pickle
import threading

import numpy as np
import pytest

import capsules
import driver
import transload
from driver import Memory, Producer

driver.enter()


@pytest.fixture(scope="module", autouse=True)
def no_misuse():
    yield
    assert driver.control("notes") == ""


def sample(shape=(6, 8), dtype="f4"):
    return np.arange(int(np.prod(shape)), dtype=dtype).reshape(shape)


def test_the_devices_are_there():
    devices = {str(device): device for device in transload.devices()}
    assert {"cuda:0", "cuda:1"} <= set(devices)
    assert devices["cuda:0"].simulated
    assert "cuda:0/device" in devices["cuda:0"].memories


@pytest.mark.parametrize("place", ["cuda:0", "cuda:1", "cuda:0/managed", "cpu:0/pinned"])
@pytest.mark.parametrize("dtype", ["u1", "f4", "c8", "?"])
def test_arrays_go_there_and_back(place, dtype):
    src = sample(dtype="u1").astype(dtype)
    for view in (src, src.T, src[::-1, ::3], src[2, 3, ...], src[:, 4:4]):
        tensor = transload.copy(view, place)
        np.testing.assert_array_equal(tensor.numpy(), view, strict=True)
        into = np.zeros_like(view)
        transload.copy(tensor, into)
        np.testing.assert_array_equal(into, view)


def test_tensors_go_from_device_to_device():
    src = sample()
    tensor = transload.copy(src, "cuda:0")
    for place in ("cuda:1", "cuda:0", "cpu:0/pinned", "cuda:1/managed"):
        np.testing.assert_array_equal(transload.copy(tensor, place)[1:, ::2].numpy(), src[1:, ::2])
    there = tensor.to("cuda:1")
    assert there.device == "cuda:1" and there.to("cuda:1") is there
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(there)).numpy(), src)


def test_slices_of_a_device_are_written():
    tensor, model = transload.copy(sample(), "cuda:0"), sample()
    transload.copy(np.zeros((6, 4), "f4"), tensor[:, ::2])
    model[:, ::2] = 0
    np.testing.assert_array_equal(tensor.numpy(), model)


@pytest.mark.parametrize(
    "place, expected",
    [("cuda:0", (2, 0)), ("cuda:1", (2, 1)), ("cuda:1/managed", (13, 1)), ("cpu:0/pinned", (1, 0))],
)
def test_devices_have_the_numbers_of_the_standard(place, expected):
    tensor = transload.empty(3, device=place)
    assert tensor.__dlpack_device__() == expected
    told = capsules.read(capsule := tensor.__dlpack__(max_version=(1, 0))).tensor.device
    assert (told.type, told.number) == expected
    del capsule


def test_a_device_pointer_is_exported_and_read_by_the_driver():
    src = sample()
    for versioned in (True, False):
        tensor = transload.copy(src, "cuda:0")
        managed = capsules.take(tensor.__dlpack__(max_version=(1, 0) if versioned else None))
        address = managed.tensor.data
        assert address == tensor.__cuda_array_interface__["data"][0]
        del tensor
        others = [transload.copy(np.zeros_like(src), "cuda:0") for _ in range(4)]
        array = np.empty_like(src)
        driver.call(
            "cuMemcpyDtoH_v2", driver.c.c_void_p(array.ctypes.data), driver.c.c_uint64(address), driver.c.c_size_t(src.nbytes)
        )
        np.testing.assert_array_equal(array, src)
        assert len(others) == 4
        # From a thread without a context, as consumers may.
        thread = threading.Thread(target=capsules.delete, args=(managed,))
        thread.start()
        thread.join()


def test_cuda_array_interface_tells_the_memory():
    tensor = transload.copy(sample(), "cuda:1")[::-1, ::2]
    interface = tensor.__cuda_array_interface__
    assert interface.pop("data")[1] is False
    assert interface == {"version": 3, "shape": (6, 4), "typestr": "<f4", "strides": (-32, 8), "stream": None}
    assert not hasattr(tensor, "__array_interface__")
    assert not hasattr(transload.empty(3), "__cuda_array_interface__")
    with pytest.raises(BufferError, match='transload.copy\\(tensor, "cpu:0"\\)'):
        memoryview(tensor)
    with pytest.raises(TypeError, match='transload.copy\\(tensor, "cpu:0"\\)'):
        np.asarray(tensor)


def test_arrays_of_a_device_that_have_the_buffer_protocol_are_taken_by_dlpack():
    class Array(np.ndarray):  # as of JAX, whose arrays refuse the protocol there; the bytes of this one are others
        def __dlpack_device__(self):
            return (capsules.CUDA, 0)

        def __dlpack__(self, **keywords):
            return self.producer.__dlpack__(**keywords)

    array = np.zeros((6, 8), "f4").view(Array)
    array.producer = Producer(Memory(sample()))
    np.testing.assert_array_equal(transload.copy(array, "cpu:0").numpy(), sample())
    transload.copy(sample()[::-1], array)
    np.testing.assert_array_equal(array.producer.memory.read(), sample()[::-1])


def test_the_host_is_reached_on_request():
    tensor = transload.copy(sample(), "cuda:0")
    np.testing.assert_array_equal(np.from_dlpack(tensor, device="cpu"), sample())
    with pytest.raises(BufferError, match="^copy: "):
        tensor.__dlpack__(dl_device=(1, 0), copy=False)
    with pytest.raises(BufferError, match="^dl_device: "):
        tensor.__dlpack__(dl_device=(2, 1))
    managed = capsules.read(capsule := tensor.__dlpack__(max_version=(1, 0), copy=True))
    assert managed.flags == capsules.IS_COPIED
    assert managed.tensor.data != tensor.__cuda_array_interface__["data"][0]
    del capsule


@pytest.mark.parametrize("versioned", [True, False], ids=["versioned", "legacy"])
def test_memory_of_another_library_is_read(versioned, settled):
    src = sample()
    memory = Memory(src)
    producer = Producer(memory, versioned=versioned)
    for place in ("cpu:0", "cuda:0", "cuda:1"):
        np.testing.assert_array_equal(transload.copy(producer, place).numpy(), src)
    settled()
    assert producer.deleted == 3
    strided = Producer(memory, versioned=versioned, shape=(6, 4), strides=(8, 2))
    np.testing.assert_array_equal(transload.copy(strided, "cpu:0").numpy(), src[:, ::2])


def test_memory_of_another_library_is_written():
    memory = Memory(np.zeros((6, 8), "f4"))
    producer = Producer(memory)
    assert transload.copy(sample(), producer) is producer
    np.testing.assert_array_equal(memory.read(), sample())
    transload.copy(transload.copy(sample() + 1, "cuda:1"), producer)
    np.testing.assert_array_equal(memory.read(), sample() + 1)
    with pytest.raises(ValueError, match="dst: its memory is read-only"):
        transload.copy(sample(), Producer(memory, flags=capsules.READ_ONLY))


def test_a_device_that_is_not_here_is_refused(settled):
    producer = Producer(Memory(sample()), device=9)
    with pytest.raises(transload.Error, match="^src: "):
        transload.copy(producer, "cpu:0")
    assert not producer.consumed
    settled()
    assert producer.deleted == 0


def test_an_address_that_is_not_the_devices_is_refused():
    producer = Producer(Memory(sample()))
    producer.managed.tensor.data = 0x1000
    with pytest.raises(transload.Error, match="^src: "):
        transload.copy(producer, "cpu:0")
    assert not producer.consumed


def test_models_are_loaded_to_devices(tmp_path):
    path = tmp_path / "m.safetensors"
    made = {str(number): sample((64, 64)) + number for number in range(8)}
    transload.save(made, path)
    for device in ("cuda:0", ["cuda:0", "cuda:1"]):
        loaded = transload.load(path, device=device)
        for name, array in made.items():
            np.testing.assert_array_equal(loaded[name].numpy(), array)
    split = transload.load(path, device=["cuda:0", "cuda:1"], split={"*": 0})
    for name, array in made.items():
        np.testing.assert_array_equal(np.concatenate([part.numpy() for part in split[name]]), array)


def test_memory_of_the_device_is_given_back(settled):
    def round():
        tensor = transload.copy(sample(), "cuda:0")
        tensor.__dlpack__(max_version=(1, 0))
        capsules.delete(capsules.take(tensor.__dlpack__()))
        transload.copy(Producer(memory), "cuda:0")

    memory = Memory(sample())
    round()
    settled()
    before = len(driver.control("leaks").splitlines())
    for _ in range(50):
        round()
    settled()
    assert len(driver.control("leaks").splitlines()) <= before


def test_nvidias_own_bindings_share_the_memory():
    cuda = pytest.importorskip("cuda.bindings.driver", reason="the package cuda-bindings is not installed")

    def done(answer):
        assert answer[0] == cuda.CUresult.CUDA_SUCCESS, answer
        return answer[1] if len(answer) > 1 else None

    done(cuda.cuInit(0))
    context = done(cuda.cuDevicePrimaryCtxRetain(done(cuda.cuDeviceGet(0))))
    done(cuda.cuCtxSetCurrent(context))
    src = sample()
    address = done(cuda.cuMemAlloc(src.nbytes))
    done(cuda.cuMemcpyHtoD(address, src.ctypes.data, src.nbytes))
    producer = capsules.Producer(src, device=(capsules.CUDA, 0), data=int(address))
    np.testing.assert_array_equal(transload.copy(producer, "cpu:0").numpy(), src)
    transload.copy(src * 2, producer)
    back = np.empty_like(src)
    done(cuda.cuMemcpyDtoH(back.ctypes.data, address, src.nbytes))
    np.testing.assert_array_equal(back, src * 2)
    tensor = transload.copy(src, "cuda:0")
    managed = capsules.take(tensor.__dlpack__(max_version=(1, 0)))
    done(cuda.cuMemcpyDtoH(back.ctypes.data, managed.tensor.data, src.nbytes))
    np.testing.assert_array_equal(back, src)
    capsules.delete(managed)

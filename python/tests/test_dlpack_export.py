"""Tensors as DLPack capsules, read by NumPy and by hand."""

import gc

import numpy as np
import pytest

import capsules
import transload


def made(shape=(3, 4), dtype="f4"):
    return transload.copy(np.arange(int(np.prod(shape)), dtype=dtype).reshape(shape), "cpu:0")


def test_numpy_takes_the_memory_without_a_copy():
    tensor = made()
    array = np.from_dlpack(tensor)
    assert array.ctypes.data == tensor.numpy().ctypes.data
    array[1, 2] = 99
    assert tensor.numpy()[1, 2] == 99


@pytest.mark.parametrize("versioned", [True, False], ids=["versioned", "legacy"])
def test_the_structure_says_what_the_tensor_is(versioned):
    tensor = made()[::-1, ::2]
    capsule = tensor.__dlpack__(max_version=(1, 0) if versioned else None)
    managed = capsules.read(capsule)
    told = managed.tensor
    assert isinstance(managed, capsules.Versioned) == versioned
    assert (told.device.type, told.device.number) == (capsules.CPU, 0)
    assert (told.dtype.code, told.dtype.bits, told.dtype.lanes) == (capsules.FLOAT, 32, 1)
    assert (told.shape[:2], told.strides[:2], told.ndim) == ([3, 2], [-4, 2], 2)
    assert told.data == tensor.numpy().ctypes.data
    assert told.byte_offset == 0
    if versioned:
        assert (managed.major, managed.flags) == (1, 0)


@pytest.mark.parametrize(
    "dtype, code, bits",
    [
        ("bool", 6, 8), ("int8", 0, 8), ("uint64", 1, 64), ("float16", 2, 16), ("bfloat16", 4, 16), ("complex64", 5, 64),
        ("float8_e4m3fn", 10, 8), ("float8_e4m3fnuz", 11, 8), ("float8_e5m2", 12, 8), ("float8_e5m2fnuz", 13, 8),
        ("float8_e8m0fnu", 14, 8),
    ],
)  # fmt: skip
def test_types_have_the_codes_of_the_standard(dtype, code, bits):
    told = capsules.read(transload.empty(3, dtype).__dlpack__(max_version=(1, 1))).tensor.dtype
    assert (told.code, told.bits, told.lanes) == (code, bits, 1)


@pytest.mark.parametrize(
    "max_version, name",
    [(None, "dltensor"), ((0, 8), "dltensor"), ((1, 0), "dltensor_versioned"), ((2, 0), "dltensor_versioned")],
)
def test_the_consumer_chooses_the_version(max_version, name):
    assert capsules.name_of(made().__dlpack__(max_version=max_version)) == name


@pytest.mark.parametrize("versioned", [True, False], ids=["versioned", "legacy"])
def test_the_memory_stays_until_the_deleter_has_run(versioned):
    tensor = made((1000,))
    managed = capsules.take(tensor.__dlpack__(max_version=(1, 0) if versioned else None))
    address = managed.tensor.data
    del tensor
    gc.collect()
    others = [made((1000,), "f4") for _ in range(8)]
    assert all(other.numpy().ctypes.data != address for other in others)
    seen = (capsules.c.c_float * 1000).from_address(address)
    assert list(seen) == list(range(1000))
    capsules.delete(managed)


def test_keywords_of_the_standard_are_taken():
    tensor = made()
    capsule = tensor.__dlpack__(stream=None, max_version=(1, 0), dl_device=(1, 0), copy=None)
    assert capsules.read(capsule).tensor.data == tensor.numpy().ctypes.data
    same = tensor.__dlpack__(copy=False)
    assert capsules.read(same).tensor.data == tensor.numpy().ctypes.data


def test_a_copy_is_one_and_says_so():
    tensor = made()
    managed = capsules.read(capsule := tensor.__dlpack__(max_version=(1, 0), copy=True))
    assert managed.flags == capsules.IS_COPIED
    assert managed.tensor.data != tensor.numpy().ctypes.data
    array = np.from_dlpack(tensor, copy=True)
    np.testing.assert_array_equal(array, tensor.numpy())
    array[0] = -1
    assert (tensor.numpy() != -1).all()
    del capsule


@pytest.mark.parametrize(
    "keywords, argument",
    [
        ({"stream": 1}, "stream"), ({"stream": 0}, "stream"), ({"stream": -1}, "stream"), ({"dl_device": (2, 0)}, "dl_device"),
        ({"dl_device": (1, 1)}, "dl_device"),
    ],
)  # fmt: skip
def test_what_the_host_does_not_have_is_a_buffer_error(keywords, argument):
    with pytest.raises(BufferError, match=f"^{argument}: "):
        made().__dlpack__(**keywords)


@pytest.mark.parametrize("keywords", [{"stream": "a"}, {"max_version": 1}, {"dl_device": 1}, {"copy": "yes"}, {"other": 1}])
def test_arguments_of_other_types_are_type_errors(keywords):
    with pytest.raises(TypeError):
        made().__dlpack__(**keywords)


def test_a_device_without_exchange_names_the_way_to_the_host(gpu):
    tensor = transload.copy(np.arange(6.0), gpu)
    assert tensor.__dlpack_device__() == (capsules.WEB_GPU, int(gpu.split(":")[1]))
    for keywords in ({}, {"max_version": (1, 0)}, {"copy": True}, {"max_version": (1, 0), "copy": False}):
        with pytest.raises(BufferError, match='transload.copy\\(tensor, "cpu:0"\\)'):
            tensor.__dlpack__(**keywords)
    with pytest.raises(BufferError, match="^copy: "):
        tensor.__dlpack__(dl_device=(1, 0), copy=False)
    copied = capsules.read(capsule := tensor.__dlpack__(dl_device=(1, 0), max_version=(1, 0)))
    assert copied.flags == capsules.IS_COPIED
    assert list((capsules.c.c_double * 6).from_address(copied.tensor.data)) == [0, 1, 2, 3, 4, 5]
    np.testing.assert_array_equal(np.from_dlpack(tensor, device="cpu"), tensor.numpy())
    del capsule


def test_a_tensor_without_elements_is_exchanged():
    for shape in ((0,), (0, 3), (2, 0, 4)):
        assert np.from_dlpack(transload.empty(shape)).shape == shape


def test_a_tensor_takes_its_own_capsules():
    class Once:
        def __init__(self, tensor, version):
            self.tensor, self.version = tensor, version

        def __dlpack__(self, **keywords):
            if self.version is None:
                keywords.pop("max_version", None)
            return self.tensor.__dlpack__(**keywords)

        def __dlpack_device__(self):
            return self.tensor.__dlpack_device__()

    for version in (None, 1):
        tensor = made()[:, ::-2]
        np.testing.assert_array_equal(transload.copy(Once(tensor, version), "cpu:0").numpy(), tensor.numpy())

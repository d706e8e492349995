"""The buffer protocol of tensors, asked as consumers in C ask."""

import ctypes as c

import numpy as np
import pytest

import transload

SIMPLE, WRITABLE, FORMAT, ND, STRIDES = 0, 1, 4, 8, 0x18
C, F, ANY, FULL_RO = 0x38, 0x58, 0x98, 0x11C


class Buffer(c.Structure):
    _fields_ = [
        ("buf", c.c_void_p), ("obj", c.c_void_p), ("len", c.c_ssize_t), ("itemsize", c.c_ssize_t),
        ("readonly", c.c_int), ("ndim", c.c_int), ("format", c.c_char_p), ("shape", c.POINTER(c.c_ssize_t)),
        ("strides", c.POINTER(c.c_ssize_t)), ("suboffsets", c.c_void_p), ("internal", c.c_void_p),
    ]  # fmt: skip


get, release = c.pythonapi.PyObject_GetBuffer, c.pythonapi.PyBuffer_Release
get.argtypes, release.argtypes, release.restype = [c.py_object, c.POINTER(Buffer), c.c_int], [c.POINTER(Buffer)], None


@pytest.mark.parametrize("flags", [SIMPLE, WRITABLE, FORMAT, ND, STRIDES, C, F, ANY, FULL_RO], ids=hex)
@pytest.mark.parametrize("layout", ["rows", "steps", "line", "empty", "scalar"])
def test_views_are_given_exactly_where_numpy_gives_them(flags, layout):
    model = np.arange(24, dtype="i4").reshape(4, 6)
    tensor = transload.copy(model, "cpu:0")
    key = {
        "rows": ...,
        "steps": (slice(None), slice(None, None, 2)),
        "line": (1,),
        "empty": (slice(0, 0),),
        "scalar": (1, 1, ...),
    }
    model, tensor = model[key[layout]], tensor[key[layout]]
    asked, expected = Buffer(), Buffer()
    try:
        get(model, expected, flags)
        is_given = True
    except (BufferError, ValueError):
        is_given = False
    if not is_given:
        with pytest.raises(BufferError):
            get(tensor, asked, flags)
        assert not asked.obj
        return
    get(tensor, asked, flags)
    fields = ["len", "itemsize", "readonly"]
    # Without sizes NumPy says 0 dimensions, and memoryview 1.
    fields += ["ndim"] if flags & ND else []
    for field in fields:
        assert getattr(asked, field) == getattr(expected, field), field
    assert (asked.format or b"").lstrip(b"<") == (expected.format or b"").lstrip(b"<")
    for field in ("shape", "strides"):
        ours, theirs = getattr(asked, field), getattr(expected, field)
        if not model.ndim:
            continue
        assert bool(ours) == bool(theirs), field
        if ours and model.size:
            assert ours[: model.ndim] == theirs[: model.ndim]
    if asked.len:
        assert c.string_at(asked.buf, 4) == c.string_at(expected.buf, 4)
    release(asked)
    release(expected)


def test_a_view_keeps_the_memory(settled):
    view = memoryview(transload.copy(np.arange(1000.0), "cpu:0"))
    settled()
    others = [transload.copy(np.zeros(1000), "cpu:0") for _ in range(8)]
    assert view.tolist() == list(range(1000))
    assert len(others) == 8


def test_a_view_of_a_writable_tensor_writes_it():
    tensor = transload.copy(np.arange(4.0), "cpu:0")
    memoryview(tensor)[2] = 9
    tensor.numpy()[0] = 8
    assert tensor.numpy().tolist() == [8, 1, 9, 3]


def test_a_view_sees_later_copies():
    tensor = transload.copy(np.zeros(4), "cpu:0")
    view = memoryview(tensor)
    transload.copy(np.ones(4), tensor)
    assert view.tolist() == [1, 1, 1, 1]


def test_array_interface_tells_the_same_memory():
    tensor = transload.copy(np.arange(12, dtype="i2").reshape(3, 4), "cpu:0")[::-1, ::2]
    interface = tensor.__array_interface__
    array = tensor.numpy()
    assert interface == {
        "version": 3, "shape": (3, 2), "typestr": "<i2", "strides": (-8, 4), "data": (array.ctypes.data, False),
    }  # fmt: skip

    class Other:
        __array_interface__ = interface
        keeps = tensor

    np.testing.assert_array_equal(np.asarray(Other()), array)


def test_array_protocol_takes_the_arguments_of_numpy():
    tensor = transload.copy(np.arange(4.0), "cpu:0")
    assert np.array(tensor).ctypes.data != tensor.numpy().ctypes.data
    assert np.asarray(tensor, dtype="f4").dtype == np.float32
    assert np.array(tensor, copy=False).ctypes.data == tensor.numpy().ctypes.data
    assert tensor.__array__().ctypes.data == tensor.numpy().ctypes.data
    assert tensor.__array__("f4", copy=True).dtype == np.float32
    with pytest.raises(ValueError, match="copy"):
        tensor.__array__("f4", copy=False)

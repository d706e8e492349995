"""Arrays of NumPy and others, in and out."""

import array
import ctypes

import numpy as np
import pytest

import transload

PLAIN = ["bool", "u1", "i1", "u2", "i2", "u4", "i4", "u8", "i8", "f2", "f4", "f8", "c8"]
FOREIGN = ["bfloat16", "float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz", "float8_e8m0fnu"]


def sample(dtype, shape=(3, 4)):
    count = int(np.prod(shape, dtype=int))
    return np.arange(count, dtype="u4").astype("u1").astype(dtype).reshape(shape)


def raw(array):
    return np.ascontiguousarray(array).tobytes()


@pytest.mark.parametrize("dtype", PLAIN)
def test_numpy_arrays_of_each_type_come_back_the_same(dtype):
    src = sample(dtype)
    tensor = transload.copy(src, "cpu:0")
    assert tensor.dtype == np.dtype(dtype).name
    assert (tensor.shape, tensor.strides) == (src.shape, src.strides)
    back = tensor.numpy()
    assert back.dtype == src.dtype
    assert back.dtype.char == np.dtype(dtype).char
    assert raw(back) == raw(src)


@pytest.mark.parametrize("name", FOREIGN)
def test_arrays_of_ml_dtypes_come_back_the_same(name):
    dtype = np.dtype(getattr(pytest.importorskip("ml_dtypes"), name))
    src = np.arange(24 * dtype.itemsize, dtype="u1").view(dtype).reshape(4, 6)
    for view in (src, src.T, src[::-1, ::2], src[1]):
        tensor = transload.copy(view, "cpu:0")
        assert tensor.dtype == name
        back = tensor.numpy()
        assert back.dtype == dtype
        assert back.shape == view.shape
        assert raw(back) == raw(view)
    into = np.zeros_like(src)
    assert transload.copy(src, into) is into
    assert raw(into) == raw(src)


@pytest.mark.parametrize("name", ["bfloat16", "float8_e4m3fn"])
def test_a_tensor_of_a_type_that_numpy_lacks_becomes_no_array_of_objects(name):
    ml_dtypes = pytest.importorskip("ml_dtypes")
    array = np.asarray(transload.empty((2, 3), name))
    assert array.dtype == np.dtype(getattr(ml_dtypes, name))


def test_a_scalar_has_no_dimensions():
    for scalar in (np.float32(3.5), np.array(3.5, "f4"), memoryview(ctypes.c_float(3.5))):
        tensor = transload.copy(scalar, "cpu:0")
        assert tensor.shape == ()
        assert tensor.size == 1
        assert tensor.numpy().shape == ()
        assert tensor.numpy()[()] == 3.5


LAYOUTS = {
    "rows": lambda a: a,
    "columns": lambda a: np.asfortranarray(a),
    "transposed": lambda a: a.transpose(2, 0, 1),
    "backwards": lambda a: a[::-1, :, ::-1],
    "steps": lambda a: a[::2, 1::3],
    "backward steps": lambda a: a[::-2, ::-1, 4:0:-2],
    "one element": lambda a: a[2:3, 1:2, 0:1],
    "empty": lambda a: a[:, 3:3],
    "repeated": lambda a: np.broadcast_to(a[:, :1], a.shape),
    "no dimensions": lambda a: a[1, 2, 3, ...],
    "many dimensions": lambda a: a[(None,) * 20],
    "odd address": lambda a: np.ndarray(a.shape, a.dtype, np.zeros(a.nbytes + 1, "u1").data, 1),
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", ["u1", "i2", "f4", "c8"])
def test_every_layout_is_read_as_numpy_reads_it(layout, dtype):
    src = LAYOUTS[layout](sample(dtype, (5, 6, 7)))
    for place in ("cpu:0", "cpu:0/shared"):
        tensor = transload.copy(src, place)
        assert tensor.contiguous
        np.testing.assert_array_equal(tensor.numpy(), src, strict=True)


@pytest.mark.parametrize("layout", [name for name in LAYOUTS if name != "repeated"])
def test_every_layout_is_written_where_numpy_would_write_and_nowhere_else(layout):
    whole = np.full((5, 6, 7), 99, "i4")
    dst = LAYOUTS[layout](whole)
    src = np.arange(dst.size, dtype="i4").reshape(dst.shape)
    if not np.shares_memory(dst, whole) and dst.size:
        assert layout in ("columns", "odd address")
        transload.copy(src, dst)
        np.testing.assert_array_equal(dst, src)
        return
    expected = np.full((5, 6, 7), 99, "i4")
    LAYOUTS[layout](expected)[...] = src
    assert transload.copy(src, dst) is dst
    np.testing.assert_array_equal(whole, expected)


def test_devices_take_and_give_every_layout(gpu):
    for name, layout in LAYOUTS.items():
        src = layout(sample("f4", (5, 6, 7)))
        tensor = transload.copy(src, gpu)
        assert tensor.device == gpu
        np.testing.assert_array_equal(tensor.numpy(), src, strict=True, err_msg=name)
        back = np.zeros(src.shape, "f4", order="F")
        transload.copy(tensor, back)
        np.testing.assert_array_equal(back, src, err_msg=name)


@pytest.mark.parametrize(
    "dst",
    [
        np.broadcast_to(np.zeros(3), (3,)),
        bytes(24),
        memoryview(bytes(24)).cast("d"),
    ],
    ids=["numpy", "bytes", "memoryview"],
)
def test_read_only_memory_is_never_written(dst):
    before = bytes(memoryview(dst).cast("B") if not isinstance(dst, np.ndarray) else dst.tobytes())
    src = np.ones(24, "u1") if isinstance(dst, bytes) else np.ones(3)
    with pytest.raises(ValueError, match="dst: its memory is read-only"):
        transload.copy(src, dst)
    with pytest.raises(ValueError, match="dst: its memory is read-only"):
        transload.copy_async(src, dst)
    assert bytes(dst.tobytes() if not isinstance(dst, bytes) else dst) == before


def test_an_array_is_copied_onto_itself():
    array = np.arange(100_000)
    assert transload.copy(array, array) is array
    transload.copy_async(array, array).result()
    np.testing.assert_array_equal(array, np.arange(100_000))


def test_overlapping_ends_with_strides_are_refused():
    memory = np.arange(24).reshape(4, 6)
    before = memory.copy()
    for src, dst in [
        (memory[::-1], memory),
        (memory[:, :-1], memory[:, 1:]),
        (memory[:, ::2], memory[:, :3]),
        (memory[:4, :4].T, memory[:4, :4]),
    ]:
        for call in (transload.copy, lambda *ends: transload.copy_async(*ends).result()):
            with pytest.raises(transload.errors.TransferError) as refused:
                call(src, dst)
            assert (refused.value.kind, refused.value.category) == ("Overlap", "caller")
    np.testing.assert_array_equal(memory, before)
    # Elements between each other's do not overlap.
    transload.copy(memory[:, ::2], memory[:, 1::2])
    np.testing.assert_array_equal(memory[:, 1::2], before[:, ::2])


def test_destinations_whose_elements_overlap_are_refused():
    memory = np.zeros(3)
    dst = np.lib.stride_tricks.as_strided(memory, (4, 3), (0, 8))
    with pytest.raises(transload.errors.TransferError) as refused:
        transload.copy(np.ones((4, 3)), dst)
    assert (refused.value.kind, refused.value.category) == ("Repeated", "caller")
    assert not memory.any()


def test_a_copy_within_one_array_goes_as_if_by_a_copy():
    for count in (10, 100_000, 3_000_000):
        for src, dst in [(slice(None, -1), slice(1, None)), (slice(1, None), slice(None, -1))]:
            memory = np.arange(count)
            expected = memory.copy()
            expected[dst] = memory[src]
            transload.copy(memory[src], memory[dst])
            np.testing.assert_array_equal(memory, expected)


@pytest.mark.parametrize(
    "dtype", [">f8", ">i4", ">u2", "c16", "g", "S3", "U2", "M8[s]", "m8[s]", "O", "S0", [("a", "f4")]], ids=str
)
def test_other_types_and_other_orders_of_bytes_are_refused(dtype):
    src = np.zeros(3, dtype)
    for call in (
        lambda: transload.copy(src, "cpu:0"),
        lambda: transload.copy(np.zeros(3), src),
        lambda: transload.copy_async(src, "cpu:0"),
    ):
        with pytest.raises(ValueError, match="^(src|dst): "):
            call()


def test_a_type_of_other_byte_order_is_no_element_type():
    with pytest.raises(ValueError, match="^dtype: "):
        transload.empty(3, np.dtype(">f4"))


def test_a_field_of_a_structure_that_is_no_multiple_apart_is_copied_and_no_tensor():
    src = np.zeros(4, [("a", "f4"), ("b", "i1")])["a"]
    src[:] = [1, -2, 3, 4]
    np.testing.assert_array_equal(transload.copy(src, "cpu:0").numpy(), src)
    dst = np.zeros(4, "f4")
    np.testing.assert_array_equal(transload.copy(src, dst), src)
    transload.copy(dst * 2, src)
    np.testing.assert_array_equal(src, dst * 2)
    with pytest.raises(ValueError, match="array: elements of 4 bytes lie 5 bytes apart"):
        transload.asarray(src)


@pytest.mark.parametrize(
    "make", [bytes, bytearray, memoryview, lambda b: array.array("B", b)], ids=["bytes", "bytearray", "memoryview", "array"]
)
def test_bytes_of_python_are_taken(make):
    content = bytes(range(200))
    tensor = transload.copy(make(content), "cpu:0")
    assert (tensor.dtype, tensor.shape) == ("uint8", (200,))
    assert bytes(memoryview(tensor)) == content


@pytest.mark.parametrize(
    "make",
    [bytearray, lambda n: array.array("B", bytes(n)), lambda n: memoryview(bytearray(n))],
    ids=["bytearray", "array", "memoryview"],
)
def test_bytes_of_python_are_written(make):
    dst = make(5)
    assert transload.copy(b"hello", dst) is dst
    assert bytes(dst) == b"hello"
    # Not pinned any more: it may change its size.
    if not isinstance(dst, memoryview):
        dst.extend(b"x")


@pytest.mark.parametrize("code", "bBhHiIlLqQfd")
def test_arrays_of_the_standard_library_have_their_types(code):
    src = array.array(code, [1, 2, 3])
    tensor = transload.copy(src, "cpu:0")
    assert tensor.dtype == np.dtype(code).name
    assert tensor.numpy().tolist() == [1, 2, 3]


def test_memoryviews_with_steps_and_shapes_are_read_as_they_are():
    view = memoryview(bytes(range(24))).cast("B", (4, 6))
    assert (
        transload.copy(view[::-2], "cpu:0").numpy().tolist()
        == np.frombuffer(bytes(range(24)), "u1").reshape(4, 6)[::-2].tolist()
    )
    assert transload.copy(b"", "cpu:0").shape == (0,)


def test_pyarrow_gives_buffers_and_arrays():
    pa = pytest.importorskip("pyarrow")
    buffer = pa.py_buffer(b"abcdef")
    assert bytes(memoryview(transload.copy(buffer, "cpu:0"))) == b"abcdef"
    with pytest.raises(ValueError, match="dst: its memory is read-only"):
        transload.copy(b"123456", buffer)
    values = pa.array([1.5, 2.5, 3.5, 4.5])[1:3]
    tensor = transload.copy(values, "cpu:0")
    assert (tensor.dtype, tensor.numpy().tolist()) == ("float64", [2.5, 3.5])
    with pytest.raises(ValueError, match="dst: its memory is read-only"):
        transload.copy(np.zeros(2), values)
    assert values.to_pylist() == [2.5, 3.5]


def test_pyarrow_arrays_with_nulls_are_refused():
    pa = pytest.importorskip("pyarrow")
    array = pa.array([1, None, 3, None, 5])
    for src in (array, pa.chunked_array([array]), pa.array([None, None], "f4")):
        with pytest.raises(ValueError, match=r"^src: null elements: 2, .*fill_null\(0\) or .drop_null\(\)"):
            transload.copy(src, "cpu:0")
    # Those that are not in the slice do not count.
    assert transload.copy(array[2:3], "cpu:0").numpy().tolist() == [3]
    assert transload.copy(array.drop_null(), "cpu:0").numpy().tolist() == [1, 3, 5]
    for src in (pa.array([True, False]), pa.array(["a"])):
        with pytest.raises(TypeError, match="^src: it gives no memory: .*DLPack"):
            transload.copy(src, "cpu:0")


@pytest.mark.parametrize("call", [transload.copy, transload.copy_async], ids=["copy", "copy_async"])
def test_masked_arrays_are_neither_read_nor_written_where_elements_are_masked(call, tmp_path):
    class Own(np.ndarray):
        """As astropy's: no class of `numpy.ma`, and with a mask."""

        mask = np.array([True, False, True])

    for array, count in [
        (np.ma.masked_array([1.0, 2.0, 3.0], mask=[0, 1, 0]), 1),
        (np.ma.masked_array([1.0, 2.0, 3.0], mask=True), 3),
        (np.ma.masked_array([1.0, 2.0, 3.0], mask=[0, 1, 0], hard_mask=True)[1:], 1),
        (np.ma.masked, 1),
        (np.arange(3.0).view(Own), 2),
    ]:
        before = np.array(array)
        for src in (array, transload.copy(before, "cpu:0")):
            with pytest.raises(ValueError, match=f"^(src|dst): masked elements: {count}, .*\\.data"):
                call(src, "cpu:0" if src is array else array)
        with pytest.raises(ValueError, match=f"^dst: masked elements: {count}"):
            call(np.full(before.shape, 7.0), array)
        with pytest.raises(ValueError, match=f"^array: masked elements: {count}, .*filled"):
            transload.asarray(array)
        with pytest.raises(ValueError, match=f"^tensors..a..: masked elements: {count}"):
            transload.save({"a": array}, tmp_path / "m.safetensors")
        np.testing.assert_array_equal(np.array(array), before)
    assert not list(tmp_path.iterdir())


def test_masked_arrays_without_a_masked_element_are_arrays():
    for mask in (np.ma.nomask, [0, 0, 0]):
        array = np.ma.masked_array([1.0, 2.0, 3.0], mask=mask)
        assert transload.copy(array, "cpu:0").numpy().tolist() == [1, 2, 3]
        assert transload.copy(np.arange(3.0), array).tolist() == [0, 1, 2]
        assert transload.copy(array, np.zeros(3)).tolist() == [0, 1, 2]


def test_objects_that_become_arrays_say_how():
    class Only:
        def __array__(self, dtype=None, copy=None):
            return np.arange(3)

    with pytest.raises(TypeError, match=r"^src: .*neither.*; pass numpy\.asarray\(\) of it$"):
        transload.copy(Only(), "cpu:0")
    with pytest.raises(TypeError, match="^src: .*neither __dlpack__ nor the buffer protocol$"):
        transload.copy(3, "cpu:0")


def test_numbers_are_converted_on_request():
    src = np.array([0.1, -2.5, 70000.0, np.inf], "f4")
    for name in ("float64", "float16"):
        with np.errstate(over="ignore"):
            expected = src.astype(name)
        np.testing.assert_array_equal(transload.copy(src, "cpu:0", dtype=name).numpy(), expected, strict=True)
        into = np.zeros(4, name)
        transload.copy(src, into, dtype=name)
        np.testing.assert_array_equal(into, expected)
    ml_dtypes = pytest.importorskip("ml_dtypes")
    back = transload.copy(src, "cpu:0", dtype=ml_dtypes.bfloat16).numpy()
    np.testing.assert_array_equal(back, src.astype(ml_dtypes.bfloat16))
    np.testing.assert_array_equal(transload.copy(back, "cpu:0", dtype="float32").numpy(), back.astype("f4"))


@pytest.mark.parametrize("spelled", [np.float32, np.dtype("f4"), "float32", "F32", "torch.float32"], ids=str)
def test_types_have_many_names(spelled):
    assert transload.empty(2, spelled).dtype == "float32"


NUMPY_SPELLS = ["f4", "<f4", "=f4", "i8", "u8", "f8", "half", "float", "single", "double", "?", "e", "b", "int", "uint", float, int, bool, np.half]


@pytest.mark.parametrize("code", NUMPY_SPELLS, ids=str)
def test_types_are_spelled_as_in_numpy(code):
    """`f4` is NumPy's float32, and `F4` the 4-bit type of model files."""
    made = transload.empty((3,), code)
    assert np.asarray(made).dtype == np.dtype(code)
    assert transload.empty((4,), "F4").dtype == "float4_e2m1fn"
    assert transload.empty((4,), "bf16").dtype == transload.empty((4,), "BF16").dtype == "bfloat16"


@pytest.mark.parametrize("code", [">f4", "complex256", "", "f3", "V3", "M8[s]", "f4,i4", "O", np.dtype(">i8"), str, object, "no such"], ids=str)
def test_types_that_no_tensor_has_are_refused(code):
    with pytest.raises(ValueError, match="^dtype: "):
        transload.empty((3,), code)


def test_empty_takes_any_shape():
    assert transload.empty(5).shape == (5,)
    assert transload.empty([2, np.int64(3)], "int8").nbytes == 6
    assert transload.empty(()).size == 1
    none = transload.empty((0, 4), device="cpu:0/shared")
    assert (none.nbytes, none.numpy().shape, np.from_dlpack(none).shape) == (0, (0, 4), (0, 4))


def test_a_tensor_says_what_it_is():
    tensor = transload.empty((2, 3), "int16", "cpu:0/shared")
    assert (tensor.ndim, tensor.size, tensor.nbytes, len(tensor)) == (2, 6, 12, 2)
    assert (tensor.device, tensor.memory) == ("cpu:0", "cpu:0/shared")
    assert tensor.contiguous and not tensor.readonly
    assert repr(tensor) == "Tensor(shape=[2, 3], dtype=int16, memory=cpu:0/shared)"
    with pytest.raises(TypeError, match="no length"):
        len(transload.empty(()))


def test_to_returns_the_tensor_itself_where_it_is_there():
    tensor = transload.copy(np.arange(3.0), "cpu:0")
    assert tensor.to("cpu:0") is tensor
    assert tensor.to("cpu:0", dtype="float64") is tensor
    other = tensor.to("cpu:0", dtype="float32")
    assert (other.dtype, other.numpy().tolist()) == ("float32", [0, 1, 2])
    assert tensor.to("cpu:0/shared").memory == "cpu:0/shared"


def test_a_tensor_of_another_device_becomes_an_array_only_on_request(gpu):
    tensor = transload.copy(np.arange(3.0), gpu)
    for read in (np.asarray, memoryview, np.from_dlpack, np.array):
        with pytest.raises((TypeError, BufferError), match='transload.copy\\(.*"cpu:0"\\)'):
            read(tensor)
    assert not hasattr(tensor, "__array_interface__")
    assert not hasattr(tensor, "__cuda_array_interface__")
    assert tensor.numpy().tolist() == [0, 1, 2]
    assert transload.copy(tensor, "cpu:0").numpy().tolist() == [0, 1, 2]


@pytest.mark.parametrize("dtype", ["c16", ">f4", ">i8", "V5", "S7", "i4,f8"])
def test_elements_that_no_tensor_has_are_copied_as_they_are_between_equal_types(dtype):
    src = np.frombuffer(np.random.default_rng(3).bytes(np.dtype(dtype).itemsize * 24), dtype).reshape(2, 3, 4)
    for of in (src, src[:, ::-1, ::2], src.T):
        dst = np.zeros(of.shape, dtype)
        assert transload.copy(of, dst) is dst
        assert dst.tobytes() == of.tobytes()
    with pytest.raises(ValueError, match="src: "):
        transload.copy(src, "cpu:0")
    with pytest.raises(ValueError):
        transload.copy(src, np.zeros(src.shape, "f4"))


def test_references_to_objects_are_not_copied():
    src = np.array(["a", None, 3], object)
    with pytest.raises((ValueError, TypeError)):
        transload.copy(src, np.empty(3, object))


def test_numbers_come_out_as_pythons():
    tensor = transload.copy(np.arange(6, dtype="i2").reshape(2, 3), "cpu:0/shared")
    assert tensor.tolist() == [[0, 1, 2], [3, 4, 5]]
    assert tensor[1, 2].item() == 5 and type(tensor[1, 2].item()) is int
    with pytest.raises(ValueError):
        tensor.item()


def test_names_of_fields_are_no_codes_and_pointers_of_ctypes_are_not_copied():
    class Named(ctypes.Structure):
        _fields_ = [("X", ctypes.c_int), ("POS", ctypes.c_double)]

    src = np.array([(1, 2.0), (3, 4.0)], [("O", "i4"), ("z", "f8")])
    dst = np.zeros_like(src)
    assert (transload.copy(src, dst) == src).all()
    src, dst = (Named * 2)((1, 2.0), (3, 4.0)), (Named * 2)()
    transload.copy(src, dst)
    assert (dst[1].X, dst[1].POS) == (3, 4.0)
    for pointer in (ctypes.c_char_p, ctypes.c_wchar_p, ctypes.py_object, ctypes.c_void_p):
        with pytest.raises((ValueError, TypeError)):
            transload.copy((pointer * 2)(), (pointer * 2)())


def test_elements_that_no_tensor_has_may_be_none_or_many_and_shapes_must_agree():
    dst = np.ones((0, 3), "c16")
    assert transload.copy(np.ones((0, 3), "c16"), dst) is dst
    src, dst = np.ones(5 << 20, "c16"), np.zeros(5 << 20, "c16")
    transload.copy(src, dst)
    assert (dst == 1).all()
    with pytest.raises(ValueError, match=r"^dst: its shape is \[4\], and the shape of src \[5\]"):
        transload.copy(np.ones(5, "c16"), np.ones(4, "c16"))

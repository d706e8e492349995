"""Elements of fewer than 8 bits: packed here, in a byte each in NumPy, and two in one in torch."""

import json
import pickle

import numpy as np
import pytest

import capsules
import transload
from transload import errors

ml_dtypes = pytest.importorskip("ml_dtypes")
PACKED = {"float4_e2m1fn": ("F4", 4, 17), "float6_e2m3fn": ("F6_E2M3", 6, 15), "float6_e3m2fn": ("F6_E3M2", 6, 16)}
F4 = np.dtype(ml_dtypes.float4_e2m1fn)


def elements(name, shape):
    """An array of ml_dtypes with each pattern of bits."""
    bits = PACKED[name][1]
    numbers = np.arange(np.prod(shape), dtype="u1") * 5 % (1 << bits)
    return numbers.view(getattr(ml_dtypes, name)).reshape(shape)


def packed(array):
    """Its bytes, as DLPack says: the first element has the lowest bits."""
    bits = PACKED[array.dtype.name][1]
    number = sum(int(value) << (bits * at) for at, value in enumerate(array.view("u1").ravel()))
    return number.to_bytes(array.size * bits // 8, "little")


def raw(tensor):
    return bytes(memoryview(transload.copy(tensor, "cpu:0").reshape(-1).view("uint8")))


def same(one, other):
    assert (one.dtype, one.shape) == (other.dtype, other.shape)
    assert one.tobytes() == other.tobytes()


@pytest.mark.parametrize("name", PACKED)
def test_arrays_of_ml_dtypes_are_packed_and_unpacked(name, devices):
    whole = elements(name, (6, 8))
    for array in (whole, whole.T, whole[::-1, ::2], whole[1], whole[:, :0], whole[None, :, None]):
        for place in devices:
            tensor = transload.copy(array, place)
            assert (tensor.dtype, tensor.shape) == (name, array.shape)
            assert raw(tensor) == packed(array)
            same(tensor.numpy(), array)
    tensor = transload.asarray(whole)
    same(np.asarray(tensor), whole)
    assert np.asarray(tensor, dtype="f4").tolist() == whole.astype("f4").tolist()
    same(pickle.loads(pickle.dumps(tensor)).numpy(), whole)
    with pytest.raises(ValueError, match=f"copy: False.*{name}"):
        np.asarray(tensor, copy=False)


@pytest.mark.parametrize("name", PACKED)
def test_arrays_of_ml_dtypes_are_saved_as_safetensors_has_them(name, tmp_path):
    path = tmp_path / "m.safetensors"
    array = elements(name, (2, 8))
    transload.save({"w": array}, path)
    content = path.read_bytes()
    length = int.from_bytes(content[:8], "little")
    assert json.loads(content[8 : 8 + length])["w"]["dtype"] == PACKED[name][0]
    assert content[8 + length :] == packed(array)
    same(transload.load(path)["w"].numpy(), array)


def test_what_is_no_whole_number_of_bytes_or_would_be_written_is_refused():
    with pytest.raises(ValueError, match=r"^src: \[3\] elements of float4_e2m1fn are no whole bytes"):
        transload.copy(np.zeros(3, F4), "cpu:0")
    array = np.zeros(4, F4)
    for call in (transload.copy, transload.copy_async):
        with pytest.raises(ValueError, match=r"^dst: NumPy has a byte for each element of float4_e2m1fn.*numpy\(\)"):
            call(transload.empty(4, "F4"), array)


@pytest.mark.parametrize("name", ["int4", "uint4", "int2", "uint2", "float8_e4m3", "float8_e3m4", "float8_e4m3b11fnuz"])
def test_types_that_model_files_lack_are_refused_by_their_name(name, tmp_path):
    array = np.zeros(4, getattr(ml_dtypes, name))
    for call, argument in [
        (lambda: transload.copy(array, "cpu:0"), "src"),
        (lambda: transload.copy(np.zeros(4), array), "dst"),
        (lambda: transload.save({"w": array}, tmp_path / "m.safetensors"), r'tensors\["w"\]'),
    ]:
        with pytest.raises(ValueError, match=f"^{argument}: its elements are {name}, .*convert them"):
            call()
    assert not list(tmp_path.iterdir())


def test_slices_are_of_whole_blocks():
    array = elements("float4_e2m1fn", (4, 8))
    tensor = transload.copy(array, "cpu:0")
    for key in np.s_[1], np.s_[::-2], np.s_[:, 2:6], np.s_[3, 4:], np.s_[1:, 6:], np.s_[-1:, :], np.s_[:0], np.s_[..., 2:2]:
        view = tensor[key]
        assert view.shape == array[key].shape
        same(view.numpy(), array[key])
        same(transload.copy(view, "cpu:0").numpy(), array[key])
    for key in np.s_[:, 1:], np.s_[:, :3], np.s_[:, ::2], np.s_[:, ::-1], np.s_[:, 3], np.s_[0, 0]:
        with pytest.raises(errors.TensorError, match="F4 lie in blocks of 2") as refused:
            tensor[key]
        assert refused.value.category == "caller"
    # A view is written, and nothing around it.
    transload.copy(transload.copy(np.zeros((4, 2), F4), "cpu:0"), tensor[:, 2:4])
    array[:, 2:4] = 0
    same(tensor.numpy(), array)


def test_a_view_has_the_same_bytes_as_another_type():
    memory = np.arange(24, dtype="u1").reshape(2, 12)
    tensor = transload.asarray(memory)
    for name, shape in [("F4", (2, 24)), ("F6_E2M3", (2, 16)), ("int8", (2, 12)), ("float16", (2, 6)), ("float32", (2, 3))]:
        view = tensor.view(name)
        assert (view.shape, view.nbytes) == (shape, 24)
        assert bytes(memoryview(view.view("uint8"))) == memory.tobytes()
        assert view.view(np.uint8).numpy().ctypes.data == memory.ctypes.data
    assert transload.empty(32, "Q4_0").view("uint8").shape == (18,)
    assert transload.empty((3, 0), "float32").view("F4").shape == (3, 0)
    assert transload.empty((), "float32").view("int32").shape == ()
    for of, name in [(tensor, "int64"), (transload.empty((), "float32"), "uint8"), (transload.empty((2, 3), "F4"), "uint8")]:
        with pytest.raises(ValueError, match="^dtype: the last dimension of .* has no whole number"):
            of.view(name)
    with pytest.raises(ValueError, match="^dtype: .*view a copy"):
        tensor[:, ::2].view("int8")
    with pytest.raises(ValueError, match="^dtype: "):
        tensor.view("none")


def asked_by(module, tensor):
    return eval("tensor.__dlpack__(max_version=(1, 0))", {"__name__": module, "tensor": tensor})


def test_torch_is_given_two_elements_in_one_and_others_each_by_itself():
    tensor = transload.copy(elements("float4_e2m1fn", (4, 8)), "cpu:0")[::2]
    for module, lanes, shape, strides in [("torch.utils.dlpack", 2, [2, 4], [8, 1]), ("other", 1, [2, 8], [16, 1])]:
        told = capsules.read(capsule := asked_by(module, tensor)).tensor
        assert (told.dtype.code, told.dtype.bits, told.dtype.lanes) == (17, 4, lanes)
        assert (told.shape[:2], told.strides[:2], told.ndim) == (shape, strides, 2)
        del capsule
    with pytest.raises(errors.DLPackError, match="F4 lie in blocks of 2"):
        asked_by("torch.utils.dlpack", transload.empty((2, 3), "F4"))


def test_lanes_and_packed_elements_are_taken(settled):
    memory = np.arange(12, dtype="u1").reshape(3, 4)
    for bits, code, lanes, sizes, shape in [(4, 17, 2, (3, 4), (3, 8)), (6, 15, 4, (1, 4), (1, 16))]:
        producer = capsules.Producer(memory, dtype=(code, bits, lanes), shape=sizes, strides=(4, 1))
        tensor = transload.copy(producer, "cpu:0")
        assert tensor.shape == shape
        assert raw(tensor) == memory.tobytes()
        producer = capsules.Producer(memory, dtype=(code, bits, 1), shape=shape, strides=(shape[1], 1))
        assert raw(transload.copy(producer, "cpu:0")) == memory.tobytes()
    written = capsules.Producer(memory, dtype=(17, 4, 2))
    transload.copy(transload.asarray(np.zeros((3, 8), F4)), written)
    assert not memory.any()
    for fields, text in [
        (dict(dtype=(17, 4, 2), shape=(4, 3), strides=(1, 4)), "F4 lie in blocks of 2"),
        (dict(dtype=(17, 4, 1), flags=4), "have a byte each: .*pack them, 2 in 1"),
        (dict(dtype=(17, 4, 3)), "code 17, 4 bits and 3 lanes"),
    ]:
        producer = capsules.Producer(memory, **fields)
        with pytest.raises(errors.Error, match=f"^src: .*{text}"):
            transload.copy(producer, "cpu:0")
        assert not producer.consumed


def test_arrays_of_jax_are_packed():
    jnp = pytest.importorskip("jax").numpy
    array = elements("float4_e2m1fn", (2, 8))
    tensor = transload.copy(jnp.asarray(array), "cpu:0")
    assert raw(tensor) == packed(array)

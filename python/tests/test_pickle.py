"""Tensors and errors in pickles."""

import copy
import multiprocessing
import pickle

import numpy as np
import pytest

import transload


def same(one, other):
    assert (one.dtype, one.shape, one.memory) == (other.dtype, other.shape, other.memory)
    if one.nbytes:
        assert raw(one) == raw(other)


def raw(tensor):
    return bytes(np.ascontiguousarray(tensor.numpy()).view("u1").reshape(-1))


@pytest.mark.parametrize("protocol", range(2, pickle.HIGHEST_PROTOCOL + 1))
@pytest.mark.parametrize("place", ["cpu:0", "cpu:0/shared"])
def test_tensors_come_back_in_their_memory(place, protocol):
    tensor = transload.copy(np.arange(24, dtype="i2").reshape(2, 3, 4), place)
    for part in (tensor, tensor[1], tensor[:, ::-1, ::2], tensor[0, 1, 2], tensor[:, 3:]):
        again = pickle.loads(pickle.dumps(part, protocol))
        same(again, part)
        assert again.contiguous


@pytest.mark.parametrize("dtype", ["bfloat16", "float8_e4m3fn", "bool", "complex64"])
def test_types_come_back(dtype):
    pytest.importorskip("ml_dtypes")
    tensor = transload.copy(np.arange(8, dtype="u1"), "cpu:0")
    tensor = transload.copy(np.zeros(8, "f4"), "cpu:0", dtype=dtype) if dtype == "bfloat16" else transload.empty(8, dtype)
    same(pickle.loads(pickle.dumps(tensor)), tensor)


def test_devices_are_reached_through_the_host(gpu):
    tensor = transload.copy(np.arange(12.0).reshape(3, 4), gpu)
    same(pickle.loads(pickle.dumps(tensor)), tensor)
    same(pickle.loads(pickle.dumps(tensor[::-1, 1])), tensor[::-1, 1])


def test_a_tensor_of_a_device_that_is_not_here_comes_back_on_the_host():
    tensor = transload.copy(np.arange(4.0), "cpu:0")
    made, (data, dtype, shape, memory) = tensor.__reduce_ex__(2)
    assert memory == "cpu:0/pageable"
    for other in ("cuda:99/device", "npu:0/device", "nonsense"):
        back = made(data, dtype, shape, other)
        assert (back.device, back.numpy().tolist()) == ("cpu:0", [0, 1, 2, 3])


@pytest.mark.parametrize("change", [{"data": b"123"}, {"dtype": "nope"}, {"shape": [5]}, {"shape": [2**62]}])
def test_a_damaged_pickle_is_an_error(change):
    made, (data, dtype, shape, memory) = transload.copy(np.arange(4.0), "cpu:0").__reduce_ex__(2)
    good = {"data": data, "dtype": dtype, "shape": shape}
    with pytest.raises((ValueError, transload.Error)):
        made(*{**good, **change}.values(), memory)


def test_copies_of_the_copy_module_are_deep():
    tensor = transload.copy(np.arange(4.0), "cpu:0")
    other = copy.deepcopy(tensor)
    same(other, tensor)
    assert other.numpy().ctypes.data != tensor.numpy().ctypes.data


def test_errors_keep_their_fields():
    with pytest.raises(transload.errors.AllocError) as refused:
        transload.empty(2**50)
    again = pickle.loads(pickle.dumps(refused.value))
    assert type(again) is transload.errors.AllocError
    assert vars(again) == vars(refused.value)
    assert str(again) == str(refused.value)


def double(tensor):
    tensor.numpy()[...] *= 2
    return tensor


def test_tensors_go_to_spawned_processes_and_back():
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        tensor = transload.copy(np.arange(5.0), "cpu:0")
        assert pool.apply(double, (tensor,)).numpy().tolist() == [0, 2, 4, 6, 8]
        assert tensor.numpy().tolist() == [0, 1, 2, 3, 4]


def test_bytes_go_out_of_band_without_a_copy():
    tensor = transload.copy(np.arange(1 << 18, dtype="f4").reshape(512, 512), "cpu:0")
    buffers = []
    small = pickle.dumps({"weights": tensor, "row": tensor[3]}, protocol=5, buffer_callback=buffers.append)
    assert len(small) < 1000 and sum(len(memoryview(of)) for of in buffers) == tensor.nbytes + 2048
    again = pickle.loads(small, buffers=buffers)
    assert again["weights"].numpy().ctypes.data == tensor.numpy().ctypes.data
    tensor.numpy()[3, 5] = -1
    assert again["weights"].numpy()[3, 5] == again["row"].numpy()[5] == -1


def test_read_only_buffers_give_read_only_tensors():
    tensor = transload.copy(np.arange(12.0), "cpu:0")
    buffers = []
    small = pickle.dumps(tensor, protocol=5, buffer_callback=buffers.append)
    again = pickle.loads(small, buffers=[bytes(of) for of in buffers])
    assert again.numpy().tolist() == tensor.tolist()
    kept = memoryview(bytes(buffers[0]))
    again = pickle.loads(small, buffers=[kept])
    assert again.readonly and again.tolist() == tensor.tolist()


def test_exceptions_of_the_system_come_back():
    with pytest.raises(FileNotFoundError) as raised:
        transload.load("/no/such/model.safetensors")
    again = pickle.loads(pickle.dumps(raised.value))
    assert type(again) is type(raised.value)
    assert (str(again), again.errno, again.path) == (str(raised.value), raised.value.errno, "/no/such/model.safetensors")


def test_a_buffer_that_is_passed_backwards_is_restored_as_it_reads():
    tensor = transload.copy(np.arange(10, dtype="u1"), "cpu:0")
    buffers = []
    small = pickle.dumps(tensor, protocol=5, buffer_callback=buffers.append)
    again = pickle.loads(small, buffers=[memoryview(bytes(buffers[0]))[::-1]])
    assert again.tolist() == list(range(10))[::-1]

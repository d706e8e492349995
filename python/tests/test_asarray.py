"""Arrays of other libraries as tensors, where they lie."""

import numpy as np
import pytest

import transload


def test_an_array_is_taken_where_it_lies_and_kept():
    array = np.arange(12, dtype=np.int32).reshape(3, 4)
    tensor = transload.asarray(array[::-1, 1:])
    address = array.__array_interface__["data"][0]
    assert tensor.shape == (3, 3)
    assert not tensor.readonly
    assert tensor.numpy().__array_interface__["data"][0] == address + 2 * 16 + 4
    array[0, 1] = -1
    expected = array[::-1, 1:].copy()
    del array
    assert (tensor.numpy() == expected).all()


def test_a_tensor_is_itself():
    tensor = transload.empty(3)
    assert np.shares_memory(transload.asarray(tensor).numpy(), tensor.numpy())


def test_a_read_only_array_is_a_read_only_tensor():
    array = np.arange(3.0)
    array.flags.writeable = False
    tensor = transload.asarray(array)
    assert tensor.readonly
    assert not tensor.numpy().flags.writeable
    with pytest.raises(ValueError, match="^dst: .*read-only"):
        transload.copy(np.zeros(3), tensor)
    # The structure of before version 1 cannot say so.
    with pytest.raises(BufferError, match="read-only"):
        tensor.__dlpack__()
    assert not np.from_dlpack(tensor).flags.writeable
    assert (array == [0, 1, 2]).all()


def test_torch_gets_a_copy_of_read_only_memory():
    torch = pytest.importorskip("torch", reason="torch is not installed")
    array = np.arange(3.0)
    array.flags.writeable = False
    taken = torch.from_dlpack(transload.asarray(array))
    taken[0] = 7
    assert (array == [0, 1, 2]).all()


def test_what_is_no_array_is_refused_by_name():
    with pytest.raises(TypeError, match="^array: "):
        transload.asarray([1, 2])

"""Slices and shapes, compared with NumPy's."""

import numpy as np
import pytest

import transload

KEYS = [
    0, -1, (1, 2), (1, 2, 3), (-1, -1, -1), ..., (..., 0), (0, ...), (0, ..., 1), (..., ), (),
    slice(None), slice(1, 3), slice(None, None, 2), slice(None, None, -1), slice(10, None), slice(3, 1),
    slice(-100, 100), slice(None, None, -3), slice(2**62, None), slice(None, None, 2**62), slice(None, None, -(2**62)),
    (slice(None), 1), (slice(None), slice(1, 2)), (slice(None, None, -1), slice(None, None, -2), slice(4, 0, -2)),
    (1, slice(None), 2), (..., slice(0, 0)), (slice(0, 0), 1), (np.int64(1), np.uint8(2)),
]  # fmt: skip


@pytest.mark.parametrize("key", KEYS, ids=str)
def test_slices_are_those_of_numpy(key):
    model = np.arange(4 * 5 * 6, dtype="i4").reshape(4, 5, 6)
    tensor = transload.copy(model, "cpu:0")
    part, expected = tensor[key], model[key]
    assert part.shape == expected.shape
    np.testing.assert_array_equal(part.numpy(), expected)
    if expected.size:
        assert part.numpy().ctypes.data - tensor.numpy().ctypes.data == expected_offset(model, key)
    # A dense copy, and a copy into the slice.
    np.testing.assert_array_equal(transload.copy(part, "cpu:0/shared").numpy(), expected)
    model[key] = 7
    transload.copy(np.full(expected.shape, 7, "i4"), part)
    np.testing.assert_array_equal(tensor.numpy(), model)


def expected_offset(model, key):
    part = model[key]
    return (np.asarray(part).ctypes.data - model.ctypes.data) if isinstance(part, np.ndarray) else (int(part) * model.itemsize)


@pytest.mark.parametrize("key", KEYS, ids=str)
def test_slices_of_a_device_are_those_of_numpy(key, gpu):
    model = np.arange(4 * 5 * 6, dtype="i4").reshape(4, 5, 6)
    tensor = transload.copy(model, gpu)
    np.testing.assert_array_equal(tensor[key].numpy(), model[key])
    model[key] = 7
    transload.copy(np.full(model[key].shape, 7, "i4"), tensor[key])
    np.testing.assert_array_equal(tensor.numpy(), model)


def test_slices_of_slices_add_up():
    model = np.arange(7 * 8).reshape(7, 8)
    tensor = transload.copy(model, "cpu:0")
    for first in (slice(1, 6), slice(None, None, -1), slice(5, 0, -2)):
        for second in ((slice(None), slice(2, 7, 2)), (slice(None, None, -1), slice(None, None, -3)), (1,)):
            np.testing.assert_array_equal(tensor[first][second].numpy(), model[first][second])


@pytest.mark.parametrize("key", [4, -5, (0, 5), 2**70, -(2**70), (0, 0, 0, 0), (..., ...), (slice(None),) * 4], ids=str)
def test_indices_that_are_not_there_are_refused(key):
    tensor = transload.empty((4, 5, 6))
    with pytest.raises(IndexError, match="^key: "):
        tensor[key]


@pytest.mark.parametrize("key", [None, 1.5, "a", True, np.True_, [0, 1], np.array([0, 1])], ids=str)
def test_keys_that_mean_something_else_to_numpy_are_refused(key):
    tensor = transload.empty((4, 5, 6))
    with pytest.raises(TypeError, match="^key: "):
        tensor[key]


def test_rows_are_iterated():
    model = np.arange(6).reshape(3, 2)
    rows = [row.numpy().tolist() for row in transload.copy(model, "cpu:0")]
    assert rows == model.tolist()


@pytest.mark.parametrize("shape", [(24,), (4, 6), (2, 3, 4), (-1,), (3, -1), (1, 24, 1), (-1, 1)])
def test_other_shapes_are_views(shape):
    model = np.arange(24).reshape(2, 12)
    tensor = transload.copy(model, "cpu:0")
    for other in (tensor.reshape(*shape), tensor.reshape(shape), tensor.reshape(list(shape))):
        np.testing.assert_array_equal(other.numpy(), model.reshape(shape), strict=True)
        assert other.numpy().ctypes.data == tensor.numpy().ctypes.data


def test_the_shape_of_a_slice_counts_from_its_start():
    model = np.arange(24).reshape(4, 6)
    tensor = transload.copy(model, "cpu:0")
    np.testing.assert_array_equal(tensor[2:].reshape(3, 4).numpy(), model[2:].reshape(3, 4))


@pytest.mark.parametrize("shape", [(5,), (-1, 5), (-1, -1), (-2, 12), (0, -1), (2**40, 2**40), (2**32, 2**32)])
def test_shapes_of_other_sizes_are_refused(shape):
    with pytest.raises(ValueError, match="^shape: "):
        transload.empty((2, 12)).reshape(shape)


def test_shapes_that_are_none_are_refused():
    with pytest.raises(TypeError, match="^shape: "):
        transload.empty(4).reshape("ab")
    with pytest.raises(ValueError, match="^shape: .* reshape a copy"):
        transload.empty((4, 4))[:, ::2].reshape(8)


def test_elements_that_share_bytes_have_no_strides_in_bytes():
    packed = transload.empty((4, 4), "float4_e2m1fn")
    assert packed.nbytes == 8
    with pytest.raises(TypeError, match="share bytes"):
        packed.strides
    # test_packed.py has their slices.
    with pytest.raises(TypeError, match=r"NumPy has no elements of Q4_0.*view\(\"uint8\"\)"):
        transload.empty((2, 32), "Q4_0").numpy()

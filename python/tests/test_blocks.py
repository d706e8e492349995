"""Blocks by their numbers, compared with NumPy's indexing by arrays."""

import numpy as np
import pytest

import transload
from transload.errors import TransferError

PLACES = ["numpy", "cpu:0", "cpu:0/shared", "gpu"]


def at(place, array, gpu):
    return array.copy() if place == "numpy" else transload.copy(array, gpu if place == "gpu" else place)


def seen(tensor):
    return tensor if isinstance(tensor, np.ndarray) else tensor.to("cpu:0").numpy()


@pytest.mark.parametrize("dst_place", PLACES)
@pytest.mark.parametrize("src_place", PLACES)
def test_blocks_go_where_indexing_by_arrays_puts_them(src_place, dst_place, gpu):
    numbers = np.random.default_rng(7)
    for rows, dtype in [((), "i4"), ((3,), "u1"), ((2, 5), "f8"), ((4, 1, 2), "f2")]:
        src = numbers.integers(0, 200, (40, *rows)).astype(dtype)
        dst = np.zeros((30, *rows), dtype)
        src_index = numbers.integers(0, 40, 20)
        dst_index = numbers.permutation(30)[:20]
        there = at(dst_place, dst, gpu)
        assert transload.copy_blocks(at(src_place, src, gpu), there, src_index, dst_index, verify=True) is there
        dst[dst_index] = src[src_index]
        np.testing.assert_array_equal(seen(there), dst)


@pytest.mark.parametrize(
    "spelled",
    [list, tuple, np.uint8, np.int16, np.uint32, lambda of: np.repeat(of, 2)[::2], lambda of: [np.int64(at) for at in of]],
)
def test_numbers_are_taken_as_people_have_them(spelled):
    src, dst = np.arange(10.0), np.zeros(10)
    transload.copy_blocks(src, dst, spelled(np.array([9, 0, 9])), spelled(np.array([1, 2, 3])))
    np.testing.assert_array_equal(dst, [0, 9, 0, 9, 0, 0, 0, 0, 0, 0])


def test_none_names_all_blocks_in_their_order():
    src, dst = np.arange(8).reshape(4, 2), np.zeros((4, 2), int)
    transload.copy_blocks(src, dst, None, [3, 2, 1, 0])
    np.testing.assert_array_equal(dst, src[::-1])
    transload.copy_blocks(src, dst, None, None)
    np.testing.assert_array_equal(dst, src)


@pytest.mark.parametrize("key", [np.s_[::2], np.s_[::-1], np.s_[1:5], np.s_[:, :2], np.s_[::-2, 1:]], ids=str)
def test_blocks_of_a_view_are_those_of_the_view(key):
    whole, other = np.arange(24).reshape(8, 3), np.zeros((8, 3), int)
    src, dst = whole[key], other[key]
    transload.copy_blocks(src, dst, [0, 2, 3], [1, 3, 0])
    expected = np.zeros((8, 3), int)
    expected[key][[1, 3, 0]] = src[[0, 2, 3]]
    np.testing.assert_array_equal(other, expected)


def test_blocks_without_elements_and_no_blocks_are_nothing():
    dst = np.ones((3, 2))
    transload.copy_blocks(np.zeros((5, 2)), dst, [], [])
    transload.copy_blocks(np.zeros((5, 0)), np.zeros((3, 0)), [4], [2])
    assert (dst == 1).all()


SRC, DST = np.zeros((5, 2)), np.ones((3, 2))

REFUSED = {
    "negative": ((SRC, DST, [0, -1], [0, 1]), ValueError, "src_index: -1 at position 1 is negative"),
    "past the end": ((SRC, DST, [0, 1], np.array([0, 3])), ValueError, "dst_index: 3 at position 1 is past the last block: there are 3"),
    "enormous": ((SRC, DST, [2**80], [0]), ValueError, "src_index: 1208925819614629174706176 at position 0"),
    "counts": ((SRC, DST, [0, 1], [0]), ValueError, "dst_index: it names 1 blocks, and src_index 2"),
    "all of another count": ((SRC, DST, None, None), ValueError, "dst_index: it names 3 blocks, and src_index 5"),
    "no numbers": ((SRC, DST, "ab", [0]), TypeError, "src_index: <class 'str'> is no array"),
    "fractions": ((SRC, DST, np.array([0.0]), [0]), TypeError, "src_index: "),
    "two dimensions": ((SRC, DST, np.array([[0]]), [0]), TypeError, "src_index: "),
    "shape": ((np.zeros((5, 3)), DST, [0], [0]), ValueError, "dst: its blocks are [2] of float64"),
    "dtype": ((SRC.astype("f4"), DST, [0], [0]), ValueError, "dst: its blocks are [2] of float64, and those of src [2] of float32"),
    "no dimensions": ((np.zeros(()), DST, [0], [0]), ValueError, "src, dst: an array without dimensions"),
    "not dense": ((np.zeros((5, 4))[:, ::2], DST, [0], [0]), ValueError, "src: the elements of its blocks"),
    "read-only": ((SRC, bytes(3), [0], [0]), ValueError, "dst: its memory is read-only"),
    "twice": ((SRC, DST, [0, 1], [2, 2]), TransferError, ""),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_wrong_is_named_and_nothing_is_written(name):
    arguments, kind, text = REFUSED[name]
    with pytest.raises(kind) as raised:
        transload.copy_blocks(*arguments)
    assert str(raised.value).startswith(text)
    assert (DST == 1).all()


@pytest.mark.parametrize("key", [np.s_[::2], np.s_[::-1], np.s_[1:]], ids=str)
def test_blocks_of_elements_that_share_bytes_are_those_of_the_view(key):
    src = transload.copy(np.arange(12, dtype="u1").reshape(4, 3), "cpu:0").view("float4_e2m1fn")
    dst = transload.copy(np.zeros((4, 3), "u1"), "cpu:0").view("float4_e2m1fn")
    count = src[key].shape[0]
    transload.copy_blocks(src[key], dst[key], range(count), range(count)[::-1])
    expected = np.zeros((4, 3), "u1")
    expected[key] = np.arange(12, dtype="u1").reshape(4, 3)[key][::-1]
    np.testing.assert_array_equal(dst.view("uint8").numpy(), expected)


@pytest.mark.parametrize("mask", [np.array([True, False, True]), [True, False, True], memoryview(np.array([True, False, True]))])
def test_masks_are_no_numbers(mask):
    with pytest.raises(TypeError, match="^src_index: "):
        transload.copy_blocks(SRC, DST, mask, [0, 1, 2])
    assert (DST == 1).all()

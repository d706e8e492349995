"""Copies between arrays of every layout, against NumPy."""

import numpy as np
import pytest

import transload
from transload.errors import TransferError

hypothesis = pytest.importorskip("hypothesis")
from hypothesis import given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402

TYPES = ["u1", "i2", "f2", "f4", "i8", "f8", "c8"]
NUMBERS = ["float16", "float32", "float64"]
PLACES = ["cpu:0", "cpu:0/shared"] + [name for name in map(str, transload.devices()) if name.startswith("wgpu:")][:1]

# Steps of a view: one way or the other, with gaps or without.
steps = st.sampled_from([1, 1, 1, -1, 2, -2, 3])


@st.composite
def views(draw, shape, dtype):
    """Returns an array, and a function that makes the same view, which has the shape, of it or of a copy."""
    order = draw(st.permutations(range(len(shape))))
    strides = [draw(steps) for _ in shape]
    before, after = draw(st.integers(0, 2)), draw(st.integers(0, 2))
    sizes = [size * abs(step) for size, step in zip(shape, strides)]
    base = np.arange(before + after + int(np.prod([sizes[at] for at in order])), dtype="u8") * 7919 % 251

    def view(of):
        array = of[before : len(of) - after].reshape([sizes[at] for at in order]).transpose(np.argsort(order))
        # With the dots an array without dimensions stays one.
        return array[(..., *(slice(None, None, step) for step in strides))]

    base = base.astype(dtype)
    assert view(base).shape == tuple(shape)
    return base, view


shapes = st.one_of(st.lists(st.integers(0, 7), max_size=5), st.lists(st.integers(1, 3), min_size=6, max_size=8))


@st.composite
def pairs(draw, types=TYPES):
    shape, dtype = draw(shapes), draw(st.sampled_from(types))
    return draw(views(shape, dtype)), draw(views(shape, dtype))


# 2,000 in all; with the profile "full" 240,000.
examples = settings(max_examples=20 * settings.default.max_examples)


@examples
@given(pairs())
def test_any_view_is_copied_to_any_other_one_as_numpy_copies_it(pair):
    (array, of), (base, view) = pair
    src, dst, model = of(array), view(base), base.copy()
    np.copyto(view(model), src)
    assert transload.copy(src, dst) is dst
    # Between the elements nothing changed.
    np.testing.assert_array_equal(base, model)


@examples
@given(pairs(), st.sampled_from(PLACES), st.booleans())
def test_any_view_goes_to_any_memory_and_back(pair, place, verify):
    (array, of), (base, view) = pair
    src, model = of(array), base.copy()
    there = transload.copy(src, place, verify=verify)
    assert there.shape == src.shape
    np.copyto(view(model), src)
    transload.copy(there, view(base), verify=verify)
    np.testing.assert_array_equal(base, model)


@examples
@given(pairs(), st.sampled_from(PLACES), st.data())
def test_a_view_of_a_tensor_is_that_of_an_array(pair, place, data):
    (array, of), (base, view) = pair
    src, other = of(array), view(base)
    key = (..., *(slice(*data.draw(st.sampled_from([(None,), (1, None), (None, None, -1), (None, None, 2)]))) for _ in src.shape))
    tensor = transload.copy(src, place)
    np.testing.assert_array_equal(transload.copy(tensor[key], "cpu:0").numpy(), src[key])
    # And written in place.
    transload.copy(other[key], tensor[key])
    model = src.copy()
    model[key] = other[key]
    np.testing.assert_array_equal(transload.copy(tensor, "cpu:0").numpy(), model)


@examples
@given(pairs(NUMBERS), st.sampled_from(NUMBERS), st.sampled_from(PLACES))
def test_numbers_of_any_view_are_converted_as_numpy_converts_them(pair, to, place):
    (array, of), _ = pair
    src = of(array)
    got = transload.copy(transload.copy(src, place, dtype=to), "cpu:0").numpy()
    np.testing.assert_array_equal(got, src.astype(to))


@pytest.mark.parametrize("size", [1, 2, 4, 8, 3, 12])
def test_large_transposes_are_whole(size):
    array = np.arange(700 * 513 * size, dtype="u4").astype("u1").reshape(700, 513, size)
    dtype = np.dtype(f"V{size}") if size in (3, 12) else np.dtype(f"u{size}")
    src = array.view(dtype)[..., 0].T
    want = np.ascontiguousarray(src).view("u1")
    dst = np.zeros(src.shape, dtype)
    if dtype.kind != "V":
        transload.copy(src, dst)
        np.testing.assert_array_equal(dst.view("u1"), want)


def test_destinations_whose_elements_overlap_are_refused():
    base = np.zeros(8)
    once = np.lib.stride_tricks.as_strided(base, (3, 2), (8, 8))
    with pytest.raises(TransferError, match="twice"):
        transload.copy(np.ones((3, 2)), once)
    assert not base.any()
    # A source may repeat its elements.
    row = np.broadcast_to(np.arange(3.0), (4, 3))
    got = np.zeros((4, 3))
    transload.copy(row, got)
    np.testing.assert_array_equal(got, row)


def test_views_of_one_array_that_share_no_element_are_copied():
    base = np.arange(40.0).reshape(4, 10)
    model = base.copy()
    model[:, 1::2] = model[:, ::2]
    transload.copy(base[:, ::2], base[:, 1::2])
    np.testing.assert_array_equal(base, model)
    with pytest.raises(TransferError, match="overlap"):
        transload.copy(base[:, ::-1], base)

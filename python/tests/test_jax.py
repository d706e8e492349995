"""Arrays of JAX, which speaks the legacy structure, wants 64-byte alignment, and has immutable arrays."""

import numpy as np
import pytest

import transload

jax = pytest.importorskip("jax")
jax.config.update("jax_platforms", "cpu")
jnp = jax.numpy


def test_jax_takes_the_memory_without_a_copy():
    tensor = transload.copy(np.arange(1024, dtype="f4").reshape(32, 32), "cpu:0")
    array = jnp.from_dlpack(tensor, copy=False)
    assert array.unsafe_buffer_pointer() == tensor.numpy().ctypes.data
    np.testing.assert_array_equal(np.asarray(array), tensor.numpy())


def test_jax_keeps_the_memory():
    array = jnp.from_dlpack(transload.copy(np.arange(1000, dtype="f4"), "cpu:0"), copy=False)
    others = [transload.copy(np.zeros(1000, "f4"), "cpu:0") for _ in range(8)]
    assert float(array.sum()) == 499500
    assert len(others) == 8


def test_bfloat16_reaches_jax_without_numpy():
    tensor = transload.copy(np.arange(64, dtype="f4"), "cpu:0", dtype="bfloat16")
    array = jnp.from_dlpack(tensor)
    assert array.dtype == jnp.bfloat16
    assert array.tolist() == list(range(64))


def test_jax_copies_what_is_not_aligned():
    tensor = transload.copy(np.arange(100, dtype="f4"), "cpu:0")[1:]
    array = jnp.from_dlpack(tensor)
    assert array.unsafe_buffer_pointer() != tensor.numpy().ctypes.data
    assert array.tolist() == list(range(1, 100))


@pytest.mark.parametrize("dtype", ["float32", "int32", "uint8", "bool", "complex64", "bfloat16", "float16"])
def test_arrays_of_jax_are_read(dtype):
    array = jnp.arange(12).reshape(3, 4).astype(dtype)
    tensor = transload.copy(array, "cpu:0")
    assert (tensor.dtype, tensor.shape) == (dtype, (3, 4))
    np.testing.assert_array_equal(tensor.numpy(), np.asarray(array))


def test_arrays_of_jax_are_never_written():
    array = jnp.zeros(4)
    for call in (transload.copy, transload.copy_async):
        with pytest.raises(ValueError, match="dst: its memory is read-only"):
            call(np.ones(4, "f4"), array)
    assert array.tolist() == [0, 0, 0, 0]


def test_a_copy_into_jax_by_way_of_a_device(gpu):
    there = transload.copy(jnp.arange(8.0), gpu)
    with pytest.raises(BufferError, match='transload.copy\\(tensor, "cpu:0"\\)'):
        there.__dlpack__()
    back = jnp.from_dlpack(transload.copy(there, "cpu:0"))
    assert back.tolist() == list(range(8))

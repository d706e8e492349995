"""Loads a model into JAX arrays without a copy.

Transload reads the file into memory where each tensor begins at a multiple of 256 bytes. JAX takes memory by DLPack without
a copy if it begins at a multiple of 64 bytes. The program compares the addresses.

    python examples/load_into_jax.py        # needs jax and ml_dtypes
"""

# %% A small model: two layers in bfloat16.
import tempfile
from pathlib import Path

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np

import transload

folder = tempfile.TemporaryDirectory()
path = Path(folder.name) / "model.safetensors"
random = np.random.default_rng(0)
model = {
    "0.weight": random.standard_normal((64, 33)).astype(ml_dtypes.bfloat16),
    "0.bias": random.standard_normal(33).astype(ml_dtypes.bfloat16),
    "1.weight": random.standard_normal((33, 10)).astype(ml_dtypes.bfloat16),
}
transload.save(model, path)

# %% Load. The call returns when all bytes have arrived.
tensors = transload.load(path)

# %% Into JAX. `copy=False` makes a copy an error.
cpu = jax.devices("cpu")[0]
parameters = {name: jnp.from_dlpack(tensor, copy=False) for name, tensor in tensors.items()}
for name, tensor in tensors.items():
    # `numpy()` is a view of the tensor's memory; ml_dtypes has the type bfloat16.
    address = tensor.numpy().ctypes.data
    assert parameters[name].unsafe_buffer_pointer() == address, name
    assert address % 64 == 0
    assert parameters[name].dtype == jnp.bfloat16 and parameters[name].devices() == {cpu}

# %% The arrays keep the memory alive without the tensors and the file.
del tensors, tensor
folder.cleanup()


@jax.jit
def forward(parameters, x):
    hidden = jax.nn.relu(x @ parameters["0.weight"] + parameters["0.bias"])
    return hidden @ parameters["1.weight"]


x = jnp.ones((4, 64), jnp.bfloat16)
mine = forward(parameters, x)
theirs = forward({name: jnp.asarray(array) for name, array in model.items()}, x)
assert np.array_equal(np.asarray(mine), np.asarray(theirs))
print(mine.shape, mine.dtype, "equal to the arrays that were saved")

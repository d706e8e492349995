"""Offloads the weights of layers to another memory, and prefetches each layer while the layer before it computes.

The host ("near") has room for two of the four layers. All four lie in the memory of the machine's last device ("far").
`copy_async` brings the next layer while NumPy computes with this one.

    python examples/offload_and_prefetch.py
"""

# %% The layers, offloaded to the last device.
import numpy as np

import transload

LAYERS, WIDTH = 4, 512
far = transload.devices()[-1]
random = np.random.default_rng(0)
weights = [random.standard_normal((WIDTH, WIDTH), np.float32) / WIDTH**0.5 for _ in range(LAYERS)]
offloaded = [transload.copy(layer, far) for layer in weights]
print(f"{LAYERS} layers of {offloaded[0].nbytes} bytes in {offloaded[0].memory}")

# %% Two places on the host, and NumPy's views of them. Nothing is allocated after this.
near = [transload.empty((WIDTH, WIDTH), "float32", "cpu:0") for _ in range(2)]
views = [tensor.numpy() for tensor in near]


def prefetch(layer):
    """Starts the copy of a layer to its place. The copy goes on without this thread."""
    return transload.copy_async(offloaded[layer], near[layer % 2])


# %% Compute, with the next layer on its way.
x = random.standard_normal((256, WIDTH), np.float32)
pending = prefetch(0)
result = x
for layer in range(LAYERS):
    pending.result()  # Waits until this layer is here.
    if layer + 1 < LAYERS:
        # The place is free, because NumPy has finished the layer that was there.
        pending = prefetch(layer + 1)
    result = np.maximum(result @ views[layer % 2], 0)

# %% The same without offloading.
expected = x
for layer in weights:
    expected = np.maximum(expected @ layer, 0)
assert np.array_equal(result, expected)
print("equal to the layers that stayed; last copy:", pending.report.splitlines()[0])

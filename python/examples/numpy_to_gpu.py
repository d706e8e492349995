"""Copies NumPy arrays to a graphics adapter and back, without torch.

The device is the last one of the machine: an adapter (wgpu) or a CUDA device, or the host where there is no other.

    python examples/numpy_to_gpu.py
"""

# %% The devices of this machine, the host first.
import numpy as np

import transload

for device in transload.devices():
    print(f"{device.id:8} {device.name}, {', '.join(device.memories)}")
last = transload.devices()[-1]

# %% To the device. `copy` returns when all bytes have arrived.
image = np.random.default_rng(0).random((512, 768, 4), dtype=np.float32)
there = transload.copy(image, last)
print(there)
assert there.shape == image.shape and there.device == last.id

# %% A part of it. Slices are views: the device's memory is not copied.
rows = there[128:256]
assert np.array_equal(transload.copy(rows, "cpu:0").numpy(), image[128:256])

# %% To the device as half precision. The host converts the numbers on the way.
half = transload.copy(image, last, dtype="float16")
assert half.nbytes == image.nbytes // 2
assert np.array_equal(half.numpy(), image.astype(np.float16))

# %% Back into an array of this program. Its rows may lie apart.
frame = np.zeros((512, 1024, 4), np.float32)
transload.copy(there, frame[:, :768], verify=True)
assert np.array_equal(frame[:, :768], image) and not frame[:, 768:].any()

# %% The route, and why Transload chose no other.
print(transload.explain(image, last))

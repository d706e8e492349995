"""Keeps batches on a device ahead of the training step, as torch's DataLoader with pinned memory does.

The ring allocates its tensors on the device once. `copy_async` fills the tensors in turn, `depth` batches ahead. The
program awaits each copy in asyncio.

    python examples/ring_of_batches.py
"""

# %% A source of batches.
import asyncio
from collections import deque

import numpy as np

import transload

BATCHES, SHAPE = 12, (64, 3, 32, 32)


def batches():
    for number in range(BATCHES):
        yield np.full(SHAPE, number, np.float32)


# %% The ring.
async def on_device(source, device, depth=3):
    """Yields the source's batches in the memory of a device.

    A batch is valid until the program asks for the next one. The ring then fills its memory with a later batch.
    """
    source = iter(source)
    free, pending = deque(), deque()
    for batch in source:
        if not free and len(pending) < depth:
            free.append(transload.empty(batch.shape, batch.dtype, device))
        # The copy keeps its source alive until it has ended.
        pending.append(transload.copy_async(batch, free.popleft()))
        if len(pending) == depth:
            tensor = await pending.popleft()
            yield tensor
            free.append(tensor)
    while pending:
        yield await pending.popleft()


# %% A step for each batch.
async def train(device):
    seen, addresses = [], set()
    async for tensor in on_device(batches(), device):
        addresses.add(id(tensor))
        # In place of a kernel: one element of each batch, read back.
        seen.append(float(tensor[0, 0, 0, :1].numpy()[0]))
    return seen, len(addresses)


seen, tensors = asyncio.run(train(transload.devices()[-1]))
assert seen == list(range(BATCHES))
assert tensors <= 3, "the ring's memory is used again"
print(f"{BATCHES} batches through {tensors} tensors, in order")

"""Elements of 4 and 6 bits for NumPy, whose arrays have a byte for each. Packed, they follow each other from the lowest bit on, as
DLPack has them."""

from __future__ import annotations

from typing import Any

import numpy as np


def pack(array: np.ndarray[Any, Any], block: tuple[int, int]) -> np.ndarray[Any, Any]:
    """Returns the bytes of an array. `block` has how many elements fill how many bytes."""
    count, bytes_ = block
    bits = bytes_ * 8 // count
    elements = array.view(np.uint8).reshape(-1, count) & ((1 << bits) - 1)
    words = np.zeros(len(elements), "<u4")
    for at in range(count):
        words |= elements[:, at].astype("<u4") << (bits * at)
    return words.view(np.uint8).reshape(-1, 4)[:, :bytes_].ravel()


def unpack(packed: Any, block: tuple[int, int], dtype: Any, shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
    """Returns the array of the elements in those bytes."""
    count, bytes_ = block
    bits = bytes_ * 8 // count
    padded = np.zeros((len(packed) // bytes_, 4), np.uint8)
    padded[:, :bytes_] = np.asarray(packed).reshape(-1, bytes_)
    words = padded.view("<u4")
    elements = (words >> np.arange(0, bits * count, bits, dtype=np.uint32)) & ((1 << bits) - 1)
    return elements.astype(np.uint8).reshape(shape).view(dtype)

"""Copies between any two memories of a machine, and model files to devices.

    >>> import numpy as np, transload
    >>> there = transload.copy(np.arange(6.0).reshape(2, 3), "cpu:0/shared")
    >>> there.shape, there.dtype, there.memory
    ((2, 3), 'float64', 'cpu:0/shared')
    >>> back = np.empty((2, 3))
    >>> transload.copy(there, back) is back
    True

A place is a device, such as ``"cuda:1"``, or a memory of one, such as ``"cpu:0/shared"``. Arrays are anything with the
buffer protocol or ``__dlpack__``: NumPy, torch, JAX, CuPy, pyarrow, ``bytes``. The interpreter's lock is free while
bytes move, and Ctrl-C ends a wait.
"""

import atexit as _atexit

from transload import errors, torch
from transload._transload import (
    Device,
    Explanation,
    Pending,
    Probe,
    Stream,
    Tensor,
    __version__,
    _stop,
    asarray,
    copy,
    copy_async,
    copy_blocks,
    devices,
    empty,
    explain,
    inspect,
    load,
    probe,
    save,
    stream,
    trim,
)
from transload.errors import Error

__all__ = [
    "Device",
    "Error",
    "Explanation",
    "Pending",
    "Probe",
    "Stream",
    "Tensor",
    "__version__",
    "asarray",
    "copy",
    "copy_async",
    "copy_blocks",
    "devices",
    "empty",
    "errors",
    "explain",
    "inspect",
    "load",
    "probe",
    "save",
    "stream",
    "torch",
    "trim",
]

_atexit.register(_stop)

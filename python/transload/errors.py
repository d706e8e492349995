"""The exceptions, one for each of the library's errors.

Each has ``kind``, the name of what happened; ``category``, which says whether to retry: ``"caller"`` (the same call can
never work), ``"unsupported"`` (this machine lacks something), ``"exhausted"`` (may work later), ``"lost"`` (the device is
gone) or ``"failed"``; and fields such as ``memory``, ``nbytes``, ``path`` and ``tensors`` where they apply. Where the system refused
something, the exception is also Python's own for that, such as ``FileNotFoundError`` or ``PermissionError``, with ``errno``.
"""

import os
from typing import Any


class Error(Exception):
    """The base of all of them."""

    kind: str
    category: str
    # Where they apply.
    memory: str
    nbytes: int
    limit: int
    needs: int
    has: int
    tensor: str
    tensors: list[str]
    path: str
    errno: int | None

    def __str__(self) -> str:
        return str(self.args[0]) if self.args else ""


class ParseError(Error, ValueError):
    """Text that names no place."""


class PlaceError(Error, LookupError):
    """A place that is not on this machine."""


class AllocError(Error, MemoryError):
    """Memory that was not allocated."""


class ImportError(Error):
    """Memory of another library that was not taken in."""


class RegionError(Error, ValueError):
    """Bytes that are not within their memory."""


class TransferError(Error):
    """A copy that was refused, or failed."""


class BatchError(TransferError):
    """Copies that were refused together."""


class GuardError(Error):
    """Bytes that were not given to look at."""


class ShareError(Error):
    """Memory that another device does not reach."""


class OpenError(Error, OSError):
    """A file that was not opened."""


class TensorError(Error, ValueError):
    """A shape or strides that do not fit the memory."""


class DLPackError(Error, BufferError):
    """A tensor that was not exchanged by DLPack."""


class ModelError(Error):
    """A file that is no model, or lies about itself."""


class LoadError(Error):
    """A load that was refused, or failed."""


class SaveError(Error):
    """A save that was refused, or failed."""


def make(name: str, text: str, fields: dict[str, Any]) -> Error:
    """Makes the exception of an error of the library's."""
    kind = globals().get(name, Error)
    if "path" in fields:
        fields["path"] = os.fspath(fields["path"])
    if fields.get("errno"):
        kind = _of_system(kind, type(OSError(fields["errno"], "")))
        fields |= {"filename": fields.get("path"), "strerror": os.strerror(fields["errno"])}
    exception: Error = kind(text)
    for field, value in fields.items():
        setattr(exception, field, value)
    return exception


_BOTH: dict[tuple[str, str], type[Error]] = {}


def _of_system(kind: type[Error], system: type[OSError]) -> type[Error]:
    """Returns the class that is both, under the name of the first."""
    names = kind.__name__, system.__name__
    if names in _BOTH:
        return _BOTH[names]

    def reduce(self: Error) -> tuple[Any, ...]:
        return make, (kind.__name__, str(self), {**vars(self), "errno": self.errno})

    both = (kind,) if issubclass(kind, system) else (kind, system)
    made = type(kind.__name__, both, {"__doc__": kind.__doc__, "__module__": kind.__module__, "__reduce__": reduce})
    # Of two threads, the first one's stays.
    return _BOTH.setdefault(names, made)

"""The extension module. `transload` shows what is in it, and its docstrings say what it does."""

from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from os import PathLike
from pathlib import Path
from types import EllipsisType
from typing import Any, Protocol, SupportsIndex, TypeAlias, TypeVar, final, overload, type_check_only

import numpy as np
import numpy.typing as npt
from typing_extensions import Buffer, CapsuleType, Self

__all__ = [
    "asarray",
    "copy",
    "copy_async",
    "empty",
    "Device",
    "Explanation",
    "Probe",
    "devices",
    "explain",
    "probe",
    "Stream",
    "inspect",
    "load",
    "save",
    "stream",
    "trim",
    "Pending",
    "_stop",
    "Tensor",
    "_restore",
    "__version__",
]

__version__: str

_Place: TypeAlias = str | Device | _TorchDevice
_Path: TypeAlias = str | bytes | PathLike[str] | PathLike[bytes]
_Progress: TypeAlias = Callable[[int, int], object] | bool
_Stream: TypeAlias = int | _TorchStream | _CuPyStream
_Array: TypeAlias = Tensor | Buffer | _SupportsDLPack
_DType: TypeAlias = str | type | np.dtype[Any] | _TorchDType
_Index: TypeAlias = SupportsIndex | slice | EllipsisType
_Into = TypeVar("_Into", bound=_Array)

@type_check_only
class _TorchStream(Protocol):
    @property
    def cuda_stream(self) -> int: ...

@type_check_only
class _CuPyStream(Protocol):
    @property
    def ptr(self) -> int: ...

@type_check_only
class _SupportsDLPack(Protocol):
    def __dlpack__(self, *, stream: Any = ...) -> Any: ...
    def __dlpack_device__(self) -> tuple[Any, int]: ...

@type_check_only
class _TorchDevice(Protocol):
    @property
    def type(self) -> str: ...
    @property
    def index(self) -> Any: ...

@type_check_only
class _TorchDType(Protocol):
    @property
    def is_floating_point(self) -> bool: ...
    @property
    def itemsize(self) -> int: ...

@final
class Tensor:
    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def strides(self) -> tuple[int, ...]: ...
    @property
    def ndim(self) -> int: ...
    @property
    def size(self) -> int: ...
    @property
    def dtype(self) -> str: ...
    @property
    def nbytes(self) -> int: ...
    @property
    def device(self) -> str: ...
    @property
    def memory(self) -> str: ...
    @property
    def readonly(self) -> bool: ...
    @property
    def contiguous(self) -> bool: ...
    @property
    def __array_interface__(self) -> dict[str, Any]: ...
    @property
    def __cuda_array_interface__(self) -> dict[str, Any]: ...
    def __len__(self) -> int: ...
    def __getitem__(self, key: _Index | tuple[_Index, ...], /) -> Tensor: ...
    # The interpreter iterates by indices.
    @type_check_only
    def __iter__(self) -> Iterator[Tensor]: ...
    def reshape(self, *shape: SupportsIndex | Sequence[SupportsIndex]) -> Tensor: ...
    def view(self, dtype: _DType) -> Tensor: ...
    def to(self, device: _Place, *, dtype: _DType | None = None) -> Tensor: ...
    def numpy(self) -> npt.NDArray[Any]: ...
    def __array__(self, dtype: npt.DTypeLike | None = None, *, copy: bool | None = None) -> npt.NDArray[Any]: ...
    def __dlpack__(
        self,
        *,
        stream: int | None = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> CapsuleType: ...
    def __dlpack_device__(self) -> tuple[int, int]: ...
    def __buffer__(self, flags: int, /) -> memoryview: ...
    def __release_buffer__(self, buffer: memoryview, /) -> None: ...
    def __reduce__(self) -> tuple[Callable[..., Tensor], tuple[bytes, str, list[int], str]]: ...

@final
class Pending:
    def done(self) -> bool: ...
    def cancel(self) -> None: ...
    def progress(self) -> tuple[int, int] | None: ...
    def result(self, timeout: float | None = None) -> Any: ...
    @property
    def report(self) -> str | None: ...
    def add_done_callback(self, callback: Callable[[], object]) -> None: ...
    def __await__(self) -> Generator[Any, Any, Any]: ...

@final
class Device:
    @property
    def id(self) -> str: ...
    @property
    def backend(self) -> str: ...
    @property
    def name(self) -> str: ...
    @property
    def software(self) -> bool: ...
    @property
    def simulated(self) -> bool: ...
    @property
    def driver(self) -> str | None: ...
    @property
    def memory_bytes(self) -> int | None: ...
    @property
    def memories(self) -> list[str]: ...
    @property
    def uuid(self) -> str | None: ...
    @property
    def pci(self) -> str | None: ...

@final
class Explanation:
    @property
    def nbytes(self) -> int: ...
    @property
    def method(self) -> str: ...
    @property
    def route(self) -> list[str]: ...
    @property
    def predicted_s(self) -> float | None: ...
    @property
    def measured(self) -> bool: ...
    @property
    def text(self) -> str: ...
    def _repr_html_(self) -> str: ...

@final
class Probe:
    @property
    def pairs(self) -> list[tuple[str, str, float | None]]: ...
    @property
    def simulated(self) -> bool: ...
    def save(self) -> Path: ...
    def _repr_html_(self) -> str: ...

@final
class Stream:
    def __iter__(self) -> Self: ...
    def __next__(self) -> tuple[str, Tensor]: ...
    def progress(self) -> tuple[int, int] | None: ...
    def close(self) -> None: ...

@overload
def copy(
    src: _Array,
    dst: _Place,
    *,
    dtype: _DType | None = None,
    verify: bool = False,
    progress: _Progress | None = None,
    stream: _Stream | None = None,
) -> Tensor: ...
@overload
def copy(
    src: _Array,
    dst: _Into,
    *,
    dtype: _DType | None = None,
    verify: bool = False,
    progress: _Progress | None = None,
    stream: _Stream | None = None,
) -> _Into: ...
def asarray(array: _Array) -> Tensor: ...
def copy_async(
    src: _Array,
    dst: _Place | _Array,
    *,
    dtype: _DType | None = None,
    verify: bool = False,
    stream: _Stream | None = None,
) -> Pending: ...
def devices() -> list[Device]: ...
def empty(
    shape: SupportsIndex | Sequence[SupportsIndex], dtype: _DType | None = None, device: _Place | None = None
) -> Tensor: ...
def explain(src: _Place | _Array, dst: _Place | _Array, nbytes: int | None = None) -> Explanation: ...
def inspect(path: _Path) -> dict[str, Any]: ...

@overload
def load(
    path: _Path | Iterable[_Path],
    *,
    device: _Place | None = None,
    split: Mapping[str, int] | None = None,
    broadcast: bool = False,
    dtype: _DType | None = None,
    only: str | Sequence[str] | None = None,
    verify: bool = False,
    progress: _Progress | None = None,
) -> dict[str, Tensor]: ...

# A list for each name where tensors are split or broadcast to several places, else a tensor.
@overload
def load(
    path: _Path | Iterable[_Path],
    *,
    device: Sequence[_Place],
    split: Mapping[str, int] | None = None,
    broadcast: bool = False,
    dtype: _DType | None = None,
    only: str | Sequence[str] | None = None,
    verify: bool = False,
    progress: _Progress | None = None,
) -> dict[str, Any]: ...
def probe(seconds: float = 10.0) -> Probe: ...
def save(
    tensors: Mapping[str, _Array],
    path: _Path,
    *,
    metadata: Mapping[str, str] | None = None,
    max_shard_bytes: int | None = None,
) -> list[Path]: ...
def stream(
    path: _Path | Iterable[_Path],
    *,
    device: _Place | Sequence[_Place] | None = None,
    split: Mapping[str, int] | None = None,
    broadcast: bool = False,
    dtype: _DType | None = None,
    only: str | Sequence[str] | None = None,
    verify: bool = False,
) -> Stream: ...
def trim() -> None: ...
def _restore(bytes: bytes, dtype: str, shape: Sequence[int], memory: str) -> Tensor: ...
def _stop() -> None: ...

"""Loads models into modules of torch without a copy.

    >>> import torch, transload.torch
    >>> with torch.device("meta"):
    ...     module = torch.nn.Linear(768, 768)
    >>> transload.torch.load_into(module, "linear.safetensors", device="cpu")
    <All keys matched successfully>

torch is imported at the first call.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from fnmatch import fnmatchcase
from os import PathLike
from typing import TYPE_CHECKING, Any

from transload._transload import load

if TYPE_CHECKING:
    import torch as _torch  # type: ignore[import-not-found, unused-ignore]

__all__ = ["load_into"]


def load_into(
    module: _torch.nn.Module,
    path: str | PathLike[str] | Iterable[str | PathLike[str]],
    *,
    device: Any = None,
    strict: bool = True,
    dtype: Any = None,
    only: str | Iterable[str] | None = None,
    progress: Callable[[int, int], object] | bool | None = None,
) -> Any:
    """Loads a model, and makes its tensors the parameters and buffers of a module.

    The tensors are not copied, and the module's former ones are freed. A module that was made under
    ``torch.device("meta")`` therefore never has its memory twice. Parameters keep their ``requires_grad``. Parameters that
    the module shares between names stay shared; the model needs one of the names.

    Args:
        module: The module. Optimizers that hold its former parameters do not see the new ones: make them afterwards.
        path: A file, a folder, or several, as `transload.load` takes them.
        device: ``"cpu"`` (the default), or a device that torch and transload both know, such as ``"cuda:1"``.
        strict: Whether names of the model that the module lacks, and the reverse, are an error. If not, they are ignored.
        dtype: The type to which floating-point tensors are converted while they are read. By default the tensors
            have the model's types, whatever the module's were.
        only: Patterns of the names to load. Other tensors of the module are left as they are.
        progress: Called with the bytes that have arrived, and all; True draws a bar by tqdm.

    Returns:
        What ``module.load_state_dict`` returns: ``missing_keys`` and ``unexpected_keys``.

    Raises:
        RuntimeError: A name is on one side only, or a shape differs. Names are checked before the module changes.
        BufferError: torch cannot use memory of that device.
        transload.Error: The load failed. The module is unchanged.
    """
    from torch.utils.dlpack import from_dlpack  # type: ignore[import-not-found, unused-ignore]

    patterns = None if only is None else [only] if isinstance(only, str) else list(only)
    loaded = load(path, device=device, dtype=dtype, only=patterns, progress=progress)
    tensors = {name: from_dlpack(tensor) for name, tensor in loaded.items()}
    del loaded

    # Files hold one of the names of a shared parameter.
    named = dict(module.named_parameters(remove_duplicate=False))
    groups: dict[int, list[str]] = {}
    for name, parameter in named.items():
        groups.setdefault(id(parameter), []).append(name)
    tied = [names for names in groups.values() if len(names) > 1]
    for names in tied:
        source = next((name for name in names if name in tensors), None)
        if source is not None:
            for name in names:
                tensors.setdefault(name, tensors[source])

    if strict:
        known = set(module.state_dict())
        wanted = (
            name
            for name in known
            if patterns is None or any(fnmatchcase(name, pattern) for pattern in patterns)
        )
        missing = sorted(name for name in wanted if name not in tensors)
        unexpected = [name for name in tensors if name not in known]
        if missing or unexpected:
            raise RuntimeError(
                f"cannot load {path} into {type(module).__name__}: the model lacks {missing or 'nothing'}, "
                f"and the module lacks {unexpected or 'nothing'}; pass strict=False to ignore them"
            )
    result = module.load_state_dict(tensors, strict=False, assign=True)
    # `load_state_dict` has made a parameter for each name.
    for names in tied:
        first = module.get_parameter(names[0])
        for name in names[1:]:
            owner, _, leaf = name.rpartition(".")
            setattr(module.get_submodule(owner), leaf, first)
    return result

"""Loads models into modules of torch without a copy, and saves modules.

    >>> import torch, transload.torch
    >>> with torch.device("meta"):
    ...     module = torch.nn.Linear(768, 768)
    >>> transload.torch.load_into(module, "linear.safetensors", device="cpu")
    <All keys matched successfully>

torch is imported at the first call.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from fnmatch import fnmatchcase
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from transload._transload import load, save

if TYPE_CHECKING:
    import torch as _torch  # type: ignore[import-not-found, unused-ignore]

    _Path: TypeAlias = str | bytes | PathLike[str] | PathLike[bytes]

__all__ = ["load_into", "save_from"]


def load_into(
    module: _torch.nn.Module,
    path: _Path | Iterable[_Path],
    *,
    device: Any = None,
    strict: bool = True,
    dtype: Any = None,
    only: str | Iterable[str] | None = None,
    progress: Callable[[int, int], object] | bool | None = None,
) -> Any:
    """Loads a model, and makes its tensors the parameters and buffers of a module.

    The tensors are not copied, and the module's former ones are freed. A module that was made under
    ``torch.device("meta")`` therefore never has its memory twice. Parameters keep their ``requires_grad``, except those
    that become whole numbers, which have no gradient. Parameters and buffers that have several names, or share all their
    bytes in the same shape, stay so; the model needs one of the names. Other views of one memory become separate.

    Args:
        module: The module. Optimizers that hold its former parameters do not see the new ones: make them afterwards.
        path: A file, a folder, or several, as `transload.load` takes them.
        device: ``"cpu"`` (the default), or a device that torch and transload both know, such as ``"cuda:1"``.
        strict: Whether it is an error that the model has names that the module lacks, or the reverse; that it has different
            values for names of one tensor; and that the module has buffers on ``"meta"`` which no model has, because they
            are not persistent. If not, such names and buffers are left alone, and of different values the first is taken.
        dtype: The type to which floating-point tensors are converted while they are read. By default the tensors
            have the model's types, whatever the module's were.
        only: Patterns of the names to load. Other tensors of the module are left as they are.
        progress: Called with the bytes that have arrived, and all; True draws a bar by tqdm.

    Returns:
        What ``module.load_state_dict`` returns: ``missing_keys`` and ``unexpected_keys``.

    Raises:
        RuntimeError: What `strict` forbids, or a shape differs. The module is unchanged.
        BufferError: torch cannot use memory of that device.
        transload.Error: The load failed. The module is unchanged.
    """
    from torch.utils.dlpack import from_dlpack  # type: ignore[import-not-found, unused-ignore]

    patterns = None if only is None else [only] if isinstance(only, str) else list(only)
    loaded = load(path, device=device, dtype=dtype, only=patterns, progress=progress)
    tensors = {name: from_dlpack(tensor) for name, tensor in loaded.items()}
    del loaded

    state = module.state_dict(keep_vars=True)
    unsaved = {name: of for name, of in module.named_buffers(remove_duplicate=False) if name not in state}
    own = {**state, **unsaved}
    shared = [names for names in _names(own) if len(names) > 1 and names[0] in state]
    for names in shared:
        found = [name for name in names if name in tensors]
        if strict and any(not _is_same(tensors[found[0]], tensors[name]) for name in found[1:]):
            raise RuntimeError(
                f"cannot load {path!r} into {type(module).__name__}: {found} are one tensor of the module, and the model has "
                "different values for them; untie them, or pass strict=False to take the first"
            )
        # Files hold one of the names. That of a buffer which is not persistent is in none.
        tensors.update((name, tensors[found[0]]) for name in names if found and name in state)

    if strict:

        def is_wanted(name: str) -> bool:
            return patterns is None or any(fnmatchcase(name, pattern) for pattern in patterns)

        missing = sorted(name for name in state if is_wanted(name) and name not in tensors)
        unexpected = [name for name in tensors if name not in state]
        if missing or unexpected:
            raise RuntimeError(
                f"cannot load {path!r} into {type(module).__name__}: the model lacks {missing or 'nothing'}, "
                f"and the module lacks {unexpected or 'nothing'}; pass strict=False to ignore them"
            )
        tied = {name for names in shared if names[0] in tensors for name in names}
        void = sorted(name for name, of in unsaved.items() if of.is_meta and is_wanted(name) and name not in tied)
        if void:
            raise RuntimeError(
                f"cannot load {path!r} into {type(module).__name__}: its buffers {void} are on the device meta, and no model has "
                "them, because they are not persistent; assign them before, or pass strict=False and assign them afterwards"
            )

    former = [(of, dict(of._parameters), dict(of._buffers)) for of in module.modules()]
    # torch makes no parameter of whole numbers that has a gradient.
    whole = [own[name] for name, of in tensors.items() if name in state and not (of.is_floating_point() or of.is_complex())]
    whole = [of for of in whole if getattr(of, "requires_grad", False)]
    try:
        for of in whole:
            of.requires_grad_(False)
        result = module.load_state_dict(tensors, strict=False, assign=True)
        # `load_state_dict` has made a parameter for each name, and knows of no buffer that is not persistent.
        for names in shared:
            if names[0] in tensors:
                made: dict[int, Any] = {}
                for name in names:
                    owner, _, leaf = name.rpartition(".")
                    at = module.get_submodule(owner)
                    now = getattr(at, leaf) if name in state else tensors[names[0]]
                    setattr(at, leaf, made.setdefault(id(own[name]), now))
    except BaseException:
        for of, parameters, buffers in former:
            of._parameters.update(parameters)
            of._buffers.update(buffers)
        raise
    finally:
        # Other modules may hold the former parameters.
        for of in whole:
            of.requires_grad_(True)
    return result


def save_from(
    module: _torch.nn.Module,
    path: _Path,
    *,
    metadata: Mapping[str, str] | None = None,
    max_shard_bytes: int | None = None,
) -> list[Path]:
    """Saves the parameters and persistent buffers of a module as safetensors, as `transload.save` does.

    Those that have several names, or share all their bytes in the same shape, are saved once, under the first of these names by
    the alphabet. The metadata has it for each of the others. Other views of one memory are saved each. `load_into` and ``safetensors.torch.load_model`` give all of them their tensor;
    loaders that know no ties, such as ``safetensors.torch.load_file``, give the saved name alone.

    Args:
        module: The module, on any devices.
        path: The file. An existing one is replaced.
        metadata: Texts for the header, beside ``format``, which is ``pt``.
        max_shard_bytes: The most bytes of tensors in one file, as in `transload.save`.

    Returns:
        A list of the paths that were written.

    Raises:
        TypeError, ValueError, transload.errors.SaveError: As `transload.save`.
    """
    state = module.state_dict(keep_vars=True)
    kept, told = {}, {"format": "pt"}
    for names in _names(state):
        first, *others = sorted(names)
        kept[first] = state[first]
        told.update(dict.fromkeys(others, first))
    return save(kept, path, metadata={**told, **(metadata or {})}, max_shard_bytes=max_shard_bytes)


def _names(tensors: Mapping[str, Any]) -> list[list[str]]:
    """Returns the names of each tensor: those of one object, and of one place in one memory."""
    groups: dict[Any, list[str]] = {}
    for name, of in tensors.items():
        groups.setdefault(_place(of), []).append(name)
    return list(groups.values())


def _place(of: Any) -> Any:
    try:
        # The storage's address, which those on the device meta have, too.
        return of.untyped_storage()._cdata, of.storage_offset(), of.shape, of.stride(), of.dtype
    except (AttributeError, RuntimeError, ValueError):
        # No tensor, or one without a storage or without a shape.
        return id(of)


def _is_same(one: Any, other: Any) -> bool:
    """Returns whether all bytes are the same."""
    import torch  # type: ignore[import-not-found, unused-ignore]

    if (one.shape, one.dtype) != (other.shape, other.dtype):
        return False
    return bool(torch.equal(one.reshape(-1).view(torch.uint8), other.reshape(-1).view(torch.uint8)))

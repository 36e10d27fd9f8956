"""Tensor files that are trusted with nothing: whole, finite, and of the shapes that are needed.

A file of ours holds a checksum of its tensors, so that a flipped bit is noticed; a file without one
(of an earlier version) is taken as it is. The format can hold numbers and nothing else: reading it
runs no code.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor
from torch.overrides import TorchFunctionMode

from metatkgr.errors import DataError
from metatkgr.files import atomic_path, check_file
from metatkgr.models.trainable import TrainableModel

__all__ = ["check_fit", "expected_state", "only_shapes", "read_tensors", "write_tensors"]

_CHECKSUM = "checksum"
T = TypeVar("T")


def write_tensors(
    path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str] | None = None
) -> None:
    """Write tensors atomically, with their checksum."""
    own: dict[str, Tensor] = {}
    taken: set[int] = set()
    for name, tensor in tensors.items():
        plain = tensor.detach().cpu().contiguous()
        # The writer refuses tensors that share memory.
        place = plain.untyped_storage().data_ptr()
        own[name] = plain.clone() if place in taken else plain
        taken.add(place)
    about = {**(metadata or {}), _CHECKSUM: _checksum(own, metadata or {})}
    with atomic_path(path) as temporary:
        save_file(own, temporary, metadata=about)


def read_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """The tensors of a file and its metadata, without the checksum.

    Raises:
        DataError: it cannot be read, or is not what was written.
    """
    check_file(path)
    try:
        with safe_open(path, framework="pt") as file:
            about: dict[str, str] = dict(file.metadata() or {})
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, OSError, RuntimeError, ValueError, TypeError, KeyError) as error:
        raise DataError(f"{path} cannot be read: {str(error)[:300]}") from None
    told = about.pop(_CHECKSUM, None)
    if told is not None and told != _checksum(tensors, about):
        raise DataError(f"{path} is damaged: its content is not what was written; copy it again")
    return tensors, about


def _checksum(tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> str:
    value = zlib.crc32(repr(sorted(metadata.items())).encode("utf-8", "surrogatepass"))
    for name in sorted(tensors):
        tensor = tensors[name]
        about = f"{name} {tensor.dtype} {tuple(tensor.shape)}"
        value = zlib.crc32(about.encode("utf-8", "surrogatepass"), value)
        # As bytes, since numpy does not know every type of torch's.
        flat = tensor.contiguous().reshape(-1)
        value = zlib.crc32(flat.view(torch.uint8).numpy().data if len(flat) else b"", value)
    return f"crc32:{value:08x}"


class _OnlyShapes(TorchFunctionMode):
    """Within it new tensors have a shape and no content, however large they would be."""

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = dict(kwargs or {})
        kwargs.pop("generator", None)  # there is none for tensors without content
        with torch.device("meta"):
            return func(*args, **kwargs)


def expected_state(model: TrainableModel[Any], entities: int, relations: int) -> dict[str, Tensor]:
    """What ``model.state_dict()`` would be once built, without memory: only shapes and types count.

    Raises:
        DataError: the settings ask for tensors that no machine can number.
    """
    twin = type(model)(model.settings, device="meta")
    only_shapes(model.name, lambda: twin.build(entities, relations, torch.Generator()))
    return twin.state_dict()


def only_shapes(what: str, make: Callable[[], T]) -> T:
    """What ``make`` returns, with tensors that have shapes and types and no content.

    Raises:
        DataError: no machine can number them.
    """
    try:
        with _OnlyShapes():
            return make()
    except (RuntimeError, OverflowError, MemoryError) as error:
        told = str(error).splitlines()[0][:200] if str(error) else repr(error)
        raise DataError(f"no {what} of such settings can be made: {told}") from None


def check_fit(what: str, state: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> None:
    """Refuse weights that are missing, too many, of another shape or type, or not finite.

    Raises:
        DataError: it names the weight.
    """
    for name in sorted({*state, *expected}):
        if name not in state or name not in expected:
            kind = "lacks the weight" if name in expected else "has a weight too many,"
            raise DataError(f"{what} {kind} {name[:80]!r}; it is of another model or version")
        found, wanted = state[name], expected[name]
        if found.shape != wanted.shape or found.dtype != wanted.dtype:
            raise DataError(
                f"{what}: the weight {name!r} is {tuple(found.shape)} of {found.dtype}, not "
                f"{tuple(wanted.shape)} of {wanted.dtype}; it is of another model, setting or graph"
            )
        if found.dtype.is_floating_point and not bool(torch.isfinite(found).all()):
            raise DataError(f"{what}: the weight {name!r} holds numbers that are not finite")

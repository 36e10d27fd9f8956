"""What a training leaves in files: tensors, trace, checkpoints, stages; read without trusting them.

Safetensors only, which hold numbers and run no code. A file is written to a temporary name and
renamed, so a crash leaves the old one or the new one; it holds a checksum, so that a flipped bit is
noticed. ``trace.jsonl`` has one line for each epoch, so that a training can be looked at while it
runs.
"""

from __future__ import annotations

import hashlib
import json
import stat
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Protocol, Self, runtime_checkable

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor
from torch.overrides import TorchFunctionMode

from metatkgr.errors import DataError, need
from metatkgr.files import atomic_path, check_file, write_text
from metatkgr.models.base import Phase, TrainableModel

__all__ = [
    "KeptStage",
    "Position",
    "SharedPhase",
    "Trace",
    "Tracker",
    "check_fit",
    "check_optimiser",
    "expected_state",
    "kept_stage",
    "load_checkpoint",
    "read_tensors",
    "save_checkpoint",
    "write_tensors",
]

_CHECKSUM = "checksum"
_FORMAT = "metatkgr-checkpoint-2"
_NOT_CURVES = ("phase", "epoch", "epochs", "step")


def write_tensors(
    path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str] | None = None
) -> None:
    """Write tensors atomically, with their checksum."""
    own: dict[str, Tensor] = {}
    taken: set[int] = set()
    for name, tensor in tensors.items():
        plain = tensor.detach().cpu().contiguous()
        # The writer refuses tensors that share memory.
        address = plain.untyped_storage().data_ptr()
        own[name] = plain.clone() if address in taken else plain
        taken.add(address)
    about = {**(metadata or {}), _CHECKSUM: _checksum(own, metadata or {})}
    with atomic_path(path) as temporary:
        # The writer makes a file of its own, for its owner alone: who may read is for the umask.
        temporary.touch()
        mode = temporary.stat().st_mode
        save_file(own, temporary, metadata=about)
        temporary.chmod(stat.S_IMODE(mode))


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
    written = about.pop(_CHECKSUM, None)
    if written is None:
        raise DataError(
            f"{path} has no checksum: it is of another program or version; make it anew"
        )
    if written != _checksum(tensors, about):
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
    try:
        with _OnlyShapes():
            twin.build(entities, relations, torch.Generator())
    except (RuntimeError, OverflowError, MemoryError) as error:
        reason = str(error).splitlines()[0][:200] if str(error) else repr(error)
        raise DataError(f"no {model.name} of such settings can be made: {reason}") from None
    return twin.state_dict()


def check_fit(what: str, state: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> None:
    """Refuse weights that are missing, too many, of another shape or type, or not finite.

    Raises:
        DataError: it names the weight.
    """
    for name in sorted({*state, *expected}):
        if name not in state or name not in expected:
            kind = "lacks the weight" if name in expected else "has a weight too many,"
            raise DataError(f"{what} {kind} {name[:80]!r}; it is of another model or version")
        weight, wanted = state[name], expected[name]
        if weight.shape != wanted.shape or weight.dtype != wanted.dtype:
            raise DataError(
                f"{what}: the weight {name!r} is {tuple(weight.shape)} of {weight.dtype}, not "
                f"{tuple(wanted.shape)} of {wanted.dtype}; it is of another model, setting or graph"
            )
        if weight.dtype.is_floating_point and not bool(torch.isfinite(weight).all()):
            raise DataError(f"{what}: the weight {name!r} holds numbers that are not finite")


class Trace:
    """Appends structured lines to a file, and keeps them.

    Args:
        path: the file; None keeps the lines in memory only.
        lines: with which it begins, whatever is in the file: those that a checkpoint holds. Lines
            behind them belong to epochs that are done again.
    """

    def __init__(self, path: Path | None = None, lines: Iterable[dict[str, Any]] = ()) -> None:
        self.path = path
        self.lines = list(lines)
        if path is not None:
            write_text(path, "".join(json.dumps(line) + "\n" for line in self.lines))

    def write(self, line: dict[str, Any]) -> None:
        """Add one line; it is in the file when this returns."""
        self.lines.append(line)
        if self.path is not None:
            try:
                with self.path.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(line) + "\n")
            except OSError as error:
                raise DataError(f"cannot write {self.path}: {error.strerror or error}") from error


class Tracker:
    """Writes the lines of a trace as TensorBoard's scalars; a context manager.

    ``meta/loss``, ``meta/bound``, ``meta/kl``, ``meta/validation_mrr``, ``meta/seconds/forward``
    and so on: phase, then quantity. The axis is the number of optimiser steps since the training
    began, so that the phases follow each other.

    Args:
        folder: for TensorBoard's files; made when it is missing.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._new_writer: Any = need("torch.utils.tensorboard", "track").SummaryWriter
        self._writer: Any = None

    def __call__(self, line: dict[str, Any]) -> None:
        """Add one line of the trace."""
        if self._writer is None:
            # A training that goes on repeats the epochs after its checkpoint; what an earlier file
            # says about them no longer counts.
            self._writer = self._new_writer(str(self.folder), purge_step=line["step"])
        for name, value in line.items():
            if name not in _NOT_CURVES and isinstance(value, int | float):
                quantity = name.replace("seconds_", "seconds/", 1)
                self._writer.add_scalar(f"{line['phase']}/{quantity}", value, line["step"])
        self._writer.flush()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        if self._writer is not None:
            self._writer.close()


@dataclass
class Position:
    """How far a training has come."""

    phase: int = 0
    epoch: int = 0
    """Epochs of this phase that are done."""
    step: int = 0
    """Optimiser steps in all."""
    best_mrr: float | None = None
    """Best validation MRR of this phase."""
    best_epoch: int = 0
    lines: list[dict[str, Any]] = field(default_factory=list)
    """Of the trace, one for each epoch that is done: its file may be lost, or be cut."""
    seconds: float = 0.0
    phase_seconds: float = 0.0
    """Of this phase."""

    def check(self) -> None:
        """Raise a ValueError unless every number is one that a training can have."""
        for name in ("phase", "epoch", "step", "best_epoch"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 2**62:
                raise ValueError(f"{name} is {value!r}")
        for name in ("seconds", "phase_seconds", "best_mrr"):
            value = getattr(self, name)
            if value is None and name == "best_mrr":
                continue
            if isinstance(value, bool) or not isinstance(value, (int, float)):
                raise ValueError(f"{name} is {value!r}")
            if not 0 <= value < 1e12:
                raise ValueError(f"{name} is {value!r}")
        if not isinstance(self.lines, list) or not all(map(_is_line, self.lines)):
            raise ValueError("its trace is none")


def _is_line(line: Any) -> bool:
    """Whether it can be a line of a trace, as far as others rely on it."""
    return (
        isinstance(line, dict)
        and isinstance(line.get("phase"), str)
        and all(isinstance(line.get(name), int | float) for name in ("step", "seconds"))
    )


def save_checkpoint(
    path: Path,
    position: Position,
    weights: dict[str, Tensor],
    best: dict[str, Tensor],
    optimiser: torch.optim.Optimizer,
    generator: torch.Generator,
) -> None:
    """Write everything that is needed to go on exactly."""
    tensors = {f"weights.{name}": value for name, value in weights.items()}
    tensors |= {f"best.{name}": value for name, value in best.items()}
    for number, state in optimiser.state_dict()["state"].items():
        tensors |= {f"optimiser.{number}.{key}": value for key, value in state.items()}
    tensors["generator"] = generator.get_state()
    metadata = {"format": _FORMAT, "position": json.dumps(asdict(position))}
    write_tensors(path, tensors, metadata)


def load_checkpoint(
    path: Path,
) -> tuple[Position, dict[str, Tensor], dict[str, Tensor], dict[int, dict[str, Any]], Tensor]:
    """What :func:`save_checkpoint` wrote.

    Returns:
        position, weights, best weights, the optimiser's state by parameter number, the state of the
        generator.
    """
    tensors, metadata = read_tensors(path)
    if metadata.get("format") != _FORMAT:
        raise DataError(f"{path} is not a checkpoint of this version; start without --resume")
    optimiser: dict[int, dict[str, Any]] = {}
    try:
        for name, value in tensors.items():
            if name.startswith("optimiser."):
                _, number, key = name.split(".", 2)
                optimiser.setdefault(int(number), {})[key] = value
        position = Position(**json.loads(metadata["position"]))
        position.check()
        generator = tensors["generator"]
        torch.Generator().set_state(generator)
    except (ValueError, KeyError, TypeError, RuntimeError, RecursionError) as error:
        raise DataError(f"{path} cannot be gone on with ({error}); begin anew") from None
    return position, _part(tensors, "weights."), _part(tensors, "best."), optimiser, generator


def check_optimiser(
    state: dict[int, dict[str, Any]], parameters: Sequence[torch.nn.Parameter]
) -> None:
    """Refuse the state of an optimiser that was made for other parameters.

    Raises:
        DataError: it does not fit.
    """
    for number, values in state.items():
        fits = 0 <= number < len(parameters) and {"step", "exp_avg", "exp_avg_sq"} <= values.keys()
        if fits:
            shape = parameters[number].shape
            fits = values["exp_avg"].shape == values["exp_avg_sq"].shape == shape
        if not fits:
            raise DataError("the checkpoint is of another training; begin anew")


def _part(tensors: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {
        name.removeprefix(prefix): value
        for name, value in tensors.items()
        if name.startswith(prefix)
    }


@runtime_checkable
class SharedPhase(Protocol):
    """A phase whose outcome depends on its own facts and settings alone, not on the model.

    MetaTKGR, its ablations, I-GEN, T-GEN and MetaDyGNN start from the same TransE: it is trained
    once and kept in a folder. The outcome follows from facts, settings, seed and kind of device;
    these make its name. A phase draws from a generator of its own, so what is kept is what the
    training itself would have learned.
    """

    def recipe(self) -> bytes:
        """Facts and settings, as bytes."""
        ...


class KeptStage:
    """The outcome of one such phase: its weights, and the trace of their training.

    Args:
        path: of its file, there or not.
        names: the weights that the stage learns.
    """

    def __init__(self, path: Path, names: list[str]) -> None:
        self.path, self.names = path, names

    def load(self) -> tuple[dict[str, Tensor], list[dict[str, Any]]] | None:
        """Weights by name and the lines of the trace; None: not trained yet."""
        try:
            tensors, about = read_tensors(self.path)
            weights, lines = (
                {name: tensors[name] for name in self.names},
                json.loads(about["lines"]),
            )
        except (DataError, KeyError, ValueError, RecursionError):
            return None  # not there, or not whole: it is trained anew, and kept
        return (weights, lines) if lines and all(map(_is_line, lines)) else None

    def save(self, weights: dict[str, Tensor], lines: list[dict[str, Any]]) -> None:
        """Keep what was learned; of two processes at it, the last one wins with the same."""
        kept = {name: weights[name] for name in self.names}
        write_tensors(self.path, kept, {"lines": json.dumps(lines)})


def kept_stage(
    folder: Path | None, model: TrainableModel[Any], phase: Phase, seed: int, precision: str
) -> KeptStage | None:
    """The file of a phase's outcome, where it is shared at all."""
    if folder is None or not isinstance(phase, SharedPhase):
        return None
    learned = {id(parameter) for parameter in phase.parameters()}
    names = sorted(name for name, weight in model.weights.items() if id(weight) in learned)
    circumstances = f"{seed} {precision} {model.device.type} {phase.epochs} {phase.learning_rate}"
    digest = hashlib.sha256(circumstances.encode() + phase.recipe()).hexdigest()[:24]
    return KeptStage(folder / f"{phase.name}-{digest}.safetensors", names)

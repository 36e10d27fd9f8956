"""First stages that several models share, each trained once and kept in a folder.

MetaTKGR, its ablations, I-GEN, T-GEN and MetaDyGNN start from the same TransE. A stage's outcome
follows from its facts, its settings, the seed and the kind of device; these make its name. A phase
draws from a generator of its own, so what is kept is what the training itself would have learned.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from metatkgr.files import atomic_path
from metatkgr.models.trainable import Phase, TrainableModel

__all__ = ["KeptStage", "SharedPhase", "kept_stage"]


@runtime_checkable
class SharedPhase(Protocol):
    """A phase whose outcome depends on its own facts and settings alone, not on the model."""

    def recipe(self) -> bytes:
        """Facts and settings, as bytes."""
        ...


class KeptStage:
    """One stage in the folder: its weights, and the trace of their training.

    Args:
        path: of its file, there or not.
        names: the weights that the stage learns.
    """

    def __init__(self, path: Path, names: list[str]) -> None:
        self.path, self.names = path, names

    def load(self) -> tuple[dict[str, Tensor], list[dict[str, Any]]] | None:
        """Weights by name and the lines of the trace; None: not trained yet."""
        try:
            with safe_open(self.path, framework="pt") as file:
                lines = json.loads((file.metadata() or {})["lines"])
                return {name: file.get_tensor(name) for name in self.names}, lines
        except (OSError, SafetensorError, KeyError, ValueError):
            return None  # not there, or not whole: it is trained anew, and kept

    def save(self, weights: dict[str, Tensor], lines: list[dict[str, Any]]) -> None:
        """Keep what was learned; of two processes at it, the last one wins with the same."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        kept = {name: weights[name].detach().cpu().clone().contiguous() for name in self.names}
        with atomic_path(self.path) as temporary:
            save_file(kept, temporary, metadata={"lines": json.dumps(lines)})


def kept_stage(
    folder: Path | None, model: TrainableModel[Any], phase: Phase, seed: int, precision: str
) -> KeptStage | None:
    """The place of a phase's outcome, where it is shared at all."""
    if folder is None or not isinstance(phase, SharedPhase):
        return None
    learned = {id(parameter) for parameter in phase.parameters()}
    names = sorted(name for name, weight in model.weights.items() if id(weight) in learned)
    circumstances = f"{seed} {precision} {model.device.type} {phase.epochs} {phase.learning_rate}"
    digest = hashlib.sha256(circumstances.encode() + phase.recipe()).hexdigest()[:24]
    return KeptStage(folder / f"{phase.name}-{digest}.safetensors", names)

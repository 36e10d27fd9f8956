"""Weights of the ranker that were learned on other graphs, and come with the package.

What a feature means does not hang on the graph: the weights that all relations share can be used
at once where nothing was trained, and are where a training starts. A file names the graphs that it
has learned from. Of the files in the package, that one is taken which has not seen the facts at
hand: a dataset of the catalogue is never forecast with weights that know it.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from metatkgr.data.facts import Facts
from metatkgr.errors import DataError
from metatkgr.files import atomic_path, read_bytes
from metatkgr.models.evidence.features import FEATURES

__all__ = ["FILES", "NONE", "SHARED", "SHIPPED", "Graph", "Pretrained", "pretrained_for"]

_FORMAT = "evidence-1"
SHIPPED, NONE = "pretrained", "none"
"""Values of the setting ``start``: the weights of the package, or no learned ones."""
FILES = Path(__file__).with_name("weights")
"""Where the package has them."""
SHARED = ("mean", "deviation", "shared", "inner", "bias", "outer")
"""Weights that do not hang on a graph."""
_MOST_BYTES = 1 << 24


class Graph(NamedTuple):
    """A graph that was learned from."""

    name: str
    facts: int
    """How many."""
    fingerprint: str

    @classmethod
    def of(cls, facts: Facts) -> Graph:
        """What is said of facts."""
        return cls(facts.name or "unnamed", len(facts), facts.fingerprint)


@dataclass(frozen=True, eq=False)
class Pretrained:
    """The weights of a file, and what they were learned from."""

    weights: dict[str, Tensor]
    """By the names of ``SHARED``, as in :class:`Ranker`."""
    graphs: list[Graph]
    settings: dict[str, Any]
    """Of the pretraining."""

    @classmethod
    def read(cls, path: Path) -> Pretrained:
        """From a file of ``metatkgr pretrain``.

        Raises:
            DataError: it is no such file, or of another version.
        """
        content = read_bytes(path, _MOST_BYTES)
        try:
            weights = load(content)
            size = int.from_bytes(content[:8], "little")
            metadata = json.loads(content[8 : 8 + size])["__metadata__"]
            about = json.loads(metadata["about"])
            graphs = [
                Graph(str(g["name"]), int(g["facts"]), str(g["fingerprint"]))
                for g in about["graphs"]
            ]
        except (SafetensorError, ValueError, KeyError, TypeError, RecursionError):
            raise DataError(f"{path} holds no weights of `metatkgr pretrain`") from None
        if metadata.get("format") != _FORMAT or about.get("features") != list(FEATURES):
            raise DataError(f"{path} is of another version of metatkgr: pretrain again")
        if not graphs or not _fit(weights):
            raise DataError(f"{path} holds no weights of `metatkgr pretrain`")
        return cls(weights, graphs, about["settings"])

    def save(self, path: Path) -> None:
        """Write the file."""
        about = {"graphs": [graph._asdict() for graph in self.graphs], "features": list(FEATURES)}
        metadata = {"format": _FORMAT, "about": json.dumps(about | {"settings": self.settings})}
        weights = {name: self.weights[name].detach().cpu().contiguous() for name in SHARED}
        with atomic_path(path) as temporary:
            temporary.write_bytes(save(weights, metadata))

    def knows(self, facts: Facts) -> bool:
        """Whether it has learned from these very facts."""
        # The fingerprint goes over all of them: it is asked for only where it can be the same.
        return any(
            graph.facts == len(facts) and graph.fingerprint == facts.fingerprint
            for graph in self.graphs
        )


def _fit(weights: dict[str, Tensor]) -> bool:
    """Whether these are weights of a ranker with these features."""
    if set(weights) != set(SHARED):
        return False
    count = len(FEATURES)
    members, _, hidden = weights["inner"].shape if weights["inner"].ndim == 3 else (0, 0, 0)
    shapes = {
        "mean": (count,),
        "deviation": (count,),
        "shared": (members, count),
        "inner": (members, count, hidden),
        "bias": (members, hidden),
        "outer": (members, hidden),
    }
    return all(
        tuple(weights[name].shape) == shape
        and weights[name].dtype is torch.float32
        and bool(weights[name].isfinite().all())
        for name, shape in shapes.items()
    ) and bool((weights["deviation"] > 0).all())


def pretrained_for(start: str, facts: Facts) -> Pretrained:
    """The weights that a model starts from.

    Args:
        start: 'pretrained': the file of the package that has learned from the most graphs, these
            facts not among them; or the path of a file.
        facts: that are to be forecast.
    """
    if start != SHIPPED:
        return Pretrained.read(Path(start).expanduser())
    for pretrained in _shipped():
        if not pretrained.knows(facts):
            return pretrained
    raise DataError("all weights of the package have learned from these facts: --set start=none")


@cache
def _shipped() -> list[Pretrained]:
    """The files of the package, that of the most graphs first."""
    files = [Pretrained.read(path) for path in sorted(FILES.glob("*.safetensors"))]
    return sorted(files, key=lambda file: -len(file.graphs))

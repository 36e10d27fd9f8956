r"""From scores to probabilities that mean what they say.

A probability here answers: given that a fact with this end, relation and time happens, is the other
end this candidate? Over all candidates it sums to at most 1, and a higher score never has a lower
one. It is fitted to the queries of meta-validation under ``streaming`` visibility, which is how a
live forecaster sees; models of two kinds need two ways:

``softmax``  scores that are real numbers: :math:`p_x = \exp(s_x / T) / \sum_y \exp(s_y / T)`, with
             the temperature T under which the true answers are likeliest; these shares are then
             taken as grades of evidence and corrected by a table.
``table``    scores that only order candidates, in grades of evidence (``models.base.Graded``): the
             share of correct ones among the candidates of that grade and rank. Ranks are taken in
             bands, equal scores share theirs; a running minimum down the ranks keeps the order,
             isotonic regression the order of the grades of one kind.

The expected calibration error is measured on entities that the fit has not seen (two halves, each
judged by a fit to the other): the mean gap between stated and observed frequency over ten equally
filled bins.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from metatkgr.errors import DataError
from metatkgr.files import read_json, write_json
from metatkgr.models.trainable import TrainableModel
from metatkgr.training.opening import OpenModel
from metatkgr.version import __version__

__all__ = ["BANDS", "SHARES", "Calibration", "Chances", "Head", "KeptCalibration", "Scored"]

BANDS = (1, 2, 3, 4, 6, 11, 21, 51, 101, 201, 501)
"""First rank of each band."""
SHARES = torch.tensor(
    [1e-4, 3e-4, 1e-3, 3e-3, 0.01, 0.03, 0.1, 0.2, 0.35, 0.5, 0.65, 0.8, 0.9, 0.96, 0.99],
    dtype=torch.float64,
)
"""Where grades begin for scores that are real numbers: shares of a softmax."""
_LAST_FACTS = 1024
"""Of a folder, so many are looked at to tell it from another of the same size."""
_HEAD = 1024
"""Ranks that are looked up one by one; those behind share what is left."""


@dataclass(frozen=True)
class Calibration:
    """How the scores of one model become probabilities."""

    method: str
    """'softmax' or 'table'."""
    temperature: float = 1.0
    """T."""
    table: tuple[tuple[float, ...], ...] = ()
    """A row for each grade of evidence, a column for each band of ranks."""
    tail: float = 0.0
    """Of each candidate behind the first 1,024."""
    split: str = ""
    """Whose queries it was fitted to; empty: nobody's, the numbers are a guess."""
    queries: int = 0
    """How many."""
    ece: float | None = None
    """Expected calibration error of the first forecast."""
    ece_top10: float | None = None
    """Of the first ten."""
    made_for: str = ""
    """What it was fitted to: see :class:`KeptCalibration`."""

    def apply(self, scored: Scored, grades: Tensor | None = None) -> Chances:
        """Probabilities of the first candidates, and of each other one.

        Args:
            scored: the first candidates of Q queries.
            grades: (Q, L) from ``Graded.grades``; for 'table' only.

        Returns:
            They sum to at most 1 over all candidates, and order them as the scores do.
        """
        value = scored.value
        if self.method == "softmax":
            value = self.shares(scored)
            if not self.table:
                left = (1 - value.sum(1)).clamp(min=0) / max(scored.others, 1)
                return Chances(scored.entity, scored.value, value, left)
            grades = SHARES.to(value.device).expand(len(value), -1)
        if grades is None:
            raise ValueError("a table of grades needs the grades of the questions")
        head = Head.of(value, grades, scored.others)
        chance = head.mean_of_ties(self._rows(grades.shape[1], value.device)[head.cell])
        chance = torch.cummin(chance, 1).values * head.inside
        behind = torch.where(head.inside, chance, math.inf).amin(1).clamp(max=self._tail)
        # Summed by rank, so that the numbers of the entities do not show in the last digits.
        others = scored.others + (~head.inside).sum(1)
        total = chance.sum(1) + torch.where(others > 0, behind * others, 0.0)
        total, behind = total.clamp(min=1).unsqueeze(1), behind.unsqueeze(1)
        chance = torch.where(head.inside, chance, behind) / total
        return Chances(scored.entity, scored.value, chance, (behind / total).squeeze(1))

    def shares(self, scored: Scored) -> Tensor:
        """(Q, M) softmax of scores at the temperature T over all candidates, float64."""
        total = scored.log_total(self.temperature).unsqueeze(1)
        return (scored.value.double() / self.temperature - total).exp()

    @property
    def _tail(self) -> float:
        return self.tail if self.queries else 1e-6

    def _rows(self, grades: int, device: torch.device) -> Tensor:
        """(cells,) the table, flat; without one, a guess that falls with rank and grade."""
        if self.table:
            if len(self.table) != grades + 1:
                raise DataError(
                    f"the calibration has {len(self.table)} grades and the model {grades + 1}: "
                    "delete calibration.json, and it is made anew"
                )
            return torch.tensor(self.table, dtype=torch.float64, device=device).flatten()
        grade = torch.arange(grades + 1, dtype=torch.float64, device=device) / max(grades, 1)
        rank = torch.tensor(BANDS, dtype=torch.float64, device=device)
        return (0.5 * grade.unsqueeze(1) / rank).flatten()

    def about(self) -> dict[str, Any]:
        """What to tell with the probabilities."""
        return {
            "method": self.method,
            "split": self.split or None,
            "queries": self.queries,
            "ece": self.ece,
            "ece_top10": self.ece_top10,
        }

    def _check(self) -> None:
        """Raise a ValueError unless all numbers are what their names say."""
        if self.method not in ("softmax", "table"):
            raise ValueError(f"the method {self.method!r}")
        if not 0 < float(self.temperature) < math.inf:
            raise ValueError(f"the temperature {self.temperature!r}")
        if not isinstance(self.split, str) or not isinstance(self.made_for, str):
            raise ValueError(f"the split {self.split!r} of {self.made_for!r}")
        if isinstance(self.queries, bool) or not isinstance(self.queries, int):
            raise ValueError(f"{self.queries!r} queries")
        errors = [error for error in (self.ece, self.ece_top10) if error is not None]
        shares = [self.tail, *errors, *(share for row in self.table for share in row)]
        if not all(0 <= float(share) <= 1 for share in shares):
            raise ValueError("a share that is none")
        if any(len(row) != len(BANDS) for row in self.table):
            raise ValueError("rows of another length")
        if self.method == "softmax" and self.table and len(self.table) != len(SHARES) + 1:
            raise ValueError("a table of another size")

    def save(self, path: Path) -> None:
        """Write it as JSON; where that is not possible, it will have to be fitted again."""
        content = {name: getattr(self, name) for name in self.__dataclass_fields__}
        try:
            write_json(path, {"format": 1, **content})
        except DataError:
            return

    @classmethod
    def load(cls, path: Path) -> Calibration:
        """Read what :meth:`save` wrote."""
        try:
            content = read_json(path)
            if content.pop("format") != 1:
                raise ValueError("another version's")
            content["table"] = tuple(tuple(map(float, row)) for row in content["table"])
            loaded = cls(**content)
            loaded._check()
            return loaded
        except (DataError, ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
            raise DataError(
                f"{path} cannot be read ({error}); delete it, and it is made anew"
            ) from None


@dataclass(frozen=True)
class KeptCalibration:
    """The file in which a calibration is kept, with the run or with the ingested folder."""

    path: Path
    made_for: str
    """Tells model, settings, shots and facts apart: one that was fitted to others is not used."""

    @classmethod
    def of(cls, opened: OpenModel) -> KeptCalibration | None:
        """Where that of an opened model is; None where its facts are in memory only."""
        if opened.verified:
            return None  # what a service has kept in a run's folder bears no signature
        model, folder = opened.model, opened.facts.folder
        digest = hashlib.sha256(f"{__version__} {model.name} {opened.shots} ".encode())
        digest.update(repr(model.settings).encode())
        if opened.folder is not None:
            # It names the digests of the weights and of the facts.
            digest.update((opened.folder / "MANIFEST").read_bytes())
            return cls(opened.folder / "calibration.json", digest.hexdigest())
        if folder is None:
            return None
        if isinstance(model, TrainableModel):
            for name, weight in sorted(model.weights.items()):
                digest.update(name.encode() + weight.detach().cpu().numpy().tobytes())
        digest.update(repr(folder.manifest).encode())
        for name in ("subject", "relation", "object", "time"):
            digest.update(np.ascontiguousarray(getattr(opened.facts, name)[-_LAST_FACTS:]).data)
        name = f"calibration-{model.name}-{opened.shots}.json"
        return cls(folder.folder / name, digest.hexdigest())

    def load(self) -> Calibration | None:
        """What is kept; None where there is nothing, or what was fitted to something else.

        Raises:
            DataError: there is something else.
        """
        kept = Calibration.load(self.path) if self.path.exists() else None
        return kept if kept is not None and kept.made_for == self.made_for else None

    def save(self, calibration: Calibration) -> None:
        """Keep it; where that is not possible, it will have to be fitted again."""
        replace(calibration, made_for=self.made_for).save(self.path)


@dataclass(frozen=True, eq=False)
class Scored:
    """The first candidates of Q queries, best first."""

    value: Tensor
    """(Q, M) scores."""
    entity: Tensor
    """(Q, M)."""
    others: int
    """How many candidates stand behind them."""
    every: Tensor | None = None
    """(Q, E) scores of all, where a model gives these and a softmax is to be taken of them."""

    @classmethod
    def of(cls, scores: Any, *, softmax: bool = False) -> Scored:
        """Of the scores of all candidates, or of those that a model lists."""
        if not isinstance(scores, Tensor):
            value, entity = scores.top(_HEAD)
            return cls(value, entity, scores.entities - value.shape[1])
        value, entity = torch.topk(scores, min(_HEAD, scores.shape[1]), 1)
        others = scores.shape[1] - value.shape[1]
        return cls(value, entity, others, scores if softmax and others else None)

    @classmethod
    def cat(cls, parts: Sequence[Scored]) -> Scored:
        """Several as one."""
        every = [part.every for part in parts if part.every is not None]
        value, entity = (
            torch.cat([getattr(p, name) for p in parts]) for name in ("value", "entity")
        )
        return cls(value, entity, parts[0].others, torch.cat(every) if every else None)

    def kept(self, rows: Tensor | slice) -> Scored:
        """Those of some queries."""
        every = None if self.every is None else self.every[rows]
        return Scored(self.value[rows], self.entity[rows], self.others, every)

    def cpu(self) -> Scored:
        """In main memory."""
        every = None if self.every is None else self.every.cpu()
        return Scored(self.value.cpu(), self.entity.cpu(), self.others, every)

    def log_total(self, temperature: float) -> Tensor:
        """(Q,) logarithm of the sum of exp(s / T) over all candidates.

        Where a model lists some, every other counts like the last of the first: who is not listed
        differs from others like him by next to nothing.
        """
        if self.every is not None:
            return torch.logsumexp(self.every.double() / temperature, 1)
        values = self.value.double() / temperature
        if self.others:
            values = torch.cat([values, values[:, -1:] + math.log(self.others)], 1)
        return torch.logsumexp(values, 1)


@dataclass(frozen=True, eq=False)
class Chances:
    """The probabilities of the first candidates of Q queries, best first, and of all others."""

    entity: Tensor
    """(Q, M)."""
    score: Tensor
    """(Q, M)."""
    chance: Tensor
    """(Q, M) float64."""
    behind: Tensor
    """(Q,) float64, of each other candidate."""

    @classmethod
    def cat(cls, parts: Sequence[Chances]) -> Chances:
        """Several as one."""
        columns = ((part.entity, part.score, part.chance, part.behind) for part in parts)
        return cls(*(torch.cat(column) for column in zip(*columns, strict=True)))

    def kept(self, rows: slice) -> Chances:
        """Those of some queries."""
        return Chances(self.entity[rows], self.score[rows], self.chance[rows], self.behind[rows])


@dataclass(frozen=True, eq=False)
class Head:
    """Where the first candidates of each query stand."""

    inside: Tensor
    """(Q, M) bool; False for the last tie where it goes on behind them."""
    cell: Tensor
    """(Q, M) where in the table: grade * bands + band."""
    group: Tensor
    """(Q, M) number of the tie, over all queries."""

    @classmethod
    def of(cls, value: Tensor, grades: Tensor, others: int) -> Head:
        """Of (Q, M) descending scores and (Q, L) grades; so many candidates stand behind them."""
        inside = torch.ones_like(value, dtype=torch.bool)
        if others:
            inside = value > value[:, -1:]
        grade = torch.searchsorted(grades.contiguous(), value.contiguous(), right=True)
        first = torch.tensor(BANDS, device=value.device)
        rank = torch.arange(1, value.shape[1] + 1, device=value.device)
        band = torch.searchsorted(first, rank, right=True) - 1
        new = torch.ones_like(value, dtype=torch.int64)
        new[:, 1:] = (value[:, 1:] != value[:, :-1]).long()
        group = (torch.cumsum(new.flatten(), 0) - 1).view_as(new)
        return cls(inside, grade * len(BANDS) + band, group)

    def mean_of_ties(self, values: Tensor) -> Tensor:
        """(Q, M) ``values``, the same for equal scores."""
        flat = self.group.flatten()
        count = int(flat[-1]) + 1 if len(flat) else 0
        total = values.new_zeros(count).index_add_(0, flat, values.flatten())
        size = torch.bincount(flat, minlength=count)
        return (total / size)[flat].view_as(values)

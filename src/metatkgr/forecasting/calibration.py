r"""From scores to probabilities that mean what they say.

A probability here answers: given that a fact with this end, relation and time happens, is the other
end this candidate? Over all candidates and someone new they sum to 1, for every query:

.. math:: P(x) = P(k_x) \, \frac{n_x \exp(u_{k_x} \cdot \phi_x)}
                               {\sum_{y: k_y = k_x} n_y \exp(u_{k_x} \cdot \phi_y)}, \qquad
          P(k) \propto \exp(v_k \cdot \psi_k)

with the kind k of a candidate, what tells it from others of its kind (φ), what tells how likely the
kind is (ψ; all of ``forecasting.kinds``), and n = 1 but for those that stand behind the first
1,024, who share what is theirs. The weights u and v are those under which the answers to the latest
visible queries are likeliest, late ones counting most (``forecasting.calibrating``). They ask what
the relation's own past is like, so they hold for relations that were never asked about; the model
has a say by rank and distance. Nobody is left without a chance.

The further ahead of all that is known a query lies, the more its answers are those that are usual
in the slot: P is mixed with these, by how likely it is that the ways of now still hold.

The numbers say how likely the first, the second, the third is; who that is, the model says best, as
a rule. So the first candidates get their numbers in the order of their *scores*, but for those that
are impossible by *types*, which stay where their own numbers put them. Each graph tells by its
latest queries whether answers stand higher so (``ORDERS``): where a model repeats what happens only
once, they stand higher by their *probabilities*.
"""

from __future__ import annotations

import hashlib
import math
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from metatkgr import __version__
from metatkgr.errors import DataError
from metatkgr.files import read_json, write_json
from metatkgr.forecasting.hazard import Hazard
from metatkgr.forecasting.kinds import (
    FILLER,
    FITTING,
    KINDS,
    NEW,
    OTHER,
    REPEAT,
    TRAITS,
    WHOLE,
    PerQuery,
    Standing,
)
from metatkgr.models.base import TrainableModel
from metatkgr.models.common.listed import Scores, best_of
from metatkgr.training.opening import OpenModel

__all__ = ["GUESS", "ORDERS", "Calibration", "Chances", "KeptCalibration", "Scored"]

_LAST_FACTS = 1024
"""Of a folder, so many are looked at to tell it from another of the same size."""
_HEAD = 1024
"""Candidates that are looked at one by one; those behind share what is left."""
_LEAST, _LEAST_IN_ALL = 1e-6, 0.03
"""The chance that everybody has, and what all of these may amount to."""
_TYPED = math.log(0.05)
"""Where fewer of a slot's latest facts had someone who never filled it, it has a type."""
ORDERS = ("scores", "types", "probabilities")
"""By what candidates are listed; 'types': by scores, but for those that are impossible."""
_FORMAT = 8
_HEAVIEST = 1e3
"""Weights beyond this are none that was fitted."""

Weights = tuple[tuple[float, ...], ...]


def _guess() -> tuple[Weights, Weights]:
    """Weights where nothing can be fitted: by rank, and as the slot's latest facts were.

    A repeat is likelier than these facts tell, someone who never filled the slot less likely; the
    further a query lies ahead, the less is known.
    """
    by_rank = tuple({"rank": 1.0, "rank, ahead": 0.1}.get(name, 0.0) for name in TRAITS)
    more = {"repeat": 2.0, "other": -2.0}
    by_share = tuple(
        tuple(
            {
                "always": more.get(kind, 0.0),
                "share": 1.0,
                "ahead": -0.2 if kind == "repeat" else 0.0,
            }.get(name, 0.0)
            for name in WHOLE
        )
        for kind in KINDS
    )
    return (by_rank,) * len(KINDS), by_share


GUESS = _guess()
"""(5, F) u and (5, C) v that a fit begins with, and falls back to where it knows little."""


@dataclass(frozen=True)
class Calibration:
    """How the scores of one model become probabilities."""

    traits: Weights = GUESS[0]
    """(5, F) u of the formula above."""
    whole: Weights = GUESS[1]
    """(5, C) v."""
    scale: float = 1.0
    """What counts as a distance of 1 between scores."""
    order: str = "types"
    """One of ``ORDERS``: by what the candidates are listed."""
    split: str = ""
    """Whose queries it was fitted to; empty: nobody's, the numbers are a guess."""
    queries: int = 0
    """How many."""
    ece: float | None = None
    """Expected calibration error of the first forecast, on the last queries, by a fit to those
    before."""
    ece_ranks: float | None = None
    """The same over all ranks: the mean over bands of ranks."""
    log_loss: float | None = None
    """Mean of -log P(answer) there."""
    reliability: tuple[tuple[float, float, float], ...] = ()
    """Stated and observed share of the first forecast there, and of how many queries, by bins."""
    ranks: tuple[tuple[float, float, float], ...] = ()
    """First rank of each band, what its candidates were stated to have together, and how often the
    answer was there; of the rank 0: someone new."""
    hazard: Hazard = field(default_factory=Hazard)
    """Whether and when facts come."""
    made_for: str = ""
    """What it was fitted to: see :class:`KeptCalibration`."""

    def apply(self, scored: Scored, standing: Standing) -> Chances:
        """Probabilities of the first candidates, of each other one, and of someone new.

        Args:
            scored: the first candidates of Q queries.
            standing: what they are to the queries.
        """
        many = scored.entity.shape[1]
        chance = self._chances(standing)
        if self.order != "probabilities":
            typed = self.order == "types"
            head = _in_order(chance[:, :many], scored.value, standing, typed=typed)
            chance = torch.cat([head, chance[:, many:]], 1)
        holds = standing.holds.unsqueeze(1)
        if bool((holds < 1).any()):
            chance = holds * chance + (1 - holds) * _usual(standing)
        head, rest, new = chance[:, :many], chance[:, many:-1], chance[:, -1]
        others = standing.count[:, many:-1].sum(1)
        each = rest.sum(1) / others.clamp(min=1)
        each = torch.where(others > 0, each, 0.0)
        known = standing.count[:, :many] > 0
        there = known.sum(1) + others + 1
        least = torch.clamp(_LEAST_IN_ALL / there, max=_LEAST)
        left = 1 - least * there
        head = torch.where(known, head * left.unsqueeze(1) + least.unsqueeze(1), 0.0)
        return Chances(
            scored.entity, scored.value, head, each * left + least, others, new * left + least
        )

    def _chances(self, standing: Standing) -> Tensor:
        """(Q, M + 5) of the columns, as long as the ways of now hold."""
        traits, whole = self._weights
        kind = standing.kind
        logit = standing.count.log()
        logit = logit + (standing.traits.double() * traits[kind]).sum(2)
        # A softmax over the columns of each kind.
        highest = logit.new_full((len(logit), len(KINDS)), -math.inf)
        highest.scatter_reduce_(1, kind, logit, "amax")
        there = highest > -math.inf
        highest.masked_fill_(~there, 0.0)
        share = (logit - highest.gather(1, kind)).exp()
        total = torch.zeros_like(highest).scatter_add_(1, kind, share)
        kinds = (standing.whole.double() * whole).sum(2).masked_fill(~there, -math.inf)
        of_kind = torch.softmax(kinds, 1) / total.masked_fill_(~there, 1.0)
        return torch.where(standing.count > 0, share * of_kind.gather(1, kind), 0.0)

    @cached_property
    def _weights(self) -> tuple[Tensor, Tensor]:
        """(5, F) u and (5, C) v."""
        traits, whole = (torch.tensor(w, dtype=torch.float64) for w in (self.traits, self.whole))
        return traits, whole

    def about(self) -> dict[str, Any]:
        """What to tell with the probabilities."""
        return {
            "split": self.split or None,
            "queries": self.queries,
            "ece": self.ece,
            "ece_ranks": self.ece_ranks,
            "log_loss": self.log_loss,
            "reliability": [list(row) for row in self.reliability],
            "ranks": [list(row) for row in self.ranks],
        }

    def _check(self) -> None:
        """Raise a ValueError unless all numbers are what their names say."""
        for weights, names in ((self.traits, TRAITS), (self.whole, WHOLE)):
            if [len(row) for row in weights] != [len(names)] * len(KINDS):
                raise ValueError("weights of another size")
            if not all(abs(float(weight)) <= _HEAVIEST for row in weights for weight in row):
                raise ValueError("a weight that is none")
        numbers = (*self.hazard.weights, *self.hazard.correction, self.hazard.period)
        if [len(row) for row in (self.hazard.weights, self.hazard.correction)] != [
            len(row) for row in (Hazard.weights, Hazard.correction)
        ] or not all(abs(number) <= _HEAVIEST for number in numbers):
            raise ValueError("a hazard that is none")
        if not 0 < float(self.scale) < math.inf:
            raise ValueError(f"the scale {self.scale!r}")
        if self.order not in ORDERS:
            raise ValueError(f"the order {self.order!r}")
        if not isinstance(self.split, str) or not isinstance(self.made_for, str):
            raise ValueError(f"the split {self.split!r} of {self.made_for!r}")
        if isinstance(self.queries, bool) or not isinstance(self.queries, int):
            raise ValueError(f"{self.queries!r} queries")
        errors = [error for error in (self.ece, self.ece_ranks) if error is not None]
        if not all(0 <= float(error) <= 1 for error in errors):
            raise ValueError("an error that is none")
        if self.log_loss is not None and not 0 <= float(self.log_loss) < math.inf:
            raise ValueError(f"the loss {self.log_loss!r}")
        rows = (*self.reliability, *self.ranks)
        if any(len(row) != 3 or not all(map(math.isfinite, row)) for row in rows):
            raise ValueError("no reliability")

    def save(self, path: Path) -> None:
        """Write it as JSON; where that is not possible, it will have to be fitted again."""
        content = {name: getattr(self, name) for name in self.__dataclass_fields__}
        content["hazard"] = vars(self.hazard)
        try:
            write_json(path, {"format": _FORMAT, **content})
        except DataError:
            return

    @classmethod
    def load(cls, path: Path) -> Calibration:
        """Read what :meth:`save` wrote."""
        try:
            content = read_json(path)
            if content.pop("format") != _FORMAT:
                raise ValueError("another version's")
            for name in ("traits", "whole", "reliability", "ranks"):
                content[name] = tuple(tuple(map(float, row)) for row in content[name])
            hazard = content["hazard"]
            for name in ("weights", "correction"):
                hazard[name] = tuple(map(float, hazard[name]))
            hazard["period"] = int(hazard["period"])
            loaded = cls(**{**content, "hazard": Hazard(**hazard)})
            loaded._check()
            return loaded
        except (DataError, ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
            raise DataError(
                f"{path} cannot be read ({error}); delete it, and it is made anew"
            ) from None


def _usual(standing: Standing) -> Tensor:
    """(Q, M + 5) of anybody, not of the query entity: as often as each has filled the slot.

    Someone who never did, and someone new, have their shares in the slot's latest facts.
    """
    kind = standing.kind
    often = standing.count * standing.traits[:, :, TRAITS.index("count")].double().exp()
    shares = standing.whole[:, :, WHOLE.index("share")].double().exp()
    usual, whole = torch.zeros_like(often), torch.zeros_like(often[:, :1])
    groups = (
        ((kind == REPEAT) | (kind == FILLER), often, shares[:, REPEAT] + shares[:, FILLER]),
        ((kind == FITTING) | (kind == OTHER), standing.count, shares[:, OTHER]),
        (kind == NEW, standing.count, shares[:, NEW]),
    )
    for inside, weight, share in groups:
        part = torch.where(inside, weight, 0.0)
        total = part.sum(1, keepdim=True)
        mass = torch.where(total > 0, share.unsqueeze(1), 0.0)
        usual += part / total.clamp(min=_LEAST) * mass
        whole += mass
    return usual / whole


def _in_order(chance: Tensor, value: Tensor, standing: Standing, *, typed: bool) -> Tensor:
    """(Q, M) the same numbers, larger ones for those that score higher, equal ones for equal ones.

    Left where they are: newcomers, those that may not be answers, and where ``typed`` says so those
    that do not fit into a slot that has a type.

    Args:
        chance: (Q, M) numbers.
        value: (Q, M) scores.
        standing: what the candidates are.
        typed: whether types are obeyed.
    """
    many = chance.shape[1]
    kind = standing.kind[:, :many]
    fixed = (kind == NEW) | (standing.count[:, :many] == 0)
    if typed:
        has_type = standing.whole[:, OTHER, WHOLE.index("share")] < _TYPED
        fixed |= (kind == OTHER) & has_type.unsqueeze(1)
    # Among equal scores those that are left come last, so that the others are neighbours.
    order = torch.argsort(fixed, dim=1, stable=True)
    order = order.gather(
        1, torch.argsort(value.gather(1, order), dim=1, descending=True, stable=True)
    )
    own, score, fixed = (column.gather(1, order) for column in (chance, value, fixed))
    largest = torch.sort(own.masked_fill(fixed, -1.0), dim=1, descending=True).values
    given = largest.gather(1, (torch.cumsum(~fixed, 1) - 1).clamp(min=0))
    # Equal scores share what falls to them: the numbers of the entities must not show.
    other = (score.diff(dim=1) != 0) | fixed[:, 1:] | fixed[:, :-1]
    first = torch.ones(len(own), 1, dtype=torch.bool)
    group = torch.cumsum(torch.cat([first, other], 1).flatten(), 0) - 1
    total = torch.zeros(int(group[-1]) + 1, dtype=given.dtype).index_add_(0, group, given.flatten())
    given = (total / torch.bincount(group))[group].view_as(given)
    # A mean of equal numbers may be larger than they are, by rounding.
    given = torch.cummin(given.masked_fill(fixed, math.inf), 1).values
    return torch.zeros_like(chance).scatter_(1, order, torch.where(fixed, own, given))


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
        """What is kept; None where there is nothing, or what was fitted to something else, or by an
        earlier version.

        Raises:
            DataError: there is something else.
        """
        if not self.path.exists():
            return None
        with suppress(DataError):  # it is told below what is the matter
            content = read_json(self.path)
            if isinstance(content, dict) and content.get("format") in range(_FORMAT):
                return None
        kept = Calibration.load(self.path)
        return kept if kept.made_for == self.made_for else None

    def save(self, calibration: Calibration) -> None:
        """Keep it; where that is not possible, it will have to be fitted again."""
        replace(calibration, made_for=self.made_for).save(self.path)


@dataclass(frozen=True, eq=False)
class Scored(PerQuery):
    """The first candidates of Q queries, best first, in main memory."""

    value: Tensor
    """(Q, M) scores."""
    entity: Tensor
    """(Q, M)."""

    @classmethod
    def of(cls, scores: Scores) -> Scored:
        """Of the scores of all candidates, or of those that a model lists."""
        value, entity = best_of(scores, _HEAD)
        return cls(value.cpu(), entity.cpu())


@dataclass(frozen=True, eq=False)
class Chances(PerQuery):
    """The probabilities of the candidates of Q queries: the first, all others, someone new."""

    entity: Tensor
    """(Q, M) the first ones, by their scores."""
    score: Tensor
    """(Q, M)."""
    chance: Tensor
    """(Q, M) float64."""
    behind: Tensor
    """(Q,) float64, of each other candidate."""
    others: Tensor
    """(Q,) float64, how many others there are."""
    new: Tensor
    """(Q,) float64, of someone whom nobody has heard of."""

"""The features of a candidate: each with its name, its kind and its formula, in one table.

A feature is a number about a query (e, r, ?, t) and a candidate x. Ages and counts are in
``log(1 + ·)``, shares of walks in ``log(· + 10⁻⁶)``.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

__all__ = ["FEATURES", "KINDS", "Reading", "columns_of", "features_of"]

_TINY = 1e-6
_NOT_THERE = math.log(1e-7)
"""Below every share of walks."""


@dataclass(frozen=True, eq=False)
class Reading:
    """What is visible of e, r and candidates x of queries, (N,) each."""

    now: Tensor
    """t."""
    link: Tensor
    """Last step at which e was linked to x by r; -1: never."""
    link_count: Tensor
    """How often."""
    contact: Tensor
    """Last step at which they were linked at all; -1: never."""
    co_occurrence: Tensor
    """Log of the share of links like those of e and x that go with one by r."""
    slot_count: Tensor
    """How often x filled this slot of r."""
    slot_decayed: tuple[Tensor, ...]
    """The same, a fact τ steps old counting 1/e, for each τ of ``DECAYS``."""
    slot_last: Tensor
    """When x last filled it; -1: never."""
    first: Tensor
    """When x was first seen."""
    last: Tensor
    """When x was last seen."""
    degree: Tensor
    """How many others x was linked to."""
    entity_first: Tensor
    """When e was first seen."""
    walks: Tensor
    """Number of walks e -r-> y <-r- z -r-> x."""
    near: Tensor
    """Share of PageRank within 3 steps."""
    far: Tensor
    """Share of PageRank within 12 steps."""
    far_slot: Tensor
    """The same, with part of the unknown share."""
    peers: Tensor
    """Share of walks e -q-> y <-q- z -r-> x: what those who share a fact with e answered."""
    peers_timed: Tensor
    """The same, where links lie close in time."""
    partners: Tensor
    """Share of walks e -r-> y -q-> w <-q- x: x shares a partner with an earlier answer of e."""
    partners_timed: Tensor
    """The same, where links lie close in time."""
    similar: Tensor
    """Log-softmax of the translation score."""
    facts: Tensor
    """How many visible facts e has."""
    last_link: Tensor
    """When e was last linked to anybody by r; -1: never."""

    @property
    def seen_in_slot(self) -> Tensor:
        """Whether x ever filled this slot of r."""
        return self.slot_count > 0

    def age(self, step: Tensor) -> Tensor:
        """How long ago a step was, logarithmic."""
        return (self.now - step).clamp(min=0).float().log1p()


class _Feature(NamedTuple):
    name: str
    kind: str
    """What it goes with when a kind of evidence is left out; '': it always stays."""
    formula: Callable[[Reading], Tensor]


def _share(value: Tensor) -> Tensor:
    return (value + _TINY).log()


_TABLE = (
    _Feature("link", "", lambda x: x.link >= 0),
    _Feature("link_age", "", lambda x: (x.link >= 0) * x.age(x.link)),
    _Feature("link_count", "", lambda x: x.link_count.log1p()),
    _Feature("contact", "contact", lambda x: x.contact >= 0),
    _Feature("contact_age", "contact", lambda x: (x.contact >= 0) * x.age(x.contact)),
    _Feature("co_occurrence", "contact", lambda x: x.co_occurrence),
    _Feature("slot_count", "frequency", lambda x: x.slot_count.log1p()),
    _Feature("slot_recent", "frequency", lambda x: x.slot_decayed[0].log1p()),
    _Feature("slot_season", "frequency", lambda x: x.slot_decayed[1].log1p()),
    _Feature("slot_era", "frequency", lambda x: x.slot_decayed[2].log1p()),
    _Feature("slot_age", "frequency", lambda x: x.seen_in_slot * x.age(x.slot_last)),
    _Feature("slot", "", lambda x: x.seen_in_slot),
    _Feature("age", "age", lambda x: x.age(x.first)),
    _Feature("idle", "age", lambda x: x.age(x.last)),
    _Feature("degree", "", lambda x: x.degree.log1p()),
    # How far apart e and x appeared.
    _Feature(
        "cohort", "age", lambda x: (x.first - torch.minimum(x.entity_first, x.now)).abs().log1p()
    ),
    _Feature("walks", "walks", lambda x: x.walks.log1p()),
    _Feature("near", "walks", lambda x: _share(x.near)),
    _Feature("far", "walks", lambda x: _share(x.far)),
    # The same where x filled this slot or was linked to e; else below all.
    _Feature(
        "far_slot",
        "walks",
        lambda x: torch.where(x.seen_in_slot | (x.contact >= 0), _share(x.far_slot), _NOT_THERE),
    ),
    _Feature("peers", "peers", lambda x: _share(x.peers)),
    _Feature("peers_timed", "peers", lambda x: _share(x.peers_timed)),
    _Feature("partners", "peers", lambda x: _share(x.partners)),
    _Feature("partners_timed", "peers", lambda x: _share(x.partners_timed)),
    _Feature("similar", "", lambda x: x.similar),
    # Of e alone: what the others mean depends on them.
    _Feature("facts", "", lambda x: x.facts.log1p()),
    _Feature("has_link", "", lambda x: x.last_link >= 0),
    _Feature("last_link_age", "", lambda x: (x.last_link >= 0) * x.age(x.last_link)),
)
"""A change of order or number makes trained weights worthless."""

FEATURES = tuple(feature.name for feature in _TABLE)
"""The names, in the order of the columns."""
KINDS = tuple(dict.fromkeys(feature.kind for feature in _TABLE if feature.kind))
"""Kinds of evidence that can be left out."""


def columns_of(kind: str) -> list[int]:
    """The columns of one kind of evidence."""
    return [number for number, feature in enumerate(_TABLE) if feature.kind == kind]


def features_of(reading: Reading, left_out: set[str]) -> Tensor:
    """(N, F) features of the candidates; 0 for kinds that are left out."""
    columns = [
        torch.zeros_like(reading.far)
        if feature.kind in left_out
        else feature.formula(reading).float()
        for feature in _TABLE
    ]
    return torch.stack(columns, -1)

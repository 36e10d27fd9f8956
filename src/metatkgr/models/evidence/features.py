"""The features of a candidate: each with its name, its kind and its formula, in one table.

A feature is a number about a query (e, r, ?, t) and a candidate x. Ages and counts are in
``log(1 + ·)``, shares of walks in ``log(· + 10⁻⁶)``.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
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

    @cached_property
    def seen_in_slot(self) -> Tensor:
        """Whether x ever filled this slot of r."""
        return self.slot_count > 0

    def since(self, step: Tensor, seen: Tensor) -> Tensor:
        """Steps of what was seen; now, for all else: no time has passed."""
        return torch.where(seen, step, self.now)


class _Feature(NamedTuple):
    name: str
    kind: str
    """What it goes with when a kind of evidence is left out; '': it always stays."""
    scale: str
    """What is made of the value: see ``_SCALES``."""
    value: Callable[[Reading], Tensor]


_TABLE = (
    _Feature("link", "", "flag", lambda x: x.link >= 0),
    _Feature("link_age", "", "age", lambda x: x.since(x.link, x.link >= 0)),
    _Feature("link_count", "", "count", lambda x: x.link_count),
    _Feature("contact", "contact", "flag", lambda x: x.contact >= 0),
    _Feature("contact_age", "contact", "age", lambda x: x.since(x.contact, x.contact >= 0)),
    _Feature("co_occurrence", "contact", "plain", lambda x: x.co_occurrence),
    _Feature("slot_count", "frequency", "count", lambda x: x.slot_count),
    _Feature("slot_recent", "frequency", "sum", lambda x: x.slot_decayed[0]),
    _Feature("slot_season", "frequency", "sum", lambda x: x.slot_decayed[1]),
    _Feature("slot_era", "frequency", "sum", lambda x: x.slot_decayed[2]),
    _Feature("slot_age", "frequency", "age", lambda x: x.since(x.slot_last, x.seen_in_slot)),
    _Feature("slot", "", "flag", lambda x: x.seen_in_slot),
    _Feature("age", "age", "age", lambda x: x.first),
    _Feature("idle", "age", "age", lambda x: x.last),
    _Feature("degree", "", "count", lambda x: x.degree),
    # How far apart e and x appeared.
    _Feature(
        "cohort", "age", "count", lambda x: (x.first - torch.minimum(x.entity_first, x.now)).abs()
    ),
    _Feature("walks", "walks", "count", lambda x: x.walks),
    _Feature("near", "walks", "share", lambda x: x.near),
    _Feature("far", "walks", "share", lambda x: x.far),
    # The same where x filled this slot or was linked to e; else below all.
    _Feature(
        "far_slot",
        "walks",
        "plain",
        lambda x: torch.where(
            x.seen_in_slot | (x.contact >= 0), (x.far_slot + _TINY).log(), _NOT_THERE
        ),
    ),
    _Feature("peers", "peers", "share", lambda x: x.peers),
    _Feature("peers_timed", "peers", "share", lambda x: x.peers_timed),
    _Feature("partners", "peers", "share", lambda x: x.partners),
    _Feature("partners_timed", "peers", "share", lambda x: x.partners_timed),
    _Feature("similar", "", "plain", lambda x: x.similar),
    # Of e alone: what the others mean depends on them.
    _Feature("facts", "", "count", lambda x: x.facts),
    _Feature("has_link", "", "flag", lambda x: x.last_link >= 0),
    _Feature("last_link_age", "", "age", lambda x: x.since(x.last_link, x.last_link >= 0)),
)
"""A change of order or number makes trained weights worthless."""

FEATURES = tuple(feature.name for feature in _TABLE)
"""The names, in the order of the columns."""
KINDS = tuple(dict.fromkeys(feature.kind for feature in _TABLE if feature.kind))
"""Kinds of evidence that can be left out."""


def columns_of(kind: str) -> list[int]:
    """The columns of one kind of evidence."""
    return [number for number, feature in enumerate(_TABLE) if feature.kind == kind]


_SCALES = ("flag", "age", "count", "sum", "share", "plain")
"""How values become features: as 0 or 1; the steps since then, or whole numbers, or sums, in
log(1 + ·); shares in log(· + 10⁻⁶); and such as are features already."""
_BY_SCALE = {scale: [feature for feature in _TABLE if feature.scale == scale] for scale in _SCALES}
_NAMES = [feature.name for features in _BY_SCALE.values() for feature in features]
_PLACES = torch.tensor([_NAMES.index(name) for name in FEATURES])
"""(F,) where each feature is among those by their scales."""


def features_of(reading: Reading, left_out: set[str]) -> Tensor:
    """(N, F) features of the candidates; 0 for kinds that are left out."""

    # Those of one scale together: an operation takes longer to call than to run.
    def values(scale: str) -> Tensor:
        return torch.stack([feature.value(reading) for feature in _BY_SCALE[scale]])

    rows = [
        values("flag").float(),
        (reading.now - values("age")).clamp_(min=0).float().log1p_(),
        torch.cat([values("count").float(), values("sum")]).log1p_(),
        values("share").add_(_TINY).log_(),
        values("plain"),
    ]
    features = torch.cat(rows).T.index_select(1, _PLACES.to(reading.now.device))
    for kind in left_out:
        features[:, columns_of(kind)] = 0.0
    return features

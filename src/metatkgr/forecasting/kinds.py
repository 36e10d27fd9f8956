"""What the candidates of a query are to it, whatever model has scored them.

Every candidate x of a query (e, r, ?, t) is of one kind, by visible facts only:

``repeat``   e and x were linked by r in this direction;
``filler``   x filled this slot of r, with others;
``fitting``  x did not, but has a role in common with those that fill the slot;
``other``    none of this: where slots have types, an impossible answer;
``new``      nobody has heard of x before t.

How often each kind is right depends on the relation: :class:`Standing` holds what a slot's past
tells of it, and what tells the candidates of one kind apart. The first candidates have a column
each; behind them all others of a kind have one together, and so have all newcomers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import Self

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from metatkgr.data.orders import DECAYS, found
from metatkgr.data.tasks import Queries
from metatkgr.graph.history import History
from metatkgr.graph.index import TemporalIndex
from metatkgr.graph.pairs import PairSteps
from metatkgr.graph.ragged import distinct

__all__ = [
    "KINDS",
    "NEW",
    "OTHER",
    "TRAITS",
    "WHOLE",
    "PerQuery",
    "Standing",
    "roles_of",
    "share_with_role",
]

KINDS = ("repeat", "filler", "fitting", "other", "new")
REPEAT, FILLER, FITTING, OTHER, NEW = range(len(KINDS))
TRAITS = (
    "rank",
    "distance",
    "near",
    "count",
    "lately",
    "slot age",
    "link age",
    "contact age",
    "overlap",
    "rank, ahead",
    "behind",
)
"""What tells the candidates of one kind apart."""
WHOLE = (
    "always",
    "partners",
    "partner age",
    "slot facts",
    "slot fillers",
    "slot singles",
    "ahead",
    "share",
    "first rank",
    "first distance",
)
"""What tells how likely a kind is: the past of the query entity and of the slot, the share of the
kind in the slot's latest facts, and where the scores place its first candidate. ``ahead``: how far
the query's time lies ahead of all that is known."""
_LATEST = 64
"""Facts of a slot that tell who fills it, and how."""
_ROLES = 8
"""Latest facts of an entity that tell where it stands."""
_NEAR = 64
"""First candidates whose roles are looked at."""
_FARTHEST = 0.25
"""Of the time that a graph has lasted: what ``ahead`` is at most."""
_FITS = 0.1
"""Share of a slot's fillers with whom a fitting candidate has a role in common, at least."""
_LEAST = 0.5
"""Added to counts before their logarithm is taken."""
_FAR = 8.0
"""Beyond this, distances of scores are told by their logarithms alone."""


@dataclass(frozen=True, eq=False)
class PerQuery:
    """Columns with a row for each of Q queries; the fields are tensors."""

    @classmethod
    def cat(cls, parts: Sequence[Self]) -> Self:
        """Several as one."""
        columns = zip(*(part._columns() for part in parts), strict=True)
        return cls(*(torch.cat(column) for column in columns))

    def kept(self, rows: slice | Tensor) -> Self:
        """Those of some queries."""
        return type(self)(*(column[rows] for column in self._columns()))

    def _columns(self) -> list[Tensor]:
        return [getattr(self, column.name) for column in fields(self)]


@dataclass(frozen=True, eq=False)
class Standing(PerQuery):
    """The candidates of Q queries: M first ones, and 5 columns for all others by their kinds."""

    kind: Tensor
    """(Q, M + 5) int64."""
    count: Tensor
    """(Q, M + 5) float64: for how many candidates the column stands; 0 for nobody."""
    traits: Tensor
    """(Q, M + 5, F) float32, see ``TRAITS``."""
    whole: Tensor
    """(Q, 5, C) float32, see ``WHOLE``."""
    holds: Tensor
    """(Q,) float64: how likely it is that the ways of now still hold at the time that is asked
    about. What has lasted for T steps lasts another h with T / (T + h), when nothing else is known
    (the rule of Gott, and of Laplace)."""

    @classmethod
    def of(
        cls,
        history: History,
        queries: Queries,
        value: Tensor,
        entity: Tensor,
        scale: float,
        lead: Tensor | None = None,
    ) -> Standing:
        """Look them up.

        Args:
            history: what is visible.
            queries: Q of them.
            value: (Q, M) scores of the first candidates, best first.
            entity: (Q, M) who they are.
            scale: of the scores: what counts as a distance of 1.
            lead: (Q,) by how many steps what is asked about lies ahead of the queries, which are
                of a time when all before it is known; None: 0.
        """
        index, size = history.index, len(queries)
        _, relation, time = history.columns(queries)
        lasted = time.clamp(min=1).double()
        far = torch.zeros_like(lasted) if lead is None else lead.double()
        # No query that weights are fitted to lies further ahead than its entity is old.
        ahead = torch.minimum(far, lasted * _FARTHEST).log1p()
        now = time.unsqueeze(1).expand_as(entity)
        slot = relation.unsqueeze(1).expand_as(entity)
        usage = index.slots.usage(entity.flatten(), slot.flatten(), now.flatten(), DECAYS[-1:])
        used, last, lately = (
            column.view_as(entity) for column in (usage.count, usage.last, usage.decayed[0])
        )
        links = history.last_links(queries)
        link = _steps(links, entity, history.entities)
        contact = _steps(history.last_contacts(queries), entity, history.entities)
        seen = (index.first_step_of(entity) < now) | (contact >= 0)
        room = int(time.max()) + 1 if size else 1
        slots, member = distinct(relation * room + time)
        latest = _LatestFacts(index, slots // room, slots % room)
        # Of those that score alike all are looked at or none: their numbers must not show.
        near = value > value[:, min(_NEAR, value.shape[1]) - 1 :][:, :1]
        overlap = latest.overlap(member, entity, time, seen & (used == 0) & near)
        kind = torch.full_like(entity, OTHER)
        kind[overlap >= _FITS] = FITTING
        kind[used > 0] = FILLER
        kind[~seen] = NEW
        kind[link >= 0] = REPEAT
        inside = _per_kind(kind, torch.ones_like(kind))
        behind, whole = _counts(index, relation, time, links, inside)
        order = _Order.of(value, kind, scale)
        columns = [
            -order.rank,
            -order.distance.log1p(),
            -order.distance.clamp(max=_FAR),
            (used + _LEAST).log(),
            (lately + _LEAST / 10).log(),
            -_log_age(now, last),
            -_log_age(now, link),
            -_log_age(now, contact),
            overlap.clamp(min=_FITS / 10).log(),
            order.rank * ahead.unsqueeze(1),
            torch.zeros_like(order.rank),
        ]
        traits = torch.stack([column.float() for column in columns], 2)
        known = _per_kind(kind, used)[:, [REPEAT, FILLER]].sum(1)
        left = (whole[:, 0] - known).clamp(min=0)
        rest = _traits_behind(traits, kind, inside, behind, left, ahead)
        behind[:, NEW] = 1.0
        single = (kind != NEW).double()
        numbers = torch.arange(len(KINDS)).expand(size, -1)
        about = torch.stack(
            [
                *(
                    column.float().unsqueeze(1).expand(-1, len(KINDS))
                    for column in (*_about(links, time, whole), ahead)
                ),
                latest.shares[member],
                order.first_rank.float(),
                order.first_distance.float(),
            ],
            2,
        )
        return cls(
            torch.cat([kind, numbers], 1),
            torch.cat([single, behind], 1),
            torch.cat([traits, rest], 1),
            about,
            lasted / (lasted + far),
        )

    def only(self, allowed: Tensor) -> Standing:
        """Without first candidates, (Q, M), that may not be answers."""
        first = self.count[:, : allowed.shape[1]] * allowed
        return replace(self, count=torch.cat([first, self.count[:, allowed.shape[1] :]], 1))


def _traits_behind(
    traits: Tensor, kind: Tensor, inside: Tensor, behind: Tensor, facts: Tensor, ahead: Tensor
) -> Tensor:
    """(Q, 5, F) of all who stand behind the first: like the last of these but for rank and count.

    Args:
        traits: (Q, M, F).
        kind: (Q, M).
        inside: (Q, 5) how many of each kind are among the first.
        behind: (Q, 5) how many are not.
        facts: (Q,) those of the slot that none of the first is in.
        ahead: (Q,) how far ahead the query lies.
    """
    rest = traits.new_full((len(kind), len(KINDS), traits.shape[2]), torch.inf)
    rest.scatter_reduce_(1, kind.unsqueeze(2).expand_as(traits), traits, "amin")
    rest.masked_fill_((inside == 0).unsqueeze(2), 0.0)[:, NEW] = 0.0
    rest[:, :NEW, TRAITS.index("rank")] = -(inside + 0.5 * behind + 1)[:, :NEW].log().float()
    mean = facts / behind[:, FILLER].clamp(min=1)
    rest[:, FILLER, TRAITS.index("count")] = (mean + _LEAST).log().float()
    rank = -rest[:, :NEW, TRAITS.index("rank")]
    rest[:, :NEW, TRAITS.index("rank, ahead")] = rank * ahead.float().unsqueeze(1)
    rest[:, :NEW, TRAITS.index("behind")] = 1.0
    return rest


def _about(links: PairSteps, time: Tensor, whole: Tensor) -> list[Tensor]:
    """(Q,) each: always 1, then what the past of the query entity and of the slot tells."""
    partners = torch.bincount(links.query, minlength=len(time))
    step = torch.full_like(time, -1).scatter_reduce(0, links.query, links.step, "amax")
    facts, fillers, singles = whole.unbind(1)
    return [
        torch.ones_like(facts),
        partners.double().log1p(),
        -_log_age(time, step),
        facts.log1p(),
        fillers.log1p(),
        ((singles + _LEAST) / (facts + 2 * _LEAST)).log(),
    ]


def _counts(
    index: TemporalIndex, relation: Tensor, time: Tensor, links: PairSteps, inside: Tensor
) -> tuple[Tensor, Tensor]:
    """(Q, 5) candidates behind the first; and (Q, 3) facts, fillers and those with one fact."""
    slots, often = index.slots, torch.arange(2).repeat_interleave(len(time))
    fillers, more = slots.above(relation.repeat(2), time.repeat(2), often).view(2, -1)
    facts, singles = slots.facts_before(relation, time), fillers - more
    partners = torch.bincount(links.query, minlength=len(time))
    known = torch.full_like(time, index.entities)
    if bool((time < index.steps - 1).any()):
        known = index.known_before(time)
    behind = torch.zeros_like(inside)
    behind[:, REPEAT] = partners - inside[:, REPEAT]
    # A partner has filled the slot, unless by a support fact that lies ahead.
    behind[:, FILLER] = fillers - partners - inside[:, FILLER]
    behind[:, OTHER] = known - torch.maximum(fillers, partners) - inside[:, FITTING:NEW].sum(1)
    whole = torch.stack([facts, fillers, singles], 1)
    return behind.clamp(min=0).double(), whole.double()


def _steps(some: PairSteps, entity: Tensor, entities: int) -> Tensor:
    """(Q, M) the steps of some pairs, by query and candidate; -1 for all others."""
    if not len(some.step):
        return torch.full_like(entity, -1)
    wanted = torch.arange(len(entity)).unsqueeze(1) * entities + entity
    place, there = found(some.query * entities + some.candidate, wanted.flatten())
    return torch.where(there, some.step.index_select(0, place), -1).view_as(entity)


def _log_age(time: Tensor, step: Tensor) -> Tensor:
    """Logarithm of the age of what was seen at a step; 0 for what was never seen."""
    age = (time - step).clamp(min=0).double().log1p()
    return torch.where(step >= 0, age, 0.0)


def _per_kind(kind: Tensor, value: Tensor) -> Tensor:
    """(Q, 5) sums of (Q, M) whole numbers over the candidates of each kind."""
    total = torch.zeros(len(kind), len(KINDS), dtype=torch.int64)
    return total.scatter_add_(1, kind, value)


@dataclass(frozen=True, eq=False)
class _Order:
    """Where scores place the candidates."""

    rank: Tensor
    """(Q, M) logarithm of the rank within the kind; the same for equal scores."""
    distance: Tensor
    """(Q, M) from the best score of the kind."""
    first_rank: Tensor
    """(Q, 5) minus the logarithm of the rank of the first of each kind."""
    first_distance: Tensor
    """(Q, 5) minus the logarithm of its distance from the best."""

    @classmethod
    def of(cls, value: Tensor, kind: Tensor, scale: float) -> _Order:
        many, value = kind.shape[1], value.double()
        # Newcomers have no place among themselves.
        some = one_hot(kind, len(KINDS))
        some[:, :, NEW] = 0
        rank = torch.cumsum(some, 1).gather(2, kind.unsqueeze(2)).squeeze(2).clamp(min=1)
        rank = rank.double().log()
        first, there = some.argmax(1), some.any(1)
        top = value.gather(1, first)
        best = torch.where(kind == NEW, 0.0, top.gather(1, kind))
        first_rank = torch.where(there, first + 1.0, many + 1.0).double()
        first_distance = torch.where(there, (value[:, :1] - top) / scale, _FAR)
        first_distance[:, NEW] = 0.0
        # Ties: the numbers of the entities must not show.
        new = torch.ones_like(kind)
        new[:, 1:] = (value[:, 1:] != value[:, :-1]).long()
        group = (torch.cumsum(new.flatten(), 0) - 1) * len(KINDS) + kind.flatten()
        total = torch.zeros(int(group.max()) + 1, dtype=torch.float64)
        many_alike = torch.bincount(group, minlength=len(total))
        total.index_add_(0, group, rank.flatten())
        rank = (total / many_alike.clamp(min=1))[group].view_as(rank)
        distance = ((best - value) / scale).clamp(min=0)
        return cls(rank, distance, -first_rank.log(), -first_distance.clamp(min=0).log1p())


class _LatestFacts:
    """The latest facts of S distinct slots: who fills them, and how.

    Args:
        index: what is public.
        relation: (S,) directed.
        time: (S,) only facts before it are looked at.
    """

    def __init__(self, index: TemporalIndex, relation: Tensor, time: Tensor) -> None:
        self._index, self._relation, self._time = index, relation, time

    @property
    def shares(self) -> Tensor:
        """(S, 5) logarithms of the shares of the kinds among the latest facts of each slot."""
        slots, asked = self._index.slots, (self._relation, self._time)
        return slots.remembered("shares", *asked, partial(_shares, self._index))[1]

    def overlap(self, member: Tensor, entity: Tensor, time: Tensor, asked: Tensor) -> Tensor:
        """(Q, M) share of the slot's fillers with whom a candidate has its commonest role.

        0 for those who are not asked about.

        Args:
            member: (Q,) which of the slots.
            entity: (Q, M) candidates.
            time: (Q,).
            asked: (Q, M) bool, whose roles matter.
        """
        found = torch.zeros(entity.shape, dtype=torch.float64)
        query, place = torch.nonzero(asked, as_tuple=True)
        if not len(query):
            return found
        index, slot = self._index, (self._relation, self._time)
        having = index.slots.remembered("having", *slot, partial(share_with_role, index))[1]
        who, role = roles_of(index, entity[query, place], time[query])
        share = having[member[query[who]], role].double()
        best = torch.zeros(len(query), dtype=torch.float64).scatter_reduce(0, who, share, "amax")
        found[query, place] = best
        return found


def _latest_facts(index: TemporalIndex, relation: Tensor, time: Tensor) -> tuple[Tensor, ...]:
    """Rows of S distinct slots, near end, filler and step of their latest facts."""
    slots = index.slots
    return slots.remembered("latest", relation, time, partial(slots.recent_facts, most=_LATEST))


def _shares(index: TemporalIndex, relation: Tensor, time: Tensor) -> tuple[Tensor, Tensor]:
    """Rows of S distinct slots, and (S, 5) what :attr:`_LatestFacts.shares` says."""
    row, near, filler, step = _latest_facts(index, relation, time)
    along = relation[row]
    again = index.pairs.last_step(near * index.relations + along, filler, step) >= 0
    kind = torch.full_like(row, OTHER)
    kind[index.slots.usage(filler, along, step).count > 0] = FILLER
    kind[index.first_step_of(filler) >= step] = NEW
    kind[again] = REPEAT
    count = torch.zeros(len(relation), len(KINDS))
    count.index_put_((row, kind), torch.ones(len(row)), accumulate=True)
    count[:, FITTING] = count[:, OTHER]  # who fits was not looked at
    shares = (count + _LEAST) / (count.sum(1, keepdim=True) + _LEAST * len(KINDS))
    return torch.arange(len(relation)), shares.log()


def share_with_role(index: TemporalIndex, relation: Tensor, time: Tensor) -> tuple[Tensor, Tensor]:
    """Rows of S distinct slots, and (S, 2R) the share of their fillers that have each role."""
    row, _, filler, _ = _latest_facts(index, relation, time)
    cell = distinct(row * index.entities + filler)[0]
    row, filler = cell // index.entities, cell % index.entities
    who, role = roles_of(index, filler, time[row])
    having = torch.zeros(len(relation), index.relations)
    having.index_put_((row[who], role), torch.ones(len(who)), accumulate=True)
    many = torch.bincount(row, minlength=len(relation)).clamp(min=1)
    return torch.arange(len(relation)), having / many.unsqueeze(1)


def roles_of(index: TemporalIndex, entity: Tensor, time: Tensor) -> tuple[Tensor, Tensor]:
    """Distinct (row, directed relation) pairs of the latest facts of entities."""
    facts = index.last_facts(entity, time, _ROLES)
    cell = distinct(facts.row * index.relations + facts.relation)[0]
    return cell // index.relations, cell % index.relations

"""The few-shot protocol on a folder of facts, in memory that grows with the entities alone.

Who is new, which facts are supports and which are visible is decided where it always is: in
``data.periods``, ``data.tasks`` and ``data.visibility``. Here they are only handed less: the rows
among which the supports must be, and one block of the columns at a time. A test compares the
outcome with :class:`~metatkgr.data.problem.Problem`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import numpy.typing as npt

from metatkgr.data.facts import Facts, IntArray
from metatkgr.data.large.store import FactStore
from metatkgr.data.periods import Period, Periods
from metatkgr.data.shots import Shots
from metatkgr.data.tasks import Tasks
from metatkgr.data.visibility import Visibility, public_facts
from metatkgr.errors import SettingsError

__all__ = ["AskedTasks", "LearnableFacts", "StoredSplit", "among"]

_ROWS = 1 << 20
_SPLITS = (Period.META_TRAIN, Period.META_VALIDATION, Period.META_TEST)


@dataclass(frozen=True, eq=False)
class _Rows:
    """Some facts of the folder."""

    row: IntArray
    """(n,) where they are in the folder, ascending."""
    facts: Facts
    periods: Periods
    """Of all entities and of these facts."""

    def columns(self, place: IntArray) -> IntArray:
        """(5, n) row, subject, relation, object and step of some of them."""
        facts = self.facts
        columns = (self.row, facts.subject, facts.relation, facts.object, facts.time)
        return np.stack([column[place] for column in columns])


@dataclass(frozen=True, eq=False)
class AskedTasks:
    """The tasks of a split with some of its questions."""

    tasks: Tasks
    """All supports; the asked questions and all their answers. ``facts`` and ``visible`` hold no
    more than that takes: enough for what was visible of the asking entities, not for a model that
    looks further."""
    queries: int
    """How many queries the whole split has."""


class StoredSplit:
    """Periods, supports and visibility of a folder of facts.

    Memory: a few numbers per entity and, per new entity, its first K facts.

    Args:
        store: the facts.
        shots: K, or a range from which each entity's K is drawn.
        test_shots: K of the meta-validation and meta-test entities, where it is another one.
        visibility: which facts are visible.
        seed: of each entity's K, where it is drawn.
        rows: facts in memory at a time.
    """

    def __init__(
        self,
        store: FactStore,
        *,
        shots: int | str | Shots = 3,
        test_shots: int | str | Shots | None = None,
        visibility: Visibility | str = Visibility.ENTITY_SPLIT,
        seed: int = 0,
        rows: int = _ROWS,
    ) -> None:
        self.store, self.seed, self._rows = store, seed, max(rows, 1)
        self.shots = Shots.parse(shots)
        self.test_shots = self.shots if test_shots is None else Shots.parse(test_shots)
        self.visibility = (
            Visibility.parse(visibility) if isinstance(visibility, str) else visibility
        )

    @cached_property
    def periods(self) -> Periods:
        """Those of all entities; ``of_fact`` is empty."""
        emerged = np.full(len(self.store.entities), -1, np.int64)
        for subject, _, other, time in self.store.blocks(self._rows):
            # Backwards, so that of several facts of an entity the earliest is written last.
            ends, when = np.stack([subject, other], axis=1)[::-1].reshape(-1), time[::-1].repeat(2)
            unknown = emerged[ends] < 0
            emerged[ends[unknown]] = when[unknown]
        # A graph of nothing but everyone's first step, and the last step, has the same periods.
        who = np.flatnonzero(emerged >= 0)
        who = who[np.argsort(emerged[who], kind="stable")]
        first = np.append(emerged[who], self.store.steps - 1)
        who = np.append(who, who[-1])
        periods = Periods.of(self._facts(who, np.zeros_like(who), who, first))
        return replace(periods, of_fact=np.zeros(0, np.int64))

    def learnable(self, before: Period = Period.META_VALIDATION) -> LearnableFacts:
        """What may be learned from: ``Problem.known``, or ``few_shot`` before meta-train."""
        return LearnableFacts(self, before)

    def tasks(self, split: Period, most: int, seed: int = 0) -> AskedTasks:
        """The tasks of a split with at most so many of its questions, drawn evenly.

        Args:
            split: whose new entities are asked about.
            most: how many questions are kept; all, where there are no more.
            seed: of the draw.
        """
        if most < 1:
            raise SettingsError(f"at least one question must be asked, not {most}")
        supports, drawn, total = self.support_rows(split), _Drawn(most), 0
        for part in self._parts():
            entity, relation, time, place = self.asked(part, split, supports)
            total += len(entity)
            drawn.add(self._draw(entity, relation, time, seed), part.columns(place))
        # A fact may be drawn twice, once from each end, and be another entity's first one too.
        columns = np.concatenate([self._first_facts[split], drawn.columns], axis=1)
        tasks = self._build(
            self._placed(columns[:, np.unique(columns[0], return_index=True)[1]]), split
        )
        asked = tasks.questions
        chosen = np.isin(self._draw(asked.entity, asked.relation, asked.time, seed), drawn.lots)
        return AskedTasks(tasks.only(np.flatnonzero(chosen).astype(np.int64)), total)

    def support_rows(self, split: Period) -> IntArray:
        """The facts of the folder that are in a support of the split, ascending."""
        first = self._placed(self._first_facts[split])
        return first.row[self._build(first, split).support_facts]

    def part(self, low: int, high: int) -> _Rows:
        """The facts ``low`` to ``high``, not included."""
        return self._placed((np.arange(low, high), *self.store.read(low, high)))

    def _parts(self) -> Iterator[_Rows]:
        for low in range(0, len(self.store), self._rows):
            yield self.part(low, min(low + self._rows, len(self.store)))

    def _facts(self, subject: IntArray, relation: IntArray, other: IntArray, t: IntArray) -> Facts:
        store = self.store
        names = store.entities, store.relations, store.calendar, store.name
        return Facts(subject, relation, other, t, *names)

    def _placed(self, columns: Iterable[IntArray]) -> _Rows:
        """Facts given by row, subject, relation, object and step."""
        row, *rest = columns
        facts = self._facts(*rest)
        of_entity = self.periods.of_entity
        of_fact = np.maximum(of_entity[facts.subject], of_entity[facts.object])
        return _Rows(row, facts, replace(self.periods, of_fact=of_fact))

    def _build(self, rows: _Rows, split: Period) -> Tasks:
        return Tasks.build(
            rows.facts,
            shots=self.shots if split is Period.META_TRAIN else self.test_shots,
            visibility=self.visibility,
            split=split,
            periods=rows.periods,
            seed=self.seed,
        )

    @cached_property
    def _first_facts(self) -> dict[Period, IntArray]:
        """For each split (5, n) the first facts of its entities, as many as a support may have.

        With all of these, and any others, an entity's first K are the same as with all facts.
        """
        most = max(self.shots.high, self.test_shots.high)
        count = np.zeros(len(self.store.entities), np.int64)
        found: dict[Period, list[IntArray]] = {split: [] for split in _SPLITS}
        for part in self._parts():
            facts, of_fact = part.facts, part.periods.of_fact
            end = np.stack([facts.subject, facts.object], axis=1)  # (n, 2)
            mine = self.periods.of_entity[end] == of_fact[:, None]
            mine &= (of_fact > Period.BACKGROUND)[:, None] & (count[end] < most)
            mine[:, 1] &= facts.subject != facts.object  # both ends of a self-link are one fact
            where = np.flatnonzero(mine)
            who = end.reshape(-1)[where]
            order = np.argsort(who, kind="stable")
            ordered = who[order]
            begin = np.searchsorted(ordered, ordered)
            early = np.arange(len(ordered)) - begin + count[ordered] < most
            np.add.at(count, who, 1)
            kept = np.unique(where[order[early]] // 2)
            for split in _SPLITS:
                found[split].append(part.columns(kept[of_fact[kept] == split]))
        return {split: np.concatenate(parts, axis=1) for split, parts in found.items()}

    def asked(
        self, part: _Rows, split: Period, supports: IntArray
    ) -> tuple[IntArray, IntArray, IntArray, IntArray]:
        """Entity, directed relation, time and place in ``part`` of each query."""
        facts, periods = part.facts, part.periods
        asked = (periods.of_fact == split) & ~among(part.row, supports)
        if self.visibility is not Visibility.ENTITY_SPLIT and split < Period.META_TEST:
            asked &= facts.time <= periods.last_step[Period.META_VALIDATION]
        place = np.flatnonzero(asked)
        subject, other = facts.subject[place], facts.object[place]
        new = periods.of_entity[np.stack([subject, other], axis=1)] == split
        new[:, 1] &= subject != other
        relation = facts.relation[place]
        directed = np.stack([relation, relation + len(self.store.relations)], axis=1)
        entity = np.stack([subject, other], axis=1)
        time = np.repeat(facts.time[place], 2).reshape(-1, 2)
        return entity[new], directed[new], time[new], np.repeat(place, 2).reshape(-1, 2)[new]

    def _draw(
        self, entity: IntArray, relation: IntArray, time: IntArray, seed: int
    ) -> npt.NDArray[np.uint64]:
        """A number for each question, as good as random, that follows from it and the seed."""
        steps, relations = self.store.steps, 2 * len(self.store.relations)
        key = ((entity * relations + relation) * steps + time).astype(np.uint64)
        return _mixed(_mixed(key) + _mixed(np.full(1, seed, np.uint64)))


class LearnableFacts:
    """The facts of a folder that may be learned from, read range by range.

    Has what :class:`~metatkgr.training.triples_on_disk.DiskTriples` asks of a store. Its length is
    that of the folder; a range of it has at most as many facts as rows.

    Args:
        split: the protocol.
        before: the first period of which no more than supports may be seen.
    """

    def __init__(self, split: StoredSplit, before: Period) -> None:
        self._split, self._before = split, before
        self.entities, self.relations = split.store.entities, split.store.relations
        frozen = split.visibility is Visibility.STREAMING
        self._rule = Visibility.FROZEN if frozen else split.visibility
        later = [period for period in _SPLITS if period >= before]
        self._observed = np.unique(np.concatenate([split.support_rows(p) for p in later]))

    def __len__(self) -> int:
        return len(self._split.store)

    def read(self, low: int, high: int) -> tuple[IntArray, IntArray, IntArray, IntArray]:
        """Subjects, relations, objects and steps of those among the facts ``low`` to ``high``."""
        part = self._split.part(low, high)
        observed = among(part.row, self._observed)
        public = public_facts(part.facts, part.periods, self._before, self._rule, observed)
        facts = part.facts.select(public)
        return facts.subject, facts.relation, facts.object, facts.time


class _Drawn:
    """The queries of the questions with the smallest numbers, as they come by.

    Args:
        most: how many questions, at least 1.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self.lots: npt.NDArray[np.uint64] = np.zeros(0, np.uint64)
        """The numbers of the questions that are kept, ascending."""
        self._lot: npt.NDArray[np.uint64] = np.zeros(0, np.uint64)
        self.columns = np.zeros((5, 0), np.int64)
        """(5, n) the facts of their queries."""

    def add(self, lot: npt.NDArray[np.uint64], columns: IntArray) -> None:
        """Take (n,) numbers of questions and (5, n) the facts that ask them."""
        if len(self.lots) == self._most:
            few = lot <= self.lots[-1]
            lot, columns = lot[few], columns[:, few]
        self._lot = np.concatenate([self._lot, lot])
        self.columns = np.concatenate([self.columns, columns], axis=1)
        self.lots = np.unique(self._lot)[: self._most]
        kept = np.isin(self._lot, self.lots)
        self._lot, self.columns = self._lot[kept], self.columns[:, kept]


def among(rows: IntArray, some: IntArray) -> npt.NDArray[np.bool_]:
    """(n,) whether each of consecutive rows is among some ascending ones."""
    mask = np.zeros(len(rows), bool)
    if len(rows):
        low, high = np.searchsorted(some, [rows[0], rows[-1] + 1])
        mask[some[low:high] - rows[0]] = True
    return mask


def _mixed(key: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """A one-to-one scramble of 64 bits: multiply by odd numbers, fold the high bits down."""
    for factor, shift in ((0x9E3779B97F4A7C15, 29), (0xD1B54A32D192ED03, 32)):
        key = (key + np.uint64(1)) * np.uint64(factor)
        key = key ^ (key >> np.uint64(shift))
    return key

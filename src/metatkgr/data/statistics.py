"""The numbers that describe a dataset: its size, its periods, its new entities, its tasks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from metatkgr.data.catalog.datasets import ENTRIES, Published
from metatkgr.data.facts import Facts, IntArray
from metatkgr.data.periods import Period, Periods
from metatkgr.data.tasks import Tasks

__all__ = [
    "FEW_FACTS",
    "SHOTS",
    "DatasetStatistics",
    "PeriodStatistics",
    "ShotStatistics",
    "facts_per_entity",
    "is_new",
]

FEW_FACTS = (1, 2, 3, 5, 10)
"""The share of new entities with at most this many facts is reported."""
SHOTS = (1, 2, 3)
"""Support sizes whose tasks are counted, as in the paper."""


@dataclass(frozen=True)
class PeriodStatistics:
    """One of the four periods."""

    name: str
    first: str | None
    """Date of its first step; None when the period has no step of its own."""
    last: str
    """Date of its last step."""
    entities: int
    """Entities whose first fact lies in it."""
    facts: int
    """Facts whose latest-emerging entity belongs to it."""


@dataclass(frozen=True)
class ShotStatistics:
    """The meta-test tasks with K support facts."""

    shots: int
    tasks: int
    """Entities with at least one query."""
    queries: int
    support_facts: int
    """Facts in anyone's support."""
    later: int
    """Queries later than their entity's last support fact."""


@dataclass(frozen=True)
class DatasetStatistics:
    """Everything ``metatkgr data stats`` prints about a dataset."""

    name: str
    facts: int
    entities: int
    """Size of the vocabulary."""
    entities_used: int
    """Entities with at least one fact."""
    relations: int
    time_unit: str
    """Length of a step: '1 year'."""
    first: str
    last: str
    steps: int
    periods: tuple[PeriodStatistics, ...]
    new_entities: int
    """Entities that emerge after the background period."""
    new_share: float
    """The same as a share of the entities used."""
    share_in_last_quarter: float
    """Share of the entities used that emerge in the meta-test period, the last 25 % of the time."""
    median_facts_per_new_entity: float
    few_facts: dict[int, float]
    """n to the share of new entities with at most n facts."""
    tasks: tuple[ShotStatistics, ...]
    published: Published | None
    """The paper's values, where the dataset is in the paper."""

    @classmethod
    def of(
        cls, facts: Facts, *, shots: Sequence[int] = SHOTS, periods: Periods | None = None
    ) -> DatasetStatistics:
        """Count.

        Args:
            facts: the whole graph.
            shots: support sizes whose meta-test tasks are counted.
            periods: the periods of ``facts``, when they are at hand already.
        """
        periods = periods or Periods.of(facts)
        calendar = facts.calendar
        used = int((periods.of_entity >= 0).sum())
        new = is_new(periods)
        per_new = facts_per_entity(facts)[new]
        entry = ENTRIES.get(facts.name)
        return cls(
            name=facts.name,
            facts=len(facts),
            entities=len(facts.entities),
            entities_used=used,
            relations=len(facts.relations),
            time_unit=f"{calendar.stride} {calendar.unit}{'s' * (calendar.stride > 1)}",
            first=calendar.label(0),
            last=calendar.label(facts.steps - 1),
            steps=facts.steps,
            periods=tuple(_period(facts, periods, period) for period in Period),
            new_entities=len(per_new),
            new_share=len(per_new) / used,
            share_in_last_quarter=int((periods.of_entity == Period.META_TEST).sum()) / used,
            median_facts_per_new_entity=float(np.median(per_new)) if len(per_new) else 0.0,
            few_facts={
                limit: float((per_new <= limit).mean()) if len(per_new) else 0.0
                for limit in FEW_FACTS
            },
            tasks=tuple(_tasks(facts, periods, k) for k in shots),
            published=entry.published if entry else None,
        )

    def to_json(self) -> dict[str, Any]:
        """Plain dictionaries, lists, numbers and strings."""
        plain = asdict(self)
        plain["periods"] = list(plain["periods"])
        plain["tasks"] = list(plain["tasks"])
        plain["few_facts"] = {str(limit): share for limit, share in self.few_facts.items()}
        return plain

    def table(self) -> list[tuple[str, str, str]]:
        """Rows (what, ours, the paper's or '') to print."""
        paper = self.published
        rows = [
            ("entities", f"{self.entities:,}", f"{paper.entities:,}" if paper else ""),
            ("entities with a fact", f"{self.entities_used:,}", ""),
            ("relations", f"{self.relations:,}", f"{paper.relations:,}" if paper else ""),
            ("facts", f"{self.facts:,}", f"{paper.facts:,}" if paper else ""),
            ("time unit", self.time_unit, paper.time_unit if paper else ""),
            ("dates", f"{self.first} to {self.last}", ""),
            ("steps", f"{self.steps:,}", ""),
        ]
        for period in self.periods:
            counts = f"{period.entities:,} entities, {period.facts:,} facts"
            dates = f"{period.first} to {period.last}" if period.first else "no step"
            rows.append((f"{period.name} ({dates})", counts, ""))
        rows += [
            ("new entities", f"{self.new_entities:,} ({self.new_share:.1%})", ""),
            (
                "new in the last quarter",
                f"{self.share_in_last_quarter:.1%}",
                f"{paper.share_in_last_quarter:.1%}" if paper else "",
            ),
        ]
        rows += [
            (f"new entities with at most {limit} fact{'s' * (limit > 1)}", f"{share:.1%}", "")
            for limit, share in self.few_facts.items()
        ]
        rows += [
            (
                f"meta-test, K = {task.shots}",
                f"{task.tasks:,} tasks, {task.queries:,} queries ({task.later:,} later),"
                f" {task.support_facts:,} support facts",
                "",
            )
            for task in self.tasks
        ]
        return rows


def is_new(periods: Periods) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """(E,) whether each entity emerged after the background period."""
    return np.asarray(periods.of_entity > Period.BACKGROUND)


def facts_per_entity(facts: Facts) -> IntArray:
    """(E,) number of facts that contain each entity; a fact with itself counts once."""
    size = len(facts.entities)
    other = facts.object[facts.object != facts.subject]
    counts = np.bincount(facts.subject, minlength=size) + np.bincount(other, minlength=size)
    return counts.astype(np.int64)


def _period(facts: Facts, periods: Periods, period: Period) -> PeriodStatistics:
    last = int(periods.last_step[period])
    first = int(periods.last_step[period - 1]) + 1 if period else 0
    return PeriodStatistics(
        name=period.label,
        first=facts.calendar.label(first) if first <= last else None,
        last=facts.calendar.label(last),
        entities=int((periods.of_entity == period).sum()),
        facts=int((periods.of_fact == period).sum()),
    )


def _tasks(facts: Facts, periods: Periods, shots: int) -> ShotStatistics:
    tasks = Tasks.build(facts, shots=shots, periods=periods)
    return ShotStatistics(
        shots=shots,
        tasks=tasks.count,
        queries=len(tasks.answers),
        support_facts=len(tasks.support_facts),
        later=int(tasks.answers.later.sum()),
    )

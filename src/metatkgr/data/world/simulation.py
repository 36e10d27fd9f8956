"""Simulated worlds, whose law is known: as facts in memory, or as a file of any size.

For demonstrations, tests and pretraining. In ``careers`` ties recur (a contract is reported again
and again), players follow old team-mates and sponsors spread within a league (shared neighbours),
``endorses`` becomes common only late (the time shift), newcomers appear at every step, most with
few facts, and some facts cannot be predicted at all. ``world.step`` says exactly what happens and
how likely; ``world.kinds`` describes the other kinds.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from metatkgr.data.calendar import raw_to_label
from metatkgr.data.facts import Facts, IntArray, Vocabulary
from metatkgr.data.world.kinds import CAREERS, KINDS
from metatkgr.data.world.law import Law, begin
from metatkgr.data.world.names import names_of
from metatkgr.data.world.plan import Plan, WorldSettings
from metatkgr.data.world.state import StepFacts
from metatkgr.errors import DataError, MetaTKGRError
from metatkgr.files import atomic_path

__all__ = [
    "Law",
    "WorldSettings",
    "WorldSummary",
    "narrate",
    "simulate",
    "world_settings_from_metadata",
    "write_world",
]


def narrate(settings: WorldSettings) -> Iterator[StepFacts]:
    """The facts of the world step by step, exactly ``settings.facts`` in all.

    The last step is cut to what is left: introductions first, then any facts with equal chance.
    """
    world = begin(Plan.of(settings))
    left = settings.facts
    while left > 0:
        facts = world.advance()
        if len(facts) > left:
            facts = facts.take(left, world.streams(world.step - 1).spawn(1)[0])
        left -= len(facts)
        yield facts


def simulate(
    settings: WorldSettings | None = None,
    *,
    facts: int | None = None,
    seed: int | None = None,
    kind: str | None = None,
) -> Facts:
    """A simulated world as facts, with its law.

    Args:
        settings: of the world; or, for the usual ones,
        facts: number of facts,
        seed: seed of all randomness,
        kind: what happens in it, one of ``KINDS``.

    Returns:
        Facts called 'world' (or 'world:KIND') whose ``law`` is a :class:`Law`; entities numbered by
        birth.
    """
    chosen: dict[str, Any] = {"facts": facts, "seed": seed, "kind": kind}
    chosen = {name: value for name, value in chosen.items() if value is not None}
    if settings is None:
        settings = WorldSettings(**chosen)
    elif chosen:
        raise TypeError("give simulate() either settings, or facts, seed and kind")
    steps = list(narrate(settings))
    subject = np.concatenate([step.subject for step in steps])
    object_ = np.concatenate([step.object for step in steps])
    step = np.repeat(np.arange(len(steps)), [len(step) for step in steps])
    entities = int(max(subject.max(), object_.max())) + 1
    plan = Plan.of(settings)
    types, number = plan.numbering(-1, len(steps) - 1)
    names = names_of(plan.kind.types, types[:entities], number[:entities])
    return Facts.build(
        subject,
        np.concatenate([step.relation for step in steps]),
        object_,
        plan.kind.origin + plan.kind.stride * step,
        entities=Vocabulary(names.tolist()),
        relations=Vocabulary(plan.kind.relations),
        unit=plan.kind.unit,
        name="world" if plan.kind is CAREERS else f"world:{plan.kind.name}",
        law=Law(settings, entities, last_step=len(steps) - 1),
    )


SUFFIXES = (".parquet", ".csv", ".tsv")
_METADATA_KEY = b"metatkgr.world"
_ROW_GROUP = 1_000_000


@dataclass(frozen=True)
class WorldSummary:
    """What was written."""

    path: Path
    facts: int
    entities: int
    relations: int
    steps: int
    bytes: int
    seconds: float


def write_world(
    path: str | Path,
    settings: WorldSettings | None = None,
    progress: Callable[[int], None] | None = None,
    *,
    row_group: int = _ROW_GROUP,
) -> WorldSummary:
    """Simulate a world into a file with the columns subject, relation, object and date.

    The facts are those of ``simulate``, in the same order. Memory: one row group and the names of
    all entities (about 4 for 100 facts). A Parquet file also holds the settings of the world, from
    which its law can be made again. The file appears under its name only when it is complete.

    Args:
        path: the file; its suffix says what to write: .parquet, .csv or .tsv.
        settings: of the world.
        progress: called after each row group with the number of facts written in it.
        row_group: rows written at once.

    Returns:
        Counts, size and time.
    """
    path, settings = Path(path), settings or WorldSettings()
    if path.suffix.lower() not in SUFFIXES:
        raise DataError(
            f"a world is written to a file that ends in {', '.join(SUFFIXES)}; not {path.name!r}"
        )
    begin = time.perf_counter()
    suffix = path.suffix.lower()
    with atomic_path(path) as unfinished, _Table(unfinished, suffix, settings) as table:
        steps = _write_steps(table, settings, progress, row_group)
    return WorldSummary(
        path=path,
        facts=settings.facts,
        entities=table.entities,
        relations=len(KINDS[settings.kind].relations),
        steps=steps,
        bytes=path.stat().st_size,
        seconds=time.perf_counter() - begin,
    )


def world_settings_from_metadata(path: str | Path) -> WorldSettings | None:
    """The settings of the world in a Parquet file; None where the file holds something else."""
    from pyarrow import ArrowException, parquet

    try:
        metadata = parquet.read_metadata(path).metadata or {}
    except (ArrowException, OSError):
        return None
    if _METADATA_KEY not in metadata:
        return None
    try:
        return WorldSettings(**json.loads(metadata[_METADATA_KEY]))
    except (ValueError, TypeError, RecursionError, MetaTKGRError):
        return None


def _write_steps(
    table: _Table,
    settings: WorldSettings,
    progress: Callable[[int], None] | None,
    row_group: int,
) -> int:
    """Collect steps into row groups and write them; returns the number of steps."""
    kind = KINDS[settings.kind]
    waiting: list[tuple[IntArray, IntArray, IntArray, IntArray]] = []
    count, step = 0, -1

    def write() -> None:
        columns = [np.concatenate(column) for column in zip(*waiting, strict=True)]
        for low in range(0, count, row_group):
            part = [column[low : low + row_group] for column in columns]
            table.write(part, step)
            if progress:
                progress(len(part[0]))
        waiting.clear()

    for step, facts in enumerate(narrate(settings)):
        raw = np.full(len(facts), kind.origin + kind.stride * step)
        waiting.append((facts.subject, facts.relation, facts.object, raw))
        count += len(facts)
        if count >= row_group:
            write()
            count = 0
    if count:
        write()
    return step + 1


class _Table:
    """An open file that takes facts as numbers and holds them as names and dates."""

    def __init__(self, path: Path, suffix: str, settings: WorldSettings) -> None:
        import pyarrow as pa
        from pyarrow import csv, parquet

        self.pa = pa
        self.plan = Plan.of(settings)
        self.named_to = -2
        """Step up to which entities have names; -1 is the beginning."""
        self.names = pa.array([], pa.string())
        self.entities = 0
        self.text = suffix != ".parquet"
        name = pa.string() if self.text else pa.dictionary(pa.int32(), pa.string())
        # A day is a date; a month or a year is written as a person writes it.
        date = pa.date32() if self.plan.kind.unit == "day" else name
        columns = [("subject", name), ("relation", name), ("object", name), ("date", date)]
        metadata = {_METADATA_KEY: json.dumps(asdict(settings)).encode()}
        self.schema = pa.schema(columns, metadata=metadata)
        self.writer: Any
        if self.text:
            delimiter = "," if suffix == ".csv" else "\t"
            # pyarrow would put quotes around the names of the columns; no name needs them.
            options = csv.WriteOptions(
                include_header=False, delimiter=delimiter, quoting_style="none"
            )
            self.sink = path.open("wb")
            self.sink.write((delimiter.join(self.schema.names) + "\n").encode())
            self.writer = csv.CSVWriter(self.sink, self.schema, write_options=options)
        else:
            self.writer = parquet.ParquetWriter(
                path,
                self.schema,
                compression="zstd",
                compression_level=1,
                # Room for all names of a row group: beyond the limit they would be spelled out.
                dictionary_pagesize_limit=1 << 26,
                write_statistics=["date"],
            )

    def __enter__(self) -> _Table:
        return self

    def __exit__(self, *error: object) -> None:
        self.writer.close()
        if self.text:
            self.sink.close()

    def write(self, facts: Sequence[IntArray], last_step: int) -> None:
        """Write (N,) subjects, relations, objects and raw times of facts up to ``last_step``."""
        subject, relation, other, raw = facts
        pa, kind = self.pa, self.plan.kind
        if last_step > self.named_to:
            numbering = self.plan.numbering(self.named_to + 1, last_step)
            names = names_of(kind.types, *numbering)
            self.names = pa.concat_arrays([self.names, pa.array(names, pa.string())])
            self.named_to = last_step
        self.entities = max(self.entities, int(subject.max()) + 1, int(other.max()) + 1)
        if kind.unit == "day":
            date = pa.array(raw.astype(np.int32), pa.int32()).cast(pa.date32())
        else:
            labels = [raw_to_label(at, kind.unit) for at in range(kind.origin, int(raw.max()) + 1)]
            date = self._named(raw - kind.origin, pa.array(labels, pa.string()))
        columns = [
            self._named(subject, self.names),
            self._named(relation, pa.array(kind.relations, pa.string())),
            self._named(other, self.names),
            date,
        ]
        # One call, one row group: a Parquet writer splits only beyond a million rows and more.
        self.writer.write_table(pa.Table.from_arrays(columns, schema=self.schema))

    def _named(self, ids: IntArray, names: Any) -> Any:
        """The ids as an array of names whose dictionary holds only the names that occur."""
        low = int(ids.min())
        occurs = np.zeros(int(ids.max()) - low + 1, bool)
        occurs[ids - low] = True
        index = (np.cumsum(occurs, dtype=np.int32) - 1)[ids - low]
        dictionary = names.take(self.pa.array(np.flatnonzero(occurs) + low))
        column = self.pa.DictionaryArray.from_arrays(self.pa.array(index), dictionary)
        return column.dictionary_decode() if self.text else column

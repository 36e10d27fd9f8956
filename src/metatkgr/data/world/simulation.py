"""A simulated world of leagues, clubs, players and sponsors, whose law is known.

For demonstrations and tests. Ties recur (a contract is reported again and again), players follow
old team-mates and sponsors spread within a league (shared neighbours), ``endorses`` becomes common
only late (the time shift), newcomers appear at every step, most with few facts, and some facts
cannot be predicted at all. ``world.step`` says exactly what happens, ``world.law`` how likely.

One step is a week; its date is a Monday.
"""

from __future__ import annotations

import datetime as dt
import json
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from metatkgr.data.calendar import date_to_raw
from metatkgr.data.facts import Facts, IntArray, Vocabulary
from metatkgr.data.world.law import Law
from metatkgr.data.world.names import names_of
from metatkgr.data.world.plan import RELATIONS, Plan, WorldSettings
from metatkgr.data.world.state import Streams, World
from metatkgr.data.world.step import StepFacts, advance
from metatkgr.errors import DataError, MetaTKGRError
from metatkgr.files import atomic_path

__all__ = [
    "FIRST_DAY",
    "STEP_DAYS",
    "Law",
    "WorldSettings",
    "WorldSummary",
    "narrate",
    "simulate",
    "world_settings_from_metadata",
    "write_world",
]


FIRST_DAY = date_to_raw(dt.date(2015, 1, 5), "day")
"""Raw day of step 0, a Monday."""
STEP_DAYS = 7


def narrate(settings: WorldSettings, streams: Streams | None = None) -> Iterator[StepFacts]:
    """The facts of the world step by step, exactly ``settings.facts`` in all.

    The last step is cut to what is left: introductions first, then any facts with equal chance.

    Args:
        settings: of the world.
        streams: the randomness of each step, where it is not that of the settings.
    """
    world = World(Plan.of(settings), streams)
    left = settings.facts
    while left > 0:
        facts = advance(world)
        if len(facts) > left:
            facts = facts.take(left, world.streams(world.step - 1).spawn(1)[0])
        left -= len(facts)
        yield facts


def simulate(
    settings: WorldSettings | None = None, *, facts: int | None = None, seed: int | None = None
) -> Facts:
    """A simulated world as facts, with its law.

    Args:
        settings: of the world; or, for the usual ones,
        facts: number of facts,
        seed: seed of all randomness.

    Returns:
        Facts called 'world' whose ``law`` is a :class:`Law`; entities numbered by birth.
    """
    if settings is None:
        given = {"facts": facts, "seed": seed}
        settings = WorldSettings(**{k: v for k, v in given.items() if v is not None})
    elif facts is not None or seed is not None:
        raise TypeError("give simulate() either settings, or facts and seed")
    steps = list(narrate(settings))
    subject = np.concatenate([step.subject for step in steps])
    object_ = np.concatenate([step.object for step in steps])
    step = np.repeat(np.arange(len(steps)), [len(step) for step in steps])
    entities = int(max(subject.max(), object_.max())) + 1
    kind, number = Plan.of(settings).numbering(-1, len(steps) - 1)
    names = names_of(kind[:entities], number[:entities])
    return Facts.build(
        subject,
        np.concatenate([step.relation for step in steps]),
        object_,
        FIRST_DAY + STEP_DAYS * step,
        entities=Vocabulary(names.tolist()),
        relations=Vocabulary(RELATIONS),
        unit="day",
        name="world",
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
        relations=len(RELATIONS),
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
    except (ValueError, TypeError, MetaTKGRError):
        return None


def _write_steps(
    table: _Table,
    settings: WorldSettings,
    progress: Callable[[int], None] | None,
    row_group: int,
) -> int:
    """Collect steps into row groups and write them; returns the number of steps."""
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
        day = np.full(len(facts), FIRST_DAY + STEP_DAYS * step)
        waiting.append((facts.subject, facts.relation, facts.object, day))
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
        columns = [("subject", name), ("relation", name), ("object", name), ("date", pa.date32())]
        metadata = {_METADATA_KEY: json.dumps(settings.as_dict()).encode()}
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
        """Write (N,) subjects, relations, objects and days of facts up to ``last_step``."""
        subject, relation, other, day = facts
        pa = self.pa
        if last_step > self.named_to:
            names = names_of(*self.plan.numbering(self.named_to + 1, last_step))
            self.names = pa.concat_arrays([self.names, pa.array(names, pa.string())])
            self.named_to = last_step
        self.entities = max(self.entities, int(subject.max()) + 1, int(other.max()) + 1)
        columns = [
            self._named(subject, self.names),
            self._named(relation, pa.array(RELATIONS, pa.string())),
            self._named(other, self.names),
            pa.array(day.astype(np.int32), pa.int32()).cast(pa.date32()),
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

"""Facts from files, folders, frames and tuples; rows that cannot be read are reported, never lost.

>>> facts = read_facts("events.csv")
>>> facts, report = read_facts_with_report("events.csv", skip_bad_rows=True)

The way of a file: ``inputs`` finds it, ``formats`` opens it by its suffix and gives its rows piece
by piece (``layout`` and ``headers`` find out its columns, ``lines`` and ``cells`` cut text),
``checks`` says which rows are bad, ``times`` makes steps of its dates, ``vocabularies`` numbers its
names; here it is all put together. ``tables`` does the same for what Python holds. Every choice is
in :class:`ReadOptions`. Space around names is not part of them.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from metatkgr.data.facts import Facts, IntArray, Vocabulary
from metatkgr.data.readers.bad_rows import BadRow, BadRows, BadRowsError
from metatkgr.data.readers.checks import CheckedRows, check_rows, expand
from metatkgr.data.readers.inputs import open_input
from metatkgr.data.readers.options import Budget, ReadOptions
from metatkgr.data.readers.times import Moments, why_not_a_time
from metatkgr.data.readers.vocabularies import numbered_up_to, vocabularies_beside
from metatkgr.errors import DataError, SettingsError

__all__ = [
    "BadRow",
    "BadRows",
    "BadRowsError",
    "RawFacts",
    "ReadOptions",
    "facts_of_rows",
    "read_facts",
    "read_facts_with_report",
    "read_raw_facts",
]

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, eq=False)
class RawFacts:
    """Facts as the input has them: in its order, with its times and its repetitions.

    Intervals are expanded: the facts of one row follow each other in time order.
    """

    subject: IntArray
    """(N,) entity id."""
    relation: IntArray
    """(N,) relation id."""
    object: IntArray
    """(N,) entity id."""
    time: IntArray
    """(N,) raw time in ``unit`` (see ``data.calendar``)."""
    entities: Vocabulary
    relations: Vocabulary
    unit: str
    name: str
    report: BadRows

    def build(self) -> Facts:
        """The facts ordered by time, each once."""
        return Facts.build(
            self.subject,
            self.relation,
            self.object,
            self.time,
            entities=self.entities,
            relations=self.relations,
            unit=self.unit,
            name=self.name,
        )


def read_facts(
    source: str | Path | Iterable[Any] | Any, options: ReadOptions | None = None, **changes: Any
) -> Facts:
    """Read facts.

    Args:
        source: a file (.csv, .tsv, .txt, .tab, .jsonl, .nq …, each also .gz, .zst or .zip;
            .parquet), a folder with train, valid and test files or with one file; (subject,
            relation, object, time) or (subject, relation, object, start, end) tuples,
            dictionaries, a pandas or polars frame, anything that gives an Arrow stream (pyarrow,
            DuckDB), a directed graph of networkx, a ``TemporalData`` of PyTorch Geometric.
        options: how to read it.
        **changes: fields of :class:`ReadOptions` to change.

    Returns:
        The facts, ordered by time, each once.

    Raises:
        BadRowsError: some rows cannot be read and ``skip_bad_rows`` is off, or all of them.
        DataError: there is nothing to read.
    """
    facts, report = read_facts_with_report(source, options, **changes)
    for line in report.remarks():
        _LOG.warning("%s", line)
    if report.total:
        _LOG.warning("%s", report.text())
    return facts


def read_facts_with_report(
    source: str | Path | Iterable[Any] | Any, options: ReadOptions | None = None, **changes: Any
) -> tuple[Facts, BadRows]:
    """Read facts as :func:`read_facts` does; also say what came of every row."""
    raw = read_raw_facts(source, options, **changes)
    return raw.build(), raw.report


def read_raw_facts(
    source: str | Path | Iterable[Any] | Any, options: ReadOptions | None = None, **changes: Any
) -> RawFacts:
    """Read facts as :func:`read_facts` does, without ordering them and with repetitions."""
    options = ReadOptions.of(options, changes)
    opened = open_input(source, options)
    vocabularies = vocabularies_beside(opened.folder, options.ids)
    checked = check_rows(
        opened.parts,
        source=opened.label,
        unit=options.unit,
        ids=options.ids,
        vocabularies=vocabularies,
    )
    report = checked.report
    report.check(skip=options.skip_bad_rows)
    row, time = facts_of_rows(checked, options, opened.label)
    used = row[np.flatnonzero(np.diff(row, prepend=-1))]  # rows never decrease
    report = replace(report, outside=report.rows_read - report.one_sided - len(used))
    if len(used) == 0:
        raise report.no_facts()
    columns, entities, relations = _numbered(checked, vocabularies, used)
    subject, relation, other = (column[row] for column in columns)
    return RawFacts(
        subject,
        relation,
        other,
        time,
        entities,
        relations,
        checked.unit,
        opened.name,
        report,
    )


def facts_of_rows(
    rows: CheckedRows, options: ReadOptions, source: str
) -> tuple[IntArray, IntArray]:
    """Row and raw time of every fact: one each for points in time, many for intervals."""
    clip = options.clip
    if clip is None and not rows.interval:
        return np.arange(len(rows.first), dtype=np.int64), rows.first
    if clip is not None:
        moments = Moments.parse(clip)
        first, last, known = moments.in_unit(rows.unit)
        for moment, is_known in zip(clip, known, strict=True):
            if not is_known:
                reason = why_not_a_time(moment, rows.unit)
                raise SettingsError(f"clip: {moment!r} is not a time: {reason}")
        limits = int(first[0]), int(last[1])
        if limits[0] > limits[1]:
            raise SettingsError(f"clip: {clip[0]!r} is later than {clip[1]!r}")
    elif rows.span is not None:
        limits = rows.span
    else:
        raise DataError(f"{source}: all intervals are open; say which range to fill (clip)")
    budget = Budget(source, options)
    return expand(rows.first, rows.last, rows.first_known, rows.last_known, limits, budget)


def _numbered(
    rows: CheckedRows, vocabularies: tuple[Vocabulary | None, Vocabulary | None], used: IntArray
) -> tuple[list[IntArray], Vocabulary, Vocabulary]:
    """Ids of all names of ``rows``, and the vocabularies; names only count where they are used."""
    if not rows.ids:
        return rows.by_appearance(used)
    subject, relation, other = columns = [rows.names[r] for r in ("subject", "relation", "object")]
    entities, relations = vocabularies
    if entities is None:
        entities = numbered_up_to(max(int(subject.max()), int(other.max())), len(subject))
    if relations is None:
        relations = numbered_up_to(int(relation.max()), len(subject))
    return columns, entities, relations

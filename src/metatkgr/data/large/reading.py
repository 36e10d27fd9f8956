"""The first half of ``ingest`` and ``append``: files become numbered names and facts by time.

Pieces of the files are checked and written down with the piece's own numbers for names; then names
get their numbers (``names``), and facts are ordered by time on disk.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from metatkgr.data.facts import IntArray, Vocabulary
from metatkgr.data.large.chunks import pieces
from metatkgr.data.large.columns import Column, ColumnWriter
from metatkgr.data.large.external_sort import ExternalSort
from metatkgr.data.large.manifest import COLUMNS
from metatkgr.data.large.names import NameTable
from metatkgr.data.large.scan import Scan, scan
from metatkgr.data.readers.bad_rows import FIRST, BadRows, BadRowsError
from metatkgr.data.readers.checks import CheckedRows, check_rows
from metatkgr.data.readers.inputs import kind_of_file
from metatkgr.data.readers.options import ReadOptions
from metatkgr.data.readers.reading import facts_of_rows
from metatkgr.data.readers.rows import Rows
from metatkgr.data.readers.vocabularies import by_first_appearance, numbered_up_to
from metatkgr.errors import DataError

__all__ = ["Reading"]


@dataclass(frozen=True)
class _Piece:
    """How much of each file of the work folder belongs to one piece of the input."""

    facts: int
    entities: int
    relations: int


class Reading:
    """One reading of some files: names get numbers, times stay as they are.

    Args:
        files: the parts of one graph, in order.
        options: how to read them.
        work: an empty folder for what does not fit into memory.
        out: where the vocabularies go, ``entities-*`` and ``relations-*``.
        rows: how many rows are in memory at a time, in a few copies.
        found: what is known of the files before; None: it is found out.
    """

    def __init__(
        self,
        files: list[Path],
        options: ReadOptions,
        work: Path,
        out: Path,
        rows: int,
        found: Scan | None = None,
    ) -> None:
        self.files, self.options, self.work, self.rows = files, options, work, rows
        self.label = str(files[0]) if len(files) == 1 else f"{len(files)} files"
        plain = files[0].resolve().parent.name if len(files) > 1 else kind_of_file(files[0])[0]
        self.name = options.name or plain
        self.found: Scan = found or scan(files, options, rows)
        self.names = {
            "entities": NameTable(work, out / "entities", rows),
            "relations": NameTable(work, out / "relations", rows),
        }
        self.pieces: list[_Piece] = []
        self.report = BadRows(self.label, 0, (), 0)
        self.origin: int | None = None
        self.stride, self.latest, self.ordered = 0, 0, True
        self.largest = {"entities": -1, "relations": -1}
        self._count: dict[str, int] = {}
        self._appearances: dict[str, Column] = {}

    def read(self, progress: Callable[[int], None] | None) -> None:
        """First pass: check rows, write their facts down with each piece's own numbers."""
        writers = {name: ColumnWriter(self.work / name) for name in COLUMNS}
        # Bad rows are told first, as everywhere, so this waits for the end.
        all_open = self.found.interval and not self.options.clip and self.found.span is None
        for file in self.files:
            for part in pieces(file, self.options, self.rows):
                checked = self._check(part)
                if progress:
                    progress(len(part) + part.bad_total)
                if len(checked.first) == 0 or all_open:
                    continue
                row, when = facts_of_rows(checked, self.options.clip, self.label)
                used = row[np.flatnonzero(np.diff(row, prepend=-1))]
                outside = len(checked.first) - len(used)
                self.report = replace(self.report, outside=self.report.outside + outside)
                if len(used):
                    self._note_times(when)
                    columns = self._numbered(checked, row, used)
                    for name, column in zip(COLUMNS, (*columns, when), strict=True):
                        writers[name].append(column)
        for writer in writers.values():
            writer.__exit__(None, None, None)
        report = self.report
        if report.rows_in_file == 0:
            raise DataError(f"{self.label} holds no rows")
        if report.rows_read == 0:
            raise BadRowsError(report, "No row can be read: check the options that say how to.")
        if report.total and not self.options.skip_bad_rows:
            hint = "Correct them, or use --skip-bad-rows to go on without them."
            raise BadRowsError(report, hint)
        if all_open:
            raise DataError(f"{self.label}: all intervals are open; say which range to fill (clip)")
        if self.origin is None:
            raise DataError(
                f"{self.label}: all {report.rows_read:,} rows lie outside the clip range"
            )

    def _check(self, part: Rows) -> CheckedRows:
        if part.layout.interval != self.found.interval:
            raise DataError(f"{self.label}: some files have intervals and some do not")
        checked = check_rows(
            [part],
            source=self.label,
            unit=self.found.unit,
            ids=self.found.ids,
            vocabularies=self.found.vocabularies,
        )
        old, new = self.report, checked.report
        self.report = replace(
            old,
            total=old.total + new.total,
            first=(*old.first, *new.first)[:FIRST],
            rows_read=old.rows_read + new.rows_read,
        )
        return replace(checked, span=self.found.span)

    def _note_times(self, when: IntArray) -> None:
        if self.origin is None:
            self.origin = self.latest = int(when[0])
        self.ordered &= int(when[0]) >= self.latest and bool((when[1:] >= when[:-1]).all())
        # Differences to any one time have the same divisor as differences to the first.
        self.stride = math.gcd(self.stride, int(np.gcd.reduce(when - self.origin)))
        self.latest = max(self.latest, int(when.max()))
        earliest = int(when.min())
        if earliest < self.origin:
            self.origin = earliest

    def _numbered(
        self, checked: CheckedRows, row: IntArray, used: IntArray
    ) -> tuple[IntArray, IntArray, IntArray]:
        """Subjects, relations, objects of the facts: ids, or the piece's own numbers for names."""
        subject, relation, other = (checked.names[r] for r in ("subject", "relation", "object"))
        if self.found.ids:
            self.largest["entities"] = max(
                self.largest["entities"], int(subject.max()), int(other.max())
            )
            self.largest["relations"] = max(self.largest["relations"], int(relation.max()))
            self.pieces.append(_Piece(len(row), 0, 0))
            return subject[row], relation[row], other[row]
        texts = checked.texts
        (subject, other), entities = by_first_appearance([subject, other], texts["subject"], used)
        (relation,), relations = by_first_appearance([relation], texts["relation"], used)
        self.names["entities"].add(entities.names)
        self.names["relations"].add(relations.names)
        self.pieces.append(_Piece(len(row), len(entities), len(relations)))
        return subject[row], relation[row], other[row]

    def names_numbered(self) -> tuple[int, int]:
        """Number the names and write the vocabularies; how many entities and relations there are.

        A name's number is that of its first appearance.
        """
        if self.found.ids:
            self._names_of_ids()
        for kind, table in self.names.items():
            count, appearances = table.number()
            self._count[kind] = count
            if not self.found.ids:
                self._appearances[kind] = appearances
        return self._count["entities"], self._count["relations"]

    def by_time(self, renumbered: Mapping[str, IntArray] | None = None) -> Iterator[IntArray]:
        """(4, n) raw time, subject, relation, object of all facts, by time; repeated ones too.

        Args:
            renumbered: by ``entities`` and ``relations`` the ids of the names; None: their numbers.
        """
        blocks = self._facts(renumbered)
        if self.ordered:
            return blocks
        sorter = ExternalSort(self.work, 4, self.rows)
        for block in blocks:
            sorter.add(*block)
        return sorter.merged()

    def _names_of_ids(self) -> None:
        """Where names are ids, the vocabulary is a given one, or numbers."""
        for kind, given in zip(self.names, self.found.vocabularies, strict=True):
            known: Vocabulary = given or numbered_up_to(self.largest[kind], self.report.rows_read)
            for low in range(0, len(known), self.rows):
                self.names[kind].add(known.names[low : low + self.rows])

    @property
    def facts(self) -> int:
        """How many there are, with repetitions."""
        return sum(piece.facts for piece in self.pieces)

    def _facts(self, renumbered: Mapping[str, IntArray] | None) -> Iterator[IntArray]:
        """(4, n) raw time, subject, relation, object of each piece, with the ids of the names."""
        columns = {name: Column(self.work / name) for name in COLUMNS}
        at = entity = relation = 0
        for piece in self.pieces:
            part = {name: column.read(at, at + piece.facts) for name, column in columns.items()}
            if self._appearances:
                known = self._appearances
                entities = known["entities"].read(entity, entity + piece.entities)
                relations = known["relations"].read(relation, relation + piece.relations)
                for end in ("subject", "object"):
                    part[end] = entities[part[end]]
                part["relation"] = relations[part["relation"]]
            if renumbered is not None:
                for end in ("subject", "object"):
                    part[end] = renumbered["entities"][part[end]]
                part["relation"] = renumbered["relations"][part["relation"]]
            yield np.stack([part[name] for name in ("time", "subject", "relation", "object")])
            at += piece.facts
            entity, relation = entity + piece.entities, relation + piece.relations

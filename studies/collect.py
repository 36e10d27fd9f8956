"""Records of a grid into ``results/``: ``python -m studies.collect OUT/cells results``.

``results/cells/DATASET/MODEL.json`` holds all records of a model, one line for each. A cell that is
there already is replaced. The numbers of queries of entities are the same in all records of the
same tasks, so a file holds them once.
"""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from metatkgr.errors import DataError, MetaTKGRError
from metatkgr.experiments.cells import Cell
from metatkgr.experiments.records import Record
from metatkgr.experiments.results import read_records
from metatkgr.files import read_json, write_text

__all__ = ["collect", "collected"]


def collected(path: Path) -> list[Record]:
    """The records of a file that :func:`collect` wrote."""
    content = read_json(path)
    records = content.get("records") if isinstance(content, dict) else None
    if not isinstance(records, list):
        raise DataError(f"{path} does not hold records: write it with python -m studies.collect")
    try:
        return [Record.from_json(_with_counts(record, _counts(content))) for record in records]
    except MetaTKGRError as error:
        raise DataError(f"{path} cannot be used: {error}") from None


def collect(records: Iterable[Record], results: Path) -> list[Path]:
    """Merge records into the files of ``results``; tiny trainings are left out.

    Returns:
        The files written.
    """
    by_file: dict[Path, dict[str, Record]] = defaultdict(dict)
    for record in records:
        if not record.cell.tiny:
            dataset, _, name = record.cell.name.partition("/")
            by_file[results / "cells" / dataset / f"{record.cell.model}.json"][name] = record
    for path, by_name in by_file.items():
        counts: dict[str, str] = {}
        if path.exists():
            counts = dict(_counts(read_json(path)))
            for record in collected(path):
                by_name.setdefault(record.cell.name.partition("/")[2], record)
        lines = []
        for _, record in sorted(by_name.items()):
            result = _needed(record)
            if "queries" in (per_entity := dict(result.get("per_entity") or {})):
                counts[_tasks_of(record.cell)] = per_entity.pop("queries")
                result["per_entity"] = per_entity
            lines.append(_line(record.to_json() | {"result": result}))
        queries = _line(dict(sorted(counts.items())))
        text = ",\n".join(lines)
        write_text(path, f'{{"queries": {queries},\n"records": [\n{text}\n]}}\n')
    return sorted(by_file)


def _counts(content: Any) -> dict[str, Any]:
    counts = content.get("queries", {}) if isinstance(content, dict) else {}
    return counts if isinstance(counts, dict) else {}


def _with_counts(record: Any, counts: dict[str, Any]) -> Any:
    """A record with the numbers of queries that it shares with others."""
    try:
        cell, result, packed = record["cell"], record["result"], record["result"]["per_entity"]
    except (KeyError, TypeError):
        return record  # it has none, or is no record: that is told where it is read
    if not isinstance(packed, dict) or not packed or "queries" in packed:
        return record
    known = counts.get(_tasks_of(Cell.from_json(cell)))
    return record | {"result": result | {"per_entity": packed | {"queries": known}}}


def _tasks_of(cell: Cell) -> str:
    """What an entity's number of queries depends on."""
    return f"{cell.visibility}/{cell.test_shots}"


def _needed(record: Record) -> dict[str, Any]:
    """A result without what no table, test or figure is made from."""
    result, cell = dict(record.result), record.cell
    if not cell.is_plain_test:
        result.pop("per_entity", None)
    if not cell.is_plain_test or cell.shots != 3 or record.row.variant:
        result.pop("per_step", None)
    return result


def _line(value: Any) -> str:
    try:
        return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    except ValueError:
        raise DataError("a record holds a number that is not finite") from None


if __name__ == "__main__":
    for made in collect(read_records(Path(sys.argv[1])), Path(sys.argv[2])):
        print(made)

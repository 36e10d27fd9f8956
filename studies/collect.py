"""Records of a grid into ``results/``: ``python -m studies.collect OUT/cells results``.

Its registered rounds and the log of looks at meta-test come along.

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

from metatkgr.errors import DataError
from metatkgr.experiments.records import Record
from metatkgr.experiments.results import collected, read_records, shared_counts, tasks_of
from metatkgr.experiments.rounds import LOOKS
from metatkgr.files import read_json, write_json, write_text

__all__ = ["collect", "keep_looks"]


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
            counts = dict(shared_counts(read_json(path)))
            for record in collected(path):
                by_name.setdefault(record.cell.name.partition("/")[2], record)
        lines = []
        for _, record in sorted(by_name.items()):
            result = _needed(record)
            if "queries" in (per_entity := dict(result.get("per_entity") or {})):
                counts[tasks_of(record.cell)] = per_entity.pop("queries")
                result["per_entity"] = per_entity
            lines.append(_line(record.to_json() | {"result": result}))
        queries = _line(dict(sorted(counts.items())))
        text = ",\n".join(lines)
        write_text(path, f'{{"queries": {queries},\n"records": [\n{text}\n]}}\n')
    return sorted(by_file)


def keep_looks(out: Path, results: Path) -> None:
    """The rounds and the log of a grid's folder, added to those of ``results``."""
    for path in sorted((out / "rounds").glob("*.json")):
        write_json(results / "rounds" / path.name, read_json(path))
    if (out / LOOKS).exists():
        kept = results / LOOKS
        lines = kept.read_text(encoding="utf-8").splitlines() if kept.exists() else []
        new = (out / LOOKS).read_text(encoding="utf-8").splitlines()
        write_text(kept, "".join(f"{line}\n" for line in dict.fromkeys(lines + new)))


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
    keep_looks(Path(sys.argv[1]).parent, Path(sys.argv[2]))

"""What reading gives for every file of the corpus, by ``read_facts`` and by ``data ingest``."""

from __future__ import annotations

import datetime as dt
import json
import logging
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import metatkgr as mt
from goldens.cells import Cell
from goldens.corpus import Case, cases, drawn_cases
from goldens.surface import command, digest, facts_outcome, read_with_report

__all__ = ["cells", "flags_of", "ingested", "written"]

_DRAWN = 400
_MOST_LINES = 5
_TOGETHER = 50
"""Drawn files in one cell: of each only a digest is kept."""
_PUBLISHED = ("YAGO", "WIKI", "ICEWS18")
_FOLDERS = ("ICEWS14", "YAGO11K", "WIKIDATA12K", "YAGO")
"""Published ones that are read as anybody's folder is."""


def cells() -> list[Cell]:
    """One for each file, a few for those that were drawn, one for each published dataset."""
    found = [Cell(f"readers/{case.name}", partial(_read_and_ingested, case)) for case in cases()]
    found += [Cell(f"readers/python-{name}", make) for name, make in _FROM_PYTHON.items()]
    for begin in range(0, _DRAWN, _TOGETHER):
        name = f"readers/drawn-{begin:03d}"
        found.append(Cell(name, partial(_drawn, begin, begin + _TOGETHER)))
    for name in _PUBLISHED:
        found.append(Cell(f"readers/published-{name}", partial(_published, name), needs=name))
    for name in _FOLDERS:
        found.append(Cell(f"readers/folder-{name}", partial(_folder, name), needs=name))
    return found


@contextmanager
def written(files: dict[str, bytes]) -> Iterator[Path]:
    """A folder that holds these files; it is the working directory meanwhile."""
    before = Path.cwd()
    logging.disable(logging.WARNING)
    with tempfile.TemporaryDirectory(prefix="goldens-") as place:
        for name, data in files.items():
            path = Path(place) / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
        os.chdir(place)
        try:
            yield Path(place)
        finally:
            os.chdir(before)
            logging.disable(logging.NOTSET)


def _read(case: Case) -> dict[str, Any]:
    try:
        facts, report = read_with_report(case.read, **case.options)
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}"}
    return facts_outcome(facts) | {"report": _report(report)}


def _report(told: dict[str, Any]) -> list[str]:
    """A report of bad rows, one line for its counts and one for each row."""
    counts = ("rows_in_file", "rows_read", "rows_bad", "rows_outside")
    parts = ("source", "place", "number", "column", "value", "reason")
    rows = [" | ".join(str(row[key]) for key in parts) for row in told["first"]]
    lines = [f"{told['source']}: {' '.join(str(told[key]) for key in counts)}", *rows]
    if len(lines) > _MOST_LINES:
        lines[_MOST_LINES:] = [f"all {len(rows)}: {digest(*rows)}"]
    return lines


def _shortened(text: str) -> str:
    """A message that is long by its beginning and a digest."""
    return text if len(text) <= 600 else f"{text[:300]}… all: {digest(text)}"


def flags_of(options: dict[str, Any]) -> list[str]:
    """Fields of ``ReadOptions`` as the command takes them."""
    words: list[str] = []
    for key, value in options.items():
        if key == "columns":
            words += ["--columns", ",".join(value)]
        elif key == "clip":
            words += ["--clip", "..".join(value)]
        elif key == "unit":
            words += ["--time-unit", value]
        elif key == "header":
            words.append("--header" if value else "--no-header")
        elif key == "ids":
            words.append("--ids" if value else "--names")
        elif key == "skip_bad_rows":
            words += ["--skip-bad-rows", "--bad-rows-report", "report.json"] if value else []
        else:
            words += [f"--{key}", value]
    return words


def ingested(words: list[str], folder: str) -> dict[str, Any]:
    """What an ingest said, and the facts of the folder afterwards."""
    ran = command("data", "ingest", *words, "--json", "-")
    if ran.code:
        return {"error": ran.err.strip()}
    told = json.loads(ran.out)
    report = told.pop("report")
    if Path("report.json").exists():
        assert json.loads(Path("report.json").read_text()) == report
        Path("report.json").unlink()
    for name in ("folder", "seconds"):
        told.pop(name, None)
    said = " ".join(f"{key}={value}" for key, value in told.items())
    return {"facts": facts_outcome(mt.load(folder)), "told": said, "report": _report(report)}


def _read_and_ingested(case: Case) -> dict[str, Any]:
    """The outcome of reading; of an ingest only where it differs."""
    with written(case.files):
        read = _read(case)
        other = ingested([case.read, "--out", "folder", *flags_of(case.options)], "folder")
    beside = _beside(read, other)
    for outcome in (read, beside):
        if "error" in outcome:
            outcome["error"] = _shortened(outcome["error"])
    return read | {"ingest": beside}


def _beside(read: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    """An ingest beside a reading: 'same', or what is different."""
    if "error" in read and "error" in other:
        plain = read["error"].partition(": ")[2]
        return {"error": "same" if f"error: {plain}" == other["error"] else other["error"]}
    if "error" in read or "error" in other:
        return other
    expected = {key: value for key, value in read.items() if key != "report"}
    found = {**other["facts"], "name": expected["name"]}
    report = "same" if other["report"] == read["report"] else other["report"]
    return {
        "name": other["facts"]["name"],
        "facts": "same" if found == expected else other["facts"],
        "told": other["told"],
        "report": report,
    }


def _drawn(begin: int, end: int) -> dict[str, Any]:
    """A digest of each outcome, and how it went in a word."""
    found = {}
    for case in drawn_cases(end)[begin:]:
        outcome = _read_and_ingested(case)
        word = "error" if "error" in outcome else f"{outcome['facts']} facts"
        text = json.dumps(outcome, sort_keys=True)
        found[case.name] = f"{word} {digest(text)[:10]}"
        if os.environ.get("GOLDENS_SHOW"):
            found[case.name] = json.loads(text)
    return found


def _published(name: str) -> dict[str, Any]:
    return facts_outcome(mt.load(name))


def _folder(name: str) -> dict[str, Any]:
    """A folder of files, read at once and by an ingest."""
    with written({}) as place:
        (place / name).symlink_to(Path(os.environ["METATKGR_DATA"]).resolve() / name)
        read = facts_outcome(mt.read_facts(name, skip_bad_rows=True))
        other = ingested([name, "--out", "folder", *flags_of({"skip_bad_rows": True})], "folder")
    return {"read": read, "ingested": other}


# From Python --------------------------------------------------------------------------------------

_ROWS: list[tuple[Any, ...]] = [
    ("Ann", "knows", "Bob", "2018-01-01"),
    ("Bob", "likes", "Cid", "2018-01-03"),
    ("Ann", "likes", "Bob", "2018-01-02"),
]
_NAMED = ["subject", "relation", "object", "time"]


def _of(source: Any, **options: Any) -> dict[str, Any]:
    logging.disable(logging.WARNING)
    try:
        facts, report = read_with_report(source, **options)
    except Exception as error:
        return {"error": _shortened(f"{type(error).__name__}: {error}")}
    finally:
        logging.disable(logging.NOTSET)
    return facts_outcome(facts) | {"report": _report(report)}


def _tuples() -> dict[str, Any]:
    return _of(_ROWS)


def _date_objects() -> dict[str, Any]:
    days = [(*row[:3], dt.date.fromisoformat(row[3])) for row in _ROWS]
    moments = [(*row[:3], dt.datetime(2018, 1, n + 1, 5 * n)) for n, row in enumerate(_ROWS)]
    return {"days": _of(days), "moments": _of(moments)}


def _bad_tuples() -> dict[str, Any]:
    bad: list[Any] = [
        *(("a", "r", "b"), 5, "abcd", (None, "r", "b", 1), ("a", "r", float("nan"), 1)),
        *(("a", "r", "b", 1.5), ("a", "\ud800", "b", 1), ("a", "r", "b", 10**15 + 1)),
    ]
    return _of([("a", "r", "b", 1), ("a", "r", "c", 3), *bad], skip_bad_rows=True)


def _interval_tuples() -> dict[str, Any]:
    rows = [("a", "r", "b", 1, 3), ("b", "r", "c", 2, None), ("c", "r", "a", 3, 1)]
    return _of(rows, skip_bad_rows=True)


def _table() -> dict[str, Any]:
    import pyarrow as pa

    columns = dict(zip(_NAMED, map(list, zip(*_ROWS, strict=True)), strict=True))
    return {
        "plain": _of(pa.table(columns)),
        "nulls": _of(
            pa.table({"s": ["a", None], "r": ["r", "r"], "o": ["b", "b"], "t": [1, 2]}),
            skip_bad_rows=True,
        ),
    }


def _frames() -> dict[str, Any]:
    import pandas
    import polars

    mixed = {"s": ["a", 7, 2.0], "r": list("xyz"), "o": [1, 2, 3], "t": [1.0, 2.0, float("nan")]}
    return {
        "pandas": _of(pandas.DataFrame(_ROWS, columns=_NAMED)),
        "pandas-mixed": _of(pandas.DataFrame(mixed), skip_bad_rows=True),
        "polars": _of(polars.DataFrame(_ROWS, schema=_NAMED, orient="row")),
    }


_FROM_PYTHON: dict[str, Callable[[], dict[str, Any]]] = {
    "tuples": _tuples,
    "dates": _date_objects,
    "bad-tuples": _bad_tuples,
    "intervals": _interval_tuples,
    "table": _table,
    "frames": _frames,
    "nothing": lambda: {"none": _of(None), "no-rows": _of([])},
}

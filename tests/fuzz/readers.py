"""Files of facts: text, compressed text, Parquet, tuples, vocabulary files, dates."""

from __future__ import annotations

import datetime as dt
import gzip
import io
import json
import random
import zipfile
from functools import cache
from pathlib import Path
from typing import Any

from fuzz.fuzzing import fuzzer, scratch
from fuzz.mutation import damage_bytes, odd_text, odd_value
from metatkgr.data.calendar import UNITS, Calendar
from metatkgr.data.readers import read_facts_with_report
from metatkgr.data.readers.bad_rows import BadRowsError
from metatkgr.data.readers.times import Kind, Moments, why_not_a_time
from metatkgr.data.readers.vocabularies import read_vocabulary

_MOST_FACTS = 20_000
"""Of one case: an interval may be as long as memory allows, but cases have to be small."""

_NAMES = ["Ann", "Bob", "Cid", " Dee ", "7", "0", "1", "2", "é", "Q42", "O'Neil", "x y"]
_TIMES = [
    *("0", "1", "5", "-3", "2018-01-01", "2018-01-02", "2018-02", "2018-01-02T05", "1987-##-##"),
    *("1987", "198#-##-##", "####-##-##", "2018-01-01T10:30:59+02:00", "19870531", "-431-##-##"),
]
_ENDS = ["\n", "\n", "\n", "\r\n", "\r", "\n\n", "\r\r\n", "\n \t\n"]
_HEADERS = [
    ["subject", "relation", "object", "time"],
    ["head", "type", "tail", "year"],
    ["s", "r", "o", "start", "end"],
    ["a", "b", "c", "when"],
    ["time", "subject", "object", "relation"],
]


def _cell(rng: random.Random, usual: list[str], odd: float) -> str:
    return odd_text(rng) if rng.random() < odd else rng.choice(usual)


def _text(rng: random.Random) -> bytes:
    """Text that is nearly a file of facts."""
    delimiter = rng.choice(",,,\t\t;|")
    odd = rng.choice((0.0, 0.02, 0.1, 0.4))
    width = rng.choice((4, 4, 4, 5, 6, 3))
    times = [rng.choice(_TIMES)] if rng.random() < 0.4 else _TIMES
    rows = [rng.choice(_HEADERS)] if rng.random() < 0.4 else []
    for _ in range(rng.randrange(1, 9)):
        cells = [_cell(rng, _NAMES if at < 3 else times, odd) for at in range(width)]
        if rng.random() < odd:
            cells = cells[: rng.randrange(len(cells) + 1)]
        if rng.random() < odd:
            cells = [f'"{cell}"' for cell in cells]
        rows.append(cells)
    end = rng.choice(_ENDS)
    text = end.join(delimiter.join(row) for row in rows) + rng.choice((end, ""))
    encoding = rng.choice(("utf-8",) * 8 + ("utf-16", "latin-1", "utf-8-sig"))
    return text.encode(encoding, "surrogatepass" if encoding.startswith("utf") else "replace")


def _options(rng: random.Random) -> dict[str, Any]:
    choices: dict[str, list[Any]] = {
        "header": [None, None, True, False],
        "interval": [None, None, True, False],
        "ids": [None, None, True, False],
        "unit": ["auto", "auto", *UNITS],
        "delimiter": [None, None, None, ",", "\t", ";", " ", ":"],
        "columns": [None] * 5
        + [("0", "1", "2", "3"), ("time", "s", "r", "o"), ("9", "1", "2", "3")],
        "clip": [None] * 5 + [("0", "9"), ("1980", "2020"), ("2018-01-01", "x"), ("5", "1")],
    }
    few = rng.choice((0.0, 0.1, 0.5))
    return {key: rng.choice(values) for key, values in choices.items() if rng.random() < few}


def _lines(data: bytes) -> int:
    """Lines that are not blank, counted without the reader."""
    return sum(1 for line in io.BytesIO(data.removeprefix(b"\xef\xbb\xbf")) if line.strip())


def _check(source: Any, rows: int | None, options: dict[str, Any], headers: int = 1) -> None:
    """Read; every row is accepted or refused, and all are counted."""
    try:
        # At 64 bytes a fact of an interval.
        given = {"most_bytes": 64 * _MOST_FACTS, **options}
        facts, report = read_facts_with_report(source, skip_bad_rows=True, **given)
    except BadRowsError as error:
        report = error.report
        assert report.rows_read + report.total == report.rows_in_file
        if rows is not None:
            assert rows - headers <= report.rows_in_file <= rows, (report.rows_in_file, rows)
        raise
    assert report.rows_read + report.total == report.rows_in_file
    assert len(report.first) == min(report.total, 20)
    if rows is not None:
        assert rows - headers <= report.rows_in_file <= rows, (report.rows_in_file, rows)
    assert len(facts) >= 1
    assert facts.time[0] == 0
    repr(facts)
    facts.describe(0)


@fuzzer(share=11)
def text_files(rng: random.Random) -> None:
    """CSV and TSV, damaged or only odd."""
    data = _text(rng)
    if rng.random() < 0.5:
        data = damage_bytes(rng, data)
    path = scratch() / f"facts{rng.choice(('.csv', '.tsv', '.txt', '.tab'))}"
    path.write_bytes(data)
    options = _options(rng)
    # A quoted cell may hold line breaks, so lines are rows only where there are no quotes.
    known = None if b'"' in data else _lines(data)
    _check(path, known, options)


@fuzzer(share=3)
def compressed_files(rng: random.Random) -> None:
    """Gzip, zstandard and zip, whole or broken; nothing is read from a broken one."""
    import pyarrow as pa

    data = _text(rng)
    kind = rng.choice((".gz", ".zst", ".zip"))
    if kind == ".gz":
        packed = gzip.compress(data, 1, mtime=0)
    elif kind == ".zip":
        buffer = io.BytesIO()
        with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr("facts.csv", data)
        packed = buffer.getvalue()
    else:
        packed = pa.compress(data, codec="zstd", asbytes=True)
    whole = rng.random() < 0.3
    path = scratch() / f"facts.csv{kind}"
    path.write_bytes(packed if whole else damage_bytes(rng, packed))
    _check(path, _lines(data) if whole and b'"' not in data else None, {"header": None})


@fuzzer(share=3)
def event_files(rng: random.Random) -> None:
    """JSON lines, raw exports of GDELT and quads, damaged or only odd."""
    odd, times = rng.choice((0.0, 0.05, 0.3)), rng.choice((_TIMES, ["20180101", "1514764800"]))
    rows = [
        [_cell(rng, _NAMES if at < 3 else times, odd) for at in range(4)]
        for _ in range(rng.randrange(1, 6))
    ]
    suffix = rng.choice((".jsonl", ".CSV", ".nq"))
    if suffix == ".jsonl":
        keys = rng.choice((["subject", "relation", "object", "time"], ["head", "rel", "to", "ts"]))
        lines = [json.dumps(dict(zip(keys, row, strict=True))) for row in rows]
    elif suffix == ".nq":
        lines = ["<a:{}> <a:{}> <a:{}> <a:{}> .".format(*row) for row in rows]
    else:
        cells = [["1", row[3], *[""] * rng.choice((55, 56, 59))] for row in rows]
        for line, (subject, relation, other, _) in zip(cells, rows, strict=True):
            line[6], line[26], line[16] = subject, relation, other
        lines = ["\t".join(line) for line in cells]
    data = "\n".join(lines).encode("utf-8", "surrogatepass")
    path = scratch() / f"facts{suffix}"
    path.write_bytes(damage_bytes(rng, data) if rng.random() < 0.5 else data)
    _check(path, None, {"unit": rng.choice(("auto", *UNITS))})


@cache
def _parquet_files() -> list[bytes]:
    import pyarrow as pa
    from pyarrow import parquet

    day = dt.date(2018, 1, 1)
    columns: list[dict[str, Any]] = [
        {"s": ["a", "b", None], "r": ["r", "r", "q"], "o": ["b", "c", "a"], "t": [1, 2, 2**62]},
        {"s": ["a", "b"], "r": ["r", ""], "o": ["b", "c"], "t": [day, None]},
        {"s": [1, 2], "r": [0, 0], "o": [2.0, 3.5], "t": ["2018", "x"]},
        {"s": ["a"], "r": [["r"]], "o": ["b"], "t": [True]},
        {"s": [b"a", b"\xff"], "r": ["r", "r"], "o": ["b", "b"], "t": [1.5, 2.0]},
    ]
    files = []
    for content in columns:
        buffer = io.BytesIO()
        parquet.write_table(pa.table(content), buffer)
        files.append(buffer.getvalue())
    return files


@fuzzer(share=2)
def parquet_files(rng: random.Random) -> None:
    """Parquet of several types, mostly damaged."""
    data = rng.choice(_parquet_files())
    path = scratch() / "facts.parquet"
    path.write_bytes(damage_bytes(rng, data) if rng.random() < 0.9 else data)
    _check(path, None, {"interval": rng.choice((None, False))})


@fuzzer(share=6)
def tuples(rng: random.Random) -> None:
    """Rows from Python, of anything."""
    odd = rng.choice((0.0, 0.05, 0.3))

    def cell(usual: list[Any]) -> Any:
        if rng.random() >= odd:
            return rng.choice(usual)
        return rng.choice((odd_value(rng), dt.date(2018, 1, 1), dt.datetime(1, 1, 1), b"x", object))

    times: list[Any] = rng.choice(
        ([0, 1, 2], ["2018", "2019"], [dt.date(2018, 1, d) for d in (1, 2)])
    )
    width = rng.choice((4, 4, 4, 5))
    rows: list[Any] = [
        tuple(cell(["a", "b", 7] if at < 3 else times) for at in range(width))
        for _ in range(rng.randrange(7))
    ]
    if rows and rng.random() < odd:
        rows[rng.randrange(len(rows))] = rng.choice((None, 3, "abcd", (), ("a",), {"s": 1}))
    _check(rows, len(rows), {"ids": rng.choice((None, True)), "unit": "auto"}, headers=0)


@fuzzer(share=6)
def vocabulary_files(rng: random.Random) -> None:
    """``entity2id.txt``: every line that is accepted is found again under its id."""
    lines = []
    for at in range(rng.randrange(8)):
        name = odd_text(rng) if rng.random() < 0.1 else rng.choice(_NAMES)
        number = odd_text(rng) if rng.random() < 0.1 else str(at if rng.random() < 0.9 else 0)
        lines.append("\t".join((name, number)) + rng.choice(("", "", "\t5", "\r")))
    data = "\n".join(lines).encode("utf-8", "surrogatepass")
    if rng.random() < 0.3:
        data = damage_bytes(rng, data)
    path = scratch() / "entity2id.txt"
    path.write_bytes(data)
    known = read_vocabulary(path)
    assert len(set(known.names)) == len(known.names)
    for line in data.decode("utf-8-sig").split("\n"):
        cells = [cell.strip() for cell in line.split("\t")]
        if len(cells) > 1 and line.strip():
            assert known[int(cells[1])].startswith(cells[0])


@fuzzer(share=18)
def dates(rng: random.Random) -> None:
    """Any text is a time with a first and a last moment, or has a reason why not."""
    alphabet = rng.choice(("0123456789-#", "0123456789-:TZ+. ", "0123456789"))
    text = rng.choice(_TIMES)
    draw = rng.random()
    if draw < 0.3:
        text = odd_text(rng)
    elif draw < 0.6:
        text = "".join(rng.choice(alphabet) for _ in range(rng.randrange(14)))
    elif draw < 0.8:
        at = rng.randrange(len(text))
        text = text[:at] + rng.choice(alphabet) + text[at + rng.randrange(2) :]
    unit = rng.choice(UNITS)
    moments = Moments.parse([text])
    first, last, known = moments.in_unit(unit)
    if known[0]:
        assert first[0] <= last[0]
    elif moments.kind[0] != Kind.OPEN:
        assert why_not_a_time(text, unit)
    calendar = Calendar(unit, rng.choice((0, 17_000, -5)), rng.choice((1, 7)))
    calendar.label(calendar.step(text))


@fuzzer(share=1)
def folders(rng: random.Random) -> None:
    """A folder with parts and vocabularies, some of which do not fit."""
    folder = Path(scratch() / "folder")
    folder.mkdir(exist_ok=True)
    for path in folder.iterdir():
        path.unlink()
    names = ["train.txt", "valid.txt", "test.txt", "entity2id.txt", "relation2id.txt", "x.csv"]
    for name in rng.sample(names, rng.randrange(1, 6)):
        rows = [[str(rng.randrange(3)) for _ in "srot"] for _ in range(3)]
        if name.endswith("2id.txt"):
            rows = [[f"n{at}", str(at)] for at in range(rng.choice((2, 3)))]
        data = "\n".join("\t".join(row) for row in rows).encode()
        (folder / name).write_bytes(damage_bytes(rng, data) if rng.random() < 0.3 else data)
    _check(folder, None, {"ids": rng.choice((None, True, False))})

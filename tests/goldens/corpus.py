"""Clean and dirty files of facts, made here and always the same."""

from __future__ import annotations

import gzip
import io
import random
from dataclasses import dataclass, field
from typing import Any

__all__ = ["Case", "cases", "drawn_cases"]

_CLEAN = (
    "Ann,knows,Bob,2018-01-01\nBob,likes,Cid,2018-01-03\nAnn,likes,Bob,2018-01-02\n"
    "Cid,knows,Ann,2018-01-03\nBob,likes,Cid,2018-01-03\n"
)
_SKIP = {"skip_bad_rows": True}


@dataclass(frozen=True)
class Case:
    """Files that together are one graph, and how to read them.

    Args:
        name: of the case.
        files: by their paths in a folder of the case's own.
        read: which of them to read; '': the folder itself.
        options: fields of ``ReadOptions``.
    """

    name: str
    files: dict[str, bytes]
    read: str
    options: dict[str, Any] = field(default_factory=dict)


def _one(name: str, data: str | bytes, file: str = "events.csv", **options: Any) -> Case:
    content = data.encode() if isinstance(data, str) else data
    return Case(name, {file: content}, file, options)


def _zstd(data: bytes) -> bytes:
    import pyarrow as pa

    sink = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, "zstd") as stream:
        stream.write(data)
    return bytes(sink.getvalue().to_pybytes())


def _parquet(columns: dict[str, list[Any]]) -> bytes:
    import pyarrow as pa
    from pyarrow import parquet

    buffer = io.BytesIO()
    parquet.write_table(pa.table(columns), buffer)
    return buffer.getvalue()


def _clean() -> list[Case]:
    tabs = _CLEAN.replace(",", "\t")
    return [
        _one("plain", _CLEAN),
        _one("tsv", tabs, "events.tsv"),
        _one("txt", tabs, "events.TXT"),
        _one("gzip", gzip.compress(_CLEAN.encode(), mtime=0), "events.csv.gz"),
        _one("gzip-tsv", gzip.compress(tabs.encode(), mtime=0), "events.tsv.gz"),
        _one("zstd", _zstd(_CLEAN.encode()), "events.csv.zst"),
        _one("bom", b"\xef\xbb\xbf" + _CLEAN.encode()),
        _one("bom-header", b"\xef\xbb\xbfsubject,relation,object,time\n" + _CLEAN.encode()),
        _one("crlf", _CLEAN.replace("\n", "\r\n")),
        _one("blank-lines", "\n \n" + _CLEAN.replace("\n", "\n\n \t\n")),
        _one("no-last-line-end", _CLEAN.rstrip("\n")),
        _one("semicolons", _CLEAN.replace(",", ";")),
        _one("pipes", _CLEAN.replace(",", "|"), "events.txt"),
        _one("delimiter-chosen", _CLEAN.replace(",", ":"), delimiter=":"),
        _one("quoted", _CLEAN.replace("Ann", '"Ann"')),
        _one("quoted-delimiters", '"Ann, B.","says ""hi""" , "x",1\nc,r,"d\ne",2\nc,r,d,3\n'),
        _one("quotes-in-tsv", '"a\tr"\t"o"\t1\nb\tr\to\t2\n', "events.tsv"),
        _one("spaces", _CLEAN.replace(",", " , ")),
        _one("extra-columns", _CLEAN.replace("\n", ",more,and more\n", 2)),
        _one("header", "Subject,relation,object,date\n" + _CLEAN),
        _one("header-letters", "s,r,o,t\n" + _CLEAN),
        _one("header-unusual", "actor,verb,patient,moment\n" + _CLEAN),
        _one("header-denied", "s,r,o,1\n" + "a,r,b,2\n", header=False),
        _one("header-forced", "a,r,b,1\nc,r,d,2\n", header=True),
        _one("header-elsewhere", "id,when,tail,rel,head\n9,5,b,r,a\n8,4,a,r,c\n"),
        _one(
            "columns-by-name",
            "k,day,who,what,whom\n0,5,a,r,b\n0,6,b,r,a\n",
            columns=("who", "what", "whom", "day"),
        ),
        _one("columns-by-place", "0,5,a,r,b\n0,6,b,r,a\n", columns=("2", "3", "4", "1")),
        _one("unicode", "é,ist,ß ü,1\n名前,は,🦜,2\ne\u0301,ist,é,3\n"),
        _one("repeated-facts", "a,r,b,2\nb,r,a,1\na,r,b,2\na,r,b,3\nb,r,a,1\na,r,b,2\n"),
        _one("self-links", "a,r,a,1\nb,q,b,2\na,r,b,2\n"),
        _one("numbers-are-names", "7,0,3,1\n3,1,7,2\n07,1,7.0,3\n"),
        _one("ids", "7,0,3,1\n3,1,7,2\n", ids=True),
        _one("one-row", "a,r,b,5\n"),
        _one(
            "parquet",
            _parquet(
                {
                    "subject": ["a", "b", "a"],
                    "relation": ["r", "q", "r"],
                    "object": ["b", "c", "c"],
                    "time": [3, 1, 9],
                }
            ),
            "events.parquet",
        ),
        _one(
            "parquet-days",
            _parquet(
                {
                    "s": ["a", "b", "a"],
                    "r": ["r", "q", "r"],
                    "o": ["b", "c", "c"],
                    "t": ["2018-03-01", "2018-01-01", "2018-02-01"],
                }
            ),
            "events.parquet",
        ),
        _one(
            "parquet-numbers",
            _parquet({"s": [1, 2, 3], "r": [0, 0, 1], "o": [2, 3, 1], "t": [10, 30, 20]}),
            "events.parquet",
        ),
    ]


_TIMES = {
    "days": ("auto", "2018-01-01 2018-03-05 2018-01-08"),
    "datetimes-one-hour": ("auto", "2018-01-01T09:00 2018-01-02T09:30:10.5"),
    "datetimes": ("auto", "2018-01-01T09:00 2018-01-01T11"),
    "months": ("auto", "2018-01 2018-04 2017-10"),
    "integers": ("auto", "1 -5 +7"),
    "years": ("auto", "2018 2019 1998"),
    "zones": ("hour", "2018-01-01T00:30+01:00 2018-01-01T00:30Z 2018-01-01T00:30-0130"),
    "days-of-moments": ("day", "2018-01-01T23:30-01 2018-01-01 20180105 2018"),
    "weeks": ("week", "2018-01-03 2018-01-07 2018-01-08"),
    "months-of-days": ("month", "2018-01-31 2018-03"),
    "years-of-all": ("year", "2018-12-31 2020 360-##-## -431-##-## 0099-01-01"),
    "parts-unknown": ("year", "19##-##-## 198#-##-## 1987-##-## 1987-05-##"),
    "steps": ("step", "3 1 1000000"),
    "far": ("auto", "0 1000000000000 500000000000"),
    "mostly-integers": ("auto", "1 2 2018-01-01"),
    "mostly-dates": ("auto", "2018-01-01 2018-01-02 7"),
}


def _times() -> list[Case]:
    found = []
    for name, (unit, times) in _TIMES.items():
        rows = "".join(f"a{n},r,b,{time}\n" for n, time in enumerate(times.split()))
        options = {} if unit == "auto" else {"unit": unit}
        found.append(_one(f"time-{name}", rows, **options, **_SKIP))
    spaced = "a,r,b,2018-01-01 10:00:00\na,r,b,2018-01-01 12:00:00 Z\n"
    return [*found, _one("time-spaces", spaced)]


def _intervals() -> list[Case]:
    years = (
        "a,r,b,1990-##-##,1993-##-##\nb,r,c,####-##-##,1992-##-##\nc,q,a,1992-##-##,####-##-##\n"
        "a,q,c,1995-##-##,1994-##-##\nd,q,a,####-##-##,####-##-##\n"
    )
    days = "s,r,o,start,end\na,r,b,2018-01-01,2018-01-04\nb,r,c,2018-01-03,\nc,r,a,,2018-01-02\n"
    return [
        _one("interval-years", years, **_SKIP),
        _one("interval-strict", years),
        _one("interval-clipped", years, clip=("1991", "1993"), unit="year", **_SKIP),
        _one("interval-days", days),
        _one("interval-months", days, unit="month"),
        _one("interval-outside", days, clip=("2018-01-02", "2018-01-03")),
        _one("interval-mixed", "a,r,b,1990-05-##,1991-##-##\nb,r,c,1990-##-##,1990-07-03\n"),
    ]


_BAD = {
    "short": b"a,r,b",
    "no-subject": b",r,b,2018-01-01",
    "no-relation": b"a,  ,b,2018-01-01",
    "no-object": b'a,r,"",2018-01-01',
    "no-time": b"a,r,b,",
    "open-time": b"a,r,b,####",
    "word-time": b"a,r,b,soon",
    "nan": b"a,r,b,NaN",
    "day-30": b"a,r,b,2018-02-30",
    "month-13": b"a,r,b,2018-13-01",
    "hour-25": b"a,r,b,2018-01-01T25:00",
    "zone-99": b"a,r,b,2018-01-01T05:00+99",
    "short-year": b"a,r,b,18-01-05",
    "day-without-month": b"a,r,b,2018-##-05",
    "far-time": b"a,r,b,9" + b"9" * 99,
    "not-utf8": b"a\xff,r,b,2018-01-01",
    "not-utf8-later": b"a,r,b,2018-01-01,\xc3",
    "open-quote": b'a,"r,b,2018-01-01',
    "after-quote": b'a,"r"x,b,2018-01-01',
    "inside-quote": b'a,r"x,b,2018-01-01',
    "carriage-return": b"a,r,b\rc,2018-01-01",
    "nul": b"a,r,b\0,2018-01-01",
}


def _bad() -> list[Case]:
    clean = _CLEAN.encode()
    found = [
        _one(f"bad-{name}", clean + b"\n" + line + b"\n" + clean, **_SKIP)
        for name, line in _BAD.items()
    ]
    every = b"\n".join(_BAD.values()) + b"\n"
    many = [["a,r,b,1", "a,r,b,x", "a,r", ",r,b,1", "a,r,,1"][at % 5] for at in range(1000)]
    return [
        *found,
        _one("bad-strict", clean + every.replace(b'"', b"") + clean),
        _one("bad-all-kinds", clean + every.replace(b'"', b"") + clean, **_SKIP),
        _one("bad-many", "\n".join(many), **_SKIP),
        _one("bad-many-strict", "\n".join(many)),
        _one("bad-only", "a,r,b,x\n,r,b,1\n", **_SKIP),
        _one("bad-first", "a,r,b,unknown\nc,r,d,1\n", **_SKIP),
        _one("bad-ids", "7,0,3,1\nx,1,7,2\n3,1,-7,2\n3,1,7,2\n", ids=True, **_SKIP),
        _one("empty", ""),
        _one("empty-bom", b"\xef\xbb\xbf"),
        _one("empty-blank", " \n\r\n\t\n"),
        _one("header-only", "subject,relation,object,time\n"),
        _one("no-such-column", "s,r,o,t\na,r,b,1\n", columns=("s", "r", "o", "when")),
        _one("missing-column", "id,subject,relation,object,day\n1,a,r,b,5\n"),
        _one("three-columns", "a,r,b\nb,r,c\n"),
        _one("utf16", _CLEAN.encode("utf-16-le")),
        _one("unknown-kind", "{}", "events.json"),
        _one("gzip-cut", gzip.compress(b"a,r,b,1\n" * 99, mtime=0)[:-9], "events.csv.gz"),
        _one("gzip-not", b"a,r,b,1\n", "events.csv.gz"),
        _one("parquet-not", b"PAR1 nonsense PAR1", "events.parquet"),
        _one(
            "parquet-nulls",
            _parquet(
                {
                    "s": ["a", None, "c", ""],
                    "r": ["r", "r", None, "r"],
                    "o": ["b", "b", "b", "b"],
                    "t": [1, 2, 3, None],
                }
            ),
            "events.parquet",
            **_SKIP,
        ),
    ]


def _folders() -> list[Case]:
    parts = {
        "set/test.csv": b"c,r,d,3\na,r,b,1\n",
        "set/train.csv": b"subject,relation,object,time\na,r,b,1\n",
        "set/valid.tsv.gz": gzip.compress(b"b\tr\tc\t2\n", mtime=0),
        "set/README.md": b"anything",
        "set/extra.csv": b"x,y,z,9\n",
    }
    ids = {
        "ids/entity2id.txt": b"zero\t0\tmore\ntwo\t2\nlast\t4\nzero\t3\n",
        "ids/relation2id.txt": b"1\nrel\t0\n",
        "ids/train.txt": b"2\t0\t0\t5\t0\n4\t0\t3\t6\t0\n",
        "ids/test.txt": b"4\t0\t0\t7\t0\n2\t0\t9\t8\t0\nx\t0\t0\t8\t0\n",
    }
    alone = {"one/any.csv": _CLEAN.encode(), "one/notes.md": b""}
    bad = {**parts, "set/valid.tsv.gz": gzip.compress(b"b\tr\n\tr\tc\t2\n", mtime=0)}
    return [
        Case("folder-parts", parts, "set"),
        Case("folder-bad", bad, "set", _SKIP),
        Case("folder-one-file", alone, "one"),
        Case("folder-two-files", {**alone, "one/other.csv": b"a,r,b,1\n"}, "one"),
        Case("folder-train-twice", {**parts, "set/train.tsv": b"a\tr\tb\t1\n"}, "set"),
        Case("folder-empty", {"none/notes.md": b""}, "none"),
        Case("folder-ids", ids, "ids", _SKIP),
        Case("folder-ids-strict", ids, "ids"),
        Case("folder-ids-as-names", ids, "ids", {"ids": False, **_SKIP}),
        Case("folder-ids-broken", {**ids, "ids/entity2id.txt": b"a\t0\nb\t0\n"}, "ids"),
        Case("file-ids", ids, "ids/train.txt"),
    ]


def _large() -> list[Case]:
    """Some thousand rows: more than a reader looks at when it finds out what a file is like."""
    rng = random.Random("goldens/large")
    people = [f"person {n}" for n in range(400)]
    kinds = [f"kind {n}" for n in range(12)]
    rows = [
        [
            rng.choice(people),
            rng.choice(kinds),
            rng.choice(people),
            f"2018-{rng.randrange(1, 13):02d}-{rng.randrange(1, 29):02d}",
        ]
        for _ in range(6000)
    ]
    rows += rng.sample(rows, 700)
    rng.shuffle(rows)
    clean = "\n".join(",".join(row) for row in rows) + "\n"
    dirty = [",".join(row[: rng.randrange(5)] if rng.random() < 0.02 else row) for row in rows]
    late = [*(",".join(row) for row in rows), "a,r,b,2018-06-01T05:00", '"q, w",r,b,2018-06-01']
    return [
        _one("large", clean),
        _one("large-gzip", gzip.compress(clean.encode(), mtime=0), "events.csv.gz"),
        _one("large-dirty", "\n".join(dirty) + "\n", **_SKIP),
        _one("large-dirty-strict", "\n".join(dirty) + "\n"),
        _one("large-late-surprise", "\n".join(late) + "\n"),
    ]


def cases() -> list[Case]:
    """Those made by hand."""
    return [*_clean(), *_times(), *_intervals(), *_bad(), *_folders(), *_large()]


_NAMES = ["Ann", "Bob", "Cid", " Dee ", "7", "0", "1", "2", "é", "Q42", "O'Neil", "x y", ""]
_MOMENTS = [
    *("0", "1", "5", "-3", "2018-01-01", "2018-01-02", "2018-02", "2018-01-02T05", "1987-##-##"),
    *("1987", "198#-##-##", "####-##-##", "2018-01-01T10:30:59+02:00", "20180105", "-431-##-##"),
]
_HEADERS = [
    ["subject", "relation", "object", "time"],
    ["head", "type", "tail", "year"],
    ["s", "r", "o", "start", "end"],
    ["a", "b", "c", "when"],
    ["time", "subject", "object", "relation"],
]
_ODD = [
    '"',
    '""',
    'x"',
    "\0",
    "\r",
    "#",
    "nan",
    "null",
    "1e5",
    " ",
    "99999999999999999999",
    "é\u0301",
]


def drawn_cases(count: int) -> list[Case]:
    """Texts that are nearly files of facts, drawn."""
    return [_drawn(number) for number in range(count)]


def _drawn(number: int) -> Case:
    rng = random.Random(f"goldens/{number}")
    delimiter = rng.choice(",,,\t\t;|")
    odd = rng.choice((0.0, 0.02, 0.1, 0.4))
    width = rng.choice((4, 4, 4, 4, 5, 6, 3))
    kinds = (_MOMENTS[:4], _MOMENTS[4:8], _MOMENTS)
    times = [rng.choice(_MOMENTS)] if rng.random() < 0.2 else rng.choice(kinds)

    def cell(usual: list[str]) -> str:
        return rng.choice(_ODD) if rng.random() < odd else rng.choice(usual)

    rows = [rng.choice(_HEADERS)] if rng.random() < 0.4 else []
    for _ in range(rng.randrange(1, 12)):
        cells = [cell(_NAMES[:-1] if at < 3 else times) for at in range(width)]
        if rng.random() < odd:
            cells = cells[: rng.randrange(len(cells) + 1)]
        if rng.random() < odd:
            cells = [f'"{text}"' for text in cells]
        rows.append(cells)
    end = rng.choice(("\n", "\n", "\n", "\r\n", "\n\n", "\n \t\n"))
    data = (end.join(delimiter.join(row) for row in rows) + rng.choice((end, ""))).encode()
    if rng.random() < 0.2:
        at = rng.randrange(len(data) + 1)
        data = data[:at] + bytes([rng.randrange(256)]) + data[at + 1 :]
    options = {} if rng.random() < 0.2 else dict(_SKIP)
    if rng.random() < 0.15:
        options["unit"] = rng.choice(("step", "hour", "day", "week", "month", "year"))
    if rng.random() < 0.1:
        options["header"] = rng.random() < 0.5
    if rng.random() < 0.05:
        options["ids"] = True
    file = rng.choice(("events.csv", "events.csv", "events.tsv", "events.txt"))
    if width > 4:
        data = data.replace(b"20180105", b"7")  # as steps, intervals would be of millions of facts
    return Case(f"drawn-{number:03d}", {file: data}, file, options)

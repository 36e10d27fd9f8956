"""Event files as they are handed out: each reads right without an option, or says which to give."""

from __future__ import annotations

import datetime as dt
import gzip
import io
import json
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import typer
from hypothesis import given, settings
from hypothesis import strategies as st

from command_line import Run
from metatkgr.cli import app
from metatkgr.data.calendar import NUMBER_FORMS, Calendar, minutes_of_numbers
from metatkgr.data.facts import Facts
from metatkgr.data.folder import FactFolder
from metatkgr.data.ingest import ingest
from metatkgr.data.readers import BadRowsError, read_facts, read_facts_with_report
from metatkgr.data.readers.bad_rows import BadRows
from metatkgr.errors import DataError

DAYS = [dt.date(2018, 1, 30) + dt.timedelta(days=n) for n in range(5)]


def described(facts: Facts) -> list[tuple[str, str, str, str]]:
    return [facts.describe(row) for row in range(len(facts))]


def read_and_ingested(path: Path, **options: object) -> tuple[Facts, BadRows]:
    """What reading gives; an ingest must give the same, of the same rows."""
    facts, report = read_facts_with_report(path, **options)
    from metatkgr.data.readers import ReadOptions

    out = path.parent / f"{path.name}-folder"
    done = ingest([path], out, ReadOptions(**options))  # type: ignore[arg-type]
    assert done.report == report
    assert described(FactFolder(out).facts()) == described(facts)
    return facts, report


# GDELT --------------------------------------------------------------------------------------------


def gdelt(width: int, rows: list[tuple[str, str, str, str, str]]) -> str:
    """Rows of (day, actor's code, event, other actor's code, country) as raw exports have them."""
    lines = []
    for number, (day, actor, event, other, place) in enumerate(rows):
        cells = [""] * width
        cells[:5] = [str(721_000_000 + number), day, day[:6], day[:4], "2018.0822"]
        cells[5:8] = [actor, {"USA": "UNITED STATES", "RUS": "RUSSIA"}.get(actor, actor), actor]
        cells[15:18] = [other, {"USA": "UNITED STATES", "RUS": "RUSSIA"}.get(other, other), other]
        cells[25:30] = ["1", event, event[:3], event[:2], "1"]
        cells[36] = f"Lyon, Rhone-Alpes, {place}, Europe"  # as many commas as a CSV has
        cells[56 if width < 61 else 59] = day
        if width > 57:
            cells[-1] = "https://example.org/a,b,c,d"
        lines.append("\t".join(cells))
    return "\n".join(lines) + "\n"


EVENTS = [
    ("20180130", "USA", "043", "RUS", "France"),
    ("20180131", "RUS", "190", "USA", "France, Metropolitan"),
    ("20180201", "USA", "010", "", "France"),
    ("20180201", "RUS", "043", "FRA", "Here"),
    ("20180202", "", "043", "FRA", "Here"),
]
GDELT_FACTS = [
    ("UNITED STATES", "043", "RUSSIA", "2018-01-30"),
    ("RUSSIA", "190", "UNITED STATES", "2018-01-31"),
    ("RUSSIA", "043", "FRA", "2018-02-01"),
]


@pytest.mark.parametrize("width", [57, 58, 61])
@pytest.mark.parametrize("name", ["20180130.export.CSV", "x.csv", "x.txt", "x.CSV.zip", "x.csv.gz"])
def test_a_raw_gdelt_export_needs_no_option(tmp_path: Path, width: int, name: str) -> None:
    data = gdelt(width, EVENTS).encode()
    if name.endswith(".gz"):
        data = gzip.compress(data)
    if name.endswith(".zip"):
        buffer = io.BytesIO()
        with zipfile.ZipFile(buffer, "w") as archive:
            archive.writestr("20180130.export.CSV", data)
        data = buffer.getvalue()
    (tmp_path / name).write_bytes(data)
    facts, report = read_and_ingested(tmp_path / name)
    assert described(facts) == GDELT_FACTS
    assert (report.rows_in_file, report.rows_read, report.one_sided, report.total) == (5, 5, 2, 0)
    told = "\n".join(report.remarks())
    for words in ("GDELT", "--columns 5,26,15,1", "yyyymmdd", "2 of 5 events name one actor only"):
        assert words in told


def test_one_row_of_gdelt_is_enough_and_codes_can_be_chosen(tmp_path: Path) -> None:
    path = tmp_path / "one.CSV"
    path.write_text(gdelt(58, EVENTS[:1]))
    assert described(read_facts(path)) == GDELT_FACTS[:1]
    path.write_text(gdelt(58, EVENTS))
    facts, report = read_facts_with_report(path, columns=("5", "26", "15", "1"))
    assert described(facts)[0] == ("USA", "043", "RUS", "2018-01-30")
    assert (len(facts), report.one_sided) == (3, 2)


def test_bad_rows_of_gdelt_are_named_by_line_column_and_value(tmp_path: Path) -> None:
    lines = gdelt(58, EVENTS).splitlines()
    lines[1] = lines[1].replace("20180131", "20180231")
    lines[3] = "\t".join(lines[3].split("\t")[:20])
    path = tmp_path / "bad.CSV"
    path.write_text("\n".join(lines))
    facts, report = read_and_ingested(path, skip_bad_rows=True)
    assert len(facts) == 1
    assert [(row.number, row.column, row.reason) for row in report.first] == [
        (2, "SQLDATE", "there is no day 31 in that month"),
        (4, "EventCode", "too few columns: 20, and 27 are needed"),
    ]
    assert report.first[0].value == "20180231"
    path.write_text(gdelt(58, [("20180130", "USA", "043", "", "x")] * 3))
    with pytest.raises(DataError, match="all 3 rows are events with one actor only"):
        read_facts(path)


def test_a_zip_archive_holds_one_file_or_says_so(tmp_path: Path) -> None:
    path = tmp_path / "two.csv.zip"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("a.csv", "a,r,b,1\n")
        archive.writestr("b.csv", "a,r,b,1\n")
    with pytest.raises(DataError, match="holds 2 files: unpack it"):
        read_facts(path)
    path.write_bytes(b"a,r,b,1\n")
    with pytest.raises(DataError, match="not a complete zip file"):
        read_facts(path)


# Other event files --------------------------------------------------------------------------------

ICEWS = (
    "Event ID\tEvent Date\tSource Name\tSource Sectors\tSource Country\tEvent Text\tCAMEO Code\t"
    "Intensity\tTarget Name\tTarget Sectors\tTarget Country\tStory ID\tSentence Number\tPublisher\t"
    "City\tDistrict\tProvince\tCountry\tLatitude\tLongitude\n"
    "1\t2018-01-01\tBarack Obama\tElite, Gov, USA, X\tUnited States\tMake a visit\t042\t1.9\t"
    "France\tGov\tFrance\t9\t2\tAFP\tParis\t\t\tFrance\t48.8\t2.3\n"
    "2\t2018-01-02\tFrance\t\tFrance\tConsult\t040\t1.0\t\t\t\t9\t2\tAFP\tParis\t\t\tFrance\t1\t2\n"
    '3\t2018-01-04\tSay "no"\t\t\tConsult\t040\t1.0\tFrance\t\t\t9\t2\tAFP\t\t\t\tFrance\t\t\n'
)
POLECAT = (
    "Event ID\tEvent Date\tEvent Type\tEvent Mode\tIntensity\tQuad\tActor Name\tActor Country\t"
    "Recipient Name\tRecipient Country\tSource\tPublication Date\tHeadline\n"
    "e1\t2018-01-01\tCONSULT\tvisit\t1\tVC\tFrance\tFRA\tGermany\tDEU\tWire\t2018-01-02\tA, b\n"
    "e2\t2018-01-03\tPROTEST\tNone\t-6\tMC\tGermany\tDEU\tNone\tNone\tWire\t2018-01-03\tC\n"
)
TGB = "timestamp,head,tail,relation_type\n" + "".join(
    f"{1517270400 + 86400 * n},{n % 3},{n % 2},{n % 2}\n" for n in range(4)
)


def test_icews_polecat_and_tgb_files_need_no_option(tmp_path: Path) -> None:
    for name, text, facts, one_sided in (
        (
            "events.2018.tab",
            ICEWS,
            [
                ("Barack Obama", "Make a visit", "France", "2018-01-01"),
                ('Say "no"', "Consult", "France", "2018-01-04"),
            ],
            1,
        ),
        ("ngec.txt", POLECAT, [("France", "CONSULT", "Germany", "2018-01-01")], 1),
        (
            "tkgl-polecat_edgelist.csv",
            TGB,
            [
                ("0", "0", "0", "2018-01-30"),
                ("1", "1", "1", "2018-01-31"),
                ("2", "0", "0", "2018-02-01"),
                ("0", "1", "1", "2018-02-02"),
            ],
            0,
        ),
    ):
        path = tmp_path / name
        path.write_text(text)
        found, report = read_and_ingested(path)
        assert described(found) == facts, name
        assert (report.one_sided, report.total) == (one_sided, 0), name


# JSON lines ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["e.jsonl", "e.ndjson", "e.jsonl.gz", "e.ndjson.zst"])
def test_json_lines_are_rows_and_their_keys_columns(tmp_path: Path, name: str) -> None:
    rows = [
        {"id": n, "ts": f"{day}T05:00:00Z", "head": "Ann", "rel": "likes", "tail": {}.get(n, "é")}
        for n, day in enumerate(DAYS)
    ]
    text = "\n".join(json.dumps(row, ensure_ascii=n % 2 == 0) for n, row in enumerate(rows))
    data = text.encode()
    if name.endswith(".gz"):
        data = gzip.compress(data)
    if name.endswith(".zst"):
        pa = pytest.importorskip("pyarrow")
        sink = pa.BufferOutputStream()
        with pa.CompressedOutputStream(sink, "zstd") as stream:
            stream.write(data)
        data = sink.getvalue().to_pybytes()
    (tmp_path / name).write_bytes(data)
    facts, report = read_and_ingested(tmp_path / name)
    assert described(facts) == [("Ann", "likes", "é", str(day)) for day in DAYS]
    assert report.rows_read == 5


def test_bad_json_lines_are_named_by_line(tmp_path: Path) -> None:
    good = '{"subject":"a","relation":"r","object":"b","time":1}'
    lines: list[bytes] = [
        good.encode(),
        b"",
        b'{"subject":"a","relation":"r","object":"b"',
        b"[1, 2]",
        b'{"subject":"a\xff","relation":"r","object":"b","time":1}',
        b'{"subject":["a"],"relation":"r","object":"b","time":1}',
        b'{"subject":"a","relation":"r","time":1}',
        b'{"subject":"a","relation":"r","object":"b","time":"soon"}',
        b'{"subject":"a","relation":"r","object":"b","time":' + b"[" * 100_000,
        good.replace("1}", "3}").encode(),
    ]
    path = tmp_path / "e.jsonl"
    path.write_bytes(b"\n".join(lines))
    facts, report = read_and_ingested(path, skip_bad_rows=True)
    assert len(facts) == 2
    assert [(row.place, row.number, row.column) for row in report.first] == [
        ("line", number, column)
        for number, column in zip(
            (3, 4, 5, 6, 7, 8, 9),
            ("subject", "subject", "subject", "subject", "object", "time", "subject"),
            strict=True,
        )
    ]
    reasons = [row.reason for row in report.first]
    assert reasons[1:6] == [
        "not a JSON object",
        "not valid UTF-8",
        "no name",
        "no name",
        "not an integer, a date or a datetime",
    ]
    path.write_bytes(b"a,r,b,1\n")
    with pytest.raises(DataError, match="is no file of JSON objects"):
        read_facts(path)
    path.write_bytes(b"\n \n")
    with pytest.raises(DataError, match="is empty"):
        read_facts(path)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=4,
)


@settings(max_examples=60, deadline=None)
@given(
    values=st.lists(
        JSON
        | st.fixed_dictionaries(
            {"subject": JSON, "relation": JSON, "object": JSON, "time": JSON | st.integers(0, 9)}
        ),
        max_size=6,
    )
)
def test_any_json_lines_give_facts_or_a_clean_error_and_lose_no_row(
    tmp_path_factory: pytest.TempPathFactory, values: list[object]
) -> None:
    path = tmp_path_factory.mktemp("json") / "e.jsonl"
    path.write_text("".join(json.dumps(value) + "\n" for value in values))
    try:
        report = read_facts_with_report(path, skip_bad_rows=True)[1]
    except DataError as error:
        report = getattr(error, "report", None)
    if report is not None:
        assert report.rows_read + report.total == report.rows_in_file == len(values)


# RDF ----------------------------------------------------------------------------------------------

DATE = "^^<http://www.w3.org/2001/XMLSchema#date>"
QUADS = f"""
<http://x/Ann> <http://x/knows> <http://x/Bob> <http://x/day/2018-01-01> .
# a comment
<http://x/Bob> <http://x/likes> "Cid" <http://x/g> .
_:b <http://x/likes> <http://x/Ann> <http://x/g> .
<http://x/g> <http://x/published> "2018-01-03"{DATE} .
<http://x/g> <http://x/publisher> "Wire" .
"""
TURTLE = f"""
@prefix : <http://x/> .
:Ann :knows :Bob {{| :validFrom "2018-01-01"{DATE} ; :validTo "2018-01-02"{DATE} ; :by :Wire |}} .
<< :Bob :likes :Cid >> :since "2018-01-02"{DATE} .
"""
REIFIES = "<http://www.w3.org/1999/02/22-rdf-syntax-ns#reifies>"
NTRIPLES = f"""
_:r {REIFIES} <<( <http://x/Ann> <http://x/knows> <http://x/Bob> )>> .
_:r <http://x/time> "7"^^<http://www.w3.org/2001/XMLSchema#integer> .
"""


def test_quads_have_the_time_of_their_graph(tmp_path: Path) -> None:
    pytest.importorskip("pyoxigraph", reason="pyoxigraph is not installed")
    path = tmp_path / "e.nq"
    path.write_text(QUADS)
    facts, report = read_and_ingested(path)
    assert described(facts) == [
        ("http://x/Ann", "http://x/knows", "http://x/Bob", "2018-01-01"),
        ("http://x/Bob", "http://x/likes", "Cid", "2018-01-03"),
        ("_:b", "http://x/likes", "http://x/Ann", "2018-01-03"),
    ]
    assert (report.rows_in_file, report.total) == (3, 0)
    packed = tmp_path / "packed.nq.gz"
    packed.write_bytes(gzip.compress(QUADS.encode()))
    assert described(read_facts(packed)) == described(facts)
    path = tmp_path / "bad.nq"
    path.write_text(QUADS + "<http://x/a> oops .\n<http://x/a> <http://x/p> <http://x/b> .\n")
    _, report = read_and_ingested(path, skip_bad_rows=True)
    assert [(row.place, row.number, row.column, row.reason) for row in report.first] == [
        ("line", 8, "subject", "The predicate of a triple must be an IRI"),
        ("line", 9, "time", "no time"),
    ]


@pytest.mark.parametrize("suffix", [".nt", ".nq", ".ttl"])
def test_rdf_star_says_start_and_end_of_a_statement_apart(tmp_path: Path, suffix: str) -> None:
    pytest.importorskip("pyoxigraph", reason="pyoxigraph is not installed")
    triple = "<http://x/Ann> <http://x/leads> <http://x/Bob>"
    said = [("start", 1), ("end", 2), ("start", 5), ("start", 8), ("end", 6), ("end", 8)]
    lines = [f'<< {triple} >> <http://x/{what}> "2018-01-0{day}"{DATE} .' for what, day in said]
    path = tmp_path / f"e{suffix}"
    path.write_text("\n".join([f"{triple} .", *lines]) + "\n")
    facts, report = read_and_ingested(path)
    assert [row[3][-1] for row in described(facts)] == ["1", "2", "5", "6", "8"]
    assert (report.rows_in_file, report.total) == (3, 0)


def test_statements_about_statements_give_them_times(tmp_path: Path) -> None:
    pytest.importorskip("pyoxigraph", reason="pyoxigraph is not installed")
    path = tmp_path / "e.ttl"
    path.write_text(TURTLE)
    assert described(read_and_ingested(path)[0]) == [
        ("http://x/Ann", "http://x/knows", "http://x/Bob", "2018-01-01"),
        ("http://x/Ann", "http://x/knows", "http://x/Bob", "2018-01-02"),
        ("http://x/Bob", "http://x/likes", "http://x/Cid", "2018-01-02"),
    ]
    path.write_text("@prefix : <http://x/> . :a :b")
    with pytest.raises(DataError, match=r"e\.ttl is not readable as RDF"):
        read_facts(path)
    path = tmp_path / "e.nt"
    path.write_text(NTRIPLES)
    assert described(read_facts(path)) == [("http://x/Ann", "http://x/knows", "http://x/Bob", "7")]
    path.write_text("oops\n")
    with pytest.raises(DataError, match="holds no statement that can be read"):
        read_facts(path)


@settings(max_examples=60, deadline=None)
@given(
    lines=st.lists(
        st.sampled_from(QUADS.split("\n")) | st.text(st.sampled_from('<>"_:a .#^'), max_size=9),
        max_size=8,
    )
)
def test_any_quads_give_facts_or_a_clean_error(
    tmp_path_factory: pytest.TempPathFactory, lines: list[str]
) -> None:
    pytest.importorskip("pyoxigraph", reason="pyoxigraph is not installed")
    path = tmp_path_factory.mktemp("quads") / "e.nq"
    path.write_text("\n".join(lines))
    try:
        report = read_facts_with_report(path, skip_bad_rows=True)[1]
    except DataError:
        return
    assert report.rows_read + report.total == report.rows_in_file


def test_without_pyoxigraph_rdf_says_what_to_install(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "pyoxigraph", None)
    (tmp_path / "e.nq").write_text(QUADS)
    with pytest.raises(DataError, match="pip install pyoxigraph"):
        read_facts(tmp_path / "e.nq")


# Numbers that are dates ---------------------------------------------------------------------------


def dated(path: Path, times: list[object]) -> Path:
    path.write_text("".join(f"a{n},r,b,{time}\n" for n, time in enumerate(times)))
    return path


def seconds(day: dt.date) -> int:
    return int(dt.datetime.combine(day, dt.time(), dt.UTC).timestamp())


@pytest.mark.parametrize(
    ("form", "write"),
    [
        ("yyyymmdd", lambda day: f"{day:%Y%m%d}"),
        ("yyyymmddhhmmss", lambda day: f"{day:%Y%m%d}000000"),
        ("seconds since 1970", seconds),
        ("milliseconds since 1970", lambda day: 1000 * seconds(day)),
    ],
)
def test_numbers_that_are_dates_are_read_so_and_told(tmp_path: Path, form: str, write) -> None:
    path = dated(tmp_path / "e.csv", [write(day) for day in DAYS])
    facts, report = read_and_ingested(path)
    assert facts.calendar.unit == "day"
    assert [row[3] for row in described(facts)] == [str(day) for day in DAYS]
    assert f"times like {write(DAYS[0])} are read as {form}" in report.remarks()[0]
    assert "--time-unit step" in report.remarks()[0]
    plain, quiet = read_facts_with_report(path, unit="step")
    assert plain.describe(0)[3] == str(write(DAYS[0]))
    assert quiet.remarks() == []
    months = read_facts(path, unit="month")
    assert [row[3] for row in described(months)] == ["2018-01"] * 2 + ["2018-02"] * 3
    # What a query may say, too.
    assert Calendar("day").label(Calendar("day").step(str(write(DAYS[1])))) == str(DAYS[1])


def test_seconds_within_a_day_are_hours(tmp_path: Path) -> None:
    facts = read_facts(dated(tmp_path / "e.csv", [1514764800 + 1800 * n for n in range(5)]))
    assert facts.calendar.unit == "hour"
    assert facts.describe(4)[3] == "2018-01-01T02"


@pytest.mark.parametrize(
    "times",
    [
        [1, 2, 3],
        [1987, 2018],
        [20180101, 20180143, 20180199],  # no days
        [1, 20180101],
        [0, 10**12, 5 * 10**11],
        [123456789, 123456790],  # 1973, or anything
        [99991231, 99991230],
        [-1514764800],
    ],
)
def test_other_integers_stay_steps(tmp_path: Path, times: list[int]) -> None:
    facts, report = read_and_ingested(dated(tmp_path / "e.csv", list(times)))
    assert facts.calendar.unit == "step"
    assert sorted({int(row[3]) for row in described(facts)}) == sorted(times)
    assert report.remarks() == []


@settings(max_examples=200, deadline=None)
@given(
    values=st.lists(
        st.integers(-(10**15), 10**15)
        | st.dates().map(lambda day: int(f"{day:%Y%m%d}"))
        | st.integers(10**7, 10**8)
        | st.datetimes().map(lambda when: int(f"{when:%Y%m%d%H%M%S}"))
        | st.integers(10**8, 10**10),
        max_size=5,
    )
)
def test_numbers_are_dates_as_the_standard_library_says(values: list[int]) -> None:
    minutes, forms = minutes_of_numbers(np.asarray(values, np.int64))
    epoch = dt.datetime(1970, 1, 1)
    for value, minute, form in zip(values, minutes.tolist(), forms.tolist(), strict=True):
        text, name = str(value), NUMBER_FORMS[form]
        expected: dt.datetime | None = None
        try:
            if len(text) == 8 and value > 0:
                expected = dt.datetime.strptime(text, "%Y%m%d")
            elif len(text) == 14 and value > 0:
                date, clock = text[:8], text[8:]
                hour, minute_, second = (int(clock[at : at + 2]) for at in (0, 2, 4))
                if second <= 60:  # a leap second
                    expected = dt.datetime.strptime(date, "%Y%m%d").replace(
                        hour=hour, minute=minute_
                    )
            elif len(text) in (9, 10) and value > 0:
                expected = epoch + dt.timedelta(seconds=value)
            elif len(text) in (12, 13) and value > 0:
                expected = epoch + dt.timedelta(milliseconds=value)
        except ValueError:
            expected = None
        assert (expected is None) == (name == "")
        if expected is not None:
            assert epoch + dt.timedelta(minutes=minute) == expected.replace(second=0, microsecond=0)


# Columns and delimiters ---------------------------------------------------------------------------


def test_a_delimiter_that_gives_all_lines_as_many_cells_wins(tmp_path: Path) -> None:
    path = tmp_path / "e.csv"
    rows = [
        ("Lyon, Rhone, France, Europe", "in", "b", 1),
        ("c, d", "in", "e", 2),
        ("f", "in", "g", 3),
    ]
    path.write_text("".join("\t".join(map(str, row)) + "\n" for row in rows))
    facts, _ = read_and_ingested(path)
    assert described(facts)[0] == ("Lyon, Rhone, France, Europe", "in", "b", "1")
    path.write_text("".join(";".join(map(str, row)) + "\n" for row in rows))
    assert described(read_facts(path))[1] == ("c, d", "in", "e", "2")
    path.write_text("a,r,b,1\nc,r\nd,r,e,2,x,y\n")  # nothing else would do better
    assert len(read_facts(path, skip_bad_rows=True)) == 2


@pytest.mark.parametrize(
    ("header", "row", "fact"),
    [
        ("from,to,label,day", "a,b,r,5", ("a", "r", "b", "5")),
        ("src,dst,ts,edge_type", "a,b,5,r", ("a", "r", "b", "5")),
        (
            "Sender;Receiver;Action;DateTime",
            "a;b;r;2018-01-05T00:00",
            ("a", "r", "b", "2018-01-05"),
        ),
        ("validFrom,validTo,head,relation,tail", "2018,2018,a,r,b", ("a", "r", "b", "2018")),
        (
            "GLOBALEVENTID,SQLDATE,Actor1Name,Actor2Name,EventCode",
            "1,20180105,a,b,r",
            ("a", "r", "b", "2018-01-05"),
        ),
    ],
)
def test_more_headers_are_understood(tmp_path: Path, header: str, row: str, fact) -> None:
    path = tmp_path / "e.csv"
    path.write_text(f"{header}\n{row}\n")
    assert described(read_facts(path)) == [fact]


def test_words_that_are_clear_only_in_company_do_not_move_other_columns(tmp_path: Path) -> None:
    path = tmp_path / "e.csv"
    path.write_text("actor,event,what,moments\na,r,b,5\n")  # no time: by position, as ever
    assert described(read_facts(path)) == [("a", "r", "b", "5")]


@pytest.mark.parametrize(
    ("text", "columns"),
    [
        (
            "id,happened,perpetrator,deed,victim\n" + "7,2018-01-01,a,r,b\n" * 3,
            "perpetrator,deed,victim,happened",
        ),
        (
            "id,happened on,perp,deed,victim\n" + "7,20180101,a,r,b\n" * 3,
            "'perp,deed,victim,happened on'",
        ),
        ("7,2018-01-01,a,r,b\n" * 3, "2,3,4,1"),
        ("perp,deed,victim,place,at\n" + "a,r,b,c,1514764800\n" * 3, "perp,deed,victim,at"),
        ("id,subject,relation,object,n\n1,a,r,b,5\n", "subject,relation,object,id"),
        ("happened,perp,deed,victim\n2018-01-01,a,r,b\n", "perp,deed,victim,happened"),
        (
            "item,property,value,start,end\n" + "a,r,b,2018-01-01,2018-01-01\n" * 3,
            "item,property,value,start,end",
        ),
    ],
)
def test_columns_that_are_not_understood_are_one_sentence_with_the_option(
    run: Run, tmp_path: Path, text: str, columns: str
) -> None:
    path = tmp_path / "e.csv"
    path.write_text(text)
    with pytest.raises(DataError) as caught:
        read_facts(path)
    assert not isinstance(caught.value, BadRowsError)
    assert str(caught.value).endswith(f"say which, as in --columns {columns}")
    assert "\n" not in str(caught.value)
    told = run("data", "stats", str(path))
    assert f"--columns {columns}" in " ".join(told.err.split())
    assert len(read_facts(path, columns=tuple(columns.strip("'").split(",")))) == 1


def test_frames_that_are_not_understood_say_so_too() -> None:
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(
        {"id": [1, 2], "happened": ["2018-01-01", "2018-01-02"], "p": "a", "d": "r", "v": "b"}
    )
    with pytest.raises(DataError, match="--columns p,d,v,happened"):
        read_facts(frame)


# The command line ---------------------------------------------------------------------------------


def test_commands_tell_how_numbers_were_read(run: Run, tmp_path: Path) -> None:
    path = dated(tmp_path / "e.csv", [f"{day:%Y%m%d}" for day in DAYS])
    told = run("data", "stats", str(path), "--json", "-")
    assert "read as yyyymmdd" in told.err
    json.loads(told.out)


def test_whatever_reads_data_takes_the_option_that_is_hinted_at() -> None:
    def commands(group: Any) -> Iterator[Any]:
        for one in group.commands.values():
            yield from commands(one) if hasattr(one, "commands") else [one]

    taking = {
        command.name: {parameter.name for parameter in command.params}
        for command in commands(typer.main.get_command(app))
    }
    reading = {name for name, words in taking.items() if words & {"data", "files"}}
    assert {"compare", "pretrain", "evaluate", "ingest"} <= reading
    assert all("columns" in taking[name] for name in reading)


def test_predict_reads_further_facts_with_the_same_options(run: Run, tmp_path: Path) -> None:
    data, more = tmp_path / "e.csv", tmp_path / "more.csv"
    rows = [
        f"x,2018-01-{n + 1:02d},Ann,meets,Bob\nx,2018-01-{n + 1:02d},Cid,meets,Bob\n"
        for n in range(9)
    ]
    data.write_text("n,happened,perp,deed,victim\n" + "".join(rows))
    more.write_text("n,happened,perp,deed,victim\nx,2018-01-10,New,meets,Bob\n")
    words = ["--entity", "New", "--relation", "meets", "--facts", str(more), "--json", "-"]
    columns = ["--columns", "perp,deed,victim,happened"]
    told = run("predict", str(data), *words, *columns)
    assert told.code == 0, told.err
    assert json.loads(told.out)["forecasts"][0]["entity"] == "Bob"
    # Where DATA is not read from a file, the options are the further file's alone.
    folder = tmp_path / "folder"
    assert run("data", "ingest", str(data), "--out", str(folder), *columns).code == 0
    again = run("predict", str(folder), *words, *columns)
    assert json.loads(again.out)["forecasts"][0]["entity"] == "Bob"
    refused = run("predict", str(folder), "--entity", "Ann", *columns)
    assert "cannot be chosen any more" in refused.err

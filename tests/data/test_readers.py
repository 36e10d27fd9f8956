"""Readers: every accepted shape of input, and every kind of bad row, by example."""

from __future__ import annotations

import datetime as dt
import gzip
import json
import logging
import subprocess
import sys
from pathlib import Path
from zipfile import ZIP_DEFLATED, ZipFile

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

from metatkgr.data.facts import Facts, first_of_each
from metatkgr.data.folder import FactFolder
from metatkgr.data.frames import to_arrow
from metatkgr.data.ingest import ingest
from metatkgr.data.readers import (
    BadRowsError,
    ReadOptions,
    formats,
    lines,
    read_facts,
    read_facts_with_report,
    read_raw_facts,
)
from metatkgr.data.readers.bad_rows import BadRows
from metatkgr.data.readers.formats import pieces
from metatkgr.data.readers.formats.text import rows_of_text
from metatkgr.data.readers.tables import Rows
from metatkgr.errors import DataError, SettingsError, UnknownNameError
from peak_memory import peak_megabytes

CLEAN = "Ann,knows,Bob,2018-01-01\nBob,likes,Cid,2018-01-03\nAnn,likes,Bob,2018-01-02\n"
DESCRIBED = [
    ("Ann", "knows", "Bob", "2018-01-01"),
    ("Ann", "likes", "Bob", "2018-01-02"),
    ("Bob", "likes", "Cid", "2018-01-03"),
]


def described(facts: Facts) -> list[tuple[str, str, str, str]]:
    return [facts.describe(row) for row in range(len(facts))]


def assert_same(one: Facts, other: Facts) -> None:
    for column in ("subject", "relation", "object", "time"):
        assert np.array_equal(getattr(one, column), getattr(other, column)), column
    assert one.entities.names == other.entities.names
    assert one.relations.names == other.relations.names
    assert one.calendar == other.calendar


@pytest.fixture
def write(tmp_path: Path):
    def write(content: str | bytes, name: str = "events.csv") -> Path:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return path

    return write


def zstd(data: bytes) -> bytes:
    pa = pytest.importorskip("pyarrow")
    sink = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, "zstd") as stream:
        stream.write(data)
    return sink.getvalue().to_pybytes()


# What can be read ---------------------------------------------------------------------------------


def test_a_csv_file_without_a_header_is_read_in_time_order_with_its_names(write) -> None:
    facts = read_facts(write(CLEAN))
    assert described(facts) == DESCRIBED
    assert facts.entities.names == ("Ann", "Bob", "Cid")
    assert facts.relations.names == ("knows", "likes")
    assert (facts.calendar.unit, facts.name) == ("day", "events")


@pytest.mark.parametrize(
    ("name", "encode"),
    [
        ("e.csv", lambda text: text.encode()),
        ("e.tsv", lambda text: text.replace(",", "\t").encode()),
        ("e.TXT", lambda text: text.replace(",", "\t").encode()),
        ("e.csv.gz", lambda text: gzip.compress(text.encode())),
        ("e.csv.zst", lambda text: zstd(text.encode())),
        ("e.tsv.gz", lambda text: gzip.compress(text.replace(",", "\t").encode())),
        ("bom.csv", lambda text: b"\xef\xbb\xbf" + text.encode()),
        ("crlf.csv", lambda text: text.replace("\n", "\r\n").encode()),
        ("blank.csv", lambda text: ("\n \n" + text.replace("\n", "\n\n \t\n")).encode()),
        ("noend.csv", lambda text: text.rstrip("\n").encode()),
        ("semicolon.csv", lambda text: text.replace(",", ";").encode()),
        ("pipe.txt", lambda text: text.replace(",", "|").encode()),
        ("quoted.csv", lambda text: text.replace("Ann", '"Ann"').encode()),
        ("spaces.csv", lambda text: text.replace(",", " , ").encode()),
        ("extra.csv", lambda text: text.replace("\n", ",more,and more\n", 2).encode()),
        ("header.csv", lambda text: b"Subject,relation,object,date\n" + text.encode()),
        ("short.csv", lambda text: b"s,r,o,t\n" + text.encode()),
        ("unusual.csv", lambda text: b"actor,verb,patient,moment\n" + text.encode()),
    ],
)
def test_every_text_format_gives_the_same_facts(write, name: str, encode) -> None:
    assert_same(read_facts(write(encode(CLEAN), name)), read_facts(write(CLEAN, "plain.csv")))


def test_parquet_frames_tables_and_tuples_equal_the_csv_reading(write, tmp_path: Path) -> None:
    pa = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    names = ["subject", "relation", "object", "time"]
    cells = [line.split(",") for line in CLEAN.split()]
    dated = [[*row[:3], dt.date.fromisoformat(row[3])] for row in cells]
    expected = read_facts(write(CLEAN))
    for rows in (cells, dated, [[*r[:3], dt.datetime.combine(r[3], dt.time())] for r in dated]):
        assert_same(read_facts([tuple(row) for row in rows]), expected)
        table = pa.table({n: list(c) for n, c in zip(names, zip(*rows, strict=True), strict=True)})
        assert_same(read_facts(table), expected)
        parquet.write_table(table, tmp_path / "events.parquet")
        assert_same(read_facts(tmp_path / "events.parquet"), expected)
        pandas = pytest.importorskip("pandas")
        assert_same(read_facts(pandas.DataFrame(rows, columns=names)), expected)
        assert_same(read_facts(pandas.DataFrame(rows)), expected)
        polars = pytest.importorskip("polars")
        frame = polars.DataFrame(rows, schema=names, orient="row")
        assert_same(read_facts(frame), expected)
        assert_same(read_facts(frame.lazy()), expected)


def test_categorical_and_zoned_columns_of_frames_are_read(write) -> None:
    pandas = pytest.importorskip("pandas")
    text = "a,r,b,2018-01-01T23:30+02:00\nb,r,c,2018-01-02T01:30+02:00\n"
    frame = pandas.DataFrame([line.split(",") for line in text.split()], columns=list("srot"))
    frame["s"] = frame["s"].astype("category")
    frame["t"] = pandas.to_datetime(frame["t"], utc=True).dt.tz_convert("Asia/Tokyo")
    assert_same(read_facts(frame), read_facts(write(text)))


def test_a_frame_of_mixed_types_and_numbers_with_gaps_is_read_value_by_value() -> None:
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(
        {"s": ["a", 7, 2.0], "r": ["x", "y", "z"], "o": [1, 2, 3], "t": [1.0, 2.0, float("nan")]}
    )
    facts, report = read_facts_with_report(frame, skip_bad_rows=True)
    assert described(facts) == [("a", "x", "1", "1"), ("7", "y", "2", "2")]
    assert [(row.place, row.number, row.column) for row in report.first] == [("row", 3, "t")]


def test_quoted_cells_may_hold_delimiters_and_quotes(write) -> None:
    path = write('"Ann, B.","says ""hi""" , "x",1\nc,r,d,2\n')
    assert described(read_facts(path))[0] == ("Ann, B.", 'says "hi"', "x", "1")


def test_quotes_mean_nothing_in_a_tab_separated_file(write) -> None:
    path = write('"a\tr"\t"o"\t1\n', "x.tsv")
    assert described(read_facts(path)) == [('"a', 'r"', '"o"', "1")]


def test_columns_are_found_by_header_name_wherever_they_stand(write) -> None:
    path = write("id,when,tail,rel,head\n9,5,b,r,a\n")
    assert described(read_facts(path)) == [("a", "r", "b", "5")]


@pytest.mark.parametrize(
    ("header", "columns"),
    [
        ("k,day,who,what,whom\n", ("who", "what", "whom", "day")),
        ("k,day,who,what,whom\n", ("WHO", "what", "4", "1")),
        ("", ("2", "3", "4", "1")),
        ("k,day,who,what,whom\n", (2, 3, 4, 1)),
    ],
)
def test_columns_can_be_chosen_by_name_or_position(write, header: str, columns) -> None:
    path = write(header + "0,5,a,r,b\n0,6,b,r,a\n")
    facts = read_facts(path, columns=columns)
    assert described(facts) == [("a", "r", "b", "5"), ("b", "r", "a", "6")]


@pytest.mark.parametrize(
    ("text", "rows"),
    [
        ("a,r,b,unknown\nc,r,d,1\n", 2),  # 'r' comes up again: a bad row, not a header
        ("a,x,b,2018-13-45\nc,r,d,2018-01-01\n", 2),
        ("1,2,3,oops\n4,5,6,1\n", 2),
        ("a,b,c,nan\nd,e,f,1\n", 2),
        ("who,what,whom,day\nd,e,f,1\n", 1),
        ("who,what,whom,day\nd,e,f,oops\n", 1),
        ("doer,deed,done,daytime\nd,e,f,oops\n", 2),
        ("subject,relation,object,time\nd,e,f,oops\n", 1),
    ],
)
def test_a_first_row_is_a_header_only_when_it_cannot_be_a_broken_row(write, text, rows) -> None:
    try:
        report = read_facts_with_report(write(text), skip_bad_rows=True)[1]
    except BadRowsError as error:
        report = error.report
    assert report.rows_in_file == rows


def test_a_folder_is_read_as_train_valid_test_in_that_order(write, tmp_path: Path) -> None:
    write("c,r,d,3\n", "set/test.csv")
    write("subject,relation,object,time\na,r,b,1\n", "set/train.csv")
    write(gzip.compress(b"b\tr\tc\t2\n"), "set/valid.tsv.gz")
    write("anything", "set/README.md")
    write("x,y,z,9\n", "set/extra.csv")
    facts = read_facts(tmp_path / "set")
    assert (facts.name, facts.entities.names) == ("set", ("a", "b", "c", "d"))
    (tmp_path / "set" / "train.csv").unlink()
    (tmp_path / "set" / "test.csv").unlink()
    (tmp_path / "set" / "valid.tsv.gz").unlink()
    assert described(read_facts(tmp_path / "set")) == [("x", "y", "z", "9")]


def test_ids_are_looked_up_in_the_vocabulary_files_beside_the_data(write, tmp_path: Path) -> None:
    write("zero\t0\tmore\ntwo\t2\nlast\t4\nzero\t3\n", "d/entity2id.txt")
    write("1\nrel\t0\n", "d/relation2id.txt")
    path = write("2\t0\t0\t5\t0\n4\t0\t3\t6\t0\n", "d/train.txt")
    for source in (path, tmp_path / "d"):
        facts = read_facts(source)
        assert facts.entities.names == ("zero", "1", "two", "zero (id 3)", "last")
        assert facts.relations.names == ("rel",)
        assert facts.subject.tolist() == [2, 4]
    assert read_facts(path, ids=False).entities.names == ("2", "0", "4", "3")
    with pytest.raises(BadRowsError, match="an id outside the vocabulary of 5 names"):
        read_facts(write("2\t0\t0\t5\n5\t0\t0\t5\n", "d/train.txt"))
    with pytest.raises(BadRowsError, match="not an integer id"):
        read_facts(write("2\t0\t0\t5\n4\t0\tx\t5\n", "d/train.txt"))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("a\t0\nb\t0\n", "share the id 0"),
        ("a\tx\n", "line 1"),
        ("a\t0\n\nb\n", "line 3"),
        ("a\t-1\n", "not between"),
        ("a\t99999999999999999999999\n", "not between"),
        ("a\t90000000\n", "largest id"),
        ("", "no names"),
        (b"\xff\t0\n", "UTF-8"),
    ],
)
def test_a_broken_vocabulary_file_is_one_clear_sentence(write, content, message: str) -> None:
    write("r\t0\n", "d/relation2id.txt")
    write(content, "d/entity2id.txt")
    with pytest.raises(DataError, match=message):
        read_facts(write("0\t0\t0\t5\n", "d/train.txt"))


def test_integers_without_vocabulary_files_are_names_unless_ids_are_asked_for(write) -> None:
    path = write("7,0,3,1\n3,1,7,2\n")
    assert read_facts(path).entities.names == ("7", "3")
    facts = read_facts(path, ids=True)
    assert facts.entities.names == tuple("01234567")
    assert facts.subject.tolist() == [7, 3]
    with pytest.raises(DataError, match="the largest id is 1,000,000,000,000"):
        read_facts(write("1000000000000,0,3,1\n"), ids=True)


@pytest.mark.parametrize(
    ("unit", "times", "labels"),
    [
        ("auto", "2018-01-01 2018-03-05", "2018-01-01 2018-03-05"),
        ("auto", "2018-01-01T09:00 2018-01-02T09:30:10.5", "2018-01-01 2018-01-02"),
        ("auto", "2018-01-01T09:00 2018-01-01T11", "2018-01-01T09 2018-01-01T11"),
        ("auto", "2018-01 2018-04", "2018-01 2018-04"),
        ("auto", "1 -5 +7", "-5 1 7"),
        ("auto", "2018 2019", "2018 2019"),
        ("hour", "2018-01-01T00:30+01:00 2018-01-01T00:30Z", "2017-12-31T23 2018-01-01T00"),
        ("hour", "2018-01-01T00:30-0130 2018-01-01", "2018-01-01T00 2018-01-01T02"),
        ("day", "2018-01-01T23:30-01 2018-01-01", "2018-01-01 2018-01-02"),
        ("day", "20180105 2018", "2018-01-01 2018-01-05"),
        ("week", "2018-01-03 2018-01-07 2018-01-08", "2018-01-01 2018-01-08"),
        ("month", "2018-01-31 2018-03", "2018-01 2018-03"),
        ("year", "2018-12-31 2020 360-##-## -431-##-##", "-431 360 2018 2020"),
        ("year", "19##-##-## 198#-##-## 0099-01-01", "99 1900 1980"),
        ("step", "3 1", "1 3"),
    ],
)
def test_times_are_read_in_the_unit_chosen(write, unit: str, times: str, labels: str) -> None:
    path = write("".join(f"a,r,b,{time}\n" for time in times.split()))
    facts = read_facts(path, unit=unit, interval=False)
    assert sorted({row[3] for row in described(facts)}, key=labels.split().index) == labels.split()


def test_datetimes_may_have_a_space_instead_of_a_t(write) -> None:
    facts = read_facts(write("a,r,b,2018-01-01 10:00:00\na,r,b,2018-01-01 12:00:00 Z\n"))
    assert [row[3] for row in described(facts)] == ["2018-01-01T10", "2018-01-01T12"]


def test_to_arrow_gives_back_what_was_read(write) -> None:
    pytest.importorskip("pyarrow")
    facts = read_facts(write(CLEAN))
    table = to_arrow(facts)
    assert table.column_names == ["subject", "relation", "object", "time"]
    assert [tuple(row.values()) for row in table.to_pylist()] == DESCRIBED
    assert_same(read_facts(table), facts)
    assert to_arrow(facts).to_pandas().shape == (3, 4)


def test_rows_keep_their_order_and_repetitions_until_facts_are_built(write) -> None:
    raw = read_raw_facts(write("b,r,c,2\na,r,b,1\nb,r,c,2\n"))
    assert raw.time.tolist() == [2, 1, 2]
    assert raw.entities.names == ("b", "c", "a")
    assert len(raw.build()) == 2


# What cannot be read ------------------------------------------------------------------------------

BAD_ROWS = [
    (b"a,r,b", "time", "a,r,b", "too few columns: 3, and 4 are needed"),
    (b",r,b,2018-01-01", "subject", "", "no name"),
    (b"a,  ,b,2018-01-01", "relation", "", "no name"),
    (b'a,r,"",2018-01-01', "object", "", "no name"),
    (b"a,r,b,", "time", "", "no time"),
    (b"a,r,b,####", "time", "####", "an unknown time (only intervals may be open)"),
    (b"a,r,b,soon", "time", "soon", "not an integer, a date or a datetime"),
    (b"a,r,b,NaN", "time", "NaN", "not a number"),
    (b"a,r,b,2018-02-30", "time", "2018-02-30", "there is no day 30 in that month"),
    (b"a,r,b,2018-13-01", "time", "2018-13-01", "there is no month 13"),
    (b"a,r,b,2018-01-01T25:00", "time", "2018-01-01T25:00", "there is no such time of day"),
    (b"a,r,b,2018-01-01T05:00+99", "time", "2018-01-01T05:00+99", "there is no time zone +99"),
    (b"a,r,b,18-01-05", "time", "18-01-05", "write the year of a date with four digits"),
    (b"a,r,b,2018-##-05", "time", "2018-##-05", "a day without its month"),
    (b"a,r,b,9" + b"9" * 99, "time", "9" * 79 + "…", "beyond ±10^15"),
    (b"a\xff,r,b,2018-01-01", "subject", "a\\xff", "not valid UTF-8"),
    (b"a,r,b,2018-01-01,\xc3", "4", "\\xc3", "not valid UTF-8"),
    (b'a,"r,b,2018-01-01', "relation", '"r,b,2018-01-01', "a quote that is never closed"),
    (b'a,"r"x,b,2018-01-01', "relation", '"r"x', "text after a closing quote"),
    (b'a,r"x,b,2018-01-01', "relation", 'r"x', "a quote inside a cell that is not quoted"),
    (
        b"a,r,b\rc,2018-01-01",
        "object",
        "b\rc",
        "a carriage return inside a line (rows end in a line feed)",
    ),
    (b"a,r,b\0,2018-01-01", "object", "b\0", "a NUL character"),
]


@pytest.mark.parametrize(("line", "column", "value", "reason"), BAD_ROWS)
def test_every_kind_of_bad_row_is_reported_with_line_column_value_and_reason(
    write, line: bytes, column: str, value: str, reason: str
) -> None:
    path = write(CLEAN.encode() + b"\n" + line + b"\n" + CLEAN.encode())
    with pytest.raises(BadRowsError) as caught:
        read_facts(path)
    report = caught.value.report
    (row,) = report.first
    assert (row.source, row.place, row.number) == (str(path), "line", 5)
    assert (row.column, row.value, row.reason) == (column, value, reason)
    assert (report.total, report.rows_read, report.rows_in_file) == (1, 6, 7)
    message = str(caught.value)
    assert f"{path}, line 5, column '{column}'" in message
    assert reason in message
    assert "--skip-bad-rows" in message
    facts, skipped = read_facts_with_report(path, skip_bad_rows=True)
    assert described(facts) == DESCRIBED
    assert skipped == report


@pytest.mark.parametrize(
    ("row", "column", "value", "reason"),
    [
        (("a", "r", "b"), "time", "('a', 'r', 'b')", "too few columns: 3, and 4 are needed"),
        (5, "subject", "5", "not a tuple but a int"),
        ("abcd", "subject", "'abcd'", "not a tuple but a str"),
        ((None, "r", "b", 1), "subject", "null", "no name"),
        (("a", "r", float("nan"), 1), "object", "null", "no name"),
        (("a", "r", "b", float("nan")), "time", "null", "no time"),
        (("a", "r", "b", 1.5), "time", "1.5", "not an integer, a date or a datetime"),
        (("a", "r", "b", np.datetime64("NaT")), "time", "null", "no time"),
        (("a", "\ud800", "b", 1), "relation", "\ud800", "not valid text"),
        (("a", "r", "b", 10**15 + 1), "time", "1000000000000001", "beyond ±10^15"),
    ],
)
def test_bad_tuples_are_reported_by_row(row, column: str, value: str, reason: str) -> None:
    with pytest.raises(BadRowsError) as caught:
        read_facts([("a", "r", "b", 1), ("a", "r", "c", np.int64(3)), row])
    (bad,) = caught.value.report.first
    assert (bad.place, bad.number, bad.column, bad.value, bad.reason) == (
        "row",
        3,
        column,
        value,
        reason,
    )


def test_nulls_in_frames_are_bad_rows() -> None:
    pa = pytest.importorskip("pyarrow")
    table = pa.table({"s": ["a", None], "r": ["r", "r"], "o": ["b", "b"], "t": [1, 2]})
    with pytest.raises(BadRowsError, match="table, row 2, column 's': 'null': no name"):
        read_facts(table)


def test_a_report_describes_the_first_twenty_bad_rows_and_counts_the_rest(write) -> None:
    rows = [["a,r,b,1", "a,r,b,x", "a,r", ",r,b,1", "a,r,,1"][at % 5] for at in range(1000)]
    path = write("\n".join(rows))
    with pytest.raises(BadRowsError) as caught:
        read_facts(path)
    report = caught.value.report
    assert [row.number for row in report.first] == [at for at in range(1, 27) if at % 5 != 1][:20]
    assert report.total == 800
    assert "… and 780 more" in str(caught.value)
    assert len(str(caught.value).splitlines()) == 23


def test_a_report_can_be_written_as_text_and_as_json(write, tmp_path: Path) -> None:
    _, report = read_facts_with_report(write("a,r,b,1\na,r,b,x\n"), skip_bad_rows=True)
    report.write(tmp_path / "new" / "report.json")
    report.write(tmp_path / "report.txt")
    content = json.loads((tmp_path / "new" / "report.json").read_text())
    assert content == report.to_json()
    assert (content["rows_in_file"], content["rows_read"], content["rows_bad"]) == (2, 1, 1)
    assert content["first"][0]["reason"] == "not an integer, a date or a datetime"
    assert (tmp_path / "report.txt").read_text() == report.text() + "\n"
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["report.json"]
    with pytest.raises(DataError, match="cannot write"):
        report.write(tmp_path / "report.txt" / "below")
    assert BadRows("x", 0, (), 3).text() == "x: all 3 rows could be read"


def test_skipped_rows_are_logged_as_a_warning(write, caplog) -> None:
    with caplog.at_level(logging.WARNING):
        read_facts(write("a,r,b,1\na,r,b,x\n"), skip_bad_rows=True)
    assert "1 of 2 rows cannot be read" in caplog.text


def test_more_integers_than_dates_make_the_dates_bad_and_the_other_way_round(write) -> None:
    for times, bad in (("1 2 2018-01-01", 3), ("2018-01-01 2018-01-02 7", 3)):
        path = write("".join(f"a,r,b,{time}\n" for time in times.split()))
        with pytest.raises(BadRowsError) as caught:
            read_facts(path)
        assert [row.number for row in caught.value.report.first] == [bad]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("e.csv", b"", "is empty"),
        ("e.csv", b" \n\r\n\t\n", "is empty"),
        ("e.csv", b"\xef\xbb\xbf", "is empty"),
        ("e.csv.gz", b"", "is empty"),
        ("e.parquet", b"", "is empty"),
        ("e.csv", b"subject,relation,object,time\n", "has a header and no rows"),
        ("e.csv", b"a,r,b,x\n", "No row can be read"),
        ("e.csv", b"id,subject,relation,object,n\n1,a,r,b,5\n", "no column 'time'; its columns"),
        ("e.csv", "a,r,b,1\n".encode("utf-16"), "save it as UTF-8"),
        ("e.csv", bytes(range(256)) * 9, "cannot be read"),
        ("e.json", b"{}", "cannot tell what"),
        ("noname", b"a,r,b,1", "cannot tell what"),
        ("e.parquet.gz", b"a", "cannot tell what"),
        ("e.csv.gz", b"a,r,b,1\n", "not a complete gzip file"),
        ("e.csv.gz", gzip.compress(b"a,r,b,1\n" * 99, mtime=0)[:-9], "not a complete gzip file"),
        ("e.csv.zst", b"a,r,b,1\n", "not a complete zstd file"),
        ("e.parquet", b"PAR1 nonsense PAR1", "not a readable Parquet file"),
    ],
)
def test_a_file_that_cannot_be_read_is_one_clear_sentence(write, name, content, message) -> None:
    pytest.importorskip("pyarrow")
    with pytest.raises(DataError, match=message):
        read_facts(write(content, name))


def test_paths_that_cannot_be_read_are_one_clear_sentence(write, tmp_path: Path) -> None:
    for path, message in (
        (tmp_path / "missing.csv", "there is no file or folder"),
        (tmp_path, "holds no data"),
        ("a\0b.csv", "cannot open|there is no file"),
        ("x" * 5000, "cannot open|there is no file"),
        ("/dev/null", "neither a file nor a folder"),
    ):
        with pytest.raises(DataError, match=message):
            read_facts(path)
    (tmp_path / "d" / "train.csv").mkdir(parents=True)
    for path in (tmp_path / "d", tmp_path / "d" / "train.csv"):
        with pytest.raises(DataError, match=r"is a folder, not a file|holds no data"):
            read_facts(path)
    write("a,r,b,1\n", "two/one.csv")
    write("a,r,b,1\n", "two/other.csv")
    with pytest.raises(DataError, match="holds 2 data files"):
        read_facts(tmp_path / "two")
    write("a,r,b,1\n", "two/train.csv")
    write("a\tr\tb\t1\n", "two/train.tsv")
    with pytest.raises(DataError, match=r"both train\.csv and train\.tsv"):
        read_facts(tmp_path / "two")


@pytest.mark.parametrize("source", [3, None, b"a,r,b,1", {"s": [1]}, object()])
def test_things_that_hold_no_facts_are_refused(source) -> None:
    with pytest.raises(DataError, match="cannot read facts from"):
        read_facts(source)


def test_no_tuples_and_no_rows_are_refused() -> None:
    pa = pytest.importorskip("pyarrow")
    with pytest.raises(DataError, match="holds no rows"):
        read_facts([])
    with pytest.raises(DataError, match="holds no rows"):
        read_facts(pa.table({"s": [], "r": [], "o": [], "t": []}))
    with pytest.raises(DataError, match="no column 'relation'; its columns are 'x'"):
        read_facts(pa.table({"x": [1]}))


def test_a_missing_column_is_named_along_with_those_there_are(write) -> None:
    path = write("s,r,o,t\na,r,b,1\n")
    with pytest.raises(DataError, match="no column 'when'; its columns are 's', 'r', 'o', 't'"):
        read_facts(path, columns=("s", "r", "o", "when"))
    with pytest.raises(DataError, match="no column '9'"):
        read_facts(path, columns=("s", "r", "o", "9"))
    with pytest.raises(DataError, match="the same one"):
        read_facts(path, columns=("s", "r", "s", "t"))


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"unit": "fortnight"}, UnknownNameError),
        ({"uint": "day"}, UnknownNameError),
        ({"columns": ("a", "b")}, SettingsError),
        ({"columns": "srot"}, SettingsError),
        ({"columns": tuple("srot"), "interval": True}, SettingsError),
        ({"delimiter": ""}, SettingsError),
        ({"delimiter": '"'}, SettingsError),
        ({"clip": ("1",)}, SettingsError),
        ({"clip": "2018"}, SettingsError),
        ({"clip": ("soon", "5")}, SettingsError),
        ({"clip": ("5", "1")}, SettingsError),
    ],
)
def test_options_that_make_no_sense_are_refused(options, error) -> None:
    with pytest.raises(error):
        read_facts([("a", "r", "b", 1)], **options)


# Without the fast engine --------------------------------------------------------------------------


def test_text_is_read_without_pyarrow_and_the_rest_says_what_to_install(write, monkeypatch) -> None:
    expected = read_facts(write(CLEAN))
    paths = [write(CLEAN), write(gzip.compress(CLEAN.encode()), "e.csv.gz")]
    needing = [write(zstd(CLEAN.encode()), "e.csv.zst"), write(b"x", "e.parquet")]
    for package in ("pyarrow", "polars"):
        monkeypatch.setitem(sys.modules, package, None)  # not to be imported by any means
    for path in paths:
        assert_same(read_facts(path), expected)
    for path in needing:
        with pytest.raises(DataError, match="install pyarrow"):
            read_facts(path)


def test_importing_the_readers_imports_no_optional_package() -> None:
    code = (
        "import sys, metatkgr.data.readers;"
        "sys.exit(any(n in sys.modules for n in ('pyarrow','pandas','polars','zstandard')))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def rows_of(data: bytes, suffix: str, **options: object) -> Rows:
    (rows,) = rows_of_text([data], "x", suffix, ReadOptions(**options))
    return rows


def test_clean_files_take_the_fast_path(monkeypatch) -> None:
    pytest.importorskip("pyarrow")

    def refuse(*words):
        raise AssertionError("took the slow path")

    monkeypatch.setattr("metatkgr.data.readers.lines._split_each", refuse)
    for suffix, text in ((".csv", CLEAN), (".tsv", CLEAN.replace(",", "\t"))):
        for ends in ("", "\n\n", "\r\n"):
            rows = rows_of((text + ends).encode(), suffix)
            assert rows.numbers.tolist() == [1, 2, 3]
        rows = rows_of(("é" + text).encode(), suffix, header=True)
        assert rows.numbers.tolist() == [2, 3]


def test_one_unusual_line_does_not_slow_down_the_others(monkeypatch) -> None:
    pytest.importorskip("pyarrow")
    slow, each = [], lines._split_each

    def count(file, some, before):
        slow.extend(some := list(some))
        return each(file, some, before)

    monkeypatch.setattr(lines, "_split_each", count)
    text = CLEAN * 100 + ' "Ann, or Anna",likes,Bob,2018-01-09\n' + CLEAN * 100 + "a,b\n"
    rows = rows_of(text.encode(), ".csv")
    assert [number for number, _ in slow] == [301, 602]
    assert rows.numbers.tolist() == list(range(1, 602))
    assert rows.columns["subject"].texts[rows.columns["subject"].codes[300]] == "Ann, or Anna"
    assert [row.number for row in rows.bad] == [602]


def test_quoted_cells_take_the_fast_path(monkeypatch) -> None:
    pytest.importorskip("pyarrow")
    slow, each = [], lines._split_each

    def count(file, some, before):
        slow.extend(some := list(some))
        return each(file, some, before)

    monkeypatch.setattr(lines, "_split_each", count)
    quoted = '"Ann, or ""Anna""",likes,"",2018-01-09\n"Bob",likes,"Cid",2018-01-09\r\n'
    assert len(rows_of((CLEAN + quoted * 50 + CLEAN).encode(), ".csv")) == 106
    assert slow == []
    # A line that is not for pyarrow leaves the quoted ones to it.
    rows = rows_of((CLEAN + quoted * 50 + '"a"b,r,c,2\n').encode(), ".csv")
    assert [number for number, _ in slow] == [104]
    assert [row.reason for row in rows.bad] == ["text after a closing quote"]


def test_a_format_is_one_file_that_registers_itself(tmp_path: Path, monkeypatch) -> None:
    """A module in a folder that the package of formats looks into; nothing else is changed."""
    (tmp_path / "brackets.py").write_text(
        "from metatkgr.data.readers.formats import register\n"
        "from metatkgr.data.readers.tables import rows_of_tuples\n"
        "import ast\n"
        "@register('.facts')\n"
        "def read(file, options, rows, *, times_only):\n"
        "    lines = file.read_text().splitlines()\n"
        "    yield rows_of_tuples([ast.literal_eval(line) for line in lines], options)\n"
    )
    monkeypatch.setattr(formats, "__path__", [*formats.__path__, str(tmp_path)])
    monkeypatch.setattr(formats, "_KNOWN", {})
    for name in [name for name in sys.modules if name.startswith(formats.__name__ + ".")]:
        monkeypatch.delitem(sys.modules, name)
    formats._find_own.cache_clear()
    path = tmp_path / "world.facts"
    path.write_text("('Ann', 'likes', 'Bob', 3)\n('Bob', 'likes', 'Cid', 4)\n")
    assert ".facts" in formats.suffixes_told()
    facts = read_facts(path)
    assert (facts.name, len(facts), tuple(facts.entities)) == ("world", 2, ("Ann", "Bob", "Cid"))
    ingest([path], tmp_path / "folder")
    assert_same(FactFolder(tmp_path / "folder").facts(), facts)
    formats._find_own.cache_clear()


def test_what_unpacks_to_more_than_its_budget_is_refused_before_it_does(tmp_path: Path) -> None:
    """A megabyte at most on disk each, and gigabytes in memory; one was a traceback, one no end."""
    line = b"a,b,c,1\n" * (1 << 17)
    with pa.CompressedOutputStream(str(tmp_path / "facts.csv.zst"), "zstd") as file:
        for _ in range(400):
            file.write(line)
    with gzip.open(tmp_path / "facts.csv.gz", "wb", 1) as file:
        for _ in range(50):
            file.write(line)
    same = pa.DictionaryArray.from_arrays(pa.array(np.zeros(10**7, np.int8)), ["1"])
    parquet.write_table(pa.table(dict.fromkeys("srot", same)), tmp_path / "facts.parquet")
    (tmp_path / "facts.csv").write_text("a,b,c,0001-01-01,9998-12-31\n" * 60)
    for name in ("facts.csv.zst", "facts.csv.gz", "facts.parquet", "facts.csv"):
        path = tmp_path / name
        assert path.stat().st_size < 2**20
        with pytest.raises(DataError, match="more than 400,000,000 bytes of memory; allow more"):
            read_facts(path, most_bytes=4 * 10**8)
    if sys.platform.startswith("linux"):
        imports = "import metatkgr as mt\nfrom metatkgr.errors import DataError"
        program = (
            "for path in sys.argv[1:]:\n"
            "    try:\n"
            "        mt.read_facts(path, most_bytes=4 * 10**8)\n"
            "    except DataError:\n"
            "        pass\n"
        )
        before, after = peak_megabytes(imports, program, *tmp_path.glob("facts.*"))
        assert after < 300, f"{after} MB, {before} of them before anything was read"


def test_one_long_cell_of_parquet_has_the_same_budget(tmp_path: Path) -> None:
    path = tmp_path / "facts.parquet"
    for column in "so":
        table = pa.table({"s": ["a"], "r": ["b"], "o": ["c"], "t": [1], column: ["x" * 10**7]})
        parquet.write_table(table, path, compression="zstd")
        before = pa.total_allocated_bytes()
        with pytest.raises(DataError, match="its first rows would take more than"):
            read_facts(path, most_bytes=10**6)
        assert pa.total_allocated_bytes() - before < 10**7


def test_a_long_cell_in_a_later_part_of_parquet_has_the_same_budget(tmp_path: Path) -> None:
    fact = {"s": ["a"], "r": ["b"], "o": ["c"], "t": [1]}
    with parquet.ParquetWriter(tmp_path / "facts.parquet", pa.table(fact).schema) as file:
        for name in ("c", "x" * 10**7):
            file.write_table(pa.table(fact | {"o": [name]}))
    with pytest.raises(DataError, match="its columns would take more than"):
        read_facts(tmp_path / "facts.parquet", most_bytes=10**6)


@pytest.mark.parametrize("letter", [",", '"'])
def test_a_first_line_of_very_many_cells_is_not_guessed_about(tmp_path: Path, letter: str) -> None:
    path = tmp_path / "facts.csv"
    path.write_text(letter * (1 << 20))
    with pytest.raises(DataError, match=r"a line so long would take more than .* allow more"):
        read_facts(path, most_bytes=1 << 27)
    path.write_text("s,r,o,t," + "x" * 200_000 + "\na,b,c,1\n")
    assert len(read_facts(path, most_bytes=1 << 27)) == 1


def test_lists_in_parquet_are_not_read(tmp_path: Path) -> None:
    """A hundred bytes are a million equal cells of a list, and nothing but reading tells so."""
    path = tmp_path / "facts.parquet"
    lists = pa.ListArray.from_arrays([0, *[5 * 10**6] * 2], pa.array(["x"]).take([0] * 5 * 10**6))
    fact = {"s": ["a", "b"], "r": ["c", "c"], "o": ["d", "d"], "t": [1, 2]}
    parquet.write_table(pa.table({"notes": lists, **fact}), path, compression="zstd")
    assert path.stat().st_size < 10_000
    imports = "import pyarrow.parquet\nfrom metatkgr.data.readers import read_facts"
    program = "assert len(read_facts(sys.argv[1], most_bytes=10**6)) == 2"
    before, after = peak_megabytes(imports, program, path)
    assert after - before < 100  # is imported meanwhile; the list would be 90 more
    parquet.write_table(pa.table({"notes": lists}), path)
    with pytest.raises(DataError, match="columns of lists or tables"):
        read_facts(path)


def test_a_line_of_json_is_not_read_at_any_length(tmp_path: Path) -> None:
    path = tmp_path / "facts.jsonl"
    good = b'{"s": 1, "r": 1, "o": 1, "t": 1}\n'
    path.write_bytes(good + b'{"s": [' + b"[]," * (6 << 20) + b"[]]}\n" + good)
    with pytest.raises(BadRowsError, match="too large or too deep"):
        read_facts(path)


def test_json_lines_have_the_same_budget(tmp_path: Path) -> None:
    path = tmp_path / "facts.jsonl.zip"
    with ZipFile(path, "w", ZIP_DEFLATED) as archive:
        archive.writestr("facts.jsonl", b'{"s": 1, "r": 1, "o": 1, "t": 1}\n' * 10**5)
    assert len(read_facts(path)) == 1
    with pytest.raises(DataError, match="its text would take more than"):
        read_facts(path, most_bytes=10**6)


@pytest.mark.parametrize("schema", [True, False])
def test_long_equal_texts_of_parquet_are_held_once(tmp_path: Path, schema: bool) -> None:
    path = tmp_path / "facts.parquet"
    names = pa.array(["x" * 10**4] * 10**4)
    table = pa.table({"s": names, "r": ["r"] * len(names), "o": names, "t": range(len(names))})
    parquet.write_table(table, path, store_schema=schema)
    before = pa.total_allocated_bytes()
    largest = 0
    for part in pieces(path, ReadOptions()):
        largest = max(largest, pa.total_allocated_bytes() - before)
        assert len(part) == len(names)
    assert largest < 10**7
    assert read_facts(path).entities.names == ("x" * 10**4,)


@pytest.mark.parametrize("most", [0, -1, True, 2**70])
def test_a_budget_is_a_number_of_bytes(most: int) -> None:
    with pytest.raises(SettingsError, match="most_bytes"):
        ReadOptions(most_bytes=most)


@pytest.mark.parametrize("size", [3, 2**31 - 2])
def test_repeated_rows_are_found_also_where_ids_do_not_fit_into_one_number(size: int) -> None:
    drawn = np.random.default_rng(0).integers(0, 3, (500, 4))
    first = {row: at for at, row in reversed(list(enumerate(map(tuple, drawn.tolist()))))}
    columns = [(drawn[:, at] * (size // 3), size) for at in range(4)]
    assert first_of_each(columns).tolist() == sorted(first.values())

"""Any bytes give facts or a clean error, and no row is ever lost without a word."""

from __future__ import annotations

import gzip
import io
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from metatkgr.data.readers import ReadOptions, read_facts, read_facts_with_report, read_raw_facts
from metatkgr.data.readers.formats.text import rows_of_text
from metatkgr.data.readers.layout import Layout
from metatkgr.data.readers.lines import TextFile, split
from metatkgr.data.readers.times import Kind, Moments, UnitFinder, kind_of, why_not_a_time
from metatkgr.errors import DataError

FUZZ = settings(
    max_examples=200,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)

PIECES = [
    *(b"a", b"b", b"rel", b"17", b"0", b"1", b"2018-01-01", b"2018-01-02T05", b"1987-##-##"),
    *(b"####", b"nan", b"-5", b"", b" ", b"\xc3\xa9", b"\xff", b'"', b'"x,y"', b'""', b"\r", b"\0"),
    *(b"\xef\xbb\xbf", b"subject", b"relation", b"object", b"time", b"end", b"\xc2\xa0", b"\x1c"),
    *(b"9" * 30, b"\xe2\x80\xa8", b"\x0b", b"\x85"),
]
SEPARATORS = [b",", b",", b",", b"\t", b";", b"|"]
LINE_ENDS = [b"\n", b"\n", b"\n", b"\r\n", b"\n\n", b"\r", b"\r\r\n", b"\n \t\n"]


@st.composite
def lines(draw) -> bytes:
    """Text that is nearly a file of facts."""
    separator = draw(st.sampled_from(SEPARATORS))
    rows = draw(
        st.lists(
            st.tuples(
                st.lists(st.sampled_from(PIECES), min_size=1, max_size=6),
                st.sampled_from(LINE_ENDS),
            ),
            max_size=8,
        )
    )
    return b"".join(separator.join(cells) + end for cells, end in rows)


@st.composite
def clean(draw) -> bytes:
    """A file in which nothing is wrong."""
    separator = draw(st.sampled_from(["\t", ","]))
    name = st.text(
        st.characters(exclude_categories=["Cs", "Cc", "Z"], exclude_characters='",\ufeff'),
        min_size=1,
        max_size=3,
    ) | st.sampled_from(["Ann", "Bob", " Cid ", "7"])
    time = draw(
        st.sampled_from(
            [
                st.integers(-99, 99).map(str),
                st.dates().map(str),
                st.datetimes().map(lambda moment: moment.isoformat()),
            ]
        )
    )
    rows = draw(st.lists(st.tuples(name, name, name, time), min_size=1, max_size=30))
    end = draw(st.sampled_from(["\n", "\r\n"]))
    last = draw(st.sampled_from(["", end, end + end]))
    return (end.join(separator.join(row) for row in rows) + last).encode()


MANY_DATES = [
    text for at in range(1000) for text in (f"{at + 1:04d}-05-31", f"{at + 1:04d}-05-31T10:30:59")
]

ANY_BYTES = st.binary(max_size=200) | lines() | clean()


def rows_there_are(data: bytes, header: bool) -> int:
    """An independent count: lines that are not blank, less the header."""
    data = data[3:] if data[:3] == b"\xef\xbb\xbf" else data
    count = sum(1 for line in io.BytesIO(data) if line.strip())
    return count - 1 if header and count else count


def check(path: Path, data: bytes, **options) -> None:
    """Read a file in both ways; every row must be accounted for."""
    expected = rows_there_are(data, options["header"])
    try:
        facts, report = read_facts_with_report(path, skip_bad_rows=True, **options)
    except DataError as error:
        report = getattr(error, "report", None)
        if report is not None:
            assert report.rows_in_file == expected
            assert report.total == expected
        return
    assert report.rows_read + report.total == report.rows_in_file == expected
    assert len(facts) >= 1
    assert len(report.first) == min(report.total, 20)
    assert [row.number for row in report.first] == sorted({row.number for row in report.first})
    if report.total:
        with pytest.raises(DataError) as caught:
            read_facts(path, **options)
        assert caught.value.report.total == report.total
    else:
        assert len(read_facts(path, **options)) == len(facts)
        if not options.get("interval"):
            assert len(read_raw_facts(path, **options).time) == expected


@FUZZ
@given(
    data=ANY_BYTES,
    suffix=st.sampled_from([".csv", ".tsv", ".txt"]),
    header=st.booleans(),
    interval=st.sampled_from([None, False, True]),
    ids=st.sampled_from([None, True]),
    unit=st.sampled_from(["auto", "auto", "day", "year", "step"]),
)
def test_any_text_gives_facts_or_a_clean_error_and_loses_no_row(
    tmp_path: Path, data: bytes, suffix: str, **options
) -> None:
    path = tmp_path / f"fuzz{suffix}"
    path.write_bytes(data)
    check(path, data, **options)


@FUZZ
@given(data=ANY_BYTES, suffix=st.sampled_from([".csv", ".tsv"]))
def test_a_guessed_header_costs_at_most_one_row(tmp_path: Path, data: bytes, suffix: str) -> None:
    path = tmp_path / f"fuzz{suffix}"
    path.write_bytes(data)
    rows = rows_there_are(data, header=False)
    try:
        report = read_facts_with_report(path, skip_bad_rows=True)[1]
    except DataError as error:
        report = getattr(error, "report", None)
    if report is not None:
        assert rows - 1 <= report.rows_in_file <= rows
        assert report.rows_in_file == report.rows_read + report.total


@settings(FUZZ, max_examples=60)
@given(data=ANY_BYTES, cut=st.integers(0, 60), compression=st.sampled_from([".gz", ".zst", ""]))
def test_compressed_files_whole_or_broken_lose_no_row(
    tmp_path: Path, data: bytes, cut: int, compression: str
) -> None:
    pa = pytest.importorskip("pyarrow")
    path = tmp_path / f"fuzz.csv{compression}"
    if compression == ".gz":
        packed = gzip.compress(data)
    elif compression == ".zst":
        sink = pa.BufferOutputStream()
        with pa.CompressedOutputStream(sink, "zstd") as stream:
            stream.write(data)
        packed = sink.getvalue().to_pybytes()
    else:
        packed = data
    path.write_bytes(packed)
    check(path, data, header=False)
    if compression and 0 < cut < len(packed):
        path.write_bytes(packed[:-cut])
        with pytest.raises(DataError):
            read_facts(path, header=False, skip_bad_rows=True)


@settings(FUZZ, max_examples=80)
@given(
    data=st.binary(max_size=200),
    name=st.sampled_from(["x.parquet", "x.csv.gz", "x.csv.zst", "x.tsv.gz", "x.json"]),
)
def test_arbitrary_bytes_under_any_name_are_a_clean_error(
    tmp_path: Path, data: bytes, name: str
) -> None:
    path = tmp_path / name
    path.write_bytes(data)
    with pytest.raises(DataError):
        read_facts(path)


@settings(FUZZ, max_examples=150)
@given(flips=st.lists(st.tuples(st.integers(0, 2000), st.integers(0, 255)), max_size=4))
def test_damaged_parquet_files_give_facts_or_a_clean_error(
    tmp_path: Path, flips: list[tuple[int, int]]
) -> None:
    pa = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    table = pa.table({"s": ["a", "b"], "r": ["r", "r"], "o": ["b", "c"], "t": [1, 2]})
    buffer = io.BytesIO()
    parquet.write_table(table, buffer)
    data = bytearray(buffer.getvalue())
    for at, value in flips:
        data[at % len(data)] = value
    path = tmp_path / "fuzz.parquet"
    path.write_bytes(data)
    try:
        report = read_facts_with_report(path, skip_bad_rows=True)[1]
    except DataError:
        return
    assert report.rows_read + report.total == report.rows_in_file


CELLS = st.none() | st.text(max_size=4) | st.integers() | st.floats() | st.dates() | st.datetimes()


@FUZZ
@given(
    rows=st.lists(
        st.tuples(CELLS, CELLS, CELLS, CELLS)
        | st.tuples(CELLS, CELLS, CELLS, CELLS, CELLS)
        | st.lists(CELLS, max_size=3)
        | CELLS,
        max_size=8,
    ),
    ids=st.sampled_from([None, True]),
)
def test_any_tuples_give_facts_or_a_clean_error_and_lose_no_row(rows, ids) -> None:
    try:
        report = read_facts_with_report(rows, skip_bad_rows=True, ids=ids)[1]
    except DataError as error:
        report = getattr(error, "report", None)
        if report is None:
            return
    assert report.rows_read + report.total == report.rows_in_file == len(rows)


@settings(FUZZ, max_examples=300)
@given(data=clean(), header=st.booleans())
def test_the_fast_path_equals_the_slow_path_on_clean_files(data: bytes, header: bool) -> None:
    pytest.importorskip("pyarrow")
    suffix = ".tsv" if data.split(b"\n")[0].count(b"\t") >= 3 else ".csv"
    separator = b"\t" if suffix == ".tsv" else b","
    data = separator.join([b"s", b"r", b"o", b"t"]) + b"\n" + data if header else data
    options = ReadOptions(header=header, interval=False)
    fast, slow = (
        next(rows_of_text([data], "x", suffix, options, fast=fast)) for fast in (True, False)
    )
    assert_same_rows(fast, slow)


@st.composite
def same_width(draw, delimiter: str) -> bytes:
    """Rows of five cells each, some of them odd: what tempts the fast path most."""
    usual = st.sampled_from([b"a", b"b", b"1", b"2018-01-01"])
    cell = usual | usual | usual | st.sampled_from(PIECES)
    rows = draw(st.lists(st.lists(cell, min_size=5, max_size=5), min_size=1, max_size=4))
    end = draw(st.sampled_from([b"\n", b"\n", b"\r\n", b"\r"]))
    return end.join(delimiter.encode().join(row) for row in rows)


@pytest.mark.parametrize(
    ("data", "delimiter"),
    [
        (b"a\tr\tb\t1\n\t\t\t\nc\tr\td\t2\n", "\t"),  # tabs alone are a blank line
        (b"a,r,b,1\rc,r,d,2\n", ","),  # pyarrow takes a lone carriage return for a line end
        (b"s,r,o,0\na,r,b,1\rc,r,d,2\n\ne,r,f,3\n", ","),  # so that the line counts agree here
        (b"\xef\xbb\xbfa,r,b,1\nc,r,d,2\n", ","),  # a second byte order mark
        (b"a,r,b,1,\xff\nc,r,d,2,x\n", ","),  # not UTF-8, in a column nobody reads
        (b"a,r,b,1\0\nc,r,d,2\n", ","),
        (b'"a",r,b,1\nc,r,d,2\n', ","),
        (b'"a"",b",r,"",1\n"c""",r,"""d",2\n', ","),
        (b'a,"r\n,b",1\nc,"r",d,2\n', ","),  # a cell over two lines
        (b'"a"x,r,b,1\nc,r" ,d,2\n""a,r,b,3\n', ","),
        (b'"a", "r" ,b,1\n"a"\r,r,b,1\n', ","),
        (b'"a","r","b","1"', ","),
        (b"a,r,b,1\n\nc,r,d,2\n", ","),
        (b"a,r,b,1\nc,r,d\n", ","),
    ],
)
def test_unusual_lines_are_split_one_by_one(data: bytes, delimiter: str) -> None:
    pytest.importorskip("pyarrow")
    check_fast_path(data, delimiter)


@settings(FUZZ, max_examples=400)
@given(text=st.text(st.sampled_from('"",,a\n\r '), max_size=24))
def test_any_quotes_are_split_by_pyarrow_as_if_one_by_one(text: str) -> None:
    pytest.importorskip("pyarrow")
    check_fast_path(text.encode(), ",")


@settings(FUZZ, max_examples=300)
@given(
    drawn=st.sampled_from([",", "\t", ";"]).flatmap(
        lambda delimiter: st.tuples(same_width(delimiter) | ANY_BYTES, st.just(delimiter))
    )
)
def test_lines_split_by_pyarrow_are_as_if_split_one_by_one(drawn: tuple[bytes, str]) -> None:
    pytest.importorskip("pyarrow")
    check_fast_path(*drawn)


def check_fast_path(data: bytes, delimiter: str) -> None:
    positions = {"subject": 0, "relation": 1, "object": 2, "time": 3}
    layout = Layout(positions, {role: role for role in positions})
    file = TextFile("x", data, delimiter, layout)
    # Usual lines around the odd ones, so that there is something for pyarrow.
    usual = delimiter.join(["u", "v", "w", "8"]).encode() + b"\n"
    around = TextFile("x", usual * 3 + data + b"\n" + usual * 3, delimiter, layout)
    for text in (file, around):
        assert_same_rows(split(text, 0, 7), split(text, 0, 7, fast=False))
        assert_same_rows(split(text, 1), split(text, 1, fast=False))


def assert_same_rows(fast, slow) -> None:
    assert (fast.bad, fast.bad_total) == (slow.bad, slow.bad_total)
    assert np.array_equal(fast.numbers, slow.numbers)
    assert fast.columns.keys() == slow.columns.keys()
    for role in slow.columns:
        one, other = (
            [rows.columns[role].texts[code] for code in rows.columns[role].codes]
            for rows in (fast, slow)
        )
        assert one == other, role


@settings(FUZZ, max_examples=100)
@given(data=clean())
def test_both_paths_number_names_in_the_same_order(tmp_path: Path, data: bytes) -> None:
    pytest.importorskip("pyarrow")
    suffix = "tsv" if data.split(b"\n")[0].count(b"\t") >= 3 else "csv"
    fast, slow = tmp_path / f"fast.{suffix}", tmp_path / f"slow.{suffix}"
    fast.write_bytes(data)
    slow.write_bytes(b" \n" + data)  # a blank line first: too unusual for the fast path
    one, other = (read_facts(path, header=False, interval=False) for path in (fast, slow))
    for column in ("subject", "relation", "object", "time"):
        assert np.array_equal(getattr(one, column), getattr(other, column))
    assert one.entities.names == other.entities.names
    assert one.relations.names == other.relations.names


@settings(FUZZ, max_examples=300)
@given(
    text=st.text(st.sampled_from("0123456789-#:TZ+. "), max_size=12) | st.text(max_size=5),
    unit=st.sampled_from(["step", "hour", "day", "week", "month", "year"]),
)
def test_any_text_is_a_time_or_has_a_reason_why_not(text: str, unit: str) -> None:
    moments = Moments.parse([text])
    assert moments.kind[0] == kind_of(text)
    first, last, known = moments.in_unit(unit)
    finder = UnitFinder()
    finder.add(moments)
    assert finder.unit(interval=True) in ("step", "hour", "day", "month", "year")
    if known[0]:
        assert first[0] <= last[0]
    elif moments.kind[0] != Kind.OPEN:
        assert why_not_a_time(text, unit)


SHAPED = st.tuples(
    *(st.sampled_from(["0000", "1900", "2000", "2019", "20x9", "99 9"]) for _ in "y"),
    *(st.sampled_from(["00", "01", "02", "04", "12", "13"]) for _ in "m"),
    *(st.sampled_from(["00", "01", "28", "29", "30", "31", "32", "٣1"]) for _ in "d"),
    *(st.sampled_from(["", "", "T00:00:00", " 23:59:60", "T24:00:00", "T05:60:00", "x01:01:01"]),),
    *(st.sampled_from(["-", "-", "-", "/"]) for _ in "s"),
).map(lambda parts: parts[4].join(parts[:3]) + parts[3])


@settings(FUZZ, max_examples=100)
@given(texts=st.lists(SHAPED | st.dates().map(str), max_size=20))
def test_many_dates_at_once_are_read_like_one_by_one(texts: list[str]) -> None:
    together, apart = Moments.parse([*texts, *MANY_DATES]), Moments.parse(texts)
    for field in ("kind", "value", "first", "last", "precision"):
        assert np.array_equal(getattr(together, field)[: len(texts)], getattr(apart, field)), field


@settings(FUZZ, max_examples=200)
@given(moment=st.datetimes(), unit=st.sampled_from(["hour", "day", "week", "month", "year"]))
def test_dates_agree_with_the_calendar_of_the_rest_of_the_program(moment, unit: str) -> None:
    from metatkgr.data.calendar import date_to_raw

    first, _, known = Moments.parse([moment.isoformat()]).in_unit(unit)
    assert known[0]
    assert first[0] == date_to_raw(moment, unit)

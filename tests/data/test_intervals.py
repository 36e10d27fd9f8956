"""Interval facts: expansion against a literal loop, open ends, clipping, and the real intervals."""

from __future__ import annotations

import calendar
import datetime as dt
import json
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from metatkgr.data.calendar import date_to_raw
from metatkgr.data.readers import (
    BadRowsError,
    read_facts,
    read_facts_with_report,
    read_raw_facts,
)
from metatkgr.data.readers.checks import expand
from metatkgr.data.readers.options import Budget, ReadOptions
from metatkgr.errors import DataError

OPEN = ("", "####", "####-##", "####-##-##")


# A literal reference ------------------------------------------------------------------------------


def ends_of(text: str) -> tuple[dt.datetime, dt.datetime] | None:
    """First and last moment that a date may mean, in the years 1 to 9999; None for an open one."""
    if text in OPEN:
        return None
    parts = [part for part in text.split("-") if "#" not in part]
    year, month, day = [int(part) for part in parts] + [0] * (3 - len(parts))
    first = dt.datetime(year, month or 1, day or 1)
    last_month = month or 12
    last_day = day or calendar.monthrange(year, last_month)[1]
    return first, dt.datetime(year, last_month, last_day, 23, 59)


def expand_literally(rows, unit: str, clip):
    """(row, raw time) of every fact, one step at a time; and which rows end before they start."""
    facts, backwards = [], set()
    low, high = (date_to_raw(moment, unit) for moment in (ends_of(clip[0])[0], ends_of(clip[1])[1]))
    for at, (start, end) in enumerate(rows):
        begin, finish = ends_of(start), ends_of(end)
        if begin and finish and finish[1] < begin[0]:
            backwards.add(at)
            continue
        raw = low if begin is None else date_to_raw(begin[0], unit)
        stop = high if finish is None else date_to_raw(finish[1], unit)
        while raw <= stop:
            if low <= raw <= high:
                facts.append((at, raw))
            raw += 1
    return facts, backwards


@st.composite
def partial_dates(draw) -> str:
    year, month, day = (
        draw(st.integers(1988, 1992)),
        draw(st.integers(1, 12)),
        draw(st.integers(1, 28)),
    )
    return draw(
        st.sampled_from(
            [
                f"{year}-##-##",
                f"{year}-{month:02d}-##",
                f"{year}-{month:02d}-{day:02d}",
                f"{year}-{month:02d}",
                *OPEN,
            ]
        )
    )


@settings(max_examples=150, deadline=None)
@given(
    rows=st.lists(st.tuples(partial_dates(), partial_dates()), min_size=1, max_size=12),
    unit=st.sampled_from(["day", "week", "month", "year"]),
    clip=st.sampled_from([("1980", "2000"), ("1989-03-05", "1990-02"), ("1991", "1991")]),
)
def test_expansion_equals_a_literal_loop_over_rows_and_steps(rows, unit: str, clip) -> None:
    expected, backwards = expand_literally(rows, unit, clip)
    tuples = [(f"s{at}", "r", "o", start, end) for at, (start, end) in enumerate(rows)]
    clip = tuple(text if "-" in text else f"{text}-##-##" for text in clip)
    if not expected:
        with pytest.raises(DataError):
            read_raw_facts(tuples, unit=unit, clip=clip, skip_bad_rows=True)
        return
    raw = read_raw_facts(tuples, unit=unit, clip=clip, skip_bad_rows=True)
    found = [
        (int(raw.entities[subject][1:]), time)
        for subject, time in zip(raw.subject.tolist(), raw.time.tolist(), strict=True)
    ]
    assert found == expected
    report = raw.report
    assert {row.number - 1 for row in report.first} == backwards
    assert report.outside == len(rows) - len(backwards) - len({at for at, _ in expected})
    assert report.rows_read + report.total == report.rows_in_file == len(rows)


@settings(max_examples=200, deadline=None)
@given(
    rows=st.lists(
        st.tuples(st.integers(-9, 9), st.integers(-9, 9), st.booleans(), st.booleans()), max_size=9
    ),
    clip=st.tuples(st.integers(-6, 6), st.integers(-6, 6)),
)
def test_raw_expansion_keeps_rows_in_order_and_clips(rows, clip) -> None:
    expected = [
        (at, time)
        for at, (start, end, has_start, has_end) in enumerate(rows)
        for time in range(-20, 21)
        if clip[0] <= time <= clip[1]
        and (not has_start or time >= start)
        and (not has_end or time <= end)
    ]
    columns = np.asarray(rows, np.int64).reshape(-1, 4).T
    budget = Budget("rows", ReadOptions())
    row, time = expand(columns[0], columns[1], columns[2] > 0, columns[3] > 0, clip, budget)
    assert list(zip(row.tolist(), time.tolist(), strict=True)) == expected


# By example ---------------------------------------------------------------------------------------


def years(path, **options) -> list[tuple[str, int]]:
    raw = read_raw_facts(path, **options)
    return [
        (raw.entities[subject], time)
        for subject, time in zip(raw.subject.tolist(), raw.time.tolist(), strict=True)
    ]


def test_five_columns_with_dates_in_the_last_two_are_intervals(tmp_path: Path) -> None:
    path = tmp_path / "x.tsv"
    path.write_text(
        "a\tr\to\t1987-##-##\t1989-##-##\nb\tr\to\t####-##-##\t1988-05-##\nc\tr\to\t1989\t\n"
    )
    assert years(path) == [
        *[("a", 1987), ("a", 1988), ("a", 1989)],
        *[("b", 1987), ("b", 1988)],
        ("c", 1989),
    ]
    assert read_raw_facts(path).unit == "year"


def test_a_fifth_column_that_is_no_date_is_ignored(tmp_path: Path) -> None:
    path = tmp_path / "x.tsv"
    for fifth in ("0", "", "note"):
        path.write_text(f"a\tr\to\t2018-01-01\t{fifth}\na\tr\to\t2018-01-05\t{fifth}\n")
        assert len(read_facts(path)) == 2


def test_named_start_and_end_columns_make_intervals_of_integers(tmp_path: Path) -> None:
    path = tmp_path / "x.csv"
    path.write_text("start,end,subject,relation,object\n3,5,a,r,o\n,4,b,r,o\n5,,c,r,o\n")
    expected = [("a", 3), ("a", 4), ("a", 5), ("b", 3), ("b", 4), ("c", 5)]
    assert years(path) == expected
    assert years(path, clip=("4", "6")) == [
        *[("a", 4), ("a", 5)],
        *[("b", 4)],
        *[("c", 5), ("c", 6)],
    ]
    assert (
        len(
            years(
                path,
                columns=("subject", "relation", "object", "end"),
                clip=("4", "9"),
                skip_bad_rows=True,
            )
        )
        == 2
    )
    path.write_text("a,r,o,3,5\n")
    assert len(years(path)) == 1
    assert len(years(path, interval=True)) == 3
    assert len(years(path, columns=tuple("01234"))) == 3


def test_an_open_range_reaches_to_the_known_dates_of_the_data() -> None:
    tuples = [
        ("a", "r", "o", None, dt.date(2018, 1, 3)),
        ("b", "r", "o", dt.date(2018, 1, 2), None),
    ]
    assert len(years(tuples)) == 4
    with pytest.raises(DataError, match="all intervals are open"):
        years([("a", "r", "o", None, "####")])
    assert len(years([("a", "r", "o", None, "####")], unit="year", clip=("2000", "2004"))) == 5


def test_an_end_known_by_year_lasts_to_the_years_last_moment() -> None:
    assert len(years([("a", "r", "o", "2019-12-30", "2019-##-##")], unit="day")) == 2
    assert len(years([("a", "r", "o", "2019-12-30", "2019-##-##")], unit="hour")) == 48
    assert len(years([("a", "r", "o", "199#-##-##", "199#-##-##")], unit="year")) == 10


def test_years_before_christ_are_expanded_like_any_other() -> None:
    found = years([("a", "r", "o", "-2-##-##", "2-##-##")], unit="month")
    assert len(found) == 60
    assert years([("a", "r", "o", "-431-##-##", "-430-##-##")]) == [("a", -431), ("a", -430)]


def test_an_end_before_its_start_is_a_bad_row_and_outside_the_clip_range_is_not() -> None:
    tuples = [
        ("a", "r", "o", "1990-##-##", "1980-##-##"),
        ("b", "r", "o", "1950-##-##", "1951-##-##"),
        ("c", "r", "o", "1990-##-##", "1991-##-##"),
        ("d", "r", "o", "2018-01-05T10:30", "2018-01-05T10:10"),
    ]
    with pytest.raises(BadRowsError) as caught:
        read_facts(tuples, unit="year")
    assert [(row.number, row.column, row.reason) for row in caught.value.report.first] == [
        (1, "end", "before the start 1990-##-##"),
        (4, "end", "before the start 2018-01-05T10:30"),
    ]
    facts, report = read_facts_with_report(
        tuples, unit="year", clip=("1960", "2000"), skip_bad_rows=True
    )
    assert (report.rows_read, report.outside, report.total) == (2, 1, 2)
    assert facts.entities.names == ("c", "o")
    with pytest.raises(DataError, match="outside the clip range"):
        read_facts(tuples, unit="year", clip=("1700", "1701"), skip_bad_rows=True)


def test_clip_also_bounds_points_in_time() -> None:
    tuples = [("a", "r", "o", "2018-01-01"), ("b", "r", "o", "2018-01-05")]
    facts, report = read_facts_with_report(tuples, clip=("2018-01-02", "2018-01"))
    assert (len(facts), report.outside, report.rows_read) == (1, 1, 2)


def test_an_expansion_beyond_all_memory_says_what_to_do() -> None:
    wide = [("a", "r", "o", -(10**15), 10**15)] * 9999
    with pytest.raises(DataError, match=r"steps of intervals \(a clip or a coarser unit has fewer"):
        read_facts(wide)
    one = [("a", "r", "o", 0, 10**4 - 1)]
    assert len(read_facts(one, most_bytes=64 * 10**4)) == 10**4
    with pytest.raises(DataError, match="--most-bytes"):
        read_facts(one, most_bytes=64 * 10**4 - 1)


def test_files_with_and_without_intervals_do_not_mix(tmp_path: Path) -> None:
    (tmp_path / "train.tsv").write_text("a\tr\to\t1987-##-##\t1989-##-##\n")
    (tmp_path / "test.tsv").write_text("a\tr\to\t1987-01-01\n")
    with pytest.raises(DataError, match="some files have intervals"):
        read_facts(tmp_path)


def test_edges_of_an_agents_memory_are_intervals(tmp_path: Path) -> None:
    def edge(source: str, name: str, target: str, since: str | None, until: str | None) -> str:
        ends = [time and f"2026-01-{time}T00:00:00Z" for time in (since, until)]
        beside = {"uuid": "7", "fact": "said so", "created_at": "2026-02-01T10:00:00Z"}
        told = {"source_node_uuid": source, "target_node_uuid": target, "name": name}
        times = {"valid_at": ends[0], "invalid_at": ends[1], "expired_at": None}
        return json.dumps({**beside, **told, **times, "episodes": ["e1"]}) + "\n"

    path = tmp_path / "edges.jsonl"
    path.write_text(
        edge("Ana", "WORKS_AT", "Acme", "01", "02")
        + edge("Ana", "WORKS_AT", "Bolt", "03", None)
        + edge("Acme", "OWNS", "Bolt", None, "01")
        + edge("Acme", "SUES", "Bolt", "04", "04")
    )
    facts = read_facts(path)
    assert sorted(facts.describe(row) for row in range(len(facts))) == [
        ("Acme", "OWNS", "Bolt", "2026-01-01"),
        ("Acme", "SUES", "Bolt", "2026-01-04"),
        ("Ana", "WORKS_AT", "Acme", "2026-01-01"),
        ("Ana", "WORKS_AT", "Acme", "2026-01-02"),
        ("Ana", "WORKS_AT", "Bolt", "2026-01-03"),
        ("Ana", "WORKS_AT", "Bolt", "2026-01-04"),
    ]


# The published intervals --------------------------------------------------------------------------


@pytest.mark.real_data
def test_the_wikidata_intervals_expand_to_exactly_the_rows_of_wiki(real_data: Path) -> None:
    if not (real_data / "WIKIDATA12K").is_dir() or not (real_data / "WIKI").is_dir():
        pytest.skip("WIKIDATA12K and WIKI are not both in METATKGR_DATA")
    expanded = read_raw_facts(
        real_data / "WIKIDATA12K", unit="year", clip=("1786", "2017"), skip_bad_rows=True
    )
    published = read_raw_facts(real_data / "WIKI")
    assert expanded.entities.names == published.entities.names
    # Ten of the intervals end before they start; the published files have none of their rows.
    assert (expanded.report.rows_in_file, expanded.report.total) == (40_621, 10)

    def rows(raw, origin: int) -> Counter:
        columns = (raw.subject, raw.relation, raw.object, raw.time - origin)
        return Counter(zip(*(column.tolist() for column in columns), strict=True))

    dropped = Counter([(250, 1, 241, 211), (2716, 17, 8276, 222)])
    assert published.report.rows_in_file == 669_934
    assert rows(expanded, 1786) == rows(published, 0) + dropped


@pytest.mark.real_data
def test_published_folders_are_read_with_their_vocabularies(real_data: Path) -> None:
    facts = read_facts(real_data / "YAGO")
    assert (len(facts), facts.steps, facts.name) == (201_089, 189, "YAGO")
    assert (len(facts.entities), len(facts.relations)) == (10_623, 10)
    assert facts.relations[0] == "<wasBornIn>"

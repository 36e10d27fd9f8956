"""The store of observed facts, on SQLite and on a real PostgreSQL server."""

from __future__ import annotations

import datetime as dt
import os
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from hypothesis import given, settings
from hypothesis import strategies as st

import postgres_server
from metatkgr.data.facts import Facts
from metatkgr.data.readers import read_facts
from metatkgr.errors import DataError
from metatkgr.forecasting.explain import FactView, Observed, Retracted
from metatkgr.forecasting.store import FactStore, StoreError, store_url
from metatkgr.forecasting.store_tables import TABLES

ONE = FactView("Tarn", "plays for", "Ostermark", "2018-03-05")
TWO = FactView("Dairy", "sponsors", "Ostermark", "2018-03-12")
EARLY = FactView("Tarn", "plays for", "Velden", "1990-01-01")


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    if reason := postgres_server.why_not():
        pytest.skip(reason)
    with postgres_server.postgres() as url:
        yield url


@pytest.fixture(params=["sqlite", "postgresql"])
def where(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    if request.param == "sqlite":
        yield str(tmp_path / "new" / "folder" / "facts.sqlite")
        return
    url = request.getfixturevalue("server")
    yield url
    engine = sa.create_engine(store_url(url))
    with engine.begin() as connection:
        TABLES.drop_all(connection)
    engine.dispose()


def test_facts_are_there_when_the_store_is_opened_again(where: str) -> None:
    with FactStore(where) as store:
        assert store.since() == []
        assert store.add([TWO, ONE]) == Observed(2, 0)
    with FactStore(where) as store:
        assert [stored.fact for stored in store.since()] == [TWO, ONE]
        assert len(store) == 2
        assert store.last() == store.since()[-1].sequence


def test_the_same_fact_is_kept_once_whenever_it_comes(where: str) -> None:
    with FactStore(where) as store:
        assert store.add([ONE, ONE]) == Observed(1, 1)
        assert store.add([TWO, ONE, EARLY]) == Observed(2, 1)
        assert store.add([]) == Observed(0, 0)
        assert [stored.fact for stored in store.since()] == [ONE, TWO, EARLY]


def test_what_came_since_a_number_is_what_came_after_it(where: str) -> None:
    with FactStore(where) as store, FactStore(where) as other:
        store.add([ONE])
        seen = other.last()
        store.add([ONE, TWO])
        store.add([EARLY])
        assert [stored.fact for stored in other.since(seen)] == [TWO, EARLY]
        assert [stored.fact for stored in other.since(seen, limit=1)] == [TWO]
        assert other.since(other.last()) == []


@pytest.mark.parametrize(
    ("bad", "said"),
    [
        (("a", "r", "b"), "a fact is"),
        (("a", "r", "b", 3), "time is a text"),
        (("a", " ", "b", "1"), "relation is empty"),
        (("a\x00", "r", "b", "1"), "subject holds a character"),
        (("a", "r", "\ud800", "1"), "object holds a character"),
    ],
)
def test_a_bad_fact_is_refused_with_all_that_came_with_it(
    where: str, bad: tuple[str, ...], said: str
) -> None:
    with FactStore(where) as store:
        with pytest.raises(DataError, match=said):
            store.add([ONE, bad])
        assert len(store) == 0


def test_names_of_any_length_and_script_are_kept_exactly(where: str) -> None:
    odd = [
        FactView("x" * 10_000, "r", "'; DROP TABLE metatkgr_fact; --", "1"),
        FactView(" 東京 \N{PILE OF POO}", "r\n", "<script>", "1"),
        FactView("x" * 10_001, "r", "%s :name", "1"),
    ]
    with FactStore(where) as store:
        store.add(odd)
        assert [stored.fact for stored in store.since()] == odd


def test_a_reader_misses_nothing_while_several_write(where: str) -> None:
    writers, each = 4, 25
    stop = threading.Event()
    seen: list[int] = []
    words: list[FactView] = []

    def read() -> None:
        with FactStore(where) as store:
            done = False
            while not done:
                done = stop.is_set()
                found = store.since(seen[-1] if seen else 0)
                seen.extend(stored.sequence for stored in found)
                words.extend(stored.fact for stored in found)

    def write(number: int) -> None:
        with FactStore(where) as store:
            for i in range(each):
                store.add(
                    [FactView(f"{number}", "r", f"{i}", "1"), FactView("same", "r", f"{i}", "1")]
                )

    FactStore(where).close()
    reader = threading.Thread(target=read)
    threads = [threading.Thread(target=write, args=(number,)) for number in range(writers)]
    reader.start()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    stop.set()
    reader.join()
    assert seen == sorted(set(seen))
    assert len(set(words)) == len(words) == writers * each + each


KILLED = """
import sys
from metatkgr.forecasting.store import FactStore
store = FactStore(sys.argv[1])
for number in range(10**9):
    store.add([(f"e{number}", "r", "o", "1")])
    print(number, flush=True)
"""


def test_what_was_acknowledged_survives_kill_9(where: str) -> None:
    writer = subprocess.Popen(
        [sys.executable, "-c", KILLED, where], stdout=subprocess.PIPE, text=True
    )
    assert writer.stdout is not None
    acknowledged = [int(writer.stdout.readline()) for _ in range(40)]
    writer.kill()
    acknowledged += [int(line) for line in writer.stdout if line.endswith("\n")]
    writer.wait()
    with FactStore(where) as store:
        kept = {stored.fact.subject for stored in store.since()}
    assert {f"e{number}" for number in acknowledged} <= kept


def test_a_store_of_another_version_is_refused(where: str) -> None:
    FactStore(where).close()
    engine = sa.create_engine(store_url(where))
    with engine.begin() as connection:
        connection.execute(sa.text("UPDATE metatkgr_store SET version = 99"))
    engine.dispose()
    with pytest.raises(StoreError, match="tables of version 99"):
        FactStore(where)


def test_a_file_that_is_no_store_is_told_as_such(tmp_path: Path) -> None:
    text = tmp_path / "facts.csv"
    text.write_text("subject,relation,object,time\n" * 100)
    with pytest.raises(StoreError, match="not a store of facts"):
        FactStore(text)
    other = tmp_path / "other.sqlite"
    with sqlite3.connect(other) as connection:
        connection.execute("CREATE TABLE metatkgr_store (other TEXT)")
    connection.close()
    with pytest.raises(StoreError, match="not a store of facts"):
        FactStore(other)


@pytest.mark.parametrize(
    ("where", "said"),
    [
        ("mysql://somewhere/db", "not in mysql"),
        ("sqlite://", "memory"),
        ("what is ://this", "cannot be read"),
        ("postgresql://nobody:secret@127.0.0.1:1/none", "does not answer"),
    ],
)
def test_a_store_that_cannot_be_is_one_sentence(where: str, said: str) -> None:
    with pytest.raises(StoreError, match=said) as raised:
        FactStore(where)
    assert "secret" not in str(raised.value)


def test_sqlite_writes_ahead_and_to_the_disk(tmp_path: Path) -> None:
    with (
        FactStore(tmp_path / "facts.sqlite") as store,
        store._database._engine.connect() as connection,
    ):
        assert connection.exec_driver_sql("PRAGMA journal_mode").scalar() == "wal"
        assert connection.exec_driver_sql("PRAGMA synchronous").scalar() == 2


def test_writers_of_one_process_are_committed_together_and_each_hears_of_its_own(
    where: str,
) -> None:
    with FactStore(where) as store:
        commits = []
        whole = store._commit

        def commit(together: list[Any]) -> None:
            commits.append(len(together))
            whole(together)

        store._commit = commit  # type: ignore[method-assign]
        results: dict[int, Observed] = {}

        def write(number: int) -> None:
            results[number] = store.add([ONE, FactView(f"{number}", "r", "o", "1")])

        threads = [threading.Thread(target=write, args=(number,)) for number in range(20)]
        with store._turn:
            for thread in threads:
                thread.start()
            while len(store._waiting) < len(threads):
                time.sleep(0.001)
        for thread in threads:
            thread.join()
        assert commits == [20]
        assert sorted(r.accepted for r in results.values()) == [1] * 19 + [2]
        assert {r.accepted + r.duplicates for r in results.values()} == {2}
        assert store.committed == store.last()
        assert len(store) == 21


def test_a_new_file_is_for_its_owner_alone(tmp_path: Path) -> None:
    before = os.umask(0o022)
    try:
        with FactStore(tmp_path / "facts.sqlite") as store:
            store.add([("s", "r", "o", "t")])
            modes = {file.name: file.stat().st_mode & 0o777 for file in tmp_path.iterdir()}
    finally:
        os.umask(before)
    assert modes == {f"facts.sqlite{end}": 0o600 for end in ("", "-wal", "-shm")}


def test_a_failed_commit_is_told_to_all_who_waited_for_it(tmp_path: Path) -> None:
    with FactStore(tmp_path / "facts.sqlite") as store:
        engine = store._database._engine
        store._database._engine = sa.create_engine("sqlite:////nowhere/at/all.sqlite")
        failed = []

        def write(number: int) -> None:
            try:
                store.add([FactView(f"{number}", "r", "o", "1")])
            except StoreError:
                failed.append(number)

        threads = [threading.Thread(target=write, args=(number,)) for number in range(5)]
        with store._turn:
            for thread in threads:
                thread.start()
            while len(store._waiting) < len(threads):
                time.sleep(0.001)
        for thread in threads:
            thread.join()
        store._database._engine = engine
        assert sorted(failed) == list(range(5))
        assert store.add([ONE]).accepted == 1
        assert len(store) == 1


@pytest.mark.parametrize("what", ["", "-wal"])
def test_a_file_that_was_removed_takes_no_more_facts(tmp_path: Path, what: str) -> None:
    """SQLite would go on writing to the removed file, which nobody can open again."""
    path = tmp_path / "facts.sqlite"
    with FactStore(path) as store:
        store.probe()
        store.add([ONE])
        Path(f"{path}{what}").unlink()
        with pytest.raises(StoreError, match="removed or replaced"):
            store.add([TWO])
        with pytest.raises(StoreError, match="removed or replaced"):
            store.probe()
        if not what:
            with pytest.raises(StoreError, match="is gone"):
                FactStore(path, make=False)
            shutil.copy(__file__, path)
            with pytest.raises(StoreError, match="removed or replaced"):
                store.add([TWO])


def graph_of(*names: str) -> Facts:
    """A fact of each, two on a day."""
    rows = [
        (name, "meets", "Ostermark", f"2018-03-{5 + n // 2:02}") for n, name in enumerate(names)
    ]
    return read_facts(rows)


def test_a_store_knows_its_graph_which_may_grow_and_is_refused_with_another(where: str) -> None:
    with FactStore(where) as store:
        store.belong_to(graph_of("a", "b", "c"))
        store.belong_to(graph_of("b", "a", "c", "d", "e"))  # more, from a file in another order
        for other in (graph_of("a", "x", "c"), graph_of("a"), graph_of("a", "b", "c").select([2])):
            with pytest.raises(DataError, match=r"was made for another graph .* --adopt-store"):
                store.belong_to(other)
    with FactStore(where) as store:
        store.belong_to(graph_of("a", "b", "c", "d"))
        store.belong_to(graph_of("x", "y", "z"), adopt=True)
        store.belong_to(graph_of("x", "y", "z"))
        with pytest.raises(DataError, match="another graph"):
            store.belong_to(graph_of("a", "b", "c", "d"))


def test_a_store_looks_at_the_first_facts_of_a_large_graph_alone(tmp_path: Path) -> None:
    long = graph_of(*map(str, range(50)))
    with FactStore(tmp_path / "s") as store:
        many = read_facts(
            [(f"{n}", "meets", "Ostermark", n // 300) for n in range(5000)], unit="step"
        )
        store.belong_to(many)
        (count,) = (
            sqlite3.connect(tmp_path / "s").execute("SELECT facts FROM metatkgr_graph").fetchone()
        )
        assert count == 1200, "to the end of a step"
        store.belong_to(long, adopt=True)


def test_a_probe_writes_and_reads_back(where: str) -> None:
    with FactStore(where) as store, FactStore(where) as other:
        store.probe()
        other.probe()
        assert store.since() == []


@pytest.mark.parametrize(
    "planted",
    [
        "CREATE TRIGGER t AFTER INSERT ON metatkgr_fact BEGIN DELETE FROM metatkgr_fact; END",
        "CREATE VIEW others AS SELECT * FROM metatkgr_fact",
        "CREATE TABLE others (a INTEGER)",
        "CREATE INDEX i ON metatkgr_fact (lower(subject))",
    ],
)
def test_a_store_with_more_in_it_than_our_tables_is_refused(tmp_path: Path, planted: str) -> None:
    path = tmp_path / "facts.sqlite"
    with FactStore(path) as store:
        store.add([("A", "b", "C", "2016-01-04")])
    with closing(sqlite3.connect(path)) as file, file:
        file.execute(planted)
    with pytest.raises(StoreError, match="is none of ours"):
        FactStore(path)


def test_an_index_that_is_called_like_sqlites_own_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "facts.sqlite"
    FactStore(path).close()
    planted = "CREATE UNIQUE INDEX {} ON metatkgr_change (retracted)"
    with closing(sqlite3.connect(path)) as file, file:
        file.execute(planted.format("i"))
        file.execute("PRAGMA writable_schema = ON")
        named = {"name": "sqlite_autoindex_i", "sql": planted.format("sqlite_autoindex_i")}
        file.execute("UPDATE sqlite_master SET name = :name, sql = :sql WHERE name = 'i'", named)
    with pytest.raises(StoreError, match="is none of ours"):  # else no second fact is ever taken
        FactStore(path)


@pytest.mark.parametrize("suffix", ["", "-journal", "-wal", "-shm"])
def test_a_pipe_in_the_place_of_a_store_is_not_waited_for(tmp_path: Path, suffix: str) -> None:
    if suffix:
        FactStore(tmp_path / "facts.sqlite").close()
    os.mkfifo(tmp_path / f"facts.sqlite{suffix}")
    with pytest.raises(StoreError, match="not an ordinary file"):
        FactStore(tmp_path / "facts.sqlite")


@pytest.mark.parametrize(
    "planted",
    [
        "CREATE VIEW metatkgr_fact AS WITH RECURSIVE n(x) AS (VALUES(1) UNION ALL SELECT x FROM n) "
        "SELECT x AS sequence, '' AS digest, '' AS subject, '' AS relation, '' AS object, '' AS "
        "time, '' AS received FROM n",
        "CREATE TABLE metatkgr_fact (sequence INTEGER PRIMARY KEY, digest TEXT UNIQUE, subject "
        "TEXT, relation TEXT, object TEXT, time TEXT, received TEXT, CHECK (length(subject) < 9))",
    ],
)
def test_a_store_whose_tables_are_others_is_refused(tmp_path: Path, planted: str) -> None:
    path = tmp_path / "facts.sqlite"
    with closing(sqlite3.connect(path)) as file, file:
        file.execute(planted)
    with pytest.raises(StoreError, match="is not as we make it"):
        FactStore(path)


# What was said is taken back, and none of it is forgotten


def test_a_retracted_fact_holds_no_more_and_is_not_forgotten(where: str) -> None:
    with FactStore(where) as store, FactStore(where) as other:
        store.add([ONE, TWO], source="desk", observed="2018-03-06")
        seen = other.last()
        number = store.ids([ONE])[ONE]
        assert store.retract([ONE], source="Ida") == Retracted(1, 0)
        assert store.retract([ONE]) == Retracted(0, 1)
        assert [(c.fact, c.retracted, c.source) for c in other.since(seen)] == [(ONE, True, "Ida")]
        assert [c.fact for c in other.now()] == [TWO]
        assert len(other) == 1
        assert other.ids([ONE, TWO, EARLY]) == {TWO: number + 1}
        told, back = other.history(number)
        assert (told.retracted, told.source, told.observed) == (False, "desk", "2018-03-06")
        assert (back.retracted, back.source, back.observed) == (True, "Ida", "")
        assert told.received <= back.received <= dt.datetime.now(dt.UTC)
        assert told.received.tzinfo is not None
        assert store.add([ONE]) == Observed(1, 0), "what was taken back may be said again"
        assert len(other.history(number)) == 3
        assert store.ids([ONE]) == {ONE: number}
        assert store.history(999) == []


def test_a_fact_of_the_graph_that_was_never_told_can_be_retracted(where: str) -> None:
    with FactStore(where) as store:
        assert store.retract([ONE]) == Retracted(1, 0)
        assert [(c.fact, c.retracted) for c in store.since()] == [(ONE, True)]
        assert len(store) == 0
        assert list(store.now()) == []


def test_a_correction_is_one_change_that_nobody_sees_half_of(where: str) -> None:
    right = ONE._replace(object="Velden")
    with FactStore(where) as store:
        store.add([ONE])
        seen = store.last()
        assert store.correct(ONE, right, source="Ida") == Observed(1, 0)
        changes = store.since(seen)
        assert [(c.fact, c.retracted) for c in changes] == [(ONE, True), (right, False)]
        assert len({c.received for c in changes}) == 1
        with pytest.raises(DataError):
            store.correct(right, ("a", "r", "b", 3))  # type: ignore[arg-type]
        assert [c.fact for c in store.now()] == [right]


def test_what_was_known_at_a_moment_is_what_had_come_by_then(where: str) -> None:
    with FactStore(where) as store:
        store.add([ONE])
        store.add([TWO])
        store.correct(ONE, EARLY)
        moments = [change.received for change in store.since()]
        assert [c.fact for c in store.now(moments[0] - dt.timedelta(seconds=1))] == []
        assert [c.fact for c in store.now(moments[0])] == [ONE]
        assert [c.fact for c in store.now(moments[1])] == [ONE, TWO]
        assert [c.fact for c in store.now(moments[2])] == [TWO, EARLY]
        elsewhere = moments[1].astimezone(dt.timezone(dt.timedelta(hours=9)))
        assert [c.fact for c in store.now(elsewhere)] == [ONE, TWO]


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.tuples(st.booleans(), st.lists(st.sampled_from([ONE, TWO, EARLY]), max_size=4))),
)
def test_the_log_folds_to_what_a_set_of_facts_would_hold(
    changes: list[tuple[bool, list[FactView]]],
) -> None:
    with tempfile.TemporaryDirectory() as folder, FactStore(f"{folder}/facts.sqlite") as store:
        held: set[FactView] = set()
        states: list[set[FactView]] = []
        for retracted, facts in changes:
            (store.retract if retracted else store.add)(facts)
            held = held - set(facts) if retracted else held | set(facts)
            states.append(held)
            assert {c.fact for c in store.now()} == held
            assert len(store) == len(held)
        log = store.since()
        assert [c.sequence for c in log] == sorted({c.sequence for c in log})
        folded: set[FactView] = set()
        for change in log:
            folded = folded - {change.fact} if change.retracted else folded | {change.fact}
        assert folded == held


PREVIOUS = {
    "sqlite": Path(__file__).with_name("store_v1.sql").read_text(),
    "postgresql": """
        CREATE TABLE metatkgr_fact (sequence BIGSERIAL NOT NULL, digest VARCHAR(64) NOT NULL,
            subject TEXT NOT NULL, relation TEXT NOT NULL, object TEXT NOT NULL, time TEXT NOT NULL,
            received TIMESTAMP WITH TIME ZONE DEFAULT now(), PRIMARY KEY (sequence),
            UNIQUE (digest));
        CREATE TABLE metatkgr_store (version INTEGER NOT NULL);
        CREATE TABLE metatkgr_probe (writes BIGINT NOT NULL);
        INSERT INTO metatkgr_fact (digest, subject, relation, object, time, received) VALUES
          ('6ff5334abafe0ab51ca146d193b06dacc5c4e863e1f51ba9d6bdeda648420d70', 'Tarn', 'plays for',
           'Ostermark', '2018-03-05', '2026-11-16 14:39:39+00'),
          ('5ccf0d4781c1a35ea37e1bad8b9f3d4e2523646f87414c51ecd0e936248747ce', 'Dairy', 'sponsors',
           'Ostermark', '2018-03-12', '2026-11-16 14:39:39+00'),
          ('fcdb9d4a67a03e894aa084b9a741dd1eeb982f99b6bba6270bcfae4820aab1c9', 'Tarn', 'plays for',
           'Velden', '1990-01-01', '2026-11-16 14:39:39+00');
        INSERT INTO metatkgr_store VALUES (1);
        INSERT INTO metatkgr_probe VALUES (0);
    """,
}
"""Stores as the version before the log of changes wrote them."""


def test_a_store_of_the_previous_version_opens_with_all_its_facts(where: str) -> None:
    if "postgres" in where:
        engine = sa.create_engine(store_url(where))
        with engine.begin() as connection:
            connection.execute(sa.text(PREVIOUS["postgresql"]))
        engine.dispose()
    else:
        Path(where).parent.mkdir(parents=True)
        with closing(sqlite3.connect(where)) as file, file:
            file.executescript(PREVIOUS["sqlite"])
    for _ in range(2):  # nothing happens to it a second time
        with FactStore(where) as store:
            assert [(c.fact, c.id, c.retracted) for c in store.since()] == [
                (ONE, 1, False),
                (TWO, 2, False),
                (EARLY, 3, False),
            ]
            told = dt.datetime(2026, 11, 16, 14, 39, 39, tzinfo=dt.UTC)
            assert {(c.received, c.source) for c in store.since()} == {(told, "")}
            assert store.add([ONE, TWO, EARLY]) == Observed(0, 3)
    with FactStore(where) as store:
        store.retract([TWO])
        assert [c.fact for c in store.now()] == [ONE, EARLY]
        assert [c.fact for c in store.now(told)] == [ONE, TWO, EARLY]


def test_what_is_restored_from_a_backup_is_the_store_of_then(where: str, tmp_path: Path) -> None:
    copy = str(tmp_path / "copy")
    with FactStore(where) as store:
        store.add([ONE, TWO])
        store.retract([TWO])
        if "postgres" in where:
            restored = where.rpartition("/")[0] + "/restored"
            postgres_server.run("pg_dump", "-Fc", "-f", copy, where)
            postgres_server.run("psql", "-q", "-c", "CREATE DATABASE restored", where)
            postgres_server.run("pg_restore", "-d", restored, copy)
        else:
            restored = copy
            with closing(sqlite3.connect(where)) as file, closing(sqlite3.connect(copy)) as other:
                file.backup(other)
        store.add([EARLY])
        was = list(store.since())[:3]
    with FactStore(restored) as store:
        assert list(store.since()) == was
        assert store.add([ONE, TWO, EARLY]) == Observed(2, 1)


def test_a_store_that_another_version_of_sqlalchemy_wrote_opens(tmp_path: Path) -> None:
    plain, other = "DEFAULT CURRENT_TIMESTAMP", "DEFAULT (CURRENT_TIMESTAMP)"
    for written in (plain, other):  # as 2.1 and 2.0 write it
        path = tmp_path / f"{len(written)}.sqlite"
        with closing(sqlite3.connect(path)) as file, file:
            file.executescript(PREVIOUS["sqlite"].replace(plain, written))
        with FactStore(path) as store:
            assert [change.fact for change in store.since()] == [ONE, TWO, EARLY]


def test_a_log_of_something_else_than_changes_is_told_as_damage(tmp_path: Path) -> None:
    path = tmp_path / "facts.sqlite"
    for planted in ("received = 'soon'", "source = x'00ff'"):
        path.unlink(missing_ok=True)
        with FactStore(path) as store:
            store.add([ONE])
        with closing(sqlite3.connect(path)) as file, file:
            file.execute(f"UPDATE metatkgr_change SET {planted}")
        with FactStore(path) as store, pytest.raises(StoreError, match="damaged"):
            store.since()

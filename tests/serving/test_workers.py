"""Several processes behind one socket: one log of facts, no worker that matters."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote
from urllib.request import Request, urlopen

import pytest

import metatkgr as mt
import postgres_server
from faults.service_kills import workers_of
from local_service import Command
from metatkgr.data.facts import Facts
from metatkgr.forecasting.store import FactStore
from service_load import put_under_load, words_of

OPTIONS = ("world:3000:1", "--model", "paths", "--no-quality", "--workers", "2")


@pytest.fixture(params=["sqlite", "postgresql"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    if request.param == "sqlite":
        yield str(tmp_path / "facts.sqlite")
        return
    if reason := postgres_server.why_not():
        pytest.skip(reason)
    with postgres_server.postgres() as url:
        yield url


def ask(url: str, body: object = None, method: str | None = None) -> Any:
    """The answer to a request on a connection of its own."""
    data = None if body is None else json.dumps(body).encode()
    kind = {"Content-Type": "application/json"}
    with urlopen(Request(url, data, kind, method=method), timeout=60) as answer:
        return json.load(answer)


def asked_alone(service: Command, path: str, body: object = None, *, observed: int) -> list[Any]:
    """What each of two workers says alone, once it has heard of so many facts."""
    answers = []
    for asleep in workers_of(service):
        os.kill(asleep, signal.SIGSTOP)
        try:
            end = time.monotonic() + 60  # a second, on a machine that has nothing else to do
            while ask(f"{service.url}/graph")["observed"] != observed:
                assert time.monotonic() < end
                time.sleep(0.05)
            answers.append(ask(f"{service.url}{path}", body))
        finally:
            os.kill(asleep, signal.SIGCONT)
    return answers


def still_there(processes: set[int]) -> set[int]:
    """Those of some processes that have not ended within a while."""
    end = time.monotonic() + 20
    while left := {pid for pid in processes if Path(f"/proc/{pid}").exists()}:
        if time.monotonic() > end:
            break
        time.sleep(0.05)
    return left


def test_workers_know_what_one_was_told_or_took_back_and_a_killed_one_takes_nothing_along(
    world: Facts, tmp_path: Path, store: str
) -> None:
    last = world.calendar.label(world.steps - 1)
    with Command(*OPTIONS, "--store", store, folder=tmp_path) as service:
        workers = workers_of(service)
        fact = dict(zip(("subject", "relation", "object"), world.describe(0)[:3], strict=True))
        for name in ("Nova", "Otto"):
            told = ask(f"{service.url}/facts", fact | {"subject": name, "time": last})
            assert told["new_entities"] == [name]
        one, other = asked_alone(service, "/predict", {"entity": "Otto", "top": 20}, observed=2)
        assert one == other
        (number,) = ask(f"{service.url}/facts?entity=Nova")["ids"]
        ask(f"{service.url}/facts/{number}", method="DELETE")
        one, other = asked_alone(service, "/entities?q=Nova", observed=1)
        assert one == other
        assert "Nova" not in [match["name"] for match in one["entities"]]

        victim = min(workers)
        threading.Timer(1.0, os.kill, (victim, signal.SIGKILL)).start()
        words = words_of(world)
        load = put_under_load(service.url, words, 2.5, clients=4, writes=0.9)
        later = put_under_load(service.url, words, 0.5, clients=2, writes=0.9, first_client=100)
        # Who was connected with the victim sees the connection end; nobody gets a wrong answer.
        assert not [error for error in load.errors + later.errors if re.search(r": \d", error)]
        acknowledged = {*load.acknowledged, *later.acknowledged}
        with FactStore(store) as kept:
            changes = kept.since()
        assert acknowledged <= {tuple(stored.fact) for stored in changes}
        assert [change.retracted for change in changes[:3]] == [False, False, True]
        now = workers_of(service, but=victim)
        newcomers = sorted({fact[0] for fact in acknowledged})
        for newcomer in newcomers[:: max(1, len(newcomers) // 10)]:
            said = ask(f"{service.url}/facts?entity={quote(newcomer)}&limit=1000")["facts"]
            mine = {fact for fact in acknowledged if fact[0] == newcomer}
            assert mine <= {tuple(fact) for fact in said}

        if "postgres" in store:
            service.process.kill()
        else:
            service.process.terminate()
            assert service.wait() == 0, service.said
            assert "ended with -9 and is started again" in service.said
        assert not still_there(workers | now)


def test_what_cannot_be_opened_is_told_once_and_ends_all(tmp_path: Path) -> None:
    with FactStore(tmp_path / "facts.sqlite") as kept:
        kept.belong_to(mt.load("world:300:2"))
    with pytest.raises(AssertionError, match="was made for another graph") as raised:
        Command(*OPTIONS, "--store", tmp_path / "facts.sqlite", folder=tmp_path)
    assert str(raised.value).count("another graph") == 1


def test_what_a_worker_warns_of_does_not_steer_the_terminal() -> None:
    code = """if True:
        import logging, multiprocessing
        from metatkgr.errors import DataError
        from metatkgr.serving import workers

        def opening(number, *, again):
            logging.getLogger("x").warning("left out: %s", "\\x1b[31mred \\u202e")
            raise DataError("not to be opened")

        ends = multiprocessing.Pipe()
        workers._worker(3, False, opening, None, None, 1, ends[1])
    """
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr == "WARNING: worker 3: left out: \\u001b[31mred \\u202e\n"

"""Kill -9 of a service in the middle of writes, again and again on one store."""

from __future__ import annotations

import json
import os
import random
import re
import signal
import sqlite3
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote
from urllib.request import urlopen

import torch

from faults.preloaded import small_world
from faults.training_kills import fresh_process
from local_service import Command
from metatkgr.forecasting.forecaster import Forecaster
from metatkgr.forecasting.store import FactStore
from metatkgr.serving.limits import ServiceSettings
from metatkgr.serving.service import Service
from metatkgr.serving.workers import serve
from service_load import Load, put_under_load, words_of

__all__ = ["ServiceKills", "kill_services", "kill_workers", "start_service", "workers_of"]


@dataclass(frozen=True)
class SmallService:
    """Opens a model on the small world."""

    store: str
    model: str

    def __call__(self, worker: int, *, again: bool) -> tuple[Service, None]:
        forecaster = Forecaster.of(small_world(), self.model)
        _ = forecaster.calibration
        return Service(forecaster, FactStore(self.store, make=not again), model=self.model), None


def serve_from(store: str, told: str, model: str) -> None:
    """Serve the small world; write the address to a file."""
    torch.set_num_threads(1)

    def ready(url: str, about: list[str]) -> None:
        place = Path(told)
        unfinished = place.with_suffix(".part")
        unfinished.write_text(url)
        unfinished.rename(place)

    serve(SmallService(store, model), ServiceSettings(port=0), ready=ready)


def start_service(store: Path, told: Path, model: str = "paths") -> tuple[Any, str]:
    """A service as a process of its own, and its address."""
    told.unlink(missing_ok=True)
    process = fresh_process(serve_from, str(store), str(told), model)
    begin = time.monotonic()
    while not told.exists():
        assert process.is_alive(), "the service did not start"
        assert time.monotonic() - begin < 120, "the service did not start in two minutes"
        time.sleep(0.02)
    return process, told.read_text()


@dataclass
class ServiceKills:
    """What was seen."""

    kills: int = 0
    acknowledged: int = 0
    """Facts whose request was answered 200."""
    retracted: int = 0
    """Of these, taken back, which was answered 200, too."""
    lost: int = 0
    """Facts or retractions that were acknowledged, and are not so in the store after a kill."""
    half: int = 0
    """Requests that were not answered, of which a part was done."""
    kept: int = 0
    """Facts of the store at the end."""
    problems: tuple[str, ...] = ()


def kill_services(folder: Path, points: int, seed: int = 0) -> ServiceKills:
    """Kill ``points`` services, each while clients write; the next one goes on with its store."""
    rng = random.Random(seed)
    store, words = folder / "facts.sqlite", words_of(small_world())
    seen, told = ServiceKills(), Load()
    for number in range(points):
        process, url = start_service(store, folder / "address")
        killer = threading.Thread(target=_kill_in_writes, args=(process, store, rng.random()))
        killer.start()
        load = put_under_load(
            url, words, 60, clients=4, writes=1.0, first_client=1000 * number, retractions=0.1
        )
        killer.join()
        process.join()
        if process.exitcode != -signal.SIGKILL:
            seen.problems += (f"service {number} ended with {process.exitcode}",)
        seen.kills += 1
        _compare(seen, told, load, store)
    process, url = start_service(store, folder / "address")
    try:
        seen.problems += _forgotten(url, told)
    finally:
        process.kill()
        process.join()
    return seen


def kill_workers(
    folder: Path, points: int, seed: int = 0, store: str | Path | None = None
) -> ServiceKills:
    """Kill one worker of two ``points`` times, while clients write; the other goes on."""
    rng = random.Random(seed)
    store, words = store or folder / "facts.sqlite", words_of(small_world())
    seen, told = ServiceKills(), Load()
    options = ("world:3000:1", "--model", "paths", "--no-quality", "--workers", 2)
    with Command(*options, "--store", store, folder=folder) as service:
        for number in range(points):
            victim = rng.choice(sorted(workers_of(service)))
            killer = threading.Timer(0.2 + 0.6 * rng.random(), os.kill, (victim, signal.SIGKILL))
            killer.start()
            load = put_under_load(
                service.url,
                words,
                1.5,
                clients=4,
                writes=1.0,
                first_client=1000 * number,
                retractions=0.1,
            )
            killer.join()
            seen.kills += 1
            wrong = [error for error in load.errors if re.search(r": \d", error)]
            seen.problems += tuple(wrong)
            workers_of(service, but=victim)
            _compare(seen, told, load, store)
        seen.problems += _forgotten(service.url, told)
    return seen


def _compare(seen: ServiceKills, told: Load, load: Load, store: str | Path) -> None:
    """Look whether a store has what was acknowledged, in this load and all before."""
    told.acknowledged += load.acknowledged
    told.retracted += load.retracted
    told.unanswered += load.unanswered
    with FactStore(store) as kept:
        state = {tuple(row.fact): not row.retracted for row in kept.since()}
    held = {fact for fact, holds in state.items() if holds}
    unsure = {fact for kind, facts in told.unanswered if kind == "retract" for fact in facts}
    there, gone = set(told.acknowledged) - set(told.retracted) - unsure, set(told.retracted)
    seen.lost += len(there - held) + len(gone & held)
    for kind, facts in load.unanswered:
        if kind != "retract" and len(held.intersection(facts)) not in (0, len(facts)):
            seen.half += 1
    seen.acknowledged, seen.retracted = len(told.acknowledged), len(gone)
    seen.kept = len(held)


def workers_of(service: Command, *, but: int = 0) -> set[int]:
    """Two processes of a service that answer, none of them ``but``."""
    found: set[int] = set()
    end = time.monotonic() + 300
    while len(found) < 2:
        assert time.monotonic() < end, service.said
        with urlopen(f"{service.url}/metrics", timeout=60) as answer:
            numbers = re.findall(r'metatkgr_info{.*process="(\d+)"', answer.read().decode())
        found |= set(map(int, numbers)) - {but}
    return found


def _kill_in_writes(process: Any, store: Path, draw: float) -> None:
    """Kill a service once it has written a random number of facts, at any stage of the next."""
    begin = last = _last(store)
    end = time.monotonic() + 60
    while last < begin + 1 + int(80 * draw) and time.monotonic() < end:
        time.sleep(0.002)
        last = _last(store)
    time.sleep(0.03 * (1000 * draw % 1))
    process.kill()


def _last(store: Path) -> int:
    with sqlite3.connect(f"file:{store}?mode=ro", uri=True, timeout=5) as connection:
        found = connection.execute("SELECT max(sequence) FROM metatkgr_fact").fetchone()[0]
    connection.close()
    return int(found or 0)


def _forgotten(url: str, told: Load) -> tuple[str, ...]:
    """Problems where the last service does not tell a fact of some newcomers' timelines."""
    problems: tuple[str, ...] = ()
    unsure = {fact for kind, facts in told.unanswered if kind == "retract" for fact in facts}
    there = set(told.acknowledged) - set(told.retracted) - unsure
    for newcomer in sorted({fact[0] for fact in there})[:200]:
        with urlopen(f"{url}/facts?entity={quote(newcomer)}&limit=1000") as answer:
            known = {tuple(fact) for fact in json.load(answer)["facts"]}
        if not {fact for fact in there if fact[0] == newcomer} <= known:
            problems += (f"{newcomer} is not remembered whole",)
        if known & set(told.retracted):
            problems += (f"{newcomer} is told with what was retracted",)
    return problems

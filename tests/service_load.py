"""Load for a service on this machine: several clients that read and write, and count.

``make load`` (or ``python -m service_load``) simulates a world, ingests it, serves it with several
workers, and tells how many requests a second 1 and 8 clients get answered, how long they take, and
whether anything that was acknowledged is lost when all is killed during writes.
"""

from __future__ import annotations

import argparse
import http.client
import json
import platform
import random
import sys
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

import postgres_server
from attack.clients import worked
from local_service import Command
from metatkgr import __version__
from metatkgr.data.facts import Facts
from metatkgr.data.ingest import ingest
from metatkgr.data.sources import load
from metatkgr.data.world import WorldSettings
from metatkgr.data.world.simulation import write_world
from metatkgr.files import write_json
from metatkgr.forecasting.store import FactStore

Fact = tuple[str, str, str, str]
_FIELDS = ("subject", "relation", "object", "time")
_FACTS_EACH = 4
"""Facts that a client tells of one newcomer before it turns to the next."""


@dataclass
class Load:
    """What the clients saw."""

    acknowledged: list[Fact] = field(default_factory=list)
    """Facts whose request was answered 200."""
    retracted: list[Fact] = field(default_factory=list)
    """Those of them that were taken back, which was answered 200."""
    unanswered: list[tuple[str, list[Fact]]] = field(default_factory=list)
    """Requests that tell or retract facts together, and whether they did is not known."""
    errors: list[str] = field(default_factory=list)
    seconds: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    """Times to answer, by kind of request."""
    spent: float = 0.0

    def percentile(self, share: float, kind: str | None = None) -> float:
        """Milliseconds within which a share of the requests was answered."""
        wanted = [kind] if kind else list(self.seconds)
        times = sorted(one for name in wanted for one in self.seconds[name])
        return 1000 * times[min(len(times) - 1, int(share * len(times)))]

    @property
    def requests(self) -> int:
        """Requests that were answered 200."""
        return sum(map(len, self.seconds.values()))

    def table(self) -> str:
        """The numbers as text."""
        lines = [
            f"{self.requests:,} requests in {self.spent:.1f} s "
            f"({self.requests / self.spent:,.0f} per second), {len(self.errors)} errors, "
            f"{len(self.acknowledged):,} facts acknowledged"
        ]
        for kind in [None, *sorted(self.seconds)]:
            count = self.requests if kind is None else len(self.seconds[kind])
            middle, high = self.percentile(0.5, kind), self.percentile(0.99, kind)
            lines.append(
                f"{kind or 'all':10} {count:8,}   p50 {middle:7.1f} ms   p99 {high:7.1f} ms"
            )
        return "\n".join(lines)


@dataclass(frozen=True)
class Words:
    """What facts can be made of."""

    entities: Sequence[str]
    relations: Sequence[str]
    dates: Sequence[str]


def words_of(facts: Facts) -> Words:
    """What clients speak of: the names of a graph and its last dates."""
    last = facts.steps - 1
    dates = [facts.calendar.label(step) for step in range(last - 20, last + 1)]
    names = [name for name in facts.entities if name.isascii()]
    return Words(names, list(facts.relations), dates)


class _Client(threading.Thread):
    """Asks and tells until it is stopped or the service is gone."""

    def __init__(
        self,
        number: int,
        url: str,
        words: Words,
        load: Load,
        writes: float,
        only: str | None,
        retractions: float,
    ) -> None:
        super().__init__(daemon=True)
        self.number, self.url, self.words, self.load = number, url, words, load
        self.writes, self.only, self.retractions = writes, only, retractions
        self.held: list[Fact] = []
        self.random = random.Random(number)
        self.stop = threading.Event()
        self.told = 0

    def run(self) -> None:
        address = urlsplit(self.url)
        connection = http.client.HTTPConnection(address.hostname or "", address.port, timeout=60)
        while not self.stop.is_set():
            kind, method, path, body, facts = self._next()
            begin = time.perf_counter()
            try:
                text = None if body is None else json.dumps(body)
                connection.request(method, path, text, {"Content-Type": "application/json"})
                answer = connection.getresponse()
                said = answer.read()
            except (OSError, http.client.HTTPException) as error:
                self.load.errors.append(f"{kind}: {error!r}")
                self.load.unanswered.append((kind, facts))
                return
            if answer.status != 200:
                self.load.errors.append(f"{kind}: {answer.status} {said[:200]!r}")
                self.load.unanswered.append((kind, facts))
                continue
            self.load.seconds[kind].append(time.perf_counter() - begin)
            if kind == "retract":
                self.load.retracted.extend(facts)
            else:
                self.load.acknowledged.extend(facts)
                self.held.extend(facts)
        connection.close()

    def _next(self) -> tuple[str, str, str, object, list[Fact]]:
        draw = self.random.random()
        if self.held and self.random.random() < self.retractions:
            fact = self.held.pop(self.random.randrange(len(self.held)))
            row = dict(zip(_FIELDS, fact, strict=True))
            return "retract", "POST", "/facts", row | {"retract": True}, [fact]
        if self.only == "write" or (self.only is None and draw < self.writes):
            many = self.only is None and draw < self.writes / 5
            facts = [self._fact() for _ in range(20 if many else 1)]
            rows = [dict(zip(_FIELDS, fact, strict=True)) for fact in facts]
            if len(rows) == 1:
                return "write", "POST", "/facts", rows[0], facts
            return "bulk of 20", "POST", "/facts", {"facts": rows}, facts
        name = self.random.choice(self.words.entities)
        kind = self.only or self.random.choice(["predict", "predict", "search", "timeline"])
        if kind == "predict":
            relation = self.random.choice(self.words.relations)
            asked = {"entity": name, "relation": relation, "top": 10}
            return kind, "POST", "/predict", asked, []
        if kind == "page":
            return kind, "POST", "/predict", {"entity": name, "top": 10, "explain": True}, []
        if kind == "search":
            return kind, "GET", f"/entities?q={quote(name[:4])}", None, []
        return kind, "GET", f"/facts?entity={quote(name)}", None, []

    def _fact(self) -> Fact:
        self.told += 1
        newcomer = f"Newcomer {self.number}-{self.told // _FACTS_EACH}"
        choose = self.random.choice
        # The number of the fact is in the other's name or the date, so no two are the same.
        other = choose(self.words.entities) if self.told % 2 else f"Other {self.number}-{self.told}"
        return newcomer, choose(self.words.relations), other, choose(self.words.dates)


def put_under_load(
    url: str,
    words: Words,
    seconds: float,
    *,
    clients: int = 8,
    writes: float = 0.4,
    first_client: int = 0,
    only: str | None = None,
    retractions: float = 0.0,
) -> Load:
    """Let clients work for some seconds, or until the service is gone.

    Args:
        url: of the service.
        words: they speak of.
        seconds: how long.
        clients: how many at once.
        writes: share of requests that tell facts; a fifth of these tell 20.
        first_client: number of the first; clients of other numbers tell other facts.
        only: one kind of request: 'write', 'predict', 'page', 'search' or 'timeline'.
        retractions: share of requests that take a fact back.
    """
    load = Load()
    numbers = range(first_client, first_client + clients)
    how = (url, words, load, writes, only, retractions)
    threads = [_Client(number, *how) for number in numbers]
    begin = time.perf_counter()
    for thread in threads:
        thread.start()
    while time.perf_counter() - begin < seconds and any(t.is_alive() for t in threads):
        time.sleep(0.05)
    for thread in threads:
        thread.stop.set()
    for thread in threads:
        thread.join()
    load.spent = time.perf_counter() - begin
    return load


_KINDS = {
    None: "mixed",
    "predict": "POST /predict",
    "page": "the page's question, with reasons",
    "timeline": "GET /facts",
    "write": "POST /facts",
}


def measure(
    folder: Path, *, facts: int, workers: int, seconds: float, model: str, store: str
) -> dict[str, Any]:
    """Serve an ingested world and put it under load; see the head of this file.

    Args:
        folder: for the world.
        facts: of the world.
        workers: of the service.
        seconds: of the mixed load of 8 clients; all other loads are a quarter as long.
        model: that is served.
        store: path or URL.
    """
    write_world(folder / "world.parquet", WorldSettings(facts=facts, seed=1))
    ingest([folder / "world.parquet"], folder / "world")
    words = words_of(load(str(folder / "world")))
    rows, number = [], 0
    acknowledged: set[Fact] = set()
    options = ("--model", model, "--store", store, "--no-quality", "--workers", workers)
    with Command(folder / "world", *options, folder=folder) as service:
        for kind, name in _KINDS.items():
            for clients in (1, 8):
                time_ = seconds if (kind, clients) == (None, 8) else seconds / 4
                number += 100
                before = worked(service.process.pid)
                seen = put_under_load(
                    service.url, words, time_, clients=clients, first_client=number, only=kind
                )
                spent = worked(service.process.pid) - before
                rows.append(_row(name, clients, seen, spent))
                acknowledged.update(seen.acknowledged)
        threading.Timer(seconds / 8, service.process.kill).start()
        killed = put_under_load(service.url, words, 60, writes=1.0, first_client=number + 100)
        acknowledged.update(killed.acknowledged)
    with FactStore(store) as kept:
        lost = len(acknowledged - {tuple(stored.fact) for stored in kept.since()})
    about = {
        "facts": facts,
        "workers": workers,
        "model": model,
        "store": "postgresql" if "://" in store else "sqlite",
    }
    return {**about, "acknowledged": len(acknowledged), "lost": lost, "loads": rows}


def _row(name: str, clients: int, seen: Load, worked: float) -> dict[str, Any]:
    times = {f"p{round(100 * s)}_ms": round(seen.percentile(s), 1) for s in (0.5, 0.99)}
    return {
        "request": name,
        "clients": clients,
        "per_second": round(seen.requests / seen.spent, 1),
        **times,
        "processor_ms": round(1000 * worked / seen.requests, 2),
        "errors": len(seen.errors),
        "first_errors": seen.errors[:3],
    }


def main() -> None:
    words = argparse.ArgumentParser(description=__doc__)
    words.add_argument("--facts", type=lambda text: int(float(text)), default=100_000)
    words.add_argument("--workers", type=int, default=2)
    words.add_argument("--seconds", type=float, default=20)
    words.add_argument("--model", default="evidence")
    words.add_argument("--store", choices=("sqlite", "postgresql"), default="sqlite")
    words.add_argument("--out", type=Path)
    given = words.parse_args()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        store = str(folder / "facts.sqlite")
        if given.store == "postgresql":
            store = stack.enter_context(postgres_server.postgres())
        sizes = {"facts": given.facts, "workers": given.workers, "seconds": given.seconds}
        result = measure(folder, **sizes, model=given.model, store=store)
    result |= {"metatkgr": __version__, "python": platform.python_version()}
    print("| request | clients | a second | p50, ms | p99, ms | processor, ms | errors |")
    print("|---|---|---|---|---|---|---|")
    for row in result["loads"]:
        print("| " + " | ".join(str(value) for value in list(row.values())[:-1]) + " |")
    print(f"{result['acknowledged']:,} facts acknowledged, {result['lost']} of them lost")
    if given.out:
        write_json(given.out, result)
    sys.exit(1 if result["lost"] or any(row["errors"] for row in result["loads"]) else 0)


if __name__ == "__main__":
    main()

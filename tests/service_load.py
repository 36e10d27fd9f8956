"""Load for a service on this machine: several clients that read and write, and count."""

from __future__ import annotations

import http.client
import json
import random
import threading
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from urllib.parse import quote, urlsplit

from metatkgr.data.facts import Facts

Fact = tuple[str, str, str, str]
_FACTS_EACH = 4
"""Facts that a client tells of one newcomer before it turns to the next."""


@dataclass
class Load:
    """What the clients saw."""

    acknowledged: list[Fact] = field(default_factory=list)
    """Facts whose request was answered 200."""
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

    def __init__(self, number: int, url: str, words: Words, load: Load, writes: float) -> None:
        super().__init__(daemon=True)
        self.number, self.url, self.words, self.load = number, url, words, load
        self.writes = writes
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
            except OSError as error:
                self.load.errors.append(f"{kind}: {error!r}")
                return
            except http.client.HTTPException as error:
                self.load.errors.append(f"{kind}: {error!r}")
                return
            if answer.status != 200:
                self.load.errors.append(f"{kind}: {answer.status} {said[:200]!r}")
                continue
            self.load.seconds[kind].append(time.perf_counter() - begin)
            self.load.acknowledged.extend(facts)
        connection.close()

    def _next(self) -> tuple[str, str, str, object, list[Fact]]:
        draw = self.random.random()
        if draw < self.writes:
            facts = [self._fact() for _ in range(20 if draw < self.writes / 5 else 1)]
            rows = [
                dict(zip(("subject", "relation", "object", "time"), fact, strict=True))
                for fact in facts
            ]
            if len(rows) == 1:
                return "write", "POST", "/facts", rows[0], facts
            return "bulk of 20", "POST", "/facts", {"facts": rows}, facts
        name = self.random.choice(self.words.entities)
        kind = self.random.choice(["predict", "predict", "search", "timeline"])
        if kind == "predict":
            relation = self.random.choice(self.words.relations)
            asked = {"entity": name, "relation": relation, "top": 10}
            return kind, "POST", "/predict", asked, []
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
) -> Load:
    """Let clients work for some seconds, or until the service is gone."""
    load = Load()
    numbers = range(first_client, first_client + clients)
    threads = [_Client(number, url, words, load, writes) for number in numbers]
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

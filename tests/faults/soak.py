"""A service under steady mixed load for ten minutes: ``make soak``, or ``python -m faults.soak``.

Clients ask, tell, take back, search and send nonsense. What they tell comes from a bounded set of
facts, so that after a while all of it is known and the graph stays as large as it is: memory that
goes on growing then is a leak. With ``--newcomers N`` one more client tells of so many new
entities, evenly over the time, and memory may grow by what a name and a fact take. Exits with 1
where it grows by more, or where a request fails. ``--rate`` bounds the requests a second, so that
a long soak leaves the machine to others.
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
from collections import Counter
from pathlib import Path
from urllib.parse import quote, urlsplit

import numpy as np

from faults.preloaded import small_world
from faults.service_kills import start_service
from metatkgr import __version__
from metatkgr.files import write_json
from service_load import Words, words_of

_FACTS = 1500
"""That clients tell, over and over."""
_GROWTH = 0.03
"""Most that memory may grow between the warm-up and the end, as a share."""
_NEWCOMER_BYTES = 3000
"""Most that a new entity with its fact may take."""
_KINDS = ("predict", "explained", "tell", "bulk", "retract", "search", "timeline", "nonsense")
_BULK = 100
"""New entities that are told of at once."""


class Client(threading.Thread):
    """Sends requests of all kinds until it is stopped."""

    def __init__(
        self,
        number: int,
        url: str,
        words: Words,
        facts: list[dict[str, str]],
        pause: float = 0.01,
    ) -> None:
        super().__init__(daemon=True)
        self.pause = pause
        self.random = random.Random(number)
        self.words, self.facts = words, facts
        address = urlsplit(url)
        self.connection = http.client.HTTPConnection(
            address.hostname or "", address.port, timeout=60
        )
        self.stop = threading.Event()
        self.answers: Counter[str] = Counter()
        self.errors: list[str] = []

    def run(self) -> None:
        while not self.stop.is_set():
            kind, method, path, body, expected = self._next()
            try:
                headers = {"Content-Type": "application/json"}
                self.connection.request(method, path, body, headers)
                answer = self.connection.getresponse()
                said = answer.read()
            except (OSError, http.client.HTTPException) as error:
                self.errors.append(f"{kind}: {error!r}")
                self.connection.close()
                time.sleep(0.1)
                continue
            if answer.status not in expected:
                self.errors.append(f"{kind}: {answer.status} {said[:200]!r}")
            self.answers[kind] += 1
            self.stop.wait(self.pause)

    def _next(self) -> tuple[str, str, str, str | None, tuple[int, ...]]:
        choose = self.random.choice
        name = choose(self.words.entities)
        kind = choose(_KINDS)
        if kind == "predict":
            asked = {"entity": name, "relation": choose(self.words.relations), "top": 10}
            return kind, "POST", "/predict", json.dumps(asked), (200,)
        if kind == "explained":
            asked = {"entity": name, "explain": True, "top": 3}
            return kind, "POST", "/predict", json.dumps(asked), (200,)
        if kind == "tell":
            return kind, "POST", "/facts", json.dumps(choose(self.facts)), (200,)
        if kind == "bulk":
            some = self.random.sample(self.facts, 20)
            return kind, "POST", "/facts", json.dumps({"facts": some}), (200,)
        if kind == "retract":
            asked = {"facts": [choose(self.facts)], "retract": True}
            return kind, "POST", "/facts", json.dumps(asked), (200,)
        if kind == "search":
            return kind, "GET", f"/entities?q={quote(name[:4])}", None, (200,)
        if kind == "timeline":
            return kind, "GET", f"/facts?entity={quote(name)}", None, (200,)
        body = choose(("{", "[]", '{"entity": 3}', json.dumps({"entity": "x" * 400}), "\0" * 50))
        return kind, "POST", choose(("/predict", "/facts", "/explain")), body, (400, 404, 422)


class Newcomers(threading.Thread):
    """Tells of new entities, a bulk at a time, evenly over some seconds."""

    def __init__(self, url: str, words: Words, count: int, seconds: float) -> None:
        super().__init__(daemon=True)
        self.url, self.words, self.count, self.seconds = url, words, count, seconds
        self.stop = threading.Event()
        self.told = 0
        self.errors: list[str] = []

    def run(self) -> None:
        rng = random.Random(1)
        address = urlsplit(self.url)
        pause = self.seconds * _BULK / max(1, self.count)
        begin = time.monotonic()
        while self.told < self.count and not self.stop.is_set():
            facts = facts_to_tell(self.words, rng, _BULK, _BULK, f"Arrival {self.told}")
            connection = http.client.HTTPConnection(
                address.hostname or "", address.port, timeout=60
            )
            kind = {"Content-Type": "application/json"}
            connection.request("POST", "/facts", json.dumps({"facts": facts}), kind)
            answer = connection.getresponse()
            if answer.status != 200:
                self.errors.append(f"newcomers: {answer.status} {answer.read()[:200]!r}")
            connection.close()
            self.told += _BULK
            self.stop.wait(max(0.0, begin + pause * self.told / _BULK - time.monotonic()))


def resident(pid: int) -> int:
    """Bytes of memory that a process holds (Linux)."""
    pages = Path(f"/proc/{pid}/statm").read_text().split()[1]
    return int(pages) * 4096


def facts_to_tell(
    words: Words, rng: random.Random, count: int, newcomers: int, name: str
) -> list[dict[str, str]]:
    """Some facts about some newcomers."""
    return [
        {
            "subject": f"{name} {number % newcomers}",
            "relation": rng.choice(words.relations),
            "object": rng.choice(words.entities),
            "time": rng.choice(words.dates),
        }
        for number in range(count)
    ]


def soak(
    seconds: float,
    clients: int = 4,
    every: float = 2.0,
    warm_up: float = 0.25,
    newcomers: int = 0,
    rate: float = 0.0,
    model: str = "paths",
) -> dict[str, object]:
    """Put a service under load and watch its memory.

    Args:
        seconds: how long.
        clients: at once.
        every: seconds between samples.
        warm_up: share of the time before growth counts.
        newcomers: new entities that arrive over the time.
        rate: most requests a second of all clients together; 0 for no bound.
        model: that answers.
    """
    words = words_of(small_world())
    with tempfile.TemporaryDirectory() as folder:
        store, told = Path(folder) / "facts.sqlite", Path(folder) / "address"
        process, url = start_service(store, told, model)
        facts = facts_to_tell(words, random.Random(0), _FACTS, 300, "Newcomer")
        pause = clients / rate if rate else 0.01
        threads = [Client(number, url, words, facts, pause) for number in range(clients)]
        arrivals = Newcomers(url, words, newcomers, seconds)
        begin = time.monotonic()
        samples: list[tuple[float, int]] = []
        try:
            for thread in (*threads, arrivals):
                thread.start()
            while (now := time.monotonic() - begin) < seconds and process.is_alive():
                samples.append((now, resident(process.pid)))
                time.sleep(every)
            alive = process.is_alive()
        finally:
            for thread in (*threads, arrivals):
                thread.stop.set()
            for thread in (*threads, arrivals):
                thread.join(70)
            process.kill()
            process.join()
    answers: Counter[str] = sum((thread.answers for thread in threads), Counter())
    errors = [error for thread in (*threads, arrivals) for error in thread.errors]
    judged = verdict(samples, warm_up * seconds, arrivals.told / seconds)
    return {
        "passed": bool(judged.pop("steady")) and not errors and alive,
        "seconds": round(seconds),
        "clients": clients,
        "model": model,
        "requests": sum(answers.values()),
        "newcomers": arrivals.told,
        "by_kind": dict(sorted(answers.items())),
        "errors": len(errors),
        "first_errors": errors[:5],
        **judged,
        "megabytes": [
            [round(at), round(size / 1e6, 1)] for at, size in samples[:: max(1, len(samples) // 60)]
        ],
    }


def verdict(
    samples: list[tuple[float, int]], warm_up: float, newcomers_per_second: float = 0.0
) -> dict[str, object]:
    """Whether memory stays level after the warm-up, by the slope of a straight line through it."""
    time_, size = np.array([sample for sample in samples if sample[0] >= warm_up], float).T
    slope = float(np.polyfit(time_, size, 1)[0])
    spent, middle = float(time_[-1] - time_[0]), float(np.median(size))
    allowed = _GROWTH + _NEWCOMER_BYTES * newcomers_per_second * spent / middle
    growth = slope * spent / middle
    return {
        "steady": growth <= allowed,
        "samples": len(samples),
        "bytes_per_second": round(slope),
        "growth_share": round(growth, 4),
        "largest_allowed": round(allowed, 4),
    }


def main() -> None:
    words = argparse.ArgumentParser(description=__doc__)
    words.add_argument("--seconds", type=float, default=600)
    words.add_argument("--clients", type=int, default=4)
    words.add_argument("--newcomers", type=lambda text: int(float(text)), default=100_000)
    words.add_argument("--rate", type=float, default=0.0)
    words.add_argument("--model", default="paths")
    words.add_argument("--out", type=Path)
    given = words.parse_args()
    result = soak(
        given.seconds,
        given.clients,
        newcomers=given.newcomers,
        rate=given.rate,
        model=given.model,
    )
    result |= {"metatkgr": __version__, "python": platform.python_version()}
    print(json.dumps(result, indent=1))
    if given.out:
        write_json(given.out, result)
    sys.exit(0 if result["passed"] else 1)


if __name__ == "__main__":
    main()

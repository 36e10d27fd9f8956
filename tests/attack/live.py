"""Attacks on a running service; each case says what was seen and whether it held."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from urllib.parse import quote

import postgres_server
from attack.clients import (
    begun,
    half_open,
    more_files,
    parts_of_a_letter,
    send,
    unfinished_bodies,
    worked,
)
from faults.preloaded import small_world
from faults.service_kills import kill_workers
from faults.soak import resident
from local_service import Command
from metatkgr.data.facts import Facts
from metatkgr.serving.auth import add_token

__all__ = ["LIVE", "Seen", "fuzzed", "killed"]

_DATA = "world:3000:1"
_PAUSE = 0.3
"""Seconds between two looks at a service under attack."""


@dataclass(frozen=True)
class Seen:
    """What came of one case."""

    case: str
    seen: str
    held: bool


@dataclass(frozen=True)
class Target:
    """What is attacked: where its facts are kept, where it runs, and what answers."""

    store: str
    folder: Path
    model: str = "evidence"

    @contextmanager
    def served(self, *options: object) -> Iterator[Command]:
        """The service."""
        words = (_DATA, "--model", self.model, "--store", self.store, "--no-quality", *options)
        with Command(*words, folder=self.folder) as service:
            yield service


Case = Callable[[Target], Seen]


def _fact(world: Facts, subject: str, other: str | None = None) -> dict[str, str]:
    _, relation, known, _ = world.describe(0)
    last = world.calendar.label(world.steps - 1)
    return {"subject": subject, "relation": relation, "object": other or known, "time": last}


def _tell(service: Command, facts: list[dict[str, str]]) -> list[int]:
    """Tell facts, a thousand at a time; the statuses."""
    parts = [facts[begin : begin + 1000] for begin in range(0, len(facts), 1000)]
    return [send(service.url, "POST", "/facts", {"facts": part})[0] for part in parts]


def _hub(service: Command) -> None:
    """Two thousand facts on one object."""
    world = small_world()
    assert set(_tell(service, [_fact(world, f"Fan {n}", "Hub") for n in range(2000)])) == {200}


_HUB = {"entity": "Hub", "explain": True, "top": 100}


def crowd(target: Target) -> Seen:
    """1,100 half-open connections and 20 questions about a hub: who asks properly is answered."""
    case = "1,100 half headers, 20 hub questions"
    with target.served() as service, more_files(3000) as enough:
        if not enough:
            return Seen(case, "not tried: too few files may be open here", False)
        _hub(service)
        asked = {"entity": small_world().entities[0]}
        for _ in range(3):
            send(service.url, "POST", "/predict", asked)
            send(service.url, "POST", "/predict", _HUB)
        idle = resident(service.process.pid)
        held = half_open(service.url, 1100)
        hubs: list[int] = []

        def ask_hub() -> None:
            hubs.append(send(service.url, "POST", "/predict", _HUB)[0])

        askers = [threading.Thread(target=ask_hub, daemon=True) for _ in range(20)]
        for asker in askers:
            asker.start()
        slowest = {"/health": 0.0, "/predict": 0.0}
        processor = 0.0
        statuses: set[int] = set()
        while any(asker.is_alive() for asker in askers) or not slowest["/predict"]:
            for path, method, body in (("/health", "GET", None), ("/predict", "POST", asked)):
                begin, before = time.monotonic(), worked(service.process.pid)
                statuses.add(send(service.url, method, path, body)[0])
                slowest[path] = max(slowest[path], time.monotonic() - begin)
                processor = max(processor, worked(service.process.pid) - before)
            time.sleep(_PAUSE)
        ratio = resident(service.process.pid) / idle
        for one in held:
            one.close()
        service.process.send_signal(signal.SIGTERM)
        begin = time.monotonic()
        code = service.wait()
        end = time.monotonic() - begin
    seen = (
        f"/health {slowest['/health']:.2f} s, /predict {slowest['/predict']:.2f} s at most, within "
        f"{processor:.2f} s of the service's processor time; memory {ratio:.2f}x; SIGTERM "
        f"{end:.1f} s; {len(service.said):,} bytes printed; {hubs.count(200)} of the 20 answered "
        "within 30 s, the others told to come back"
    )
    in_time = max(slowest.values()) <= 1
    if not in_time and os.getloadavg()[0] > 2 * (os.cpu_count() or 1):
        # Where others have the cores, what the service works meanwhile tells how long it would be.
        in_time = processor <= 1
        seen += f"; {os.getloadavg()[0]:.0f} processes shared {os.cpu_count()} cores"
    held_up = in_time and ratio <= 1.5 and end < 15
    answered = statuses == {200} and set(hubs) <= {200, 503} and code == 0
    return Seen(case, seen, held_up and answered and len(service.said) < 10_000)


def unknown_relations(target: Target) -> Seen:
    """1,000 facts with relations that the graph does not have."""
    with target.served() as service:
        facts = [
            _fact(small_world(), "Nova") | {"relation": f"unheard of {n}"} for n in range(1000)
        ]
        before = worked(service.process.pid)
        (status,) = _tell(service, facts)
        spent = worked(service.process.pid) - before
        few = [facts[begin : begin + 20] for begin in range(0, 1000, 20)]
        told = [
            send(service.url, "POST", "/facts", {"facts": part, "confirm_new": True})[0]
            for part in few
        ]
        before = worked(service.process.pid)
        answered, _ = send(service.url, "POST", "/predict", {"entity": "Nova", "explain": True})
        asked = worked(service.process.pid) - before
    with target.served() as service:
        again, _ = send(service.url, "POST", "/predict", {"entity": "Nova"})
    seen = (
        f"{status}, {spent:.2f} s of processor; 20 at a time: {told.count(200) * 20} are taken, "
        f"{told.count(400) * 20} refused; a question about who has them {asked:.2f} s of "
        f"processor, after a restart {again}"
    )
    held = told == [200] * 10 + [400] * 40 and (status, answered, again) == (400, 200, 200)
    return Seen("1,000 unknown relations", seen, held and spent < 3 and asked < 3)


def bodies(target: Target) -> Seen:
    """300 unfinished bodies of 4 MB."""
    case = "300 unfinished bodies of 4 MB"
    with target.served() as service, more_files(1000) as enough:
        if not enough:
            return Seen(case, "not tried: too few files may be open here", False)
        send(service.url, "GET", "/graph")
        idle = resident(service.process.pid)
        held = unfinished_bodies(service.url, 300, 3_900_000)
        status, _ = send(service.url, "POST", "/facts", _fact(small_world(), "Nova"))
        more = resident(service.process.pid) - idle
        for one in held:
            one.close()
    return Seen(case, f"+{more / 1e6:.0f} MB; a fact meanwhile: {status}", more < 200e6)


def long_names(target: Target) -> Seen:
    """11 MB of names, then a search after a restart."""
    world = small_world()
    with target.served() as service:
        idle = resident(service.process.pid)
        names = [f"{n:06} " + "x" * 490 for n in range(22_000)]
        statuses = _tell(service, [_fact(world, name) for name in names])
        send(service.url, "GET", "/entities?q=tar")
        more = resident(service.process.pid) - idle
    with target.served() as service:
        begin = time.monotonic()
        found, _ = send(service.url, "GET", "/entities?q=000017")
        spent = time.monotonic() - begin
    with target.served("--new-names-bytes", 1000) as service:
        refused = _tell(service, [_fact(world, "one name more")])
    seen = f"+{more / 1e6:.0f} MB; first search {spent:.1f} s; beyond the quota: {refused[0]}"
    held = set(statuses) == {200} and more < 300e6 and spent < 10
    return Seen("11 MB of names", seen, held and (found, refused) == (200, [400]))


def gone_clients(target: Target) -> Seen:
    """Clients that ask about a hub, with reasons, and leave."""
    with target.served() as service:
        _hub(service)
        send(service.url, "POST", "/predict", _HUB)
        before = worked(service.process.pid)
        status, _ = send(service.url, "POST", "/predict", _HUB)
        one = worked(service.process.pid) - before
        gone = [begun(service.url, "/predict", _HUB) for _ in range(30)]
        time.sleep(_PAUSE)
        for connection in gone:
            connection.close()
        begin, before = time.monotonic(), worked(service.process.pid)
        # It waits behind those whose clients have left, if they are worked on.
        last, _ = send(service.url, "POST", "/predict", {"entity": "Fan 7", "explain": True})
        waited, spent = time.monotonic() - begin, worked(service.process.pid) - before
    seen = (
        f"one takes {one:.2f} s; after 30 that left the next waits {waited:.2f} s, within "
        f"{spent:.2f} s of the service's processor time"
    )
    held = (status, last) == (200, 200) and spent < 15 * one
    return Seen("clients that ask and leave", seen, held)


def small_parts(target: Target) -> Seen:
    """Ten clients that send bodies in parts of one letter, again and again."""
    stop = threading.Event()
    with target.served() as service:
        asked = (stop, service.url)
        senders = [threading.Thread(target=parts_of_a_letter, args=asked) for _ in range(10)]
        for sender in senders:
            sender.start()
        slowest = processor = 0.0
        for _ in range(10):
            begin, before = time.monotonic(), worked(service.process.pid)
            status, _ = send(service.url, "GET", "/health")
            slowest = max(slowest, time.monotonic() - begin)
            processor = max(processor, worked(service.process.pid) - before)
            time.sleep(_PAUSE)
        stop.set()
        for sender in senders:
            sender.join()
        service.process.send_signal(signal.SIGTERM)
        service.wait()
    seen = (
        f"/health {slowest:.2f} s at most, within {processor:.2f} s of the service's processor "
        f"time; {len(service.said):,} bytes printed"
    )
    held = status == 200 and processor <= 1 and len(service.said) < 10_000
    return Seen("10 clients with bodies in parts of a letter", seen, held)


def tokens(target: Target) -> Seen:
    """Every path, by every method, in odd spellings, without a token or with one that reads."""
    file = target.folder / "tokens.toml"
    file.unlink(missing_ok=True)
    reader = {"Authorization": f"Bearer {add_token(file, 'reader', 'read')}"}
    paths = ("/graph", "/facts", "/predict", "/explain", "/entities", "/newcomers", "/quality",
             "/metrics", "/usage", "/openapi.json", "/nothing")  # fmt: skip
    odd = ("{}", "/{}", "{}/", "{}//", "{}?a=/health", "{};/health", "/health/..{}", "/page/..{}",
           "/page/%2e%2e{}", "{}%00", "{}#/health")  # fmt: skip
    methods = ("GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS", "TRACE", "BREW", "get")
    wrong = ({}, {"Authorization": "Bearer x"}, {"X-Forwarded-For": "127.0.0.1"})
    bad: list[str] = []
    tried = 0
    with target.served("--token-file", file) as service:
        for path in paths:
            for method in methods:
                for form in odd:
                    headers = wrong[tried % len(wrong)]
                    asked = form.format(path)
                    status, said = send(service.url, method, quote(asked, safe="/?=;%#&"),
                                        headers=headers)  # fmt: skip
                    tried += 1
                    # What is behind /page/ or unknown has nothing to tell.
                    if status not in (400, 401, 404, 405):
                        bad.append(f"{method} {asked}: {status} {said[:60]!r}")
        for method in ("POST", "PUT", "PATCH", "DELETE"):
            fact = _fact(small_world(), "Nova")
            status, _ = send(service.url, method, "/facts", fact, reader)
            tried += 1
            if status != 403:
                bad.append(f"{method} /facts with the role read: {status}")
        tried += 1
        if send(service.url, "GET", "/usage", headers=reader)[0] != 403:
            bad.append("GET /usage with the role read")
    seen = f"{tried:,} requests, {len(bad)} got through" + (f": {bad[0]}" if bad else "")
    return Seen("paths and methods without a right", seen, not bad)


_CHECKS = """
[checks]
# Of the right form, but this graph has no such name or date, or asks back.
positive_data_acceptance.expected-statuses = ["2xx", "400", "404", "409"]
"""
_PROGRAM = "import sys; from schemathesis.cli import schemathesis; sys.exit(schemathesis())"


def fuzzed(target: Target, examples: int, seed: int) -> Seen:
    """Schemathesis in all its phases, with all its checks, on a store of its own.

    What it tells would make the other cases slower, and theirs its streams of forecasts.
    """
    with ExitStack() as stack:
        store = str(target.folder / "fuzzed.sqlite")
        if "://" in target.store:
            store = stack.enter_context(postgres_server.postgres())
        return _fuzzed(replace(target, store=store), examples, seed)


def _fuzzed(target: Target, examples: int, seed: int) -> Seen:
    (target.folder / "schemathesis.toml").write_text(_CHECKS)
    file = target.folder / "fuzzer.toml"
    file.unlink(missing_ok=True)
    token = add_token(file, "fuzzer", "admin")
    with target.served("--token-file", file) as service:
        command = [sys.executable, "-c", _PROGRAM, "run", f"{service.url}/openapi.json"]
        command += [f"--max-examples={examples}", f"--seed={seed}", "--no-color", "--checks=all"]
        command += ["--phases=examples,coverage,fuzzing,stateful"]
        # The service's own limit is 90 s; how long answers take is another attack's matter.
        command += ["--request-timeout=95", "--max-response-time=95"]
        command += ["--header", f"Authorization: Bearer {token}"]
        done = subprocess.run(
            command, cwd=target.folder, capture_output=True, text=True, check=False
        )
        alive = service.process.poll() is None
    text = done.stdout + done.stderr
    (target.folder / "schemathesis.txt").write_text(text)
    cases = re.search(r"([\d,]+) generated", text)
    phases = re.findall(r"^ {2}✅ (Examples|Coverage|Fuzzing|Stateful)$", text, re.MULTILINE)
    seen = f"{cases[1] if cases else '?'} cases; phases: {', '.join(phases).lower() or 'none'}"
    if done.returncode:
        seen += f"; {text[-300:]!r}"
    return Seen("schemathesis", seen, done.returncode == 0 and alive and "Coverage" in phases)


def killed(target: Target, kills: int, seed: int) -> Seen:
    """Kill one of two workers again and again, while clients write."""
    seen = kill_workers(target.folder, kills, seed, target.store)
    told = (
        f"{seen.acknowledged:,} facts and {seen.retracted:,} retractions acknowledged, {seen.lost} "
        f"lost, {seen.half} requests half done"
    )
    if seen.problems:
        told += f"; {seen.problems[0]}"
    held = not (seen.lost or seen.half or seen.problems)
    return Seen(f"{seen.kills} kills of one of two workers", told, held)


LIVE: tuple[Case, ...] = (
    crowd, unknown_relations, bodies, small_parts, gone_clients, tokens, long_names
)  # fmt: skip

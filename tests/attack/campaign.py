"""Attacks a service on this machine, and its files: ``make attack``.

Prints one table: what was tried, what was seen, whether it held; exits with 1 where something did
not. ``--kills 100`` kills workers during writes, too, which takes minutes.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import asdict
from functools import partial
from pathlib import Path

import postgres_server
from attack.live import LIVE, Seen, Target, fuzzed, killed
from metatkgr import __version__
from metatkgr.files import write_json

_TESTS = Path(__file__).parent.parent
_ROWS = {
    "half a header; bodies; a hub; hints; a store that fails, is locked, is gone": (
        "serving/test_faults.py",
    ),
    "tokens, roles, rates, quotas, logs": ("serving/test_auth.py",),
    "clients that go; time that is over": ("serving/test_batches.py",),
    "names: quota, search, terminals, Host": (
        "serving/test_app.py::test_the_names_of_new_entities_have_a_quota_that_outlives_a_restart",
        "serving/test_app.py::test_answers_forbid_what_a_page_elsewhere_might_try",
        "serving/test_app.py::test_an_answer_does_not_wait_for_the_clients_acknowledgement",
        "forecasting/test_names.py",
        "cli/test_cli.py",
    ),
    "strange run folders and stores; settings without end": (
        "faults/test_strange_runs.py",
        "forecasting/test_store.py",
        "test_settings.py",
    ),
    "files that unpack": ("data/test_readers.py", "data/test_intervals.py"),
    "resuming after facts, trace or checkpoint changed": ("cli/test_train.py",),
}
"""Bounded cases that need no service of their own, by the tests that try them."""


def cases(target: Target, only: str | None, examples: int, kills: int, seed: int) -> Iterator[Seen]:
    """What came of each attack on one service."""
    attacks = [*LIVE, partial(fuzzed, examples=examples, seed=seed)]
    if kills:
        attacks.append(partial(killed, kills=kills, seed=seed))
    for attack in attacks:
        name = getattr(attack, "func", attack).__name__
        if only in (None, name):
            yield attack(target)


def tested(name: str, files: tuple[str, ...]) -> Seen:
    """What came of some tests."""
    command = [sys.executable, "-m", "pytest", "-m", "not slow", "-p", "no:cacheprovider"]
    done = subprocess.run(
        [*command, *files], cwd=_TESTS, capture_output=True, text=True, check=False,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(map(str, sys.path))},
    )  # fmt: skip
    counts = re.findall(r"\d+ (?:passed|failed|error|skipped)", done.stdout)
    failed = re.findall(r"^(?:FAILED|ERROR) (\S+)", done.stdout, re.MULTILINE)
    held = done.returncode == 0 and any("passed" in count for count in counts)
    return Seen(name, ", ".join([*counts, *failed[:3]]) or "no test ran", held)


def main() -> None:
    words = argparse.ArgumentParser(description=__doc__)
    words.add_argument("--stores", nargs="+", default=["sqlite", "postgresql"])
    words.add_argument("--only", help="one attack, by the name of its function; or 'tests'")
    words.add_argument(
        "--examples", type=int, default=100, help="of each operation, for the fuzzer"
    )
    words.add_argument("--model", default="evidence")
    words.add_argument("--kills", type=int, default=0)
    words.add_argument("--seed", type=int, default=0)
    words.add_argument("--out", type=Path)
    given = words.parse_args()
    rows: list[dict[str, object]] = []
    if given.only and given.out and given.out.exists():  # what is not tried now stays
        rows = json.loads(given.out.read_text(encoding="utf-8"))["rows"]
    about = {"metatkgr": __version__, "python": platform.python_version()}
    about |= {"model": given.model, "seed": given.seed, "examples": given.examples}
    print("| store | tried | seen | held |\n|---|---|---|---|", flush=True)

    def tell(store: str, seen: Seen) -> None:
        row = {"store": store, **asdict(seen), "load": round(os.getloadavg()[0], 1)}
        rows[:] = [one for one in rows if (one["store"], one["case"]) != (store, seen.case)]
        rows.append(row)
        if given.out:
            write_json(given.out, {"rows": rows, **about})
        held = "yes" if seen.held else "**no**"
        print(f"| {store} | {seen.case} | {seen.seen} | {held} |", flush=True)

    begin = time.monotonic()
    for store in given.stores:
        if given.only == "tests":
            break
        if store == "postgresql" and (reason := postgres_server.why_not()):
            tell(store, Seen("all", f"not tried: {reason}", False))
            continue
        with ExitStack() as stack:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            where = str(folder / "facts.sqlite")
            if store == "postgresql":
                where = stack.enter_context(postgres_server.postgres())
            target = Target(where, folder, given.model)
            for seen in cases(target, given.only, given.examples, given.kills, given.seed):
                tell(store, seen)
    if given.only in (None, "tests"):
        for name, files in _ROWS.items():
            tell("–", tested(name, files))
    load = os.getloadavg()[0]
    print(f"{time.monotonic() - begin:.0f} s; {load:.1f} processes waited for a core at the end")
    sys.exit(0 if all(row["held"] for row in rows) else 1)


if __name__ == "__main__":
    main()

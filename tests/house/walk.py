"""How many files one has to read: ``cd tests && python -m house.walk``.

Three walks through the package, each in a process of its own: a training of MetaTKGR on an ingested
folder, an evaluation of a trained ``evidence``, the first ``POST /predict`` to a service. Counted
are the files of the package in which a function runs; what runs while a module is imported is not.
At the end: the processor time of ``metatkgr --version``. The exit code is 1 if anything is above
its bound.
"""

from __future__ import annotations

import argparse
import inspect
import json
import os
import resource
import subprocess
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import metatkgr

MOST_FILES = 35
MOST_SECONDS = 0.4
PACKAGE = Path(metatkgr.__file__).parent
FACTS = "3000"


class Walk(Counter[str]):
    """How many functions have run in each file of the package."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: set[CodeType] = set()
        self.over = False

    def forget(self) -> None:
        """Count from here on: what ran so far was on the way to where the walk begins."""
        self.seen.clear()

    def end(self) -> None:
        """Count no further: what comes now is on the way back."""
        self.over = True


@contextmanager
def walking() -> Iterator[Walk]:
    """Fills with the functions that run in each file of the package, until the block ends."""
    found = Walk()
    seen = found.seen
    root = f"{PACKAGE}{os.sep}"

    def look(frame: FrameType, event: str, _: Any) -> None:
        code = frame.f_code
        if event != "call" or code in seen or not code.co_filename.startswith(root):
            return
        if found.over:
            return
        # Modules and bodies of classes are not functions; what they call belongs to an import.
        at: FrameType | None = frame
        while at is not None:
            if not at.f_code.co_flags & inspect.CO_OPTIMIZED and _is_ours(at.f_code, root):
                return
            at = at.f_back
        seen.add(code)

    threading.setprofile(look)
    sys.setprofile(look)
    try:
        yield found
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
        found.update(code.co_filename.removeprefix(root) for code in seen)


def _is_ours(code: CodeType, root: str) -> bool:
    return code.co_filename.startswith(root) and not code.co_filename.endswith("__main__.py")


# The walks ----------------------------------------------------------------------------------------


def _train(folder: Path, model: str, *settings: str) -> None:
    from goldens.surface import command

    words = [word for setting in settings for word in ("--set", setting)]
    ran = command("train", folder / "facts", "--model", model, "--out", folder / model, *words)
    assert ran.code == 0, ran.err


def training(folder: Path) -> Counter[str]:
    """``train --model metatkgr``."""
    with walking() as found:
        _train(folder, "metatkgr", "epochs=1", "translation_epochs=1", "dimension=16")
    return found


def evaluating(folder: Path) -> Counter[str]:
    """``evaluate`` of a run of ``evidence``."""
    from goldens.surface import command

    with walking() as found:
        ran = command("evaluate", folder / "evidence", "--json", folder / "result.json")
    assert ran.code == 0, ran.err
    return found


def predicting(folder: Path) -> Counter[str]:
    """The first ``POST /predict`` with reasons to a service of ``evidence``."""
    from fastapi.testclient import TestClient

    import metatkgr as mt
    from goldens.surface import service_app

    # All of it within the walk, so that whichever thread answers was begun in it and is looked at;
    # what ran before the question is forgotten.
    with walking() as found:
        forecaster = mt.Forecaster.load(folder / "evidence")
        _ = forecaster.calibration  # as `serve` does before it listens
        facts = forecaster.facts
        who, relation, _, _ = facts.describe(len(facts) - 1)
        # Who follows the store beside it looks once, at the beginning.
        app = service_app(forecaster, folder / "facts.sqlite", "evidence", poll_seconds=3600)
        with TestClient(app, base_url="http://127.0.0.1") as client:
            body = {"entity": who, "relation": relation, "explain": True}
            found.forget()
            answer = client.post("/predict", json=body)
            found.end()
    assert answer.status_code == 200, answer.text
    return found


WALKS: dict[str, Callable[[Path], Counter[str]]] = {
    "train --model metatkgr": training,
    "evaluate --model evidence": evaluating,
    "POST /predict": predicting,
}


def _prepared(folder: Path) -> None:
    """Facts in a folder, as users have them, and a run of ``evidence``."""
    from goldens.surface import command

    file = folder / "facts.csv"
    assert command("data", "simulate", "--facts", FACTS, "--seed", "1", "--out", file).code == 0
    assert command("data", "ingest", file, "--out", folder / "facts").code == 0
    _train(folder, "evidence", "epochs=2", "train_queries=300", "support_queries=150")


def walked(name: str, folder: Path) -> Counter[str]:
    """A walk in a process of its own: what other walks have imported and kept plays no part."""
    words = [sys.executable, "-m", "house.walk", "--alone", name, "--folder", str(folder)]
    return Counter(json.loads(subprocess.run(words, stdout=subprocess.PIPE, check=True).stdout))


def seconds_of_version() -> float:
    """Processor time of ``python -X importtime -m metatkgr --version``, the least of three."""
    words = [sys.executable, "-X", "importtime", "-m", "metatkgr", "--version"]
    took = []
    for _ in range(3):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run(words, capture_output=True, check=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        took.append(after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime)
    return min(took)


def main() -> None:
    """Walk and tell."""
    parser = argparse.ArgumentParser(prog="python -m house.walk", description=__doc__)
    parser.add_argument("--alone", choices=[*WALKS, "prepare"], help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--short", action="store_true", help="numbers only, no files")
    options = parser.parse_args()
    if options.alone == "prepare":
        _prepared(options.folder)
    elif options.alone:
        print(json.dumps(WALKS[options.alone](options.folder)))
    else:
        sys.exit(_all(files=not options.short))


def _all(*, files: bool) -> int:
    high = 0
    with tempfile.TemporaryDirectory(prefix="house-") as place:
        words = [sys.executable, "-m", "house.walk", "--alone", "prepare", "--folder", place]
        subprocess.run(words, check=True)
        for name in WALKS:
            found = walked(name, Path(place))
            high += len(found) > MOST_FILES
            print(
                f"{name}: {len(found)} files, {sum(found.values())} functions (bound: {MOST_FILES})"
            )
            folders = Counter(str(Path(path).parent) for path in found)
            print("  " + ", ".join(f"{name} {count}" for name, count in sorted(folders.items())))
            for path in sorted(found) if files else ():
                print(f"  {path} ({found[path]})")
    seconds = seconds_of_version()
    high += seconds > MOST_SECONDS
    print(f"metatkgr --version: {seconds:.2f} s of processor (bound: {MOST_SECONDS})")
    return int(high > 0)


if __name__ == "__main__":
    main()

"""Runs of ``train --on-disk``, done or stopped on the way: every file cut, flipped or forged."""

from __future__ import annotations

import contextlib
import json
import pickle
import random
import shutil
from functools import cache
from pathlib import Path
from typing import Any
from unittest.mock import patch

from fuzz.fuzzing import fuzzer, scratch
from fuzz.ingested import forged_file, whole_folder
from fuzz.mutation import odd_text, put_file, remove_file
from metatkgr.data.large.store import FactStore
from metatkgr.training.disk_run import DiskRun, load_disk_run
from metatkgr.training.disk_settings import DiskMetaSettings, DiskRunSettings
from metatkgr.training.disk_tables import tables_of
from metatkgr.training.on_disk import configure_on_disk, report_on_disk, train_on_disk

_SMALL: dict[str, DiskRunSettings | DiskMetaSettings] = {
    "transe": DiskRunSettings(
        dimension=4, batch_size=100, negatives=8, block=200, epochs=2, questions=5
    ),
    "metatkgr": DiskMetaSettings(
        dimension=4,
        translation_epochs=1,
        translation_batch=200,
        translation_negatives=8,
        epochs=2,
        batch_size=50,
        budget=2,
        layers=1,
        intervals=2,
        inner_steps=1,
        negatives=2,
        questions=5,
        moments=1,
    ),
}
_LARGE = ("budget", "layers", "inner_steps", "support_negatives", "window")
"""Settings by which an evaluation may ask for any amount of memory or time."""


class _StoppedError(Exception):
    """Stands for a process that ends."""


def _stop(line: dict[str, Any]) -> None:
    if line["phase"] in ("meta", "translation") and line["epoch"] == 1:
        raise _StoppedError


def _run(model: str) -> DiskRun:
    return configure_on_disk(
        FactStore(whole_folder("plain")), _SMALL[model], model=model, shots=1, seed=3
    )


@cache
def _whole(model: str, done: bool) -> Path:
    """A run that is done, or was stopped after its first epoch, of meta-training if it has one."""
    folder = scratch() / "disk-runs" / f"{model}-{'done' if done else 'stopped'}"
    run, quick = _run(model), patch("os.fsync", lambda _: None)
    with contextlib.suppress(_StoppedError), quick:
        if done or model == "transe":
            train_on_disk(folder, run, progress=None if done else _stop)
        else:
            train_on_disk(
                folder, run, progress=lambda line: line["phase"] == "meta" and _stop(line)
            )
    return folder


@cache
def _content(model: str, done: bool) -> dict[str, bytes]:
    folder = _whole(model, done)
    files = (path for path in sorted(folder.rglob("*")) if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


@cache
def _damaged(model: str) -> Path:
    folder = scratch() / "disk-runs" / f"{model}-damaged"
    shutil.copytree(_whole(model, True), folder)
    return folder


class _Code:
    """Pickled, it makes a file where it is loaded."""

    def __reduce__(self) -> Any:
        return open, (str(_mark()), "w")


def _mark() -> Path:
    return scratch() / "code-was-run"


def _forged(rng: random.Random, name: str, data: bytes) -> bytes:
    draw = rng.random()
    if draw < 0.03:
        return pickle.dumps(_Code())
    if name == "on-disk.json" and draw < 0.3:
        content = json.loads(data)
        facts = str(whole_folder("plain"))
        paths = (facts, f"{facts}/../facts", "/", "/etc", "/dev/zero", ".", "", "\0", "../" * 40)
        content["data"] = rng.choice((*paths, str(whole_folder("moved")), odd_text(rng)))
        return json.dumps(content).encode()
    if name.endswith(".jsonl"):
        return rng.choice((data[: rng.randrange(len(data) + 1)], b"3\n", b"\xff", b"{}\n" * 5))
    return forged_file(rng, name, data)


@fuzzer(share=1)
def disk_runs(rng: random.Random) -> None:
    """A run on disk with a damaged file: refused with a sentence, or evaluated."""
    model = rng.choice(list(_SMALL))
    folder, files = _damaged(model), _content(model, True)
    used = [name for name in files if "squares" not in name and "metrics" not in name]
    name = "on-disk.json" if rng.random() < 0.3 else rng.choice(used)
    path = folder / name
    try:
        put_file(rng, path, _forged(rng, name, files[name]))
        run = load_disk_run(folder)
        assert 0 <= run.seed < 2**63
        usual, given = vars(_SMALL[model]), vars(run.settings)
        if any(given.get(key, 0) != usual.get(key, 0) for key in _LARGE):
            tables_of(folder, run)
            return
        result = report_on_disk(folder, questions=4)
        assert Path(result["data"]).samefile(run.data), "it does not say where its facts are"
        assert 0 <= result["metrics"]["static"]["all"]["mrr"] <= 1
        json.dumps(result, allow_nan=False)
    finally:
        remove_file(path)
        path.write_bytes(files[name])
        assert not _mark().exists(), "code was run"


@fuzzer(share=0.15)
def stopped_disk_runs(rng: random.Random) -> None:
    """A training that was stopped, with a damaged file: refused, or gone on with to its end."""
    model = rng.choice(list(_SMALL))
    folder, files = scratch() / "disk-runs" / "resumed", _content(model, False)
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(_whole(model, False), folder)
    name = rng.choice(sorted(files))
    path = folder / name
    put_file(rng, path, _forged(rng, name, files[name]))
    try:
        with patch("os.fsync", lambda _: None):
            result = train_on_disk(folder, _run(model), resume=True)
        assert 0 <= result["metrics"]["static"]["all"]["mrr"] <= 1
        assert load_disk_run(folder) == _run(model)
    finally:
        assert not _mark().exists(), "code was run"

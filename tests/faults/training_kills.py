"""Kill -9 at random moments of trainings; each is gone on with and must end in the same bits.

Trainings are processes of their own, forked from a server that has imported everything, so that
one takes seconds.
"""

from __future__ import annotations

import multiprocessing
import os
import random
import shutil
import signal
import time
from dataclasses import dataclass
from pathlib import Path

from safetensors.torch import load_file

__all__ = ["TrainingKills", "fresh_process", "kill_trainings"]

_SETTINGS = {
    "dimension": 8,
    "translation_epochs": 6,
    "epochs": 4,
    "validate_every": 2,
    "patience": 9,
}
_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(["faults.preloaded"])
_TESTS = str(Path(__file__).parent.parent)


def fresh_process(target: object, *words: object) -> multiprocessing.process.BaseProcess:
    """A process that is not a copy of this one."""
    # The server knows no other path than this; without it, it would preload nothing, silently.
    known = os.environ.get("PYTHONPATH", "")
    if _TESTS not in known.split(os.pathsep):
        os.environ["PYTHONPATH"] = os.pathsep.join([_TESTS, *filter(None, [known])])
    process = _CONTEXT.Process(target=target, args=words, daemon=True)  # type: ignore[arg-type]
    process.start()
    return process


def train_in(folder: str, model: str) -> None:
    """Train a small model in a folder, or go on with it."""
    import torch

    from faults.preloaded import small_world
    from metatkgr.models.registry import trainable
    from metatkgr.training.estimator import configure, learn
    from metatkgr.training.runs import is_run, save_run

    torch.set_num_threads(1)
    place, facts = Path(folder), small_world()
    settings = _SETTINGS if model == "transr" else {"dimension": 8, "epochs": 10}
    chosen = trainable(model, settings)
    config = configure(chosen, facts, shots=2, seed=3)
    lines = learn(chosen, facts, config, folder=place, resume=is_run(place))
    save_run(place, chosen, facts, config, lines)


@dataclass
class TrainingKills:
    """What was seen."""

    kills: int = 0
    """Processes that were ended by SIGKILL before they were done."""
    resumed: int = 0
    """Trainings gone on with to their end."""
    identical: int = 0
    """Of these, with weights equal bit by bit to the uninterrupted training's."""
    problems: tuple[str, ...] = ()


def kill_trainings(
    folder: Path, points: int, seed: int = 0, model: str = "transr"
) -> TrainingKills:
    """Kill ``points`` times; a training may be killed several times before it ends."""
    rng = random.Random(seed)
    whole = folder / "whole"
    begin = time.monotonic()
    _finish(whole, model)
    spent = time.monotonic() - begin
    expected = load_file(whole / "model.safetensors")
    seen = TrainingKills()
    while seen.kills < points:
        place = folder / f"cut-{seen.resumed}"
        for _ in range(rng.choice((1, 1, 2, 3))):
            if seen.kills < points:
                seen.kills += _killed(place, model, rng.uniform(0.05, 0.95) * spent)
        try:
            _finish(place, model)
        except AssertionError as error:
            seen.problems += (str(error),)
            continue
        seen.resumed += 1
        found = load_file(place / "model.safetensors")
        same = found.keys() == expected.keys() and all(
            found[name].equal(expected[name]) for name in expected
        )
        seen.identical += same
        if not same:
            seen.problems += (f"training {seen.resumed} ended in other weights",)
        shutil.rmtree(place)
    return seen


def _killed(place: Path, model: str, after: float) -> bool:
    process = fresh_process(train_in, str(place), model)
    process.join(after)
    process.kill()
    process.join()
    return process.exitcode == -signal.SIGKILL


def _finish(place: Path, model: str) -> None:
    process = fresh_process(train_in, str(place), model)
    process.join(300)
    assert process.exitcode == 0, f"a resumed training ended with {process.exitcode}"

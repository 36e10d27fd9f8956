"""Kill -9 at every stage of a checkpoint, and at some random moments; ``make faults`` has more."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from faults.service_kills import kill_services
from faults.training_kills import fresh_process, kill_trainings
from metatkgr.training.checkpoint import Position, load_checkpoint, save_checkpoint

STAGES = ("before writing", "half written", "written", "synced", "renamed")


def save(path: str, step: int, die_at: str = "") -> None:
    """Write a checkpoint; be killed at a stage of it."""
    from metatkgr.training import checkpoint

    def die() -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    save_file, sync, replace = checkpoint.save_file, os.fsync, os.replace

    def saving(content: object, place: Path, metadata: object) -> None:
        if die_at == "before writing":
            die()
        save_file(content, place, metadata=metadata)
        if die_at == "half written":
            data = Path(place).read_bytes()
            Path(place).write_bytes(data[: len(data) // 2])
            die()
        if die_at == "written":
            die()

    def syncing(file: int) -> None:
        sync(file)
        if die_at == "synced":
            die()

    def renaming(old: object, new: object) -> None:
        replace(old, new)  # type: ignore[arg-type]
        if die_at == "renamed":
            die()

    if die_at:
        checkpoint.save_file, os.fsync, os.replace = saving, syncing, renaming  # type: ignore[assignment]
    weight = torch.nn.Parameter(torch.full((500, 4), float(step)))
    state = {"entity": weight.detach()}
    optimiser = torch.optim.Adam([weight])
    save_checkpoint(Path(path), Position(step=step), state, state, optimiser, torch.Generator())


@pytest.mark.parametrize("stage", STAGES)
def test_killed_at_any_stage_a_checkpoint_is_the_old_or_the_new_one(
    tmp_path: Path, stage: str
) -> None:
    path = tmp_path / "checkpoint.safetensors"
    save(str(path), 1)
    process = fresh_process(save, str(path), 2, stage)
    process.join(60)
    assert process.exitcode == -signal.SIGKILL
    position, weights, *_ = load_checkpoint(path)
    assert position.step == (2 if stage == "renamed" else 1)
    assert torch.equal(weights["entity"], torch.full((500, 4), float(position.step)))
    assert load_file(path)


@pytest.mark.slow
def test_a_training_that_is_killed_goes_on_to_the_same_bits(tmp_path: Path) -> None:
    seen = kill_trainings(tmp_path, points=1, seed=5, model="transe")
    assert seen.problems == ()
    assert seen.identical == seen.resumed >= 1


@pytest.mark.slow
def test_a_service_that_is_killed_forgets_nothing_it_has_acknowledged(tmp_path: Path) -> None:
    seen = kill_services(tmp_path, points=1, seed=5)
    assert seen.problems == ()
    assert seen.lost == 0

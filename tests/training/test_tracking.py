"""The trace as TensorBoard's curves."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from command_line import Run, lines_of

WORDS = ("train", "world:2000", "--model", "metatkgr", "--device", "cpu", "--set", "dimension=8")
WORDS += ("--set", "translation_epochs=2", "--set", "epochs=2")


def curves(folder: Path) -> dict[str, list[tuple[int, float]]]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder)).Reload()
    tags = events.Tags()["scalars"]
    return {tag: [(e.step, e.value) for e in events.Scalars(tag)] for tag in tags}


def test_every_number_of_the_trace_is_a_curve(run: Run, tmp_path: Path) -> None:
    out = tmp_path / "run"
    shown = run(*WORDS, "--out", out, "--track")
    assert shown.code == 0, shown.err
    drawn = curves(out / "tensorboard")
    wanted = {"meta/loss", "meta/kl", "meta/bound", "meta/validation_mrr", "meta/seconds/forward"}
    assert wanted | {"translation/loss", "translation/seconds/phase"} <= drawn.keys()
    for line in lines_of(out / "trace.jsonl"):
        points = dict(drawn[f"{line['phase']}/loss"])
        assert points[line["step"]] == pytest.approx(line["loss"])
    assert not (tmp_path / "elsewhere").exists()
    again = run(*WORDS, "--out", tmp_path / "two", "--track-to", tmp_path / "elsewhere")
    assert again.code == 0, again.err
    assert curves(tmp_path / "elsewhere").keys() == drawn.keys()


def test_an_epoch_that_is_done_again_is_drawn_once(tmp_path: Path) -> None:
    from metatkgr.training.checkpoint import Tracker

    def line(step: int, loss: float) -> dict[str, object]:
        return {"phase": "meta", "epoch": step, "epochs": 9, "step": step, "loss": loss}

    with Tracker(tmp_path) as tracker:
        for step in (1, 2, 3):
            tracker(line(step, 1.0))
    with Tracker(tmp_path) as tracker:
        for step in (2, 3, 4):
            tracker(line(step, 2.0))
    points = curves(tmp_path)["meta/loss"]
    assert points == [(1, 1.0), (2, 2.0), (3, 2.0), (4, 2.0)]


def test_without_tensorboard_one_is_told_what_to_install(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    shown = run(*WORDS, "--out", tmp_path / "run", "--track")
    assert shown.code == 2
    assert "metatkgr[track]" in shown.err
    assert not (tmp_path / "run").exists()

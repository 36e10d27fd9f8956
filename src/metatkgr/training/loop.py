"""The training loop, for every model, to be read from top to bottom."""

from __future__ import annotations

import math
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from metatkgr.data.problem import Problem
from metatkgr.errors import MetaTKGRError
from metatkgr.models.trainable import Phase, TrainableModel
from metatkgr.training.checkpoint import Position, load_checkpoint, save_checkpoint
from metatkgr.training.device import precise_to
from metatkgr.training.distributed import add_gradients, current_part, mean_over_processes
from metatkgr.training.trace import Trace

__all__ = ["DivergedError", "Validate", "train"]

Validate = Callable[[TrainableModel[Any]], float]
"""MRR of a model on the meta-validation tasks."""

CLIP = 1.0
"""Largest norm of a gradient; a larger one is scaled down."""


class DivergedError(MetaTKGRError):
    """The loss is not a finite number."""


@dataclass
class _Run:
    """The moving parts of a training."""

    model: TrainableModel[Any]
    generator: torch.Generator
    trace: Trace
    checkpoint: Path | None
    position: Position
    best: dict[str, Tensor]
    precision: str


def train(
    model: TrainableModel[Any],
    problem: Problem,
    *,
    seed: int = 0,
    validate: Validate | None = None,
    folder: Path | None = None,
    resume: bool = False,
    progress: Callable[[dict[str, Any]], object] | None = None,
    precision: str = "float32",
) -> list[dict[str, Any]]:
    """Learn the weights of a model.

    Where several processes do it together (see ``training.distributed``), each computes its part of
    every batch, all hold the same weights, and the first one writes.

    Args:
        model: gets new weights, in place.
        problem: what may be learned from.
        seed: of all randomness; on a CPU the same seed gives the same bits.
        validate: MRR on meta-validation, for early stopping; the best weights are kept.
        folder: for ``checkpoint.safetensors`` and ``trace.jsonl``; None writes nothing.
        resume: go on from the checkpoint in ``folder``, exactly.
        progress: called with each line of the trace.
        precision: of the losses, 'float32' or 'bfloat16'; weights, gradients and validation are
            float32 either way.

    Returns:
        The lines of the trace, one for each epoch.
    """
    generator = torch.Generator().manual_seed(seed)
    entities, relations = len(problem.known.entities), len(problem.known.relations)
    model.build(entities, relations, generator)
    checkpoint = folder / "checkpoint.safetensors" if folder else None
    position, optimiser_state = Position(), None
    best = model.state()
    if resume and checkpoint is not None and checkpoint.exists():
        position, weights, best, optimiser_state, state = load_checkpoint(checkpoint)
        model.load_state(weights)
        generator.set_state(state)
    writes = current_part().number == 0
    trace = Trace(folder / "trace.jsonl" if folder and writes else None, keep=position.trace_lines)
    kept = checkpoint if writes else None
    run = _Run(model, generator, trace, kept, position, best, precision)
    phases = model.phases(problem)
    while position.phase < len(phases):
        _train_phase(run, phases[position.phase], validate, optimiser_state, progress)
        optimiser_state = None
        model.load_state(run.best)
        # The parameters are new objects now, and a later phase starts from the best of this one.
        phases = model.phases(problem)
        position.phase, position.epoch = position.phase + 1, 0
        position.best_mrr, position.best_epoch, position.phase_seconds = None, 0, 0.0
    return trace.lines


def _train_phase(
    run: _Run,
    phase: Phase,
    validate: Validate | None,
    optimiser_state: dict[int, dict[str, Any]] | None,
    progress: Callable[[dict[str, Any]], object] | None,
) -> None:
    position = run.position
    optimiser = torch.optim.Adam(phase.parameters(), lr=phase.learning_rate)
    if optimiser_state:
        plain = optimiser.state_dict()
        plain["state"] = optimiser_state
        optimiser.load_state_dict(plain)
    validates = validate is not None and phase.patience > 0
    start: dict[str, Any] = {}
    if validate is not None and validates and position.phase and position.best_mrr is None:
        # What earlier phases have learned stays unless this one betters it.
        position.best_mrr = start["start_validation_mrr"] = validate(run.model)
    waited = (position.epoch - position.best_epoch) // max(phase.validate_every, 1)
    while position.epoch < phase.epochs and not (validates and waited >= phase.patience):
        begin = time.perf_counter()
        line = _train_epoch(run, phase, optimiser) | start
        start = {}
        position.epoch += 1
        line |= {"phase": phase.name, "epoch": position.epoch, "epochs": phase.epochs}
        last = position.epoch == phase.epochs
        if not validates:
            run.best = {name: value.clone() for name, value in run.model.state().items()}
        elif validate and (position.epoch % phase.validate_every == 0 or last):
            started = time.perf_counter()
            mrr = validate(run.model)
            line["validation_mrr"] = mrr
            line["seconds_validate"] = round(time.perf_counter() - started, 4)
            if position.best_mrr is None or mrr > position.best_mrr:
                position.best_mrr, position.best_epoch = mrr, position.epoch
                run.best = {name: value.clone() for name, value in run.model.state().items()}
            waited = (position.epoch - position.best_epoch) // phase.validate_every
        spent = time.perf_counter() - begin
        position.seconds += spent
        position.phase_seconds += spent
        line |= {
            "step": position.step,
            "seconds": round(position.seconds, 4),
            "seconds_phase": round(position.phase_seconds, 4),
        }
        run.trace.write(line)
        position.trace_lines = len(run.trace.lines)
        if run.checkpoint is not None:
            state = run.model.state()
            save_checkpoint(run.checkpoint, position, state, run.best, optimiser, run.generator)
        if progress:
            progress(line)


def _train_epoch(run: _Run, phase: Phase, optimiser: torch.optim.Optimizer) -> dict[str, Any]:
    """One pass over the batches of a phase; returns means over the steps and seconds by part."""
    sums: dict[str, Tensor | float] = defaultdict(float)
    seconds: dict[str, float] = defaultdict(float)
    steps = 0
    part = current_part()
    batches = iter(phase.batches(run.generator))
    while True:
        begin = time.perf_counter()
        batch = next(batches, None)
        if batch is None:
            break
        prepared = time.perf_counter()
        with precise_to(run.precision, run.model.device):
            loss = phase.loss(batch, run.generator, part)
        forward = time.perf_counter()
        optimiser.zero_grad(set_to_none=True)
        loss.value.backward()  # type: ignore[no-untyped-call]
        add_gradients(phase.parameters(), loss.share)
        backward = time.perf_counter()
        norm = torch.nn.utils.clip_grad_norm_(phase.parameters(), CLIP)
        value = mean_over_processes(loss.value.detach(), loss.share)
        if not math.isfinite(value) or not math.isfinite(float(norm)):
            raise DivergedError(
                f"the loss became {value} (gradient norm {float(norm)}) in phase "
                f"{phase.name!r}, epoch {run.position.epoch + 1}, batch {steps + 1}, step "
                f"{run.position.step + 1}; last good checkpoint: "
                f"{run.checkpoint or 'none was kept'}; try a smaller learning rate"
            )
        optimiser.step()
        done = time.perf_counter()
        steps += 1
        run.position.step += 1
        for name, number in {"loss": value, **loss.logged}.items():
            sums[name] = sums[name] + number  # of this process's part, but for the loss
        for stage, spent in (
            ("prepare", prepared - begin),
            ("forward", forward - prepared),
            ("backward", backward - forward),
            ("step", done - backward),
        ):
            seconds[stage] += spent
    line: dict[str, Any] = {name: float(total) / max(steps, 1) for name, total in sums.items()}
    return line | {f"seconds_{stage}": round(spent, 4) for stage, spent in seconds.items()}

"""How fast an epoch of RE-GCN and of RE-NET is, against loops over snapshots and questions."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from benchmarks.base import Measurement, Workload, benchmark, best_time
from metatkgr.data.problem import Problem
from metatkgr.data.world import simulate
from metatkgr.models.base import WHOLE, Phase
from metatkgr.models.baselines.regcn import REGCN, EvolutionPhase, REGCNSettings
from metatkgr.models.baselines.renet import RENET, HistoryPhase, RENETSettings
from metatkgr.models.common.recurrent import StepBatch

__all__ = ["snapshot_models"]

_SAMPLE = 64
"""Queries that the loop answers; its time for an epoch follows from them."""


@benchmark("snapshot-models")
def snapshot_models(work: Workload) -> list[Measurement]:
    """Loss and gradient of an epoch, all windows and histories of a batch at once."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    facts, dimension = (1000, 8) if work.quick else (10_000, 128)
    problem = Problem.of(simulate(facts=facts, seed=1), shots=3)
    size = f"{len(problem.known):,} directed facts, d = {dimension}, {device}"
    return [
        _regcn(problem, work, dimension, device, size),
        _renet(problem, work, dimension, device, size),
    ]


def _regcn(
    problem: Problem, work: Workload, dimension: int, device: torch.device, size: str
) -> Measurement:
    """Batches of several windows, against one window after another."""
    settings = REGCNSettings(dimension=dimension, dropout=0.0)
    model = REGCN(settings, device=device)
    _build(model, problem)
    phase = EvolutionPhase(model, problem.known)
    batches = list(phase.batches(torch.Generator().manual_seed(0)))
    single = [part for batch in batches for part in _steps_of(batch)]
    fast, _ = best_time(_pass(phase, batches, device), work.repeats)
    slow, _ = best_time(_pass(phase, single, device), work.repeats)
    note = (
        f"{len(batches)} batches of up to {settings.steps_at_once} of {len(single)} steps; {size}"
    )
    return Measurement("epoch of RE-GCN", "s", fast, slow, "a loop over steps", note)


def _renet(
    problem: Problem, work: Workload, dimension: int, device: torch.device, size: str
) -> Measurement:
    """Histories of a batch at once, against one query after another."""
    settings = RENETSettings(dimension=dimension, dropout=0.0)
    model = RENET(settings, device=device)
    _build(model, problem)
    phase = HistoryPhase(model, problem.known)
    batches = list(phase.batches(torch.Generator().manual_seed(0)))
    single = list(torch.split(batches[0][:_SAMPLE], 1))
    fast, _ = best_time(_pass(phase, batches, device), work.repeats)
    slow, _ = best_time(_pass(phase, single, device), work.repeats)
    epoch = slow / len(single) * len(problem.known)
    note = f"the loop was timed on {len(single)} questions; {size}"
    return Measurement("epoch of RE-NET", "s", fast, epoch, "a loop over questions", note)


def _build(model: REGCN | RENET, problem: Problem) -> None:
    sizes = len(problem.known.entities), len(problem.known.relations)
    model.build(*sizes, torch.Generator().manual_seed(0))


def _steps_of(batch: StepBatch) -> list[StepBatch]:
    """The same facts, each step by itself."""
    return [
        StepBatch(batch.time[row : row + 1], facts.new_zeros(len(facts)), batch.fact[facts])
        for row in range(len(batch.time))
        for facts in [(batch.step == row).nonzero().squeeze(1)]
    ]


def _pass(phase: Phase, batches: Sequence[object], device: torch.device) -> Callable[[], None]:
    """Loss and gradient of every batch."""

    def run() -> None:
        generator = torch.Generator().manual_seed(0)
        for batch in batches:
            loss = phase.loss(batch, generator, WHOLE)
            loss.value.backward()  # type: ignore[no-untyped-call]
        for parameter in phase.parameters():
            parameter.grad = None
        if device.type == "cuda":
            torch.cuda.synchronize(device)

    return run

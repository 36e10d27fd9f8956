"""The training loop, for every model, to be read from top to bottom."""

from __future__ import annotations

import time
import zlib
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from metatkgr.data.problem import Problem
from metatkgr.errors import MetaTKGRError, SettingsError
from metatkgr.models.base import Phase, TrainableModel
from metatkgr.training.checkpoint import (
    Position,
    Trace,
    check_fit,
    check_optimiser,
    kept_stage,
    load_checkpoint,
    save_checkpoint,
)
from metatkgr.training.distributed import (
    SharedLoss,
    current_part,
    file_of_the_first,
    sum_over_processes,
)

__all__ = [
    "PRECISIONS",
    "DivergedError",
    "Validate",
    "choose_precision",
    "fast_products",
    "train",
]

Validate = Callable[[TrainableModel[Any]], float]
"""MRR of a model on the meta-validation tasks."""

PRECISIONS = ("auto", "float32", "tf32", "bfloat16")
CLIP = 1.0
"""Largest norm of a gradient; a larger one is scaled down."""
_LOOK_EVERY = 64
"""Steps between two looks at whether the losses are finite."""


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
    seed: int
    stages: Path | None


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
    stages: Path | None = None,
) -> list[dict[str, Any]]:
    """Learn the weights of a model.

    Where several processes do it together (see ``training.distributed``), each computes its part of
    every batch, all hold the same weights, and the first one writes.

    Args:
        model: gets new weights, in place.
        problem: what may be learned from.
        seed: of all randomness. On a CPU the same seed and number of threads give the same bits, on
            one kind of processor with one version of PyTorch; another number of threads adds up
            matrix products in another order. On a GPU sums may differ in their last digits.
        validate: MRR on meta-validation, for early stopping; the best weights are kept.
        folder: for ``checkpoint.safetensors`` and ``trace.jsonl``; None writes nothing.
        resume: go on from the checkpoint in ``folder``, exactly.
        progress: called with each line of the trace.
        precision: of the losses, 'float32', 'tf32' or 'bfloat16'; weights and validation are
            float32 in any case.
        stages: folder of first stages that several models share, each trained once (see
            ``training.checkpoint``); None: always train.

    Returns:
        The lines of the trace, one for each epoch.
    """
    generator = torch.Generator().manual_seed(seed)
    entities, relations = len(problem.known.entities), len(problem.known.relations)
    model.build(entities, relations, generator)
    if model.pretrained:
        model.load_pretrained(problem.known.base)
    checkpoint = folder / "checkpoint.safetensors" if folder else None
    position, optimiser_state = Position(), None
    best = _copied(model)
    if resume and checkpoint is not None:
        with file_of_the_first(checkpoint) as left:
            if left is not None:
                position, weights, best, optimiser_state, state = load_checkpoint(left)
                check_fit(str(checkpoint), weights, best)
                check_fit(str(checkpoint), best, model.state_dict())
                model.load_state_dict(weights)
                generator.set_state(state)
    writes = current_part().number == 0
    trace = Trace(folder / "trace.jsonl" if folder and writes else None, position.lines)
    position.lines = trace.lines  # they grow together
    kept = checkpoint if writes else None
    run = _Run(model, generator, trace, kept, position, best, precision, seed, stages)
    phases = model.phases(problem)
    with _repeatable(model.device):
        while position.phase < len(phases):
            phase = phases[position.phase]
            if position.epoch == 0:
                # A generator of its own: what a phase draws does not hang on what came before it.
                generator.manual_seed((seed << 32 ^ zlib.crc32(phase.name.encode())) % 2**63)
            if not _taken_over(run, phase):
                _train_phase(run, phase, validate, optimiser_state, progress)
                _hand_on(run, phase)
            optimiser_state = None
            model.load_state_dict(run.best)
            # A later phase starts from the best of this one.
            phases = model.phases(problem)
            position.phase, position.epoch = position.phase + 1, 0
            position.best_mrr, position.best_epoch, position.phase_seconds = None, 0, 0.0
    return trace.lines


@contextmanager
def _repeatable(device: torch.device) -> Iterator[None]:
    """Within it, threads of a CPU add to one number in a fixed order.

    Without it they race where a gradient flows back through ``x[rows]``, and the same training
    ends in other bits each time.
    """
    before = torch.are_deterministic_algorithms_enabled()
    warned = torch.is_deterministic_algorithms_warn_only_enabled()
    filled = torch.utils.deterministic.fill_uninitialized_memory  # type: ignore[attr-defined]
    if device.type == "cpu":
        torch.use_deterministic_algorithms(True)
        torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before, warn_only=warned)
        torch.utils.deterministic.fill_uninitialized_memory = filled  # type: ignore[attr-defined]


def _taken_over(run: _Run, phase: Phase) -> bool:
    """Whether another training has done this phase already; then its weights are taken."""
    position = run.position
    if position.phase or position.epoch:
        return False
    kept = kept_stage(run.stages, run.model, phase, run.seed, run.precision)
    outcome = kept.load() if kept else None
    if outcome is None:
        return False
    weights, lines = outcome
    run.best = _copied(run.model) | {k: w.to(run.model.device) for k, w in weights.items()}
    for line in lines:
        run.trace.write(line)
    position.step, position.seconds = lines[-1]["step"], lines[-1]["seconds"]
    return True


def _hand_on(run: _Run, phase: Phase) -> None:
    """Keep what the first phase has learned for other trainings, where it is shared."""
    if run.position.phase or current_part().number:
        return
    kept = kept_stage(run.stages, run.model, phase, run.seed, run.precision)
    lines = [line for line in run.trace.lines if line["phase"] == phase.name]
    if kept and lines:
        kept.save(run.best, lines)


def _copied(model: TrainableModel[Any]) -> dict[str, Tensor]:
    """The weights as they are now, whatever becomes of the model's."""
    return {name: value.clone() for name, value in model.state_dict().items()}


def _train_phase(
    run: _Run,
    phase: Phase,
    validate: Validate | None,
    optimiser_state: dict[int, dict[str, Any]] | None,
    progress: Callable[[dict[str, Any]], object] | None,
) -> None:
    position = run.position
    optimiser = torch.optim.Adam(
        phase.parameters(), lr=phase.learning_rate, fused=run.model.device.type == "cuda"
    )
    if optimiser_state:
        check_optimiser(optimiser_state, phase.parameters())
        plain = optimiser.state_dict()
        plain["state"] = optimiser_state
        optimiser.load_state_dict(plain)
    shared = SharedLoss(phase)
    validates = validate is not None and phase.patience > 0
    start: dict[str, Any] = {}
    if validate is not None and validates and position.phase and position.best_mrr is None:
        # What earlier phases have learned stays unless this one betters it.
        position.best_mrr = start["start_validation_mrr"] = validate(run.model)
    waited = (position.epoch - position.best_epoch) // max(phase.validate_every, 1)
    while position.epoch < phase.epochs and not (validates and waited >= phase.patience):
        begin = time.perf_counter()
        with fast_products(run.precision, run.model.device):
            line = _train_epoch(run, phase, shared, optimiser) | start
        start = {}
        position.epoch += 1
        line |= {"phase": phase.name, "epoch": position.epoch, "epochs": phase.epochs}
        last = position.epoch == phase.epochs
        if not validates:
            run.best = _copied(run.model)
        elif validate and (position.epoch % phase.validate_every == 0 or last):
            started = time.perf_counter()
            mrr = validate(run.model)
            line["validation_mrr"] = mrr
            line["seconds_validate"] = round(time.perf_counter() - started, 4)
            if position.best_mrr is None or mrr > position.best_mrr:
                position.best_mrr, position.best_epoch = mrr, position.epoch
                run.best = _copied(run.model)
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
        if run.checkpoint is not None:
            state = run.model.state_dict()
            save_checkpoint(run.checkpoint, position, state, run.best, optimiser, run.generator)
        if progress:
            progress(line)


def _train_epoch(
    run: _Run, phase: Phase, shared: SharedLoss, optimiser: torch.optim.Optimizer
) -> dict[str, Any]:
    """One pass over the batches of a phase; returns means over the steps and seconds by part.

    Nothing here waits for the device but a look at the last few losses now and then: a wait at
    every step would leave a GPU idle while the next step is prepared.
    """
    sums: dict[str, Tensor | float] = defaultdict(float)
    seconds: dict[str, float] = defaultdict(float)
    steps = 0
    unseen: list[Tensor] = []  # (2,) loss and gradient norm of each step since the last look
    batches = iter(phase.batches(run.generator))
    while True:
        begin = time.perf_counter()
        batch = next(batches, None)
        if batch is None:
            break
        prepared = time.perf_counter()
        with _precise_to(run.precision, run.model.device):
            value, loss = shared(batch, run.generator)
        forward = time.perf_counter()
        optimiser.zero_grad(set_to_none=True)
        value.backward()  # type: ignore[no-untyped-call]
        backward = time.perf_counter()
        norm = torch.nn.utils.clip_grad_norm_(phase.parameters(), CLIP)
        unseen.append(torch.stack([loss.value.detach().float() * loss.share, norm.float()]))
        optimiser.step()
        done = time.perf_counter()
        steps += 1
        run.position.step += 1
        for name, number in loss.logged.items():
            sums[name] = sums[name] + number  # of this process's part
        if len(unseen) == _LOOK_EVERY:
            sums["loss"] += _checked(run, phase, unseen, steps)
        for stage, spent in (
            ("prepare", prepared - begin),
            ("forward", forward - prepared),
            ("backward", backward - forward),
            ("step", done - backward),
        ):
            seconds[stage] += spent
    sums["loss"] += _checked(run, phase, unseen, steps)
    line: dict[str, Any] = {name: float(total) / max(steps, 1) for name, total in sums.items()}
    return line | {f"seconds_{stage}": round(spent, 4) for stage, spent in seconds.items()}


def _checked(run: _Run, phase: Phase, unseen: list[Tensor], steps: int) -> float:
    """The sum of the losses of the last steps, which must all be finite; forgets them."""
    if not unseen:
        return 0.0
    losses, norms = torch.stack(unseen).T
    values = torch.stack([sum_over_processes(losses), norms], dim=1).cpu()
    first = steps - len(unseen)
    unseen.clear()
    bad = ~torch.isfinite(values).all(1)
    if bool(bad.any()):
        first_bad = int(bad.nonzero()[0])
        value, norm = values[first_bad].tolist()
        step = run.position.step - len(values) + first_bad + 1
        raise DivergedError(
            f"the loss became {value} (gradient norm {norm}) in phase {phase.name!r}, epoch "
            f"{run.position.epoch + 1}, batch {first + first_bad + 1}, step {step}; last good "
            f"checkpoint: {run.checkpoint or 'none was kept'}; try a smaller learning rate"
        )
    return float(values[:, 0].double().sum())


def choose_precision(name: str, device: torch.device | str = "cpu") -> str:
    """The precision of the losses, 'float32', 'tf32' or 'bfloat16', that is meant by ``name``.

    'auto' is tf32 on a GPU: products with a table of all entities are most of many models' work,
    and there their factors lose digits that no training misses. It is float32 on a CPU.
    """
    if name not in PRECISIONS:
        raise SettingsError(f"precision is one of {', '.join(PRECISIONS)}, not {name!r}")
    if name != "auto":
        return name
    return "tf32" if torch.device(device).type == "cuda" else "float32"


def _precise_to(precision: str, device: torch.device) -> AbstractContextManager[object]:
    """Within it, matrix products are computed to ``precision``.

    Weights, gradients and the optimiser stay in float32, and so does all scoring for an evaluation:
    a squared distance written as -‖q‖² - ‖c‖² + 2 q·c is a small difference of large numbers.
    """
    if precision == "bfloat16":
        return torch.autocast(device.type, dtype=torch.bfloat16)
    return nullcontext()


@contextmanager
def fast_products(precision: str, device: torch.device) -> Iterator[None]:
    """With 'tf32', a GPU rounds the factors of matrix products to 11 digits, sums staying exact.

    Unlike ``_precise_to``, it is meant for the backward pass too. Nothing changes on a CPU.
    """
    if precision != "tf32" or device.type != "cuda":
        yield
        return
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)

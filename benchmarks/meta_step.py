"""How fast a meta step is: all tasks at once, against a loop over tasks."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from benchmarks.base import Measurement, Workload, benchmark, best_time
from metatkgr.graph.sampler import Neighbours
from metatkgr.models.common.few_shot import PaddedFacts, ranking_loss
from metatkgr.models.metatkgr.adaptation import TaskBatch, TaskFacts, adapt, task_loss
from metatkgr.models.metatkgr.encoder import ENCODER, TemporalEncoder, encoder_part

__all__ = ["meta_step"]

_ENTITIES, _RELATIONS, _STEPS = 10_000, 20, 200
_RATE = 0.01
_SUPPORTS, _QUERIES, _NEIGHBOURS = 3, 8, 16
_TASKS, _MANY = 64, 1024


@benchmark("meta-step")
def meta_step(work: Workload) -> list[Measurement]:
    """Inner step, query loss and second-order gradient, against plain autograd task by task."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    tasks, dimension = (4, 16) if work.quick else (_TASKS, 128)
    encoder = TemporalEncoder(dimension=dimension, dropout=0.0)
    parameters = _parameters(encoder, device)
    batch = _random_batch(tasks, device)

    fast, ours = best_time(
        _timed(lambda: _batched(encoder, parameters, batch), device), 1 + work.repeats
    )
    slow, expected = best_time(
        _timed(lambda: _looped(encoder, parameters, batch), device), work.repeats
    )
    for key, gradient in ours.items():
        if not torch.allclose(gradient, expected[key], rtol=1e-3, atol=1e-5):
            raise AssertionError(f"the batched step and the loop disagree on {key}")
    size = f"d = {dimension}, {_NEIGHBOURS} neighbours, {_SUPPORTS} + {_QUERIES} facts, {device}"
    against = "a loop over tasks"
    note = f"{tasks} tasks, second order, {size}; gradients equal"
    result = [Measurement("meta step", "s", fast, slow, against, note)]
    if device.type == "cuda" and not work.quick:
        many = _random_batch(_MANY, device)
        batched, _ = best_time(
            _timed(lambda: _batched(encoder, parameters, many), device), 1 + work.repeats
        )
        note = f"{_MANY:,} tasks at once, the loop over {tasks}; {size}"
        each = Measurement("meta step per task", "s", batched / _MANY, slow / tasks, against, note)
        result.append(each)
    return result


def _batched(
    encoder: TemporalEncoder, parameters: dict[str, Tensor], batch: TaskBatch
) -> dict[str, Tensor]:
    """The gradient of the mean query loss, all tasks at once."""
    adapted = adapt(encoder, parameters, batch, ranking_loss, learning_rate=_RATE)
    loss = task_loss(encoder, adapted, batch.query, ranking_loss).mean()
    return dict(zip(parameters, torch.autograd.grad(loss, list(parameters.values())), strict=True))


def _looped(
    encoder: TemporalEncoder, parameters: dict[str, Tensor], batch: TaskBatch
) -> dict[str, Tensor]:
    """The same with plain autograd, one task after another."""
    rows = batch.rows(parameters)
    losses = []
    for task in range(len(batch)):
        inner = {**encoder_part(parameters), **{key: value[task] for key, value in rows.items()}}
        fitted = task_loss(encoder, inner, _one(batch.support, task), ranking_loss)
        gradients = torch.autograd.grad(fitted, list(inner.values()), create_graph=True)
        moved = {
            key: value - _RATE * gradient
            for (key, value), gradient in zip(inner.items(), gradients, strict=True)
        }
        losses.append(task_loss(encoder, moved, _one(batch.query, task), ranking_loss))
    loss = torch.stack(losses).mean()
    return dict(zip(parameters, torch.autograd.grad(loss, list(parameters.values())), strict=True))


def _one(facts: TaskFacts, task: int) -> TaskFacts:
    """The facts of one task, without the task axis."""
    roots = facts.roots.each(lambda column: column[task])
    roots = roots._replace(ages=facts.roots.ages[task])
    return TaskFacts(roots, *(column[task] for column in facts[1:]))


def _timed(
    work: Callable[[], dict[str, Tensor]], device: torch.device
) -> Callable[[], dict[str, Tensor]]:
    """``work``, which ends when the device has ended too."""

    def run() -> dict[str, Tensor]:
        result = work()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        return result

    return run


def _parameters(encoder: TemporalEncoder, device: torch.device) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(0)
    parameters = {}
    for name, value in encoder.initial(generator).items():
        encoder.register_parameter(name, nn.Parameter(value.to(device)))
        parameters[ENCODER + name] = value
    for name, size in (("entity", _ENTITIES), ("relation", _RELATIONS)):
        noise = torch.randn(size, encoder.dimension, generator=generator)
        parameters[name] = noise * encoder.dimension**-0.5
    return {key: value.to(device).requires_grad_() for key, value in parameters.items()}


def _random_batch(tasks: int, device: torch.device) -> TaskBatch:
    """Facts and full neighbourhoods at random, which share no rows: the most a task can touch."""
    generator = torch.Generator().manual_seed(1)

    def draw(high: int, *shape: int) -> Tensor:
        return torch.randint(high, shape, generator=generator).to(device)

    def sample(entity: Tensor, time: Tensor, *, own: bool | Tensor) -> Neighbours:
        shape = (len(entity), _NEIGHBOURS)
        return Neighbours(
            draw(_ENTITIES, *shape),
            draw(2 * _RELATIONS, *shape),
            draw(_STEPS, *shape),
            torch.ones(shape, dtype=torch.bool, device=device),
        )

    def facts(count: int) -> PaddedFacts:
        shape = (tasks, count)
        every = torch.ones(shape, dtype=torch.bool, device=device)
        return PaddedFacts(
            draw(_ENTITIES, tasks, 1).expand(shape),
            draw(2 * _RELATIONS, *shape),
            draw(_ENTITIES, *shape),
            draw(_ENTITIES, *shape, 1),
            every.unsqueeze(-1),
            draw(_STEPS, *shape),
            every,
        )

    return TaskBatch.build(
        facts(_SUPPORTS), facts(_QUERIES), sample, entities=_ENTITIES, relations=_RELATIONS
    )

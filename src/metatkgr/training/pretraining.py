r"""Learns the weights of ``evidence`` that all relations share, from many graphs at once.

Examples are read from each graph as its own training would read them, with several K; in every
batch each graph has the same part, whatever its size. Features are brought to mean 0 and deviation
1 over all graphs together, so that they mean the same on a graph that is not among them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, replace
from typing import NamedTuple

import torch
from torch import Tensor

from metatkgr.data.facts import Facts
from metatkgr.data.problem import Problem
from metatkgr.data.sources import refuse_test_graph
from metatkgr.errors import DataError
from metatkgr.models.evidence.pretrained import NONE, SHARED, Graph, Pretrained
from metatkgr.models.evidence.ranker import Ranker, initial_weights
from metatkgr.models.evidence.settings import EvidenceSettings
from metatkgr.models.evidence.training import (
    ExampleReader,
    Examples,
    answer_loss,
    example_sets,
)

__all__ = ["SETTINGS", "SHOTS", "GraphExamples", "fit", "read_graph"]

SETTINGS = EvidenceSettings(
    start=NONE, train_queries=200, earlier_queries=120, support_queries=30, epochs=4
)
"""Of the examples of each graph and K, and of their use."""
SHOTS: tuple[int | str, ...] = (1, 2, 3, "random")


class GraphExamples(NamedTuple):
    """What one graph teaches."""

    graph: Graph
    examples: Examples
    """All relations as one: nothing is learned of a single one."""


def read_graph(
    facts: Facts,
    settings: EvidenceSettings = SETTINGS,
    *,
    shots: Sequence[int | str] = SHOTS,
    seed: int = 0,
    device: torch.device | str = "cpu",
) -> GraphExamples:
    """The examples of a graph, as a training on it would read them.

    Only what a training may use: neither queries of meta-validation nor of meta-test.

    Args:
        facts: the graph.
        settings: how many examples of each K.
        shots: each K.
        seed: of the choice of examples.
        device: where to read.

    Raises:
        DataError: there is nothing to learn from, or it is a test graph.
    """
    refuse_test_graph(facts.name, "learned from")
    parts: list[Examples] = []
    for number in shots:
        problem = Problem.of(facts, shots=number, seed=seed)
        sets = example_sets(problem, settings, seed)
        read = ExampleReader(sets, problem.known, settings, torch.device(device))
        parts += map(read, read.pieces())
    if not sum(len(part.relation) for part in parts):
        raise DataError(f"{facts.name}: no entity has more facts than one, nothing to learn from")
    examples = Examples.cat(parts)
    alike = examples._replace(relation=torch.zeros_like(examples.relation))
    return GraphExamples(Graph.of(facts), alike)


def fit(
    graphs: Sequence[GraphExamples],
    settings: EvidenceSettings = SETTINGS,
    *,
    seed: int = 0,
    progress: Callable[[int, float], object] | None = None,
) -> Pretrained:
    """Learn the shared weights.

    Args:
        graphs: of each its examples, on one device.
        settings: ensemble, width, epochs, batches.
        seed: of the start and of the batches.
        progress: called after each epoch with its number, from 1, and its mean loss.
    """
    generator = torch.Generator().manual_seed(seed)
    examples = Examples.cat([graph.examples for graph in graphs])
    device = examples.features.device
    start = initial_weights(settings, 1, generator)
    ranker = Ranker({name: value.to(device) for name, value in start.items()})
    _set_scale(ranker, (graph.examples.features for graph in graphs))
    ranker.relation.requires_grad_(False)
    learned = [weight for weight in ranker.parameters() if weight.requires_grad]
    sizes = [len(graph.examples.relation) for graph in graphs]
    # Each graph as often as any other, each of its examples by its weight.
    chance = torch.cat([g.examples.weight / g.examples.weight.sum() for g in graphs]).cpu()
    examples = examples._replace(weight=torch.ones_like(examples.weight))
    steps = -(-sum(sizes) // settings.batch_size)
    optimiser = torch.optim.Adam(learned, settings.learning_rate)
    total = settings.epochs * steps
    schedule = torch.optim.lr_scheduler.LambdaLR(optimiser, lambda step: 1 - step / total)
    for epoch in range(1, settings.epochs + 1):
        losses = 0.0
        for _ in range(steps):
            rows = torch.multinomial(
                chance, settings.batch_size, replacement=True, generator=generator
            )
            loss = answer_loss(ranker, examples.some(rows.to(device)))
            optimiser.zero_grad()
            (loss + ranker.penalty(settings)).backward()  # type: ignore[no-untyped-call]
            optimiser.step()
            schedule.step()
            losses += float(loss.detach()) / settings.members
        if progress:
            progress(epoch, losses / steps)
    state = ranker.state_dict()
    weights = {name: state[name].cpu() for name in SHARED}
    about = asdict(replace(settings, start=NONE)) | {"seed": seed}
    return Pretrained(weights, [graph.graph for graph in graphs], about)


def _set_scale(ranker: Ranker, features: Iterable[Tensor]) -> None:
    """Mean and deviation over all graphs, each counting the same."""
    moments = [
        torch.stack([some.double().mean(0), some.double().square().mean(0)]) for some in features
    ]
    mean, square = torch.stack(moments).mean(0)
    ranker.set_scale(mean, (square - mean.square()).clamp(min=0).sqrt())

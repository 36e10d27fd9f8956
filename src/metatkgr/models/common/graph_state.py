"""Graph networks over the steps of a graph: an entity in a step, and the state of the whole graph.

RE-NET's, but nothing here knows of its histories: relational graph convolutions around nodes
(entity, step), and a recurrent state of all that happened, learned by predicting who acts next.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch
from torch import Tensor, nn

from metatkgr.data.visibility import VisibleFacts
from metatkgr.graph.index import TemporalIndex
from metatkgr.graph.ragged import expand_ranges
from metatkgr.graph.snapshots import ActiveSteps
from metatkgr.models.base import WHOLE, Loss, Part
from metatkgr.models.common.recurrent import Noise, gru_step, sum_rows

__all__ = ["GlobalPhase", "StepNodes", "aggregate", "global_states"]

_ALL_LINKS = 1 << 40
_BLOCK = 16
"""Consecutive steps that are predicted together: their histories overlap."""
_ROWS = 32
"""States that are computed together. The size is fixed and the last block is filled up: a matrix
product of another size may round differently, and a state must not change when later steps are
added."""


def aggregate(
    weights: Mapping[str, Tensor],
    part: str,
    active: ActiveSteps,
    roots: Tensor,
    cap: int,
    noise: Noise,
) -> Tensor:
    """Two graph convolutions in the step of each root, read at the root.

    Args:
        weights: of the model; those whose names begin with ``part`` are used.
        part: 'step.' or 'global.'.
        active: the nodes (entity, step) and their links.
        roots: (U,) distinct nodes.
        cap: the most links of one node.
        noise: dropout, after each convolution.

    Returns:
        (U, d).
    """
    table = weights["global.entity" if part == "global." else "entity"]
    row, link = active.links(roots, cap)
    inner, position = torch.unique(torch.cat([roots, active.met[link]]), return_inverse=True)
    inner_row, inner_link = active.links(inner, cap)
    hidden = _convolve(
        weights,
        f"{part}layer0.",
        table.index_select(0, active.entity[inner]),
        table.index_select(0, active.entity[active.met[inner_link]]),
        active.relation[inner_link],
        inner_row,
        active.degree[inner].clamp(1, cap),
    )
    hidden = noise.drop(hidden.relu())
    result = _convolve(
        weights,
        f"{part}layer1.",
        hidden.index_select(0, position[: len(roots)]),
        hidden.index_select(0, position[len(roots) :]),
        active.relation[link],
        row,
        active.degree[roots].clamp(1, cap),
    )
    return noise.drop(result)


def _convolve(
    weights: Mapping[str, Tensor],
    layer: str,
    own: Tensor,
    sent: Tensor,
    relation: Tensor,
    row: Tensor,
    degree: Tensor,
) -> Tensor:
    """(U, d) mean over a node's links of W_r x, and W_0 of itself; W_r mixes a few bases.

    Args:
        weights: ``mix`` (2R, b), ``bases`` (b·d, d), ``loop`` (d, d).
        layer: what the names of the weights begin with.
        own: (U, d) vectors of the nodes.
        sent: (L, d) vectors at the other ends of the links.
        relation: (L,) directed relations.
        row: (L,) the node that each link belongs to.
        degree: (U,) number of links, at least 1.
    """
    mix = weights[f"{layer}mix"].index_select(0, relation)
    message = (mix.unsqueeze(2) * sent.unsqueeze(1)).flatten(1)
    mean = sum_rows(len(own), row, message) / degree.unsqueeze(1)
    return mean @ weights[f"{layer}bases"] + own @ weights[f"{layer}loop"]


class StepNodes:
    """The public nodes of each step with any: who was active in it.

    Args:
        active: nodes by entity and time.
    """

    def __init__(self, active: ActiveSteps) -> None:
        time, self.node = torch.sort(active.time[: active.first_own], stable=True)
        self.steps, count = torch.unique_consecutive(time, return_counts=True)
        self.start = torch.cat([count.new_zeros(1), count.cumsum(0)])

    def between(self, low: int, high: int) -> tuple[Tensor, Tensor]:
        """Nodes of the steps number ``low`` to ``high``, not included: (row of step, node)."""
        row, position = expand_ranges(self.start[low:high], self.start[low + 1 : high + 1])
        return row, self.node[position]


def _pooled(
    weights: Mapping[str, Tensor],
    active: ActiveSteps,
    nodes: StepNodes,
    low: int,
    high: int,
    noise: Noise,
) -> Tensor:
    """(high - low, d) the maximum over the entities of each step."""
    row, node = nodes.between(low, high)
    vectors = aggregate(weights, "global.", active, node, _ALL_LINKS, noise)
    result = vectors.new_full((high - low, vectors.shape[1]), -torch.inf)
    return result.scatter_reduce(0, row.unsqueeze(1).expand_as(vectors), vectors, "amax")


def _read(weights: Mapping[str, Tensor], pooled: Tensor, window: Tensor) -> Tensor:
    """(B, d) a GRU over windows of steps.

    Args:
        weights: of the global model.
        pooled: (S, d) one row for each step.
        window: (B, m) rows of ``pooled``, oldest first; negative for none.
    """
    inputs = pooled @ weights["global.input"] + weights["global.input_bias"]
    hidden = torch.zeros(len(window), pooled.shape[1], device=pooled.device)
    for row in window.unbind(1):
        moved = gru_step(
            inputs.index_select(0, row.clamp(min=0)),
            hidden,
            weights["global.hidden"],
            weights["global.hidden_bias"],
        )
        hidden = torch.where((row >= 0).unsqueeze(1), moved, hidden)
    return hidden


@torch.no_grad()
def global_states(
    weights: Mapping[str, Tensor], active: ActiveSteps, history: int, *, learned: bool = True
) -> Tensor:
    """The state of the graph after every step.

    Each step is pooled by itself and states are read in blocks of one size, so that a state is the
    same to the last bit whatever comes after it.

    Args:
        weights: of the model.
        active: the nodes of the public facts.
        history: how many steps a state looks back on, its own included.
        learned: False gives zeros.

    Returns:
        (T + 1, d) by step; zero for steps without facts, and in the last row, for 'no step'.
    """
    dimension = weights["global.entity"].shape[1]
    device = active.index.device
    states = torch.zeros(active.index.steps + 1, dimension, device=device)
    if not learned or active.first_own == 0:
        return states
    nodes = StepNodes(active)
    silent = Noise(None, device, 0.0)
    count = len(nodes.steps)
    pooled = torch.zeros(-(-count // _ROWS) * _ROWS, dimension, device=device)
    for number in range(count):
        pooled[number] = _pooled(weights, active, nodes, number, number + 1, silent)[0]
    back = torch.arange(1 - history, 1, device=device)
    for begin in range(0, count, _ROWS):
        low = max(begin + 1 - history, 0)
        window = torch.arange(begin, begin + _ROWS, device=device)[:, None] + back
        end = min(begin + _ROWS, count)
        rows = _read(weights, pooled[low : begin + _ROWS], (window - low).clamp(min=-1))
        states[nodes.steps[begin:end]] = rows[: end - begin]
    return states


class GlobalPhase:
    """Learns the state of the graph: after the steps before, who acts in the next one?

    Args:
        weights: of the model.
        known: the facts to learn from.
        device: where to compute.
        epochs: passes over the steps.
        learning_rate: of Adam.
        history: how many steps a state looks back on.
        dropout: share of the numbers that are set to zero.
    """

    name = "global"
    patience = 0
    validate_every = 1

    def __init__(
        self,
        weights: dict[str, nn.Parameter],
        known: VisibleFacts,
        device: torch.device,
        *,
        epochs: int,
        learning_rate: float,
        history: int,
        dropout: float,
    ) -> None:
        self.weights, self.known, self.device = weights, known, device
        self.epochs, self.learning_rate = epochs, learning_rate
        self.history, self.dropout = history, dropout
        self.active: ActiveSteps | None = None

    def parameters(self) -> list[nn.Parameter]:
        """The weights of the global model."""
        return [self.weights[k] for k in sorted(self.weights) if k.startswith("global.")]

    def batches(self, generator: torch.Generator) -> Iterator[tuple[int, int]]:
        """Blocks of consecutive steps, (first, end), in random order; the first has no past."""
        if self.active is None:
            self.active = ActiveSteps(TemporalIndex.of(self.known, device=self.device))
            self.nodes = StepNodes(self.active)
        count = len(self.nodes.steps)
        starts = torch.arange(1, count, _BLOCK)
        for begin in starts[torch.randperm(len(starts), generator=generator)].tolist():
            yield begin, min(begin + _BLOCK, count)

    def loss(self, batch: tuple[int, int], generator: torch.Generator, part: Part = WHOLE) -> Loss:
        """Cross-entropy between the forecast and the observed shares of all entities."""
        assert self.active is not None
        begin, end = batch
        noise = Noise(generator, self.device, self.dropout)
        low = max(begin - self.history, 0)
        pooled = _pooled(self.weights, self.active, self.nodes, low, end - 1, noise)
        back = torch.arange(-self.history, 0, device=self.device)
        rows = torch.arange(begin, end, device=self.device)[:, None] + back
        state = _read(self.weights, pooled, (rows - low).clamp(min=-1))
        logits = state @ self.weights["global.decoder"] + self.weights["global.decoder_bias"]
        row, node = self.nodes.between(begin, end)
        facts = torch.zeros_like(logits)
        facts[row, self.active.entity[node]] = self.active.degree[node].to(logits.dtype)
        share = facts / facts.sum(1, keepdim=True)
        own_rows = part.of(end - begin)
        total = -(share * logits.log_softmax(1)).sum(1)[own_rows].sum()
        return Loss(total / max(len(range(end - begin)[own_rows]), 1), {}, part.share(end - begin))

"""RE-NET: a recurrent network over the steps in which an entity was active.

Beside it stands the recurrent state of the whole graph, learned first, by predicting who acts next.
Both read relational graph convolutions around nodes (entity, step).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Literal, Self

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from metatkgr.data.problem import Problem
from metatkgr.data.tasks import Queries
from metatkgr.data.visibility import Supports, VisibleFacts
from metatkgr.graph.index import TemporalIndex
from metatkgr.graph.ragged import expand_ranges
from metatkgr.graph.snapshots import ActiveSteps
from metatkgr.models.base import WHOLE, Loss, ModelPhase, Part, Phase, TrainableModel
from metatkgr.models.common.recurrent import Noise, glorot, gru_step, sum_rows
from metatkgr.models.registry import register
from metatkgr.settings import Amount, Count, Dropout, Rate, Sample, Settings, Weight

__all__ = [
    "RENET",
    "GlobalPhase",
    "HistoryPhase",
    "RENETSettings",
    "aggregate",
    "global_states",
    "read_history",
]

_QUERIES_AT_ONCE = 4096
"""Queries whose histories are read in one go; bounds memory."""
_ALL_LINKS = 1 << 40
_BLOCK = 16
"""Consecutive steps that are predicted together: their histories overlap."""
_ROWS = 32
"""States that are computed together. The size is fixed and the last block is filled up: a matrix
product of another size may round differently, and a state must not change when later steps are
added."""


@dataclass(frozen=True)
class RENETSettings(Settings):
    """Settings of RE-NET."""

    dimension: Count = 128
    """Length of the vectors."""
    history: Sample = 10
    """Active steps of an entity that are read, at most."""
    neighbours: Sample = 16
    """Links of an entity in one step that are read, at most; the last ones in the file."""
    bases: Count = 2
    """Matrices that those of all relations are made of."""
    dropout: Dropout = 0.5
    """Share of the numbers that are set to zero in training."""
    relation_weight: Weight = 0.1
    """Weight of the relation loss beside the entity loss."""
    global_epochs: Amount = 3
    """Passes of the global model over the known steps; 0 leaves its states at zero."""
    epochs: Count = 20
    """Passes over the known facts."""
    batch_size: Count = 2048
    """Directed facts in a batch."""
    batches: Literal["time", "random"] = "time"
    """What a batch is made of: facts of neighbouring steps ('time'), which met the same entities in
    the same steps, so that a fifth of the links is read; or of any ('random')."""
    learning_rate: Rate = 0.003
    """Of Adam; the authors' is 0.001 (preset 'paper'), which starts more slowly."""
    patience: Amount = 4
    """Validations without a better MRR before training stops; 0: train all epochs."""
    validate_every: Count = 1
    """Epochs between validations."""


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


def read_history(
    weights: Mapping[str, Tensor],
    active: ActiveSteps,
    world: Tensor,
    queries: tuple[Tensor, Tensor, Tensor],
    settings: RENETSettings,
    noise: Noise,
) -> tuple[Tensor, Tensor]:
    """Logits of entities and relations for B queries; the equations are at :class:`RENET`.

    Args:
        weights: of the model.
        active: the steps in which entities were active.
        world: (T + 1, d) the global state after every step 0..T-1; and zeros.
        queries: entity, directed relation and time, (B,) each.
        settings: lengths.
        noise: dropout.

    Returns:
        (B, E) logits of the answer, and (B, 2R) of the relation, which does not know the query's.
    """
    entity, relation, time = queries
    node, mask = active.before(entity, time, settings.history)
    roots, root = torch.unique(node, return_inverse=True)
    met = aggregate(weights, "step.", active, roots, settings.neighbours, noise)
    who = noise.drop(weights["entity"].index_select(0, entity))
    by = noise.drop(weights["relation"].index_select(0, relation))
    # W [a ; e ; r ; g] is a sum of four products, each needed once per distinct row only. The two
    # units, for the entity and for the relation, run side by side on the first axis.
    # The state of the graph in a step that is not public yet stays hidden from the one who owns it.
    step = torch.where(roots < active.first_own, active.time[roots], len(world) - 1)
    moving = met @ weights["gru.aggregate"] + world[step] @ weights["gru.global"]
    fixed = who @ weights["gru.entity"] + weights["gru.input_bias"]  # (2, B, 3d)
    fixed = torch.stack([fixed[0] + by @ weights["gru.relation"], fixed[1]])
    hidden = torch.zeros(2, len(entity), settings.dimension, device=who.device)
    for k in range(settings.history):
        inputs = fixed + moving.index_select(1, root[:, k])
        moved = gru_step(inputs, hidden, weights["gru.hidden"], weights["gru.hidden_bias"])
        hidden = torch.where(mask[:, k, None], moved, hidden)
    first = torch.cat([who, noise.drop(hidden[0]), by], 1)
    second = torch.cat([who, noise.drop(hidden[1])], 1)
    return (
        torch.addmm(weights["decoder.entity_bias"], first, weights["decoder.entity"]),
        torch.addmm(weights["decoder.relation_bias"], second, weights["decoder.relation"]),
    )


@register
class RENET(TrainableModel[RENETSettings]):
    r"""A recurrent network over the last steps in which the query entity was active.

    For a query (e, r, ?, t) let k run over the last m steps before t in which e had facts:

    .. math::
        a_k &= \text{2-layer RGCN on the facts of step } k \text{, read at } e \\
        x^{l+1}_o &= \tfrac{1}{d_o} \sum_{(s, r, o)} W_r^l x^l_s + W_0^l x^l_o, \qquad
               W_r = \textstyle\sum_b c_{rb} V_b \\
        h_k &= \mathrm{GRU}([a_k ; e ; r ; g_k], h_{k-1}) \\
        s(e, r, x, t) &= w_x \cdot [e ; h_m ; r] + b_x

    g_k is the state of the whole graph after step k: a GRU over the maxima, over all entities of a
    step, of another RGCN; it is learned first, by predicting who acts in the next step. The loss is
    the cross-entropy of the answer among all entities and 0.1 times that of the relation (from a
    GRU of its own that does not know r), in both directions.

    Where this is not what the authors' program does, and why:

    * Histories hold visible facts only and end strictly before t. Theirs go on, at test, with the
      model's own forecasts as facts (multi-step); here the visibility says what is known, and
      nothing is made up. Ties are ranked by the evaluation.
    * One's own supports at or after t are the most recent steps of one's own history. What else
      happened in those steps stays hidden, so that whom one met there has no neighbours.
    * The RGCN reads a step's graph around e two links deep, with at most ``neighbours`` links of an
      entity in a step; theirs only the graph among e's neighbours, with a random cap. Its matrices
      share a few bases instead of being block diagonal.
    * The states of the graph come from the last m steps with any fact; dropout falls on vectors
      before they enter the unit, the same for all steps of a query.
    """

    name = "renet"
    settings_type = RENETSettings
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "default": {},
        "paper": {"learning_rate": 0.001, "epochs": 60, "batch_size": 1024, "batches": "random"},
    }
    tuning: ClassVar[Mapping[str, tuple[Any, ...]]] = {
        "learning_rate": (3e-4, 1e-2, "log"),
        "history": (3, 5, 10),
        "dropout": (0.1, 0.6, "linear"),
        "bases": (1, 2, 4),
        "batch_size": (512, 1024, 2048, 4096),
    }

    entity_weights: ClassVar[Mapping[str, int]] = {
        "entity": 0,
        "global.entity": 0,
        "decoder.entity": 1,
        "decoder.entity_bias": 0,
        "global.decoder": 1,
        "global.decoder_bias": 0,
    }
    translations = ""

    def build(self, entities: int, relations: int, generator: torch.Generator) -> None:
        """Random weights."""
        d, bases = self.settings.dimension, self.settings.bases
        draw = partial(glorot, generator)

        def table(rows: int) -> Tensor:
            vectors: Tensor = torch.randn(rows, d, generator=generator) * d**-0.5
            return vectors

        state = {
            "entity": table(entities),
            "relation": table(2 * relations),
            "gru.aggregate": draw(2, d, 3 * d),
            "gru.global": draw(2, d, 3 * d),
            "gru.entity": draw(2, d, 3 * d),
            "gru.relation": draw(d, 3 * d),
            "gru.input_bias": torch.zeros(2, 1, 3 * d),
            "gru.hidden": draw(2, d, 3 * d),
            "gru.hidden_bias": torch.zeros(2, 1, 3 * d),
            "decoder.entity": draw(3 * d, entities),
            "decoder.entity_bias": torch.zeros(entities),
            "decoder.relation": draw(2 * d, 2 * relations),
            "decoder.relation_bias": torch.zeros(2 * relations),
            "global.entity": table(entities),
            "global.input": draw(d, 3 * d),
            "global.input_bias": torch.zeros(3 * d),
            "global.hidden": draw(d, 3 * d),
            "global.hidden_bias": torch.zeros(3 * d),
            "global.decoder": draw(d, entities),
            "global.decoder_bias": torch.zeros(entities),
        }
        for part in ("step.", "global."):
            for layer in range(2):
                state |= {
                    f"{part}layer{layer}.mix": draw(2 * relations, bases),
                    f"{part}layer{layer}.bases": draw(bases, d, d).flatten(0, 1),
                    f"{part}layer{layer}.loop": draw(d, d),
                }
        self.set_weights(state)

    def phases(self, problem: Problem) -> list[Phase]:
        """The state of the graph, then the histories of entities."""
        settings, known = self.settings, problem.known
        stages: list[Phase] = []
        if settings.global_epochs:
            stages.append(GlobalPhase(self, known))
        return [*stages, HistoryPhase(self, known)]

    def states(self, active: ActiveSteps) -> Tensor:
        """(T + 1, d) the states of the graph; zeros where no global model was learned."""
        learned = self.settings.global_epochs > 0
        return global_states(self.weights, active, self.settings.history, learned=learned)

    def prepare(self, visible: VisibleFacts) -> Self:
        """Index the public facts."""
        self.index_ = TemporalIndex.of(visible, device=self.device)
        return self

    def adapt(self, supports: Supports) -> Self:
        """Keep the supports for their owners' histories; the states of the graph, step by step."""
        self.active_ = ActiveSteps(self.index_, supports)
        self.world_ = self.states(self.active_)
        return self

    @torch.no_grad()
    def score(self, queries: Queries) -> Tensor:
        """(Q, E) logits of all candidates."""
        weights, silent = self.weights, Noise(None, self.device, 0.0)
        scores = torch.empty(len(queries), len(weights["entity"]), device=self.device)
        for begin in range(0, len(queries), _QUERIES_AT_ONCE):
            rows = slice(begin, begin + _QUERIES_AT_ONCE)
            columns = self.columns(queries[rows])
            scores[rows], _ = read_history(
                weights, self.active_, self.world_, columns, self.settings, silent
            )
        return scores


class GlobalPhase(ModelPhase[RENET]):
    """Learns the state of the graph: after the steps before, who acts in the next one?"""

    name = "global"

    def __init__(self, model: RENET, known: VisibleFacts) -> None:
        super().__init__(model)
        self.known = known
        self.epochs, self.patience, self.validate_every = model.settings.global_epochs, 0, 1
        self.active: ActiveSteps | None = None

    def learns(self, name: str) -> bool:
        """The weights of the global model."""
        return name.startswith("global.")

    def batches(self, generator: torch.Generator) -> Iterator[tuple[int, int]]:
        """Blocks of consecutive steps, (first, end), in random order; the first has no past."""
        if self.active is None:
            self.active = ActiveSteps(TemporalIndex.of(self.known, device=self.model.device))
            self.nodes = StepNodes(self.active)
        count = len(self.nodes.steps)
        starts = torch.arange(1, count, _BLOCK)
        for begin in starts[torch.randperm(len(starts), generator=generator)].tolist():
            yield begin, min(begin + _BLOCK, count)

    def loss(self, batch: tuple[int, int], generator: torch.Generator, part: Part = WHOLE) -> Loss:
        """Cross-entropy between the forecast and the observed shares of all entities."""
        assert self.active is not None
        begin, end = batch
        settings, weights = self.model.settings, self.model.weights
        noise = Noise(generator, self.model.device, settings.dropout)
        low = max(begin - settings.history, 0)
        pooled = _pooled(weights, self.active, self.nodes, low, end - 1, noise)
        back = torch.arange(-settings.history, 0, device=self.model.device)
        rows = torch.arange(begin, end, device=self.model.device)[:, None] + back
        state = _read(weights, pooled, (rows - low).clamp(min=-1))
        logits = state @ weights["global.decoder"] + weights["global.decoder_bias"]
        row, node = self.nodes.between(begin, end)
        facts = torch.zeros_like(logits)
        facts[row, self.active.entity[node]] = self.active.degree[node].to(logits.dtype)
        share = facts / facts.sum(1, keepdim=True)
        own_rows = part.of(end - begin)
        total = -(share * logits.log_softmax(1)).sum(1)[own_rows].sum()
        return Loss(total / max(len(range(end - begin)[own_rows]), 1), {}, part.share(end - begin))


class HistoryPhase(ModelPhase[RENET]):
    """Predicts every known fact from its entity's history before it."""

    name = "history"

    def __init__(self, model: RENET, known: VisibleFacts) -> None:
        super().__init__(model)
        self.known = known
        self.active: ActiveSteps | None = None

    def learns(self, name: str) -> bool:
        """All weights but those of the global model, which was learned before."""
        return not name.startswith("global.")

    def batches(self, generator: torch.Generator) -> Iterator[Tensor]:
        """(B,) rows of facts, of any or of neighbouring steps; batches in random order."""
        known, settings, device = self.known, self.model.settings, self.model.device
        if self.active is None:
            # Only now: the states need the weights that the phase before has learned.
            self.active = ActiveSteps(TemporalIndex.of(known, device=device))
            self.world = self.model.states(self.active)
            self.columns = [
                torch.from_numpy(np.ascontiguousarray(column)).to(device)
                for column in (known.source, known.relation, known.target, known.time)
            ]
        order = torch.randperm(len(known), generator=generator).to(device)
        if settings.batches == "random":
            yield from torch.split(order, settings.batch_size)
            return
        # Sorted by step, the facts of a step in random order; where the first batch begins is
        # drawn too, so that no two epochs cut the steps alike.
        order = order[torch.sort(self.columns[3][order], stable=True).indices]
        shift = int(torch.randint(settings.batch_size, (1,), generator=generator))
        parts = [order[:shift], *torch.split(order[shift:], settings.batch_size)]
        for number in torch.randperm(len(parts), generator=generator).tolist():
            if len(parts[number]):
                yield parts[number]

    def loss(self, batch: Tensor, generator: torch.Generator, part: Part = WHOLE) -> Loss:
        """Cross-entropy of the entity among all, and a little of that of the relation."""
        assert self.active is not None
        settings = self.model.settings
        noise = Noise(generator, self.model.device, settings.dropout)
        rows = batch[part.of(len(batch))]
        source, relation, target, time = (column[rows] for column in self.columns)
        queries = source, relation, time
        answer, link = read_history(
            self.model.weights, self.active, self.world, queries, settings, noise
        )
        count = max(len(rows), 1)
        entity_loss = functional.cross_entropy(answer, target, reduction="sum") / count
        relation_loss = functional.cross_entropy(link, relation, reduction="sum") / count
        logged: dict[str, float | Tensor] = {
            "entity_loss": entity_loss.detach(),
            "relation_loss": relation_loss.detach(),
        }
        value = entity_loss + settings.relation_weight * relation_loss
        return Loss(value, logged, part.share(len(batch)))

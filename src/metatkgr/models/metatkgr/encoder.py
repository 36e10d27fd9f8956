"""The temporal encoder: an entity at a time, as a weighted sum of its sampled neighbours.

For a root e at time t with neighbours (e_i, r_i, t_i), layer l = 1..L computes

    h^l_e(t) = ReLU(Σ_i α_i h^{l-1}_{e_i}(t_i) W_l),   α = softmax_i(q_i)
    q_i = a_l · [h^{l-1}_e(t) ‖ h^{l-1}_{e_i}(t_i) ‖ h_{r_i} ‖ Φ(t - t_i)],   a_l ∈ R^{4d}

with h^0 the rows of the entity table (the argument ``message`` knows another form). Three
rewritings make it cheap and change nothing: a_l is kept as four vectors of R^d, so q is a sum of
four dot products; each of these is taken once per row of a table and then looked up per neighbour;
W_l, being linear, is applied after the sum.

Nothing here indexes by booleans or branches on data, so that it can be differentiated twice. The
tables that are handed in are whole, (E, d) and (R, d); or they hold the few rows that each of T
tasks touches, (T, U, d) and (T, V, d), and the tree's tensors then begin with a task axis too. The
parameters may be shared by the tasks or have a task axis of their own, in a call by
``torch.func.functional_call``. The task axis is written out below rather than left to ``vmap``: on
a GPU a meta step waits for the CPU to launch its kernels, which under ``vmap`` and
``torch.func.grad`` took 1.3 to 1.5 times as long (64 tasks, H200).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional

from metatkgr.models.common.neighbourhood import (
    Hop,
    Tree,
    encode_time,
    initial_frequency,
    initial_phase,
)
from metatkgr.models.common.scores import relation_vectors, rows_of

__all__ = ["ENCODER", "TemporalEncoder", "encode", "encoder_part"]

ENCODER = "encoder."
"""How the names of the encoder's parameters begin, among those of the model."""

_SLOPE = 0.2


class TemporalEncoder(nn.Module):
    """The layers above, without the tables.

    Parameters: ``weight`` (L, d, d), or ``gate`` (L, 1) in its place;
    ``attention_{root,neighbour,relation,time}`` (L, d); ``frequency`` and ``phase`` (d,), shared by
    the layers. They are there once they are set to :meth:`initial` or others.

    Args:
        dimension: d, the length of every vector.
        layers: L; a second layer reads the neighbours' own neighbours.
        attention: 'printed': q is linear in its four parts, so the softmax cancels the root's part,
            which is the same for all neighbours. 'leaky': LeakyReLU(q), under which it matters.
        message: what a neighbour says. 'printed': its own vector, and the sum goes through W and
            ReLU; the relation is heard in the attention alone. 'residual': where it would have the
            root be, less where the root is, h_i - h_{r_i} - h_e, which a true translation makes
            zero; the sum goes through W, which starts at zero, so that training starts from the
            table. 'gate': the same with one number in place of W, which cannot learn the training
            entities by heart.
        self_term: whether each layer adds the root's own vector h^{l-1}_e(t); with one layer that
            is its row of the table. Without it, as printed, an entity with no visible neighbour is
            the zero vector.
        dropout: share of the entries of the summed message Σ α_i h_i that is zeroed in training.
    """

    weight: Tensor
    gate: Tensor
    frequency: Tensor
    phase: Tensor

    def __init__(
        self,
        *,
        dimension: int = 128,
        layers: int = 1,
        attention: str = "leaky",
        message: str = "printed",
        self_term: bool = True,
        dropout: float = 0.5,
    ) -> None:
        super().__init__()
        self.dimension, self.layers = dimension, layers
        self.attention, self.message = attention, message
        self.self_term, self.dropout = self_term, dropout

    def initial(self, generator: torch.Generator) -> dict[str, Tensor]:
        """Parameters by name that have learnt nothing, on the CPU.

        W is Glorot-uniform per layer (zero for residual messages); a is normal with the Glorot
        variance 2 / (4d + 1) of a map from R^{4d} to a number; frequencies and phases as in
        ``common.neighbourhood``.
        """
        layers, d = self.layers, self.dimension
        weight = (torch.rand(layers, d, d, generator=generator) * 2 - 1) * math.sqrt(3 / d)
        parameters = {
            "printed": {"weight": weight},
            "residual": {"weight": torch.zeros(layers, d, d)},
            "gate": {"gate": torch.zeros(layers, 1)},
        }[self.message]
        for part in ("root", "neighbour", "relation", "time"):
            noise = torch.randn(layers, d, generator=generator)
            parameters[f"attention_{part}"] = noise * math.sqrt(2 / (4 * d + 1))
        parameters["frequency"] = initial_frequency(d)
        parameters["phase"] = initial_phase(d, generator)
        return parameters

    def forward(
        self,
        entity: Tensor,
        relation: Tensor,
        tree: Tree,
        *,
        generator: torch.Generator | None = None,
    ) -> Tensor:
        """h^L_e(t) of every root.

        Args:
            entity: (E, d) table; or that of each task, (T, U, d), see above.
            relation: (R, d) table; or (T, V, d).
            tree: the roots and their neighbours.
            generator: draws the dropout, on the parameters' device; None switches dropout off.

        Returns:
            (..., d) vectors; without neighbours, the self term or zeros.
        """
        if len(tree.hops) < self.layers:
            raise ValueError(f"a tree of {len(tree.hops)} hops is too low for {self.layers} layers")
        time = encode_time(tree.ages, self.frequency, self.phase)
        return self._encode(_Inputs(entity, relation, time, tree, generator), self.layers, 0)

    def _encode(self, inputs: _Inputs, layer: int, depth: int) -> Tensor:
        """h^layer of the nodes at ``depth`` of the tree (0: the roots)."""
        tree = inputs.tree
        if layer == 0:
            return rows_of(inputs.entity, tree.hops[depth - 1].entity if depth else tree.entity)
        hop = tree.hops[depth]
        root = self._encode(inputs, layer - 1, depth)
        neighbour = self._encode(inputs, layer - 1, depth + 1)
        share = self._attention(inputs, hop, root, neighbour, layer)
        residual = self.message != "printed"
        if residual:
            neighbour = neighbour - relation_vectors(inputs.relation, hop.relation)
        message = (share.unsqueeze(-2) @ neighbour).squeeze(-2)
        if residual:
            message = message - share.sum(-1, keepdim=True) * root  # nothing where nobody speaks
        message = _dropout(message, self.dropout, inputs.generator)
        if self.message == "gate":
            gate = _of_layer(self.gate, -2, layer)
            # (1,) shared, or (T, 1): one for each task, whatever comes after the task axis
            output = message * (
                gate if gate.dim() == 1 else gate.reshape(-1, *[1] * (message.dim() - 1))
            )
        else:
            output = _multiply(message, _of_layer(self.weight, -3, layer))
        if not residual:
            output = torch.relu(output)
        return output + root if self.self_term else output

    def _attention(
        self, inputs: _Inputs, hop: Hop, root: Tensor, neighbour: Tensor, layer: int
    ) -> Tensor:
        """(..., b) α of a layer, from the vectors that the layer below gives (...) and (..., b)."""
        to_root, to_neighbour, to_relation, to_time = (
            _of_layer(getattr(self, f"attention_{part}"), -2, layer)
            for part in ("root", "neighbour", "relation", "time")
        )
        forwards = _dot(inputs.relation, to_relation)
        score = _look_up(torch.cat([forwards, -forwards], -1), hop.relation)
        score = score + _look_up(_dot(inputs.time, to_time), hop.age)
        if layer == 1:
            # One product for each row of the table instead of one for each neighbour.
            score = score + _look_up(_dot(inputs.entity, to_neighbour), hop.entity)
        else:
            score = score + _dot(neighbour, to_neighbour)
        score = score + _dot(root, to_root).unsqueeze(-1)
        if self.attention == "leaky":
            score = functional.leaky_relu(score, _SLOPE)
        return _masked_softmax(score, hop.mask)


def encoder_part(parameters: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The ``encoder.*`` entries."""
    return {key: value for key, value in parameters.items() if key.startswith(ENCODER)}


def encode(
    encoder: TemporalEncoder,
    parameters: Mapping[str, Tensor],
    tree: Tree,
    *,
    generator: torch.Generator | None = None,
) -> Tensor:
    """h^L_e(t) of every root under given parameters, which need not be the encoder's own.

    Args:
        encoder: the layers.
        parameters: ``encoder.*``, ``entity`` (E, d) and ``relation`` (R, d); or those of T tasks,
            ``entity`` (T, U, d) and ``relation`` (T, V, d), where ``encoder.*`` may be shared or
            have a task axis too.
        tree: the roots and their neighbours; of T tasks, with a leading task axis.
        generator: draws the dropout; None switches it off.

    Returns:
        (..., d) vectors; of T tasks, (T, ..., d).
    """
    layers = {key.removeprefix(ENCODER): x for key, x in encoder_part(parameters).items()}
    inputs = (parameters["entity"], parameters["relation"], tree)
    # No two of its parameters are one, so none has to be looked for.
    vectors: Tensor = functional_call(
        encoder, layers, inputs, {"generator": generator}, tie_weights=False
    )
    return vectors


class _Inputs(NamedTuple):
    """What all layers read: (E, d) and (R, d) tables, Φ of the tree's ages (A, d), and the tree."""

    entity: Tensor
    relation: Tensor
    time: Tensor
    tree: Tree
    generator: torch.Generator | None


def _of_layer(parameter: Tensor, axis: int, layer: int) -> Tensor:
    """The part of a layer, 1..L; of a single layer a view, whose backward costs nothing."""
    one = parameter.shape[axis] == 1
    return parameter.squeeze(axis) if one else parameter.select(axis, layer - 1)


def _look_up(values: Tensor, index: Tensor) -> Tensor:
    """``values[index]``: (N,) and (...) to (...); or (T, N) and (T, ...) to (T, ...).

    ``gather`` has the cheapest backward.
    """
    flat = index.flatten(1) if values.dim() == 2 else index.flatten()
    return values.gather(-1, flat).reshape(index.shape)


def _multiply(vectors: Tensor, matrix: Tensor) -> Tensor:
    """(..., d) with (d, k) to (..., k); or (T, ..., d) with (T, d, k), one for each task."""
    if matrix.dim() == 2:
        return vectors @ matrix
    tasks, d, k = matrix.shape
    rows = math.prod(vectors.shape[1:-1])  # not -1, which of no tasks could be anything
    return torch.bmm(vectors.reshape(tasks, rows, d), matrix).reshape(*vectors.shape[:-1], k)


def _dot(vectors: Tensor, vector: Tensor) -> Tensor:
    """(..., d) with (d,) to (...); or (T, ..., d) with (T, d), one for each task."""
    return _multiply(vectors, vector.unsqueeze(-1)).squeeze(-1)


def _masked_softmax(score: Tensor, mask: Tensor) -> Tensor:
    """Softmax over the last axis among the slots of ``mask``; zeros where there are none.

    A large finite negative instead of -inf, which in a row without neighbours would give NaN.
    """
    lowest = torch.finfo(score.dtype).min / 2
    return torch.softmax(score.masked_fill(~mask, lowest), -1) * mask


def _dropout(message: Tensor, probability: float, generator: torch.Generator | None) -> Tensor:
    if generator is None or probability == 0:
        return message
    # Drawn by hand: torch's own dropout takes no generator.
    draw = torch.rand(message.shape, generator=generator, device=message.device)
    return message * ((draw >= probability) / (1 - probability)).to(message.dtype)

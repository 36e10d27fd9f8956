"""MetaDyGNN: its attention by hand, its adaptation against a loop over tasks and intervals."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from metatkgr.data.facts import Facts, Vocabulary
from metatkgr.data.visibility import Supports, VisibleFacts
from metatkgr.graph.index import TemporalIndex
from metatkgr.graph.sampler import RecentSampler
from metatkgr.models.baselines.metadygnn import adapt
from metatkgr.models.common.few_shot import PaddedFacts
from metatkgr.models.common.neighbourhood import Hop, Tree
from metatkgr.models.common.tgat import (
    SharedEncoder,
    SupportFacts,
    encode,
    initial_network,
    one_layer,
    shared,
    support_loss,
    task_tree,
)

ENTITIES, RELATIONS, D, BUDGET = 9, 2, 4, 3
RATE = 0.3


def close(one: Tensor, other: Tensor) -> None:
    torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)


def test_one_layer_by_hand() -> None:
    r"""A node (1, 0) with neighbours (0, 1) by r one step ago, (2, 2) by r's inverse two ago.

    r = (.5, 0), so the messages are (-.5, 1) and (2.5, 2). The query is 1 · 1 + .5 = 1.5. The keys
    are the sums of the messages, .5 and 4.5; of the relations, 1 and -1; and of the ages,
    √2 cos(π/2) / √2 = 0 and √2 cos(π) / √2 = -1. The scores are 1.5 · 1.5 and 1.5 · 2.5.
    """
    parameters = {
        "encoder.query": torch.tensor([1.0, 2.0]),
        "encoder.key_entity": torch.tensor([1.0, 1.0]),
        "encoder.key_relation": torch.tensor([2.0, 0.0]),
        "encoder.key_time": torch.tensor([math.sqrt(2), 0.0]),
    }
    parameters = {key: value.view(1, 1, 2, 1, 1) for key, value in parameters.items()}
    parameters |= {
        "encoder.bias": torch.full((1, 1, 1, 1), 0.5),
        "encoder.gate": torch.tensor([0.5, 0.25]).view(1, 1, 1, 2),
        "encoder.frequency": torch.tensor([[math.pi / 2, 0.0]]),
        "encoder.phase": torch.zeros(1, 2),
    }
    hop = Hop(
        torch.zeros(1, 1, 3, dtype=torch.int64),
        torch.tensor([[[0, 1, 0]]]),
        torch.tensor([[[0, 1, 0]]]),
        torch.tensor([[[True, True, False]]]),
    )
    neighbours = torch.tensor([[[[0.0, 1.0], [2.0, 2.0], [9.0, 9.0]]]])
    tables = {"relation": torch.tensor([[0.5, 0.0]])}
    node = torch.tensor([[[1.0, 0.0]]])
    ages = torch.tensor([1.0, 2.0])
    moved = one_layer(parameters, 1, tables, node, neighbours, hop, ages)
    first = 1 / (1 + math.exp(1.5))
    second = 1 - first
    pull = (-0.5 * first + 2.5 * second - 1, 1.0 * first + 2.0 * second)
    assert math.isclose(pull[0], 0.952723, abs_tol=1e-5)
    assert math.isclose(pull[1], 1.817575, abs_tol=1e-5)
    close(moved, torch.tensor([[[1 + 0.5 * pull[0], 0.25 * pull[1]]]]))
    alone = one_layer(
        parameters,
        1,
        tables,
        node,
        neighbours,
        hop._replace(mask=torch.zeros_like(hop.mask)),
        ages,
    )
    close(alone, node)


def weights() -> dict[str, Tensor]:
    """Everything far from zero, so that every part matters."""
    generator = torch.Generator().manual_seed(1)
    made = initial_network(D, 2, 3, generator)
    made |= {"entity": torch.zeros(ENTITIES, D), "relation": torch.zeros(RELATIONS, D)}
    return {
        key: 0.6 * torch.randn(value.shape, generator=generator)
        for key, value in sorted(made.items())
    }


def graph() -> tuple[RecentSampler, Supports]:
    """40 random facts; entities 6, 7 and 8 own the last few of theirs."""
    draw = np.random.default_rng(2)
    time = np.sort(draw.integers(0, 12, 40))
    facts = Facts.build(
        draw.integers(0, ENTITIES, 40),
        draw.integers(0, RELATIONS, 40),
        draw.integers(0, ENTITIES, 40),
        time,
        entities=Vocabulary.numbered(ENTITIES),
        relations=Vocabulary.numbered(RELATIONS),
    )
    index = TemporalIndex.of(VisibleFacts.of(facts))
    supports = Supports(
        np.array([6, 6, 6, 7, 7, 8]),
        np.array([0, 3, 1, 2, 0, 1]),
        np.array([0, 1, 2, 8, 3, 4]),
        np.array([4, 5, 9, 6, 6, 7]),
    )
    return RecentSampler(index, supports, budget=BUDGET), supports


def literal(
    parameters: dict[str, Tensor], sampler: RecentSampler, entity: int, time: int, layer: int
) -> Tensor:
    """One node, one neighbour, one head at a time, as the equations say."""
    if layer == 0:
        return parameters["entity"][entity]
    part = {k.removeprefix("encoder."): v for k, v in parameters.items()}
    node = literal(parameters, sampler, entity, time, layer - 1)
    found = sampler.sample(torch.tensor([entity]), torch.tensor([time]), own=False)
    result = node
    for head in range(2):
        query = node @ part["query"][layer - 1, :, head] + part["bias"][layer - 1, head]
        scores, messages = [], []
        for slot in range(int(found.mask.sum())):
            other, relation, then = (
                int(column[0, slot]) for column in (found.entity, found.relation, found.time)
            )
            sign = 1 if relation < RELATIONS else -1
            vector = sign * part["relation"][relation % RELATIONS]
            message = literal(parameters, sampler, other, then, layer - 1) - vector
            phi = torch.cos((time - then) * part["frequency"] + part["phase"]) / math.sqrt(D)
            key = (
                message @ part["key_entity"][layer - 1, :, head]
                + vector @ part["key_relation"][layer - 1, :, head]
                + phi @ part["key_time"][layer - 1, :, head]
            )
            scores.append(query @ key / math.sqrt(3))
            messages.append(message - node)
        if scores:
            share = torch.softmax(torch.stack(scores), 0)
            result = result + part["gate"][layer - 1, head] * (share @ torch.stack(messages))
    return result


def test_both_layers_are_the_equations_applied_node_by_node() -> None:
    parameters, (sampler, _) = weights(), graph()
    entity = torch.arange(ENTITIES).repeat(3)
    time = torch.tensor([1, 6, 11]).repeat_interleave(ENTITIES)
    expected = torch.stack(
        [
            literal(parameters, sampler, e, t, 2)
            for e, t in zip(entity.tolist(), time.tolist(), strict=True)
        ]
    )
    tree = task_tree(sampler.sample, entity.unsqueeze(0), time.unsqueeze(0), own=False)
    own = parameters["entity"][tree.entity]
    close(encode(shared(parameters), parameters, tree, own).squeeze(0), expected)
    assert isinstance(sampler.index, TemporalIndex)
    close(SharedEncoder(parameters, sampler.index, sampler).encode(entity, time), expected)


def support(parameters: dict[str, Tensor]) -> tuple[SupportFacts, int, list[int]]:
    """Three facts of entity 6, two of 7, one of 8."""
    sampler, supports = graph()
    shape, generator = (3, 3), torch.Generator().manual_seed(4)
    columns = [torch.zeros(shape, dtype=torch.int64) for _ in range(4)]
    mask = torch.zeros(shape, dtype=torch.bool)
    owners = supports.entity.tolist()
    for row, owner in enumerate(owners):
        place = (owner - 6, owners[:row].count(owner))
        for column, name in zip(columns, ("entity", "relation", "other", "time"), strict=True):
            column[place] = int(getattr(supports, name)[row])
        mask[place] = True
    entity, relation, answer, time = columns
    negatives = torch.randint(ENTITIES, (*shape, 2), generator=generator)
    usable = torch.rand(negatives.shape, generator=generator) < 0.7
    padded = PaddedFacts(entity, relation, answer, negatives, usable, time, mask)
    facts, intervals = padded.in_intervals(2)
    assert intervals == 2
    assert facts.mask.shape == (3, 4)
    directed = torch.cat([parameters["relation"], -parameters["relation"]])
    made = SupportFacts(
        task_tree(sampler.sample, facts.entity, facts.time, own=True),
        parameters["entity"][torch.cat([facts.answer.unsqueeze(-1), facts.negatives], -1)],
        directed[facts.relation],
        facts.mask,
        facts.negative_mask,
    )
    return made, intervals, [6, 7, 8]


def cut(facts: SupportFacts, task: int, columns: slice) -> SupportFacts:
    """Some facts of one task."""

    def part(column: Tensor) -> Tensor:
        return column[task : task + 1, columns]

    hops = tuple(Hop(*(part(column) for column in hop)) for hop in facts.roots.hops)
    roots = Tree(part(facts.roots.entity), facts.roots.ages, hops)
    return SupportFacts(roots, *(part(column) for column in facts[1:]))


def looped(
    parameters: dict[str, Tensor], facts: SupportFacts, entity: int, task: int, intervals: int
) -> tuple[dict[str, Tensor], Tensor]:
    """The fast weights of one task, interval after interval."""
    width = facts.mask.shape[1] // intervals
    networks, nodes, losses = [], [], []
    for number in range(intervals):
        piece = cut(facts, task, slice(number * width, (number + 1) * width))
        if not piece.mask.any():
            continue
        network, own = shared(parameters), parameters["entity"][entity].unsqueeze(0)
        loss = support_loss(network, own, piece, parameters)[0]
        steps = torch.autograd.grad(loss, list(network.values()), create_graph=True)
        network = {k: v - RATE * step for (k, v), step in zip(network.items(), steps, strict=True)}
        loss = support_loss(network, own, piece, parameters)[0]
        (step,) = torch.autograd.grad(loss, [own], create_graph=True)
        own = own - RATE * step
        networks.append(network)
        nodes.append(own)
        losses.append(support_loss(network, own, cut(facts, task, slice(None)), parameters)[0])
    share = torch.softmax(-torch.stack(losses), 0)
    mixed = {
        key: sum(w * network[key][0] for w, network in zip(share, networks, strict=True))
        for key in networks[0]
    }
    return mixed, sum(w * own[0] for w, own in zip(share, nodes, strict=True))  # type: ignore


def test_batched_adaptation_equals_a_loop_over_tasks_and_so_does_its_gradient() -> None:
    parameters = {key: value.requires_grad_() for key, value in weights().items()}
    facts, intervals, entities = support(parameters)
    own = parameters["entity"][torch.tensor(entities)]
    fast, moved = adapt(parameters, own, facts, intervals=intervals, learning_rate=RATE)
    total, expected_total = torch.zeros(()), torch.zeros(())
    for task, entity in enumerate(entities):
        expected, expected_own = looped(parameters, facts, entity, task, intervals)
        for key, value in expected.items():
            close(fast[key][task], value)
            total = total + fast[key][task].square().sum()
            expected_total = expected_total + value.square().sum()
        close(moved[task], expected_own)
        total, expected_total = total + moved[task].sum(), expected_total + expected_own.sum()
    assert not torch.allclose(moved[0], own[0])
    values = list(parameters.values())
    gradients = torch.autograd.grad(total, values, retain_graph=True)
    for gradient, expected_one in zip(
        gradients, torch.autograd.grad(expected_total, values), strict=True
    ):
        torch.testing.assert_close(gradient, expected_one, rtol=1e-4, atol=1e-4)


def test_a_task_without_facts_stays_as_it_is() -> None:
    parameters = weights()
    facts, intervals, entities = support(parameters)
    nothing = facts._replace(mask=torch.zeros_like(facts.mask))
    own = parameters["entity"][torch.tensor(entities)]
    fast, moved = adapt(parameters, own, nothing, intervals=intervals, learning_rate=RATE)
    close(moved, own)
    for key, value in shared(parameters).items():
        close(fast[key], value.expand_as(fast[key]))

"""LAN against numbers worked out by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from metatkgr.data.facts import Facts, Vocabulary
from metatkgr.data.problem import Problem
from metatkgr.data.tasks import Queries, Tasks
from metatkgr.data.visibility import Supports, VisibleFacts
from metatkgr.data.world import simulate
from metatkgr.graph.sampler import Neighbours
from metatkgr.models import create
from metatkgr.models.base import WHOLE
from metatkgr.models.baselines.lan import LAN, first_links, logic_weights, rule_table

# Entities 0..3, relations 0 and 1 (backwards 2 and 3):
#
#   0 --0--> 1   at 0, again at 3          relation 0 and then relation 1 at entity 0,
#   0 --1--> 2   at 1                      relation 0 alone at entity 3
#   3 --0--> 1   at 2
ROWS = [(0, 0, 1, 0), (0, 1, 2, 1), (3, 0, 1, 2), (0, 0, 1, 3)]
NOBODY = Supports(*(np.zeros(0, np.int64) for _ in range(4)))


def visible(rows: list[tuple[int, int, int, int]] = ROWS) -> VisibleFacts:
    return VisibleFacts.of(
        Facts.build(
            *(list(column) for column in zip(*rows, strict=True)),
            entities=Vocabulary.numbered(4),
            relations=Vocabulary.numbered(2),
        )
    )


def by_hand(**settings: object) -> LAN:
    """h_1 = (1, 2), h_2 = (3, 4); w_0 = (1, 0), w_1 = (0, 1); W = [I; I]; small z and v."""
    model = create("lan", {"dimension": 2, **settings})
    assert isinstance(model, LAN)
    model.load_state_dict(
        {
            "entity": torch.tensor([[0.5, 0.5], [1.0, 2.0], [3.0, 4.0], [7.0, 7.0]]),
            "relation": torch.tensor([[0.1, 0.2], [0.3, 0.4]]),
            "normal": torch.tensor([[2.0, 0.0], [0.0, 5.0], [1.0, 0.0], [0.0, 1.0]]),
            "query": torch.tensor([[0.1, -0.1], [0.2, 0.3], [0.0, 0.0], [0.0, 0.0]]),
            "attention": torch.tensor([[1.0, -1.0], [0.5, 2.0], [0.0, 0.0], [0.0, 0.0]]),
            "mix_query": torch.eye(2),
            "mix_neighbour": torch.eye(2),
            "rules": rule_table(visible()),
        }
    )
    return model.prepare(visible()).adapt(NOBODY)


def test_rules_count_the_entities_that_have_both_relations() -> None:
    rules = rule_table(visible())
    # Relation 0 leaves from 0 and 3, relation 1 from 0; 2 leaves from 1, 3 from 2.
    expected = [[1.0, 0.5, 0, 0], [1.0, 1.0, 0, 0], [0, 0, 1.0, 0], [0, 0, 0, 1.0]]
    assert torch.equal(rules, torch.tensor(expected))


def test_a_rule_counts_less_where_another_relation_implies_it() -> None:
    rules = torch.tensor([[1.0, 0.4, 0.3], [0.8, 1.0, 0.6], [0.2, 0.05, 1.0]])
    relation = torch.tensor([[0, 1, 1, 0], [1, 2, 0, 0], [2, 2, 0, 0]])
    mask = torch.tensor([[True] * 3 + [False], [True] * 2 + [False] * 2, [True] * 2 + [False] * 2])
    neighbours = Neighbours(relation * 0, relation, relation * 0, mask)
    weights = logic_weights(rules, neighbours, torch.tensor([2, 0, 1]))
    expected = [
        # q = 2: P(0 => 2) / P(1 => 0), twice P(1 => 2) / P(0 => 1)
        [0.3 / 0.8, 0.6 / 0.4, 0.6 / 0.4, 0.0],
        # q = 0: P(1 => 0) / P(2 => 1), where 0.05 is taken for 0.1; P(2 => 0) / P(1 => 2)
        [0.8 / 0.1, 0.2 / 0.6, 0.0, 0.0],
        # no other relation: P(2 => 1) as it is
        [0.05, 0.05, 0.0, 0.0],
    ]
    torch.testing.assert_close(weights, torch.tensor(expected))


@pytest.mark.parametrize("normalise", [True, False])
def test_the_score_is_the_one_worked_out_by_hand(normalise: bool) -> None:
    """Entity 0 is asked about relation 0 at time 2, when it has the links to 1 and to 2."""
    model = by_hand(candidates="input", normalise=normalise)
    scores = model.score(Queries(np.array([0]), np.array([0]), np.array([2])))[0]

    to_1, to_2 = (0.0, 2.0), (3.0, 0.0)  # (1, 2) without its first part, (3, 4) without its second
    # v·tanh(z + T(e)) with z = (0.1, -0.1), v = (1, -1)
    logit_1 = math.tanh(0.1 + 0.0) - math.tanh(-0.1 + 2.0)
    logit_2 = math.tanh(0.1 + 3.0) - math.tanh(-0.1 + 0.0)
    share_1 = math.exp(logit_1) / (math.exp(logit_1) + math.exp(logit_2))
    # P(0 => 0) / P(1 => 0) = 1 / 1 and P(1 => 0) / P(0 => 1) = 1 / 0.5
    weight_1, weight_2 = share_1 + 1.0, (1 - share_1) + 2.0
    if normalise:
        weight_1, weight_2 = weight_1 / 4, weight_2 / 4  # 1 from the softmax, 3 from the rules
    x = weight_1 * to_1[0] + weight_2 * to_2[0] + 0.1
    y = weight_1 * to_1[1] + weight_2 * to_2[1] + 0.2
    expected = [-((x - a) ** 2) - (y - b) ** 2 for a, b in [(0.5, 0.5), (1, 2), (3, 4), (7, 7)]]
    torch.testing.assert_close(scores[1:], torch.tensor(expected[1:]), rtol=1e-5, atol=1e-5)


def test_candidates_are_aggregated_for_the_question_backwards() -> None:
    """At time 2, candidate 1 has one neighbour, 0 by relation 0 backwards; 3 has none."""
    model = by_hand(candidates="aggregated")
    asked = Queries(np.array([0]), np.array([0]), np.array([2]))
    scores = model.score(asked)[0]
    point = model.encode(
        model.sampler_, torch.tensor([0]), torch.tensor([0]), torch.tensor([2]), own=True
    )[0] + torch.tensor([0.1, 0.2])
    # T_2(0) = (0.5, 0.5) without its first part; 3 stands for itself
    for candidate, vector in ((1, [0.0, 0.5]), (3, [7.0, 7.0])):
        expected = -(point - torch.tensor(vector)).square().sum()
        torch.testing.assert_close(scores[candidate], expected, rtol=1e-5, atol=1e-5)


def test_a_repeated_link_is_one_neighbour_from_its_first_time_on() -> None:
    links = first_links(visible())
    assert links.time.tolist() == [0, 0, 1, 1, 2, 2]
    model = by_hand()
    found = model.sampler_.sample(torch.tensor([0, 0, 0]), torch.tensor([0, 1, 9]))
    assert found.mask.sum(1).tolist() == [0, 1, 2]


def test_an_entity_sees_its_own_support_before_its_time() -> None:
    own = Supports(*(np.array(column) for column in ([3], [0], [1], [2])))
    model = by_hand().adapt(own)
    question = Queries(np.array([3]), np.array([0]), np.array([1]))
    assert not torch.equal(model.score(question), by_hand().score(question))


def test_aggregated_candidates_see_no_future_and_do_not_depend_on_the_batch() -> None:
    tasks = Tasks.build(simulate(facts=1500, seed=4), shots=2, visibility="streaming")
    model = create("lan", {"dimension": 8, "candidates": "aggregated", "neighbours": 5})
    assert isinstance(model, LAN)
    sizes = len(tasks.facts.entities), len(tasks.facts.relations)
    model.build(*sizes, torch.Generator().manual_seed(0))
    model.rules.copy_(rule_table(tasks.visible))
    moment = int(np.median(tasks.questions.time))
    asked = tasks.questions[np.flatnonzero(tasks.questions.time == moment)]
    scores = model.prepare(tasks.visible).adapt(tasks.supports).score(asked)

    alone = torch.cat([model.score(asked[i : i + 1]) for i in range(len(asked))])
    torch.testing.assert_close(scores, alone)

    past = VisibleFacts.of(tasks.facts.select(tasks.facts.time < moment))
    assert torch.equal(model.prepare(past).adapt(tasks.supports).score(asked), scores)


@pytest.mark.parametrize("loss", ["softmax", "margin"])
@pytest.mark.parametrize("candidates", ["input", "aggregated"])
def test_every_table_learns_from_either_loss(loss: str, candidates: str) -> None:
    problem = Problem.of(simulate(facts=1500, seed=4), shots=2)
    choice = {"loss": loss, "candidates": candidates}
    model = create("lan", {"dimension": 8, "negatives": 4, "batch_size": 64, **choice})
    assert isinstance(model, LAN)
    generator = torch.Generator().manual_seed(0)
    model.build(len(problem.known.entities), len(problem.known.relations), generator)
    phase = model.phases(problem)[0]
    loss_of_batch = phase.loss(next(iter(phase.batches(generator))), generator, WHOLE)
    loss_of_batch.value.backward()  # type: ignore[no-untyped-call]
    for name, weight in model.weights.items():
        assert weight.grad is not None
        assert weight.grad.abs().sum() > 0, name
    assert not model.rules.requires_grad

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
from literal_encoder import Node, directed_vector, literal_encode, random_parameters
from torch import Tensor
from torch.func import grad, vmap

from metatkgr.errors import SettingsError
from metatkgr.models import create
from metatkgr.models.common.few_shot import ranking_loss
from metatkgr.models.common.neighbourhood import Hop, Tree, encode_time
from metatkgr.models.common.scores import relation_vectors, score_all, translation_score
from metatkgr.models.metatkgr.encoder import ENCODER, TemporalEncoder, encode
from metatkgr.models.metatkgr.model import MetaTKGR

ENTITIES, RELATIONS, AGES = 9, 3, torch.tensor([-2.0, 0.5, 1.0, 3.0, 40.0])


def random_node(draw: random.Random, depth: int, most: int) -> Node:
    node = Node(draw.randrange(ENTITIES))
    for _ in range(draw.randint(0, most) if depth else 0):
        age = float(draw.choice(AGES))
        relation = draw.randrange(2 * RELATIONS)
        node.neighbours.append((relation, age, random_node(draw, depth - 1, most)))
    return node


def to_tree(nodes: list[Node], depth: int, budget: int, shape: tuple[int, ...]) -> Tree:
    """Padded columns, with junk in the empty slots."""
    hops = []
    level: list[Node | None] = list(nodes)
    for _ in range(depth):
        shape = (*shape, budget)
        columns: list[list[int]] = [[], [], [], []]
        below: list[Node | None] = []
        for node in level:
            links = node.neighbours if node else []
            for relation, age, child in links:
                row = (child.entity, relation, AGES.tolist().index(age), 1)
                for column, value in zip(columns, row, strict=True):
                    column.append(value)
                below.append(child)
            for _ in range(budget - len(links)):
                for column, value in zip(columns, (1, 2, 3, 0), strict=True):
                    column.append(value)
                below.append(None)
        entity, relation_, age_, mask = (torch.tensor(column).reshape(shape) for column in columns)
        hops.append(Hop(entity, relation_, age_, mask.bool()))
        level = below
    roots = torch.tensor([node.entity for node in nodes]).reshape(shape[: len(shape) - depth])
    return Tree(roots, AGES, tuple(hops))


@pytest.mark.parametrize("layers", [1, 2, 3])
@pytest.mark.parametrize("attention", ["printed", "leaky"])
@pytest.mark.parametrize("message", ["printed", "residual", "gate"])
@pytest.mark.parametrize("self_term", [False, True])
def test_the_encoder_equals_a_literal_loop_over_neighbours(
    layers: int, attention: str, message: str, self_term: bool
) -> None:
    encoder = TemporalEncoder(
        dimension=5, layers=layers, attention=attention, message=message, self_term=self_term
    )
    parameters = random_parameters(encoder, ENTITIES, RELATIONS)
    draw = random.Random(layers)
    nodes = [Node(4), *(random_node(draw, layers, 3) for _ in range(11))]
    expected = torch.stack([literal_encode(parameters, encoder, n, layers) for n in nodes])
    for budget in (3, 5):  # more padding changes nothing
        found = encode(encoder, parameters, to_tree(nodes, layers, budget, (3, 4)))
        torch.testing.assert_close(found.reshape(12, 5), expected, atol=1e-5, rtol=1e-5)
    assert expected.abs().sum() > 1


def test_with_parameters_of_its_own_it_encodes_as_with_the_same_ones_handed_in() -> None:
    model = create("metatkgr", {"dimension": 6, "message": "printed"})
    assert isinstance(model, MetaTKGR)
    model.build(ENTITIES, RELATIONS, torch.Generator().manual_seed(2))
    names = dict(model.encoder.named_parameters())
    assert sorted(model.state_dict()) == sorted(
        ["entity", "relation", *(ENCODER + n for n in names)]
    )
    tree = to_tree([random_node(random.Random(4), 1, 4)], 1, 4, (1,))
    own = model.encoder(model.entity, model.relation, tree)
    assert torch.equal(own, encode(model.encoder, model.weights, tree))
    others = random_parameters(model.encoder, ENTITIES, RELATIONS)
    assert not torch.equal(own, encode(model.encoder, others, tree))
    assert torch.equal(own, model.encoder(model.entity, model.relation, tree))


@pytest.mark.parametrize("self_term", [False, True])
def test_an_entity_without_neighbours_is_its_self_term_or_zero(self_term: bool) -> None:
    encoder = TemporalEncoder(dimension=4, self_term=self_term)
    parameters = random_parameters(encoder, ENTITIES, RELATIONS)
    for value in parameters.values():
        value.requires_grad_()
    found = encode(encoder, parameters, to_tree([Node(2), Node(5)], 1, 3, (2,)))
    expected = parameters["entity"][[2, 5]] if self_term else torch.zeros(2, 4)
    assert torch.equal(found, expected)
    found.square().sum().backward()
    for value in parameters.values():
        assert value.grad is None or value.grad.isfinite().all()


def test_the_printed_attention_cancels_the_root_and_the_leaky_one_does_not() -> None:
    nodes = [random_node(random.Random(seed), 1, 4) for seed in range(8)]
    tree = to_tree(nodes, 1, 4, (8,))
    change = {}
    for attention in ("printed", "leaky"):
        encoder = TemporalEncoder(dimension=6, attention=attention, self_term=False)
        parameters = random_parameters(encoder, ENTITIES, RELATIONS)
        before = encode(encoder, parameters, tree)
        parameters["encoder.attention_root"] = -3 * parameters["encoder.attention_root"]
        change[attention] = float((encode(encoder, parameters, tree) - before).abs().max())
    assert change["printed"] < 1e-5
    assert change["leaky"] > 1e-2


def test_half_precision_masks_without_overflow() -> None:
    encoder = TemporalEncoder(dimension=4, self_term=False)
    parameters = random_parameters(encoder, ENTITIES, RELATIONS, torch.bfloat16)
    tree = to_tree([Node(1), Node(2, [(0, 1.0, Node(3))])], 1, 2, (2,))
    found = encode(encoder, parameters, tree._replace(ages=AGES.bfloat16()))
    assert found.isfinite().all()
    assert not found[0].any()


def test_dropout_is_off_without_a_generator_and_keeps_the_expectation_with_one() -> None:
    encoder = TemporalEncoder(dimension=6, dropout=0.5, self_term=False)
    parameters = random_parameters(encoder, ENTITIES, RELATIONS)
    # A positive identity: ReLU then leaves the message as it is.
    parameters["encoder.weight"] = torch.eye(6)[None]
    parameters["entity"] = parameters["entity"].abs()
    nodes = [random_node(random.Random(seed), 1, 4) for seed in range(6)]
    tree = to_tree(nodes, 1, 4, (6,))
    plain = encode(encoder, parameters, tree)
    assert torch.equal(plain, encode(encoder, parameters, tree))
    generator = torch.Generator().manual_seed(0)
    drawn = torch.stack(
        [encode(encoder, parameters, tree, generator=generator) for _ in range(2000)]
    )
    assert (drawn[:, plain > 0] == 0).float().mean() == pytest.approx(0.5, abs=0.02)
    torch.testing.assert_close(drawn.mean(0), plain, atol=0.1, rtol=0.1)


def test_dropout_differs_between_tasks_under_vmap_and_repeats_with_the_seed() -> None:
    encoder = TemporalEncoder(dimension=8, self_term=False)
    parameters = random_parameters(encoder, ENTITIES, RELATIONS)
    nodes = [Node(1, [(0, 1.0, Node(2)), (4, 3.0, Node(3))])] * 5
    tree = to_tree(nodes, 1, 2, (5,))

    def gradient(seed: int) -> Tensor:
        generator = torch.Generator().manual_seed(seed)

        def loss(values: dict[str, Tensor], entity: Tensor, hop: Hop) -> Tensor:
            one = Tree(entity, AGES, (hop,))
            return encode(encoder, values, one, generator=generator).square().sum()

        each = vmap(grad(loss), in_dims=(None, 0, 0), randomness="different")
        return each(parameters, tree.entity, tree.hops[0])["encoder.weight"]

    first = gradient(1)
    assert torch.equal(first, gradient(1))
    assert len(torch.unique(first.reshape(5, -1), dim=0)) > 1


def test_inverse_relations_have_the_negated_vector() -> None:
    table = torch.randn(3, 4, generator=torch.Generator().manual_seed(0))
    found = relation_vectors(table, torch.arange(6).reshape(2, 3))
    assert torch.equal(found[0], table)
    assert torch.equal(found[1], -table)


def test_the_time_encoding_is_a_scaled_cosine() -> None:
    age = torch.tensor([[-3.0, 0.0], [2.5, 100.0]])
    frequency, phase = torch.tensor([1.0, 0.1, 0.01]), torch.tensor([0.0, 1.0, 2.0])
    expected = torch.cos(age[:, :, None] * frequency + phase) / 3**0.5
    torch.testing.assert_close(encode_time(age, frequency, phase), expected)


def test_initial_parameters_have_their_shapes_and_follow_the_generator() -> None:
    encoder = TemporalEncoder(dimension=8, layers=2)
    one, two = (encoder.initial(torch.Generator().manual_seed(5)) for _ in range(2))
    assert {key: tuple(value.shape) for key, value in one.items()} == {
        "weight": (2, 8, 8),
        "attention_root": (2, 8),
        "attention_neighbour": (2, 8),
        "attention_relation": (2, 8),
        "attention_time": (2, 8),
        "frequency": (8,),
        "phase": (8,),
    }
    assert all(torch.equal(one[key], two[key]) for key in one)
    ratios = one["frequency"][1:] / one["frequency"][:-1]
    torch.testing.assert_close(ratios, ratios[:1].expand(7))


@pytest.mark.parametrize(
    "wrong", [{"dimension": 0}, {"layers": 0}, {"attention": "dot"}, {"dropout": 1.0}]
)
def test_settings_out_of_range_are_errors_that_name_the_value(wrong: dict[str, object]) -> None:
    with pytest.raises(SettingsError, match=str(next(iter(wrong.values())))):
        create("metatkgr", wrong)


@pytest.mark.parametrize("wrong", [{"loss": "l2"}, {"margin": 0.0}, {"reduction": "max"}])
def test_loss_settings_out_of_range_are_errors(wrong: dict[str, object]) -> None:
    with pytest.raises(SettingsError, match=next(iter(wrong))):
        create("metatkgr", wrong)


def test_a_tree_lower_than_the_layers_is_an_error() -> None:
    encoder = TemporalEncoder(dimension=4, layers=2)
    parameters = random_parameters(encoder, ENTITIES, RELATIONS)
    with pytest.raises(ValueError, match="1 hops"):
        encode(encoder, parameters, to_tree([Node(0)], 1, 2, (1,)))


def test_scores_of_pairs_and_of_all_candidates_equal_the_literal_distance() -> None:
    generator = torch.Generator().manual_seed(0)
    entity, candidates = (torch.randn(n, 128, generator=generator) for n in (7, 20))
    table = torch.randn(3, 128, generator=generator)
    relation = torch.tensor([0, 1, 2, 3, 4, 5, 0])
    translated = entity + relation_vectors(table, relation)
    every = score_all(translated, candidates)
    for q in range(7):
        r = directed_vector(table, int(relation[q]))
        for c in range(20):
            literal = -sum((entity[q] + r - candidates[c]) ** 2)
            pair = translation_score(entity[q], r, candidates[c])
            torch.testing.assert_close(pair, literal, rtol=1e-4, atol=1e-4)
            torch.testing.assert_close(every[q, c], literal, rtol=1e-4, atol=1e-4)


def test_equal_candidates_at_zero_tie_exactly() -> None:
    translated = torch.randn(5, 128, generator=torch.Generator().manual_seed(0))
    scores = score_all(translated, torch.zeros(1003, 128))
    assert (scores == scores[:, :1]).all()


@pytest.mark.parametrize("loss", ["hinge", "softmax"])
@pytest.mark.parametrize("reduction", ["sum", "mean"])
def test_the_loss_equals_a_loop_over_facts_and_negatives(loss: str, reduction: str) -> None:
    generator = torch.Generator().manual_seed(1)
    positive, negative = torch.randn(6, generator=generator), torch.randn(6, 4, generator=generator)
    mask = torch.tensor([1, 1, 0, 1, 1, 0]).bool()
    negative_mask = torch.rand(6, 4, generator=generator) < 0.6
    negative_mask[1] = False
    options: dict[str, Any] = {"loss": loss, "margin": 0.8, "reduction": reduction}
    each = []
    for fact in range(6):
        if not mask[fact]:
            continue
        rivals = negative[fact][negative_mask[fact]]
        if loss == "softmax":
            every = torch.cat([positive[fact : fact + 1], rivals])
            each.append(float(-torch.log_softmax(every, 0)[0]))
        else:
            violations = [max(0.8 - float(positive[fact]) + float(s), 0.0) for s in rivals]
            share = max(len(violations), 1) if reduction == "mean" else 1
            each.append(sum(violations) / share)
    expected = sum(each) / (len(each) if reduction == "mean" else 1)
    found = ranking_loss(positive, negative, mask, negative_mask, **options)
    assert float(found) == pytest.approx(expected, rel=1e-5)
    nothing = torch.zeros_like(mask)
    assert float(ranking_loss(positive, negative, nothing, negative_mask, **options)) == 0


def test_residual_messages_begin_with_the_table_and_vanish_for_true_translations() -> None:
    encoder = TemporalEncoder(dimension=4, message="residual")
    tables = random_parameters(encoder, ENTITIES, RELATIONS)
    tree = to_tree([random_node(random.Random(1), 1, 4)], 1, 4, (1,))
    fresh = {
        ENCODER + name: value
        for name, value in encoder.initial(torch.Generator().manual_seed(0)).items()
    }
    parameters = {**tables, **fresh}
    assert torch.equal(encode(encoder, parameters, tree), tables["entity"][tree.entity])
    # every neighbour is exactly where root + relation leads: nobody has anything to say
    root = tables["entity"][1]
    exact = tables["entity"].clone()
    exact[2], exact[3] = root + tables["relation"][0], root - tables["relation"][1]
    old, young = AGES.tolist()[:2]
    node = Node(1, [(0, old, Node(2)), (1 + RELATIONS, young, Node(3))])
    found = encode(encoder, {**tables, "entity": exact}, to_tree([node], 1, 3, (1,)))
    torch.testing.assert_close(found[0], root)

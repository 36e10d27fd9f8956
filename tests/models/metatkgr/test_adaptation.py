from __future__ import annotations

import random
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import pytest
import torch
from literal_encoder import Node, directed_vector, literal_encode, random_parameters
from torch import Tensor

from metatkgr.graph.sampler import Neighbours
from metatkgr.models.common.few_shot import PaddedFacts, ranking_loss
from metatkgr.models.common.neighbourhood import grow
from metatkgr.models.metatkgr.adaptation import TaskBatch, TaskFacts, adapt, localise, task_loss
from metatkgr.models.metatkgr.encoder import TemporalEncoder, encode, encoder_part

ENTITIES, RELATIONS, STEPS, BUDGET, TASKS = 12, 3, 20, 4, 4
RATE = 0.3


def ranking(**options: Any) -> partial[Tensor]:
    """A loss; its options can be read by the literal one."""
    return partial(
        ranking_loss, **({"loss": "softmax", "margin": 1.0, "reduction": "mean"} | options)
    )


class Fact(NamedTuple):
    entity: int
    relation: int
    answer: int
    negatives: list[int]
    time: int


def links(entity: int, time: int, own: bool) -> list[tuple[int, int, int]]:
    """The neighbours (entity, relation, time) in a made-up graph; every fourth root has none."""
    draw = random.Random(1000 * entity + 2 * time + own)
    count = 0 if draw.random() < 0.25 else draw.randint(1, BUDGET)
    # With own supports, some facts lie after the question: negative ages.
    latest = time + 3 if own else time - 1
    return [
        (draw.randrange(ENTITIES), draw.randrange(2 * RELATIONS), draw.randint(latest - 8, latest))
        for _ in range(count)
    ]


def sample(entity: Tensor, time: Tensor, *, own: bool | Tensor) -> Neighbours:
    columns = torch.zeros(4, len(entity), BUDGET, dtype=torch.int64)
    asked = torch.as_tensor(own).expand(len(entity)).tolist()
    for row, (e, t) in enumerate(zip(entity.tolist(), time.tolist(), strict=True)):
        for slot, link in enumerate(links(e, t, asked[row])):
            columns[:, row, slot] = torch.tensor([*link, 1])
    return Neighbours(columns[0], columns[1], columns[2], columns[3].bool())


def node(entity: int, time: int, own: bool, depth: int) -> Node:
    if depth == 0:
        return Node(entity)
    return Node(
        entity,
        [
            (relation, float(time - then), node(other, then, False, depth - 1))
            for other, relation, then in links(entity, time, own)
        ],
    )


def random_facts(seed: int, most: int) -> list[list[Fact]]:
    """Tasks of different sizes; the last has no facts, the first as many as possible."""
    draw = random.Random(seed)
    sizes = [most, *(draw.randint(1, most) for _ in range(TASKS - 2)), 0]
    return [
        [
            Fact(
                task,
                draw.randrange(2 * RELATIONS),
                draw.randrange(ENTITIES),
                [draw.randrange(ENTITIES) for _ in range(draw.randint(1, 2))],
                draw.randrange(3, STEPS),
            )
            for _ in range(size)
        ]
        for task, size in enumerate(sizes)
    ]


def padded(tasks: list[list[Fact]], more: int = 0) -> PaddedFacts:
    """Columns with junk in the padding, ``more`` facts wider than needed."""
    width, n = max(map(len, tasks)) + more, 2
    columns = torch.full((4, len(tasks), width), 1)
    negatives = torch.full((len(tasks), width, n), 2)
    mask = torch.zeros(len(tasks), width, dtype=torch.bool)
    negative_mask = torch.rand(len(tasks), width, n) < 0.5
    for t, facts in enumerate(tasks):
        for f, fact in enumerate(facts):
            columns[:, t, f] = torch.tensor([fact.entity, fact.relation, fact.answer, fact.time])
            mask[t, f] = True
            for slot in range(n):
                negative_mask[t, f, slot] = slot < len(fact.negatives)
                if slot < len(fact.negatives):
                    negatives[t, f, slot] = fact.negatives[slot]
    entity, relation, answer, time = columns
    return PaddedFacts(entity, relation, answer, negatives, negative_mask, time, mask)


def literal_loss(
    parameters: dict[str, Tensor],
    facts: list[Fact],
    encoder: TemporalEncoder,
    loss: partial[Tensor],
) -> Tensor:
    """The loss of one task, fact by fact, on the global tables."""

    def score(fact: Fact, other: int) -> Tensor:
        depth = encoder.layers
        h = literal_encode(parameters, encoder, node(fact.entity, fact.time, True, depth), depth)
        x = literal_encode(parameters, encoder, node(other, fact.time, False, depth), depth)
        return -((h + directed_vector(parameters["relation"], fact.relation) - x) ** 2).sum()

    options = loss.keywords
    total = parameters["entity"].sum() * 0
    for fact in facts:
        positive = score(fact, fact.answer)
        negatives = torch.stack([score(fact, x) for x in fact.negatives])
        if options["loss"] == "hinge":
            each = (options["margin"] - positive + negatives).clamp(min=0).sum()
            each = each / len(negatives) if options["reduction"] == "mean" else each
        else:
            each = torch.cat([positive[None], negatives]).exp().sum().log() - positive
        total = total + each
    return total / max(len(facts), 1) if options["reduction"] == "mean" else total


def literal_adapt(
    parameters: dict[str, Tensor],
    facts: list[Fact],
    encoder: TemporalEncoder,
    loss: partial[Tensor],
    steps: int,
    second_order: bool,
) -> dict[str, Tensor]:
    """Gradient steps of one task with plain autograd, on whole tables."""
    moved = dict(parameters)
    for _ in range(steps):
        gradients = torch.autograd.grad(
            literal_loss(moved, facts, encoder, loss),
            list(moved.values()),
            create_graph=True,
            allow_unused=True,
        )
        for (key, value), gradient in zip(list(moved.items()), gradients, strict=True):
            if gradient is not None:
                step = gradient if second_order else gradient.detach()
                moved[key] = value - RATE * step
    return moved


def build(layers: int = 1, more: int = 0) -> tuple[TaskBatch, list[list[Fact]], list[list[Fact]]]:
    support, query = random_facts(1, 3), random_facts(2, 4)
    batch = TaskBatch.build(
        padded(support, more),
        padded(query, more),
        sample,
        entities=ENTITIES,
        relations=RELATIONS,
        layers=layers,
    )
    return batch, support, query


def differentiable(encoder: TemporalEncoder, dtype: torch.dtype) -> dict[str, Tensor]:
    parameters = random_parameters(encoder, ENTITIES, RELATIONS, dtype)
    return {key: value.requires_grad_() for key, value in parameters.items()}


def outer_loss(
    parameters: dict[str, Tensor],
    batch: TaskBatch,
    encoder: TemporalEncoder,
    loss: partial[Tensor],
    steps: int = 1,
    second_order: bool = True,
) -> Tensor:
    adapted = adapt(
        encoder,
        parameters,
        batch,
        loss,
        learning_rate=RATE,
        steps=steps,
        second_order=second_order,
    )
    return task_loss(encoder, adapted, batch.query, loss).sum()


def test_localise_numbers_the_ids_of_each_task_like_a_loop_does() -> None:
    generator = torch.Generator().manual_seed(0)
    task = torch.randint(5, (60,), generator=generator)
    task[task == 3] = 0  # a task without slots
    ids = torch.randint(11, (60,), generator=generator)
    local = localise(task, ids, tasks=5, size=11)
    for t in range(5):
        mine = sorted(set(ids[task == t].tolist()))
        assert local.ids[t][local.mask[t]].tolist() == mine
        for slot in (task == t).nonzero().flatten().tolist():
            assert mine[local.position[slot]] == ids[slot]
    assert not local.ids[~local.mask].any()
    assert local.ids.shape[1] == max(len(set(ids[task == t].tolist())) for t in range(5))


def test_localise_of_nothing_is_one_padded_column() -> None:
    nothing = torch.zeros(0, dtype=torch.int64)
    local = localise(nothing, nothing, tasks=2, size=7)
    assert local.ids.shape == (2, 1)
    assert not local.mask.any()


@pytest.mark.parametrize("layers", [1, 2])
def test_local_ids_lead_back_to_the_global_ones(layers: int) -> None:
    batch, support, query = build(layers)
    for facts, part in ((support, batch.support), (query, batch.query)):
        for t, task in enumerate(facts):
            for f, fact in enumerate(task):
                roots = [fact.entity, fact.answer, *fact.negatives]
                found = batch.entity_ids[t][part.roots.entity[t, f, : len(roots)]]
                assert found.tolist() == roots
                for slot, root in enumerate(roots):
                    expected = links(root, fact.time, own=slot == 0)
                    hop = part.roots.hops[0]
                    real = hop.mask[t, f, slot]
                    assert int(real.sum()) == len(expected)
                    local = hop.relation[t, f, slot][real]
                    width = batch.relation_ids.shape[1]
                    relation = batch.relation_ids[t][local % width] + RELATIONS * (local // width)
                    columns = (
                        batch.entity_ids[t][hop.entity[t, f, slot][real]],
                        relation,
                        fact.time - part.roots.ages[t][hop.age[t, f, slot][real]].long(),
                    )
                    rows = zip(*(column.tolist() for column in columns), strict=True)
                    assert list(rows) == expected


def test_supports_read_only_the_first_rows_and_no_row_is_there_twice() -> None:
    batch, _, _ = build()
    roots = batch.support.roots
    for local in (roots.entity, *(hop.entity for hop in roots.hops)):
        assert int(local.max()) < batch.support_rows
    assert batch.support_rows < batch.entity_ids.shape[1]
    for ids, mask in (
        (batch.entity_ids, batch.entity_mask),
        (batch.relation_ids, batch.relation_mask),
    ):
        for t in range(TASKS):
            used = ids[t][mask[t]].tolist()
            assert len(used) == len(set(used))


def test_an_entity_can_be_fitted_without_sight_of_its_own_supports() -> None:
    seen: list[int] = []

    def record(entity: Tensor, time: Tensor, *, own: bool | Tensor) -> Neighbours:
        seen.extend(entity[torch.as_tensor(own).expand(len(entity))].tolist())
        return sample(entity, time, own=own)

    support, query = random_facts(1, 3), random_facts(2, 4)
    sizes = {"entities": ENTITIES, "relations": RELATIONS}
    TaskBatch.build(padded(support), padded(query), record, **sizes, own_in_support=False)
    asked = [fact.entity for task in query for fact in task]
    assert sorted(seen) == sorted(asked)


@pytest.mark.parametrize("layers", [1, 2])
def test_a_batch_that_is_split_has_the_losses_of_the_whole_and_is_no_wider_than_needed(
    layers: int,
) -> None:
    batch, support, query = build(layers)
    encoder = TemporalEncoder(dimension=4, layers=layers)
    parameters = random_parameters(encoder, ENTITIES, RELATIONS)

    def losses(tasks: TaskBatch) -> Tensor:
        loss = ranking(loss="softmax")
        adapted = adapt(encoder, parameters, tasks, loss, learning_rate=RATE)
        return task_loss(encoder, adapted, tasks.query, loss)

    sizes = [2, 0, 1, TASKS - 3]
    pieces = batch.split(sizes)
    assert [len(piece) for piece in pieces] == sizes
    torch.testing.assert_close(torch.cat([losses(piece) for piece in pieces]), losses(batch))
    end = 0
    for piece in pieces:
        begin, end = end, end + len(piece)
        if len(piece):
            for facts, part in ((support, piece.support), (query, piece.query)):
                assert part.mask.shape[1] == max(1, *(len(task) for task in facts[begin:end]))
            assert piece.entity_mask.shape[1] == max(1, int(piece.entity_mask.sum(1).max()))


@pytest.mark.parametrize("layers", [1, 2])
def test_a_grown_tree_encodes_global_roots_like_the_literal_loop(layers: int) -> None:
    encoder = TemporalEncoder(dimension=4, layers=layers)
    parameters = random_parameters(encoder, ENTITIES, RELATIONS)
    entity, time = torch.arange(ENTITIES), torch.arange(ENTITIES) + 3
    for own in (False, True):
        found = encode(encoder, parameters, grow(sample, entity, time, layers=layers, own=own))
        for e in range(ENTITIES):
            root = node(e, e + 3, own, layers)
            expected = literal_encode(parameters, encoder, root, layers)
            torch.testing.assert_close(found[e], expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("second_order", [True, False])
@pytest.mark.parametrize("steps", [1, 3])
@pytest.mark.parametrize(("loss", "layers"), [("hinge", 1), ("softmax", 1), ("softmax", 2)])
def test_the_batched_inner_step_equals_a_loop_over_entities(
    loss: str, layers: int, steps: int, second_order: bool
) -> None:
    encoder = TemporalEncoder(dimension=3, layers=layers)
    losses = ranking(loss=loss, reduction="sum" if loss == "hinge" else "mean")
    parameters = differentiable(encoder, torch.float64)
    batch, support, query = build(layers)
    adapted = adapt(
        encoder,
        parameters,
        batch,
        losses,
        learning_rate=RATE,
        steps=steps,
        second_order=second_order,
    )
    found = task_loss(encoder, adapted, batch.query, losses)
    expected = []
    for t in range(TASKS):
        one = literal_adapt(parameters, support[t], encoder, losses, steps, second_order)
        for key in encoder_part(parameters):
            torch.testing.assert_close(adapted[key][t], one[key], atol=1e-5, rtol=1e-5)
        for key, ids, mask in (
            ("entity", batch.entity_ids, batch.entity_mask),
            ("relation", batch.relation_ids, batch.relation_mask),
        ):
            moved, wanted = adapted[key][t][mask[t]], one[key][ids[t][mask[t]]]
            torch.testing.assert_close(moved, wanted, atol=1e-5, rtol=1e-5)
        expected.append(literal_loss(one, query[t], encoder, losses))
    torch.testing.assert_close(found, torch.stack(expected), atol=1e-5, rtol=1e-5)
    values = list(parameters.values())
    ours = torch.autograd.grad(found.sum(), values)
    theirs = torch.autograd.grad(torch.stack(expected).sum(), values)
    for mine, reference in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine, reference, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("attention", ["printed", "leaky"])
def test_finite_differences_confirm_the_second_order_outer_gradient(attention: str) -> None:
    encoder = TemporalEncoder(dimension=3, attention=attention)
    losses = ranking()
    parameters = differentiable(encoder, torch.float64)
    batch, _, _ = build()
    value = outer_loss(parameters, batch, encoder, losses, steps=2)
    exact = dict(
        zip(parameters, torch.autograd.grad(value, list(parameters.values())), strict=True)
    )
    step, checked = 1e-6, 0
    for key, tensor in parameters.items():
        for index in range(0, tensor.numel(), 2 if tensor.numel() > 12 else 1):
            moved = {name: other.detach().clone() for name, other in parameters.items()}
            ends = []
            for sign in (1, -1):
                moved[key].view(-1)[index] = tensor.detach().view(-1)[index] + sign * step
                with torch.no_grad():
                    ends.append(float(outer_loss(moved, batch, encoder, losses, steps=2)))
            slope = (ends[0] - ends[1]) / (2 * step)
            found = float(exact[key].view(-1)[index])
            assert found == pytest.approx(slope, rel=1e-5, abs=1e-6)
            checked += abs(slope) > 1e-3
    assert checked > 20


def test_the_first_order_gradient_differs_from_the_second_order_one() -> None:
    encoder, losses = TemporalEncoder(dimension=4), ranking()
    parameters = differentiable(encoder, torch.float64)
    batch, _, _ = build()
    values, gradients = [], []
    for second_order in (True, False):
        value = outer_loss(parameters, batch, encoder, losses, second_order=second_order)
        values.append(float(value.detach()))
        gradients.append(torch.autograd.grad(value, parameters["encoder.weight"])[0])
    assert values[0] == pytest.approx(values[1])
    assert (gradients[0] - gradients[1]).abs().max() > 1e-3


def test_wider_padding_changes_neither_loss_nor_gradient() -> None:
    encoder, losses = TemporalEncoder(dimension=4), ranking(loss="hinge", reduction="sum")
    parameters = differentiable(encoder, torch.float64)
    results = []
    for more in (0, 3):
        value = outer_loss(parameters, build(more=more)[0], encoder, losses)
        results.append([value, *torch.autograd.grad(value, list(parameters.values()))])
    for one, other in zip(*results, strict=True):
        torch.testing.assert_close(one, other)


def test_knowing_the_rows_of_the_support_changes_nothing() -> None:
    encoder, losses = TemporalEncoder(dimension=4), ranking()
    parameters = differentiable(encoder, torch.float64)
    batch, _, _ = build()
    width = batch.entity_ids.shape[1]
    known, unknown = (
        adapt(encoder, parameters, tasks, losses, learning_rate=RATE)
        for tasks in (batch, replace(batch, support_rows=width))
    )
    for key, value in known.items():
        torch.testing.assert_close(value, unknown[key])


def test_rows_that_nothing_reads_have_no_gradient_and_do_not_move() -> None:
    encoder, losses = TemporalEncoder(dimension=4), ranking()
    parameters = random_parameters(encoder, ENTITIES, RELATIONS)
    batch, _, _ = build()
    # Tables in which every row of every task is one of its own.
    tables = {
        key: value.flatten(0, 1).requires_grad_() for key, value in batch.rows(parameters).items()
    }
    rows = {
        "entity": torch.arange(batch.entity_ids.numel()).view_as(batch.entity_ids),
        "relation": torch.arange(batch.relation_ids.numel()).view_as(batch.relation_ids),
    }
    batch = replace(
        batch,
        entity_ids=rows["entity"],
        relation_ids=rows["relation"],
        support_rows=batch.entity_ids.shape[1],
    )
    adapted = adapt(encoder, parameters | tables, batch, losses, learning_rate=RATE)
    value = task_loss(encoder, adapted, batch.query, losses).sum()
    gradients = torch.autograd.grad(value, list(tables.values()))
    masks = (batch.entity_mask, batch.relation_mask)
    for (key, table), gradient, mask in zip(tables.items(), gradients, masks, strict=True):
        unread, read = rows[key][~mask], rows[key][mask]
        assert len(unread)
        assert not gradient[unread].any()
        assert torch.equal(adapted[key][~mask], table[unread])
        assert gradient[read].any()


def hide(facts: TaskFacts) -> TaskFacts:
    """The same facts without a single neighbour."""
    hops = tuple(hop._replace(mask=torch.zeros_like(hop.mask)) for hop in facts.roots.hops)
    return facts._replace(roots=facts.roots._replace(hops=hops))


@pytest.mark.parametrize("self_term", [False, True])
@pytest.mark.parametrize("loss", ["hinge", "softmax"])
def test_supports_without_facts_or_neighbours_give_no_nan(loss: str, self_term: bool) -> None:
    encoder = TemporalEncoder(dimension=4, self_term=self_term)
    losses = ranking(loss=loss)
    parameters = differentiable(encoder, torch.float32)
    batch, _, _ = build()
    empty = batch.support._replace(mask=torch.zeros_like(batch.support.mask))
    for support in (empty, hide(batch.support)):
        fitted = replace(batch, support=support)
        adapted = adapt(encoder, parameters, fitted, losses, learning_rate=RATE)
        value = task_loss(encoder, adapted, hide(batch.query), losses).sum()
        gradients = torch.autograd.grad(value, list(parameters.values()))
        assert all(x.isfinite().all() for x in (value, *gradients, *adapted.values()))
        if support is empty:
            shared = parameters["encoder.weight"].expand(TASKS, -1, -1, -1)
            assert torch.equal(adapted["encoder.weight"], shared)


def test_no_steps_adapt_nothing_and_a_negative_number_is_an_error() -> None:
    encoder, losses = TemporalEncoder(dimension=4), ranking()
    parameters = random_parameters(encoder, ENTITIES, RELATIONS)
    batch, _, _ = build()
    same = adapt(encoder, parameters, batch, losses, learning_rate=RATE, steps=0)
    assert torch.equal(same["entity"], batch.rows(parameters)["entity"])
    assert same["encoder.phase"].shape == (TASKS, 4)
    assert task_loss(encoder, same, batch.query, losses).shape == (TASKS,)
    with pytest.raises(ValueError, match="-1 inner steps"):
        adapt(encoder, parameters, batch, losses, learning_rate=RATE, steps=-1)


def test_dropout_in_the_inner_step_follows_the_generator() -> None:
    encoder, losses = TemporalEncoder(dimension=8), ranking()
    parameters = differentiable(encoder, torch.float32)
    batch, _, _ = build()

    def value(seed: int | None) -> Tensor:
        generator = None if seed is None else torch.Generator().manual_seed(seed)
        adapted = adapt(
            encoder,
            parameters,
            batch,
            losses,
            learning_rate=RATE,
            generator=generator,
        )
        return task_loss(encoder, adapted, batch.query, losses, generator=generator).sum()

    assert torch.equal(value(1), value(1))
    assert not torch.equal(value(1), value(2))
    assert torch.equal(value(None), value(None))
    (gradient,) = torch.autograd.grad(value(1), parameters["encoder.weight"])
    assert gradient.isfinite().all()


def test_adapted_encodings_are_those_of_each_task_alone() -> None:
    encoder, losses = TemporalEncoder(dimension=4), ranking()
    parameters = random_parameters(encoder, ENTITIES, RELATIONS)
    batch, support, query = build()
    adapted = adapt(encoder, parameters, batch, losses, learning_rate=RATE)
    found = encode(encoder, adapted, batch.query.roots)
    assert not found.requires_grad
    for value in parameters.values():
        value.requires_grad_()
    for t in range(TASKS):
        one = literal_adapt(parameters, support[t], encoder, losses, 1, True)
        for f, fact in enumerate(query[t]):
            expected = literal_encode(one, encoder, node(fact.entity, fact.time, True, 1), 1)
            torch.testing.assert_close(found[t, f, 0], expected, atol=1e-5, rtol=1e-5)

"""RE-NET by hand, and against a loop over facts."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from metatkgr.data.facts import Facts, Vocabulary
from metatkgr.data.tasks import Queries
from metatkgr.data.visibility import Supports, VisibleFacts
from metatkgr.graph.index import TemporalIndex
from metatkgr.graph.snapshots import ActiveSteps
from metatkgr.models.base import Part
from metatkgr.models.baselines.renet import (
    RENET,
    GlobalPhase,
    HistoryPhase,
    RENETSettings,
    global_states,
    read_history,
)
from metatkgr.models.common.recurrent import Noise, gru_step
from references import ENTITIES, RELATIONS, graphs, tuples

NOBODY = Supports(*[np.zeros(0, np.int64)] * 4)
Link = tuple[int, int, int, int]
"""Source, directed relation, target, step."""


def by_hand() -> RENET:
    """d = 2, one basis: the identity, for every relation."""
    model = RENET(RENETSettings(dimension=2, bases=1, global_epochs=0))
    model.build(2, 1, torch.Generator().manual_seed(0))
    one = torch.eye(2)
    state = {name: torch.zeros_like(value) for name, value in model.state_dict().items()}
    new_part = torch.cat([torch.zeros(2, 4), one], 1)
    state |= {
        "entity": torch.tensor([[1.0, -2.0], [0.0, 1.0]]),
        "relation": torch.tensor([[0.5, 0.25], [9.0, 9.0]]),
        "step.layer0.mix": torch.ones(2, 1),
        "step.layer0.bases": one,
        "step.layer0.loop": one,
        "step.layer1.mix": torch.ones(2, 1),
        "step.layer1.bases": one,
        "gru.aggregate": torch.stack([new_part, new_part]),
        "gru.relation": new_part,
        # Candidate 0: the first number of the history. Candidate 1: the entity's second number and
        # twice the history's second.
        "decoder.entity": torch.tensor([[0, 0], [0, 1], [1, 0], [0, 2], [0, 0], [0, 0]]).float(),
        "decoder.entity_bias": torch.tensor([0.0, 10.0]),
    }
    model.load_state_dict(state)
    return model


def test_a_graph_of_one_fact_by_hand() -> None:
    names = Vocabulary.numbered(2), Vocabulary.numbered(1)
    facts = Facts.build([0], [0], [1], [0], entities=names[0], relations=names[1])
    model = by_hand().prepare(VisibleFacts.of(facts)).adapt(NOBODY)
    # First layer, at entity 1: what it hears, (1, -2), and itself, (0, 1), cut at zero: (1, 0).
    # Second layer, at entity 0: the mean of what it hears, (1, 0). With the relation (.5, .25) the
    # unit's candidate is tanh (1.5, .25), of which half is taken: the update gate is 1/2.
    first, second = math.tanh(1.5) / 2, math.tanh(0.25) / 2
    scores = model.score(Queries(np.array([0]), np.array([0]), np.array([1])))
    assert scores[0].tolist() == pytest.approx([first, -2 + 2 * second + 10], abs=1e-5)
    # Before the fact there is no history at all.
    scores = model.score(Queries(np.array([0]), np.array([0]), np.array([0])))
    assert scores[0].tolist() == pytest.approx([0.0, 8.0])


def literal_rgcn(
    weights: dict[str, Tensor], part: str, links: list[Link], entity: int, level: int
) -> Tensor:
    """The vector of an entity after ``level`` convolutions over the links of one step."""
    if level == 0:
        return weights["global.entity" if part == "global." else "entity"][entity]
    layer = f"{part}layer{level - 1}."
    d = weights["entity"].shape[1]
    bases = weights[f"{layer}bases"].view(-1, d, d)
    total = torch.zeros(d)
    mine = [link for link in links if link[0] == entity]
    for _, relation, other, _ in mine:
        matrix = (weights[f"{layer}mix"][relation][:, None, None] * bases).sum(0)
        total += literal_rgcn(weights, part, links, other, level - 1) @ matrix
    own = literal_rgcn(weights, part, links, entity, level - 1) @ weights[f"{layer}loop"]
    result = total / max(len(mine), 1) + own
    return result.relu() if level == 1 else result


def literal_states(
    weights: dict[str, Tensor], links: list[Link], history: int
) -> dict[int, Tensor]:
    """The state of the graph after each step."""
    pooled = {}
    for step in sorted({link[3] for link in links}):
        here = [link for link in links if link[3] == step]
        rows = [literal_rgcn(weights, "global.", here, e, 2) for e in {link[0] for link in here}]
        pooled[step] = torch.stack(rows).max(0).values
    states = {}
    for step in pooled:
        hidden = torch.zeros(1, weights["entity"].shape[1])
        for earlier in [s for s in pooled if s <= step][-history:]:
            inputs = pooled[earlier] @ weights["global.input"] + weights["global.input_bias"]
            hidden = gru_step(
                inputs[None], hidden, weights["global.hidden"], weights["global.hidden_bias"]
            )
        states[step] = hidden[0]
    return states


def literal_scores(
    weights: dict[str, Tensor], links: list[Link], own: list[Link], ask: Link, history: int
) -> Tensor:
    """(E,) logits of one question (e, r, -, t)."""
    entity, relation, _, time = ask
    d = weights["entity"].shape[1]
    states = literal_states(weights, links, history)
    past = [
        (step, [link for link in links if link[3] == step])
        for step in sorted({link[3] for link in links if link[0] == entity and link[3] < time})
    ]
    late = [
        (None, [link for link in own if link[3] == step])
        for step in sorted({link[3] for link in own if link[3] >= time})
    ]
    who, asked = weights["entity"][entity], weights["relation"][relation]
    hidden = torch.zeros(1, d)
    for step, here in (past + late)[-history:]:
        met = literal_rgcn(weights, "step.", here, entity, 2)
        state = torch.zeros(d) if step is None else states[step]
        parts = zip(
            (met, who, asked, state), ("aggregate", "entity", "relation", "global"), strict=True
        )
        inputs = weights["gru.input_bias"][0]
        for vector, name in parts:
            matrix = weights[f"gru.{name}"]
            inputs = inputs + vector @ (matrix if matrix.dim() == 2 else matrix[0])
        hidden = gru_step(inputs, hidden, weights["gru.hidden"][0], weights["gru.hidden_bias"][0])
    row = torch.cat([who, hidden[0], asked])
    return row @ weights["decoder.entity"] + weights["decoder.entity_bias"]


def some_model(facts: Facts, history: int) -> tuple[RENET, dict[str, Tensor], list[Link]]:
    model = RENET(RENETSettings(dimension=4, history=history, neighbours=99, dropout=0.0))
    model.build(ENTITIES, RELATIONS, torch.Generator().manual_seed(1))
    visible = VisibleFacts.of(facts)
    columns = (visible.source, visible.relation, visible.target, visible.time)
    links = list(zip(*(column.tolist() for column in columns), strict=True))
    # A fact of an entity with itself is one link.
    links = [link for link in links if link[0] != link[2] or link[1] < RELATIONS]
    return model, model.state_dict(), links


@settings(max_examples=15)
@given(graphs(max_facts=20), st.integers(1, 3), st.data())
def test_questions_are_read_together_as_they_are_fact_by_fact(
    facts: Facts, history: int, data: st.DataObject
) -> None:
    model, weights, links = some_model(facts, history)
    owner = data.draw(st.sampled_from(sorted({link[0] for link in links})))
    # Without self-links, whose two rows a support would have to list both.
    own = [link for link in links if link[0] == owner and link[2] != owner][:2]
    columns = [[link[i] for link in own] for i in range(4)]
    supports = Supports(*(np.array(column, np.int64) for column in columns))
    asked = data.draw(
        st.lists(
            st.tuples(
                st.one_of(st.just(owner), st.integers(0, ENTITIES - 1)),
                st.integers(0, 2 * RELATIONS - 1),
                st.just(-1),
                st.integers(0, facts.steps + 1),
            ),
            min_size=1,
            max_size=4,
        )
    )
    entity, relation, _, time = (np.array(column) for column in zip(*asked, strict=True))
    model.prepare(VisibleFacts.of(facts)).adapt(supports)
    scores = model.score(Queries(entity, relation, time))
    for row, ask in enumerate(asked):
        mine = own if ask[0] == owner else []
        expected = literal_scores(weights, links, mine, ask, history)
        assert torch.allclose(scores[row], expected, atol=1e-5)


@settings(max_examples=15)
@given(graphs(max_facts=20), st.integers(1, 3))
def test_the_state_of_the_graph_is_that_of_a_loop_over_facts(facts: Facts, history: int) -> None:
    _, weights, links = some_model(facts, history)
    states = global_states(weights, ActiveSteps(TemporalIndex.of(VisibleFacts.of(facts))), history)
    expected = literal_states(weights, links, history)
    for step in range(len(states)):
        wanted = expected.get(step, torch.zeros(4))
        assert torch.allclose(states[step], wanted, atol=1e-5)


def test_the_cap_keeps_the_last_links_of_a_step() -> None:
    rows = [(0, 0, 1, 0), (0, 0, 2, 0), (0, 1, 3, 0)]
    columns = [list(column) for column in zip(*rows, strict=True)]
    names = Vocabulary.numbered(ENTITIES), Vocabulary.numbered(RELATIONS)

    def scores(kept: slice, cap: int) -> Tensor:
        facts = Facts.build(
            *(column[kept] for column in columns), entities=names[0], relations=names[1]
        )
        model = RENET(RENETSettings(dimension=4, neighbours=cap, global_epochs=0))
        model.build(ENTITIES, RELATIONS, torch.Generator().manual_seed(1))
        model.prepare(VisibleFacts.of(facts)).adapt(NOBODY)
        return model.score(Queries(np.array([0]), np.array([0]), np.array([1])))

    assert torch.equal(scores(slice(1, 3), 2), scores(slice(0, 3), 2))
    assert not torch.equal(scores(slice(0, 3), 3), scores(slice(0, 3), 2))


@settings(max_examples=10)
@given(graphs())
def test_the_global_loss_compares_with_the_shares_of_the_next_step(facts: Facts) -> None:
    model, weights, links = some_model(facts, 2)
    stage = GlobalPhase(model, VisibleFacts.of(facts))
    states = literal_states(weights, links, 2)
    steps = list(states)
    generator = torch.Generator().manual_seed(0)
    for begin, end in stage.batches(generator):
        losses = []
        for number in range(begin, end):
            row = states[steps[number - 1]]
            log = (row @ weights["global.decoder"] + weights["global.decoder_bias"]).log_softmax(0)
            here = [link[0] for link in links if link[3] == steps[number]]
            losses.append(-sum(float(log[e]) for e in here) / len(here))
        found = stage.loss((begin, end), generator)
        assert float(found.value.detach()) == pytest.approx(sum(losses) / len(losses), abs=1e-4)


def test_the_parts_of_a_batch_add_up_to_the_whole() -> None:
    rows = [(0, 0, 1, 0), (1, 1, 2, 1), (2, 2, 0, 1), (0, 0, 1, 2), (3, 1, 1, 2)]
    columns = [list(column) for column in zip(*rows, strict=True)]
    names = Vocabulary.numbered(ENTITIES), Vocabulary.numbered(RELATIONS)
    facts = Facts.build(*columns, entities=names[0], relations=names[1])
    assert tuples(facts) == rows
    model = RENET(RENETSettings(dimension=4, dropout=0.0))
    model.build(ENTITIES, RELATIONS, torch.Generator().manual_seed(1))
    known = VisibleFacts.of(facts)
    stage = HistoryPhase(model, known)
    (batch,) = stage.batches(torch.Generator().manual_seed(0))
    whole = stage.loss(batch, torch.Generator().manual_seed(4))
    parts = [
        stage.loss(batch, torch.Generator().manual_seed(4), Part(number, 3)) for number in range(3)
    ]
    together = sum(float(part.value.detach()) * part.share for part in parts)
    assert together == pytest.approx(float(whole.value.detach()), abs=1e-5)


def test_the_relation_is_predicted_without_knowing_it() -> None:
    names = Vocabulary.numbered(ENTITIES), Vocabulary.numbered(RELATIONS)
    facts = Facts.build([0], [0], [1], [0], entities=names[0], relations=names[1])
    model, weights, _ = some_model(facts, 2)
    active = ActiveSteps(TemporalIndex.of(VisibleFacts.of(facts)))
    world = global_states(weights, active, 2)
    silent = Noise(None, "cpu", 0.0)
    rows = [
        read_history(
            weights,
            active,
            world,
            (torch.tensor([0]), torch.tensor([relation]), torch.tensor([1])),
            model.settings,
            silent,
        )
        for relation in (0, 1)
    ]
    assert torch.equal(rows[0][1], rows[1][1])
    assert not torch.equal(rows[0][0], rows[1][0])


@pytest.mark.parametrize(
    ("wrong", "complaint"),
    [
        ({"bases": 0}, "bases must be at least 1"),
        ({"global_epochs": -1}, "global_epochs must not be negative"),
        ({"dropout": 1.0}, "dropout must be"),
        ({"learning_rate": 0.0}, "learning_rate must be"),
    ],
)
def test_settings_that_make_no_sense_are_refused(wrong: dict[str, float], complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        RENETSettings(**wrong)  # type: ignore[arg-type]

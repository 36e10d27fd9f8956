"""RE-GCN by hand, and against a loop over facts."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional

from metatkgr.data.facts import Facts, Vocabulary
from metatkgr.data.tasks import Queries
from metatkgr.data.visibility import VisibleFacts
from metatkgr.graph.snapshots import Snapshots
from metatkgr.models.base import Part
from metatkgr.models.baselines.regcn import REGCN, EvolutionPhase, REGCNSettings, evolve
from metatkgr.models.common.recurrent import Noise, gru_step
from references import ENTITIES, RELATIONS, graphs

SILENT = Noise(None, "cpu", 0.0)


def one_fact() -> VisibleFacts:
    """Entity 0 -r0-> entity 1 at step 0; entity 2 does nothing."""
    names = Vocabulary.numbered(3), Vocabulary.numbered(1)
    return VisibleFacts.of(Facts.build([0], [0], [1], [0], entities=names[0], relations=names[1]))


def by_hand() -> REGCN:
    """d = 2, one layer, one feature map of width 1 that looks at the first vector only."""
    model = REGCN(REGCNSettings(dimension=2, history=2, layers=1, channels=1, kernel=1))
    model.build(3, 1, torch.Generator().manual_seed(0))
    one = torch.eye(2)
    state = {name: torch.zeros_like(value) for name, value in model.state_dict().items()}
    state |= {
        "entity": torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 0.0]]),
        "relation": torch.tensor([[0.6, 0.8], [1.0, 0.0]]),
        "layer0.message": one,
        "layer0.loops": torch.cat([one, -one], 1),
        "entities.kernel": torch.tensor([[[1.0], [0.0]]]),
        "entities.map_scale": torch.ones(1, 1),
        "entities.linear": one,
        "entities.scale": torch.tensor([3.0, 3.0]),
        "entities.shift": torch.tensor([1.0, 1.0]),
    }
    model.load_state_dict(state)
    return model


def test_a_graph_of_one_fact_by_hand() -> None:
    model = by_hand().prepare(one_fact())
    # A unit whose weights are zero halves its state, and a vector of length 1 is that again.
    # Entity 0 hears e1 + r1 = (1, 1) and its loop (1, 0); entity 1 hears e0 + r0 = (1.6, .8) and
    # its loop (0, 1); both become vectors of length 1. The third has another loop, -1: (-1, 0),
    # shrunk by the activation and then of length 1. The gate is 1/2: the mean of old and new.
    expected = [
        [(2 / math.sqrt(5) + 1) / 2, 1 / math.sqrt(5) / 2],
        [1.6 / math.sqrt(5.8) / 2, (1.8 / math.sqrt(5.8) + 1) / 2],
        [0.0, 0.0],
    ]
    entity, relation = model._evolved(1)
    assert entity.tolist() == [pytest.approx(row, abs=1e-5) for row in expected]
    assert relation.tolist() == [pytest.approx(row) for row in ([0.6, 0.8], [1.0, 0.0])]

    def unit(half: float) -> float:
        """Normalised, two numbers that far from their mean: all but 1, for the 1e-5 in it."""
        return half / math.sqrt(half**2 + 1e-5)

    # Of two numbers, normalisation leaves about +1 for the larger and -1 for the other, and again
    # of the map; what is negative is cut off, the linear layer's (1, 0) becomes (+1, -1) once
    # more, and 3x + 1 of it is about (4, -2), cut to (4, 0).
    map_of = unit(unit((expected[0][0] - expected[0][1]) / 2))
    asked = 3 * unit(map_of / 2) + 1
    ask = Queries(np.array([0]), np.array([0]), np.array([1]))
    score = [asked * math.tanh(row[0]) for row in expected]
    assert model.score(ask)[0].tolist() == pytest.approx(score, abs=1e-5)


def test_before_the_first_step_the_learned_vectors_are_asked() -> None:
    model = by_hand().prepare(one_fact())
    entity, relation = model._evolved(0)
    assert torch.equal(entity, model.weights["entity"])
    assert torch.allclose(relation, model.weights["relation"])


def literal_evolution(
    weights: dict[str, Tensor], facts: Facts, steps: list[int], layers: int
) -> tuple[Tensor, Tensor]:
    """One window of steps, fact by fact."""
    h = functional.normalize(weights["entity"])
    r = functional.normalize(weights["relation"])
    columns = (facts.subject, facts.relation, facts.object, facts.time)
    for step in steps:
        here = [f for f in zip(*(c.tolist() for c in columns), strict=True) if f[3] == step]
        inputs = []
        for relation in range(2 * RELATIONS):
            ends = {e for s, q, o, _ in here if q == relation % RELATIONS for e in (s, o)}
            mean = sum((h[e] for e in ends), torch.zeros(h.shape[1])) / max(len(ends), 1)
            both = torch.cat([weights["relation"][relation], mean])
            inputs.append(
                both @ torch.cat([weights["gru.own"], weights["gru.ends"]])
                + weights["gru.input_bias"]
            )
        r = gru_step(torch.stack(inputs), r, weights["gru.hidden"], weights["gru.hidden_bias"])
        r = functional.normalize(r)
        x = h
        for layer in range(layers):
            rows = []
            loop, alone = weights[f"layer{layer}.loops"].chunk(2, 1)
            for e in range(ENTITIES):
                heard = [
                    (x[s] + r[q]) @ weights[f"layer{layer}.message"]
                    for s, q, o, _ in here
                    if o == e
                ]
                heard += [
                    (x[o] + r[q + RELATIONS]) @ weights[f"layer{layer}.message"]
                    for s, q, o, _ in here
                    if s == e
                ]
                new = x[e] @ (loop if heard else alone)
                if heard:
                    new = new + sum(heard) / len(heard)
                rows.append(torch.where(new >= 0, new, new * 11 / 48))
            x = torch.stack(rows)
        gate = torch.sigmoid(h @ weights["gate"] + weights["gate_bias"])
        h = gate * functional.normalize(x) + (1 - gate) * h
    return h, r


@settings(max_examples=15)
@given(graphs(), st.lists(st.integers(0, 30), min_size=1, max_size=3), st.integers(1, 3))
def test_windows_evolve_together_as_they_do_fact_by_fact(
    facts: Facts, times: list[int], history: int
) -> None:
    model = REGCN(REGCNSettings(dimension=4, history=history, channels=2))
    model.build(ENTITIES, RELATIONS, torch.Generator().manual_seed(1))
    weights = model.state_dict()
    for name in ("gru.input_bias", "gru.hidden_bias", "gate_bias"):
        weights[name] = torch.randn(weights[name].shape, generator=torch.Generator().manual_seed(2))
    snapshots = Snapshots(VisibleFacts.of(facts))
    window = snapshots.window(torch.tensor(times), history)
    entity, relation = evolve(weights, snapshots, window, 2, SILENT)
    for row, time in enumerate(times):
        steps = [step for step in snapshots.steps.tolist() if step < time][-history:]
        expected = literal_evolution(weights, facts, steps, 2)
        assert torch.allclose(entity[row], expected[0], atol=1e-5)
        assert torch.allclose(relation[row], expected[1], atol=1e-5)


def phase(facts: Facts, **changes: int | float) -> EvolutionPhase:
    chosen = REGCNSettings(**{"dimension": 4, "channels": 2, **changes})  # type: ignore[arg-type]
    model = REGCN(chosen)
    model.build(ENTITIES, RELATIONS, torch.Generator().manual_seed(1))
    return EvolutionPhase(model, VisibleFacts.of(facts))


@given(graphs(), st.integers(1, 9), st.integers(1, 4))
def test_an_epoch_has_every_fact_once_at_its_own_step(
    facts: Facts, batch_size: int, steps_at_once: int
) -> None:
    stage = phase(facts, batch_size=batch_size, steps_at_once=steps_at_once)
    time = torch.from_numpy(VisibleFacts.of(facts).time)
    seen = []
    for batch in stage.batches(torch.Generator().manual_seed(0)):
        assert len(batch.fact) <= batch_size
        assert len(batch.time) <= steps_at_once
        assert torch.equal(batch.time[batch.step], time[batch.fact])
        seen.append(batch.fact)
    assert torch.equal(torch.cat(seen).sort().values, torch.arange(len(time)))


def test_the_parts_of_a_batch_add_up_to_the_whole() -> None:
    rows = [(0, 0, 1, 0), (1, 1, 2, 1), (2, 2, 0, 1), (0, 0, 1, 2), (3, 1, 1, 2)]
    subject, relation, obj, time = (list(column) for column in zip(*rows, strict=True))
    names = Vocabulary.numbered(ENTITIES), Vocabulary.numbered(RELATIONS)
    facts = Facts.build(subject, relation, obj, time, entities=names[0], relations=names[1])
    # The dropout of the decoders depends on the part, as it would on another machine.
    stage = phase(facts, dropout=0.0)
    (batch,) = stage.batches(torch.Generator().manual_seed(0))
    whole = stage.loss(batch, torch.Generator().manual_seed(4))
    parts = [
        stage.loss(batch, torch.Generator().manual_seed(4), Part(number, 3)) for number in range(3)
    ]
    together = sum(float(part.value.detach()) * part.share for part in parts)
    assert together == pytest.approx(float(whole.value.detach()), abs=1e-5)


@pytest.mark.parametrize(
    ("wrong", "complaint"),
    [
        ({"kernel": 2}, "kernel must be odd"),
        ({"history": 0}, "history must be at least 1"),
        ({"dropout": 1.0}, "dropout must be"),
        ({"entity_weight": 2.0}, "entity_weight must be"),
        ({"learning_rate": 0.0}, "learning_rate must be"),
    ],
)
def test_settings_that_make_no_sense_are_refused(wrong: dict[str, float], complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        REGCNSettings(**wrong)  # type: ignore[arg-type]

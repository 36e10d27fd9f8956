"""Meta-training goes over the right queries in the right order, and its parts are switches."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import pytest
import torch

from metatkgr.data.periods import Period
from metatkgr.data.problem import Problem
from metatkgr.data.tasks import Queries
from metatkgr.data.world import simulate
from metatkgr.errors import SettingsError, UnknownNameError
from metatkgr.evaluation.evaluator import evaluate
from metatkgr.models import create
from metatkgr.models.base import WHOLE, Part
from metatkgr.models.common.few_shot import SupportTable
from metatkgr.models.common.translation import TranslationStart
from metatkgr.models.metatkgr.curriculum import BackgroundPhase, MetaPhase
from metatkgr.models.metatkgr.model import MetaTKGR
from metatkgr.training.loop import DivergedError, train

SMALL = {
    "dimension": 16,
    "translation_epochs": 2,
    "background_epochs": 1,
    "background_steps": 2,
    "epochs": 1,
    "negatives": 4,
    "patience": 0,
}


@lru_cache(maxsize=1)
def problem() -> Problem:
    return Problem.of(simulate(facts=3000, seed=7), shots=2)


def built(**changes: object) -> MetaTKGR:
    model = create("metatkgr", {**SMALL, **changes})
    assert isinstance(model, MetaTKGR)
    known = problem().known
    model.build(len(known.entities), len(known.relations), torch.Generator().manual_seed(0))
    return model


def meta_phase(model: MetaTKGR) -> MetaPhase:
    phase = model.phases(problem())[-1]
    assert isinstance(phase, MetaPhase)
    return phase


def test_intervals_go_from_near_to_far_and_hold_every_query_once() -> None:
    phase = meta_phase(built(queries_per_task=10_000))
    tasks = problem().train
    time = tasks.questions.time[tasks.answers.question]
    span = time.max() - time.min() + 1
    seen, last = 0, -1
    generator = torch.Generator().manual_seed(0)
    for batch in phase.batches(generator):
        assert batch.interval >= last
        last = batch.interval
        drawn = phase._draw_queries(batch, generator)
        inside = drawn.time[drawn.mask].numpy() - time.min()
        assert (inside * len(phase.queries) // span == batch.interval).all()
        seen += int(drawn.mask.sum())
    assert last == 2
    assert seen == len(tasks.answers)


def test_a_task_draws_different_queries_and_no_more_than_it_may() -> None:
    phase = meta_phase(built(queries_per_task=3))
    generator = torch.Generator().manual_seed(1)
    batch = next(iter(phase.batches(generator)))
    drawn = phase._draw_queries(batch, generator)
    assert drawn.entity.shape[1] <= 3
    for row in range(len(batch.entity)):
        kept = drawn.mask[row]
        assert set(drawn.entity[row][kept].tolist()) == {int(batch.entity[row])}
        facts = list(
            zip(
                drawn.relation[row][kept].tolist(),
                drawn.answer[row][kept].tolist(),
                drawn.time[row][kept].tolist(),
                strict=True,
            )
        )
        assert len(facts) == len(set(facts))


def test_the_prior_is_frozen_when_an_interval_begins() -> None:
    phase = meta_phase(built())
    generator = torch.Generator().manual_seed(0)
    intervals, priors = [], []
    for batch in phase.batches(generator):
        if batch.interval not in intervals:
            intervals.append(batch.interval)
            priors.append(phase.prior["encoder.attention_time"].clone())
        with torch.no_grad():
            phase.weights["encoder.attention_time"] += 1.0
    assert len(priors) == 3
    assert not torch.equal(priors[0], priors[1])


def test_the_logged_bound_is_the_loss_of_the_full_variant_and_the_term_is_a_switch() -> None:
    generator = torch.Generator().manual_seed(3)
    for variant, regularised in (("full", True), ("no-regulariser", False), ("static-maml", False)):
        phase = meta_phase(built(variant=variant, dropout=0))
        batch = next(iter(phase.batches(generator)))
        loss = phase.loss(batch, generator)
        expected = loss.logged["bound"] if regularised else loss.logged["empirical"]
        assert float(loss.value.detach()) == pytest.approx(float(expected), rel=1e-5)
        assert float(loss.logged["kl"]) == 0.0
        assert len(phase.queries) == (1 if variant == "static-maml" else 3)


@pytest.mark.parametrize("stage", ["background", "meta"])
@pytest.mark.parametrize("layers", [1, 2])
def test_how_many_batches_are_made_ready_together_does_not_matter(stage: str, layers: int) -> None:
    """Neighbours, queries, negatives and dropout of a batch follow from its place alone."""

    def losses(size: int, part: Part) -> list[float]:
        model = built(
            dropout=0.3, batch_size=7, background_batch=40, background_steps=6, layers=layers
        )
        (phase,) = [phase for phase in model.phases(problem()) if phase.name == stage]
        assert isinstance(phase, MetaPhase | BackgroundPhase)
        phase.together = size
        generator = torch.Generator().manual_seed(5)
        return [
            float(phase.loss(batch, generator, part).value.detach())
            for batch in phase.batches(generator)
        ]

    for part in (WHOLE, Part(1, 2)):
        alone = losses(1, part)
        assert len(alone) > 4
        for size in (3, 1000):
            assert losses(size, part) == pytest.approx(alone, rel=1e-5)


def test_a_batch_that_is_asked_for_again_is_drawn_again() -> None:
    phase = meta_phase(built(batch_size=7, queries_per_task=1, dropout=0))
    generator = torch.Generator().manual_seed(5)
    batch = next(iter(phase.batches(generator)))
    state = generator.get_state()
    first, other = (float(phase.loss(batch, generator).value.detach()) for _ in range(2))
    generator.set_state(state)
    assert float(phase.loss(batch, generator).value.detach()) == pytest.approx(first, rel=1e-6)
    assert other != pytest.approx(first, rel=1e-6)


def test_fine_tuning_leaves_meta_training_out() -> None:
    names = [phase.name for phase in built(variant="fine-tuning").phases(problem())]
    assert names == ["translation", "background"]
    assert [p.name for p in built().phases(problem())] == ["translation", "background", "meta"]


def test_tables_stay_where_they_are_unless_they_are_learned() -> None:
    for learn in (False, True):
        model = built(learn_tables=learn, translation_epochs=0, background_epochs=0)
        before = model.weights["entity"].detach().clone()
        phase = meta_phase(model)
        optimiser = torch.optim.Adam(phase.parameters(), lr=0.01)
        generator = torch.Generator().manual_seed(0)
        phase.loss(next(iter(phase.batches(generator))), generator).value.backward()
        optimiser.step()
        assert torch.equal(before, model.weights["entity"]) is not learn


def test_supports_are_picked_by_entity_in_order() -> None:
    supports = problem().train.supports
    table = SupportTable(supports, entities=len(problem().known.entities), negatives=3)
    chosen = np.unique(supports.entity)[[3, 0, 5]]
    picked = table.pick(torch.from_numpy(chosen))
    for row, entity in enumerate(chosen):
        own = supports.of(int(entity))
        kept = picked.mask[row]
        assert picked.answer[row][kept].tolist() == own.other.tolist()
        assert picked.relation[row][kept].tolist() == own.relation.tolist()
        assert picked.time[row][kept].tolist() == own.time.tolist()
    nobody = table.pick(torch.tensor([0]))
    assert not nobody.mask.any()


def test_exact_and_shared_candidates_agree_without_adaptation_and_differ_with_it() -> None:
    tasks = problem().validation
    questions = tasks.questions[np.arange(0, len(tasks.questions), 40)]

    def scores(candidates: str, steps: int) -> torch.Tensor:
        model = built(candidates=candidates, inner_steps=steps, inner_rate=0.1)
        return model.prepare(tasks.visible).adapt(tasks.supports).score(questions)

    torch.testing.assert_close(scores("shared", 0), scores("exact", 0), rtol=1e-4, atol=1e-4)
    assert not torch.allclose(scores("shared", 1), scores("exact", 1), rtol=1e-4, atol=1e-4)


def test_adaptation_lowers_the_distance_to_the_own_support() -> None:
    tasks = problem().validation
    own = tasks.supports
    rows = np.arange(0, len(own), 5)
    after = Queries(own.entity[rows], own.relation[rows], own.time[rows] + 1)
    answers = torch.from_numpy(own.other[rows]).unsqueeze(1)

    def mean_score(steps: int) -> float:
        model = built(inner_steps=steps, inner_rate=0.05, candidates="exact")
        model.prepare(tasks.visible).adapt(own)
        return float(model.score(after).gather(1, answers).mean())

    assert mean_score(3) > mean_score(0)


def test_training_moves_the_model_above_its_start_on_the_world() -> None:
    known = problem()
    model = built()
    before = evaluate(model, known.validation).summary(resamples=0).mrr
    model = create("metatkgr", {**SMALL, "translation_epochs": 15, "epochs": 2})
    assert isinstance(model, MetaTKGR)
    lines = train(model, known, seed=1)
    after = evaluate(model, known.validation).summary(resamples=0).mrr
    assert before is not None
    assert after is not None
    assert after > 2 * before
    meta = [line for line in lines if line["phase"] == "meta"]
    assert len(meta) == 2
    assert all(line["bound"] > line["empirical"] for line in meta)


def test_a_loss_that_is_not_finite_stops_with_step_and_batch_named() -> None:
    model = create("metatkgr", {**SMALL, "outer_rate": 1e30, "background_epochs": 0, "epochs": 3})
    assert isinstance(model, MetaTKGR)
    with pytest.raises(DivergedError, match=r"phase 'meta', epoch \d+, batch \d+, step \d+"):
        train(model, problem(), seed=1)


@pytest.mark.parametrize(
    "wrong",
    [
        {"variant": "half"},
        {"sampler": "dfs"},
        {"negatives": 0},
        {"attention": "none"},
        {"window": -1},
        {"message": "loud"},
    ],
)
def test_impossible_settings_are_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(SettingsError):
        create("metatkgr", wrong)


def test_presets_are_named_sets_of_settings() -> None:
    paper = create("metatkgr", preset="paper").settings
    assert (paper.loss, paper.attention, paper.message) == ("hinge", "printed", "printed")
    assert create("metatkgr", {"margin": "0.4"}, preset="paper").settings.margin == 0.4
    with pytest.raises(UnknownNameError, match="paper"):
        create("metatkgr", preset="papers")


def test_the_papers_first_vectors_know_meta_train_and_one_fact_of_later_entities() -> None:
    problem = Problem.of(simulate(facts=3000, seed=7), shots=2)
    facts, periods = problem.train.facts, problem.train.periods
    model = create("metatkgr", SMALL, preset="paper")
    assert isinstance(model, MetaTKGR)
    model.build(len(facts.entities), len(facts.relations), torch.Generator().manual_seed(0))
    phase = model.phases(problem)[0]
    assert isinstance(phase, TranslationStart)
    # By hand: whose facts they are, and of later entities each one's first.
    expected, met = set(), set()
    rows = zip(*(c.tolist() for c in (facts.subject, facts.relation, facts.object)), strict=True)
    for row, (subject, relation, other) in enumerate(rows):
        new = {e for e in (subject, other) if periods.of_entity[e] == periods.of_fact[row]}
        later = periods.of_fact[row] >= Period.META_VALIDATION
        if not later or new - met:
            expected |= {
                (subject, relation, other),
                (other, relation + len(facts.relations), subject),
            }
        met |= new if later else set()
    assert {tuple(triple) for triple in phase.triples.tolist()} == expected

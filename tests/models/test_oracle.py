"""The law of the simulated world is exact, and the oracle scores with it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from metatkgr.data.facts import Facts, Vocabulary
from metatkgr.data.tasks import Queries, Tasks
from metatkgr.data.visibility import VisibleFacts
from metatkgr.data.world import WorldSettings, simulate
from metatkgr.data.world.kinds import CAREERS
from metatkgr.data.world.law import Law
from metatkgr.data.world.plan import (
    CLUB,
    COMPETES_IN,
    ENDORSEMENT_CHANGE,
    ENDORSEMENT_LATE,
    ENDORSEMENT_NEWS,
    ENDORSES,
    GOALS,
    LEAGUE_CHANGE,
    LEAGUE_NEWS,
    PLAYS_FOR,
    SCORES_AGAINST,
    SPONSOR_CHANGE,
    SPONSOR_NEWS,
    SPONSORS,
    STRAY,
    Plan,
    report_chance,
)
from metatkgr.data.world.state import CAREER, LEAVERS, streams_of
from metatkgr.data.world.step import Careers
from metatkgr.errors import DataError
from metatkgr.evaluation.evaluator import evaluate
from metatkgr.models.registry import create
from metatkgr.models.rules import Oracle, Recurrency

R = len(CAREERS.relations)


@pytest.fixture(scope="module")
def world() -> Facts:
    return simulate()


@pytest.fixture(scope="module")
def tasks(world: Facts) -> Tasks:
    return Tasks.build(world)


def everything(law: Law, steps: range, relation: int) -> Queries:
    """Questions about all entities of the relation's kind at all ``steps``."""
    inverse, base = divmod(relation, R)
    entity = np.flatnonzero(law.type_of == CAREERS.slot_types[base][1 if inverse else 0])
    count = len(steps)
    return Queries(
        np.tile(entity, count),
        np.full(len(entity) * count, relation),
        np.repeat(np.array(steps), len(entity)),
    )


def happened(facts: Facts, queries: Queries) -> np.ndarray:
    """(Q, E) whether each answer is a fact at the time of the question."""
    asked = (queries.time * R + queries.relation) * len(facts.entities) + queries.entity
    key = (facts.time * R + facts.relation) * len(facts.entities) + facts.subject
    order = np.argsort(asked)
    row = order[np.minimum(np.searchsorted(asked, key, sorter=order), len(asked) - 1)]
    found = asked[row] == key
    truth = np.zeros((len(queries), len(facts.entities)), bool)
    truth[row[found], facts.object[found]] = True
    return truth


@pytest.mark.parametrize("step", [0, 55, 125])
def test_chances_are_the_frequencies_of_many_draws_from_the_same_state(step: int) -> None:
    settings = WorldSettings(facts=2_000, moves=0.3)
    state = Careers(Plan.of(settings))
    while state.step < step:
        state.advance()
    total = state.plan.entities_before(step + 1)
    draws = 1_200
    seen = np.zeros((R, total, total))
    for seed in range(draws):
        again = state.copy()
        again.streams = streams_of(1_000 + seed)
        facts = again.advance()
        np.add.at(seen, (facts.relation, facts.subject, facts.object), 1)
    law = Law(settings, total, last_step=step)
    for relation in range(R):
        queries = everything(law, range(step, step + 1), relation)
        chance = law.chances(queries)
        count = seen[relation, queries.entity]
        assert count[chance == 0].sum() == 0
        deviation = (count - draws * chance) / np.sqrt(draws * chance * (1 - chance) + 1e-9)
        usual = (draws * chance > 10) & (chance < 1)
        assert np.abs(deviation[usual]).max(initial=0) < 5.5
        assert (count[chance == 1] == draws).all()
        total_chance = draws * chance.sum()
        assert abs(count.sum() - total_chance) <= 5 * np.sqrt(total_chance) + 1e-6


def test_chances_are_calibrated_over_many_worlds() -> None:
    edges = np.array([0, 0.003, 0.01, 0.05, 0.1, 0.3, 1.01])
    predicted, found, spread = np.zeros((3, R, len(edges) - 1))
    for seed in range(5):
        facts = simulate(facts=3_000, seed=seed)
        for relation in range(R):
            queries = everything(facts.law, range(3, facts.steps - 1, 4), relation)
            chance = facts.law.chances(queries).reshape(-1)
            real = happened(facts, queries).reshape(-1)
            assert not real[chance == 0].any()
            bin_ = np.digitize(chance, edges) - 1
            size = len(edges) - 1
            predicted[relation] += np.bincount(bin_, chance, size)
            found[relation] += np.bincount(bin_, real, size)
            spread[relation] += np.bincount(bin_, chance * (1 - chance), size)
    deviation = (found - predicted) / np.sqrt(np.maximum(spread, 1))
    assert np.abs(deviation).max() < 4.5
    np.testing.assert_allclose(predicted.sum(), found.sum(), rtol=0.03)


def test_a_move_is_as_likely_as_a_literal_count_says(world: Facts) -> None:
    state = world.law.before(120)
    settings = world.law.settings
    players = np.arange(0, len(state.player_id), 17)
    chance = state.chances(PLAYS_FOR, players, np.arange(len(state.club_id)))
    for row, player in zip(chance, players, strict=True):
        own = state.career[player, 0]
        near = [c for c in range(len(row)) if state.league[c] == state.league[own]]
        expected = np.zeros(len(row))
        for past in state.career[player]:
            for mate in state.leavers[past] if past >= 0 else [-1] * LEAVERS:
                weight = settings.moves / (CAREER * LEAVERS)
                found = np.flatnonzero(state.player_id == mate)
                if len(found) and found[0] != player:
                    expected[state.career[found[0], 0]] += weight * settings.follow
                    weight *= 1 - settings.follow
                expected[near] += weight * (1 - STRAY) / len(near)
                expected += weight * STRAY / len(row)
        expected[own] += (1 - settings.moves) * state.activity[player]
        np.testing.assert_allclose(row, expected)


def test_the_chances_of_all_answers_add_up_to_the_chance_that_anything_is_told(
    world: Facts,
) -> None:
    state, moves = world.law.before(180), world.law.settings.moves
    players, clubs = np.arange(len(state.player_id)), np.arange(len(state.club_id))
    sponsors, leagues = np.arange(len(state.sponsor_id)), np.arange(state.plan.leagues)
    size = np.bincount(state.league)[state.league[state.career[:, 0]]]
    bound = state.endorsed >= 0
    expected = {
        PLAYS_FOR: (players, clubs, moves + (1 - moves) * state.activity),
        COMPETES_IN: (clubs, leagues, report_chance(LEAGUE_CHANGE, LEAGUE_NEWS)),
        SCORES_AGAINST: (players, clubs, GOALS * state.activity * (size > 1)),
        ENDORSES: (
            players,
            sponsors,
            np.where(bound, report_chance(ENDORSEMENT_CHANGE, ENDORSEMENT_NEWS), ENDORSEMENT_LATE),
        ),
    }
    for relation, (subjects, objects, total) in expected.items():
        chance = state.chances(relation, subjects, objects).sum(axis=1)
        np.testing.assert_allclose(chance, np.broadcast_to(total, chance.shape))
    by_club = state.chances(SPONSORS, sponsors, clubs).sum(axis=0)
    np.testing.assert_allclose(by_club, report_chance(SPONSOR_CHANGE, SPONSOR_NEWS))


def test_both_directions_of_a_relation_have_the_same_chances(world: Facts) -> None:
    for relation in range(R):
        steps = range(160, 161)
        forward = everything(world.law, steps, relation)
        inverse = everything(world.law, steps, relation + R)
        one = world.law.chances(forward)[:, inverse.entity]
        two = world.law.chances(inverse)[:, forward.entity]
        np.testing.assert_allclose(one, two.T, rtol=0, atol=1e-15)


def test_probabilities_sum_to_one_for_every_question_even_an_impossible_one(
    tasks: Tasks, world: Facts
) -> None:
    law = world.law
    np.testing.assert_allclose(law.probabilities(tasks.questions).sum(axis=1), 1)
    league, last = 0, len(world.entities) - 1
    odd = Queries(np.array([league, last, last]), np.array([0, 0, 2 * R - 1]), np.array([50, 3, 9]))
    probability = law.probabilities(odd)
    np.testing.assert_allclose(probability.sum(axis=1), 1)
    assert (probability[0, law.type_of != CLUB] == 0).all()


def test_no_other_scoring_of_the_true_answers_is_likelier(tasks: Tasks, world: Facts) -> None:
    questions = tasks.questions
    # Relations with at most one answer for each question, whose distribution is exact.
    questions = questions[np.flatnonzero(np.isin(questions.relation, [0, 1, 3, 4]))]
    truth = happened(world, questions)
    probability = world.law.probabilities(questions)
    kind = np.stack([world.law.fills_slot(r) for r in questions.relation])
    uniform = kind / kind.sum(axis=1, keepdims=True)

    def mean_log(p: np.ndarray) -> float:
        p = p / p.sum(axis=1, keepdims=True)
        return float(np.log(p[truth]).mean())

    best = mean_log(probability)
    for other in (
        0.9 * probability + 0.1 * uniform,
        probability**0.8,
        probability**1.25,
        0.8 * probability
        + 0.2 * world.law.probabilities(replace(questions, time=questions.time - 8)),
    ):
        assert mean_log(other) < best - 0.001


def test_nothing_at_or_after_the_time_of_a_question_matters(world: Facts) -> None:
    """Other dice from step t on, or a shorter simulation, leave all answers up to t unchanged."""
    settings, count, step = world.law.settings, len(world.entities), 90
    usual = streams_of(settings.seed)
    elsewhere = streams_of(settings.seed + 12345)
    other = Law(settings, count, last_step=world.steps - 1)
    for state in (other._latest, *other._kept.values()):
        state.streams = lambda now: usual(now) if now < step else elsewhere(now)
    born = world.law.plan.entities_before(step + 1)
    short = Law(settings, born, last_step=step)
    for relation in range(2 * R):
        up_to = everything(short, range(step - 40, step + 1, 20), relation)
        expected = world.law.chances(up_to)
        np.testing.assert_array_equal(other.chances(up_to), expected)
        np.testing.assert_array_equal(short.chances(up_to), expected[:, :born])
        assert not expected[:, born:].any()
    after = everything(short, range(step + 1, step + 2), PLAYS_FOR)
    assert not np.array_equal(other.chances(after), world.law.chances(after))


def test_answers_do_not_depend_on_the_order_of_the_questions(world: Facts, tasks: Tasks) -> None:
    shuffled = np.random.default_rng(0).permutation(len(tasks.questions))[:300]
    fresh = Law(world.law.settings, len(world.entities), last_step=world.steps - 1)
    together = world.law.chances(tasks.questions)[shuffled]
    np.testing.assert_array_equal(fresh.chances(tasks.questions[shuffled]), together)
    single = np.concatenate(
        [fresh.chances(tasks.questions[shuffled[i : i + 1]]) for i in range(20)]
    )
    np.testing.assert_array_equal(single, together[:20])


def test_questions_after_the_end_are_answered_from_the_last_state(world: Facts) -> None:
    steps = [world.steps, world.steps + 30]
    first, later = (world.law.chances(everything(world.law, range(s, s + 1), 0)) for s in steps)
    np.testing.assert_array_equal(first, later)


def test_the_law_can_be_made_again_for_a_vocabulary_in_another_order(world: Facts) -> None:
    shuffled = np.random.default_rng(1).permutation(len(world.entities))
    names = Vocabulary(world.entities[i] for i in shuffled)
    relations = Vocabulary(reversed(CAREERS.relations))
    law = Law(world.law.settings, names, relations, last_step=world.steps - 1)
    queries = everything(world.law, range(70, 71), R + 0)
    place = np.argsort(shuffled)
    asked = Queries(place[queries.entity], np.full(len(queries), R + R - 1), queries.time)
    np.testing.assert_allclose(
        law.probabilities(asked)[:, place], world.law.probabilities(queries), rtol=1e-12
    )
    with pytest.raises(DataError, match="no relation 'visits'"):
        Law(world.law.settings, names, Vocabulary(["visits"]), last_step=3)


def test_the_oracle_ranks_by_probability_and_puts_impossible_answers_last(tasks: Tasks) -> None:
    oracle = create("oracle").prepare(tasks.visible).adapt(tasks.supports)
    scores = oracle.score(tasks.questions)
    probability = torch.from_numpy(tasks.facts.law.probabilities(tasks.questions))
    assert scores.shape == (len(tasks.questions), len(tasks.facts.entities))
    assert torch.isfinite(scores).all()
    possible = probability > 0
    torch.testing.assert_close(scores[possible].exp(), probability[possible])
    assert scores[possible].min() > scores[~possible].max()
    assert set(scores[~possible].unique().tolist()) == {-1_000.0, -2_000.0}
    right = torch.from_numpy(tasks.facts.law.fills_slot(0))
    players = torch.from_numpy(tasks.questions.relation == 0)
    assert (scores[players][:, ~right] == -2_000.0).all()


def test_the_oracle_refuses_facts_without_a_law_in_one_sentence(tasks: Tasks) -> None:
    with pytest.raises(DataError, match="needs a simulated world"):
        Oracle().prepare(VisibleFacts.of(replace(tasks.facts, law=None)))


def test_copying_lies_clearly_above_chance_and_clearly_below_the_oracle(tasks: Tasks) -> None:
    rule = evaluate(Recurrency(), tasks).summary(resamples=0).to_json()["mrr"]
    ceiling = evaluate(Oracle(), tasks).summary(resamples=0).to_json()["mrr"]
    assert 0.2 < rule < ceiling - 0.15
    assert ceiling < 0.95

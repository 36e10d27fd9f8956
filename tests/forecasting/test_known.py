"""What a forecaster is told: corrected, supposed, asked back; and what it knew on a day."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

import numpy as np
import pytest

import metatkgr as mt
from metatkgr.data.calendar import Calendar
from metatkgr.data.facts import Facts, Vocabulary
from metatkgr.data.visibility import as_of
from metatkgr.errors import DataError, NearNameError, UnknownNameError
from metatkgr.forecasting.calibration import Calibration
from metatkgr.forecasting.forecaster import Forecaster, Question
from metatkgr.forecasting.incoming import far_ahead
from metatkgr.forecasting.names import GrowingVocabulary, near_name
from metatkgr.models import create

GUESS = Calibration()
ROWS = [
    ("Ana Beck", "plays for", "FC Ost", "2018-03-05"),
    ("Bo Lind", "plays for", "FC Ost", "2018-03-05"),
    ("Bo Lind", "plays for", "SV West", "2018-03-07"),
    ("Dairy", "sponsors", "FC Ost", "2018-03-06"),
    ("Ana Beck", "plays for", "FC Ost", "2018-03-08"),
    ("Dairy", "sponsors", "SV West", "2018-03-09"),
]


def club(model: str = "paths") -> Forecaster:
    return Forecaster.of(mt.read_facts(ROWS), model, calibration=GUESS)


@cache
def world() -> Facts:
    return mt.load("world:3000:1")


def told(forecaster: Forecaster, who: str, **how: Any) -> Any:
    answer = forecaster.predict(who, explain=True, **how).to_json()
    trust = answer.pop("calibration")
    # Sums over entities depend in their last digit on the entities' numbers.
    answer = json.loads(json.dumps(answer), parse_float=lambda text: f"{float(text):.9g}")
    return answer, trust["queries"], trust["ece"]


# What if


def test_what_is_supposed_counts_for_one_answer_and_is_never_kept() -> None:
    forecaster, other = club(), club()
    before = told(forecaster, "Bo Lind")
    supposed = [("Bo Lind", "sponsors", "FC Nord", "2018-03-10")]
    answer = told(forecaster, "Bo Lind", what_if=supposed)
    other.observe(supposed)
    assert answer == told(other, "Bo Lind")
    assert answer != before
    assert told(forecaster, "Bo Lind") == before
    assert len(forecaster.facts) == len(ROWS)
    assert "FC Nord" not in forecaster.facts.entities


def test_a_newcomer_may_be_supposed_and_questions_do_not_mix() -> None:
    forecaster = club()
    fact = ("Cy", "plays for", "FC Ost", "2018-03-10")
    asked = [
        Question("Ana Beck"),
        Question("Cy", what_if=(fact,)),
        Question("Cy"),
        Question("Ana Beck", what_if=(("Cy", "flies", "FC Ost", "2018-03-10"),)),
    ]
    plain, newcomer, unknown, bad = forecaster.predict_many(asked)
    assert plain.to_json() == forecaster.predict("Ana Beck").to_json()  # type: ignore[union-attr]
    assert newcomer.query["entity"] == "Cy"  # type: ignore[union-attr]
    assert isinstance(unknown, UnknownNameError)
    assert isinstance(bad, DataError)
    assert "unknown relation" in str(bad)


# Corrections and names


def test_a_correction_leaves_the_right_fact_alone() -> None:
    forecaster, other = club(), club()
    forecaster.observe([("Cy", "plays for", "FC Ostt", "2018-03-10")])
    right = ("Cy", "plays for", "FC Ost", "2018-03-10")
    done = forecaster.correct([("Cy", "plays for", "FC Ostt", "2018-03-10")], [right])
    assert done.accepted == 1
    other.observe([right])
    assert told(forecaster, "Cy") == told(other, "Cy")
    with pytest.raises(DataError, match="is not known; nothing was corrected"):
        forecaster.correct([("Cy", "plays for", "SV West", "2018-03-10")], [ROWS[0]])


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("Tarn Veloso", "Tarn Velloso"),
        ("Tarn Vellsoo", "Tarn Velloso"),
        ("tarn velloso", "Tarn Velloso"),
        ("Tarn_Velloso", "Tarn Velloso"),
        ("arn Velloso", "Tarn Velloso"),
        ("Tarn Vellosso", "Tarn Velloso"),
        ("Torn Velloso", "Tarn Velloso"),
        ("Tarn Velbosa", None),
        ("Flight 13", None),
        ("Team B", None),
        ("Ana", None),
        ("Bond 12", None),
    ],
)
def test_a_slip_is_told_from_another_name(typed: str, meant: str | None) -> None:
    known = GrowingVocabulary(mt.read_facts([("Tarn Velloso", "r", "Anna", 1)]).entities)
    known = known.grown(["Flight 12", "Team A", "Band 12 b"])
    assert near_name(known, typed) == meant


def test_a_slip_is_found_among_many_names_of_one_pattern() -> None:
    known = GrowingVocabulary(mt.read_facts([("Ann", "r", "Ben", 1)]).entities)
    known = known.grown([f"Newcomer {number}" for number in range(1, 1500)])
    assert near_name(known, "Newcmer 1499") == "Newcomer 1499"
    assert near_name(known, "Newcmer 2499") is None


def test_a_near_name_is_asked_back_unless_it_is_confirmed() -> None:
    forecaster = club()
    fact = ("Ana Bek", "plays for", "FC Ost", "2018-03-10")
    with pytest.raises(NearNameError, match="did you mean 'Ana Beck'"):
        forecaster.observe([fact], confirm_new=False)
    assert len(forecaster.facts) == len(ROWS)
    assert forecaster.observe([fact], confirm_new=True).new_entities == ("Ana Bek",)
    assert forecaster.observe([fact], confirm_new=False).duplicates == 1


def test_a_date_far_after_the_last_fact_needs_a_flag() -> None:
    forecaster = club()
    fact = ("Ana Beck", "plays for", "SV West", "2028-03-10")
    with pytest.raises(DataError, match=r"2028-03-10 is .* steps after the last fact .2018-03-09"):
        forecaster.observe([fact])
    assert forecaster.predict("Ana Beck").query["at"] == "2018-03-10"
    forecaster.observe([fact], allow_far=True)
    assert forecaster.predict("Ana Beck").query["at"] == "2028-03-11"


def test_facts_that_go_on_from_day_to_day_are_not_far_however_many() -> None:
    days = Calendar("day")
    assert far_ahead(range(20, 900), 19, days) is None
    assert far_ahead([19, 25, 460, 31], 19, days) == 460
    assert far_ahead([], 19, days) is None
    assert far_ahead([11_000], 10_000, days) is None
    assert far_ahead([12_000], 10_000, days) == 12_000
    assert far_ahead([80], 10, Calendar("week")) == 80
    assert far_ahead([80], 10, Calendar("day", stride=7)) == 80


# As of a day


def file_of(rows: list[tuple[str, str, str, str]], facts: Facts) -> Facts:
    """Rows with the names they use, in the order of the whole graph: fits draw by number."""
    used = {name for s, _, o, _ in rows for name in (s, o)}
    entities = Vocabulary(name for name in facts.entities if name in used)
    relations = Vocabulary(name for name in facts.relations if name in {row[1] for row in rows})
    columns = [(entities.id(s), relations.id(r), entities.id(o)) for s, r, o, _ in rows]
    raw = [facts.calendar.raw(date) for *_, date in rows]
    unit = facts.calendar.unit
    how: dict[str, Any] = {"entities": entities, "relations": relations, "unit": unit}
    return Facts.build(*zip(*columns, strict=True), raw, **how)  # type: ignore[arg-type]


@pytest.mark.parametrize("model", ["paths", "recurrency"])
def test_as_of_a_day_is_what_a_file_of_that_day_says(model: str) -> None:
    """Names, relations, supports, default dates and probabilities: nothing comes from later."""
    facts = world()
    step = facts.steps // 2
    until = facts.time <= step
    rows = [facts.describe(row) for row in np.flatnonzero(until).tolist()]
    then = Forecaster.of(file_of(rows, facts), model)
    now = Forecaster.of(facts, model)
    date = facts.calendar.label(step)
    late = [facts.entities[n] for n in np.flatnonzero(facts.emerged_at > step).tolist()]
    with pytest.raises(UnknownNameError):
        now.predict(late[0], as_of=date)
    who = [facts.entities[n] for n in np.flatnonzero(facts.emerged_at >= step - 3).tolist()]
    who = [*[name for name in who if name not in late][:4], rows[-1][0]]
    assert len(who) > 2
    for name in who:
        assert told(now, name, as_of=date) == told(then, name)
        far = facts.calendar.label(facts.steps)
        assert told(now, name, as_of=date, at=far) == told(then, name, at=far)
    assert now.at(date) is now.at(step)
    assert len(now.facts) == len(facts)


def test_a_query_before_its_entity_s_first_facts_knows_nothing_of_them_as_of_then() -> None:
    """The protocol shows an entity's own first facts at any time; a look back must not."""
    forecaster = club("recurrency")
    assert forecaster.predict("Bo Lind", "plays for", at="2018-03-05")[0].entity == "SV West"
    with pytest.raises(DataError, match="nothing is known as of"):
        as_of(forecaster.facts, -1)
    found = forecaster.predict("Bo Lind", "plays for", at="2018-03-06", as_of="2018-03-05")
    assert "SV West" not in [forecast.entity for forecast in found]


def test_as_of_sees_what_was_observed_and_not_what_was_retracted() -> None:
    forecaster = club()
    forecaster.observe([("Cy", "plays for", "FC Ost", "2018-03-06")])
    assert "Cy" in forecaster.at("2018-03-06").facts.entities
    forecaster.retract([("Cy", "plays for", "FC Ost", "2018-03-06")])
    assert "Cy" not in forecaster.at("2018-03-06").facts.entities


def test_a_model_that_has_learned_from_later_facts_is_not_asked_about_before() -> None:
    facts = world()
    forecaster = Forecaster(create("recurrency"), facts, calibration=GUESS, learned=True)
    with pytest.raises(DataError, match="has learned from facts up to"):
        forecaster.at(0)
    later = forecaster.at(facts.steps - 2)
    assert len(later.facts.entities) == len(facts.entities), "weights are by number"

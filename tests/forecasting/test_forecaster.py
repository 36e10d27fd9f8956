"""Observe, predict, search: names, dates, both sides, bad input, threads, and no look ahead."""

from __future__ import annotations

import datetime as dt
import json
import random
import re
import threading
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

import metatkgr as mt
from metatkgr.data.facts import Facts, Vocabulary
from metatkgr.errors import DataError, MetaTKGRError, SettingsError, UnknownNameError
from metatkgr.forecasting.calibration import Calibration
from metatkgr.forecasting.forecaster import Forecaster, Question
from metatkgr.forecasting.ranking import SIDES, next_relations
from metatkgr.models import create

GUESS = Calibration()
ROWS = [
    ("Ana", "plays for", "FC Ost", "2018-03-05"),
    ("Bo", "plays for", "FC Ost", "2018-03-05"),
    ("Bo", "plays for", "SV West", "2018-03-07"),
    ("Dairy", "sponsors", "FC Ost", "2018-03-06"),
    ("Ana", "plays for", "FC Ost", "2018-03-08"),
    ("Dairy", "sponsors", "SV West", "2018-03-09"),
]


def club(model: str = "paths", **arguments: Any) -> Forecaster:
    return Forecaster.of(mt.read_facts(ROWS), model, calibration=GUESS, **arguments)


@cache
def world() -> Facts:
    return mt.load("world:4000:1")


def names(found: Any) -> list[str]:
    return [forecast.entity for forecast in found]


def test_a_newcomer_is_forecast_without_training() -> None:
    forecaster = club()
    observed = forecaster.observe([("Cy", "plays for", "FC Ost", "2018-03-10")])
    assert (observed.accepted, observed.duplicates, observed.new_entities) == (1, 0, ("Cy",))
    found = forecaster.predict("Cy", "plays for", explain=True)
    assert names(found)[:2] == ["FC Ost", "SV West"]
    assert found.query["at"] == "2018-03-11"
    first = found[0].reasons[0]
    (second,) = (reason for reason in found[1].reasons if reason.kind == "path")
    assert first.kind == "repeat"
    assert first.text == "“Cy plays for FC Ost” on 2018-03-10"
    assert second.text == ("one other of “… plays for FC Ost” is also in “… plays for SV West”: Bo")
    assert [list(fact) for fact in second.facts] == [
        ["Cy", "plays for", "FC Ost", "2018-03-10"],
        ["Bo", "plays for", "FC Ost", "2018-03-05"],
        ["Bo", "plays for", "SV West", "2018-03-07"],
    ]


def test_both_sides_can_be_asked() -> None:
    found = club().predict("FC Ost", "plays for", side="subject", explain=True)
    assert names(found)[:2] == ["Ana", "Bo"]
    assert found[0].side == "subject"
    assert found[0].reasons[0].text == (
        "“Ana plays for FC Ost” from 2018-03-05 to 2018-03-08 (2 times)"
    )
    with pytest.raises(SettingsError, match="side is 'object' or 'subject'"):
        club().predict("FC Ost", "plays for", side="left")


def test_the_likeliest_next_facts_over_all_relations() -> None:
    found = club().predict("Ana", top=4)
    assert (found[0].relation, found[0].side, found[0].entity) == ("plays for", "object", "FC Ost")
    chances = [forecast.probability for forecast in found]
    assert chances == sorted(chances, reverse=True)
    assert sum(chances) <= 1
    assert len({(f.relation, f.side, f.entity) for f in found}) == 4
    everything = club().predict("Ana", top=1000)
    assert sum(f.probability for f in everything) <= 1 + 1e-9
    assert everything.forecasts[:4] == found.forecasts


@pytest.mark.parametrize("within", [None, 3])
@pytest.mark.parametrize("top", [1, 7, 200])
def test_next_facts_asked_together_are_those_asked_one_by_one(top: int, within: int | None) -> None:
    facts = world()
    forecaster = Forecaster.of(facts, "paths", calibration=GUESS)
    for number in (int(facts.subject[-1]), int(facts.object[-5]), 3):
        entity = facts.entities[number]
        together = forecaster.predict(entity, at=facts.steps, top=top, within=within)
        snapshot = forecaster._graph.snapshot()
        share = next_relations(snapshot, number, facts.steps, 3)
        apart = []
        for directed in np.argsort(-share, kind="stable").tolist():
            relation, side = directed % len(facts.relations), directed // len(facts.relations)
            found = forecaster.predict(
                entity,
                facts.relations[relation],
                at=facts.steps,
                side=SIDES[side],
                top=top,
                within=within,
            )
            times = share[directed] if within is None else 1.0
            apart += [replace(f, probability=times * f.probability) for f in found]
        apart.sort(key=lambda f: -f.probability)
        wanted = [replace(f, rank=rank) for rank, f in enumerate(apart[:top], 1)]
        assert list(together) == wanted


@pytest.mark.parametrize(
    "at", ["2018-03-08", dt.date(2018, 3, 8), dt.datetime(2018, 3, 8, 12), 3, np.int64(3)]
)
def test_a_time_can_be_written_in_many_ways(at: Any) -> None:
    assert club().predict("Ana", "plays for", at=at).query["at"] == "2018-03-08"


def test_in_a_graph_of_numbers_a_time_is_what_the_file_says() -> None:
    facts = mt.read_facts([("a", "r", "b", 2004), ("a", "r", "c", 2005), ("a", "r", "b", 2006)])
    forecaster = Forecaster.of(facts, "paths", calibration=GUESS)
    assert forecaster.predict("a", "r", at=2006).query["at"] == "2006"
    assert forecaster.predict("a", "r", at="2006").query["at"] == "2006"
    text = forecaster.explain("a", "r", "b")[0].text
    assert text == "“a r b” in 2004-2006 (2 times)"


@pytest.mark.parametrize(
    ("at", "message"),
    [
        ("2018-03-01", "before the graph begins"),
        ("someday", "not a date"),
        ("9" * 100, "not a date"),
        (10**12, "steps after the graph's last fact"),
        (float("nan"), "not a date"),
        (True, "no switch"),
        ([], "is a list"),
    ],
)
def test_a_time_that_makes_no_sense_is_refused(at: Any, message: str) -> None:
    with pytest.raises(DataError, match=message):
        club().predict("Ana", "plays for", at=at)


def test_a_misspelt_name_is_answered_with_the_nearest() -> None:
    with pytest.raises(UnknownNameError, match=r"unknown entity 'Dary'; did you mean 'Dairy'"):
        club().predict("Dary", "sponsors")
    with pytest.raises(UnknownNameError, match=r"unknown relation 'sponsor'; did you mean 'spons"):
        club().predict("Dairy", "sponsor")
    for name in ("", "   ", "x" * 10_000_000, None, 1.5, ["Ana"], "a\0b"):
        with pytest.raises(MetaTKGRError):
            club().predict(name, "sponsors")  # type: ignore[arg-type]


@pytest.mark.parametrize("top", [0, -1, 10**9, 1.5, True, "ten"])
def test_an_unfit_number_of_forecasts_is_refused(top: Any) -> None:
    with pytest.raises(SettingsError, match="top is"):
        club().predict("Ana", "plays for", top=top)


BAD = [
    (("Cy", "plays four", "FC Ost", "2018-03-10"), "unknown relation 'plays four'; did you mean"),
    (("Cy", "plays for", "FC Ost", "2017-01-01"), "before the graph begins"),
    (("Cy", "plays for", "FC Ost", "soon"), "is not a date"),
    (("Cy", "plays for", "FC Ost", None), "the time is missing"),
    (("", "plays for", "FC Ost", "2018-03-10"), "the subject is empty"),
    (("Cy", "plays for", None, "2018-03-10"), "the object is missing"),
    (("Cy", "plays for", float("nan"), "2018-03-10"), "the object is missing"),
    (("C" * 501, "plays for", "FC Ost", "2018-03-10"), "501 characters"),
    (("C\ny", "plays for", "FC Ost", "2018-03-10"), "control characters"),
    ((["Cy"], "plays for", "FC Ost", "2018-03-10"), "is a list; names are text"),
    (("Cy", "plays for", "FC Ost"), "has 3 parts"),
    ({"subject": "Cy", "relation": "plays for", "time": "2018-03-10"}, "lacks object"),
    (7, "is a int, not a tuple"),
]


@pytest.mark.parametrize(("row", "message"), BAD, ids=[message for _, message in BAD])
def test_bad_facts_are_refused_and_nothing_is_taken(row: Any, message: str) -> None:
    forecaster = club()
    good = ("New", "plays for", "FC Ost", "2018-03-10")
    with pytest.raises(DataError, match=message):
        forecaster.observe([good, row])
    assert len(forecaster.facts) == len(ROWS)
    assert "New" not in forecaster.facts.entities
    assert forecaster.observe([good]).accepted == 1


def test_the_first_twenty_bad_facts_are_told() -> None:
    bad = [("a", "plays for", "b", "1999-03-10")] * 30
    with pytest.raises(DataError, match=r"fact 20: (.|\n)*and 10 more") as error:
        club().observe(bad)
    assert str(error.value).startswith("nothing was taken in: fact 1: ")


def test_known_facts_are_duplicates_wherever_they_are() -> None:
    forecaster = club()
    new = ("Cy", "plays for", "FC Ost", "2018-03-10")
    assert forecaster.observe([new, new]).duplicates == 1
    again = forecaster.observe([*ROWS, new])
    assert (again.accepted, again.duplicates, again.new_entities) == (0, 7, ())
    assert len(forecaster.facts) == 7
    # the same three names at another time are another fact
    assert forecaster.observe([("Cy", "plays for", "FC Ost", "2018-03-11")]).accepted == 1


@pytest.mark.parametrize("form", ["dicts", "facts", "pandas", "polars", "one tuple"])
def test_facts_come_in_many_forms(form: str) -> None:
    rows = [("Cy", "plays for", "FC Ost", "2018-03-10"), ("Cy", "sponsors", "Ana", "2018-03-11")]
    keys = ("subject", "relation", "object", "time")
    given: Any = [dict(zip(keys, row, strict=True)) for row in rows]
    if form == "facts":
        given = mt.read_facts(rows)
    elif form in ("pandas", "polars"):
        given = pytest.importorskip(form).DataFrame(given)
    elif form == "one tuple":
        given = rows[0]
    forecaster = club()
    observed = forecaster.observe(given)
    assert observed.accepted == (1 if form == "one tuple" else 2)
    assert forecaster.timeline("Cy")[0] == rows[0]


def test_search_finds_exact_then_prefix_then_part_then_nearly() -> None:
    forecaster = club()
    forecaster.observe([("Ana Ost", "plays for", "Ostia", "2018-03-10")])
    assert [match.name for match in forecaster.search("ost")] == ["Ostia", "FC Ost", "Ana Ost"]
    assert [match.name for match in forecaster.search("Ana")] == ["Ana", "Ana Ost"]
    assert forecaster.search("Diary")[0].name == "Dairy"
    assert forecaster.search("zzzz") == []
    assert forecaster.search("") == []
    assert len(forecaster.search("s", limit=1)) == 1
    match = forecaster.search("FC Ost")[0]
    assert (match.facts, match.first, match.last) == (4, "2018-03-05", "2018-03-08")


def test_a_timeline_is_in_order_of_time_not_of_arrival() -> None:
    forecaster = club()
    forecaster.observe([("Ana", "plays for", "SV West", "2018-03-20")])
    forecaster.observe([("Dairy", "sponsors", "Ana", "2018-03-06")])
    dates = [fact.time for fact in forecaster.timeline("Ana")]
    assert dates == ["2018-03-05", "2018-03-06", "2018-03-08", "2018-03-20"]
    assert np.all(np.diff(forecaster.facts.time) >= 0)


def test_within_a_time_is_how_likely_it_is_to_come() -> None:
    """Relation, partner and time together: rows, anything else and nothing at all sum to 1."""
    facts = world()
    forecaster = Forecaster.of(facts, "paths")
    entity, relation = facts.entities[int(facts.subject[-1])], facts.relations[0]
    given = forecaster.predict(entity, relation, top=5)
    assert given.comes == 1
    before = 0.0
    for steps in (1, 7, 30, 90, 1000):
        found = forecaster.predict(entity, relation, within=steps, top=5)
        assert found.comes is not None
        assert found.other is not None
        assert before <= found.comes <= 1
        before = found.comes
        assert sum(f.probability for f in found) + found.other == pytest.approx(found.comes)
        assert [f.probability for f in found] == pytest.approx(
            [f.probability * found.comes for f in given]
        )
        assert f"nothing such in this time: {1 - found.comes:.1%}" in str(found)
    everything = forecaster.predict(entity, within=7)
    assert (everything.other, everything.comes) == (None, None)
    chances = [f.probability for f in everything]
    assert chances == sorted(chances, reverse=True)


def test_when_it_comes_is_a_distribution() -> None:
    facts = world()
    forecaster = Forecaster.of(facts, "paths")
    asked = facts.entities[int(facts.subject[-1])], facts.relations[0]
    found = forecaster.predict(*asked, within=30)
    steps = [1, 2, 4, 8, 16, 30]
    label, first = facts.calendar.label, facts.steps
    assert [date for date, _ in found.when] == [label(first + n - 1) for n in steps]
    # Each is what asking for so long a time says.
    for steps_asked, (_, chance) in zip(steps, found.when, strict=True):
        assert forecaster.predict(*asked, within=steps_asked).comes == pytest.approx(chance)
    assert found.comes == found.when[-1][1]
    assert str(found).endswith(f"by {found.when[-1][0]}: {found.comes:.1%}")
    assert forecaster.predict(*asked).when == forecaster.predict(asked[0], within=3).when == ()


def test_reasons_are_told_with_what_is_lost_without_them() -> None:
    found = Forecaster.of(world(), "paths").predict(world().entities[0], explain=True)
    reasons = [reason for forecast in found for reason in forecast.reasons]
    assert {reason.weight > 0 for reason in reasons} == {True, False}
    told = str(found)
    for forecast in found:
        some = [reason for reason in forecast.reasons if reason.weight] or forecast.reasons
        assert all(f"{abs(reason.weight):.0%} {reason.text}" in told for reason in some)


def test_a_time_within_is_steps_or_as_people_write_it() -> None:
    forecaster = club()
    found = forecaster.predict("Bo", "plays for", at=1, within="3d")
    assert found.query["within"] == 3
    assert (found.query["at"], found.query["until"]) == ("2018-03-06", "2018-03-08")
    assert found == forecaster.predict("Bo", "plays for", at=1, within=3)
    assert found == forecaster.predict("Bo", "plays for", at=1, within="3")
    with pytest.raises(SettingsError, match="within is from 1"):
        forecaster.predict("Bo", "plays for", within=0)
    with pytest.raises(SettingsError, match="30d"):
        forecaster.predict("Bo", "plays for", within="soon")
    with pytest.raises(DataError, match="counts time in days"):
        forecaster.predict("Bo", "plays for", within="3y")


def test_json_has_the_documented_shape() -> None:
    found = club().predict("Ana", "plays for", explain=True)
    plain = json.loads(json.dumps(found.to_json(), allow_nan=False))
    assert set(plain) == {
        "query",
        "forecasts",
        "other",
        "someone_new",
        "comes",
        "when",
        "explanation",
        "calibration",
    }
    best = plain["forecasts"][0]
    assert {"entity", "score", "probability", "rank"} <= set(best)
    assert best["rank"] == 1
    assert plain["explanation"][0]["fact"] == ["Ana", "plays for", "FC Ost", "2018-03-08"]
    assert 0 < plain["explanation"][0]["weight"] <= 1
    # Without this fact Ana's club would be the second.
    assert best["reasons"][0]["weight"] == pytest.approx(0.5)


STEPS = 8
links = st.tuples(st.integers(0, 7), st.integers(0, 2), st.integers(0, 7), st.integers(0, STEPS))


def graph(rows: list[tuple[int, int, int, int]]) -> Facts:
    """A graph by names, the entities numbered as they come; it begins at 0 and counts by 1."""
    rows = [(0, 0, 1, 0), (0, 0, 1, 1), *rows]
    known = list(dict.fromkeys(end for s, _, o, _ in rows for end in (s, o)))
    columns = [[known.index(s), r, known.index(o), t] for s, r, o, t in rows]
    return Facts.build(
        *map(list, zip(*columns, strict=True)),
        entities=Vocabulary(f"e{number}" for number in known),
        relations=Vocabulary.numbered(3),
    )


def told(rows: list[tuple[int, int, int, int]]) -> list[tuple[str, str, str, int]]:
    return [(f"e{s}", str(r), f"e{o}", t) for s, r, o, t in rows]


def answers(forecaster: Forecaster) -> list[Any]:
    result: list[Any] = []
    for name in ("e0", "e1", "e5"):
        if name not in forecaster.facts.entities:
            continue
        for relation, side, at in (("0", "object", 4), ("1", "subject", STEPS), ("2", "object", 0)):
            for f in forecaster.predict(name, relation, side=side, at=at, top=100, explain=True):
                # which of many equal facts are shown depends on the entities' numbers
                kinds = [(reason.kind, reason.weight, len(reason.facts)) for reason in f.reasons]
                result.append((name, relation, f.entity, f.score, f.probability, kinds))
        result += forecaster.predict(name, top=20).forecasts
    return result


# Without shrinking: each example asks dozens of questions.
@settings(max_examples=20, phases=[Phase.explicit, Phase.reuse, Phase.generate])
@given(
    first=st.lists(links, max_size=12), later=st.lists(links, max_size=12), seed=st.integers(0, 9)
)
@pytest.mark.parametrize("model", ["paths", "recurrency"])
def test_observing_is_as_good_as_beginning_with_all_facts(
    model: str, first: list[Any], later: list[Any], seed: int
) -> None:
    live = Forecaster.of(graph(first), model, calibration=GUESS)
    shuffled = list(later)
    random.Random(seed).shuffle(shuffled)
    answers(live)
    for row in shuffled:
        live.observe(told([row]))
    # of facts at one time, arrivals come after the first ones and in the order of their names
    whole = Forecaster.of(
        graph(first + sorted(later, key=lambda row: (row[3], row[:3]))),
        model,
        calibration=GUESS,
    )
    assert sorted(live.facts.entities.names) == sorted(whole.facts.entities.names)
    assert sorted(map(live.facts.describe, range(len(live.facts)))) == sorted(
        map(whole.facts.describe, range(len(whole.facts)))
    )
    assert answers(live) == answers(whole)


def test_many_arrivals_join_the_first_facts(monkeypatch: pytest.MonkeyPatch) -> None:
    facts = world()
    rows = [
        (facts.entities[s], facts.relations[r], facts.entities[o], facts.calendar.label(t))
        for s, r, o, t in zip(facts.subject, facts.relation, facts.object, facts.time, strict=True)
    ]
    monkeypatch.setattr("metatkgr.forecasting.known._FEW", 300)
    live = Forecaster.of(facts.select(np.arange(2000)), "paths", calibration=GUESS)
    for begin in range(2000, 4000, 150):
        live.observe(rows[begin : begin + 150])
        live.predict(rows[begin][0], rows[begin][1])
    whole = Forecaster.of(facts, "paths", calibration=GUESS)
    assert len(live.facts) == len(facts)
    for row in rows[-5:]:
        assert live.predict(row[0], row[1]) == whole.predict(row[0], row[1])


@pytest.mark.parametrize("model", ["paths", "recurrency"])
def test_what_happens_at_or_after_the_asked_time_changes_nothing(model: str) -> None:
    facts = world()
    forecaster = Forecaster.of(facts, model, calibration=GUESS)
    step, relation = facts.steps // 2, facts.relations[0]
    early = facts.subject[facts.time < step - 5]
    asker = facts.entities[int(np.bincount(early).argmax())]  # its first facts are long known

    def ask() -> list[Any]:
        found = [forecaster.predict(asker, relation, at=step, top=20, explain=True)]
        return [f.forecasts for f in (*found, forecaster.predict(asker, at=step))]

    before = ask()
    generator = random.Random(0)
    others = facts.entities.names
    late = [
        (generator.choice(others), relation, generator.choice([*others, *[asker] * 50]), at)
        for at in (step, step + 1, facts.steps + 3)
        for _ in range(30)
    ]
    assert forecaster.observe(late).accepted > 80
    assert len(forecaster.timeline(asker)) > 10
    assert ask() == before


def test_an_entitys_own_first_facts_are_seen_at_any_time() -> None:
    forecaster = club(shots=1)
    forecaster.observe([("Cy", "plays for", "SV West", "2018-03-20")])
    forecaster.observe([("Cy", "plays for", "FC Ost", "2018-03-21")])
    found = forecaster.predict("Cy", "plays for", at="2018-03-06", explain=True)
    assert names(found)[0] == "SV West"
    assert found[0].reasons[0].kind == "repeat"
    # the second fact is no support with one shot, and not public yet
    assert all(reason.kind != "repeat" for reason in found[1].reasons)


def test_several_threads_may_ask_while_facts_arrive() -> None:
    facts = world()
    forecaster = Forecaster.of(facts, "paths", calibration=GUESS)
    club_name, relation = facts.entities[int(facts.object[-1])], facts.relations[0]
    failures: list[BaseException] = []
    done = threading.Event()

    def ask(explain: bool) -> None:
        try:
            while not done.is_set():
                asked = {"side": "subject", "top": 5, "explain": explain}
                found = forecaster.predict(club_name, relation, **asked)
                assert len(found) == 5
                assert all(bool(one.reasons) is explain for one in found)
                assert forecaster.search(club_name)[0].name == club_name
                times = forecaster.facts.time
                assert np.all(np.diff(times) >= 0)
        except BaseException as error:  # told in the main thread
            failures.append(error)

    threads = [threading.Thread(target=ask, args=(number % 2 == 1,)) for number in range(4)]
    for thread in threads:
        thread.start()
    accepted = sum(
        forecaster.observe([(f"new {n}", relation, club_name, facts.steps + n)]).accepted
        for n in range(60)
    )
    done.set()
    for thread in threads:
        thread.join()
    assert not failures
    assert accepted == 60
    assert len(forecaster.timeline("new 59")) == 1
    assert len(forecaster.facts) == len(facts) + 60


@pytest.mark.parametrize("model", ["recurrency", "paths", "pagerank", "evidence"])
def test_while_reasons_are_made_others_are_answered_and_facts_taken(
    model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    facts = world()
    forecaster = Forecaster.of(facts, model, calibration=GUESS)
    begun, go_on = threading.Event(), threading.Event()
    reasons = type(forecaster.model).reasons

    def slowly(*how: Any) -> Any:
        begun.set()
        assert go_on.wait(60)
        return reasons(*how)

    monkeypatch.setattr(type(forecaster.model), "reasons", slowly)
    explained: list[Any] = []
    thread = threading.Thread(
        target=lambda: explained.append(forecaster.predict(facts.entities[0], explain=True))
    )
    thread.start()
    assert begun.wait(60)
    answered = threading.Event()

    def ask() -> None:
        other, relation = facts.entities[1], facts.relations[0]
        forecaster.observe([("Cy", relation, other, facts.steps)])
        assert forecaster.predict("Cy")
        answered.set()

    threading.Thread(target=ask, daemon=True).start()
    in_time = answered.wait(30)
    go_on.set()
    thread.join(60)
    assert in_time, "a lock is held while reasons are made"
    assert explained[0][0].reasons


@pytest.mark.parametrize("name", ["metatkgr", "transe", "renet", "evidence"])
def test_a_run_forecasts_newcomers_too(name: str, tmp_path: Path) -> None:
    facts = world()
    small = {"dimension": 8, "epochs": 1}
    small |= {"translation_epochs": 1, "inner_steps": 2} if name == "metatkgr" else {}
    few = {"train_queries": 50, "earlier_queries": 0, "support_share": 0.0, "translation_epochs": 1}
    small |= few if name == "evidence" else {}
    mt.Estimator(name, device="cpu", **small).fit(facts, folder=tmp_path / "run")
    forecaster = mt.Forecaster.load(tmp_path / "run")
    relation, other = facts.relations[0], facts.entities[int(facts.object[-1])]
    forecaster.observe([("Cy", relation, other, facts.steps), ("Di", relation, "Cy", facts.steps)])
    found = forecaster.predict("Cy", relation, top=1000, explain=True)
    assert len(found) == min(1000, len(facts.entities) + 2)
    assert {"Di", "Cy"} <= set(names(forecaster.predict("Di", relation, top=1000)))
    assert sum(f.probability for f in found) <= 1 + 1e-9
    if name == "metatkgr":
        weights = [reason.weight for reason in found[0].reasons]
        assert {reason.kind for f in found for reason in f.reasons} <= {"fact", "vectors"}
        assert weights == sorted(weights, key=lambda weight: (weight < 0, -abs(weight)))
        assert all(0.01 <= abs(weight) <= 1 for weight in weights)
        shown = {fact for f in forecaster.facts.entities.names for fact in forecaster.timeline(f)}
        assert {fact for reason in found[0].reasons for fact in reason.facts} <= shown
    assert (tmp_path / "run" / "calibration.json").exists()
    again = mt.Forecaster.load(tmp_path / "run")
    again.observe([("Cy", relation, other, facts.steps), ("Di", relation, "Cy", facts.steps)])
    assert again.predict("Cy", relation).to_json() == forecaster.predict("Cy", relation).to_json()


def test_a_model_that_cannot_know_newcomers_says_so() -> None:
    forecaster = Forecaster.of(world(), "oracle")
    relation, other = world().relations[0], world().entities[0]
    forecaster.observe([("Cy", relation, other, world().steps)])
    assert "Cy" in names(forecaster.predict(other, relation, at=50, top=1000))
    with pytest.raises(DataError, match="oracle cannot speak of"):
        forecaster.predict("Cy", relation)


def test_a_model_that_needs_training_is_told_how() -> None:
    with pytest.raises(SettingsError, match="has to be trained first"):
        Forecaster.of(world(), "transe")
    assert isinstance(Forecaster.of(world(), create("paths")), mt.Forecaster)


def test_the_first_facts_of_many_entities_are_those_of_each() -> None:
    forecaster = Forecaster.of(world(), "paths", calibration=GUESS)
    forecaster.observe([("Cy", world().relations[0], "Di", n) for n in (3, 90, 1, 50)])
    snapshot = forecaster._graph.snapshot()
    last = len(snapshot.entities) - 1
    chosen = [1, 5, last - 1, last]
    many = snapshot.supports(chosen, 3)
    for name in ("entity", "relation", "other", "time"):
        each = [getattr(snapshot.supports([who], 3), name) for who in chosen]
        assert getattr(many, name).tolist() == np.concatenate(each).tolist()
    assert snapshot.supports([last], 3).time.tolist() == [1, 3, 50]
    assert snapshot.newcomers(0) == np.flatnonzero(snapshot.facts.emerged_at > 0).tolist()


def test_probabilities_are_the_same_whatever_was_asked_first(tmp_path: Path) -> None:
    facts = world()
    model = mt.Estimator("transe", device="cpu", dimension=8, epochs=1).fit(facts)
    model.save(tmp_path / "run")
    new = ("Cy", facts.relations[0], facts.entities[0], facts.steps)
    found = []
    for explained_first in (True, False):
        (tmp_path / "run" / "calibration.json").unlink(missing_ok=True)
        forecaster = Forecaster.load(tmp_path / "run", device="cpu")
        forecaster.observe(new)
        if explained_first:
            forecaster.explain("Cy", facts.relations[0], facts.entities[0])
        found.append(forecaster.predict("Cy", facts.relations[0]))
    assert found[0] == found[1]


def test_a_rule_that_does_not_observe_is_prepared_anew() -> None:
    forecaster = Forecaster.of(world(), "pagerank")
    relation, other = world().relations[0], world().entities[int(world().object[-1])]
    forecaster.observe([("Cy", relation, other, world().steps)])
    assert names(forecaster.predict("Cy", relation))[0] == other


def test_many_questions_are_answered_like_each_alone() -> None:
    facts = world()
    forecaster = Forecaster.of(facts, "paths", calibration=GUESS)
    forecaster.observe([("Cy", facts.relations[0], facts.entities[3], facts.steps)])
    relations = (facts.relations[0], None, facts.relations[1])
    questions = [
        Question(entity, relation, at, side, top=7, within=within, explain=explain)
        for entity, at in (("Cy", None), (facts.entities[3], facts.steps // 2))
        for relation in relations
        for side, within in (("object", None), ("subject", 3))
        for explain in (True, False)
    ]
    alone = [
        forecaster.predict(
            q.entity, q.relation, at=q.at, side=q.side, top=7, within=q.within, explain=q.explain
        )
        for q in questions
    ]
    together = forecaster.predict_many(questions)
    assert [found.to_json() for found in alone] == [
        found.to_json() for found in together if not isinstance(found, MetaTKGRError)
    ]


def test_a_question_that_makes_no_sense_does_not_spoil_the_others() -> None:
    forecaster = club()
    good = Question("Ana", "plays for")
    bad = [
        Question("Anna", "plays for"),
        Question("Ana", "plays"),
        Question("Ana", at="someday"),
        Question("Ana", side="left"),
        Question("Ana", top=0),
    ]
    found = forecaster.predict_many([*bad[:3], good, *bad[3:]])
    assert found[3] == forecaster.predict("Ana", "plays for")
    errors = found[:3] + found[4:]
    assert all(isinstance(error, MetaTKGRError) for error in errors)
    for question, error in zip(bad, errors, strict=True):
        with pytest.raises(MetaTKGRError, match=re.escape(str(error))):
            forecaster.predict(
                question.entity,
                question.relation,
                at=question.at,
                side=question.side,
                top=question.top,
            )
    assert forecaster.predict_many([]) == []


def test_questions_of_several_are_one_reading() -> None:
    """A model is asked once for all of them, not once for each."""
    facts = world()
    forecaster = Forecaster.of(facts, "paths", calibration=GUESS)
    sizes = []
    score = forecaster.model.score

    def counted(queries: Any) -> Any:
        sizes.append(len(queries))
        return score(queries)

    with patch.object(forecaster.model, "score", counted):
        forecaster.predict_many(
            [Question(facts.entities[n], facts.relations[0]) for n in range(20)]
        )
    assert sizes == [20]

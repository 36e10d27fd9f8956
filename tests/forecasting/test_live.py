"""The facts of a forecaster while they keep arriving."""

from __future__ import annotations

import gc
import random
import sys
import weakref
from unittest.mock import patch

import pytest
import torch

import metatkgr as mt
from metatkgr.data.world import simulate
from metatkgr.errors import DataError, UnknownNameError
from metatkgr.forecasting import known
from metatkgr.forecasting.calibration import Calibration
from metatkgr.forecasting.forecaster import Forecaster
from metatkgr.forecasting.live import Snapshot
from metatkgr.graph.index import TemporalIndex
from metatkgr.graph.layer import base_layers

GUESS = Calibration()
Row = tuple[str, str, str, str]
FIRST: list[Row] = [
    ("Ana", "plays for", "FC Ost", "2018-03-05"),
    ("Bo", "plays for", "FC Ost", "2018-03-05"),
    ("Bo", "plays for", "SV West", "2018-03-07"),
    ("Dairy", "sponsors", "FC Ost", "2018-03-06"),
    ("Ana", "plays for", "FC Ost", "2018-03-08"),
    ("Dairy", "sponsors", "SV West", "2018-03-09"),
]


def club() -> Forecaster:
    return Forecaster.of(mt.read_facts(FIRST), "paths", calibration=GUESS)


def test_a_newcomer_takes_a_name_and_rows_of_columns() -> None:
    """Few objects, that is: a hundred thousand of them arrive while a service is at work.

    Its name, the name in small letters, its number and about one more; what slips are sought by,
    the fact itself and the indices of it are columns of numbers.
    """
    facts = simulate(facts=600, seed=1)
    forecaster = Forecaster.of(facts, "paths", calibration=GUESS)

    def arrive(first: int, end: int) -> int:
        for begin in range(first, end, 500):
            rows = [
                (f"Arrival {n}", facts.relations[n % 3], facts.entities[n % 40], n % facts.steps)
                for n in range(begin, begin + 500)
            ]
            forecaster.check(rows)
            assert forecaster.observe(rows).accepted == 500
        forecaster.predict(facts.entities[0], explain=True)
        assert forecaster.search("arrival 7")
        gc.collect()
        return sys.getallocatedblocks()

    before = arrive(0, 1000)
    assert (arrive(1000, 6000) - before) / 5000 < 6


def test_a_snapshot_and_the_model_read_one_index() -> None:
    forecaster = club()
    forecaster.observe([("Cy", "plays for", "FC Ost", "2018-03-12")])
    forecaster.predict("Cy")
    snapshot = forecaster.snapshot()
    assert TemporalIndex.of(snapshot.visible) is snapshot.index
    assert forecaster.model.index_ is snapshot.index


def test_an_index_goes_with_its_facts() -> None:
    """At once: a service that takes back facts of its base would hold many until the next gc."""
    facts = simulate(facts=600, seed=1)
    forecaster = Forecaster.of(facts, "paths", calibration=GUESS)
    rows = [(f"N {n}", facts.relations[0], facts.entities[n % 40], 5) for n in range(400)]
    forecaster.observe(rows)
    forecaster.predict(facts.entities[0])
    forecaster.predict(facts.entities[0], explain=True)
    (layer,) = map(weakref.ref, base_layers(forecaster.snapshot().visible, torch.device("cpu")))
    gc.collect()
    gc.disable()
    try:
        names, last = facts.entities, len(facts) - 1
        subject, object_ = names[facts.subject[last]], names[facts.object[last]]
        relation, step = facts.relations[facts.relation[last]], int(facts.time[last])
        assert forecaster.retract([(subject, relation, object_, step)]).retracted == 1
        forecaster.observe([("O", facts.relations[0], facts.entities[1], 5)])
        trained_on = forecaster.snapshot().visible
        forecaster._engine._visible = forecaster._reasoner._visible = trained_on
        forecaster.predict(facts.entities[0])
        assert layer() is None
    finally:
        gc.enable()


def answers(forecaster: Forecaster, who: list[str]) -> list[object]:
    return [forecaster.predict(name, explain=True).to_json() for name in who]


def test_arrivals_are_kept_in_time_order_however_they_come() -> None:
    """And a snapshot that was taken stays as it was."""
    facts = simulate(facts=600, seed=1)
    rng = random.Random(0)
    drawn = [
        (rng.choice(facts.entities), rng.choice(facts.relations), f"N {rng.randrange(40)}", step)
        for step in (rng.randrange(facts.steps) for _ in range(400))
    ]
    forecaster = Forecaster.of(facts, "recurrency")
    told: set[tuple[int, str, str, str]] = set()
    taken: list[tuple[Snapshot, list[tuple[int, str, str, str]]]] = []
    while drawn:
        some = [drawn.pop() for _ in range(min(len(drawn), rng.choice((1, 1, 3, 150))))]
        forecaster.observe(some)
        told.update((t, s, r, o) for s, r, o, t in some)
        taken.append((forecaster.snapshot(), sorted(told)))
    for snapshot, wanted in taken:
        recent, name = snapshot.parts[1], snapshot.entities.name
        columns = (recent.time, recent.subject, recent.relation, recent.object)
        rows = zip(*(column.tolist() for column in columns), strict=True)
        assert sorted((t, name(s), facts.relations[r], name(o)) for t, s, r, o in rows) == wanted
        assert recent.time.tolist() == [row[0] for row in wanted]


@pytest.mark.parametrize("few", [20_000, 5])
@pytest.mark.parametrize("seed", range(4))
def test_what_is_retracted_is_as_if_it_had_never_been_told(seed: int, few: int) -> None:
    """Whether it arrived a moment ago, has joined the first facts or was one of them."""
    rng = random.Random(seed)
    forecaster, held = club(), dict.fromkeys(FIRST)
    people = [f"{name} {number}" for name in ("Cy", "Di") for number in range(4)]
    clubs, days = ["FC Ost", "SV West", "Nord 1"], [f"2018-03-{day:02}" for day in range(6, 14)]
    with patch.object(known, "_FEW", few):
        for _ in range(30):
            if rng.random() < 0.5:
                told = [
                    (rng.choice(people), "plays for", rng.choice(clubs), rng.choice(days))
                    for _ in range(rng.randrange(1, 4))
                ]
                forecaster.observe(told)
                held.update(dict.fromkeys(told))
            else:
                back = rng.sample(list(held), min(len(held) - 3, rng.randrange(1, 4)))
                back = [fact for fact in back if fact != FIRST[0]]  # the calendar begins with it
                before = len(held)
                for fact in back:
                    del held[fact]
                result = forecaster.retract([*back, ("Ana", "sponsors", "Nobody", "2018-03-06")])
                assert (result.retracted, result.unknown) == (before - len(held), 1)
            forecaster.snapshot()
    # The same facts, told once.
    anew = club()
    anew.retract([fact for fact in FIRST if fact not in held])
    anew.observe([fact for fact in held if fact not in FIRST])
    who = sorted({name for s, _, o, _ in held for name in (s, o)})
    assert answers(forecaster, who) == answers(anew, who)
    assert set(forecaster.facts.entities) == set(anew.facts.entities)
    assert len(forecaster.facts) == len(held)


def test_a_typo_that_is_retracted_leaves_no_entity_behind() -> None:
    forecaster = club()
    before = answers(forecaster, ["Ana", "Bo", "Dairy"])
    typo = ("Anna", "plays for", "FC Ostt", "2018-03-10")
    forecaster.observe([typo])
    assert next(match.name for match in forecaster.search("FC Ostt")) == "FC Ostt"
    assert forecaster.retract([typo]).gone_entities == ("Anna", "FC Ostt")
    assert "FC Ostt" not in [match.name for match in forecaster.search("FC Ostt")]
    with pytest.raises(UnknownNameError, match="did you mean 'Ana'"):
        forecaster.predict("Anna")
    assert answers(forecaster, ["Ana", "Bo", "Dairy"]) == before


def test_a_snapshot_stays_as_it_was_when_its_facts_are_retracted() -> None:
    forecaster = club()
    forecaster.observe([("Cy", "plays for", "FC Ost", "2018-03-10")])
    snapshot = forecaster.snapshot()
    forecaster.retract([FIRST[2], ("Cy", "plays for", "FC Ost", "2018-03-10")])
    assert len(snapshot.facts) == 7
    assert snapshot.entities.id("Cy") == len(snapshot.first.entities)
    assert len(forecaster.facts) == 5


def test_the_last_facts_stay() -> None:
    forecaster = club()
    with pytest.raises(DataError, match="needs facts"):
        forecaster.retract(FIRST)
    assert len(forecaster.facts) == len(FIRST)

"""Relations that nobody has heard of until a fact with one is observed."""

from __future__ import annotations

from pathlib import Path

import pytest

import metatkgr as mt
from metatkgr.data.folder import FactFolder
from metatkgr.data.frames import to_pandas
from metatkgr.data.ingest import ingest
from metatkgr.errors import DataError
from metatkgr.forecasting.calibration import Calibration
from metatkgr.forecasting.forecaster import Forecaster


def facts() -> mt.Facts:
    return mt.simulate(facts=2000, seed=5)


def rows(world: mt.Facts, relation: str) -> list[tuple[str, str, str, int]]:
    names, last = world.entities.names, world.steps - 1
    return [(names[a], relation, names[b], last) for a, b in ((3, 9), (4, 9), (5, 9), (5, 8))]


@pytest.mark.parametrize("model", [None, "recurrency", "paths", "pagerank"])
@pytest.mark.parametrize("mapped", [False, True])
def test_a_new_relation_is_observed_and_forecast_as_if_it_had_been_there(
    model: str | None, mapped: bool, tmp_path: Path
) -> None:
    world = facts()
    if mapped:
        to_pandas(world).to_csv(tmp_path / "events.csv", index=False)
        ingest([tmp_path / "events.csv"], tmp_path / "events")
        world = FactFolder(tmp_path / "events").facts()
    live = Forecaster.of(world, model, calibration=Calibration())
    before = live.predict(world.entities.names[9], world.relations[0])
    told = rows(world, "mentors")
    assert live.observe(told).accepted == 4
    whole = mt.read_facts(to_pandas(live.facts), unit=world.calendar.unit)
    assert "mentors" in whole.relations
    other = Forecaster.of(whole, model, calibration=Calibration())
    for subject, relation, *_ in (told[0], told[3], (world.entities.names[9], world.relations[0])):
        one, two = (f.predict(subject, relation, top=5) for f in (live, other))
        assert [c.entity for c in one.forecasts] == [c.entity for c in two.forecasts]
    asked = live.predict(told[0][2], "mentors", side="subject", top=3, explain=True)
    assert asked.forecasts[0].entity in {told[1][0], told[2][0], told[0][0]}
    assert before.forecasts
    assert live.predict(told[0][0]).forecasts, "over all relations"
    live.calibrate()
    assert live.predict(told[0][0], "mentors").forecasts


def test_one_that_is_spelt_like_a_known_one_is_asked_back() -> None:
    world = facts()
    live = Forecaster.of(world, "paths", calibration=Calibration())
    typo = world.relations[0] + "s"
    with pytest.raises(DataError, match="did you mean"):
        live.observe(rows(world, typo))
    assert len(live.facts.relations) == len(world.relations)
    assert live.observe(rows(world, typo), confirm_new=True).accepted == 4
    assert typo in live.facts.relations


def test_a_model_with_a_row_for_each_relation_refuses_it() -> None:
    world = facts()
    learned = mt.Estimator("transe", epochs=1, dimension=4, device="cpu").fit(world).model_
    live = Forecaster.of(world, learned, calibration=Calibration())
    with pytest.raises(DataError, match="unknown relation"):
        live.observe(rows(world, "mentors"))


def test_hundreds_at_once_are_a_mistake() -> None:
    world = facts()
    live = Forecaster.of(world, "paths", calibration=Calibration())
    names = world.entities.names
    many = [(names[1], f"{'qxz'[n % 3] * 7}{n}{'wvk'[n % 3] * 9}", names[2], 5) for n in range(300)]
    with pytest.raises(DataError, match="new relations at once"):
        live.observe(many, confirm_new=True)
    assert len(live.facts.relations) == len(world.relations)

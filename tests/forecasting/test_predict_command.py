"""``metatkgr predict`` from end to end."""

from __future__ import annotations

import json
from pathlib import Path
from unittest.mock import patch

import pytest

from command_line import Run

CLUB = "Kovovgate United"


@pytest.fixture
def events(run: Run, tmp_path: Path) -> Path:
    path = tmp_path / "events.csv"
    assert run("data", "simulate", "--facts", 4000, "--out", path).code == 0
    return path


@pytest.fixture
def first_facts(tmp_path: Path) -> Path:
    path = tmp_path / "new.csv"
    path.write_text(
        "subject,relation,object,date\n"
        "Nova Debut,plays for,Kovovgate United,2017-06-12\n"
        "Nova Debut,plays for,Kovovgate United,2017-06-19\n",
        encoding="utf-8",
    )
    return path


def test_a_newcomer_from_files(run: Run, events: Path, first_facts: Path) -> None:
    words = ("predict", events, "-e", "Nova Debut", "-r", "plays for", "--facts", first_facts)
    shown = run(*words, "--explain", "--top", 3)
    assert shown.code == 0, shown.err
    assert "Observed 2 facts, 1 new entity; 0 were known." in shown.out
    assert CLUB in shown.out
    assert "Nova Debut plays for" in shown.out
    assert "questions about newcomers; the first is off by" in shown.out
    written = run(*words, "--explain", "--top", 3, "--json", "-")
    result = json.loads(written.out)
    assert result["query"]["entity"] == "Nova Debut"
    assert [forecast["rank"] for forecast in result["forecasts"]] == [1, 2, 3]
    assert result["forecasts"][0]["entity"] == CLUB
    fact = ["Nova Debut", "plays for", CLUB, "2017-06-19"]
    assert result["explanation"][0]["fact"] == fact
    assert result["calibration"]["queries"] > 0


def test_all_relations_a_time_and_the_other_side(run: Run, events: Path) -> None:
    found = run("predict", events, "-e", CLUB, "--within", "3w", "--json", "-")
    result = json.loads(found.out)
    assert result["query"]["relation"] is None
    assert result["query"]["until"] > result["query"]["at"]
    assert {"object", "subject"} >= {forecast["side"] for forecast in result["forecasts"]}
    words = (
        "-e",
        CLUB,
        "-r",
        "plays for",
        "--side",
        "subject",
        "--at",
        "2017-01-02",
    )
    result = json.loads(run("predict", events, *words, "--model", "recurrency", "--json", "-").out)
    assert result["query"]["model"] == "recurrency"
    assert result["query"]["at"] == "2017-01-02"


def test_what_goes_wrong_is_said_in_a_sentence(run: Run, events: Path, tmp_path: Path) -> None:
    misspelt = run("predict", events, "--entity", "Kovovgat United", "--relation", "plays for")
    assert misspelt.code == 2
    assert "did you mean 'Kovovgate United'" in misspelt.err
    early = run("predict", events, "-e", CLUB, "--at", "1999-01-01")
    assert early.code == 2
    assert "before the graph begins (2015-01-05)" in early.err
    untrained = run("predict", events, "-e", CLUB, "--model", "transe")
    assert "has to be trained first" in untrained.err
    bad = tmp_path / "bad.csv"
    bad.write_text("subject,relation,object,date\nA,plays four,B,2017-06-12\n", encoding="utf-8")
    refused = run("predict", events, "-e", CLUB, "--facts", bad)
    assert refused.code == 2
    assert "unknown relation 'plays four'" in refused.err


def test_a_run_answers_too(run: Run, events: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    settings = ("--set", "epochs=1", "--set", "dimension=8", "--device", "cpu")
    assert run("train", events, "--model", "transe", *settings, "--out", folder).code == 0
    words = ("predict", folder, "-e", CLUB, "-r", "plays for", "--json", "-")
    first = json.loads(run(*words).out)
    assert first["query"]["model"] == "transe"
    assert (folder / "calibration.json").exists()
    assert json.loads(run(*words).out) == first
    refused = run(*words, "--model", "paths")
    assert refused.code == 2
    assert "is a run" in refused.err


def test_probabilities_are_kept_with_a_run_and_fitted_anew_when_asked(
    run: Run, events: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    settings = ("--set", "epochs=1", "--set", "dimension=8", "--device", "cpu")
    assert run("train", events, "--model", "transe", *settings, "--out", folder).code == 0
    (folder / "calibration.json").write_text("damaged", encoding="utf-8")
    refused = run("predict", folder, "-e", CLUB)
    assert refused.code == 2
    assert "delete it" in refused.err
    told = run("calibrate", folder, "--json", "-")
    assert told.code == 0
    assert json.loads(told.out)["queries"] > 0
    kept = (folder / "calibration.json").read_bytes()
    assert run("predict", folder, "-e", CLUB).code == 0
    assert (folder / "calibration.json").read_bytes() == kept


def test_probabilities_are_kept_with_an_ingested_folder(
    run: Run, events: Path, tmp_path: Path
) -> None:
    refused = run("calibrate", events)
    assert refused.code == 2
    assert "metatkgr data ingest" in refused.err
    folder = tmp_path / "folder"
    assert run("data", "ingest", events, "--out", folder).code == 0
    before = (folder / "dataset.json").read_bytes()
    told = run("calibrate", folder, "--model", "recurrency")
    assert "Kept in" in told.out
    path = folder / "calibration-recurrency-3.json"
    kept = path.read_bytes()
    assert (folder / "dataset.json").read_bytes() == before
    with patch("metatkgr.forecasting.live.fit_calibration", side_effect=AssertionError):
        assert run("predict", folder, "-e", CLUB, "--model", "recurrency").code == 0
    more = tmp_path / "more.csv"
    more.write_text(
        f"subject,relation,object,date\nNova Debut,plays for,{CLUB},2017-06-12\n", encoding="utf-8"
    )
    assert run("data", "ingest", more, "--append", folder).code == 0
    # Of other facts: it is fitted anew, and replaces what was kept.
    assert run("predict", folder, "-e", CLUB, "--model", "recurrency").code == 0
    assert path.read_bytes() != kept
    assert run("predict", folder, "-e", CLUB, "--model", "recurrency", "--shots", "2").code == 0
    assert (folder / "calibration-recurrency-2.json").exists()

"""The page of the standard protocol: our records beside published figures."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from metatkgr.experiments.published import EXTRAPOLATION
from metatkgr.experiments.results import Results
from metatkgr.experiments.sections import page_lines
from metatkgr.experiments.sections.extrapolation import UNCHECKED, gaps
from metatkgr.files import read_json, write_json
from metatkgr.models.baselines.renet import RENET
from studies.extrapolation import (
    BASELINES,
    CHOSEN,
    DATASETS,
    PRETRAINED,
    TRAINED,
    TRIED,
    best_settings,
    main,
    measured,
)

PAGE = "extrapolation"


def cell(mrr: float, queries: int = 100) -> dict[str, Any]:
    hits = {f"hits@{k}": mrr for k in (1, 3, 10)}
    counts = {"queries": queries, "queries_of_split": 100, "novel": 0.25, "mrr_novel": 0.1}
    return {"mrr": mrr, "mrr_ci95": [mrr - 0.01, mrr + 0.01], "commit": "abc"} | hits | counts


def test_figures_are_shares_and_hits_grow_with_k() -> None:
    assert set(EXTRAPOLATION) == set(DATASETS)
    for name, rows in EXTRAPOLATION.items():
        assert "recurrency baseline" in rows, name
        for row, (mrr, *hits) in rows.items():
            given = [value for value in hits if value is not None]
            assert mrr is not None
            assert given == sorted(given), (name, row)
            assert all(0 < value < 1 for value in (mrr, *given))
            if hits[0] is not None:
                assert hits[0] < mrr < hits[2]


def test_the_page_tells_which_figures_are_reached(tmp_path: Path) -> None:
    cells = {"recurrency": cell(0.35), TRAINED: cell(0.43, queries=40)}
    tried = {"preset": cell(0.5), "prior=0.0": cell(0.51)}
    write_json(
        tmp_path / "extrapolation.json", {"test": {"ICEWS14": cells}, "valid": {"YAGO": tried}}
    )
    lines = page_lines(Results([], folder=tmp_path), PAGE)
    text = "\n".join(lines)
    assert "| `evidence`, trained on train | .430 | .420 to .440 |" in text
    assert "| 40 of 100, drawn |" in text
    assert "RE-GCN [1](https://arxiv.org/abs/2405.18106) | .420 | – | .316 | .472 | .616 |" in text
    assert "recurrency baseline [2]" in text
    assert UNCHECKED not in text
    assert "above RE-NET (+0.0314), recurrency baseline (+0.0560); not to be told from" in text
    assert "not to be told from RE-GCN (+0.0100), CEN (+0.0080), TLogic (-0.0004); below" in text
    assert "below TiRGN (-0.0104), TPAR (-0.0389)." in text
    assert "| .430 | – | .100 | .540 | – | 40 of 100, drawn |" in text  # static, novel, repeated
    assert "Multi-step" not in text
    assert text.index("`prior=0.0`") < text.index("`preset`")
    later = cell(0.41) | {"mrr_static": 0.5, "novel_listed": 0.7}
    write_json(
        tmp_path / "extrapolation.json",
        {"test": {}, "valid": {}, "multi-step": {"ICEWS14": {TRAINED: later}}},
    )
    text = "\n".join(page_lines(Results([], folder=tmp_path), PAGE))
    assert "### ICEWS14, multi-step" in text
    assert "| .410 | .500 | .100 | .513 | 70% | 100 |" in text


def test_a_figure_that_could_not_be_read_again_is_marked(tmp_path: Path) -> None:
    content = {"test": {"tkgl-yago": {"recurrency": cell(0.92)}}, "valid": {}}
    write_json(tmp_path / "extrapolation.json", content)
    text = "\n".join(page_lines(Results([], folder=tmp_path), PAGE))
    assert f"| .909{UNCHECKED} |" in text
    assert "; " not in gaps("tkgl-yago", content["test"]["tkgl-yago"])


def test_without_records_there_is_no_such_page(tmp_path: Path) -> None:
    assert page_lines(Results([], folder=tmp_path), PAGE) == []
    assert page_lines(Results([]), PAGE) == []


def test_agreement_with_py_tgb_is_told_from_its_record(tmp_path: Path) -> None:
    row = {"queries": 56_110, "mrr": 0.894, "mrr_of_py_tgb": 0.894, "queries_that_differ": 0}
    row |= {"commit": "abc", "queries_of_split": 56_110}
    rows = {"recurrency": row, "evidence, trained": row | {"queries": 90}}
    content = {"dataset": "tkgl-yago", "py-tgb": "2.3.0", "command": "python -m studies.tgb"}
    write_json(tmp_path / "tgb.json", content | {"rows": rows})
    text = "\n".join(page_lines(Results([], folder=tmp_path), PAGE))
    assert "| `recurrency` | 56,110 | .8940 | .8940 | 0 | `abc` |" in text
    assert "| `evidence`, trained | 90 of 56,110, drawn | .8940 |" in text


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """A world in place of ICEWS14."""
    monkeypatch.setitem(
        DATASETS, "ICEWS14", DATASETS["ICEWS14"]._replace(facts="world:2000", split=(0.8, 0.1))
    )


@pytest.mark.usefixtures("small")
def test_rows_on_file_are_not_computed_again(tmp_path: Path, capsys: Any) -> None:
    out = tmp_path / "out.json"
    words = ["--datasets", "ICEWS14", "--questions", "50", "--out", str(out), "--rows"]
    main([*words, "recurrency"])
    first = read_json(out)["test"]["ICEWS14"]["recurrency"]
    assert first["queries"] < first["queries_of_split"]
    assert "recurrency" in capsys.readouterr().out
    main([*words, "recurrency", "paths", PRETRAINED])
    cells = read_json(out)["test"]["ICEWS14"]
    assert cells["recurrency"] == first
    assert list(cells) == ["recurrency", "paths", PRETRAINED]
    assert 0.3 < cells["paths"]["novel_listed"] < cells[PRETRAINED]["novel_listed"] <= 1
    assert "recurrency" not in capsys.readouterr().out


@pytest.mark.usefixtures("small")
def test_rows_that_were_computed_elsewhere_are_taken_over_in_the_order_of_the_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        RENET,
        "presets",
        {"default": {"epochs": 1, "global_epochs": 0, "dimension": 8, "patience": 0}},
    )
    out, other = tmp_path / "out.json", tmp_path / "other.json"
    words = ["--datasets", "ICEWS14", "--questions", "20", "--rows"]
    main([*words, "paths", "--out", str(out)])
    main([*words, *BASELINES[:1], "recurrency", "--out", str(other)])
    main([*words, "recurrency", "--history", "multi-step", "--out", str(other)])
    main(["--add", str(other), "--out", str(out)])
    content = read_json(out)
    assert list(content["test"]["ICEWS14"]) == ["recurrency", "paths", BASELINES[0]]
    assert content["test"]["ICEWS14"][BASELINES[0]]["novel_listed"] is None  # it scores everybody
    again = content["multi-step"]["ICEWS14"]["recurrency"]
    assert again["mrr"] < content["test"]["ICEWS14"]["recurrency"]["mrr"]


@pytest.mark.usefixtures("small")
def test_settings_are_tried_on_valid(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    quick = {"train_queries": 60, "epochs": 1, "members": 1}
    monkeypatch.setattr("studies.extrapolation.TRIED", (quick, quick | {"prior": 0.0}))
    out = tmp_path / "out.json"
    told = main(["--choose", "ICEWS14", "--questions", "50", "--out", str(out)])
    content = read_json(out)
    assert content["test"] == {}
    assert len(content["valid"]["ICEWS14"]) == 2
    assert "prior=0.0" in told
    again = measured(TRAINED, "ICEWS14", part="valid", questions=50, settings=quick)
    label = next(iter(content["valid"]["ICEWS14"]))
    assert content["valid"]["ICEWS14"][label]["mrr"] == again["mrr"]
    assert TRIED[0] == {}
    main(["--datasets", "ICEWS14", "--rows", CHOSEN, "--questions", "50", "--out", str(out)])
    best = max(content["valid"]["ICEWS14"].values(), key=lambda one: one["mrr"])
    assert read_json(out)["test"]["ICEWS14"][CHOSEN]["settings"] == best["settings"]


def test_no_row_is_chosen_where_nothing_or_only_the_preset_did_best() -> None:
    assert best_settings({"valid": {}}, "YAGO") == {}
    tried = {"preset": cell(0.5) | {"settings": {}}, "b": cell(0.4) | {"settings": {"prior": 0.0}}}
    assert best_settings({"valid": {"YAGO": tried}}, "YAGO") == {}
    tried["b"]["mrr"] = 0.6
    assert best_settings({"valid": {"YAGO": tried}}, "YAGO") == {"prior": 0.0}

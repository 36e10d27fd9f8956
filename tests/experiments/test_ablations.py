"""Ablations of the evidence model: the grid, the table, the sentences."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from metatkgr.errors import DataError
from metatkgr.experiments.cells import ABLATIONS, EVIDENCE_PARTS, WALK_PARTS, Cell, Row
from metatkgr.experiments.records import Record, check_result
from metatkgr.experiments.report import results_page
from metatkgr.experiments.results import EVIDENCE, Results, read_records
from metatkgr.experiments.runner import work_through
from metatkgr.experiments.sections.comparisons import ablation_average, ablation_table
from metatkgr.experiments.sections.findings import evidence_findings
from metatkgr.experiments.suite import EXPERIMENTS, Choice, cells_for, quick_choice, settings_of
from metatkgr.models import create

CHANGED = ("support_share=0", "epochs=0")


def test_each_part_is_left_out_with_three_seeds_beside_the_whole_with_five() -> None:
    cells = cells_for(["evidence-ablations"], Choice())
    assert {(c.model, c.visibility) for c in cells} == {("evidence", "entity-split")}
    found = Counter((c.dataset, c.shots, c.row.variant) for c in cells)
    for dataset in ("YAGO", "WIKI", "ICEWS18"):
        for shots in (1, 2, 3):
            assert found.pop((dataset, shots, None)) == 5
            names = ABLATIONS["evidence", "default"]
            assert [found.pop((dataset, shots, name)) for name in names] == [3] * 11
    assert not found
    assert len(Choice().seeds_of("evidence")) == 5
    assert "evidence-ablations" in EXPERIMENTS
    assert cells_for(["evidence-ablations"], Choice(models=("paths",))) == []
    quick = cells_for(["evidence-ablations"], quick_choice(Choice(models=("evidence",))))
    assert Counter(c.seed for c in quick) == {0: 13, 1: 2}


@pytest.mark.parametrize("part", WALK_PARTS)
def test_an_ablation_of_walks_may_change_several_settings(
    part: tuple[tuple[str, str], ...],
) -> None:
    cells = cells_for(["walk-ablations"], Choice(datasets=("WIKI",)))
    assert {cell.row.preset for cell in cells} == {"walks"}
    (row,) = {cell.row for cell in cells if cell.settings == part}
    assert row.variant == ", ".join(f"{key}={value}" for key, value in part)
    assert Row("metatkgr", settings=part).variant is None, "of another preset"
    whole, less = (create("metatkgr", dict(x), preset="walks").settings for x in ((), part))
    changed = {key for key in vars(whole) if getattr(whole, key) != getattr(less, key)}
    assert changed == dict(part).keys()


@pytest.mark.parametrize(("key", "value"), EVIDENCE_PARTS)
def test_every_ablation_is_one_that_the_model_takes(key: str, value: str) -> None:
    cell = Cell("YAGO", "evidence", settings=((key, value),))
    assert cell.row.variant == f"{key}={value}"
    changed = create("evidence", settings_of(cell)).settings
    assert changed != create("evidence").settings
    # Another value is another model, not an ablation; nor is another model with this setting.
    assert Row("evidence", settings=((key, "7"),)).variant is None
    assert Row("transe", settings=cell.settings).variant is None


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> list[Record]:
    """A tiny training, one in which nothing is learned, a rule; and a made-up ablation."""
    out = tmp_path_factory.mktemp("cells")
    whole = Cell("world:1500:1", "evidence", tiny=True)
    less = replace(whole, settings=(("epochs", "0"),))
    work_through(out, [Cell("world:1500:1", "paths"), whole, less], say=lambda text: None)
    found = read_records(out / "cells")
    (same,) = (o for o in found if o.row.variant)
    return [*found, replace(same, cell=replace(same.cell, settings=(("support_share", "0"),)))]


def test_ablations_have_a_table_of_their_own_and_stand_in_no_other(
    outcomes: list[Record],
) -> None:
    runs = Results(outcomes)
    assert runs.rows(3) == [Row("paths"), EVIDENCE]
    page = results_page(Results(outcomes))
    section = page.partition("## Ablations of `evidence`")[2].partition("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("|")]
    assert [line.split(" | ")[0] for line in lines[2:]] == [
        "| whole", *(f"| `{name}`" for name in CHANGED)
    ]  # fmt: skip
    assert "; " not in lines[2]
    assert all("; " in line and " to " in line for line in lines[3:])
    assert "`epochs=0`" not in page.partition("## 3-shot")[2].partition("## What each")[0]
    assert "`epochs=0` instead of the whole of `evidence` changes the MRR by" in page
    assert "Ablations of" not in results_page(Results([o for o in outcomes if not o.row.variant]))


def test_the_table_says_what_a_part_is_worth(outcomes: list[Record]) -> None:
    def changed(outcome: Record, by: float) -> Record:
        metrics = outcome.result["metrics"]["static"]["all"]
        static = outcome.result["metrics"]["static"] | {"all": metrics | {"mrr": by}}
        return replace(
            outcome,
            result=outcome.result | {"metrics": outcome.result["metrics"] | {"static": static}},
        )

    mrr = {None: 0.5, "support_share=0": 0.4, "epochs=0": 0.55}
    own = [changed(o, mrr[o.row.variant]) for o in outcomes if o.row.model == "evidence"]
    found = Results(own).against_ablations(EVIDENCE)
    assert {c.other.variant for c in found} == set(CHANGED)
    said = evidence_findings(Results(own), found)
    assert said[0].startswith("Of 2 comparisons of `evidence` with an ablation of it, ")
    told = [line for line in results_page(Results(own)).splitlines() if "instead of" in line]
    assert "-0.100 on" in told[0]
    assert "+0.050 on" in told[1]
    # With sums of entities the difference is theirs, with its interval and star.
    (least,) = (c for c in found if c.other.variant == CHANGED[0])
    worse = replace(least, difference=0.1, low=0.08, high=0.12, corrected=0.01)
    lines = "\n".join(ablation_table(Results(own), [worse]))
    assert "; -0.100\\* (-0.120 to -0.080)" in lines
    assert "; +0.050 |" in lines
    # More than one K: the mean over all cells is told too.
    both = [*own, *(replace(o, cell=replace(o.cell, shots=1, test_shots="1")) for o in own)]
    assert evidence_findings(Results(both), found)[1] == (
        "In the mean over 2 cells (datasets and K), 1 of 2 ablations of `evidence` lower the MRR; "
        "they change it by -0.1000 (`support_share=0`) to +0.0500 (`epochs=0`)."
    )
    assert len(said) == 1


def test_ablations_of_metatkgr_are_averaged_over_the_cells_and_seeds_that_all_have(
    outcomes: list[Record],
) -> None:
    some = next(o for o in outcomes if o.row.model == "evidence")

    def cell(variant: str, shots: int, seed: int, mrr: float) -> Record:
        settings = (("variant", variant),) if variant else ()
        changed = dict.fromkeys(("mrr", "hits@1", "hits@3", "hits@10"), mrr)
        metrics = {
            name: {subset: values | changed for subset, values in subsets.items()}
            for name, subsets in some.result["metrics"].items()
        }
        return replace(
            some,
            cell=Cell("world:1500:1", "metatkgr", shots, seed, settings=settings),
            result=some.result | {"metrics": metrics},
        )

    own = [
        *(cell("", k, seed, 0.5 + seed / 10) for k in (1, 2, 3) for seed in (0, 1)),
        *(cell("static-maml", k, 1, k / 10) for k in (1, 3)),
        cell("static-maml", 2, 4, 0.9),
    ]
    lines, cells = ablation_average(Results(own))
    assert cells == 2  # seed 4 of 2-shot has nothing to be compared with
    assert lines[2].startswith("| whole | .6000 |")
    assert lines[3].startswith("| static-maml | .2000 |")
    assert "Mean over 2 cells" in results_page(Results(own))
    assert ablation_average(Results(own[:6] + own[8:])) == ([], 0)


def test_probabilities_of_whole_models_are_judged_in_their_cells(outcomes: list[Record]) -> None:
    judged = {o.row: o.result.get("calibration") for o in outcomes}
    assert all((found is None) == bool(row.variant) for row, found in judged.items())
    later = judged[EVIDENCE]["meta-test"]  # type: ignore[index]
    assert later["queries"] > 0
    assert all(0 <= later[key] <= 1 for key in ("ece", "ece_ranks", "stated", "correct"))
    section = results_page(Results(outcomes)).partition("## Calibration")[2].partition("\n## ")[0]
    assert f"({later['stated']:.3f}, {later['correct']:.3f})".replace("0.", ".") in section
    assert section.count("| `") == 2


@pytest.mark.parametrize(
    "wrong", [3, {"fitted": "good"}, {"meta-test": {"ece": "low"}}, {"fitted": {"ece": True}}]
)
def test_a_calibration_that_is_none_is_refused(outcomes: list[Record], wrong: object) -> None:
    check_result(outcomes[0].result | {"calibration": {"fitted": {"ece": 0.1}, "meta-test": None}})
    with pytest.raises(DataError, match=r"calibration|is no number"):
        check_result(outcomes[0].result | {"calibration": wrong})

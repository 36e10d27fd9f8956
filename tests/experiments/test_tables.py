"""Numbers of tables, tests of significance, and the files they are made from."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from metatkgr.errors import DataError
from metatkgr.evaluation.ranking import bootstrap_interval
from metatkgr.experiments.cells import Cell, Row
from metatkgr.experiments.published import CROSS_SHOT, PUBLISHED
from metatkgr.experiments.records import FloatArray, Record, entity_sums, pack, unpack
from metatkgr.experiments.report import to_html
from metatkgr.experiments.results import Results, best_baselines, read_records
from metatkgr.experiments.runner import work_through
from metatkgr.experiments.sections.findings import bound_findings, leader_findings
from metatkgr.experiments.sections.tables import BETTER, WITHIN, WORSE, main_table, mark
from metatkgr.experiments.significance import RESAMPLES, Comparison, Draws, holm


@given(st.lists(st.integers(0, 2**31 - 1)))
def test_packed_numbers_read_back(values: list[int]) -> None:
    assert unpack(pack(values)).tolist() == values


def test_what_was_not_packed_is_refused() -> None:
    with pytest.raises(DataError, match="packed"):
        unpack("not base64!")


def test_holm_on_a_worked_example() -> None:
    # Sorted .01 .02 .03 .04, times 4 3 2 1: .04 .06 .06 .04, made monotone.
    assert holm([0.03, 0.01, 0.04, 0.02]) == pytest.approx([0.06, 0.04, 0.06, 0.06])
    assert holm([]) == []
    assert holm([0.9, 0.8]) == [1.0, 1.0]


def compare(
    one: Mapping[int, FloatArray], other: Mapping[int, FloatArray], size: FloatArray
) -> Comparison | None:
    """Of two models, from (n,) sums of reciprocal ranks by seed."""
    packed = {"queries": pack(size), "parts": 10**9}
    records = []
    for name, by_seed in (("lan", one), ("igen", other)):
        for seed, sums in by_seed.items():
            own = packed | {"static": pack(np.rint(sums / size * 1e9))}
            mrr = {"static": {"all": {"mrr": float(sums.sum() / size.sum())}}}
            records.append(Record(Cell("x", name, seed=seed), {"per_entity": own, "metrics": mrr}))
    numbers = Draws(records).compare(Row("lan"), Row("igen"))
    return numbers and Comparison("x", 3, Row("lan"), Row("igen"), *numbers)


def test_a_comparison_agrees_with_the_bootstrap_of_one_ranking() -> None:
    generator = np.random.default_rng(3)
    size = generator.integers(1, 30, 400).astype(float)
    one = generator.random(400) * size
    other = one - (generator.random(400) - 0.4) * size
    numbers = compare({0: one}, {0: other}, size)
    assert numbers is not None
    assert numbers.difference == pytest.approx((one - other).sum() / size.sum())
    interval = bootstrap_interval(one - other, size)
    assert (numbers.low, numbers.high) == pytest.approx(interval, abs=0.005)
    assert numbers.p < 1e-5


@pytest.mark.parametrize("parts", [None, 10_000])
def test_sums_of_entities_add_up_to_the_mrr_that_is_told(parts: int | None) -> None:
    """Old records keep them in 1/250: text and table differed in the third digit."""
    generator = np.random.default_rng(1)
    size, means = generator.integers(1, 9, 70), generator.random(70)
    mrr = float((size * means).sum() / size.sum())
    packed = {"queries": pack(size), "static": pack(np.rint((parts or 250) * means))}
    packed |= {"parts": parts} if parts else {}
    kept = entity_sums(
        {"per_entity": packed, "metrics": {"static": {"all": {"mrr": mrr}}}}, "static"
    )
    assert kept is not None
    assert kept[0].sum() / kept[1].sum() == pytest.approx(mrr, abs=1e-14)
    assert np.abs(kept[0] / size - means).max() < 1 / (parts or 250)


def test_drawn_entities_and_seeds_are_those_of_the_plain_bootstrap() -> None:
    """Literally: draw entities, draw seeds, scale the seeds' deviation up; row by row."""
    generator = np.random.default_rng(5)
    size = generator.integers(1, 9, 40).astype(float)
    one = {seed: generator.random(40) * size for seed in range(3)}
    other = {seed: one[seed] - generator.random(40) * size * 0.1 for seed in range(3)}
    numbers = compare(one, other, size)
    assert numbers is not None
    entities, seeds = np.random.default_rng(0), np.random.default_rng(1)
    which = seeds.integers(0, 3, (RESAMPLES, 3))
    drawn = []
    for draw in range(RESAMPLES):
        rows = entities.integers(0, 40, 40)
        by_seed = [(one[s] - other[s])[rows].sum() / size[rows].sum() for s in range(3)]
        mean = sum(by_seed) / 3
        away = sum(by_seed[s] for s in which[draw]) / 3 - mean
        drawn.append(mean + (3 / 2) ** 0.5 * away)
    interval = np.percentile(drawn, [2.5, 97.5])
    assert (numbers.low, numbers.high) == pytest.approx(interval, abs=1e-7)


def test_margins_and_power_follow_from_the_spread() -> None:
    same = Comparison("x", 3, Row("a"), Row("b"), 0.001, -0.003, 0.005, 0.002)
    # Two one-sided tests at 5 %: within ±margin if both ends of the 90 % interval are.
    assert same.equivalence == pytest.approx(0.001 + 1.6449 * 0.002)
    assert same.p == pytest.approx(0.617, abs=0.001)
    generator = np.random.default_rng(0)
    found = np.abs(generator.normal(same.detectable, 0.002, 20_000)) > 1.96 * 0.002
    assert found.mean() == pytest.approx(0.8, abs=0.01)


def test_equal_models_do_not_differ_and_seeds_are_paired() -> None:
    size = np.full(50, 4.0)
    one = {seed: np.full(50, 1.0 + seed) for seed in range(3)}
    # Of the second only the first seed is common: the others, much higher, must not count.
    for other in (one, {0: one[0], 7: one[2] * 1.2}):
        same = compare(one, other, size)
        assert same is not None
        assert (same.difference, same.low, same.high, same.p) == (0.0, 0.0, 0.0, 1.0)
    assert compare(one, {8: one[0]}, size) is None


def test_noise_rarely_looks_significant() -> None:
    generator = np.random.default_rng(0)
    size = np.ones(200)
    found = []
    for _ in range(200):
        one, other = generator.random((2, 200))
        numbers = compare({0: one}, {0: other}, size)
        assert numbers is not None
        found.append(numbers.p < 0.05)
    assert 0.01 < np.mean(found) < 0.11


def test_marks_say_better_within_or_worse() -> None:
    assert mark(0.40, 0.37, 0.016) == BETTER
    assert mark(0.386, 0.37, 0.016) == WITHIN
    assert mark(0.353, 0.37, 0.016) == WORSE
    assert mark(0.371, 0.37, None) == BETTER
    assert mark(0.37, None, None) == ""


def test_the_published_numbers_are_the_papers() -> None:
    assert PUBLISHED["metatkgr", "YAGO", 3].mean == (0.370, 0.303, 0.416, 0.558)
    assert PUBLISHED["metatkgr", "ICEWS18", 3].std == (0.009, 0.015, 0.014, 0.010)
    assert PUBLISHED["regcn", "WIKI", 1].mean == (0.223, None, None, 0.250)
    assert len(PUBLISHED) == 10 * 3 * 3
    for (model, dataset, shots), printed in PUBLISHED.items():
        assert printed.std is None or len(printed.std) == 4, (model, dataset, shots)
        mrr, h1, _, h10 = printed.mean
        assert mrr is not None
        assert h10 is not None
        assert mrr < h10
        assert h1 is None or h1 <= h10
    # The diagonal of the cross-shot table repeats the tables of 1 and 3 shots.
    for shots in (1, 3):
        mean = PUBLISHED["metatkgr", "YAGO", shots].mean
        assert CROSS_SHOT[shots, str(shots)] == (mean[0], mean[1], mean[3])


@pytest.fixture
def cells(tmp_path: Path) -> Path:
    grid = [Cell("world:3000:1", rule, k) for rule in ("recurrency", "paths") for k in (1, 3)]
    work_through(tmp_path / "out", grid, say=lambda text: None)
    return tmp_path / "out"


def test_a_table_shows_what_is_missing_as_a_dash(cells: Path) -> None:
    records = read_records(cells / "cells")
    kept = [r for r in records if (r.row.model, r.cell.shots) != ("paths", 3)]
    assert "`paths`" not in "\n".join(main_table(Results(kept), 3))
    kept += [r for r in records if r.row.model == "paths" and r.cell.shots == 1]
    assert len(main_table(Results(kept), 1)) == 4


def test_the_best_baselines_are_chosen_on_validation() -> None:
    def record(model: str, mrr: float) -> Record:
        return Record(Cell("YAGO", model), {}, {"validation_mrr": mrr})

    found = [record("transe", 0.5), record("lan", 0.4), record("igen", 0.6)]
    assert best_baselines(found) == ("igen", "transe", "lan")
    assert best_baselines([*found, record("tgen", 0.1)]) == ("igen", "transe", "lan")
    assert best_baselines(found[:2]) == ()


def test_markdown_becomes_a_page(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(b"png")
    page = to_html("# T\n\nA **b** `c<d`\nmore.\n\n- x\n- y\n\n| a | b |\n| --- | --- |\n"
                   "| 1 | -.1\\* |\n\n```text\n<x>\n```\n\n![f](a.png)\n", tmp_path)  # fmt: skip
    for part in (
        "<title>T</title>",
        "<p>A <strong>b</strong> <code>c&lt;d</code>\nmore.</p>",
        "<ul>\n<li>x</li>\n<li>y</li>\n</ul>",
        "<td>-.1*</td>",
        '<pre><code class="language-text">&lt;x&gt;\n</code></pre>',
        "data:image/png;base64,",
    ):
        assert part in page


def _made(model: str, seed: int, height: float, curve: dict[str, list[float]]) -> Record:
    """A run on YAGO, 3-shot, with the same number in every cell."""
    numbers = dict.fromkeys(("mrr", "hits@1", "hits@3", "hits@10"), height)
    metrics = {kind: {"all": numbers} for kind in ("static", "time")}
    training = {"curve": [{"phase": "meta", "epoch": [1, 2], **curve}]}
    return Record(Cell("YAGO", model, seed=seed), {"metrics": metrics}, training)


def test_who_leads_is_told_by_means_over_seeds_and_with_the_published_model() -> None:
    low = [_made("paths", 0, 0.5, {}), _made("transe", 0, 0.9, {}), _made("transe", 1, 0.0, {})]
    (told,) = leader_findings(Results(low))
    # .5 against a mean of .45; but the published H@10 is .558.
    assert "of 8 cells" in told
    assert told.endswith("`paths` in 7, the published MetaTKGR in 1.")
    (told,) = leader_findings(Results([*low, _made("lan", 0, 0.6, {})]))
    assert told.endswith("`lan` in 8.")


def test_whether_the_bound_held_is_counted() -> None:
    curve = {"bound": [1.0, 0.5], "true_loss": [0.9, 0.6]}
    (told,) = bound_findings(Results([_made("metatkgr", 0, 0.5, curve)]))
    assert "in 1 of 2 epochs on YAGO" in told
    assert bound_findings(Results([_made("paths", 0, 0.5, {})])) == []

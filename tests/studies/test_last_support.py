"""The last support fact of meta-test entities, foretold from the earlier ones."""

from __future__ import annotations

from pathlib import Path

import pytest

import metatkgr as mt
from metatkgr.data.periods import Period
from metatkgr.data.tasks import Tasks
from metatkgr.data.world import simulate
from metatkgr.errors import SettingsError
from studies.last_support import last_support, main

TINY = {"dimension": 8, "translation_epochs": 2, "epochs": 1, "inner_steps": 2}


def test_the_queries_are_the_last_support_facts_and_nothing_later() -> None:
    facts = simulate(facts=2000, seed=3)
    tasks = last_support(facts, 3)
    of_three = Tasks.build(facts, shots=3, split=Period.META_TEST)
    asked = set(tasks.answers.fact.tolist())
    assert asked
    assert asked <= set(of_three.support_facts.tolist())
    assert not asked & set(of_three.answers.fact.tolist()), "no query of the protocol is looked at"
    for row, fact in zip(tasks.answers.question.tolist(), tasks.answers.fact.tolist(), strict=True):
        entity = int(tasks.questions.entity[row])
        support, whole = tasks.supports.of(entity), of_three.supports.of(entity)
        assert (len(support), len(whole)) == (2, 3)
        assert int(facts.time[fact]) == tasks.questions.time[row] == whole.time[-1]
    assert len(tasks.visible) == len(of_three.visible)
    with pytest.raises(SettingsError, match="give 2 or more"):
        last_support(facts, 1)


def test_what_the_support_of_the_other_end_tells_is_not_asked() -> None:
    """C and B emerge together: C's third fact is B's first, which B's support has told."""
    old = [(f"x{step % 5}", "knows", f"x{(step + 1) % 5}", step) for step in range(80)]
    new = [
        *(("A", "knows", "x0", 90), ("A", "knows", "x1", 91), ("A", "knows", "x2", 92)),
        *(("C", "knows", "x0", 93), ("C", "knows", "x1", 94), ("C", "knows", "B", 99)),
    ]
    facts = mt.read_facts([*old, *new])
    tasks = last_support(facts, 3)
    asked = [facts.describe(fact)[:3] for fact in tasks.answers.fact.tolist()]
    assert asked == [("A", "knows", "x2")]


def test_the_table_of_a_run(tmp_path: Path) -> None:
    facts = simulate(facts=2000, seed=3)
    model = mt.Estimator("metatkgr", preset="adapted", shots=3, test_shots=2, device="cpu", **TINY)
    model.fit(facts).save(tmp_path / "run")
    lines = main(str(tmp_path / "run"), "0", "2").splitlines()
    assert [line.split("|")[1].strip() for line in lines[2:]] == ["0", "2"]
    assert "as trained" in main(str(tmp_path / "run"))
    mt.Estimator("transe", shots=3, dimension=8, epochs=1, device="cpu").fit(facts).save(
        tmp_path / "other"
    )
    with pytest.raises(SettingsError, match="--test-shots 2"):
        main(str(tmp_path / "other"))

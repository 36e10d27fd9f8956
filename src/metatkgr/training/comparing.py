"""Models on the same queries: how much better is the first, and may it be chance?"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from metatkgr.data.answers import FILTERS
from metatkgr.data.facts import Facts, IntArray
from metatkgr.data.sources import refuse_test_graph
from metatkgr.errors import SettingsError
from metatkgr.evaluation.evaluator import Evaluation, evaluate
from metatkgr.evaluation.ranking import FloatArray, Summary, bootstrap_interval
from metatkgr.models import Model, available
from metatkgr.training.opening import OpenModel, open_model

__all__ = [
    "IN_A_ROUND",
    "Compared",
    "Comparison",
    "compare",
    "paired_difference",
    "paired_p_value",
]

IN_A_ROUND = "looked at outside a registered round (reproduce --claim)"


@dataclass(frozen=True)
class Compared:
    """One of the models."""

    name: str
    """As it was given; of a model of Python's, its own."""
    model: str
    seed: int
    summary: Summary
    first_minus_this: tuple[float, float, float] | None
    """Difference in MRR and its interval; None for the first."""
    p_value: float | None


@dataclass(frozen=True)
class Comparison:
    """Models on the same queries; the first is compared with each other one."""

    dataset: str
    shots: int | str
    visibility: str
    split: str
    filter: str
    rows: tuple[Compared, ...]

    def title(self) -> str:
        """What they were compared on."""
        return (
            f"{self.dataset}: {self.shots}-shot, {self.split}, visibility {self.visibility}, "
            f"filter {self.filter}"
        )

    def to_json(self) -> list[dict[str, Any]]:
        """As ``metatkgr compare --json`` writes it."""
        return [
            {"run": row.name, "model": row.model, "seed": row.seed}
            | row.summary.to_json()
            | {
                "first_minus_this": row.first_minus_this and list(row.first_minus_this),
                "p_value": row.p_value,
            }
            for row in self.rows
        ]


def compare(
    *sources: str | Model[Any] | OpenModel,
    data: str | Facts | None = None,
    split: str = "meta-test",
    filter: str = "static",
    device: str = "auto",
    progress: Callable[[int, int], object] | None = None,
) -> Comparison:
    """Evaluate models on the same queries.

    The difference in MRR is paired: an interval by bootstrap over entities, each with all of its
    queries, and a p-value by drawing the sign of each entity's gain anew.

    Args:
        sources: folders of runs, names of models that need no training, models, or what
            ``open_model`` opened; the first is compared with each other one.
        data: on what, where the first is a model; else what the first was opened with.
        split: whose new entities.
        filter: 'static' or 'time'.
        device: where to compute.
        progress: called with how many questions of how many are done, of each model.

    Raises:
        SettingsError: they do not ask the same queries.
    """
    if filter not in FILTERS:
        raise SettingsError(f"--filter takes {' or '.join(FILTERS)}, not {filter!r}")
    first: tuple[tuple[Any, ...], Evaluation, OpenModel] | None = None
    rows: list[Compared] = []
    for source in sources:
        opened = _opened(source, data if first is None else first[2], device)
        refuse_test_graph(opened.facts.name, IN_A_ROUND)
        tasks = opened.tasks(split)
        total = len(tasks.questions)

        def tell(done: int, total: int = total) -> None:
            if progress is not None:
                progress(done, total)

        evaluation = evaluate(opened.model, tasks, progress=tell)
        drawn_by = opened.seed if isinstance(opened.shots, str) else 0
        key = (opened.facts.name, opened.shots, opened.visibility, len(tasks.answers), drawn_by)
        name = source if isinstance(source, str) else opened.model.name
        difference, p = None, None
        if first is None:
            first = (key, evaluation, opened)
        elif key != first[0]:
            raise SettingsError(
                f"{name} asks other queries than {rows[0].name}: {key} and {first[0]} (dataset, "
                "shots, visibility, queries, seed of the shots where they are drawn)"
            )
        else:
            ranks = (first[1].ranks[filter], evaluation.ranks[filter])
            difference = paired_difference(*ranks, evaluation.entity)
            p = paired_p_value(*ranks, evaluation.entity)
        summary = evaluation.summary(filter)
        rows.append(Compared(name, opened.model.name, opened.seed, summary, difference, p))
    if first is None:
        raise SettingsError("name what is to be compared: runs or models")
    dataset, shots, visibility, _, _ = first[0]
    return Comparison(dataset, shots, visibility, split, filter, tuple(rows))


def _opened(
    source: str | Model[Any] | OpenModel, on: str | Facts | OpenModel | None, device: str
) -> OpenModel:
    """A source, on the data of the first or on those that were given."""
    if isinstance(source, OpenModel):
        return source
    if isinstance(source, str) and source not in available():
        return open_model(source, device=device)
    name = source if isinstance(source, str) else None
    if on is None:
        raise SettingsError(f"{name or source} is a model: say on what, with --data DATA")
    if isinstance(on, OpenModel):
        opened = open_model(on.facts, model=name, device=device, **on.protocol)
    else:
        opened = open_model(on, model=name, device=device)
    return replace(opened, model=source) if isinstance(source, Model) else opened


def paired_difference(
    one: FloatArray, other: FloatArray, entity: IntArray, *, resamples: int = 1000, seed: int = 0
) -> tuple[float, float, float]:
    """How much higher the MRR of one ranking of the same queries is than that of another.

    Args:
        one, other: (A,) ranks of the same queries.
        entity: (A,) whose query each is.
        resamples: of the bootstrap over entities.
        seed: of the bootstrap.

    Returns:
        The difference, and its 95 % interval.
    """
    gain = 1.0 / one - 1.0 / other
    _, group = np.unique(entity, return_inverse=True)
    total: FloatArray = np.bincount(group, weights=gain).astype(np.float64)
    size: FloatArray = np.bincount(group).astype(np.float64)
    low, high = bootstrap_interval(total, size, resamples=resamples, seed=seed)
    return float(gain.mean()), low, high


def paired_p_value(
    one: FloatArray, other: FloatArray, entity: IntArray, *, draws: int = 10_000, seed: int = 0
) -> float:
    """How likely a difference in MRR at least as large is if the two rankings are equally good.

    Under that, the gain of each entity could as well have the other sign: signs are drawn anew, for
    all queries of an entity together, and the share of draws that reach the difference is counted
    (with the difference itself, so that it is never 0).

    Args:
        one, other, entity: as in :func:`paired_difference`.
        draws: of the signs.
        seed: of the draws.
    """
    _, group = np.unique(entity, return_inverse=True)
    total = np.bincount(group, weights=1.0 / one - 1.0 / other)
    rng = np.random.default_rng(seed)
    reached = 0
    size = max(1, (1 << 22) // max(1, len(total)))
    for begin in range(0, draws, size):
        signs = rng.integers(0, 2, (min(size, draws - begin), len(total)), np.int8) * 2.0 - 1.0
        reached += int((np.abs(signs @ total) >= abs(total.sum()) - 1e-12).sum())
    return (reached + 1) / (draws + 1)

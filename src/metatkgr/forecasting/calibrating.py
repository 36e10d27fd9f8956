"""Fitting a calibration to the queries of meta-validation, and measuring its error."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from metatkgr.data.periods import Period
from metatkgr.data.visibility import VisibleFacts
from metatkgr.evaluation.evaluator import in_chunks
from metatkgr.forecasting.calibration import BANDS, SHARES, Calibration, Head, Scored
from metatkgr.forecasting.sampling import DrawnQueries
from metatkgr.graph.index import TemporalIndex
from metatkgr.models.base import Graded, Model
from metatkgr.models.trainable import TrainableModel

__all__ = ["calibration_report", "expected_calibration_error", "fit_calibration"]

_QUERIES = 1000
_CELLS = 1 << 24
"""Scores kept in memory for the fit."""
_CELLS_OF_SEARCH = 1 << 22
"""Scores looked at for the temperature."""
_ENOUGH = 500
"""With fewer queries of meta-validation a rule, which has learned from none, takes those of
meta-train too."""
_FEWEST = 20
"""With fewer queries of meta-validation a trained model takes those of meta-train too, though it
has learned from them and boasts a little; with fewer still, nothing is fitted."""
_SMOOTHING = 4.0
_BINS = 10
_TOP = 10
_GOLDEN = (math.sqrt(5) - 1) / 2
_ROUNDS, _SETTLED = 50, 1e-18
"""Steps of Newton's method, and what the last one still gains."""


def fit_calibration(
    model: Model[Any], visible: VisibleFacts, shots: int | str = 3, *, seed: int = 0
) -> Calibration:
    """Calibrate a model on the meta-validation queries of a graph.

    Where these are fewer than 500 a rule takes those of meta-train too; a trained model, which has
    learned from those, only where there are fewer than 20. Leaves the model prepared for these
    queries: prepare it again.

    Args:
        model: trained, where it has weights; gets prepared.
        visible: the whole graph, all of it public.
        shots: K.
        seed: picks the queries, where there are more than 1,000.
    """
    splits = (Period.META_VALIDATION, Period.META_TRAIN)
    enough = _FEWEST if isinstance(model, TrainableModel) else _ENOUGH
    samples: dict[str, _Sample] = {}
    for split in splits:
        sample = _Sample.draw(model, visible, split, shots, seed)
        if sample is not None:
            samples[split.label] = sample
        if sum(len(sample.answer) for sample in samples.values()) >= enough:
            break
    joined = _Sample.join(list(samples.values())) if samples else None
    if joined is None or len(joined.answer) < _FEWEST:
        return Calibration("table" if isinstance(model, Graded) else "softmax")
    first, all_ten = joined.errors()
    return replace(joined.fit(), split=" and ".join(samples), ece=first, ece_top10=all_ten)


def calibration_report(
    model: Model[Any], visible: VisibleFacts, shots: int | str = 3, *, seed: int = 0
) -> dict[str, Any]:
    """How far off the probabilities of a model are, where it was fitted and later.

    Leaves the model prepared for these queries: prepare it again.

    Args:
        model: trained, where it has weights; gets prepared.
        visible: the whole graph, all of it public.
        shots: K.
        seed: picks the queries, where there are more than 1,000.

    Returns:
        ``visibility``; ``fitted``: what :meth:`Calibration.about` says, the errors on entities that
        the fit had not seen; ``meta-test``: queries, expected calibration error of the first
        forecast and of the first ten, mean probability that the first forecast was ``stated`` to
        have and share in which it was ``correct``; None where there are no such queries.
    """
    fitted = fit_calibration(model, visible, shots, seed=seed)
    sample = _Sample.draw(model, visible, Period.META_TEST, shots, seed)
    later = None
    if sample is not None:
        stated, correct = sample._judge(fitted)
        first, all_ten = _errors_of(stated, correct)
        later = {
            "queries": len(sample.answer),
            "ece": first,
            "ece_top10": all_ten,
            "stated": float(stated[:, 0].mean()),
            "correct": float(correct[:, 0].double().mean()),
        }
    return {"visibility": "streaming", "fitted": fitted.about(), "meta-test": later}


def expected_calibration_error(stated: Tensor, correct: Tensor, bins: int = _BINS) -> float:
    """Mean gap between stated probability and observed share over equally filled bins.

    Args:
        stated: (N,) probabilities.
        correct: (N,) bool.
        bins: how many.
    """
    order = torch.argsort(stated)
    gaps = [
        len(rows) * abs(float(stated[rows].mean()) - float(correct[rows].double().mean()))
        for rows in torch.tensor_split(order, bins)
        if len(rows)
    ]
    return sum(gaps) / max(len(stated), 1)


def _errors_of(stated: Tensor, correct: Tensor) -> tuple[float, float]:
    """Expected calibration error of the first forecast and of the first ten, (N, 10) each."""
    return (
        expected_calibration_error(stated[:, 0], correct[:, 0]),
        expected_calibration_error(stated.flatten(), correct.flatten()),
    )


@dataclass(frozen=True, eq=False)
class _Sample:
    """Scored queries with their answers, one row each."""

    scored: Scored
    """Their first candidates."""
    true: Tensor
    """(N,) scores of the answers."""
    grades: Tensor | None
    """(N, L)."""
    answer: Tensor
    """(N,)."""
    half: Tensor
    """(N,) bool: which half of the query entities it belongs to."""
    kinds: tuple[int, ...] = ()
    """How many grades each kind of evidence has."""

    @classmethod
    def draw(
        cls,
        model: Model[Any],
        visible: VisibleFacts,
        split: Period,
        shots: int | str,
        seed: int,
    ) -> _Sample | None:
        """Score some queries of a split; None where it has none."""
        index = TemporalIndex.of(visible)
        drawn = DrawnQueries.of(visible.base, index, split, shots, seed=seed)
        if not len(drawn.answer):
            return None
        # Of a model that scores everybody, the scores of all queries are kept.
        most = _QUERIES if model.live else max(_CELLS // index.entities, 10 * _FEWEST)
        drawn = drawn.some(min(_QUERIES, most), seed)
        model.prepare(visible).adapt(drawn.supports)
        answer = torch.from_numpy(drawn.answer)
        scored: list[Scored] = []
        true: list[Tensor] = []
        grades: list[Tensor] = []

        def look(begin: int, end: int) -> None:
            queries = drawn.queries[begin:end]
            scores: Any = model.score(queries)
            if isinstance(model, Graded):
                grades.append(model.grades(queries).cpu())
            rows, right = torch.arange(end - begin), answer[begin:end]
            rows, right = rows.to(model.device), right.to(model.device)
            dense = isinstance(scores, Tensor)
            true.append((scores[rows, right] if dense else scores.of(rows, right)).cpu())
            scored.append(Scored.of(scores, softmax=not grades).cpu())

        in_chunks(len(drawn.answer), 64, look)
        _, entity = np.unique(drawn.queries.entity, return_inverse=True)
        half = torch.from_numpy(entity % 2 == 0)
        kinds = model.grade_kinds if isinstance(model, Graded) else ()
        merged = Scored.cat(scored)
        return cls(
            merged, torch.cat(true), torch.cat(grades) if grades else None, answer, half, kinds
        )

    @classmethod
    def join(cls, samples: list[_Sample]) -> _Sample:
        """Several samples of one model as one."""
        grades = [sample.grades for sample in samples if sample.grades is not None]
        return cls(
            Scored.cat([sample.scored for sample in samples]),
            torch.cat([sample.true for sample in samples]),
            torch.cat(grades) if grades else None,
            torch.cat([sample.answer for sample in samples]),
            torch.cat([sample.half for sample in samples]),
            samples[0].kinds,
        )

    def _select(self, rows: Tensor) -> _Sample:
        grades = None if self.grades is None else self.grades[rows]
        columns = (self.true[rows], grades, self.answer[rows], self.half[rows])
        return _Sample(self.scored.kept(rows), *columns, self.kinds)

    def errors(self) -> tuple[float | None, float | None]:
        """Expected calibration error of the first forecast and of the first ten."""
        halves = self._select(self.half), self._select(~self.half)
        if not all(len(half.answer) for half in halves):
            return None, None
        judged = [one._judge(other.fit()) for one, other in zip(halves, halves[::-1], strict=True)]
        stated, correct = (torch.cat(parts) for parts in zip(*judged, strict=True))
        return _errors_of(stated, correct)

    def _judge(self, calibration: Calibration) -> tuple[Tensor, Tensor]:
        """(N, 10) probabilities of the first ten candidates, and whether each is the answer."""
        found = calibration.apply(self.scored, self.grades)
        return found.chance[:, :_TOP], found.entity[:, :_TOP] == self.answer.unsqueeze(1)

    def fit(self) -> Calibration:
        """The calibration under which these answers are likeliest."""
        if self.grades is not None:
            return self._table(self.scored.value, self.grades, self.kinds)
        plain = Calibration("softmax", self._temperature())
        grades = SHARES.expand(len(self.answer), -1)
        corrected = self._table(plain.shares(self.scored), grades, (len(SHARES),))
        return replace(corrected, method=plain.method, temperature=plain.temperature)

    def _table(self, value: Tensor, grades: Tensor, kinds: tuple[int, ...]) -> Calibration:
        head = Head.of(value, grades, self.scored.others)
        cells = (grades.shape[1] + 1) * len(BANDS)
        inside = head.inside.double().flatten()
        cell = head.cell.flatten()
        there = torch.zeros(cells, dtype=torch.float64).index_add_(0, cell, inside)
        # An answer among equals is spread over their ranks.
        hit = head.mean_of_ties((self.scored.entity == self.answer.unsqueeze(1)).double())
        hits = torch.zeros(cells, dtype=torch.float64)
        hits.index_add_(0, cell, hit.flatten() * inside)
        there, hits = there.view(-1, len(BANDS)), hits.view(-1, len(BANDS))
        # A cell that was hardly seen leans on what grade and rank say each for itself.
        weight = there + _SMOOTHING
        table = (hits + _SMOOTHING * _additive(there, hits)) / weight
        first = 1  # the lowest grade is no evidence at all
        for grades_of_kind in kinds:
            rows = slice(first, first + grades_of_kind)
            table[rows] = torch.stack(
                [_rising(*column) for column in zip(table[rows].T, weight[rows].T, strict=True)], 1
            )
            first += grades_of_kind
        behind = len(self.answer) * self.scored.others + int((~head.inside).sum())
        missed = len(self.answer) - float(hits.sum())
        return Calibration(
            "table",
            table=tuple(tuple(row) for row in table.tolist()),
            tail=max(missed, 0.5) / max(behind, 1),
            queries=len(self.answer),
        )

    def _temperature(self) -> float:
        """T by golden-section search on its logarithm."""
        every = self.scored.value if self.scored.every is None else self.scored.every
        step = -(-every.numel() // _CELLS_OF_SEARCH)  # one number needs few queries
        some, true = self.scored.kept(slice(None, None, step)), self.true[::step].double()

        def surprise(log_temperature: float) -> float:
            temperature = math.exp(log_temperature)
            return float((some.log_total(temperature) - true / temperature).mean())

        spread = max(float(every[::step].double().std(1).median()), 1e-6)
        low, high = math.log(spread) - 7, math.log(spread) + 5
        for _ in range(30):
            span = _GOLDEN * (high - low)
            left, right = high - span, low + span
            if surprise(left) < surprise(right):
                high = right
            else:
                low = left
        return math.exp((low + high) / 2)


def _rising(values: Tensor, weights: Tensor) -> Tensor:
    """The nearest values that never fall (isotonic regression): neighbours that do are pooled."""
    pools: list[tuple[float, float, int]] = []  # mean, weight, how many
    for value, weight in zip(values.tolist(), weights.tolist(), strict=True):
        pool = (value, weight, 1)
        while pools and pools[-1][0] > pool[0]:
            mean, heavy, many = pools.pop()
            total = heavy + pool[1]
            pool = ((mean * heavy + pool[0] * pool[1]) / total, total, many + pool[2])
        pools.append(pool)
    means = [mean for mean, _, many in pools for _ in range(many)]
    return torch.tensor(means, dtype=values.dtype)


def _additive(there: Tensor, hits: Tensor) -> Tensor:
    """(G, B) shares p with logit p = a_grade + b_band, neighbouring grades held together.

    By Newton's method: the loss is convex, and has few numbers to choose.

    Args:
        there: (G, B) how many candidates were in each cell.
        hits: (G, B) how many of them were right.
    """
    grades, bands = there.shape
    start = torch.logit(((hits.sum(0) + 0.5) / (there.sum(0) + 1)).clamp(1e-9, 0.99))
    steps = torch.eye(grades, dtype=there.dtype).diff(dim=0)
    # The penalty is half of x' P x, for x of the grades and of the bands less where these start.
    penalty = 0.1 * torch.eye(grades + bands, dtype=there.dtype)
    penalty[:grades, :grades] = steps.T @ steps
    chosen = there.new_zeros(grades + bands)

    def logits(x: Tensor) -> Tensor:
        return x[:grades].unsqueeze(1) + start + x[grades:]

    def loss(x: Tensor) -> float:
        value = (functional.softplus(logits(x)) * there - logits(x) * hits).sum()
        return float(value + 0.5 * x @ penalty @ x)

    for _ in range(_ROUNDS):
        share = torch.sigmoid(logits(chosen))
        off, weight = share * there - hits, share * (1 - share) * there
        slope = torch.cat([off.sum(1), off.sum(0)]) + penalty @ chosen
        curve = torch.diag(torch.cat([weight.sum(1), weight.sum(0)])) + penalty
        curve[:grades, grades:] += weight
        curve[grades:, :grades] += weight.T
        move = torch.linalg.solve(curve, slope)
        size = 1.0
        while loss(chosen - size * move) > loss(chosen) and size > 1e-6:
            size /= 2
        chosen = chosen - size * move
        if float(slope @ move) < _SETTLED:
            break
    return torch.sigmoid(logits(chosen))

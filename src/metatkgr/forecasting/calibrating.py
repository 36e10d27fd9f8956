"""Fitting a calibration to the latest visible queries, and measuring its error on later ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from metatkgr.data.facts import IntArray
from metatkgr.data.periods import Period
from metatkgr.data.visibility import VisibleFacts
from metatkgr.evaluation.evaluator import in_chunks
from metatkgr.forecasting.calibration import GUESS, ORDERS, Calibration, Chances, Scored
from metatkgr.forecasting.fitting import (
    BINS,
    bins_of,
    conditional_logit,
    expected_calibration_error,
)
from metatkgr.forecasting.kinds import KINDS, NEW, REPEAT, TRAITS, WHOLE, Standing
from metatkgr.forecasting.sampling import DrawnQueries
from metatkgr.graph.history import History
from metatkgr.graph.index import TemporalIndex
from metatkgr.models.base import Model

__all__ = ["calibration_report", "fit_calibration", "judged", "shown_above"]

_QUERIES = 1000
_CELLS = 1 << 24
"""Scores of a model that scores everybody, at most."""
_ENOUGH = 500
"""With fewer queries, those of the period before are taken too."""
_FEWEST = 20
"""With fewer still, nothing is fitted."""
_EARLIER = 300
"""Queries of a period that are asked as of an earlier time too."""
_HALF_LIVES = 2
"""In the time of the queries: late ones count most."""
_HELD_BACK = 1 / 3
"""Of the queries, the last ones: the error is measured on them."""
BANDS = (1, 2, 3, 4, 6, 11, 21, 51, 101)
"""First rank of each band whose error is measured; behind them comes someone new."""
_NEIGHBOURS, _STEPS = 16, 4.0
"""Scores whose gaps tell what a distance of 1 is, and how many gaps that is."""
_RANK_AHEAD, _AHEAD = TRAITS.index("rank, ahead"), WHOLE.index("ahead")
_AT_ONCE = 64
"""Queries in one go."""


def fit_calibration(
    model: Model[Any],
    visible: VisibleFacts,
    shots: int | str = 3,
    *,
    until: Period = Period.META_TEST,
    seed: int = 0,
) -> Calibration:
    """Calibrate a model on the latest queries about new entities of a graph.

    Those of the last period count, and where they are fewer than 500 those of the period before.
    Leaves the model prepared for these queries: prepare it again.

    Args:
        model: trained, where it has weights; gets prepared.
        visible: the whole graph, all of it public.
        shots: K.
        until: the last period whose queries may be used.
        seed: picks the queries, where there are more than 1,000.
    """
    draws: dict[str, _Draw] = {}
    for split in range(until, Period.BACKGROUND, -1):
        draw = _Draw.of(model, visible, Period(split), shots, seed)
        if draw is not None:
            draws[Period(split).label] = draw
        if sum(len(draw.answer) for draw in draws.values()) >= _ENOUGH:
            break
    if sum(len(draw.answer) for draw in draws.values()) < _FEWEST:
        return Calibration()
    scale = _scale(torch.cat([draw.scored.value for draw in draws.values()]))
    sample = _Sample.of(list(draws.values()), scale)
    # Some are asked again as of a while before, from which it is learned how much less is known.
    early = [
        _Draw.of(model, visible, Period.parse(split), shots, seed, most=_EARLIER, early=True)
        for split in draws
    ]
    every = _Sample.of([*draws.values(), *(draw for draw in early if draw is not None)], scale)
    fitted = replace(every.fit(), queries=len(sample.answer))
    return replace(fitted, split=" and ".join(draws), **sample.errors())


def calibration_report(
    model: Model[Any], visible: VisibleFacts, shots: int | str = 3
) -> dict[str, Any]:
    """How far off the probabilities of a model are, where it was fitted and later.

    Leaves the model prepared for these queries: prepare it again.

    Args:
        model: trained, where it has weights; gets prepared.
        visible: the whole graph, all of it public.
        shots: K.

    Returns:
        ``visibility``; ``fitted``: what :meth:`Calibration.about` says of a fit to meta-validation,
        the errors on queries that came after those of the fit; ``meta-test``: queries, expected
        calibration error of the first forecast and over all ranks, mean log-loss, mean probability
        that the first forecast was ``stated`` to have and share in which it was ``correct``; None
        where there are no such queries.
    """
    fitted = fit_calibration(model, visible, shots, until=Period.META_VALIDATION)
    later = judged(fitted, model, visible, shots)
    return {"visibility": "streaming", "fitted": fitted.about(), "meta-test": later}


def judged(
    calibration: Calibration,
    model: Model[Any],
    visible: VisibleFacts,
    shots: int | str = 3,
    *,
    since: int = 0,
    most: int = _QUERIES,
    seed: int = 0,
) -> dict[str, Any] | None:
    """How far off probabilities are on queries of meta-test; None where there are none.

    Args:
        calibration: fitted to earlier queries.
        model: trained, where it has weights; gets prepared.
        visible: the whole graph, all of it public.
        shots: K.
        since: only queries from this step on.
        most: how many.
        seed: picks them.
    """
    draw = _Draw.of(model, visible, Period.META_TEST, shots, seed, since=since, most=most)
    if draw is None:
        return None
    sample = _Sample.of([draw], calibration.scale)
    found = calibration.apply(sample.scored, sample.standing)
    stated, correct = sample.first(calibration)
    total = found.chance.sum(1) + found.behind * found.others + found.new
    return {
        "queries": len(sample.answer),
        "ece": expected_calibration_error(stated, correct),
        "ece_ranks": sample.error(calibration),
        "log_loss": sample.log_loss(calibration),
        "stated": float(stated.mean()),
        "correct": float(correct.double().mean()),
        "least": float(sample.chance_of_answers(calibration).min()),
        "sum": [float(total.min()), float(total.max())],
    }


def shown_above(chances: Chances, right: Tensor) -> tuple[Tensor, Tensor]:
    """(Q, M) each: who is shown above the one that is ``right``, and who is level with it.

    By probability, and among equal ones by score, as forecasts are listed.

    Args:
        chances: of Q queries.
        right: (Q, M) bool, at most one of a row; where there is none, what comes says nothing.
    """
    place = right.long().argmax(1, keepdim=True)
    chance, score = chances.chance, chances.score
    own, scored = chance.gather(1, place), score.gather(1, place)  # whole numbers stay exact
    alike = chance == own
    return (chance > own) | (alike & (score > scored)), alike & (score == scored)


def _by_rank(chances: Chances, answer: Tensor, unseen: Tensor) -> list[tuple[Tensor, Tensor]]:
    """What each band of ranks, and then someone new, is stated to have, and who had it, (Q,) each.

    A band is stated to have what its candidates are stated to have together.

    Args:
        chances: of Q queries.
        answer: (Q,) entity ids.
        unseen: (Q,) bool: nobody had heard of the answer.
    """
    chance, order = torch.sort(chances.chance, dim=1, descending=True, stable=True)
    right = (chances.entity == answer.unsqueeze(1)).gather(1, order) & ~unseen.unsqueeze(1)
    bands = []
    for low, high in zip(BANDS, (*BANDS[1:], None), strict=True):
        stated, hit = chance[:, low - 1 : high and high - 1], right[:, low - 1 : high and high - 1]
        said, seen = stated.sum(1), hit.any(1)
        if high is None:
            said = said + chances.behind * chances.others
            seen = ~unseen & ~right[:, : low - 1].any(1)
        bands.append((said, seen))
    return [*bands, (chances.new, unseen)]


@dataclass(frozen=True, eq=False)
class _Draw:
    """Queries of a split, and what a model scores first."""

    drawn: DrawnQueries
    scored: Scored
    history: History
    lead: Tensor
    """(N,) steps by which each is asked before its time."""

    @property
    def answer(self) -> Tensor:
        """(N,)."""
        return torch.from_numpy(self.drawn.answer)

    @classmethod
    def of(
        cls,
        model: Model[Any],
        visible: VisibleFacts,
        split: Period,
        shots: int | str,
        seed: int,
        *,
        since: int = 0,
        most: int = _QUERIES,
        early: bool = False,
    ) -> _Draw | None:
        """Score some queries of a split; None where it has none."""
        index = TemporalIndex.of(visible)
        drawn = DrawnQueries.of(visible.base, index, split, shots, seed=seed)
        drawn = drawn.kept(drawn.queries.time >= since)
        if not len(drawn.answer):
            return None
        if not model.live:
            most = min(most, max(_CELLS // index.entities, 10 * _FEWEST))
        drawn = drawn.some(most, seed)
        lead = np.zeros_like(drawn.queries.time)
        if early:
            lead = _leads(drawn, index, seed)
            earlier = replace(drawn.queries, time=drawn.queries.time - lead)
            drawn = replace(drawn, queries=earlier).kept(lead > 0)
            lead = lead[lead > 0]
            if not len(lead):
                return None
        model.prepare(visible).adapt(drawn.supports)
        scored: list[Scored] = []

        def look(begin: int, end: int) -> None:
            scored.append(Scored.of(model.score(drawn.queries[begin:end])))

        in_chunks(len(drawn.answer), _AT_ONCE, look)
        history = History(index, drawn.supports)
        return cls(drawn, Scored.cat(scored), history, torch.from_numpy(lead))


def _leads(drawn: DrawnQueries, index: TemporalIndex, seed: int) -> IntArray:
    """(N,) by how many steps each query is asked earlier: any scale, but after its entity came."""
    first = index.first_step_of(torch.from_numpy(drawn.queries.entity)).numpy()
    most = np.maximum(drawn.queries.time - first - 1, 0)
    share = np.random.default_rng([seed, 0x1EAD]).random(len(most))
    return np.asarray(np.expm1(share * np.log1p(most)), np.int64)


def _scale(value: Tensor) -> float:
    """A distance that is common between the scores of the first candidates.

    Of neighbours, so that a leap between those that repeats lift and all others does not count.
    """
    gap = -value[:, :_NEIGHBOURS].double().diff(dim=1)
    gap = gap[gap > 0]
    return float(gap.median()) * _STEPS if len(gap) else 1.0


def _clear(gain: Tensor) -> bool:
    """Whether (N,) gains are above 0 in the mean by more than two standard errors."""
    error: float = float(gain.std(correction=0)) / max(len(gain), 1) ** 0.5
    return float(gain.mean()) > 2 * error


@dataclass(frozen=True, eq=False)
class _Sample:
    """Queries with their candidates and answers, one row each."""

    scored: Scored
    standing: Standing
    answer: Tensor
    """(N,)."""
    column: Tensor
    """(N,) where the answer stands."""
    unseen: Tensor
    """(N,) bool: nobody had heard of the answer."""
    time: Tensor
    """(N,)."""
    scale: float

    @classmethod
    def of(cls, draws: Sequence[_Draw], scale: float) -> _Sample:
        """Look up what their candidates are."""
        parts: list[tuple[Standing, Tensor, Tensor]] = []
        for draw in draws:
            for begin in range(0, len(draw.answer), _AT_ONCE):
                rows = slice(begin, begin + _AT_ONCE)
                queries, answer = draw.drawn.queries[rows], draw.answer[rows]
                value, entity = draw.scored.value[rows], draw.scored.entity[rows]
                lead = draw.lead[rows]
                standing = Standing.of(draw.history, queries, value, entity, scale, lead)
                # The answer alone tells of which kind it is, where it is not among the first.
                alone = Standing.of(
                    draw.history, queries, value[:, :1], answer.unsqueeze(1), scale
                ).kind[:, 0]
                place = entity == answer.unsqueeze(1)
                column = entity.shape[1] + alone
                first = place.long().argmax(1)
                column = torch.where(place.any(1) & (alone != NEW), first, column)
                parts.append((standing, column, alone == NEW))
        standings, columns, unseen = zip(*parts, strict=True)
        return cls(
            Scored.cat([draw.scored for draw in draws]),
            Standing.cat(standings),
            torch.cat([draw.answer for draw in draws]),
            torch.cat(columns),
            torch.cat(unseen),
            torch.cat([torch.from_numpy(draw.drawn.queries.time) for draw in draws]),
            scale,
        )

    def _select(self, rows: Tensor) -> _Sample:
        columns = (self.answer[rows], self.column[rows], self.unseen[rows], self.time[rows])
        return _Sample(self.scored.kept(rows), self.standing.kept(rows), *columns, self.scale)

    def errors(self) -> dict[str, Any]:
        """By what candidates are listed, and what a fit to the first is worth on the last."""
        order = torch.argsort(self.time, stable=True)
        many = int(len(order) * (1 - _HELD_BACK))
        early, late = self._select(order[:many]), self._select(order[many:])
        fitted = early.fit()
        first, second = (self._select(rows) for rows in order.tensor_split(2))
        late_gain, early_gain = late._gains(fitted), second._gains(first.fit())
        both = {name: torch.cat([late_gain[name], early_gain[name]]) for name in late_gain}
        chosen = "types" if float(both["types"].sum()) >= 0 else "scores"
        # Scores are left only where that is better by more than chance would have it: on the last
        # queries, and on them and those before together, as what held once may have passed.
        gain = [gains["probabilities"] - gains[chosen] for gains in (late_gain, both)]
        if all(map(_clear, gain)):
            chosen = "probabilities"
        fitted = replace(fitted, order=chosen)
        stated, correct = late.first(fitted)
        return {
            "order": fitted.order,
            "ece": expected_calibration_error(stated, correct),
            "ece_ranks": late.error(fitted),
            "log_loss": late.log_loss(fitted),
            "reliability": tuple(bins_of(stated, correct, BINS)),
            "ranks": tuple(
                (float(rank), float(said.mean()), float(seen.double().mean()))
                for rank, (said, seen) in zip((*BANDS, 0), late.by_rank(fitted), strict=True)
            ),
        }

    def _gains(self, fitted: Calibration) -> dict[str, Tensor]:
        """(N,) of each order: how much higher 1 / rank is than in the order of scores."""
        ranks = {name: self.reciprocal_ranks(replace(fitted, order=name)) for name in ORDERS}
        return {name: each - ranks["scores"] for name, each in ranks.items()}

    def by_rank(self, calibration: Calibration) -> list[tuple[Tensor, Tensor]]:
        """What each band of ranks was stated to have, and where the answer was."""
        found = calibration.apply(self.scored, self.standing)
        return _by_rank(found, self.answer, self.unseen)

    def error(self, calibration: Calibration) -> float:
        """Expected calibration error over all ranks: the mean over their bands."""
        bands = self.by_rank(calibration)
        return sum(expected_calibration_error(*band) for band in bands) / len(bands)

    def first(self, calibration: Calibration) -> tuple[Tensor, Tensor]:
        """(N,) probability of the likeliest candidate, and whether it is the answer."""
        found = calibration.apply(self.scored, self.standing)
        stated, place = found.chance.max(1)
        entity = found.entity.gather(1, place.unsqueeze(1)).squeeze(1)
        return stated, entity == self.answer

    def reciprocal_ranks(self, calibration: Calibration) -> Tensor:
        """(N,) 1 / rank of the answers as they are shown; 0 for who is not among the first."""
        found = calibration.apply(self.scored, self.standing)
        right = (found.entity == self.answer.unsqueeze(1)) & ~self.unseen.unsqueeze(1)
        above, beside = shown_above(found, right)
        rank = 1 + above.sum(1) + (beside & ~right).sum(1) / 2
        return torch.where(right.any(1), 1 / rank, 0.0)

    def log_loss(self, calibration: Calibration) -> float:
        """Mean of -log P(answer)."""
        return float(-self.chance_of_answers(calibration).log().mean())

    def chance_of_answers(self, calibration: Calibration) -> Tensor:
        """(N,) what the answers were stated to have; of one that was new, what newcomers had."""
        found = calibration.apply(self.scored, self.standing)
        right = found.entity == self.answer.unsqueeze(1)
        chance = torch.where(right.any(1), (found.chance * right).sum(1), found.behind)
        return torch.where(self.unseen, found.new, chance)

    def fit(self) -> Calibration:
        """The calibration under which these answers are likeliest, late ones counting most."""
        standing = self.standing
        age = (self.time.max() - self.time).double()
        span = float(age.max()) or 1.0
        weight = 0.5 ** (age * _HALF_LIVES / span)
        rows = torch.arange(len(self.answer))
        chosen = standing.kind[rows, self.column]
        traits = [
            self._fit_kind(number, weight * (chosen == number)) for number in range(len(KINDS))
        ]
        return Calibration(
            tuple(traits), self._fit_whole(chosen, weight), self.scale, queries=len(self.answer)
        )

    def _fit_kind(self, number: int, weight: Tensor) -> tuple[float, ...]:
        """What tells the candidates of a kind apart."""
        standing, start = self.standing, torch.tensor(GUESS[0][number], dtype=torch.float64)
        there = (standing.kind == number) & (standing.count > 0) & (weight > 0).unsqueeze(1)
        query, column = torch.nonzero(there, as_tuple=True)
        right = (column == self.column[query]) * weight[query]
        if number == NEW or not bool(right.any()):
            return GUESS[0][number]
        rows = standing.traits[query, column].double()
        offset = standing.count[query, column].log()
        found = conditional_logit(rows, offset, query, right, start)
        # The further ahead, the less the order of now tells, never the more.
        found[_RANK_AHEAD].clamp_(min=0.0)
        return tuple(found.tolist())

    def _fit_whole(self, chosen: Tensor, weight: Tensor) -> tuple[tuple[float, ...], ...]:
        """How likely the kinds are."""
        standing, kinds = self.standing, len(KINDS)
        start = torch.tensor(GUESS[1], dtype=torch.float64)
        there = torch.zeros(len(chosen), kinds).scatter_add_(
            1, standing.kind, (standing.count > 0).float()
        )
        query, kind = torch.nonzero(there > 0, as_tuple=True)
        about = standing.whole[query, kind].double()
        rows = torch.zeros(len(query), kinds, about.shape[1], dtype=torch.float64)
        rows[torch.arange(len(query)), kind] = about
        right = (kind == chosen[query]) * weight[query]
        found = conditional_logit(
            rows.flatten(1), torch.zeros(len(query)).double(), query, right, start.flatten()
        )
        found = found.view_as(start)
        # Nor is a repeat the likelier, the further ahead it lies.
        found[REPEAT, _AHEAD].clamp_(max=found[:, _AHEAD].min())
        return tuple(map(tuple, found.tolist()))

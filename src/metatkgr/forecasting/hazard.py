r"""Whether and when: will a fact of a relation about an entity come within some steps?

A discrete-time hazard. Given that none has come until s steps from now, one comes in the next n
with

.. math:: 1 - \exp(-n \exp(w \cdot x_s))

where x tells how old the entity is, how often and when last it was in such a fact and in any, how
often those in such facts are in one again, how common they are among those who do what it does, and
what time of the week (or of another period that shows in the numbers of facts) the span is. Time is
cut into spans of 1, 1, 2, 4, 8, … steps, in each of which the rate is the same. The weights w are
fitted to what became of entities, young ones and old ones, that are drawn from the visible facts;
no name is learned, so they hold for newcomers. What such fits to earlier facts say of later ones is
then corrected, as a curve in log-odds and log-time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from metatkgr.data.orders import DECAYS, inverse
from metatkgr.data.visibility import VisibleFacts
from metatkgr.deadlines import checking
from metatkgr.forecasting.fitting import conditional_logit, expected_calibration_error, newton
from metatkgr.forecasting.kinds import roles_of, share_with_role
from metatkgr.graph.index import TemporalIndex

__all__ = [
    "BASELINES",
    "FEATURES",
    "PRIOR",
    "Hazard",
    "fit_hazard",
    "fit_spans",
    "spans_of",
    "within_report",
]

FEATURES = (
    "always",
    "steps since",
    "own rate",
    "never before",
    "cohort rate",
    "age",
    "any since",
    "any rate",
    "lately",
    "ahead",
    "due",
    "never, cohort rate",
    "again",
    "season",
    "alike",
    "never, age",
)
PRIOR = (
    *(0.27, -0.03, 0.58, -0.85, 0.35, 0.08, -0.45, 0.07),
    *(0.04, 0.08, -0.8, -0.25, 0.55, 0.0, 1.03, -0.41),
)
"""w as learned over a dozen graphs (``python -m studies.probabilities --prior``): what a fit begins
with and is held to, and where nothing can be fitted, all there is."""
_EDGES = torch.tensor([0, *(1 << n for n in range(11))])
"""Where the spans begin; the last is 1,024 steps away."""
_DRAWN, _JUDGED = 4000, 16_000
"""Entities and relations that a fit looks at; and a report, so that its errors are no draw's."""
_FACTS = 1 << 16
"""Latest facts from which they are drawn."""
_WINDOW = 0.1
"""Part of the time before a moment that tells how often a cohort is in facts of a relation."""
_OTHER = 0.25
"""Share of draws that ask about any relation, not one of the entity's own."""
_PERIODS, _SHRUNK = 4, 4.0
"""Periods that tell a season, and facts that stand for none."""
_LONGEST, _OFTEN, _ALIKE, _SHARP = 64, 8, 0.5, 0.3
"""A period has at most so many steps and has passed so often; and how much more alike numbers of
facts are after it than a little before or later."""
_SLOTS, _MOMENTS, _CELLS = 512, 16, 1 << 22
"""Who is alike is asked of so many slots; of more, as of so few moments; and numbers in one go."""
_UNLIKELY = 0.01
"""What is left to a relation that nobody alike has been in."""
_RIDGE, _SETTLED = 1.0, 1e-9
_LEAST, _STEEPEST, _FEWEST = 1e-6, 40.0, 20
_EARLY = (0.6, 0.7, 0.8, 0.9)
"""Shares of the facts: fits to these are corrected by what came after. Several, as a time of its
own ways, a season or a boom, should not decide alone; and late ones, as ways change. Chosen on what
lies before the facts that ``studies.probabilities`` judges."""
BASELINES = ("constant rate", "last gap")
AHEAD = (1, 7, 30, 90)
"""Steps for which the report tells errors."""
_FITTED = 0.75
"""Share of the facts that the fit of the report sees."""


def _season(index: TemporalIndex, relation: Tensor, time: Tensor, period: int) -> Tensor:
    """(N, S) how much busier a relation was in these spans some periods before than all in all."""
    low, high = (time.unsqueeze(1) + edge for edge in (_EDGES[:-1], _EDGES[1:]))
    before = partial(index.slots.facts_before, relation.unsqueeze(1).expand_as(low).flatten())

    def count(begin: Tensor, end: Tensor) -> Tensor:
        ends = (before(edge.clamp(min=0).flatten()).view_as(low) for edge in (end, begin))
        return next(ends) - next(ends)

    nearest = -(-_EDGES[1:] // period)
    seen, all_steps = torch.zeros_like(low, dtype=torch.float64), torch.zeros_like(low)
    for number in range(_PERIODS):
        shift = (nearest + number) * period
        known = low >= shift
        seen += count(low - shift, high - shift) * known
        all_steps += (high - low) * known
    begin = (low - shift).clamp(min=0)
    now = time.unsqueeze(1).expand_as(low)
    usual = count(begin, now) / (now - begin).clamp(min=1) * all_steps
    return ((seen + _SHRUNK) / (usual + _SHRUNK)).log()


def _period(time: npt.NDArray[Any], end: int) -> int:
    """After how many steps facts are as frequent again, by how frequent they are; 0: never."""
    count = np.log(np.bincount(time, minlength=end)[:end] + 0.5)
    alike = np.zeros(min(_LONGEST, end // _OFTEN) + 2)
    for period in range(2, len(alike)):
        odd = count[period - 1 :] - np.convolve(count, np.ones(period) / period, "valid")
        if min(odd[period:].std(), odd[:-period].std()) > 0:
            alike[period] = np.corrcoef(odd[period:], odd[:-period])[0, 1]
    # What only comes and goes slowly is alike after a little more or less, too.
    sharp = alike[1:-1] - (alike[:-2] + alike[2:]) / 2
    found = np.flatnonzero((alike[1:-1] > _ALIKE) & (sharp > _SHARP))
    return int(found[0]) + 1 if len(found) else 0


def _alike(index: TemporalIndex, entity: Tensor, relation: Tensor, time: Tensor) -> Tensor:
    """(N,) how common a relation is among those who do what an entity does.

    The mean over its roles of the share of others in that role who have the relation as one, too: a
    club plays for nobody. 1 where it does nothing.
    """
    row, role = roles_of(index, entity, time)
    if not len(row):
        return torch.ones(len(entity), dtype=torch.float64)
    own = torch.bincount(row, minlength=len(entity)).double()
    room = int(time.max()) + 1
    slot, moment = inverse(role, index.relations) * room, time[row]
    if len(torch.unique(slot + moment)) > _SLOTS:
        span = -(-room // _MOMENTS)
        moment = moment // span * span
    slot, member = torch.unique(slot + moment, return_inverse=True)
    common = torch.zeros(len(entity), dtype=torch.float64)
    for part in torch.split(torch.arange(len(slot)), max(_CELLS // index.relations, 1)):
        columns = slot[part] // room, slot[part] % room
        share = index.slots.remembered("having", *columns, partial(share_with_role, index))[1]
        inside = (member >= part[0]) & (member <= part[-1])
        found = share[member[inside] - part[0], relation[row[inside]]].double()
        common.index_add_(0, row[inside], found)
    return torch.where(own > 0, common / own.clamp(min=1) + _UNLIKELY, 1.0)


def _features(
    index: TemporalIndex, entity: Tensor, relation: Tensor, time: Tensor, period: int = 0
) -> Tensor:
    """(N, S, F) of each span ahead.

    Args:
        index: what is visible.
        entity: (N,).
        relation: (N,) directed, as seen from the entity.
        time: (N,) the first step that is asked about; only facts before it count.
        period: steps after which facts are as frequent again; 0: there is none.
    """
    far = (time - index.steps).clamp(min=0)
    time = time - far
    slots, mirror = index.slots, inverse(relation, index.relations)
    usage = slots.usage(entity, mirror, time, DECAYS[-1:])
    many = usage.count.double()
    first = torch.minimum(index.first_step_of(entity), time)
    age = (time - first).double()
    last = index.last_step_of(entity, time)
    since = torch.where(many > 0, (time - 1 - usage.last).double(), age)
    since_any = torch.where(last >= 0, (time - 1 - last).double(), age)
    window = (time * _WINDOW).long().clamp(min=1)
    lately = slots.facts_before(relation, time) - slots.facts_before(relation, time - window)
    holders = slots.above(mirror, time, torch.zeros_like(time))
    facts = slots.facts_before(relation, time)
    # What happens to everybody once does not come again.
    again = ((facts - holders + 0.5) / (facts + 1)).clamp(min=_LEAST).log()
    cohort = ((lately.double() + 0.5) / (holders.clamp(min=1) * window)).log()
    never = (many == 0).double()
    alike = torch.zeros_like(never)
    some = torch.nonzero(many == 0)[:, 0]
    alike[some] = _alike(index, entity[some], relation[some], time[some]).log()
    own = torch.where(many > 0, (many / (age + 1)).clamp(min=_LEAST).log(), 0.0)
    total = index.facts_before(entity, time).double()
    ahead = _EDGES[:-1].double().expand(len(entity), -1)

    def later(steps: Tensor) -> Tensor:
        return (steps.unsqueeze(1) + ahead).log1p()

    def same(column: Tensor) -> Tensor:
        return column.unsqueeze(1).expand_as(ahead)

    due = (later(since) + same(own)) * same(1 - never)
    columns = [
        torch.ones_like(ahead),
        later(since),
        same(own),
        same(never),
        same(cohort),
        later(age),
        later(since_any),
        same(((total + 0.5) / (age + 1)).log()),
        same((usage.decayed[0].double() + 0.05).log()),
        ahead.log1p(),
        due.clamp(min=0),
        same(never * cohort),
        same((1 - never) * again),
        # Of what lies ahead of all facts: at the same time of the last period that is known.
        _season(index, relation, time - (-far) % period, period)
        if period
        else torch.zeros_like(ahead),
        same(alike),
        later(age) * same(never),
    ]
    return torch.stack(columns, 2)


@dataclass(frozen=True)
class Hazard:
    """How likely a fact is to come, by its features."""

    weights: tuple[float, ...] = PRIOR
    """(F,) w."""
    correction: tuple[float, ...] = (0.0, 1.0, *(0.0,) * 7)
    """Of log-odds and log-time: a polynomial, see :func:`_log_odds`."""
    period: int = 0
    """After how many steps facts are as frequent again; 0: never."""

    def within(
        self, index: TemporalIndex, queries: tuple[Tensor, Tensor, Tensor], steps: Sequence[int]
    ) -> Tensor:
        """(N, H) that a fact comes within so many steps; more steps are never less likely.

        Args:
            index: what is visible.
            queries: entity, directed relation and first step, (N,) each. Of a step after all that
                is known, entities are as they are now; only the season is that of the step.
            steps: H of them, from 1 on.
        """
        every = sorted({*_EDGES[1:].tolist(), *steps})
        ahead = torch.tensor(every)
        rate = _features(index, *queries, self.period) @ torch.tensor(
            self.weights, dtype=torch.float64
        )
        rate = rate.clamp(-_STEEPEST, _STEEPEST).exp()
        low, high = _EDGES[:-1], _EDGES[1:].clone()
        high[-1] = int(ahead[-1]) + 1
        inside = (torch.minimum(high, ahead.unsqueeze(1)) - low).clamp(min=0).double()
        rows = _log_odds(-torch.expm1(-(rate @ inside.T)), ahead)
        odds = rows @ torch.tensor(self.correction, dtype=torch.float64)
        chance = torch.cummax(torch.sigmoid(odds), 1).values
        return chance[:, [every.index(step) for step in steps]]


def _log_odds(chance: Tensor, steps: Tensor) -> Tensor:
    """(N, H, 9) what a correction is made of."""
    odds = torch.logit(chance.clamp(_LEAST, 1 - _LEAST))
    time = steps.double().log().expand_as(odds)
    part = odds / 4
    terms = [torch.ones_like(odds), odds, time, odds * time, part * odds]
    terms += [time * time / 4, part * time * time, part * odds * time, part * part * odds]
    return torch.stack(terms, 2)


@dataclass(frozen=True, eq=False)
class _Lives:
    """What became of entities."""

    entity: Tensor
    """(N,), like all below."""
    relation: Tensor
    time: Tensor
    come: Tensor
    """(N, S + 1) how many facts had come by each edge; -1: nobody knows yet."""

    @classmethod
    def draw(
        cls,
        index: TemporalIndex,
        visible: VisibleFacts,
        since: int,
        until: int,
        seed: int,
        most: int = _DRAWN,
    ) -> _Lives:
        """Entities and relations, asked about at steps from ``since`` to ``until``."""
        facts, half = visible.base, len(visible.relations)
        generator = np.random.default_rng([seed, 0x1FE])
        high = int(np.searchsorted(facts.time, until))
        low = max(int(np.searchsorted(facts.time, since)) if since else 0, high - _FACTS)
        if high <= low:
            none = torch.zeros(0, dtype=torch.int64)
            return cls(none, none, none, none.view(0, 1).expand(0, len(_EDGES)))
        rows = generator.integers(low, high, most)
        back = generator.random(most) < 0.5
        subject, object_ = (
            np.asarray(c[rows]).astype(np.int64) for c in (facts.subject, facts.object)
        )
        relation = np.asarray(facts.relation[rows]).astype(np.int64)
        entity = np.where(back, object_, subject)
        relation = relation + half * back
        # Half of them are asked about soon after they came; who has many facts is no likelier here.
        young = np.arange(most) % 2 == 0
        unique = np.unique(entity)
        entity[young] = unique[generator.integers(0, len(unique), int(young.sum()))]
        who = torch.from_numpy(entity)
        first = index.first_step_of(who).numpy()
        moment = np.asarray(facts.time[rows]).astype(np.int64) + 1
        soon = first + 1 + generator.geometric(0.3, most) - 1
        moment = np.where(young, np.maximum(soon, since), moment)
        wait = generator.random(most) < 0.5
        ahead = generator.random(most) * np.maximum(until - moment, 0)
        moment = moment + wait * ahead.astype(np.int64)
        # A relation of its own, as it was known then; now and then any.
        known = index.last_facts(who, torch.from_numpy(moment), 8)
        own = torch.full((most,), -1)
        own[known.row] = known.relation
        other = generator.random(most) < _OTHER
        relation = np.where(other | (own.numpy() < 0), relation, own.numpy())
        keep = (moment >= max(since, 1)) & (moment < until) & (first < moment)
        who, what, when = (torch.from_numpy(c[keep]) for c in (entity, relation, moment))
        return cls(who, what, when, _come(index, who, what, when, until))

    @property
    def columns(self) -> tuple[Tensor, Tensor, Tensor]:
        """As queries."""
        return self.entity, self.relation, self.time


def _come(
    index: TemporalIndex, entity: Tensor, relation: Tensor, time: Tensor, until: int
) -> Tensor:
    """(N, S + 1) how many facts had come by each edge; -1 beyond ``until``."""
    return torch.stack([_by(index, entity, relation, time, int(edge), until) for edge in _EDGES], 1)


def _by(
    index: TemporalIndex, entity: Tensor, relation: Tensor, time: Tensor, ahead: int, until: int
) -> Tensor:
    mirror = inverse(relation, index.relations)
    begun = index.slots.usage(entity, mirror, time).count
    count = index.slots.usage(entity, mirror, time + ahead).count - begun
    return torch.where(time + ahead <= until, count, -1)


def fit_hazard(visible: VisibleFacts, *, until: int | None = None, seed: int = 0) -> Hazard:
    """The hazard under which what became of entities is likeliest.

    Args:
        visible: the graph, all of it public.
        until: only facts before this step are looked at; None: all.
        seed: picks the entities.
    """
    index, facts = TemporalIndex.of(visible), visible.base
    # The last step may be half told.
    end = int(facts.time[-1]) if until is None else until
    many = int(np.searchsorted(facts.time, end))
    every = _Lives.draw(index, visible, 0, end, seed)
    if len(every.entity) < _FEWEST:
        return Hazard()
    steps, parts = _EDGES[1:], []
    period = _period(facts.time[:many], end)
    for number, share in enumerate(checking(_EARLY), 1):
        cut = int(facts.time[int(share * many)])
        later = _Lives.draw(index, visible, cut, end, seed + number)
        row, span = torch.nonzero(later.come[:, 1:] >= 0, as_tuple=True)
        if len(later.entity) < _FEWEST or not len(row):
            continue
        lives = _Lives.draw(index, visible, 0, cut, seed)
        first = Hazard(_fit_lives(index, lives, period), period=period)
        stated = first.within(index, later.columns, steps.tolist())
        # An entity is as good as one query, however many spans of it are known.
        weight = 1 / torch.bincount(row, minlength=len(later.entity)).double()[row]
        rows = _log_odds(stated, steps)[row, span]
        parts.append((rows, weight / len(_EARLY), later.come[row, span + 1] > 0))
    weights = _fit_lives(index, every, period)
    if not parts:
        return Hazard(weights, period=period)
    rows, weight, came = (torch.cat(column) for column in zip(*parts, strict=True))
    pairs = torch.stack([rows, torch.zeros_like(rows)], 1).flatten(0, 1)
    right = torch.stack([came * weight, ~came * weight], 1).flatten()
    group = torch.arange(len(rows)).repeat_interleave(2)
    start = torch.tensor(Hazard().correction, dtype=torch.float64)
    line = conditional_logit(pairs, torch.zeros(len(pairs)).double(), group, right, start)
    return Hazard(weights, tuple(line.tolist()), period)


def _fit_lives(index: TemporalIndex, lives: _Lives, period: int) -> tuple[float, ...]:
    if len(lives.entity) < _FEWEST:
        return PRIOR
    return tuple(fit_spans(*_spans(index, lives, period)).tolist())


def _spans(index: TemporalIndex, lives: _Lives, period: int) -> tuple[Tensor, Tensor, Tensor]:
    """Features, steps and outcome of spans whose end is known and before which nothing came."""
    features, come, size = (
        _features(index, *lives.columns, period),
        lives.come,
        _EDGES.diff().double(),
    )
    row, span = torch.nonzero((come[:, 1:] >= 0) & (come[:, :-1] == 0), as_tuple=True)
    return features[row, span], size[span], (come[row, span + 1] > 0).double()


def spans_of(visible: VisibleFacts, *, seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    """What a fit to a whole graph looks at, for :func:`fit_spans`."""
    index, end = TemporalIndex.of(visible), int(visible.base.time[-1])
    return _spans(index, _Lives.draw(index, visible, 0, end, seed), 0)


def fit_spans(rows: Tensor, size: Tensor, event: Tensor) -> Tensor:
    """(F,) weights, by Newton's method: the loss is convex.

    Args:
        rows: (N, F).
        size: (N,) steps of the spans.
        event: (N,) 1 where something came.
    """

    def loss(scaled: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
        rate = size * (scaled @ w).clamp(-_STEEPEST, 12).exp()
        come = -torch.log(-torch.expm1(-rate).clamp(max=-1e-30))
        return rate, torch.where(event > 0, come, rate).sum()

    def derivatives(scaled: Tensor, rate: Tensor) -> tuple[Tensor, Tensor]:
        share = rate / torch.expm1(rate.clamp(min=1e-12))
        slope = torch.where(event > 0, -share, rate)
        curve = torch.where(event > 0, share * (rate + share - 1), rate).clamp(min=1e-12)
        return scaled.T @ slope, scaled.T @ (scaled * curve.unsqueeze(1))

    start = torch.tensor(PRIOR, dtype=torch.float64)
    return newton(rows, start, loss, derivatives, ridge=_RIDGE, settled=_SETTLED * len(rows))


def within_report(visible: VisibleFacts) -> dict[str, Any]:
    """How good the probabilities of ``within`` are on the last facts, by a fit to those before.

    Beside them two simple forecasters: a constant rate for each relation, and the last gap again.

    Args:
        visible: the graph, all of it public.

    Returns:
        For each number of steps: queries, and of each forecaster the mean log-likelihood, the Brier
        score and the expected calibration error.
    """
    index, facts = TemporalIndex.of(visible), visible.base
    end = int(facts.time[-1])
    cut = int(facts.time[int(_FITTED * len(facts))])
    hazard = fit_hazard(visible, until=cut)
    past = _Lives.draw(index, visible, 0, cut, seed=0)
    lives = _Lives.draw(index, visible, cut, end, seed=1, most=_JUDGED)
    steps = torch.tensor(AHEAD)
    ours = hazard.within(index, lives.columns, AHEAD)
    constant, last = _constant(index, past, lives, steps), _last_gap(index, lives, steps)
    report: dict[str, Any] = {}
    for number, ahead in enumerate(AHEAD):
        count = _by(index, *lives.columns, ahead, end)
        known = count >= 0
        if int(known.sum()) < 100:
            continue
        came = count[known] > 0
        found: dict[str, Any] = {"queries": int(known.sum()), "came": float(came.double().mean())}
        all_stated = (ours, constant, last)
        for name, stated in zip(("hazard", *BASELINES), all_stated, strict=True):
            chance = stated[known, number].clamp(_LEAST, 1 - _LEAST)
            right = torch.where(came, chance, 1 - chance)
            found[name] = {
                "log_likelihood": float(right.log().mean()),
                "brier": float((chance - came.double()).square().mean()),
                "ece": expected_calibration_error(chance, came),
            }
        report[str(ahead)] = found
    return report


def _constant(index: TemporalIndex, past: _Lives, lives: _Lives, steps: Tensor) -> Tensor:
    """(N, H) by one rate for each directed relation."""
    come, size = past.come, _EDGES.diff().double()
    at_risk = (come[:, 1:] >= 0) & (come[:, :-1] == 0)
    time = (at_risk * size).sum(1)
    event = (at_risk & (come[:, 1:] > 0)).any(1).double()
    exposure, events = (torch.zeros(index.relations).double() for _ in range(2))
    exposure.index_add_(0, past.relation, time)
    events.index_add_(0, past.relation, event)
    overall = events.sum() / exposure.sum().clamp(min=1)
    rate = (events + overall) / (exposure + 1)
    return -torch.expm1(-rate[lives.relation].unsqueeze(1) * steps)


def _last_gap(index: TemporalIndex, lives: _Lives, steps: Tensor) -> Tensor:
    """(N, H) as if the time since the last such fact, or since the first of any, were usual."""
    entity, relation, time = lives.columns
    last = index.slots.usage(entity, inverse(relation, index.relations), time).last
    last = torch.where(last >= 0, last, index.first_step_of(entity))
    return -torch.expm1(-steps / (time - last).clamp(min=1).double().unsqueeze(1))

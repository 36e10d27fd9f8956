"""Reasons of rules and evidence against a slow reading of all facts, and what a hub costs."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import metatkgr as mt
from metatkgr.data.facts import Facts, Vocabulary
from metatkgr.data.tasks import Queries
from metatkgr.data.visibility import Supports, VisibleFacts
from metatkgr.forecasting.calibration import Calibration
from metatkgr.graph.history import History
from metatkgr.graph.index import TemporalIndex
from metatkgr.graph.pairs import PairTimes
from metatkgr.models import create
from metatkgr.models.base import Explains, Explanation, Link
from metatkgr.models.common import explanations
from metatkgr.models.common.explanations import supporting

ENTITIES, RELATIONS, STEPS = 7, 3, 9


@dataclass
class Literal:
    """All links as tuples (source, directed relation, target, time), and the own supports."""

    links: list[tuple[int, int, int, int]]
    own: list[tuple[int, int, int, int]]
    relations: int

    def facts_of(
        self, entity: int, relation: int | None, target: int | None, time: int, own: bool
    ) -> list[tuple[int, int, int]]:
        """Relation, other end and step of an entity's visible facts, latest first."""
        seen = [link for link in self.links if link[3] < time]
        seen += [link for link in self.own if own and link[3] >= time]
        found = [
            (r, o, t)
            for s, r, o, t in seen
            if s == entity and relation in (None, r) and target in (None, o)
        ]
        return sorted(found, key=lambda row: (-row[2], row[0], row[1]))

    def neighbours(self, entity: int, relation: int, time: int) -> list[int]:
        return sorted({o for _, o, _ in self.facts_of(entity, relation, None, time, False)})

    def reasons(self, e: int, r: int, t: int, x: int) -> list[Explanation]:
        """In the order repeat, contact, walks, frequency, shared neighbours; without weights."""
        found = []
        between = self.facts_of(e, None, x, t, True)
        for kind in ("repeat", "contact"):
            facts = [fact for fact in between if (fact[0] == r) == (kind == "repeat")]
            if facts:
                links = tuple(Link(e, *fact) for fact in facts[:20])
                found.append(Explanation(kind, 0.0, links, len(facts)))
        inverse = (r + self.relations) % (2 * self.relations)
        linked = [z for z in self.neighbours(x, inverse, t) if z != e]
        shared = []
        for middle in self.neighbours(e, r, t):
            others = [z for z in self.neighbours(middle, inverse, t) if z in linked]
            if others and middle != x:
                shared.append((-len(others), middle, others))

        def last(source: int, target: int) -> Link:
            return Link(source, *self.facts_of(source, r, target, t, False)[0])

        for count, middle, others in sorted(shared)[:2]:
            walks = ((last(e, middle), last(z, middle), last(z, x)) for z in others[:5])
            links = tuple(link for walk in walks for link in walk)
            found.append(Explanation("path", 0.0, links, -count))
        facts = self.facts_of(x, inverse, None, t, False)
        if facts:
            links = tuple(Link(z, r, x, when) for _, z, when in facts[:20])
            found.append(Explanation("frequency", 0.0, links, len(facts)))
        of_entity, of_answer = {}, {}
        for known, facts in (
            (of_entity, self.facts_of(e, None, None, t, True)),
            (of_answer, self.facts_of(x, None, None, t, False)),
        ):
            for relation, other, when in facts:
                known.setdefault(other, (relation, other, when))
        common = [y for y in of_entity if y in of_answer and y not in (e, x)]
        if common:
            pairs = ((Link(e, *of_entity[y]), Link(x, *of_answer[y])) for y in common[:5])
            links = tuple(link for pair in pairs for link in pair)
            found.append(Explanation("shared", 0.0, links, len(common)))
        return found

    def parts(self, e: int, r: int, t: int, x: int, walks: bool) -> tuple[int, ...]:
        """By what the rule orders: last link, last contact, walks, frequency."""
        inverse = (r + self.relations) % (2 * self.relations)
        met = self.facts_of(e, None, x, t, True)
        ways = [
            z
            for y in self.neighbours(e, r, t)
            for z in self.neighbours(y, inverse, t)
            if x in self.neighbours(z, r, t)
        ]
        return (
            max((when for q, _, when in met if q == r), default=-1),
            max((when for _, _, when in met), default=-1),
            len(ways) if walks else 0,
            len(self.facts_of(x, inverse, None, t, False)),
        )

    def shares(self, e: int, t: int, restart: float, steps: int) -> list[float]:
        """Where walkers from e end, followed from entity to entity."""
        linked = [
            {o for s, _, o, when in self.links if s == n and when < t} for n in range(ENTITIES)
        ]
        first = linked[e] | {o for s, _, o, _ in self.own if s == e}
        at, ends = {e: 1.0}, [0.0] * ENTITIES
        for number in range(steps + 1):
            moved: dict[int, float] = defaultdict(float)
            for place, mass in at.items():
                ends[place] += restart * mass
                reachable = linked[place] if number else first
                for target in reachable:
                    moved[target] += (1 - restart) * mass / len(reachable)
            at = moved
        return ends

    def scores(self, e: int, r: int, t: int, part: float) -> list[tuple[float, ...]]:
        """By what ``pagerank`` orders: last link, last contact, walks and frequency as one."""
        shares = self.shares(e, t, 0.15, 12)
        result: list[tuple[float, ...]] = []
        for z in range(ENTITIES):
            link, contact, _, frequency = self.parts(e, r, t, z, walks=False)
            near = min(shares[z], 0.9) if frequency else 0.0
            result.append((link, contact, near + part * frequency))
        return result

    def without(self, e: int, r: int, x: int, why: Explanation) -> Literal:
        """As if the facts of a reason had never been seen."""
        inverse = (r + self.relations) % (2 * self.relations)
        # Two links for each neighbour that is shared: of e and of x.
        some = {link.target for link in why.links[:: 2 if why.kind == "shared" else len(why.links)]}

        def gone(s: int, q: int, o: int, when: int) -> bool:
            if why.kind == "frequency":
                ways = ((s, q, o), (o, (q + self.relations) % (2 * self.relations), s))
                return any(a == x and p == inverse and b != e for a, p, b in ways)
            by_relation = (q == r, (q + self.relations) % (2 * self.relations) == r)
            ends = (s == e and o in some, o == e and s in some)
            same = why.kind != "contact"
            return any(
                at and (by == same or why.kind == "shared")
                for at, by in zip(ends, by_relation, strict=True)
            )

        return replace(
            self,
            links=[link for link in self.links if not gone(*link)],
            own=[link for link in self.own if not gone(*link)],
        )

    def lost(self, e: int, r: int, t: int, x: int, why: Explanation, walks: bool) -> float:
        """The share of 1 / rank that is lost when the facts of a reason are left out."""
        others = [self.parts(e, r, t, z, walks) for z in range(ENTITIES) if z != x]
        ranks = []
        for literal in (self, self.without(e, r, x, why)):
            own = literal.parts(e, r, t, x, walks)
            above, equal = sum(other > own for other in others), others.count(own)
            ranks.append(1 + above + equal / 2)
        return 1 - ranks[0] / ranks[1]

    def lost_by_pagerank(self, e: int, r: int, t: int, x: int, why: Explanation) -> list[float]:
        """The same for ``pagerank``; from and to, where rounding may part those that are equal."""
        inverse = (r + self.relations) % (2 * self.relations)
        facts = sum(len(self.facts_of(z, inverse, None, t, False)) for z in range(ENTITIES))
        part = max(0.01 * (1 - sum(self.shares(e, t, 0.15, 12))) / max(facts, 1), 1e-15)
        others = self.scores(e, r, t, part)
        ranks = []
        for literal in (self, self.without(e, r, x, why)):
            *past, walk = literal.scores(e, r, t, part)[x]
            ranks.append([1.0, 1.0])
            for z, other in enumerate(others):
                if z == x:
                    continue
                above = (*other[:2], other[2]) > (*past, walk)
                close = list(other[:2]) == past and abs(other[2] - walk) < 1e-6
                ranks[-1][0] += 0 if close else above
                ranks[-1][1] += 1 if close else above
        # Who fell and who rose: a share of the chance that there is, or that there would be.
        shares = [(a, b) for a in ranks[0] for b in ranks[1]]
        return [1 - a / b if a <= b else b / a - 1 for a, b in shares]


def told(reasons: list[Explanation]) -> list[Any]:
    """What can be compared: in any order, without weights."""
    rows = [(why.kind, why.links, why.count, why.at_least) for why in reasons]
    return sorted(rows, key=lambda row: (row[0], -row[2], row[1]))


links = st.tuples(
    st.integers(0, ENTITIES - 1),
    st.integers(0, RELATIONS - 1),
    st.integers(0, ENTITIES - 1),
    st.integers(0, STEPS - 1),
)
rows = st.lists(links, max_size=40)


def facts_of(rows: list[tuple[int, int, int, int]]) -> Facts:
    columns = np.array(sorted(set(rows), key=lambda row: row[3]), np.int64).reshape(-1, 4).T
    names = Vocabulary.numbered(ENTITIES), Vocabulary.numbered(RELATIONS)
    return Facts(*columns.copy(), *names)


def directed(rows: list[tuple[int, int, int, int]]) -> list[tuple[int, int, int, int]]:
    return [link for s, r, o, t in set(rows) for link in ((s, r, o, t), (o, r + RELATIONS, s, t))]


@given(base=rows, recent=rows, asked=st.lists(links, min_size=1, max_size=6))
def test_reasons_are_those_of_a_slow_reading_of_all_facts(
    base: list[Any], recent: list[Any], asked: list[Any]
) -> None:
    recent = [row for row in recent if row not in base]
    visible = VisibleFacts.of(facts_of(base)).grown(facts_of(recent))
    everything = directed(base + recent)
    # The first two facts of entity 0 are its support.
    own = sorted((row for row in everything if row[0] == 0), key=lambda row: (row[3], row[1:3]))[:2]
    supports = Supports(*np.array(own, np.int64).reshape(-1, 4).T.copy())
    history = History(TemporalIndex.of(visible), supports)
    literal = Literal(everything, own, RELATIONS)
    entity, relation, answer, time = np.array(asked, np.int64).T.copy()
    queries, candidate = Queries(entity, relation, time), torch.from_numpy(answer)
    ranked = supporting(history, queries, candidate, walks=True, shared=True)
    rules = {walks: create("paths" if walks else "recurrency") for walks in (True, False)}
    weights = {
        walks: rule.prepare(visible).adapt(supports).reasons(queries, candidate)  # type: ignore[attr-defined]
        for walks, rule in rules.items()
    }
    for number, (e, r, x, t) in enumerate(asked):
        visible_to_it = replace(literal, own=own if e == 0 else [])
        wanted = visible_to_it.reasons(e, r, t, x)
        assert told(ranked[number]) == told(wanted)
        for walks, found in weights.items():
            kinds = ("repeat", "contact", "frequency", *(["path"] if walks else []))
            assert told(found[number]) == told([why for why in wanted if why.kind in kinds])
            measured = [why.weight for why in found[number]]
            assert measured == sorted(measured, reverse=True)
            for why in found[number]:
                if e != x:
                    lost = visible_to_it.lost(e, r, t, x, why, walks)
                    assert why.weight == pytest.approx(lost, abs=1e-3)


@given(base=rows, recent=rows, asked=st.lists(links, min_size=1, max_size=6))
def test_reasons_of_pagerank_weigh_what_is_lost_without_them(
    base: list[Any], recent: list[Any], asked: list[Any]
) -> None:
    recent = [row for row in recent if row not in base]
    visible = VisibleFacts.of(facts_of(base)).grown(facts_of(recent))
    everything = directed(base + recent)
    own = sorted((row for row in everything if row[0] == 0), key=lambda row: (row[3], row[1:3]))[:2]
    supports = Supports(*np.array(own, np.int64).reshape(-1, 4).T.copy())
    entity, relation, answer, time = np.array(asked, np.int64).T.copy()
    # No walker stops early: the reference follows them all.
    rule = create("pagerank", {"threshold": 1e-12}).prepare(visible).adapt(supports)
    assert isinstance(rule, Explains)
    found = rule.reasons(Queries(entity, relation, time), torch.from_numpy(answer))
    for (e, r, x, t), reasons in zip(asked, found, strict=True):
        literal = Literal(everything, own if e == 0 else [], RELATIONS)
        wanted = [why for why in literal.reasons(e, r, t, x) if why.kind != "path"]
        assert told(reasons) == told(wanted)
        for why in reasons:
            if e != x:
                lost = literal.lost_by_pagerank(e, r, t, x, why)
                assert min(lost) - 1e-3 <= why.weight <= max(lost) + 1e-3


def hub(facts: int) -> Facts:
    """Everyone visits the place, most a bar too; nobody else has more than two facts."""
    visits = [(f"v{n}", "visits", "place", n) for n in range(facts)]
    bars = [(f"v{n}", "visits", f"bar {n % (facts // 60)}", n) for n in range(0, facts, 2)]
    return mt.read_facts([*visits, *bars, ("new", "visits", "place", facts)])


class Counter:
    """Counts the links that are looked up, not the seconds."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.links = 0
        find, latest = PairTimes.find, PairTimes.latest

        def counted_find(pairs: PairTimes, slot: Any, target: Any) -> Any:
            self.links += len(target)
            return find(pairs, slot, target)

        def counted_latest(pairs: PairTimes, *arguments: Any) -> Any:
            found = latest(pairs, *arguments)
            self.links += len(found[0])
            return found

        monkeypatch.setattr(PairTimes, "find", counted_find)
        monkeypatch.setattr(PairTimes, "latest", counted_latest)


@pytest.mark.parametrize("model", ["paths", "evidence"])
def test_reasons_about_a_hub_cost_no_more_than_its_latest_links(
    model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    costs = []
    for facts in (3000, 6000):
        graph = hub(facts)
        visible, supports = VisibleFacts.of(graph), Supports.none()
        history = History(TemporalIndex.of(visible), supports)
        who = [graph.entities.id(name) for name in ("place", "bar 0", "bar 2", "v10", "new")]
        pairs = [(a, b) for a in who for b in who]
        entity, answer = np.array(pairs, np.int64).T.copy()
        with monkeypatch.context() as patch:
            counter = Counter(patch)
            for relation in (0, 1):
                queries = Queries(
                    entity, np.full_like(entity, relation), np.full_like(entity, graph.steps)
                )
                candidate = torch.from_numpy(answer)
                supporting(history, queries, candidate, walks=True, shared=model == "evidence")
        costs.append(counter.links / (2 * len(pairs)))
    assert costs[1] <= 1.01 * costs[0]
    most = 6 * explanations._LINKS + 2 * explanations._PAIRS
    assert costs[1] <= most


def test_a_count_that_was_cut_says_so() -> None:
    forecaster = mt.Forecaster.of(hub(3000), "paths", calibration=Calibration())
    # Of the 3,001 visitors of the place the last 512 are looked at, v2489 to v2999 and "new".
    texts = [reason.text for reason in forecaster.explain("v10", "visits", "place")]
    assert set(texts[1:]) == {
        "at least 10 others of “… visits bar 10” are also in “… visits place”: "
        "v2510, v2560, v2610 and 7 more",
        "“… visits place” 3,001 times before, last in 3000",
    }
    texts = [reason.text for reason in forecaster.explain("v10", "visits", "bar 4")]
    assert set(texts) == {
        "60 others of “… visits place” are also in “… visits bar 4”: v4, v54, v104 and 57 more",
        "“… visits bar 4” 60 times before, last in 2954",
    }


def test_words_and_picture_tell_one_count() -> None:
    """Of very many facts some are sent, but their number is told; the page writes it."""
    facts = mt.read_facts([("a", "is registered in", "b", day) for day in range(135)])
    forecaster = mt.Forecaster.of(facts, "paths", calibration=Calibration())
    first, second = forecaster.explain("a", "is registered in", "b")
    assert (first.kind, first.count, len(first.facts)) == ("repeat", 135, 20)
    assert first.text == "“a is registered in b” 135 times, last in 134"
    assert (second.count, second.text) == (
        135,
        "“… is registered in b” 135 times before, last in 134",
    )

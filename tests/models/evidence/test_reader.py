"""Every feature equals its description, worked out fact by fact on random graphs."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from metatkgr.data.facts import Facts
from metatkgr.data.tasks import Tasks
from metatkgr.graph.index import TemporalIndex
from metatkgr.models.evidence.features import FEATURES
from metatkgr.models.evidence.reader import Reader
from metatkgr.models.evidence.settings import EvidenceSettings
from references import (
    ENTITIES,
    RELATIONS,
    Fact,
    LiteralProtocol,
    Query,
    graphs,
    literal_shares,
    recurrency_parts,
    tuples,
)

visibilities = st.sampled_from(["entity-split", "frozen", "streaming"])


def public(tasks: Tasks) -> TemporalIndex:
    return TemporalIndex.of(tasks.visible)


def literal_peers(
    protocol: LiteralProtocol, e: int, r: int, t: int, branches: int, *, partners: bool
) -> tuple[list[float], list[float]]:
    """Shares and timed shares of all candidates, walk by walk."""
    links = protocol.links(protocol.visible(e, t))
    past = [link for link in links if link[3] < t]

    def distinct(facts: list[Fact]) -> list[tuple[int, int, int, int]]:
        """(first, relation, target, last), those that began last."""
        times: dict[tuple[int, int], list[int]] = {}
        for _, q, b, when in facts:
            times.setdefault((q, b), []).append(when)
        return sorted((min(w), *key, max(w)) for key, w in times.items())[-branches:]

    def leave(a: int, relation: int | None) -> list[tuple[int, int, int, int]]:
        return distinct([k for k in past if k[0] == a and relation in (None, k[1])])

    def inverse(relation: int) -> int:
        return (relation + RELATIONS) % (2 * RELATIONS)

    def apart(one: tuple[int, int, int, int], other: tuple[int, int, int, int]) -> int:
        return max(one[0] - other[3], other[0] - one[3], 0)

    mine = [k for k in links if k[0] == e and (k[0] != k[2] or k[1] < RELATIONS)]
    own = distinct([k for k in mine if not partners or k[1] == r])
    plain, timed = [0.0] * ENTITIES, [0.0] * ENTITIES
    for one in own:
        follow = None if partners else inverse(one[1])
        seconds = [k for k in leave(one[2], follow) if k[2] != e]
        for two in seconds:
            thirds = leave(two[2], inverse(two[1]) if partners else r)
            thirds = [k for k in thirds if k[2] != one[2] or not (partners or k[1] == one[1])]
            for three in thirds:
                share = 1 / (len(own) * len(seconds) * len(thirds))
                plain[three[2]] += share
                gaps = (1 + apart(one, two)) * (1 + apart(two, three))
                timed[three[2]] += share / (gaps * (1 + t - three[3]))
    return plain, timed


def literal_features(
    protocol: LiteralProtocol, e: int, r: int, t: int, x: int, similar: float, branches: int
) -> dict[str, float]:
    links = [
        link
        for link in protocol.links(protocol.visible(e, t))
        if link[0] != link[2] or link[1] < RELATIONS  # a fact with itself is one link
    ]
    everyone = protocol.links(protocol.visible(e, t))
    past = [link for link in everyone if link[3] < t]
    same = [when for a, q, b, when in links if (a, q, b) == (e, r, x)]
    contact = [when for a, _, b, when in links if (a, b) == (e, x)]
    place = [when for _, q, b, when in past if (q, b) == (r, x)]
    seen = [when for _, _, b, when in past if b == x]
    own_seen = [when for _, _, b, when in past if b == e]
    by_relation = [when for a, q, _, when in links if (a, q) == (e, r)]
    pairs = [{(a, b) for a, q, b, _ in past if q == one} for one in range(2 * RELATIONS)]
    shares = [
        len(pairs[q] & pairs[r]) / (len(pairs[q]) + 5) for a, q, b, _ in links if (a, b) == (e, x)
    ]
    first, own_first = min(seen, default=t), min(own_seen, default=t)
    peers, partners = (
        [table[x] for table in literal_peers(protocol, e, r, t, branches, partners=kind)]
        for kind in (False, True)
    )
    near, far = (literal_shares(protocol, e, t, 0.15, steps)[x] for steps in (3, 12))
    lost = max(1 - sum(literal_shares(protocol, e, t, 0.15, 12)), 0)
    share = len(place) / max(sum(q == r for _, q, _, _ in past), 1)
    walks = recurrency_parts(protocol, Query(e, r, t, answer=-1), ENTITIES, walks=True)[x][2]

    def age(times: list[int]) -> float:
        return math.log1p(max(t - max(times), 0)) if times else 0.0

    def decayed(tau: float) -> float:
        return math.log1p(sum(math.exp(-(t - when) / tau) for when in place))

    return {
        "link": float(bool(same)),
        "link_age": age(same),
        "link_count": math.log1p(len(same)),
        "contact": float(bool(contact)),
        "contact_age": age(contact),
        "co_occurrence": math.log(max([*shares, 1e-3])),
        "slot_count": math.log1p(len(place)),
        "slot_recent": decayed(2),
        "slot_season": decayed(10),
        "slot_era": decayed(50),
        "slot_age": age(place),
        "slot": float(bool(place)),
        "age": math.log1p(t - first),
        "idle": age(seen),
        "degree": math.log1p(len({a for a, _, b, _ in past if b == x})),
        "cohort": math.log1p(abs(first - own_first)),
        "walks": math.log1p(walks),
        "near": math.log(near + 1e-6),
        "far": math.log(far + 1e-6),
        "far_slot": math.log(far + 0.1 * lost * share + 1e-6 if place or contact else 1e-7),
        "peers": math.log(peers[0] + 1e-6),
        "peers_timed": math.log(peers[1] + 1e-6),
        "partners": math.log(partners[0] + 1e-6),
        "partners_timed": math.log(partners[1] + 1e-6),
        "similar": similar,
        "facts": math.log1p(sum(1 for a, _, _, _ in links if a == e)),
        "has_link": float(bool(by_relation)),
        "last_link_age": age(by_relation),
    }


@given(
    facts=graphs(),
    visibility=visibilities,
    shots=st.integers(1, 3),
    branches=st.sampled_from([1, 2, 24]),
)
@settings(max_examples=40, deadline=None)
def test_features_are_what_they_say(
    facts: Facts, visibility: str, shots: int, branches: int
) -> None:
    tasks = Tasks.build(facts, shots=shots, visibility=visibility)
    if len(tasks.questions) == 0:
        return
    literal = LiteralProtocol(tuples(facts), RELATIONS, shots=shots, visibility=visibility, split=3)
    asked = tasks.questions[np.arange(min(len(tasks.questions), 6))]
    chosen = EvidenceSettings(branches=branches, threshold=1e-9)
    reader = Reader(public(tasks), tasks.supports, chosen)
    similar = torch.randn(
        len(asked), ENTITIES, generator=torch.Generator().manual_seed(1)
    ).log_softmax(1)
    found = reader.read(asked, lambda row, x: similar[row, x])
    repeats = dict(zip(found.repeats.cell.tolist(), found.repeats.values[0].tolist(), strict=True))
    for row in range(len(asked)):
        e, r, t = (int(column[row]) for column in (asked.entity, asked.relation, asked.time))
        parts = recurrency_parts(literal, Query(e, r, t, answer=-1), ENTITIES, walks=False)
        for x in range(ENTITIES):
            # An own support fact of e with itself is read in one direction only.
            assert x == e or repeats.get(row * ENTITIES + x, -1) == parts[x][0]
        mine = torch.nonzero(found.query == row).squeeze(1).tolist()
        # With lists longer than the graph: all that were linked, reached or in the slot.
        near = literal_shares(literal, e, t, 0.15, 12)
        spoken_for = [parts[x][1] >= 0 or parts[x][2] or near[x] > 0 for x in range(ENTITIES)]
        expected = [x for x in range(ENTITIES) if x != e and spoken_for[x]]
        assert found.entity[mine].tolist() == expected
        for place in mine:
            x = int(found.entity[place])
            wanted = literal_features(literal, e, r, t, x, float(similar[row, x]), branches)
            assert list(wanted) == list(FEATURES)
            measured = dict(zip(FEATURES, found.features[place].tolist(), strict=True))
            assert measured == pytest.approx(wanted, abs=1e-4)
            assert int(found.link[place]) == parts[x][0]


def test_an_answer_to_learn_from_is_a_candidate_once() -> None:
    from metatkgr.data.world import simulate

    tasks = Tasks.build(simulate(facts=1500, seed=2), shots=2)
    few = EvidenceSettings(recent=3, near=6, frequent=3, dimension=0)
    reader = Reader(public(tasks), tasks.supports, few)
    question = tasks.answers.question[:50]
    answer = torch.from_numpy(tasks.answers.answer[:50])
    found = reader.read(tasks.questions[question], None, answer)
    gold = found.entity == answer[found.query]
    assert found.query[gold].tolist() == list(range(50))
    assert found.covered[~gold].all()
    assert 0 < int(found.covered[gold].sum()) < 50
    ordinary = reader.read(tasks.questions[question])
    assert torch.equal(found.entity[found.covered], ordinary.entity)
    assert torch.equal(found.features[found.covered], ordinary.features)


def test_what_a_query_reads_does_not_depend_on_the_rest_of_the_batch() -> None:
    from metatkgr.data.world import simulate

    tasks = Tasks.build(simulate(facts=1500, seed=2), shots=2)
    reader = Reader(public(tasks), tasks.supports, EvidenceSettings())
    asked = tasks.questions[np.arange(0, len(tasks.questions), 11)]
    together = reader.read(asked)
    for row in range(len(asked)):
        alone = reader.read(asked[np.array([row])])
        mine = together.query == row
        assert torch.equal(alone.entity, together.entity[mine])
        torch.testing.assert_close(alone.features, together.features[mine])

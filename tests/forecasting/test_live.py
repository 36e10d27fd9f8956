"""The facts of a forecaster while they keep arriving."""

from __future__ import annotations

import random

from metatkgr.data.world import simulate
from metatkgr.forecasting.forecaster import Forecaster
from metatkgr.forecasting.live import Snapshot


def test_arrivals_are_kept_in_time_order_however_they_come() -> None:
    """And a snapshot that was taken stays as it was."""
    facts = simulate(facts=600, seed=1)
    rng = random.Random(0)
    drawn = [
        (rng.choice(facts.entities), rng.choice(facts.relations), f"N {rng.randrange(40)}", step)
        for step in (rng.randrange(facts.steps) for _ in range(400))
    ]
    forecaster = Forecaster.of("recurrency", facts)
    told: set[tuple[int, str, str, str]] = set()
    taken: list[tuple[Snapshot, list[tuple[int, str, str, str]]]] = []
    while drawn:
        some = [drawn.pop() for _ in range(min(len(drawn), rng.choice((1, 1, 3, 150))))]
        forecaster.observe(some)
        told.update((t, s, r, o) for s, r, o, t in some)
        taken.append((forecaster.snapshot(), sorted(told)))
    for snapshot, wanted in taken:
        recent, name = snapshot.parts[1], snapshot.entities.name
        columns = (recent.time, recent.subject, recent.relation, recent.object)
        rows = zip(*(column.tolist() for column in columns), strict=True)
        assert sorted((t, name(s), facts.relations[r], name(o)) for t, s, r, o in rows) == wanted
        assert recent.time.tolist() == [row[0] for row in wanted]

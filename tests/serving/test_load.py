"""Many clients at once, kill -9 in the middle of writes: no error, and nothing lost."""

from __future__ import annotations

import re
import signal
import threading
from pathlib import Path

from local_service import Command, started
from metatkgr.data.facts import Facts
from metatkgr.forecasting.store import FactStore
from metatkgr.serving.service import Service
from service_load import Fact, Load, put_under_load, words_of


def forecasts_know(service: Service, facts: set[Fact]) -> bool:
    """Whether every fact is on its newcomer's timeline."""
    for newcomer in {fact[0] for fact in facts}:
        told = service.forecaster.timeline(newcomer)
        known = {(fact.subject, fact.relation, fact.object, fact.time) for fact in told}
        if not {fact for fact in facts if fact[0] == newcomer} <= known:
            return False
    return True


def check(world: Facts, folder: Path, store: str, seconds: float) -> Load:
    """Reads and writes without an error; kill -9 during writes; all that was acknowledged stays."""
    words = words_of(world)
    options = ("world:3000:1", "--model", "paths", "--store", store, "--no-quality")
    with Command(*options, folder=folder) as service:
        load = put_under_load(service.url, words, seconds)
        assert load.errors == []
        threading.Timer(min(3.0, seconds / 3), service.process.kill).start()
        killed = put_under_load(service.url, words, 60, writes=1.0, first_client=100)
        assert service.process.wait() == -signal.SIGKILL
    assert load.acknowledged
    assert killed.acknowledged
    everything = {*load.acknowledged, *killed.acknowledged}
    with FactStore(store) as kept:
        assert everything <= {tuple(stored.fact) for stored in kept.since()}
    again = started(world, store)
    assert forecasts_know(again, everything)
    again.stop()
    return load


def test_a_short_load_loses_nothing(world: Facts, tmp_path: Path) -> None:
    print(check(world, tmp_path, str(tmp_path / "facts.sqlite"), 5).table())


def test_told_to_stop_it_finishes_what_it_is_answering(world: Facts, tmp_path: Path) -> None:
    """Clients see whole answers, then a closed door; the process ends well."""
    store = tmp_path / "facts.sqlite"
    options = ("world:3000:1", "--model", "paths", "--store", store, "--no-quality")
    with Command(*options, folder=tmp_path) as service:
        threading.Timer(1.0, service.process.terminate).start()
        load = put_under_load(service.url, words_of(world), 60)
        assert service.wait() == 0, service.said
    # A connection that is kept open may be closed between two requests; no answer is cut off.
    assert not [error for error in load.errors if re.search(r"Incomplete|: 5\d\d ", error)]
    with FactStore(store) as kept:
        assert set(load.acknowledged) <= {tuple(stored.fact) for stored in kept.since()}

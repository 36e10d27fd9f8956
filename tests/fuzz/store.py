"""The store of facts: odd facts, and files that are no store any more."""

from __future__ import annotations

import random
import shutil
from functools import cache
from pathlib import Path
from typing import Any

from fuzz.fuzzing import fuzzer, scratch
from fuzz.mutation import damage_bytes, odd_text, odd_value
from metatkgr.forecasting.store import FactStore

_MOST = 3000
_state: dict[str, Any] = {}


def _open_store() -> FactStore:
    """A store that is begun anew from time to time."""
    if "store" not in _state or _state["used"] > _MOST:
        if "store" in _state:
            _state["store"].close()
        folder = scratch() / "store"
        shutil.rmtree(folder, ignore_errors=True)
        _state["store"], _state["used"] = FactStore(folder / "facts.sqlite"), 0
    _state["used"] += 1
    store: FactStore = _state["store"]
    return store


@fuzzer(share=2)
def stored_facts(rng: random.Random) -> None:
    """Facts of any text: all of a call are kept, word for word, or none."""
    store = _open_store()
    words = ["Ann", "Bob", "knows", "2018", "é"]

    def cell() -> Any:
        draw = rng.random()
        return rng.choice(words) if draw < 0.8 else odd_text(rng) if draw < 0.98 else odd_value(rng)

    facts: list[Any] = [tuple(cell() for _ in range(4)) for _ in range(rng.choice((1, 1, 2, 5)))]
    if rng.random() < 0.03:
        facts.append(rng.choice((None, 3, "abcd", (), ("a",), ("a", "b", "c", "d", "e"))))
    before, last = len(store), store.last()
    try:
        added = store.add(facts)
    except Exception:
        assert len(store) == before, "a call that failed has kept something"
        raise
    assert added.accepted + added.duplicates == len(facts)
    assert len(store) == before + added.accepted
    new = {tuple(row.fact) for row in store.since(last)}
    assert len(new) == added.accepted
    assert new <= set(facts)


@cache
def _database() -> bytes:
    path = scratch() / "whole.sqlite"
    with FactStore(path) as store:
        store.add([(f"Ann {n}", "knows", "Bob", str(n)) for n in range(50)])
    return Path(path).read_bytes()


@fuzzer(share=1)
def store_files(rng: random.Random) -> None:
    """A database file that was cut or flipped: refused, or used as far as it is whole."""
    for path in scratch().glob("broken.sqlite*"):
        path.unlink()
    path = scratch() / "broken.sqlite"
    data = _database()
    head = rng.random() < 0.5
    changed = damage_bytes(rng, data[:4096]) + data[4096:] if head else damage_bytes(rng, data)
    path.write_bytes(changed)
    if rng.random() < 0.2:
        (scratch() / "broken.sqlite-wal").write_bytes(odd_text(rng).encode("utf-8", "replace"))
    with FactStore(path) as store:
        store.add([("new", "knows", "Bob", "1")])
        rows = store.since()
        assert all(isinstance(text, str) for row in rows for text in row.fact)
        assert ("new", "knows", "Bob", "1") in {tuple(row.fact) for row in rows}
        store.last()
        len(store)

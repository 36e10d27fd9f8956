"""DATA, as users name it: a catalogue name, the simulated world, or a path."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from metatkgr.data import catalog
from metatkgr.data.facts import Facts
from metatkgr.data.readers.bad_rows import BadRows
from metatkgr.errors import DataError, SettingsError, UnknownNameError

__all__ = ["WORLD", "is_read", "load", "load_with_report"]

WORLD = "world"
"""The name of the simulated worlds; 'world:KIND:FACTS:SEED' chooses kind, size and seed."""

TEST_GRAPHS = frozenset({"test-rulers", "test-electron", "test-patches"})
"""Names of graphs on which nothing may be chosen (``studies.held_out_graphs`` makes them)."""


def refuse_test_graph(name: str, purpose: str) -> None:
    """Raise DataError if ``name`` is a test graph; for whatever chooses.

    Args:
        name: of the facts.
        purpose: what may not be done, as in 'tuned on'.
    """
    if name in TEST_GRAPHS:
        raise DataError(
            f"{name} is a test graph, set aside so that results on it mean something: it may not "
            f"be {purpose}"
        )


def load(data: str, **reading: Any) -> Facts:
    """Facts by catalogue name, 'world[:KIND][:FACTS[:SEED]]', or path.

    Args:
        data: what to load.
        reading: fields of ``ReadOptions``; only a path takes them.
    """
    return load_with_report(data, **reading)[0]


def load_with_report(data: str, **reading: Any) -> tuple[Facts, BadRows | None]:
    """Like :func:`load`; for a path also what came of its rows."""
    is_world = _is_world(data)
    if is_world or _is_known(data):
        if reading:
            raise SettingsError(
                f"{data} is not read from a file of yours: {', '.join(sorted(reading))} "
                "cannot be chosen for it"
            )
        return (_world(data) if is_world else catalog.load(data)), None
    try:
        path = Path(data).expanduser()
        there = path.exists()
    except (OSError, ValueError, RuntimeError) as error:
        raise DataError(f"cannot open {data[:200]!r}: {error}") from None
    if not there:
        if len(path.parts) == 1 and not path.suffix:
            raise UnknownNameError("dataset or path", data, [*catalog.ENTRIES, WORLD])
        raise DataError(f"there is no file or folder {data}")
    from metatkgr.data.folder import FactFolder
    from metatkgr.data.readers import ReadOptions, read_facts_with_report

    if FactFolder.is_at(path):
        if reading:
            raise SettingsError(
                f"{data} was read when it was ingested: {', '.join(sorted(reading))} "
                "cannot be chosen any more"
            )
        folder = FactFolder(path)
        if not folder.is_untouched():
            folder.check()
        return folder.facts(), None
    facts, rows = read_facts_with_report(path, ReadOptions.of(None, reading))
    return _with_law(facts, path), rows


def is_read(data: str) -> bool:
    """Whether ``data`` names a file, or a folder of files, that is read anew each time."""
    from metatkgr.data.folder import FactFolder

    return not (_is_world(data) or _is_known(data) or FactFolder.is_at(data))


def _is_world(data: str) -> bool:
    return data.partition(":")[0].lower() == WORLD


def _is_known(data: str) -> bool:
    return data.upper() in {name.upper() for name in catalog.ENTRIES}


def _world(data: str) -> Facts:
    from metatkgr.data.world import simulate

    words = data.split(":")[1:]
    kind = words.pop(0).lower() if words and not words[0].isdecimal() else None
    if len(words) > 2 or not all(word.isdecimal() for word in words):
        raise SettingsError(
            "a world is named world, world:KIND, world:FACTS:SEED or world:KIND:FACTS:SEED, not "
            f"{data}"
        )
    facts, seed = (*map(int, words), None, None)[:2]
    return simulate(facts=facts, seed=seed, kind=kind)


def _with_law(facts: Facts, path: Path) -> Facts:
    """Facts of a world that was written to Parquet get their law back; others stay as they are."""
    if path.suffix.lower() != ".parquet":
        return facts
    from metatkgr.data.calendar import Calendar
    from metatkgr.data.world.kinds import KINDS
    from metatkgr.data.world.law import Law
    from metatkgr.data.world.simulation import world_settings_from_metadata

    settings = world_settings_from_metadata(path)
    if settings is None:
        return facts
    # Only the whole world, read in its own steps, is the one the law speaks of.
    kind = KINDS[settings.kind]
    own = [Calendar(unit, kind.origin, kind.stride) for unit in (kind.unit, "step")]
    if settings.facts != len(facts) or facts.calendar not in own:  # years are plain numbers
        return facts
    law = Law(settings, facts.entities, facts.relations, last_step=facts.steps - 1)
    return replace(facts, law=law)

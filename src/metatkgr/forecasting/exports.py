"""A store of facts as a file: what holds, or all that was ever said."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from metatkgr.data.frames import written_rows
from metatkgr.deadlines import checking
from metatkgr.forecasting.explain import FactView
from metatkgr.forecasting.store import FactStore

__all__ = ["ChangeRow", "export_facts"]


class ChangeRow(NamedTuple):
    """A change in a file; its fact first, so that the file can be read as facts."""

    subject: str
    relation: str
    object: str
    time: str
    id: int
    retracted: bool
    source: str
    observed: str
    received: str


def export_facts(store: FactStore, out: str | Path, *, changes: bool = False) -> int:
    """Write the facts that hold to a file, or all that was ever said.

    Args:
        store: whose.
        out: .csv, .jsonl or .parquet.
        changes: every change with its source and times.

    Returns:
        the number of rows.
    """
    count = 0
    with written_rows(out, ChangeRow if changes else FactView) as write:
        for c in checking(store.log() if changes else store.now()):
            row: FactView | ChangeRow = c.fact
            if changes:
                received = c.received.isoformat()
                row = ChangeRow(*c.fact, c.id, c.retracted, c.source, c.observed, received)
            write([row])
            count += 1
    return count

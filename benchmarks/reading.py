"""How fast facts come in: a CSV file with names, and the simulator."""

from __future__ import annotations

import csv
import tempfile
from functools import partial
from pathlib import Path

import numpy as np

from benchmarks.base import Measurement, Workload, benchmark, best_time
from metatkgr.data.facts import Facts, Vocabulary
from metatkgr.data.readers import read_facts
from metatkgr.data.world import WorldSettings
from metatkgr.data.world.simulation import write_world

__all__ = ["read_csv"]


@benchmark("read-csv")
def read_csv(work: Workload) -> list[Measurement]:
    """A million CSV rows with names and dates, against a plain loop over csv.reader."""
    rows = 20_000 if work.quick else 1_000_000
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "world.csv"
        written = write_world(path, WorldSettings(facts=rows))
        floor, _ = best_time(lambda: path.read_bytes().count(b"\n"), work.repeats)
        ours, facts = best_time(lambda: read_facts(path), work.repeats)
        naive, expected = best_time(lambda: _read_naively(path), 1)
        one, every = Path(folder) / "one.csv", Path(folder) / "every.csv"
        lines = path.read_text("utf-8").splitlines()
        one.write_text("\n".join([*lines[:-1], f'"{lines[-1].replace(",", chr(34) + ",", 1)}']))
        every.write_text("\n".join(f'"{line}"'.replace(",", '","') for line in lines))
        # By turns, so that what else the machine does meets all of them alike.
        rounds = [
            [best_time(partial(read_facts, file), 1) for file in (path, one, every)]
            for _ in range(work.repeats)
        ]
    plain, *quoted = (min(runs, key=lambda run: run[0]) for runs in zip(*rounds, strict=True))
    for _, same in quoted:
        if not np.array_equal(same.subject, facts.subject):
            raise AssertionError("quotes change what is read")
    if not (np.array_equal(facts.subject, expected.subject) and len(facts) == len(expected)):
        raise AssertionError("the fast and the naive reader disagree")
    note = f"{rows:,} rows, {written.bytes / 1e6:.0f} MB; reading the bytes alone {floor:.3f} s"
    return [
        Measurement("read CSV with names", "s", ours, naive, "csv.reader and dictionaries", note),
        *(
            Measurement(
                f"read CSV, {which} quoted",
                "s",
                seconds,
                plain[0],
                "no quotes",
                f"{seconds / plain[0]:.2f} times the seconds without quotes",
            )
            for which, (seconds, _) in zip(("one cell", "all cells"), quoted, strict=True)
        ),
        Measurement(
            "simulate and write CSV", "s", written.seconds, note=f"{rows:,} rows, one pass"
        ),
    ]


def _read_naively(path: Path) -> Facts:
    """What one writes first: a loop, two dictionaries, a date parsed per row."""
    import datetime as dt

    from metatkgr.data.calendar import date_to_raw

    entities: dict[str, int] = {}
    relations: dict[str, int] = {}
    rows = []
    with path.open(newline="", encoding="utf-8") as file:
        reader = csv.reader(file)
        next(reader)
        for s, r, o, date in reader:
            rows.append(
                (
                    entities.setdefault(s, len(entities)),
                    relations.setdefault(r, len(relations)),
                    entities.setdefault(o, len(entities)),
                    date_to_raw(dt.date.fromisoformat(date), "day"),
                )
            )
    return Facts.build(
        *zip(*rows, strict=True),
        entities=Vocabulary(entities),
        relations=Vocabulary(relations),
        unit="day",
    )

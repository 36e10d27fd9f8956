"""Registered rounds: what is run on meta-test is stated before, and every look is kept.

The runner shows meta-test of the published datasets and of the test graphs to *registered* cells
only. A round is a file that says which models with which settings are run on which datasets, with
which seeds, and what is claimed. One comes with the package: the default settings and the paper's
grid. It holds a digest of the settings of each model, so a default that has changed is no longer
registered: it takes a new claim to look at what the change has done.

=======================  ==========================================================
``rounds/NAME.json``     a round, in the folder of a grid
``looks.jsonl``          a line for each cell that was shown meta-test
=======================  ==========================================================
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import time
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from metatkgr.data.sources import TEST_GRAPHS
from metatkgr.errors import DataError, MetaTKGRError, SettingsError
from metatkgr.experiments.cells import Cell, Row
from metatkgr.experiments.records import Record
from metatkgr.experiments.suite import DATASETS, settings_of
from metatkgr.files import read_json, write_json
from metatkgr.models import Model
from metatkgr.models.registry import create_for

__all__ = [
    "STANDING",
    "Round",
    "changed_settings",
    "is_guarded",
    "log_look",
    "model_of",
    "read_looks",
    "read_rounds",
    "refuse_unregistered",
    "register",
]

STANDING = Path(__file__).with_name("standing_round.json")
"""The round that comes with the package."""
LOOKS = "looks.jsonl"
_AS_BEFORE: dict[str, Any] = {
    "hops": 0, "meta_train_known": False, "mirrored_share": 0.0, "near": "calendar",
    "newcomers": "rows", "novel_weight": 3.0, "pool": 64, "rounds": 2, "start": "none",
    "translation_steps": 0, "walkers": 64,
}  # fmt: skip
"""Settings that came or went, and the value with which a model is what it is without them. One that
is not named here makes a row stale when it comes."""
_LISTS = ("datasets", "shots", "test_shots", "visibilities", "seeds", "rows")


def model_of(cell: Cell, dataset: str, device: str = "cpu") -> Model[Any]:
    """The cell's model, untrained, as it is set for the facts called ``dataset``."""
    return create_for(dataset, cell.model, settings_of(cell), preset=cell.preset, device=device)


@lru_cache(512)
def _settings(row: Row, dataset: str) -> dict[str, Any]:
    """All settings of a row as they are now, as JSON has them."""
    cell = Cell(dataset, row.model, preset=row.preset, settings=row.settings)
    settings = dataclasses.asdict(model_of(cell, dataset).settings)
    return _that_count(json.loads(json.dumps(settings)))


def _that_count(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Without those that change nothing."""
    return {
        key: value
        for key, value in settings.items()
        if key not in _AS_BEFORE or value != _AS_BEFORE[key]
    }


def changed_settings(record: Record) -> list[str]:
    """The settings in which a row is another today than when it was recorded.

    What is recorded of it is *stale* then: not what the present code would give.
    """
    if not record.settings or record.cell.tiny:
        return []
    try:
        now = _settings(record.row, record.dataset)
    except MetaTKGRError:  # such a model or setting is no more
        return ["model"]
    then = _that_count(record.settings)
    return sorted(key for key in {**now, **then} if now.get(key) != then.get(key))


def _digest(row: Row, datasets: Sequence[str]) -> str:
    settings = [_settings(row, dataset) for dataset in datasets]
    return hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()[:16]


def is_guarded(cell: Cell) -> bool:
    """Whether its meta-test is shown to registered cells only."""
    return _name(cell) in (*DATASETS, *TEST_GRAPHS)


def _name(cell: Cell) -> str:
    """Of its facts, be it of the catalogue or a file."""
    stem = Path(cell.dataset).stem
    return stem.upper() if stem.upper() in DATASETS else stem


@dataclasses.dataclass(frozen=True)
class Round:
    """What may be looked at, and what is claimed of it; all combinations of its lists."""

    name: str
    claim: str
    registered: str
    """The day."""
    commit: str
    datasets: tuple[str, ...]
    shots: tuple[int, ...]
    test_shots: tuple[str, ...]
    visibilities: tuple[str, ...]
    seeds: tuple[int, ...]
    rows: tuple[tuple[Row, str], ...]
    """Models with their presets and changed settings, and a digest of all settings of each."""

    @classmethod
    def of(cls, name: str, claim: str, cells: Sequence[Cell], commit: str) -> Round:
        """The smallest round that has all of the cells."""
        datasets = tuple(dict.fromkeys(_name(cell) for cell in cells))
        return cls(
            name,
            claim,
            time.strftime("%Y-%m-%d"),
            commit,
            datasets,
            tuple(sorted({cell.shots for cell in cells})),
            tuple(sorted({cell.test_shots for cell in cells})),
            tuple(dict.fromkeys(cell.visibility for cell in cells)),
            tuple(sorted({cell.seed for cell in cells})),
            tuple((row, _digest(row, datasets)) for row in dict.fromkeys(c.row for c in cells)),
        )

    def lacks(self, cell: Cell) -> str:
        """What of a cell is not registered here; empty: nothing."""
        asked = (
            (_name(cell), self.datasets, "dataset"),
            (cell.shots, self.shots, "number of shots"),
            (cell.test_shots, self.test_shots, "number of shots of the test"),
            (cell.visibility, self.visibilities, "visibility"),
            (cell.seed, self.seeds, "seed"),
            (cell.row, [row for row, _ in self.rows], "model or its settings"),
        )
        for value, known, what in asked:
            if value not in known:
                return what
        return "" if _digest(cell.row, self.datasets) == dict(self.rows)[cell.row] else "default"

    def to_json(self) -> dict[str, Any]:
        """As a dictionary of JSON's types."""
        content = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        rows = [
            {"model": row.model, "preset": row.preset, "settings": dict(row.settings), "digest": d}
            for row, d in self.rows
        ]
        return content | {"rows": rows}

    @classmethod
    def read(cls, path: Path) -> Round:
        """The round in a file."""
        try:
            content = dict(read_json(path))
            content |= {key: tuple(content[key]) for key in _LISTS}
            content["rows"] = tuple(
                (Row(row["model"], row["preset"], tuple(sorted(row["settings"].items()))),
                 str(row["digest"]))
                for row in content["rows"]
            )  # fmt: skip
            return cls(**content)
        except (TypeError, ValueError, KeyError, AttributeError) as error:
            raise DataError(f"{path} is not a registered round: {error!r}") from None


def read_rounds(folder: Path) -> list[Round]:
    """The package's round, and those of a folder."""
    return [Round.read(path) for path in (STANDING, *sorted((folder / "rounds").glob("*.json")))]


def register(folder: Path, claim: str, cells: Iterable[Cell], commit: str) -> Path | None:
    """State a claim before its cells are run; None where that has been done before."""
    asked = [cell for cell in cells if is_guarded(cell)]
    same = [known for known in read_rounds(folder) if known.claim == claim]
    if not asked or any(not any(known.lacks(c) for c in asked) for known in same):
        return None
    day = time.strftime("%Y-%m-%d")
    taken = len(list((folder / "rounds").glob(f"{day}*.json")))
    path = folder / "rounds" / f"{day}-{taken + 1}.json"
    write_json(path, Round.of(path.stem, claim, asked, commit).to_json())
    return path


def refuse_unregistered(folder: Path, cells: Iterable[Cell]) -> None:
    """Raise SettingsError if meta-test would be shown to a cell that no round has.

    A test graph is shown once to a cell of a round, whatever became of the record.
    """
    rounds, seen = (
        read_rounds(folder),
        {(look["round"], look["cell"]) for look in read_looks(folder)},
    )
    for cell in (cell for cell in cells if is_guarded(cell)):
        known = _round_of(rounds, cell)
        if known is None:
            lacking = [(round_.lacks(cell), round_) for round_ in rounds]
            changed = next((round_.name for what, round_ in lacking if what == "default"), None)
            reason = f"its defaults were others in the round {changed!r}" if changed else ""
            reason = reason or f"no round has this {lacking[-1][0]}"
            raise SettingsError(
                f"{cell.name} would be shown meta-test, and is not registered: {reason}. State "
                "what you expect before you look: --claim 'TEXT' (with --list, nothing is run yet)"
            )
        if _name(cell) in TEST_GRAPHS and (known.name, cell.name) in seen:
            raise SettingsError(
                f"{cell.name} was shown its test graph in the round {known.name!r} already"
            )


def _round_of(rounds: Sequence[Round], cell: Cell) -> Round | None:
    return next((known for known in reversed(rounds) if not known.lacks(cell)), None)


def log_look(folder: Path, record: Record) -> None:
    """Keep that a cell was shown meta-test, where that is guarded."""
    if not is_guarded(record.cell):
        return
    known = _round_of(read_rounds(folder), record.cell)
    look = {
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "round": known.name if known else None,
        "cell": record.cell.name,
        "commit": record.commit,
    }
    with (folder / LOOKS).open("a", encoding="utf-8") as file:
        file.write(json.dumps(look) + "\n")


def read_looks(folder: Path) -> list[dict[str, Any]]:
    """The looks that a folder keeps, in their order."""
    path = folder / LOOKS
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    try:
        looks = [json.loads(line) for line in lines]
        return [{key: look[key] for key in ("time", "round", "cell", "commit")} for look in looks]
    except (TypeError, ValueError, KeyError) as error:
        raise DataError(f"{path} does not hold looks: {error!r}") from None

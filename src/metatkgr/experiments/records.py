"""The record of a cell: what it holds, how it is written, and what is refused when it is read."""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from metatkgr.errors import DataError, MetaTKGRError
from metatkgr.evaluation.evaluator import SUBSETS
from metatkgr.evaluation.filters import FILTERS
from metatkgr.experiments.cells import Cell, Row
from metatkgr.experiments.published import METRICS
from metatkgr.files import read_json, write_text

__all__ = [
    "SCALE",
    "FloatArray",
    "Record",
    "check_result",
    "pack",
    "unpack",
]

FloatArray = npt.NDArray[np.float64]
SCALE = 250
"""An entity's mean reciprocal rank is kept in so many parts of 1: one byte. Rounding moves the mean
over thousands of entities by less than 0.0001."""


@dataclass(frozen=True, eq=False)
class Record:
    """One evaluation on meta-test, and how it came about."""

    cell: Cell
    result: dict[str, Any]
    """The object of ``metatkgr evaluate --json``, and more."""
    training: dict[str, Any] = field(default_factory=dict)
    """Seconds, epochs and curves; empty where nothing was trained, or it is not known."""
    settings: dict[str, Any] = field(default_factory=dict)
    """All settings of the model."""
    versions: dict[str, str] = field(default_factory=dict)
    """What computed."""
    hardware: str = ""

    @property
    def dataset(self) -> str:
        """As the facts are called."""
        return str(self.result.get("dataset", self.cell.dataset))

    @property
    def row(self) -> Row:
        """The row of a table that it belongs to."""
        return self.cell.row

    def values(self, filter: str = "static", subset: str = "all") -> list[float] | None:
        """MRR and Hits@1, 3, 10; None where the subset is empty."""
        metrics = self.result["metrics"][filter][subset]
        return None if metrics["mrr"] is None else [float(metrics[key]) for key in METRICS]

    def per_entity(self, filter: str = "static") -> tuple[FloatArray, FloatArray] | None:
        """(n,) sums of reciprocal ranks and numbers of queries of the entities, if kept."""
        packed = self.result.get("per_entity")
        if not packed:
            return None
        size = unpack(packed["queries"]).astype(np.float64)
        return unpack(packed[filter]) / SCALE * size, size

    def to_json(self) -> dict[str, Any]:
        """As a dictionary of JSON's types."""
        return {
            "cell": self.cell.to_json(),
            "settings": self.settings,
            "versions": self.versions,
            "hardware": self.hardware,
            "training": self.training or None,
            "result": self.result,
        }

    @classmethod
    def from_json(cls, content: Any) -> Record:
        """What :meth:`to_json` gave.

        Raises:
            MetaTKGRError: it names what is wrong.
        """
        _need(isinstance(content, Mapping), "it is no object")
        _need(isinstance(content.get("cell"), Mapping), "its 'cell' is no object")
        cell, result = Cell.from_json(content["cell"]), content.get("result")
        _need("training" in content, "it has no 'training'")
        _check_training(content["training"])
        for key in ("settings", "versions"):
            _need(isinstance(content.get(key, {}), Mapping), f"its {key!r} are no object")
        check_result(result)
        return cls(
            cell,
            dict(result),
            training=dict(content["training"] or {}),
            settings=dict(content.get("settings", {})),
            versions=dict(content.get("versions", {})),
            hardware=str(content.get("hardware", "")),
        )

    @classmethod
    def read(cls, path: Path) -> Record:
        """The record in a file."""
        try:
            return cls.from_json(read_json(path))
        except MetaTKGRError as error:
            raise DataError(f"{path} is not the record of a cell: {error}; remove it") from None

    def write(self, path: Path) -> None:
        """One line for each part of the record and of its result: small, and fit for diff."""
        content = self.to_json()
        dump = partial(json.dumps, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
        parts = [f' "{key}": {dump(value)}' for key, value in content.items() if key != "result"]
        inner = [f'  "{key}": {dump(value)}' for key, value in self.result.items()]
        parts.append(' "result": {\n' + ",\n".join(inner) + "\n }")
        write_text(path, "{\n" + ",\n".join(parts) + "\n}\n")


def pack(values: npt.ArrayLike) -> str:
    """Whole numbers as text: little-endian 32 bits, bytes of equal weight together, zlib, base64.

    Args:
        values: (n,) integers.
    """
    plain = np.asarray(values, "<i4")
    # High bytes are nearly all zero; side by side they take no room.
    planes = plain.view(np.uint8).reshape(-1, 4).T.tobytes()
    return base64.b64encode(zlib.compress(planes, 9)).decode("ascii")


def unpack(text: str) -> npt.NDArray[np.int64]:
    """What :func:`pack` was given."""
    try:
        planes = np.frombuffer(zlib.decompress(base64.b64decode(text, validate=True)), np.uint8)
        plain = np.ascontiguousarray(planes.reshape(4, -1).T).view("<i4").reshape(-1)
    except (ValueError, TypeError, zlib.error) as error:
        raise DataError(f"packed numbers cannot be read: {error}") from None
    return plain.astype(np.int64)


def check_result(result: Any) -> None:
    """Refuse an object of ``metatkgr evaluate --json`` in which a table would miss something.

    Raises:
        DataError: it names what is wrong.
    """
    _need(isinstance(result, Mapping), "the result is no object")
    _need(isinstance(result.get("dataset"), str), "the result's 'dataset' is no text")
    metrics = result.get("metrics")
    _need(isinstance(metrics, Mapping), "the result's 'metrics' are no object")
    _need(all(name in metrics for name in FILTERS), "the result's 'metrics' lack a filter")
    for name, subsets in metrics.items():
        _need(isinstance(subsets, Mapping), f"the metrics under {name!r} are no object")
        for subset in SUBSETS:
            values = subsets.get(subset)
            place = f"the metrics under {name!r}, {subset!r}"
            _need(isinstance(values, Mapping), f"{place} are no object")
            _need("mrr" in values, f"{place} have no 'mrr'")
            if values["mrr"] is not None:
                for key in METRICS:
                    _need(_is_number(values.get(key)), f"{place} have no number for {key!r}")
    _check_calibration(result.get("calibration"))
    packed = result.get("per_entity")
    _need(packed is None or isinstance(packed, Mapping), "its 'per_entity' is no object")
    if packed:
        _need({*FILTERS, "queries"} <= set(packed), "its 'per_entity' lacks a column")
        sizes = {len(unpack(text)) for text in packed.values()}
        _need(len(sizes) == 1, "the columns of its 'per_entity' differ in length")


def _check_training(training: Any) -> None:
    _need(training is None or isinstance(training, Mapping), "its 'training' is no object")
    if training:
        for key in ("epochs", "seconds"):
            _need(_is_number(training.get(key)), f"its training's {key!r} is no number")
        best = training.get("validation_mrr")
        _need(best is None or _is_number(best), "its training's 'validation_mrr' is no number")
        curves = training.get("curve")
        _need(isinstance(curves, list), "its training's 'curve' is no list")
        _need(all(isinstance(curve, Mapping) for curve in curves), "a curve is no object")


def _check_calibration(found: Any) -> None:
    if found is None:
        return
    _need(isinstance(found, Mapping), "its 'calibration' is no object")
    for part, keys in (("fitted", ("ece",)), ("meta-test", ("ece", "stated", "correct"))):
        values = found.get(part) or {}
        _need(isinstance(values, Mapping), f"its calibration's {part!r} is no object")
        for key in keys:
            known = values.get(key)
            _need(known is None or _is_number(known), f"the {key!r} of {part!r} is no number")


def _need(holds: bool, otherwise: str) -> None:
    if not holds:
        raise DataError(otherwise)


def _is_number(value: Any) -> bool:
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    # Neither NaN nor infinity nor an integer too large for a float.
    return number and abs(value) < 1e300

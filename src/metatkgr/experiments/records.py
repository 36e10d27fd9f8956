"""The record of a cell: what it holds, how it is written, and what is refused when it is read."""

from __future__ import annotations

import base64
import itertools
import json
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from metatkgr.data.answers import FILTERS
from metatkgr.errors import DataError, MetaTKGRError
from metatkgr.evaluation.evaluator import SUBSETS
from metatkgr.experiments.cells import Cell, Row
from metatkgr.experiments.published import METRICS
from metatkgr.files import read_json, write_text

__all__ = [
    "PARTS",
    "FloatArray",
    "Record",
    "check_result",
    "entity_sums",
    "pack",
    "unpack",
]

FloatArray = npt.NDArray[np.float64]
PARTS = 10_000
"""An entity's mean reciprocal rank is kept in so many parts of 1: two bytes."""
_OLD_PARTS = 250
"""Of records that do not say how many parts."""

_ECE = {"ece": (float,)}
_RESULT: dict[str, Any] = {
    "dataset": str,
    "metrics": {name: {subset: {} for subset in SUBSETS} for name in FILTERS},
    "per_entity": (dict.fromkeys((*FILTERS, "queries"), str),),
    "calibration": (
        {
            "fitted": (_ECE,),
            "meta-test": (_ECE | {"stated": (float,), "correct": (float,)},),
        },
    ),
}
_RECORD: dict[str, Any] = {
    "cell": {},
    "settings": ({},),
    "versions": ({},),
    "training": ({"epochs": float, "seconds": float, "validation_mrr": (float,), "curve": [{}]},),
    "result": _RESULT,
}
"""What tables, tests and figures need of a record: a type (float: any finite number), an object
with at least these keys, a list of such things; in a tuple: it may be missing."""


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
    commit: str = ""
    """The code that computed, a plus sign behind it where files had been changed since. Before
    records said it: 'kept in COMMIT', by which the record came into the repository."""

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
        return entity_sums(self.result, filter)

    def to_json(self) -> dict[str, Any]:
        """As a dictionary of JSON's types."""
        return {
            "cell": self.cell.to_json(),
            "settings": self.settings,
            "versions": self.versions,
            "hardware": self.hardware,
            "commit": self.commit,
            "training": self.training or None,
            "result": self.result,
        }

    @classmethod
    def from_json(cls, content: Any) -> Record:
        """What :meth:`to_json` gave.

        Raises:
            MetaTKGRError: it names what is wrong.
        """
        _check(content, _RECORD, "it")
        _need("training" in content, "it has no 'training'")
        cell, result = Cell.from_json(content["cell"]), content["result"]
        check_result(result)
        return cls(
            cell,
            dict(result),
            training=dict(content["training"] or {}),
            settings=dict(content.get("settings") or {}),
            versions=dict(content.get("versions") or {}),
            hardware=str(content.get("hardware", "")),
            commit=str(content.get("commit", "")),
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


def entity_sums(result: Mapping[str, Any], filter: str) -> tuple[FloatArray, FloatArray] | None:
    """(n,) sums of reciprocal ranks and numbers of queries of the entities, if a result has them.

    What rounding to parts has moved is spread over all queries: the sums add up to the MRR that
    tables tell.
    """
    packed = result.get("per_entity")
    if not packed:
        return None
    size, mrr = (
        unpack(packed["queries"]).astype(np.float64),
        result["metrics"][filter]["all"]["mrr"],
    )
    if mrr is None or not size.sum():
        return None
    sums = unpack(packed[filter]) / packed.get("parts", _OLD_PARTS) * size
    away = mrr * size.sum() - sums.sum()
    return sums + away * size / size.sum(), size


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
    """Refuse a result in which a table would miss something.

    Raises:
        DataError: it names what is wrong.
    """
    _check(result, _RESULT, "result")
    for name, subset in itertools.product(FILTERS, SUBSETS):
        values, key = result["metrics"][name][subset], f"result.metrics.{name}.{subset}"
        _need("mrr" in values, f"{key} has no 'mrr'")
        if values["mrr"] is not None:  # else the subset is empty
            _check(values, dict.fromkeys(METRICS, float), key)
    if packed := result.get("per_entity"):
        sizes = {len(unpack(packed[key])) for key in (*FILTERS, "queries")}
        _need(len(sizes) == 1, "the columns of result.per_entity differ in length")
        parts = packed.get("parts", _OLD_PARTS)
        _need(type(parts) is int and parts > 0, "result.per_entity.parts is no number above 0")


def _check(value: Any, shape: Any, name: str) -> None:
    """Refuse a value that has not the shape; see ``_RECORD``."""
    if isinstance(shape, tuple):
        if value is not None and value != {}:
            _check(value, shape[0], name)
    elif isinstance(shape, dict):
        _need(isinstance(value, Mapping), f"{name} is no object")
        for key, inner in shape.items():
            _check(value.get(key), inner, f"{name}.{key}".removeprefix("it."))
    elif isinstance(shape, list):
        _need(isinstance(value, list), f"{name} is no list")
        for item in value:
            _check(item, shape[0], f"what is in {name}")
    elif shape is float:
        number = isinstance(value, int | float) and not isinstance(value, bool)
        # Neither NaN nor infinity nor an integer too large for a float.
        _need(number and abs(value) < 1e300, f"{name} is no number")
    else:
        _need(isinstance(value, shape), f"{name} is of another type than {shape.__name__}")


def _need(holds: bool, otherwise: str) -> None:
    if not holds:
        raise DataError(otherwise)

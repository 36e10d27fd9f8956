"""What a record or a result must hold for tables, tests and figures to be made from it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from metatkgr.errors import DataError
from metatkgr.evaluation.filters import FILTERS
from metatkgr.experiments.compact import unpack
from metatkgr.experiments.published import METRICS

__all__ = ["check_record", "check_result"]

_SUBSETS = ("all", "novel", "later")


def check_record(record: Any) -> None:
    """Refuse a record of a cell that lacks something or has it in another form.

    Raises:
        DataError: it names what is wrong.
    """
    _need(isinstance(record, Mapping), "it is no object")
    _need(isinstance(record.get("cell"), Mapping), "its 'cell' is no object")
    training = record.get("training")
    _need("training" in record, "it has no 'training'")
    _need(training is None or isinstance(training, Mapping), "its 'training' is no object")
    if training:
        for key in ("epochs", "seconds"):
            _need(_is_number(training.get(key)), f"its training's {key!r} is no number")
        best = training.get("validation_mrr")
        _need(best is None or _is_number(best), "its training's 'validation_mrr' is no number")
        curves = training.get("curve")
        _need(isinstance(curves, list), "its training's 'curve' is no list")
        _need(all(isinstance(curve, Mapping) for curve in curves), "a curve is no object")
    check_result(record.get("result"))


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
        for subset in _SUBSETS:
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

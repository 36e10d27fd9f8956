"""The numbers that others print (``published.txt``): to compare with, never results of ours.

Of the paper: static filter, means over five runs. Sources and what does not fit together in them:

- Means and deviations are those of the detailed tables. The main tables print the same means but
  for one: MetaTKGR, ICEWS18, 2-shot has the MRR .301 there and .300 in the detailed table.
- RE-GCN is in the main tables only: no deviations, and for 1 and 2 shots only MRR and H@10.
- One number has four digits, .3071 (MetaTKGR, WIKI, 1-shot, H@3); the others have three.
- The table of the datasets counts 281,205 facts for ICEWS18; the public files hold 468,558.

Of the field's standard protocol, the sources stand below its tables. Of CEN on tkgl-yago it is
the higher of two.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

__all__ = ["CROSS_SHOT", "EXTRAPOLATION", "METRICS", "PUBLISHED", "Printed"]

METRICS = ("mrr", "hits@1", "hits@3", "hits@10")
"""The order of the four numbers of a row."""
_TEXT = Path(__file__).with_name("published.txt").read_text(encoding="utf-8")


@dataclass(frozen=True)
class Printed:
    """A row of a table for one dataset."""

    mean: tuple[float | None, ...]
    """In the order of ``METRICS``; None where nothing is printed."""
    std: tuple[float, ...] | None = None


def _rows(table: str, keys: int) -> list[tuple[list[str], tuple[float | None, ...]]]:
    """The rows of a table of the file: the words that say of what they are, and the numbers."""
    found = re.search(rf"^\[{table}:.*\]\n((?:.+\n)+)", _TEXT, re.MULTILINE)
    words = [row.split() for row in found[1].splitlines()] if found else []
    return [
        (row[:keys], tuple(None if number == "-" else float(number) for number in row[keys:]))
        for row in words
    ]


PUBLISHED = {
    (model, dataset, int(shots)): Printed(
        numbers[:4], tuple(std for std in numbers[4:] if std is not None) or None
    )
    for (shots, model, dataset), numbers in _rows("few-shot", 3)
}
"""By model, dataset and shots."""

CROSS_SHOT = {(int(shots), test): numbers for (shots, test), numbers in _rows("cross-shot", 2)}
"""MRR, H@1 and H@10 of MetaTKGR on YAGO, by shots of the training and of the test."""

EXTRAPOLATION: dict[str, dict[str, tuple[float | None, ...]]] = {}
"""What models other than ours reach by the standard protocol, by dataset and model."""
for (_model, _dataset), _numbers in _rows("extrapolation", 2):
    EXTRAPOLATION.setdefault(_dataset, {})[_model.replace("_", " ")] = tuple(
        None if _number is None else _number / 100 for _number in _numbers
    )

"""A folder of facts after each of several appends, by the command."""

from __future__ import annotations

import random
from functools import partial
from typing import Any

from goldens.cells import Cell
from goldens.corpus_cells import ingested, written

__all__ = ["cells"]

_FIRST = "s,r,o,t\nann,knows,bob,2020-01-01\nbob,likes,cleo,2020-01-03\nann,is,cleo,2020-01-05\n"
_MORE: dict[str, list[str]] = {
    "later": ["dan,knows,bob,2020-01-07\nann,knows,dan,2020-01-09\n"],
    "same-last-step": ["cleo,is,ann,2020-01-05\nann,is,cleo,2020-01-05\n"],
    "earlier": ["dan,knows,ann,2019-12-28\nbob,knows,ann,2020-01-03\n"],
    "between-steps": ["dan,knows,ann,2020-01-02\n"],
    "new-names": ["é,greets,x y,2020-01-07\nann ,greets,O'Neil,2020-01-07\n"],
    "only-repeated": ["ann,knows,bob,2020-01-01\nbob,likes,cleo,2020-01-03\n"],
    "other-unit": ["dan,knows,ann,2020\n", "dan,knows,ann,2020-01-07T05:00\n"],
    "bad-rows": ["dan,knows,ann,2020-01-07\nnobody,knows\n,is,ann,2020-01-08\n"],
    "no-rows": ["s,r,o,t\n"],
    "several": [
        "dan,knows,bob,2020-01-07\n",
        "eve,likes,dan,2020-01-07\ndan,knows,bob,2020-01-07\n",
        "eve,likes,fay,2020-01-06\nann,knows,bob,2020-01-01\n",
        "gus,greets,eve,2020-01-11\n",
    ],
}


def cells() -> list[Cell]:
    """One for each story."""
    found = [Cell(f"appends/{name}", partial(_grown, more)) for name, more in _MORE.items()]
    skip = ["--skip-bad-rows"]
    found.append(Cell("appends/bad-rows-skipped", partial(_grown, _MORE["bad-rows"], skip)))
    found.append(Cell("appends/compacted", partial(_grown, _MORE["several"], ["--compact"])))
    found.append(Cell("appends/steps", partial(_grown, ["a,r,b,30\n", "c,q,a,25\n"], [], _STEPS)))
    found.append(Cell("appends/large", _large))
    return found


_STEPS = "a,r,b,0\nb,r,c,10\na,r,b,20\n"


def _grown(more: list[str], words: list[str] | None = None, first: str = _FIRST) -> dict[str, Any]:
    """The folder at first and after each append."""
    files = {"first.csv": first.encode()}
    files |= {f"more{number}.csv": text.encode() for number, text in enumerate(more)}
    with written(files):
        found = {"first": ingested(["first.csv", "--out", "folder"], "folder")}
        for number in range(len(more)):
            said = [f"more{number}.csv", "--append", "folder", *(words or [])]
            found[f"append {number}"] = ingested(said, "folder")
    return found


def _large() -> dict[str, Any]:
    """Thousands of rows in parts that overlap in time and names."""
    rng = random.Random("goldens/appends")
    parts = []
    for number in range(4):
        people = [f"p{rng.randrange(200 * (number + 1))}" for _ in range(3000)]
        rows = [
            f"{who},k{rng.randrange(5 + number)},p{rng.randrange(300)},"
            f"{7 * (100 * number + rng.randrange(150 if number < 3 else 500))}\n"
            for who in people
        ]
        parts.append("".join(rows + rng.sample(rows, 100)))
    return _grown(parts[1:], first=parts[0])

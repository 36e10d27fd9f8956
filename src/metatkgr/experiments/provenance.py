"""How the numbers of the report were made: commands, seeds, versions, hardware and settings."""

from __future__ import annotations

import json
from collections import Counter

from metatkgr.experiments.tables import Runs, table

__all__ = ["provenance"]

_COMMANDS = """\
```text
metatkgr reproduce --out OUT --workers N            every cell that is missing, then this report
metatkgr reproduce 3-shot --out OUT --models NAME   one table, one model
python -m metatkgr.experiments.outcomes OUT/cells results
python -m metatkgr.experiments.report results docs
```

A single cell by hand, and its evaluation:

```text
metatkgr train DATASET --model NAME --preset P --shots K --visibility V --seed N --out RUN
metatkgr evaluate RUN --json -
metatkgr evaluate DATASET --model RULE --shots K --visibility V --json -
```"""


def provenance(runs: Runs) -> list[str]:
    """Commands, seeds, versions, hardware and settings."""
    records = [outcome.record for outcome in runs.outcomes if outcome.record]
    lines = ["", "## How these numbers were made", "", *_COMMANDS.splitlines()]
    older = [o for o in runs.outcomes if not o.record]
    if older:
        versions = ", ".join(sorted({str(o.result.get("version", "?")) for o in older}))
        lines += [
            "",
            f"{len(older)} of the {len(runs.outcomes)} evaluations are files of `metatkgr evaluate "
            f"--json` (metatkgr {versions}); they",
            "keep no sums of entities, so they take part in no test of significance.",
        ]
    for title, counted in (
        ("Versions", [", ".join(f"{k} {v}" for k, v in r["versions"].items()) for r in records]),
        ("Hardware", [r["hardware"] for r in records]),
    ):
        if counted:
            lines += ["", f"{title}:", ""]
            lines += [f"- {text} ({n} cells)" for text, n in sorted(Counter(counted).items())]
    rows = _settings_rows(runs)
    if rows:
        heads = ["model", "seeds", "seconds of training, 3-shot", "settings"]
        lines += [
            "",
            "Seeds, times and settings; cells of a grid share the hardware, so the times are",
        ]
        lines += ["no measure of a training alone:", "", *table(heads, rows)]
    return lines


def _settings_rows(runs: Runs) -> list[list[str]]:
    rows = []
    for row in sorted({o.row for o in runs.outcomes if o.record and o.training}):
        mine = [o for o in runs.outcomes if o.row == row and o.training]
        seeds = sorted({o.seed for o in mine})
        seconds = []
        for dataset in runs.datasets:
            spent = [o.training["seconds"] for o in runs.of(dataset, row, 3) if o.training]
            if spent:
                seconds.append(f"{dataset} {sum(spent) / len(spent):.0f}")
        different = {json.dumps(o.record["settings"], sort_keys=True) for o in mine}
        texts = [
            ", ".join(f"{key}={value}" for key, value in json.loads(text).items())
            for text in sorted(different)
        ]
        said = texts[0] if len(texts) == 1 else "; or: ".join(texts)
        rows.append([row.label, ", ".join(map(str, seeds)), ", ".join(seconds) or "–", f"`{said}`"])
    return rows

"""Check: ``cd tests && python -m goldens.check [FILE …]``; the committed records without FILE.

Every chosen cell is computed anew and laid beside its record. The exit code is 1 if any differs.
Without ``--all`` only the quick ones are looked at. ``--show`` prints what is computed now, which
beside the same of another checkout tells what has changed.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from goldens.running import add_choice, chosen, computed, read_records

_RECORDED = Path(__file__).parent / "recorded"
_MOST_SHOWN = 8


def differences(old: Any, new: Any, tolerance: float, where: str = "") -> Iterator[str]:
    """Lines that say what is not as it was."""
    if isinstance(old, dict) and isinstance(new, dict):
        for key in {**old, **new}:
            place = f"{where}.{key}" if where else str(key)
            if key not in old or key not in new:
                told = f"new: {new[key]!r}" if key in new else f"gone: {old[key]!r}"
                yield f"{place} is {told[:300]}"
            else:
                yield from differences(old[key], new[key], tolerance, place)
    elif isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        for at, (one, other) in enumerate(zip(old, new, strict=True)):
            yield from differences(one, other, tolerance, f"{where}[{at}]")
    elif isinstance(old, float) or isinstance(new, float):
        if not _close(old, new, tolerance):
            yield f"{where}: {old!r} -> {new!r}"
    elif old != new or type(old) is not type(new):
        yield f"{where}: {str(old)[:300]!r} -> {str(new)[:300]!r}"


def _close(old: Any, new: Any, tolerance: float) -> bool:
    if not all(isinstance(value, int | float) for value in (old, new)):
        return False
    return math.isclose(old, new, rel_tol=tolerance, abs_tol=tolerance)


def main() -> None:
    """Compare and tell."""
    parser = argparse.ArgumentParser(prog="python -m goldens.check", description=__doc__)
    parser.add_argument("files", nargs="*", type=Path, help="records; default: the committed ones")
    parser.add_argument("--all", action="store_true", help="also what takes long")
    parser.add_argument("--show", action="store_true", help="print what is computed now")
    add_choice(parser)
    options = parser.parse_args()
    if options.show:
        os.environ["GOLDENS_SHOW"] = "1"
    records: dict[str, Any] = {}
    for path in options.files or sorted(_RECORDED.glob("*.json")):
        records |= read_records(path)
    cells = chosen(options, everything=options.all)
    changed, skipped, took = [], [], 0.0
    for number, cell in enumerate(cells, 1):
        head = f"[{number}/{len(cells)}] {cell.name}"
        if cell.name not in records:
            skipped.append(f"{cell.name}: not recorded")
            continue
        value, seconds = computed(cell)
        took += seconds
        if value is None:
            skipped.append(f"{cell.name}: what it needs is not there")
            continue
        if options.show:
            print(json.dumps(value, indent=1, ensure_ascii=False))
        found = list(differences(records[cell.name], value, cell.tolerance))
        if "failed" in value:
            found = [value["failed"], *value["trace"]]
        if found:
            changed.append(cell.name)
        print(f"{head}: {'CHANGED' if found else 'same'} ({seconds:.1f} s)", flush=True)
        for line in found[:_MOST_SHOWN]:
            print(f"    {line}", flush=True)
        if len(found) > _MOST_SHOWN:
            print(f"    … and {len(found) - _MOST_SHOWN} more", flush=True)
    same = len(cells) - len(changed) - len(skipped)
    print(f"{same} same, {len(changed)} changed, {len(skipped)} skipped, {took:.0f} s of processor")
    for name in changed:
        print(f"  changed: {name}")
    if skipped and len(skipped) <= 20:
        print("\n".join(f"  skipped: {line}" for line in skipped))
    sys.exit(bool(changed))


if __name__ == "__main__":
    main()

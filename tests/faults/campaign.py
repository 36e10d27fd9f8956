"""Kill -9 at many random moments: ``make faults``, or ``python -m faults.campaign``.

Prints what was seen, and exits with 1 where anything was lost or differs.
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
import tempfile
import time
from dataclasses import asdict
from pathlib import Path

from faults.service_kills import kill_services, kill_workers
from faults.training_kills import kill_trainings
from metatkgr.version import __version__


def main() -> None:
    words = argparse.ArgumentParser(description=__doc__)
    words.add_argument("--points", type=int, default=50)
    words.add_argument("--seed", type=int, default=0)
    words.add_argument("--only", choices=("training", "service", "workers"))
    words.add_argument("--out", type=Path)
    given = words.parse_args()
    content: dict[str, object] = {}
    if given.only and given.out and given.out.exists():
        content = json.loads(given.out.read_text(encoding="utf-8"))
    content["seed"] = given.seed
    failed = False
    kinds = {"training": kill_trainings, "service": kill_services, "workers": kill_workers}
    for name, kill in kinds.items():
        if given.only not in (None, name):
            continue
        begin = time.perf_counter()
        with tempfile.TemporaryDirectory() as folder:
            seen = asdict(kill(Path(folder), given.points, given.seed))  # type: ignore[operator]
        content[name] = seen | {"seconds": round(time.perf_counter() - begin)}
        print(f"{name}: {content[name]}", flush=True)
        failed |= bool(seen["problems"]) or bool(seen.get("lost")) or bool(seen.get("half"))
    content |= {"metatkgr": __version__, "python": platform.python_version()}
    if given.out:
        given.out.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()

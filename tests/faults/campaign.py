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

import postgres_server
from faults.append_kills import kill_appends
from faults.service_kills import ServiceKills, kill_services, kill_workers
from faults.training_kills import kill_trainings
from metatkgr import __version__


def kill_workers_on_postgresql(folder: Path, points: int, seed: int) -> ServiceKills:
    """Kill one worker of two, again and again, while clients write to PostgreSQL."""
    if reason := postgres_server.why_not():
        return ServiceKills(problems=(f"not tried: {reason}",))
    with postgres_server.postgres() as url:
        return kill_workers(folder, points, seed, url)


_KINDS = {
    "training": kill_trainings,
    "service": kill_services,
    "workers": kill_workers,
    "workers_postgresql": kill_workers_on_postgresql,
    "appends": kill_appends,
}


def main() -> None:
    words = argparse.ArgumentParser(description=__doc__)
    words.add_argument("--points", type=int, default=50)
    words.add_argument("--seed", type=int, default=0)
    words.add_argument("--only", choices=sorted(_KINDS), nargs="+", default=sorted(_KINDS))
    words.add_argument("--out", type=Path)
    given = words.parse_args()
    content: dict[str, object] = {}
    if given.out and given.out.exists():  # what is not tried now stays
        content = json.loads(given.out.read_text(encoding="utf-8"))
    failed = False
    for name in given.only:
        begin = time.perf_counter()
        with tempfile.TemporaryDirectory() as folder:
            seen = asdict(_KINDS[name](Path(folder), given.points, given.seed))  # type: ignore[operator]
        spent = round(time.perf_counter() - begin)
        content[name] = seen | {"seed": given.seed, "seconds": spent}
        print(f"{name}: {content[name]}", flush=True)
        failed |= bool(seen["problems"]) or bool(seen.get("lost")) or bool(seen.get("half"))
    content |= {"metatkgr": __version__, "python": platform.python_version()}
    if given.out:
        given.out.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()

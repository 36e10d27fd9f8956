"""The repository's pages, made from ``results/``: ``docs/results.md``, its details, README's table.

``metatkgr reproduce --write-pages`` writes them, ``metatkgr reproduce --check`` makes them anew and
tells what differs from the files.
"""

from __future__ import annotations

from difflib import unified_diff
from pathlib import Path

from metatkgr.data import catalog
from metatkgr.errors import DataError
from metatkgr.experiments.report import WORDS, write_dataset, write_figures
from metatkgr.experiments.results import Results
from metatkgr.experiments.sections import FIRST, page_lines
from metatkgr.experiments.sections.overview import readme_results
from metatkgr.experiments.suite import DATASETS
from metatkgr.files import write_text

__all__ = ["differences", "pages_of", "write_pages"]

_ORIGIN = """\
Made from the files in `results/` by `make docs`; nothing here is typed by hand, and `metatkgr
reproduce --check` says whether it still is what the records give. What the words mean:
[protocol](protocol.md)."""
_EXTRAPOLATION = "extrapolation"
"""The page about the other protocol: words of few-shot tables do not go with it."""
_DETAILS = {
    "tables": "All tables: every metric, both filters, 1 to 3 shots, all and novel answers",
    "tests": "All tests: intervals, p-values, equivalence bounds",
    "ablations": "What each part of MetaTKGR and `evidence` is worth",
    _EXTRAPOLATION: "The field's standard protocol: rules and `evidence` beside published figures",
    "runs": "Datasets, figures, and how the numbers were made",
}
"""Pages in ``docs/results``, and what each is about."""
_BEGIN, _END = "<!-- made by metatkgr reproduce --write-pages -->", "<!-- end -->"


def pages_of(root: Path, results: Results) -> dict[Path, str]:
    """The text of every page of a checkout, by its file."""
    listed = [f"- [{about}](results/{name}.md)" for name, about in _DETAILS.items()]
    lines = ["# Results", "", *_ORIGIN.splitlines(), *page_lines(results, FIRST)]
    pages = {root / "docs" / "results.md": [*lines, "", "## Details", "", *listed]}
    for name, about in _DETAILS.items():
        head = [f"# {about}", "", "Beside the page of [results](../results.md).", ""]
        words = [] if name == _EXTRAPOLATION else WORDS.splitlines()
        pages[root / "docs" / "results" / f"{name}.md"] = [
            line.replace("](figures/", "](../figures/")
            for line in (*head, *words, *page_lines(results, name))
        ]
    readme = root / "README.md"
    before, begin, rest = readme.read_text(encoding="utf-8").partition(_BEGIN)
    _, end, after = rest.partition(_END)
    if not begin or not end:
        raise DataError(f"{readme} has no place for results: {_BEGIN} … {_END}")
    made = {path: "\n".join(text) + "\n" for path, text in pages.items()}
    inside = "\n".join(["", *readme_results(results), ""])
    return made | {readme: f"{before}{_BEGIN}{inside}{_END}{after}"}


def differences(root: Path, results: Results) -> list[str]:
    """What the files say and the records do not give, line by line."""
    told = []
    for path, made in pages_of(root, results).items():
        there = path.read_text(encoding="utf-8") if path.exists() else ""
        name = path.relative_to(root).as_posix()
        lines = unified_diff(
            there.splitlines(), made.splitlines(), f"{name}, as it is", "as records give", n=0
        )
        told += [line.rstrip("\n") for line in lines]
    return told


def write_pages(root: Path) -> list[Path]:
    """Count and draw the datasets that are at hand, draw the figures, write the pages."""
    source, docs = root / "results", root / "docs"
    at_hand = [name for name in DATASETS if catalog.locate(name) is not None]
    written = [path for name in at_hand for path in write_dataset(name, source, docs)]
    results = Results.of_repository(source)
    written += write_figures(results, docs / "figures")
    for path, text in pages_of(root, results).items():
        write_text(path, text)
        written.append(path)
    return written

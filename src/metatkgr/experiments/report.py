"""Pages made from results and nothing else: the report of a grid, and the repository's own.

The report is one page in Markdown, and the same as one HTML file. The repository's pages are
``docs/results.md``, its details and README's table: ``metatkgr reproduce --write-pages`` writes
them, ``metatkgr reproduce --check`` makes them anew and tells what differs from the files.
"""

from __future__ import annotations

import base64
import html
import re
from collections.abc import Iterable
from difflib import unified_diff
from pathlib import Path
from urllib.parse import unquote

from markdown_it import MarkdownIt

from metatkgr.data import catalog
from metatkgr.data.sources import load
from metatkgr.data.statistics import DatasetStatistics
from metatkgr.errors import DataError
from metatkgr.experiments.dataset_figures import plot_dataset, save_figure
from metatkgr.experiments.results import Results
from metatkgr.experiments.sections import FIRST, drawings, page_lines, written
from metatkgr.experiments.sections.overview import readme_results
from metatkgr.experiments.suite import DATASETS
from metatkgr.files import write_json, write_text

__all__ = [
    "differences",
    "pages_of",
    "results_page",
    "to_html",
    "write_pages",
    "write_report",
]

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

_CSS = """
body{font:16px/1.5 system-ui,sans-serif;max-width:1200px;margin:2rem auto;padding:0 1rem;color:#111}
h1,h2,h3{line-height:1.2;margin-top:2rem}
.wide{overflow-x:auto}
table{border-collapse:collapse;font-size:13px;margin:1rem 0;font-variant-numeric:tabular-nums}
td,th{border:1px solid #ccc;padding:.25rem .5rem;text-align:left;white-space:nowrap}
thead{background:#eee}
img{max-width:100%;height:auto}
code,pre{font-family:ui-monospace,monospace;background:#f4f4f4}
pre{padding:.7rem;overflow-x:auto}
"""


def results_page(results: Results) -> str:
    """All sections as one page in Markdown."""
    lines = ["# Results", *written("origin"), *written("words")]
    return "\n".join(lines + page_lines(results)) + "\n"


def write_report(folder: Path, *, datasets: Iterable[str] = ()) -> list[Path]:
    """Write ``results.md``, ``results.html`` and ``figures/`` into the folder of a grid.

    Args:
        folder: where the results are, and where the report goes.
        datasets: whose statistics are counted and figures drawn anew; they have to be at hand.

    Returns:
        The files written.
    """
    written = [path for name in datasets for path in _write_dataset(name, folder, folder)]
    results = Results.read(folder)
    written += _write_figures(results, folder / "figures")
    page = results_page(results)
    write_text(folder / "results.md", page)
    write_text(folder / "results.html", to_html(page, folder))
    return [*written, folder / "results.md", folder / "results.html"]


def _write_figures(results: Results, folder: Path) -> list[Path]:
    """Draw all that can be drawn, each as SVG and PNG; returns the files."""
    written = []
    for drawing in drawings(results):
        figure = drawing.draw()
        paths = [folder / f"{drawing.name}.{kind}" for kind in ("svg", "png")]
        written += [save_figure(figure, path) for path in paths]
    return written


def _write_dataset(name: str, source: Path, out: Path) -> list[Path]:
    """Statistics and figures of one dataset, below ``source`` and ``out``; returns the files."""
    facts = load(name)
    path = source / "datasets" / f"{facts.name}.json"
    write_json(path, DatasetStatistics.of(facts).to_json())
    drawn = plot_dataset(facts, out / "figures")
    return [path, *(file.rename(file.with_name(f"{facts.name}-{file.name}")) for file in drawn)]


def pages_of(root: Path, results: Results) -> dict[Path, str]:
    """The text of every page of a checkout, by its file."""
    listed = [f"- [{about}](results/{name}.md)" for name, about in _DETAILS.items()]
    lines = ["# Results", *written("page-origin"), *page_lines(results, FIRST)]
    pages = {root / "docs" / "results.md": [*lines, "", "## Details", "", *listed]}
    for name, about in _DETAILS.items():
        head = [f"# {about}", "", "Beside the page of [results](../results.md)."]
        words = [""] if name == _EXTRAPOLATION else written("words")
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
    differing = []
    for path, made in pages_of(root, results).items():
        there = path.read_text(encoding="utf-8") if path.exists() else ""
        name = path.relative_to(root).as_posix()
        lines = unified_diff(
            there.splitlines(), made.splitlines(), f"{name}, as it is", "as records give", n=0
        )
        differing += [line.rstrip("\n") for line in lines]
    return differing


def write_pages(root: Path) -> list[Path]:
    """Count and draw the datasets that are at hand, draw the figures, write the pages."""
    source, docs = root / "results", root / "docs"
    at_hand = [name for name in DATASETS if catalog.locate(name) is not None]
    written = [path for name in at_hand for path in _write_dataset(name, source, docs)]
    results = Results.of_repository(source)
    written += _write_figures(results, docs / "figures")
    for path, text in pages_of(root, results).items():
        write_text(path, text)
        written.append(path)
    return written


def to_html(markdown: str, folder: Path) -> str:
    """One page: styles inside, images of ``folder`` inside too."""
    title = next((line[2:] for line in markdown.splitlines() if line.startswith("# ")), "Results")
    content = MarkdownIt("commonmark", {"html": False}).enable("table").render(markdown)
    content = content.replace("<table>", '<div class="wide"><table>')
    content = content.replace("</table>", "</table></div>")
    content = re.sub(
        r'<img src="([^"]*)" alt="([^"]*)" />', lambda image: _image(image, folder), content
    )
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta name="viewport" content="width=device-width">'
        f"<title>{html.escape(title)}</title><style>{_CSS}</style></head>\n"
        f"<body>\n{content}</body></html>\n"
    )


def _image(image: re.Match[str], folder: Path) -> str:
    path = folder / unquote(html.unescape(image[1]))
    if not path.is_file():
        return f"<i>{image[2]}</i>"
    kind = {".svg": "svg+xml"}.get(path.suffix, path.suffix[1:])
    data = base64.b64encode(path.read_bytes()).decode("ascii")
    return f'<img alt="{image[2]}" src="data:image/{kind};base64,{data}">'

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

from metatkgr.data import catalog
from metatkgr.data.sources import load
from metatkgr.data.statistics import DatasetStatistics
from metatkgr.errors import DataError
from metatkgr.experiments.dataset_figures import plot_dataset, save_figure
from metatkgr.experiments.results import Results
from metatkgr.experiments.sections import FIRST, drawings, page_lines
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

_ORIGIN = """\
Made by `metatkgr reproduce` from the cells in this folder. Cells of tiny trainings (`--quick`) show
that everything runs; their numbers mean nothing."""
_WORDS = """\
Split: meta-test. Cells: MRR / H@1 / H@3 / H@10, where nothing else is said; learned models: means
(± standard deviations) over seeds; rules have no randomness, one run of each. In brackets behind
our number: the published one of the same model, and ▲ ours is higher by more than the published
standard deviation, = within it, ▼ lower by more. Bold: above the published MetaTKGR. An en dash: no
run yet. †: settings of the row have changed since it was run."""

_PAGE_ORIGIN = """\
Made from the files in `results/` by `make docs`; nothing here is typed by hand, and `metatkgr
reproduce --check` says whether it still is what the records give. What the words mean:
[protocol](protocol.md)."""
_EXTRAPOLATION = "extrapolation"
"""The page about the other protocol: words of few-shot tables do not go with it."""
_DETAILS = {
    "tables": "All tables: every metric, both filters, 1 to 3 shots, all and novel answers",
    "tests": "All tests: intervals, p-values, equivalence bounds",
    "ablations": "What each part of MetaTKGR and `evidence` is worth",
    _EXTRAPOLATION: "The field's standard protocol: our rows beside published figures",
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
    lines = ["# Results", "", *_ORIGIN.splitlines(), "", *_WORDS.splitlines()]
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
    lines = ["# Results", "", *_PAGE_ORIGIN.splitlines(), *page_lines(results, FIRST)]
    pages = {root / "docs" / "results.md": [*lines, "", "## Details", "", *listed]}
    for name, about in _DETAILS.items():
        head = [f"# {about}", "", "Beside the page of [results](../results.md).", ""]
        words = [] if name == _EXTRAPOLATION else _WORDS.splitlines()
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
    """One page: styles inside, images of ``folder`` inside too.

    Headings, paragraphs, lists, tables, fenced code, images, links, bold and code are understood.
    """
    lines = markdown.splitlines()
    title = next((line[2:] for line in lines if line.startswith("# ")), "Results")
    body: list[str] = []
    start = 0
    while start < len(lines):
        line = lines[start]
        end = start + 1
        if line.startswith("```"):
            while end < len(lines) and not lines[end].startswith("```"):
                end += 1
            body.append(f"<pre>{html.escape(chr(10).join(lines[start + 1 : end]))}</pre>")
            end += 1
        elif heading := re.match(r"(#+) (.*)", line):
            level = len(heading[1])
            body.append(f"<h{level}>{_inline(heading[2], folder)}</h{level}>")
        elif line.startswith("|"):
            while end < len(lines) and lines[end].startswith("|"):
                end += 1
            body.append(_table(lines[start:end], folder))
        elif line.startswith("- "):
            while end < len(lines) and re.match(r"- |  \S", lines[end]):
                end += 1
            items = re.split(r"\n- ", "\n".join(lines[start:end])[2:])
            listed = "".join(f"<li>{_inline(item, folder)}</li>" for item in items)
            body.append(f"<ul>{listed}</ul>")
        elif line.strip():
            while (
                end < len(lines) and lines[end].strip() and not re.match(r"[|#]|- |```", lines[end])
            ):
                end += 1
            body.append(f"<p>{_inline(chr(10).join(lines[start:end]), folder)}</p>")
        start = end
    content = "\n".join(body)
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta name="viewport" content="width=device-width">'
        f"<title>{html.escape(title)}</title><style>{_CSS}</style></head>\n"
        f"<body>\n{content}\n</body></html>\n"
    )


def _table(lines: list[str], folder: Path) -> str:
    rows = [[cell.strip() for cell in line.strip().strip("|").split(" | ")] for line in lines]
    head = "".join(f"<th>{_inline(cell, folder)}</th>" for cell in rows[0])
    body = "".join(
        "<tr>" + "".join(f"<td>{_inline(cell, folder)}</td>" for cell in row) + "</tr>"
        for row in rows[2:]
    )
    table = f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
    return f'<div class="wide">{table}</div>'


def _inline(text: str, folder: Path) -> str:
    text = html.escape(text, quote=False)
    text = text.replace("\\*", "*")
    text = re.sub(r"`([^`]+)`", r"<code>\1</code>", text)
    text = re.sub(r"\*\*(.+?)\*\*", r"<b>\1</b>", text)
    text = re.sub(r"!\[([^\]]*)\]\(([^)]+)\)", lambda match: _image(match, folder), text)
    return re.sub(r"\[([^\]]+)\]\(([^)]+)\)", r'<a href="\2">\1</a>', text)


def _image(match: re.Match[str], folder: Path) -> str:
    path = folder / match[2]
    alt = html.escape(match[1])
    if not path.is_file():
        return f"<i>{alt}</i>"
    kind = {".svg": "svg+xml"}.get(path.suffix, path.suffix[1:])
    data = base64.b64encode(path.read_bytes()).decode("ascii")
    return f'<img alt="{alt}" src="data:image/{kind};base64,{data}">'

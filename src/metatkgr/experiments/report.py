"""The report: one page in Markdown, and the same as one HTML file, all of it made from results."""

from __future__ import annotations

import base64
import html
import re
from collections.abc import Iterable
from pathlib import Path

from metatkgr.data.sources import load
from metatkgr.data.statistics import DatasetStatistics
from metatkgr.experiments.dataset_figures import plot_dataset, save_figure
from metatkgr.experiments.results import Results
from metatkgr.experiments.sections import drawings, page_lines
from metatkgr.files import write_json, write_text

__all__ = ["WORDS", "results_page", "to_html", "write_dataset", "write_figures", "write_report"]

_ORIGIN = """\
Made by `metatkgr reproduce` from the cells in this folder. Cells of tiny trainings (`--quick`) show
that everything runs; their numbers mean nothing."""
WORDS = """\
Split: meta-test. Cells: MRR / H@1 / H@3 / H@10, where nothing else is said; learned models: means
(± standard deviations) over seeds; rules have no randomness, one run of each. In brackets behind
our number: the published one of the same model, and ▲ ours is higher by more than the published
standard deviation, = within it, ▼ lower by more. Bold: above the published MetaTKGR. An en dash: no
run yet. †: settings of the row have changed since it was run."""

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
    lines = ["# Results", "", *_ORIGIN.splitlines(), "", *WORDS.splitlines()]
    return "\n".join(lines + page_lines(results)) + "\n"


def write_report(folder: Path, *, datasets: Iterable[str] = ()) -> list[Path]:
    """Write ``results.md``, ``results.html`` and ``figures/`` into the folder of a grid.

    Args:
        folder: where the results are, and where the report goes.
        datasets: whose statistics are counted and figures drawn anew; they have to be at hand.

    Returns:
        The files written.
    """
    written = [path for name in datasets for path in write_dataset(name, folder, folder)]
    results = Results.read(folder)
    written += write_figures(results, folder / "figures")
    page = results_page(results)
    write_text(folder / "results.md", page)
    write_text(folder / "results.html", to_html(page, folder))
    return [*written, folder / "results.md", folder / "results.html"]


def write_figures(results: Results, folder: Path) -> list[Path]:
    """Draw all that can be drawn, each as SVG and PNG; returns the files."""
    written = []
    for drawing in drawings(results):
        figure = drawing.draw()
        paths = [folder / f"{drawing.name}.{kind}" for kind in ("svg", "png")]
        written += [save_figure(figure, path) for path in paths]
    return written


def write_dataset(name: str, source: Path, out: Path) -> list[Path]:
    """Statistics and figures of one dataset, below ``source`` and ``out``; returns the files."""
    facts = load(name)
    path = source / "datasets" / f"{facts.name}.json"
    write_json(path, DatasetStatistics.of(facts).to_json())
    drawn = plot_dataset(facts, out / "figures")
    return [path, *(file.rename(file.with_name(f"{facts.name}-{file.name}")) for file in drawn)]


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

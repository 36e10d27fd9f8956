"""Markdown, as far as our own pages use it, as one HTML page that needs no other file."""

from __future__ import annotations

import base64
import html
import re
from pathlib import Path

__all__ = ["to_html"]

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


def to_html(markdown: str, folder: Path) -> str:
    """One page: styles inside, images of ``folder`` inside too.

    Headings, paragraphs, lists, tables, fenced code, images, links, bold and code are understood.
    """
    lines = markdown.splitlines()
    title = next((line[2:] for line in lines if line.startswith("# ")), "Results")
    body: list[str] = []
    place = 0
    while place < len(lines):
        line = lines[place]
        end = place + 1
        if line.startswith("```"):
            while end < len(lines) and not lines[end].startswith("```"):
                end += 1
            body.append(f"<pre>{html.escape(chr(10).join(lines[place + 1 : end]))}</pre>")
            end += 1
        elif heading := re.match(r"(#+) (.*)", line):
            level = len(heading[1])
            body.append(f"<h{level}>{_inline(heading[2], folder)}</h{level}>")
        elif line.startswith("|"):
            while end < len(lines) and lines[end].startswith("|"):
                end += 1
            body.append(_table(lines[place:end], folder))
        elif line.startswith("- "):
            while end < len(lines) and re.match(r"- |  \S", lines[end]):
                end += 1
            items = re.split(r"\n- ", "\n".join(lines[place:end])[2:])
            listed = "".join(f"<li>{_inline(item, folder)}</li>" for item in items)
            body.append(f"<ul>{listed}</ul>")
        elif line.strip():
            while (
                end < len(lines) and lines[end].strip() and not re.match(r"[|#]|- |```", lines[end])
            ):
                end += 1
            body.append(f"<p>{_inline(chr(10).join(lines[place:end]), folder)}</p>")
        place = end
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
    text = re.sub(r"!\[([^\]]*)\]\(([^)]+)\)", lambda found: _image(found, folder), text)
    return re.sub(r"\[([^\]]+)\]\(([^)]+)\)", r'<a href="\2">\1</a>', text)


def _image(found: re.Match[str], folder: Path) -> str:
    path = folder / found[2]
    alt = html.escape(found[1])
    if not path.is_file():
        return f"<i>{alt}</i>"
    kind = {".svg": "svg+xml"}.get(path.suffix, path.suffix[1:])
    data = base64.b64encode(path.read_bytes()).decode("ascii")
    return f'<img alt="{alt}" src="data:image/{kind};base64,{data}">'

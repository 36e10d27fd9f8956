"""The notebooks of the documents: run them, and show them as pages of the site.

``python -m studies.notebooks docs/notebooks/*.ipynb`` runs the cells of each from top to bottom, in
a folder that is thrown away, and writes what they print into the file. ``mkdocs.yml`` names this
module as a hook, which makes a page of each. A notebook is plain JSON: neither needs Jupyter.
"""

from __future__ import annotations

import ast
import contextlib
import io
import json
import os
import sys
import tempfile
from importlib import import_module
from pathlib import Path
from typing import Any

__all__ = ["execute", "markdown", "on_files", "on_page_markdown"]

Notebook = dict[str, Any]


def execute(notebook: Notebook) -> Notebook:
    """The notebook with the outputs of its cells, run in the present folder."""
    names: dict[str, Any] = {"__name__": "__main__"}
    cells = []
    for number, cell in enumerate(notebook["cells"]):
        if cell["cell_type"] == "code":
            output = _run("".join(cell["source"]), names, f"cell {number}")
            told = {"name": "stdout", "output_type": "stream", "text": _lines(output)}
            cell = cell | {"execution_count": None, "outputs": [told] if output else []}
        cells.append(cell)
    return notebook | {"cells": cells}


def _run(source: str, names: dict[str, Any], where: str) -> str:
    """What a cell prints; the value of a last expression is printed too."""
    tree = ast.parse(source, where)
    last = tree.body[-1] if tree.body else None
    shown = last.value if isinstance(last, ast.Expr) else None
    if shown is not None:
        tree.body.pop()
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(tree, where, "exec"), names)
        if shown is not None:
            value = eval(compile(ast.Expression(shown), where, "eval"), names)
            if value is not None:
                print(value)
    return printed.getvalue()


def _lines(text: str) -> list[str]:
    return text.splitlines(keepends=True)


def markdown(notebook: Notebook) -> str:
    """The notebook as a page."""
    parts = []
    for cell in notebook["cells"]:
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            parts.append(source)
            continue
        parts.append(f"```python\n{source}\n```")
        printed = "".join(line for output in cell["outputs"] for line in output["text"])
        if printed:
            parts.append(f"```text\n{printed.rstrip()}\n```")
    return "\n\n".join(parts) + "\n"


def on_files(files: Any, config: Any) -> Any:
    """Called by mkdocs: beside each notebook a page of the same name."""
    generated = import_module("mkdocs.structure.files").File.generated
    for path in sorted(Path(config["docs_dir"]).glob("notebooks/*.ipynb")):
        text = markdown(json.loads(path.read_text(encoding="utf-8")))
        files.append(generated(config, f"notebooks/{path.stem}.md", content=text))
    return files


def on_page_markdown(text: str, **_: Any) -> str:
    """Called by mkdocs: links to notebooks lead to their pages."""
    return text.replace(".ipynb)", ".md)")


def _write(path: Path) -> None:
    notebook = json.loads(path.read_text(encoding="utf-8"))
    here = Path.cwd()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        try:
            executed = execute(notebook)
        finally:
            os.chdir(here)
    path.write_text(json.dumps(executed, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    for name in sys.argv[1:]:
        _write(Path(name).resolve())

"""What the documents say can be run is run, and what they show is made from the results."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from command_line import Run
from metatkgr.data import catalog
from metatkgr.experiments.outcomes import read_outcomes
from metatkgr.experiments.report import read_statistics, results_page

ROOT = Path(__file__).parent.parent.parent
DOCUMENTS = sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").glob("*.md")])


def blocks(document: Path, language: str) -> list[str]:
    text = document.read_text(encoding="utf-8")
    return re.findall(rf"^```{language}\n(.*?)^```", text, flags=re.MULTILINE | re.DOTALL)


def commands(document: Path) -> list[str]:
    lines = "\n".join(blocks(document, "sh")).splitlines()
    return [line for line in lines if line.startswith("metatkgr ")]


WITH_COMMANDS = [document for document in DOCUMENTS if commands(document)]
WITH_PYTHON = [document for document in DOCUMENTS if blocks(document, "python")]


def absent(text: str) -> bool:
    """Whether a command needs a published dataset that is not on this machine."""
    named = [name for name in catalog.entries() if re.search(rf"\b{name}\b", text)]
    return any(catalog.locate(name) is None for name in named)


@pytest.mark.parametrize("document", WITH_COMMANDS, ids=lambda path: path.stem)
def test_every_documented_command_runs(
    document: Path, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if folder := os.environ.get("METATKGR_DATA"):
        monkeypatch.setenv("METATKGR_DATA", str(Path(folder).resolve()))
    monkeypatch.chdir(tmp_path)
    for command in commands(document):
        if absent(command):
            continue
        shown = run(*shlex.split(command, comments=True)[1:])
        assert shown.code == 0, f"{command}\n{shown.err}"


@pytest.mark.parametrize("document", WITH_PYTHON, ids=lambda path: path.stem)
def test_every_documented_program_runs(document: Path, run: Run, tmp_path: Path) -> None:
    assert run("data", "simulate", "--facts", 3000, "--out", tmp_path / "events.csv").code == 0
    program = "\n".join(blocks(document, "python"))
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_links_between_documents_lead_somewhere() -> None:
    for document in DOCUMENTS:
        for target in re.findall(r"\]\(([^)#:]+)\)", document.read_text(encoding="utf-8")):
            assert (document.parent / target).exists(), f"{document.name} links to {target}"


def test_the_results_page_is_made_from_the_results() -> None:
    results = ROOT / "results"
    made = results_page(read_outcomes(results), read_statistics(results))
    assert made == (ROOT / "docs" / "results.md").read_text(encoding="utf-8")
    assert "paths` is above the published model in" in made


def test_the_readmes_results_are_those_of_the_results_page() -> None:
    page = (ROOT / "docs" / "results.md").read_text(encoding="utf-8")
    plain = re.sub(r"\*\*|\s\([^)]*\)|\s±\s[.\d]+", "", page)
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (?:MetaTKGR, as published|`\w+`) \|.*$", readme, flags=re.MULTILINE)
    assert len(rows) == 4
    for row in rows:
        for cell in row.split("|")[2:-1]:
            assert cell.strip() in plain, f"the README's {cell.strip()} is not on the results page"

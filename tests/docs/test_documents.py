"""What the documents say can be run is run, and what they show is made from the results."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from command_line import Run
from local_service import Command
from metatkgr.data import catalog
from metatkgr.experiments.report import pages_of
from metatkgr.experiments.results import Results
from metatkgr.experiments.sections.findings import STALE

ROOT = Path(__file__).parent.parent.parent
DOCUMENTS = sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")])


def blocks(document: Path, language: str) -> list[str]:
    text = document.read_text(encoding="utf-8")
    return re.findall(rf"^```{language}\n(.*?)^```", text, flags=re.MULTILINE | re.DOTALL)


def commands(document: Path) -> list[str]:
    lines = "\n".join(blocks(document, "sh")).splitlines()
    return [line for line in lines if line.startswith(("metatkgr ", "curl ", "python "))]


IMPORTABLE = os.pathsep.join(str(Path(place).absolute()) for place in (ROOT, *sys.path))
"""Also what is not in the wheel: documents run it from the folder of the repository."""
WITH_COMMANDS = [document for document in DOCUMENTS if commands(document)]
WITH_PYTHON = [document for document in DOCUMENTS if blocks(document, "python")]


def absent(text: str) -> bool:
    """Whether a command needs a published dataset that is not on this machine."""
    named = [name for name in catalog.ENTRIES if re.search(rf"\b{name}\b", text)]
    return any(catalog.locate(name) is None for name in named)


SERVED = "http://127.0.0.1:8000"
"""Where the documents' services listen; here each takes a free port instead."""


class Services:
    """The service that a document has started last; ``curl`` speaks to it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._running: Command | None = None

    def start(self, command: str, words: list[str]) -> None:
        """Stop the last one, start the next."""
        self.stop()
        self._running = Command(*words, folder=self._folder, command=command)

    def stop(self) -> None:
        """As one does: with a signal, and it ends well."""
        if self._running is not None:
            with self._running as service:
                self._running = None
                service.process.send_signal(signal.SIGTERM)
                assert service.wait() == 0, service.said

    def shell(self, line: str) -> None:
        """Run a line of the document; nothing, where its service could not be started."""
        if SERVED in line and (self._running is None or shutil.which("curl") is None):
            return
        if self._running is not None:
            line = line.replace(SERVED, self._running.url)
        line = re.sub("^curl ", "curl --fail-with-body --show-error ", line)
        python = shlex.quote(sys.executable)
        line = re.sub("^python ", f"{python} ", line)
        line = re.sub("^metatkgr ", f"{python} -m metatkgr ", line)
        done = subprocess.run(
            line,
            shell=True,
            cwd=self._folder,
            env=os.environ | {"PYTHONPATH": IMPORTABLE},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, f"{line}\n{done.stdout}{done.stderr}"


@contextmanager
def services(folder: Path) -> Iterator[Services]:
    some = Services(folder)
    try:
        yield some
    finally:
        some.stop()


@pytest.mark.parametrize("document", WITH_COMMANDS, ids=lambda path: path.stem)
def test_every_documented_command_runs(
    document: Path, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if folder := os.environ.get("METATKGR_DATA"):
        monkeypatch.setenv("METATKGR_DATA", str(Path(folder).resolve()))
    monkeypatch.chdir(tmp_path)
    with services(tmp_path) as served:
        for command in commands(document):
            if absent(command):
                continue
            program, *words = shlex.split(command, comments=True)
            if program != "metatkgr" or "<" in words:
                served.shell(command)
            elif words[0] == "serve" or "--http" in words:
                served.start(words[0], words[1:])
            else:
                shown = run(*words)
                assert shown.code == 0, f"{command}\n{shown.err}"


@pytest.mark.parametrize("document", WITH_PYTHON, ids=lambda path: path.stem)
def test_every_documented_program_runs(document: Path, run: Run, tmp_path: Path) -> None:
    assert run("data", "simulate", "--facts", 3000, "--out", tmp_path / "events.csv").code == 0
    program = "\n".join(blocks(document, "python"))
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": IMPORTABLE},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_every_document_is_in_the_site_and_the_other_way_round() -> None:
    named = re.findall(r": (\S+\.md)$", (ROOT / "mkdocs.yml").read_text(), flags=re.MULTILINE)
    folder = ROOT / "docs"
    pages = [*folder.rglob("*.md"), *(p.with_suffix(".md") for p in folder.rglob("*.ipynb"))]
    assert sorted(named) == sorted(str(page.relative_to(folder)) for page in pages)


def test_the_site_is_built_without_a_broken_link(tmp_path: Path) -> None:
    pytest.importorskip("mkdocs", reason="the extra docs is not installed")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "Forecaster" in (tmp_path / "reference.html").read_text(encoding="utf-8")


def test_links_between_documents_lead_somewhere() -> None:
    for document in DOCUMENTS:
        for target in re.findall(r"\]\(([^)#:]+)\)", document.read_text(encoding="utf-8")):
            found = (document.parent / target).resolve()
            assert found.exists(), f"{document.name} links to {target}"
            if (ROOT / "docs") in document.parents:  # the site has no page of what lies outside
                assert found.is_relative_to(ROOT / "docs"), f"{document.name} links to {target}"


def test_tests_that_the_page_on_hardening_names_are_there() -> None:
    page = (ROOT / "docs" / "hardening.md").read_text(encoding="utf-8")
    tests = ROOT / "tests"
    for file, names in re.findall(r"`([\w/]+\.py)`: ((?:`test_\w+`(?:, )?)+)", page):
        text = (tests / file).read_text(encoding="utf-8")
        for name in re.findall(r"test_\w+", names):
            assert f"def {name}(" in text, f"{file} has no {name}"


def test_the_table_of_attacks_is_that_of_the_results() -> None:
    page = (ROOT / "docs" / "hardening.md").read_text(encoding="utf-8")
    seen = json.loads((ROOT / "results" / "attack.json").read_text(encoding="utf-8"))
    for row in seen["rows"]:
        assert row["held"], row
        assert f"| {row['store']} | {row['case']} | {row['seen']} |" in page


def test_the_pages_are_made_from_the_results() -> None:
    """But for marks of stale rows, which a changed default sets: ``reproduce --check`` has them."""
    results = Results.of_repository(ROOT / "results")

    def without_marks(text: str) -> list[str]:
        lines = text.replace("†", "").splitlines()
        return [line for line in lines if not line.startswith(f"- {STALE}")]

    made = pages_of(ROOT, results)
    assert len(made) == 7
    for path, text in made.items():
        there = path.read_text(encoding="utf-8")
        assert without_marks(text) == without_marks(there), f"{path.name}: make docs"
    assert "69 of 72" in made[ROOT / "README.md"]
    assert "66 of 72" in made[ROOT / "README.md"]


@pytest.mark.parametrize("path", sorted((ROOT / "docs").rglob("*.ipynb")), ids=lambda p: p.stem)
def test_a_notebook_runs_and_prints_what_it_shows(path: Path, tmp_path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    if absent(text):
        pytest.skip("it needs a dataset that is absent")
    program = (
        "import json, sys; from studies.notebooks import execute;"
        "json.dump(execute(json.load(open(sys.argv[1]))), open('done.json', 'w'))"
    )
    environment = os.environ | {"PYTHONPATH": IMPORTABLE}
    if folder := os.environ.get("METATKGR_DATA"):
        environment["METATKGR_DATA"] = str(Path(folder).resolve())
    command = [sys.executable, "-c", program, str(path)]
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    kept, made = (json.loads(t)["cells"] for t in (text, (tmp_path / "done.json").read_text()))
    for one, other in zip(kept, made, strict=True):
        # Numbers may differ in their last digit between machines, so names only.
        assert names_in(one) == names_in(other)


def names_in(cell: dict[str, Any]) -> list[str]:
    """The first line that a cell prints, without its numbers."""
    lines = [line for output in cell.get("outputs", []) for line in output["text"]]
    return [re.sub(r"[\d.,%:]+", "", line) for line in lines[:1]]

"""The package installs and imports as the README says."""

from __future__ import annotations

import ast
import http.server
import os
import re
import shutil
import subprocess
import sys
import threading
import tomllib
import urllib.request
from pathlib import Path

import pytest

from audit.packages import BESIDE
from metatkgr import __version__

ROOT = Path(__file__).parent.parent


BLOCKED = """
import sys
import tomllib
sys.modules.update(dict.fromkeys({names!r}))
"""
"""Python's own way to say that a module is not to be found."""


def run_blocked(program: str, *names: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", BLOCKED.format(names=set(names)) + program],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


EXTRAS = ("pyarrow", "polars", "pandas", "typer", "rich", "matplotlib", "pykeen", "scipy")
EXTRAS += ("duckdb", "optuna", "rapidfuzz", "tensorboard", "tgm", "sqlalchemy")


def test_tasks_models_and_evaluation_need_only_torch_and_numpy() -> None:
    program = """
import metatkgr as mt
tasks = mt.Tasks.build(mt.load("world:3000"))
print(mt.evaluate(mt.create("paths"), tasks).summary().mrr)
"""
    assert 0 < float(run_blocked(program, *EXTRAS)) < 1


def test_training_needs_only_torch_numpy_safetensors_and_tqdm(tmp_path: Path) -> None:
    program = f"""
import metatkgr as mt
model = mt.MetaTKGR(dimension=16, translation_epochs=2, epochs=1, device="cpu")
model.fit(mt.load("world:2000")).save({str(tmp_path / "run")!r})
print(model.evaluate().summary().mrr)
"""
    assert 0 < float(run_blocked(program, *EXTRAS)) < 1
    assert (tmp_path / "run" / "model.safetensors").exists()


def test_an_ingested_folder_is_read_without_what_wrote_it(tmp_path: Path) -> None:
    from metatkgr.data.ingest import ingest
    from metatkgr.data.world import WorldSettings
    from metatkgr.data.world.simulation import write_world

    write_world(tmp_path / "world.csv", WorldSettings(facts=1500))
    ingest([tmp_path / "world.csv"], tmp_path / "world")
    program = f"""
import metatkgr as mt
facts = mt.load({str(tmp_path / "world")!r})
assert facts.entities.id(facts.entities[7]) == 7
print(mt.evaluate(mt.create("paths"), mt.Tasks.build(facts)).summary().mrr)
"""
    assert 0 < float(run_blocked(program, *EXTRAS)) < 1


def test_importing_the_package_does_not_import_torch() -> None:
    assert run_blocked("import metatkgr; print(metatkgr.__doc__[:8])", "torch").startswith(
        "Forecast"
    )


def test_an_unknown_public_name_is_an_attribute_error() -> None:
    import metatkgr

    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = metatkgr.nothing
    assert set(metatkgr.__all__) <= set(dir(metatkgr))
    for name in metatkgr.__all__:
        assert getattr(metatkgr, name) is not None


def test_the_wheel_holds_the_package_and_nothing_beside_it() -> None:
    setuptools = pytest.importorskip("setuptools")
    told = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    (where,) = told["tool"]["setuptools"]["packages"]["find"]["where"]
    packages = setuptools.find_packages(str(ROOT / where))
    assert {name.partition(".")[0] for name in packages} == {"metatkgr"}
    for path in (ROOT / where).rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
                top = node.module.partition(".")[0]
                assert top not in BESIDE, f"{path} imports {top}, which is not in the wheel"


def test_the_citation_is_of_this_version() -> None:
    text = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert f"\nversion: {__version__}\n" in text
    about = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert f"\nlicense: {about['license']}\n" in text
    for file in about["license-files"]:
        assert (ROOT / file).is_file()


def asked_of_pip(folder: Path, *words: str) -> str:
    """What ``make`` asks pip for when it installs torch."""
    if shutil.which("make") is None:
        pytest.skip("make is not here")
    venv = folder / "venv"
    (venv / "bin").mkdir(parents=True, exist_ok=True)
    (venv / ".torch").unlink(missing_ok=True)
    python = venv / "bin" / "python"
    if not python.exists():
        python.symlink_to(sys.executable)
    command = ["make", "--silent", f"{venv}/.torch", f"VENV={venv}", "PIP=echo pip", *words]
    # Not as a part of the make that may run these tests, with its variables and its messages.
    inside = ("MAKE", "MFLAGS", "TORCH")
    outside = {name: os.environ[name] for name in os.environ if not name.startswith(inside)}
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, check=False, env=outside
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_make_takes_torch_without_cuda_where_its_index_answers(tmp_path: Path) -> None:
    class Index(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200 if self.path == "/cpu/torch/" else 404)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Index) as served:
        threading.Thread(target=served.serve_forever, daemon=True).start()
        host = f"http://127.0.0.1:{served.server_address[1]}"
        index = f"{host}/cpu"
        assert (
            asked_of_pip(tmp_path, f"TORCH_INDEX={index}") == f"pip --extra-index-url {index} torch"
        )
        assert asked_of_pip(tmp_path, f"TORCH_INDEX={index}", "TORCH=cuda") == "pip torch"
        assert asked_of_pip(tmp_path, f"TORCH_INDEX={host}/none") == "pip torch"
        served.shutdown()


def test_versions_that_are_not_there_or_do_not_run_are_skipped(tmp_path: Path) -> None:
    if shutil.which("make") is None:
        pytest.skip("make is not here")
    switched = tmp_path / "python3.98"  # a name without a version behind it
    switched.write_text("#!/bin/sh\nexit 127\n")
    switched.chmod(0o755)
    path = {"PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}"}
    command = ["make", "--silent", "test-versions", "VERSIONS=3.98 3.99"]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, check=False, env=os.environ | path
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "python3.98 is not here: skipped\npython3.99 is not here: skipped" in done.stdout


# The steps of the Dockerfile, where there is no Docker -----------------------------------------


def docker_steps() -> list[tuple[str, str]]:
    """(instruction, what follows) of the first stage."""
    text = (ROOT / "Dockerfile").read_text(encoding="utf-8").replace("\\\n", " ")
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("#")]
    stages = [at for at, line in enumerate(lines) if line.startswith("FROM ")]
    assert len(stages) == 2
    return [tuple(line.split(" ", 1)) for line in lines[: stages[1]]]  # type: ignore[misc]


def test_the_image_copies_what_there_is_and_runs_without_rights() -> None:
    for instruction, rest in docker_steps():
        if instruction == "COPY":
            *sources, _ = rest.split()
            ignored = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
            for source in sources:
                assert (ROOT / source).exists()
                assert f"!{source}" in ignored
    last = (ROOT / "Dockerfile").read_text(encoding="utf-8").rpartition("\nFROM ")[2]
    assert re.search(r"^USER (?!root)\w+$", last, flags=re.MULTILINE)
    assert last.index("\nUSER ") < last.index("\nENTRYPOINT ")


PROGRAM = """
import sys
import anyio
from mcp import Client, StdioServerParameters, stdio_client

async def ask():
    words = ["-m", "metatkgr", "mcp", "events.csv", "--store", "agents.sqlite"]
    server = StdioServerParameters(command=sys.executable, args=words, cwd=".")
    async with Client(stdio_client(server)) as client:
        answer = await client.call_tool("newcomers", {"limit": 1})
        (newcomer,) = answer.structured_content["entities"]
        answer = await client.call_tool("what_next", {"entity": newcomer["name"]})
        print(len(answer.structured_content["forecasts"]))

anyio.run(ask)
"""


@pytest.mark.slow
def test_an_install_without_the_repository_predicts_serves_and_answers_agents(
    tmp_path: Path,
) -> None:
    """The steps of the image in a folder, then a CSV. ``make test-versions``: on other Pythons."""
    build, home, work = tmp_path / "build", tmp_path / "home", tmp_path / "work"
    build.mkdir()
    work.mkdir()
    outside = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "VIRTUAL_ENV")}
    told: dict[str, str] = {}
    for instruction, rest in docker_steps():
        if instruction == "COPY":
            *sources, target = rest.split()
            for source in sources:
                if (ROOT / source).is_dir():
                    shutil.copytree(ROOT / source, build / target)
                else:
                    shutil.copy(ROOT / source, build / target)
        elif instruction == "ARG":
            name, _, value = rest.partition("=")
            told[name] = os.environ.get(name, value)
        elif instruction == "RUN":
            line = rest.replace("/opt/metatkgr", str(home)).replace(
                "python -m venv", f"{sys.executable} -m venv", 1
            )
            done = subprocess.run(
                line,
                shell=True,
                cwd=build,
                env=outside | told,
                capture_output=True,
                text=True,
                check=False,
            )
            assert done.returncode == 0, f"{line}\n{done.stderr}"
    shutil.rmtree(build)

    def run(*words: str) -> str:
        done = subprocess.run(
            [str(home / "bin" / words[0]), *words[1:]],
            cwd=work,
            env=outside,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    installed = Path(
        run("python", "-c", "import metatkgr; print(metatkgr.__file__)").strip()
    ).parent
    assert installed.is_relative_to(home)
    assert not any((installed.parent / name).exists() for name in BESIDE)
    run("metatkgr", "data", "simulate", "--facts", "3000", "--out", "events.csv")
    name = (work / "events.csv").read_text(encoding="utf-8").splitlines()[-1].split(",")[0]
    assert "%" in run("metatkgr", "predict", "events.csv", "--entity", name)
    assert int(run("python", "-c", PROGRAM)) > 0
    words = [home / "bin" / "metatkgr", "serve", "events.csv", "--port", "0", "--no-quality"]
    with subprocess.Popen(
        list(map(str, words)), cwd=work, env=outside, stdout=subprocess.PIPE, text=True
    ) as served:
        assert served.stdout is not None
        said = ""
        for line in served.stdout:
            said += line
            if found := re.search(r"Listening on (http://\S+);", line):
                with urllib.request.urlopen(f"{found[1]}/health", timeout=60) as answer:
                    assert answer.status == 200
                break
        else:
            raise AssertionError(said)
        served.terminate()

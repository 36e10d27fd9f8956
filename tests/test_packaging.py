"""The package installs and imports as the README says."""

from __future__ import annotations

import ast
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from audit.packages import BESIDE

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

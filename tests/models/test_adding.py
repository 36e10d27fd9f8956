"""Adding a model is one file: the document's example, as a package of somebody else."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from metatkgr.errors import SettingsError
from metatkgr.models import load_plugins

ROOT = Path(__file__).parent.parent.parent


def documented(number: int = 0) -> str:
    """A model that ``docs/extending.md`` shows."""
    text = (ROOT / "docs" / "extending.md").read_text(encoding="utf-8")
    blocks: list[str] = re.findall(r"^```python\n(.*?)^```", text, flags=re.MULTILINE | re.DOTALL)
    return blocks[number]


@pytest.fixture
def installed(tmp_path: Path) -> dict[str, str]:
    """An environment in which a package of one file offers that model."""
    (tmp_path / "frequency_model.py").write_text(documented(), encoding="utf-8")
    about = tmp_path / "frequency_model-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: frequency-model\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text("[metatkgr.models]\nfrequency = frequency_model\n")
    places = [tmp_path, *(Path(place).absolute() for place in sys.path)]
    return os.environ | {"PYTHONPATH": os.pathsep.join(str(place) for place in places)}


def run(environment: dict[str, str], *words: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", *words],
        env=environment,
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_a_model_of_another_package_is_found_by_name(installed: dict[str, str]) -> None:
    words = ("evaluate", "world:2000", "--model", "frequency", "--set", "power=0.5", "--json", "-")
    result = json.loads(run(installed, "metatkgr", *words))
    assert result["model"] == "frequency"
    assert 0 < result["metrics"]["static"]["all"]["mrr"] < 1


def test_it_is_held_to_the_contract_of_all_models(installed: dict[str, str]) -> None:
    contract = str(Path(__file__).parent / "test_contract.py")
    shown = run(installed, "pytest", "-q", "-p", "no:cacheprovider", contract, "-k", "frequency")
    assert len(re.findall(r"\.", shown.splitlines()[0])) >= 7, shown


def test_a_model_of_a_file_is_trained_and_compared(tmp_path: Path) -> None:
    plugin = tmp_path / "stretch.py"
    plugin.write_text(documented(1), encoding="utf-8")
    here = os.environ | {"PYTHONPATH": os.pathsep.join(str(Path(p).absolute()) for p in sys.path)}
    words = ["--plugin", str(plugin), "--set", "epochs=1", "--set", "dimension=8"]
    out = str(tmp_path / "run")
    run(here, "metatkgr", "train", "world:2000", "--model", "stretch", *words, "--out", out)
    words = ["compare", out, "recurrency", "--plugin", str(plugin), "--json", "-"]
    first, second = json.loads(run(here, "metatkgr", *words))
    assert (first["model"], second["model"]) == ("stretch", "recurrency")
    assert second["p_value"] is not None


def test_a_plugin_that_is_not_there_is_told() -> None:
    with pytest.raises(SettingsError, match=r"nowhere\.py cannot be imported"):
        load_plugins(["nowhere.py"])
    with pytest.raises(SettingsError, match="no_such_module"):
        load_plugins(["no_such_module"])

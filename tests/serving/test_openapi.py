"""What OpenAPI says is what the service does: schemathesis looks for anything else."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from local_service import app_of, listening
from metatkgr.data.facts import Facts
from metatkgr.serving.auth import add_token
from metatkgr.serving.limits import ServiceSettings
from metatkgr.serving.schemas import FactIn

CONFIG = """
[checks]
# Of the right form, but this graph has no such name or date.
positive_data_acceptance.expected-statuses = ["2xx", "400", "404", "409"]
"""


@pytest.fixture(scope="module")
def token_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("tokens") / "tokens.toml"


@pytest.fixture(scope="module")
def headers(token_file: Path) -> dict[str, str]:
    return {"Authorization": f"Bearer {add_token(token_file, 'tester', 'admin')}"}


@pytest.fixture(scope="module")
def url(
    world: Facts,
    token_file: Path,
    headers: dict[str, str],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[str]:
    store: Path = tmp_path_factory.mktemp("store") / "facts.sqlite"
    with listening(app_of(world, store, ServiceSettings(token_file=token_file))) as address:
        # The examples in the description are about someone whom the service then knows.
        examples = FactIn.model_json_schema()["examples"]
        answer = httpx.post(f"{address}/facts", json={"facts": examples}, headers=headers)
        assert answer.json()["accepted"] == 1
        yield address


def test_schemathesis_finds_nothing(url: str, headers: dict[str, str], tmp_path: Path) -> None:
    pytest.importorskip("schemathesis", reason="schemathesis is not installed")
    (tmp_path / "schemathesis.toml").write_text(CONFIG)
    program = "import sys; from schemathesis.cli import schemathesis; sys.exit(schemathesis())"
    done = subprocess.run(
        [sys.executable, "-c", program, "run", f"{url}/openapi.json", "--max-examples=12",
         "--seed=1", "--no-color", "--header", f"Authorization: {headers['Authorization']}"],
        cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert " passed" in done.stdout, done.stdout


def test_every_operation_is_described_with_its_errors(url: str, headers: dict[str, str]) -> None:
    answer = httpx.get(f"{url}/openapi.json", headers=headers)
    spec = answer.json()
    assert set(spec["paths"]) == {
        "/backtest", "/entities", "/explain", "/export", "/facts", "/facts/{number}", "/graph",
        "/health", "/health/live", "/import", "/metrics", "/newcomers", "/newcomers/forecasts",
        "/predict", "/quality", "/usage",
    }  # fmt: skip
    for path, methods in spec["paths"].items():
        for method, operation in methods.items():
            assert operation["description"], f"{method} {path} says nothing"
            assert path.startswith("/health") or operation["security"]
            if "requestBody" in operation:
                assert {"400", "413", "415", "422", "503"} <= set(operation["responses"])
    for name in ("FactIn", "PredictIn", "ExplainIn"):
        assert spec["components"]["schemas"][name]["examples"]

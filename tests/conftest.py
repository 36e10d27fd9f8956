"""Shared fixtures: where the real datasets are, and small worlds."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch


@pytest.fixture(scope="session")
def real_data() -> Path:
    """The folder of the published datasets; tests that need it are skipped where it is absent."""
    folder = os.environ.get("METATKGR_DATA")
    if not folder or not (Path(folder) / "YAGO").is_dir():
        pytest.skip("the published datasets are absent: set METATKGR_DATA to their folder")
    return Path(folder)


@pytest.fixture(scope="session", autouse=True)
def _one_thread() -> None:
    """Test processes share the cores: more threads than cores wait for each other at every step."""
    torch.set_num_threads(1)

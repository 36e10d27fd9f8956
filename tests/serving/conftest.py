"""The graph that the service's tests speak of."""

from __future__ import annotations

import pytest

import metatkgr as mt
from metatkgr.data.facts import Facts


@pytest.fixture(scope="session")
def world() -> Facts:
    return mt.load("world:3000:1")

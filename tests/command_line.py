"""What a run of the command line gives back and leaves behind."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass
class Ran:
    code: int
    out: str
    err: str


Run = Callable[..., Ran]


def lines_of(trace: Path) -> list[dict[str, Any]]:
    """The lines of a ``trace.jsonl``."""
    return [json.loads(line) for line in trace.read_text(encoding="utf-8").splitlines()]

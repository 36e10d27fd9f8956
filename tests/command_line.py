"""What a run of the command line gives back."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass
class Ran:
    code: int
    out: str
    err: str


Run = Callable[..., Ran]

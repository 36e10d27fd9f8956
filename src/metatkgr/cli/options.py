"""Options that several commands share, and what they turn into."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Annotated

import typer

from metatkgr.errors import SettingsError

__all__ = [
    "Data",
    "Device",
    "JsonOut",
    "Seed",
    "SetValues",
    "Shots",
    "VisibilityName",
    "choose_device",
    "parse_assignments",
]

Data = Annotated[
    str,
    typer.Argument(
        help="A dataset of the catalogue (YAGO, WIKI, ICEWS18), 'world' (the simulated one; "
        "'world:FACTS' and 'world:FACTS:SEED' choose its size and seed), or a path to a file or "
        "folder of facts.",
        show_default=False,
    ),
]
JsonOut = Annotated[
    str | None,
    typer.Option("--json", metavar="FILE", help="Write the result as JSON to FILE, or '-'."),
]
Shots = Annotated[int, typer.Option(min=1, help="K: how many first facts of an entity are known.")]
VisibilityName = Annotated[
    str,
    typer.Option(
        "--visibility",
        help="What a model may see: entity-split (the paper's set-up), frozen (nothing after the "
        "split but the supports) or streaming (everything before the query).",
    ),
]
Seed = Annotated[int, typer.Option(min=0, help="Seed of all randomness.")]
Device = Annotated[str, typer.Option(help="cpu, cuda, cuda:N, or auto: a GPU where there is one.")]
SetValues = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Override a setting of the model; repeatable."),
]


def parse_assignments(texts: Iterable[str]) -> dict[str, str]:
    """``['lr=0.1']`` as ``{'lr': '0.1'}``."""
    values: dict[str, str] = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals or not key.strip():
            raise SettingsError(f"--set takes KEY=VALUE, not {text!r}")
        values[key.strip()] = value.strip()
    return values


def choose_device(name: str) -> str:
    """The device to compute on; 'auto' is a GPU where there is one."""
    import torch

    if name == "auto":
        # Of several processes each takes a GPU of its own.
        return f"cuda:{os.environ.get('LOCAL_RANK', 0)}" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
    except RuntimeError:
        raise SettingsError(f"unknown device {name!r}; use cpu, cuda, cuda:N or auto") from None
    if device.type == "cuda" and not torch.cuda.is_available():
        raise SettingsError(f"{name!r} was asked for, but this machine has no usable GPU; use cpu")
    if device.type not in ("cpu", "cuda"):
        raise SettingsError(f"device {name!r} is not supported; use cpu, cuda, cuda:N or auto")
    return str(device)

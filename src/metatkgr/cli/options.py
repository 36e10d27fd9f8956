"""Options that several commands share, and what they turn into."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any

import typer

from metatkgr.errors import SettingsError

__all__ = [
    "BAD_ROWS_REPORT",
    "BadRowsReport",
    "Clip",
    "Columns",
    "Data",
    "Delimiter",
    "Device",
    "Header",
    "Ids",
    "JsonOut",
    "Seed",
    "SetValues",
    "Shots",
    "SkipBadRows",
    "Unit",
    "VisibilityName",
    "choose_device",
    "parse_assignments",
    "reading",
]

_READING = "Reading files"

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
Columns = Annotated[
    str | None,
    typer.Option(
        metavar="S,R,O,T[,END]",
        help="Names or positions (from 0) of the subject, relation, object, time and end columns.",
        rich_help_panel=_READING,
    ),
]
Delimiter = Annotated[
    str | None, typer.Option(help="Character between cells.", rich_help_panel=_READING)
]
Header = Annotated[
    bool | None,
    typer.Option(
        "--header/--no-header",
        help="Whether the first row holds names (found out when not given).",
        rich_help_panel=_READING,
    ),
]
Unit = Annotated[
    str,
    typer.Option(
        "--time-unit",
        help="One time step: hour, day, week, month, year, step (plain integers) or auto.",
        rich_help_panel=_READING,
    ),
]
Ids = Annotated[
    bool | None,
    typer.Option(
        "--ids/--names",
        help="Whether cells are integer ids (of entity2id.txt, relation2id.txt) or names.",
        rich_help_panel=_READING,
    ),
]
Clip = Annotated[
    str | None,
    typer.Option(
        metavar="FIRST..LAST",
        help="Keep interval facts to this range; open ends reach to it.",
        rich_help_panel=_READING,
    ),
]
SkipBadRows = Annotated[
    bool,
    typer.Option(
        "--skip-bad-rows",
        help="Go on without the rows that cannot be read, and write a report of them.",
        rich_help_panel=_READING,
    ),
]
BadRowsReport = Annotated[
    Path,
    typer.Option(
        "--bad-rows-report",
        metavar="FILE",
        help="Where that report goes: .json, or text.",
        rich_help_panel=_READING,
    ),
]
BAD_ROWS_REPORT = Path("bad-rows.json")


def reading(
    columns: str | None,
    delimiter: str | None,
    header: bool | None,
    unit: str,
    ids: bool | None,
    clip: str | None,
    skip_bad_rows: bool,
) -> dict[str, Any]:
    """The reading options of a command line as fields of ``ReadOptions``, defaults left out."""
    given: dict[str, Any] = {
        "columns": None if columns is None else tuple(c.strip() for c in columns.split(",")),
        "delimiter": "\t" if delimiter in ("\\t", "tab") else delimiter,
        "header": header,
        "unit": None if unit == "auto" else unit,
        "ids": ids,
        "clip": None if clip is None else _clip(clip),
        "skip_bad_rows": skip_bad_rows or None,
    }
    return {key: value for key, value in given.items() if value is not None}


def _clip(text: str) -> tuple[str, str]:
    first, dots, last = text.partition("..")
    if not dots or not first.strip() or not last.strip():
        raise SettingsError(f"--clip takes FIRST..LAST, as in 1786..2017, not {text!r}")
    return first.strip(), last.strip()


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
        return "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
    except RuntimeError:
        raise SettingsError(f"unknown device {name!r}; use cpu, cuda, cuda:N or auto") from None
    if device.type == "cuda" and not torch.cuda.is_available():
        raise SettingsError(f"{name!r} was asked for, but this machine has no usable GPU; use cpu")
    if device.type not in ("cpu", "cuda"):
        raise SettingsError(f"device {name!r} is not supported; use cpu, cuda, cuda:N or auto")
    return str(device)

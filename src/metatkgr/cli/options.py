"""Options that several commands share, and what they turn into."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated

import typer

from metatkgr.errors import SettingsError

__all__ = [
    "Cluster",
    "Data",
    "Device",
    "JsonOut",
    "KnownShots",
    "ModelName",
    "RunOrData",
    "Seed",
    "SetValues",
    "Shots",
    "VisibilityName",
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
RunOrData = Annotated[
    str,
    typer.Argument(
        metavar="RUN_OR_DATA",
        help="The folder of a run; or data, from which a model without training answers at once: a "
        "dataset of the catalogue (YAGO, WIKI, ICEWS18), 'world' (the simulated one; "
        "'world:FACTS:SEED' chooses its size and seed), or a path to a file or folder of facts.",
        show_default=False,
    ),
]
ModelName = Annotated[
    str | None,
    typer.Option(
        "--model",
        help="A model that needs no training, where DATA is not a run: paths (the default), "
        "recurrency, pagerank; or oracle on a simulated world.",
    ),
]
KnownShots = Annotated[
    str | None,
    typer.Option(
        "--shots", metavar="K", help="First facts that a newcomer is known by; a run has its own."
    ),
]
Cluster = Annotated[
    str | None,
    typer.Option(
        metavar="ADDRESS",
        help="Compute on Ray: 'local' starts it on this machine, HOST:PORT joins a cluster, 'auto' "
        "the cluster of this machine.",
    ),
]
JsonOut = Annotated[
    str | None,
    typer.Option("--json", metavar="FILE", help="Write the result as JSON to FILE, or '-'."),
]
Shots = Annotated[
    str,
    typer.Option(
        metavar="K",
        help="K: how many first facts of an entity are known; 'random' (1-5) or a range as 2-4: "
        "drawn for each entity by the seed.",
    ),
]
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

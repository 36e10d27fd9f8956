"""Options that several commands share, written once, and what they turn into."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Self, get_args, get_type_hints

import typer
from rich.console import Console

from metatkgr.errors import SettingsError

if TYPE_CHECKING:
    from metatkgr.data.facts import Facts
    from metatkgr.data.readers.bad_rows import BadRows
    from metatkgr.forecasting.forecaster import Forecaster
    from metatkgr.training.opening import OpenModel

__all__ = [
    "Answering",
    "Cluster",
    "Data",
    "Device",
    "Group",
    "JsonOut",
    "KnownShots",
    "ModelName",
    "Plugins",
    "Reading",
    "Reads",
    "RunOrData",
    "Seed",
    "SetValues",
    "Shots",
    "Verify",
    "VisibilityName",
    "grouped",
    "open_forecaster",
    "parse_assignments",
]

Data = Annotated[
    str,
    typer.Argument(
        help="A dataset of the catalogue (YAGO, WIKI, ICEWS18, ICEWS14), 'world' (a simulated one; "
        "'world:KIND', 'world:FACTS' and 'world:KIND:FACTS:SEED' choose its kind, size and seed), "
        "or a path to a file or folder of facts.",
        show_default=False,
    ),
]
RunOrData = Annotated[
    str,
    typer.Argument(
        metavar="RUN_OR_DATA",
        help="The folder of a run; or data, from which a model without training answers at once: a "
        "dataset of the catalogue (YAGO, WIKI, ICEWS18, ICEWS14), 'world' (a simulated one; "
        "'world:KIND:FACTS:SEED' chooses its kind, size and seed), or a path to a file or folder "
        "of facts.",
        show_default=False,
    ),
]
ModelName = Annotated[
    str | None,
    typer.Option(
        "--model",
        help="A model that needs no training, where DATA is not a run: evidence (the default, with "
        "weights learned on other graphs), the rules recurrency, paths, pagerank; or oracle on a "
        "simulated world.",
    ),
]
Plugins = Annotated[
    list[str] | None,
    typer.Option(
        "--plugin",
        metavar="MODULE",
        help="A module or a .py file that registers models of your own; repeatable.",
    ),
]
Verify = Annotated[
    Path | None,
    typer.Option(
        metavar="KEY",
        help="Use the run only if it was signed with the key in this file (train --sign).",
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

_READING = "Reading files"
"""Of the help: what these options have in common."""


def parse_assignments(texts: Iterable[str]) -> dict[str, str]:
    """``['lr=0.1']`` as ``{'lr': '0.1'}``."""
    values: dict[str, str] = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals or not key.strip():
            raise SettingsError(f"--set takes KEY=VALUE, not {text!r}")
        values[key.strip()] = value.strip()
    return values


@dataclass(frozen=True)
class Reading:
    """What was said about reading a file."""

    fields: dict[str, Any]
    """Fields of ``ReadOptions`` that were given."""
    report: Path
    """Where a report of skipped rows goes."""

    @classmethod
    def of(
        cls,
        columns: Annotated[
            str | None,
            typer.Option(
                metavar="S,R,O,T[,END]",
                help="Names or positions (from 0) of the subject, relation, object, time and end "
                "columns.",
                rich_help_panel=_READING,
            ),
        ] = None,
        delimiter: Annotated[
            str | None, typer.Option(help="Character between cells.", rich_help_panel=_READING)
        ] = None,
        header: Annotated[
            bool | None,
            typer.Option(
                "--header/--no-header",
                help="Whether the first row holds names (found out when not given).",
                rich_help_panel=_READING,
            ),
        ] = None,
        unit: Annotated[
            str,
            typer.Option(
                "--time-unit",
                help="One time step: hour, day, week, month, year, step (plain integers) or auto.",
                rich_help_panel=_READING,
            ),
        ] = "auto",
        ids: Annotated[
            bool | None,
            typer.Option(
                "--ids/--names",
                help="Whether cells are integer ids (of entity2id.txt, relation2id.txt) or names.",
                rich_help_panel=_READING,
            ),
        ] = None,
        clip: Annotated[
            str | None,
            typer.Option(
                metavar="FIRST..LAST",
                help="Keep interval facts to this range; open ends reach to it.",
                rich_help_panel=_READING,
            ),
        ] = None,
        most_bytes: Annotated[
            int | None,
            typer.Option(
                "--most-bytes",
                metavar="N",
                min=1,
                help="Memory that the content of a file may take, which may be far more than its "
                "size on disk; 4 GiB when not given.",
                rich_help_panel=_READING,
            ),
        ] = None,
        skip_bad_rows: Annotated[
            bool,
            typer.Option(
                "--skip-bad-rows",
                help="Go on without the rows that cannot be read, and write a report of them.",
                rich_help_panel=_READING,
            ),
        ] = False,
        bad_rows_report: Annotated[
            Path,
            typer.Option(
                "--bad-rows-report",
                metavar="FILE",
                help="Where that report goes: .json, or text.",
                rich_help_panel=_READING,
            ),
        ] = Path("bad-rows.json"),
        plugin: Plugins = None,
    ) -> Self:
        """From the values of the options; models of the user's own are loaded."""
        if plugin:
            from metatkgr.models import load_plugins

            load_plugins(plugin)
        fields = {
            "columns": columns and tuple(c.strip() for c in columns.split(",")),
            "delimiter": "\t" if delimiter in ("\\t", "tab") else delimiter,
            "header": header,
            "unit": None if unit == "auto" else unit,
            "ids": ids,
            "clip": clip and _clip(clip),
            "most_bytes": most_bytes,
            "skip_bad_rows": skip_bad_rows or None,
        }
        chosen = {key: value for key, value in fields.items() if value is not None}
        return cls(chosen, bad_rows_report)

    def options(self, console: Console, *, data: str | None = None) -> dict[str, Any]:
        """The same for ``open_model``, which reads DATA where it is not a run.

        Args:
            console: where to tell how the rows were read.
            data: DATA, where the options may be meant for another file alone.
        """
        from metatkgr.data import sources
        from metatkgr.training.runs import is_run

        for_data = data is None or (sources.is_read(data) and not is_run(data))
        fields = self.fields if for_data else {}
        return {"reading": fields, "tell": lambda rows: self.tell(rows, console)}

    def more_facts(self, file: str, facts: Facts, console: Console) -> Any:
        """A file of further facts as a table of names and dates, which a forecaster checks.

        Args:
            file: what to read, with the same options as DATA.
            facts: those of DATA; times are numbers where theirs are.
            console: where to tell how the rows were read.
        """
        from metatkgr.data.frames import to_arrow
        from metatkgr.data.readers import read_facts_with_report

        usual = {"ids": False} | ({"unit": "step"} if facts.calendar.unit == "step" else {})
        found, rows = read_facts_with_report(file, **(usual | self.fields))
        self.tell(rows, console)
        return to_arrow(found)

    def load(self, data: str, console: Console) -> Facts:
        """Load DATA; where bad rows were to be skipped, tell about them and write the report."""
        from metatkgr.data import sources

        facts, rows = sources.load_with_report(data, **self.fields)
        if rows is not None:
            self.tell(rows, console)
        return facts

    def tell(self, rows: BadRows, console: Console) -> None:
        """How the rows were read; where bad ones were to be skipped, write the report of them."""
        for line in rows.remarks():
            console.print(line, style="yellow", soft_wrap=True, markup=False)
        if self.fields.get("skip_bad_rows"):
            rows.write(self.report)
            console.print(
                f"Skipped {rows.total:,} of {rows.rows_in_file:,} rows; see {self.report}.",
                style="yellow",
            )


def _answering(
    model: ModelName = None,
    shots: KnownShots = None,
    schema: Annotated[
        Path | None,
        typer.Option(
            "--schema",
            help="A JSON file with the types of entities and of the ends of relations; what it "
            "rules out is no answer.",
        ),
    ] = None,
    device: Device = "auto",
    verify: Verify = None,
) -> dict[str, Any]:
    """What answers, for :func:`open_forecaster`, which takes it by these names."""
    return {"model": model, "shots": shots, "schema": schema, "device": device, "verify": verify}


@dataclass(frozen=True)
class Group:
    """Options that several commands have, as the annotation of one parameter (see ``grouped``)."""

    make: Callable[..., Any]
    """Its parameters are the options; what it returns is the parameter's value."""


Reads = Annotated[Reading, Group(Reading.of)]
Answering = Annotated[dict[str, Any], Group(_answering)]


def grouped(command: Callable[..., None]) -> Callable[..., None]:
    """Decorator: in place of each parameter that is annotated with a group, the group's options."""
    hints = get_type_hints(command, include_extras=True)
    groups: dict[str, tuple[Group, list[str]]] = {}
    options: list[inspect.Parameter] = []
    for name, parameter in inspect.signature(command).parameters.items():
        group = next((x for x in get_args(hints[name]) if isinstance(x, Group)), None)
        if group is None:
            options.append(parameter.replace(annotation=hints[name], kind=parameter.KEYWORD_ONLY))
            continue
        kinds, own = get_type_hints(group.make, include_extras=True), inspect.signature(group.make)
        groups[name] = group, list(own.parameters)
        options += [
            option.replace(annotation=kinds[name], kind=option.KEYWORD_ONLY)
            for name, option in own.parameters.items()
        ]

    @functools.wraps(command)
    def call(**values: Any) -> None:
        for name, (group, own) in groups.items():
            values[name] = group.make(**{option: values.pop(option) for option in own})
        command(**values)

    # typer reads the signature and the annotations, not the function
    call.__signature__ = inspect.Signature(options)  # type: ignore[attr-defined]
    call.__annotations__ = {option.name: option.annotation for option in options}
    del call.__wrapped__
    return call


def open_forecaster(
    data: str, reading: dict[str, Any], *, schema: Path | None = None, **words: Any
) -> tuple[OpenModel, Forecaster]:
    """What a command names as RUN_OR_DATA, opened.

    Args:
        data: what was named.
        reading: what :meth:`Reading.options` says.
        schema: the file of ``--schema``.
        words: of ``open_model``.
    """
    from metatkgr.forecasting.forecaster import Forecaster
    from metatkgr.training.opening import open_model

    opened = open_model(data, **words, **reading)
    forecaster = Forecaster.load(opened)
    return opened, forecaster if schema is None else forecaster.obey(schema)


def _clip(text: str) -> tuple[str, str]:
    first, dots, last = text.partition("..")
    if not dots or not first.strip() or not last.strip():
        raise SettingsError(f"--clip takes FIRST..LAST, as in 1786..2017, not {text!r}")
    return first.strip(), last.strip()

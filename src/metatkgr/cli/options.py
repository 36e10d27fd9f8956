"""Options that several commands share, written once, and what they turn into."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

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
    "JsonOut",
    "KnownShots",
    "ModelName",
    "Plugins",
    "Reading",
    "RunOrData",
    "SchemaFile",
    "Seed",
    "SetValues",
    "Shots",
    "Verify",
    "VisibilityName",
    "open_forecaster",
    "parse_assignments",
    "reads_data",
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
SchemaFile = Annotated[
    Path | None,
    typer.Option(
        "--schema",
        help="A JSON file with the types of entities and of the ends of relations; what it rules "
        "out is no answer.",
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
MostBytes = Annotated[
    int | None,
    typer.Option(
        "--most-bytes",
        metavar="N",
        min=1,
        help="Memory that the content of a file may take, which may be far more than its size on "
        "disk; 4 GiB when not given.",
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

_OPTIONS: dict[str, tuple[Any, Any]] = {
    "columns": (Columns, None),
    "delimiter": (Delimiter, None),
    "header": (Header, None),
    "unit": (Unit, "auto"),
    "ids": (Ids, None),
    "clip": (Clip, None),
    "most_bytes": (MostBytes, None),
    "skip_bad_rows": (SkipBadRows, False),
    "bad_rows_report": (BadRowsReport, Path("bad-rows.json")),
    "plugin": (Plugins, None),
}
"""Type and default of each option for reading files, by the name of its parameter."""
_ANSWERING: dict[str, tuple[Any, Any]] = {
    "model": (ModelName, None),
    "shots": (KnownShots, None),
    "schema": (SchemaFile, None),
    "device": (Device, "auto"),
    "verify": (Verify, None),
}
"""The same of what answers; for :func:`open_forecaster`, which takes them by these names."""
Answering = dict[str, Any]


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
    def of(cls, given: dict[str, Any]) -> Reading:
        """From the values of the options."""
        columns, delimiter, clip = given["columns"], given["delimiter"], given["clip"]
        fields = {
            "columns": columns and tuple(c.strip() for c in columns.split(",")),
            "delimiter": "\t" if delimiter in ("\\t", "tab") else delimiter,
            "header": given["header"],
            "unit": None if given["unit"] == "auto" else given["unit"],
            "ids": given["ids"],
            "clip": clip and _clip(clip),
            "most_bytes": given["most_bytes"],
            "skip_bad_rows": given["skip_bad_rows"] or None,
        }
        chosen = {key: value for key, value in fields.items() if value is not None}
        return cls(chosen, given["bad_rows_report"])

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


def reads_data(command: Callable[..., None]) -> Callable[..., None]:
    """Decorator: options for reading files, which a command gets as ``reading``, and --plugin.

    One with a parameter ``answering`` has also those that say what answers, as a dictionary.
    """
    hints = get_type_hints(command, include_extras=True)
    taken = inspect.signature(command).parameters
    own = [
        parameter.replace(annotation=hints[name])
        for name, parameter in taken.items()
        if name not in ("reading", "answering")
    ]
    more = _ANSWERING if "answering" in taken else {}
    added = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=type_)
        for name, (type_, default) in (more | _OPTIONS).items()
    ]

    @functools.wraps(command)
    def call(**values: Any) -> None:
        given = {name: values.pop(name) for name in _OPTIONS}
        if given["plugin"]:
            from metatkgr.models import load_plugins

            load_plugins(given["plugin"])
        if more:
            values["answering"] = {name: values.pop(name) for name in more}
        command(**values, reading=Reading.of(given))

    # typer reads the signature and the annotations, not the function
    call.__signature__ = inspect.Signature([*own, *added])  # type: ignore[attr-defined]
    call.__annotations__ = {p.name: p.annotation for p in (*own, *added)}
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

"""Facts as frames and graphs of other libraries; each is imported only when it is asked for.

The way back is ``read_facts``, which takes all of them but PyKEEN's triples, which have no time.
Rows of any kind are written to files of text or Parquet.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, get_type_hints

import numpy as np

from metatkgr.data.facts import Facts
from metatkgr.errors import SettingsError, need
from metatkgr.files import atomic_path

__all__ = [
    "FORMATS",
    "to_arrow",
    "to_networkx",
    "to_pandas",
    "to_polars",
    "to_pyg",
    "to_pykeen",
    "written_rows",
]

FORMATS = (".parquet", ".jsonl", ".csv")
"""In which rows are written."""
_ROWS = 1 << 16
"""Rows of Parquet written in one go."""
Write = Callable[[Sequence[Any]], object]


def to_arrow(facts: Facts) -> Any:
    """A ``pyarrow.Table`` with the text columns subject, relation, object and time."""
    pa = need("pyarrow")
    steps, at = np.unique(facts.time, return_inverse=True)
    dates = pa.array([facts.calendar.label(int(step)) for step in steps], pa.string())
    entities = pa.array(list(facts.entities), pa.string())
    relations = pa.array(list(facts.relations), pa.string())
    return pa.table(
        {
            "subject": entities.take(pa.array(facts.subject)),
            "relation": relations.take(pa.array(facts.relation)),
            "object": entities.take(pa.array(facts.object)),
            "time": dates.take(pa.array(at)),
        }
    )


def to_pandas(facts: Facts) -> Any:
    """A pandas frame with the text columns subject, relation, object and time.

    ``read_facts`` and ``Forecaster.observe`` take it back.
    """
    need("pandas")
    return to_arrow(facts).to_pandas()


def to_polars(facts: Facts) -> Any:
    """A polars frame with the text columns subject, relation, object and time."""
    return need("polars").from_arrow(to_arrow(facts))


def to_pyg(facts: Facts, *, temporal: bool = True) -> Any:
    """The facts as an object of PyTorch Geometric.

    Args:
        facts: any facts.
        temporal: a ``TemporalData`` of events (src, dst, t, msg: the relation's number) in time
            order; else a ``Data`` with ``edge_index``, ``edge_type`` and ``edge_time``.
    """
    data = need("torch_geometric.data")
    import torch

    subject, relation, object_, time = (
        torch.from_numpy(np.ascontiguousarray(column))
        for column in (facts.subject, facts.relation, facts.object, facts.time)
    )
    if temporal:
        return data.TemporalData(src=subject, dst=object_, t=time, msg=relation.unsqueeze(1))
    return data.Data(
        edge_index=torch.stack([subject, object_]),
        edge_type=relation,
        edge_time=time,
        num_nodes=len(facts.entities),
    )


def to_pykeen(facts: Facts) -> Any:
    """PyKEEN's ``TriplesFactory`` of the facts without their times, each triple once.

    Ids are those of ``facts``.
    """
    triples = need("pykeen.triples")
    import torch

    columns = np.stack([facts.subject, facts.relation, facts.object], axis=1)
    return triples.TriplesFactory(
        mapped_triples=torch.from_numpy(np.unique(columns, axis=0).astype(np.int64)),
        entity_to_id={name: at for at, name in enumerate(facts.entities)},
        relation_to_id={name: at for at, name in enumerate(facts.relations)},
    )


def to_networkx(facts: Facts) -> Any:
    """A ``MultiDiGraph`` of networkx.

    Nodes are names with a ``label``; edges have ``relation``, ``time`` (a date) and ``step``.
    """
    networkx = need("networkx")
    graph = networkx.MultiDiGraph(name=facts.name)
    names, label = facts.entities.names, facts.calendar.label
    graph.add_nodes_from((name, {"label": facts.entities.label(n)}) for n, name in enumerate(names))
    dates = {step: label(step) for step in np.unique(facts.time).tolist()}
    columns = (facts.subject, facts.relation, facts.object, facts.time)
    for s, r, o, t in zip(*(column.tolist() for column in columns), strict=True):
        key = (facts.relations.names[r], t)
        graph.add_edge(names[s], names[o], key=key, relation=key[0], time=dates[t], step=t)
    return graph


@contextmanager
def written_rows(out: str | Path, kind: type) -> Iterator[Write]:
    """What writes rows to a file, which appears when it is complete.

    Args:
        out: its name says which of ``FORMATS`` it has.
        kind: of the rows, a ``NamedTuple`` of texts, numbers and switches.
    """
    path = Path(out)
    if path.suffix not in FORMATS:
        raise SettingsError(f"rows are written as {', '.join(FORMATS)}, not {path.name!r}")
    with atomic_path(path) as temporary:
        if path.suffix == ".parquet":
            with _parquet(temporary, kind) as write:
                yield write
            return
        with temporary.open("w", encoding="utf-8", errors="backslashreplace", newline="") as file:
            if path.suffix == ".csv":
                lines = csv.writer(file)
                lines.writerow(get_type_hints(kind))
                yield lines.writerows
            else:
                yield lambda rows: file.writelines(
                    json.dumps(row._asdict(), ensure_ascii=False, allow_nan=False) + "\n"
                    for row in rows
                )


@contextmanager
def _parquet(path: Path, kind: type) -> Iterator[Write]:
    pa, parquet = need("pyarrow"), need("pyarrow.parquet")
    kinds = {str: pa.string(), int: pa.int64(), float: pa.float64(), bool: pa.bool_()}
    schema = pa.schema([(name, kinds[type_]) for name, type_ in get_type_hints(kind).items()])
    waiting: list[Any] = []

    def flush() -> None:
        if waiting:
            file.write_table(pa.Table.from_pylist([r._asdict() for r in waiting], schema=schema))
        waiting.clear()

    def write(rows: Sequence[Any]) -> None:
        waiting.extend(rows)
        if len(waiting) >= _ROWS:
            flush()

    with parquet.ParquetWriter(path, schema) as file:
        yield write
        flush()

"""What a reader may be pointed at, and how to open it: files, folders, and what Python holds.

The latter are frames, Arrow streams, tuples, dictionaries and graphs of other libraries;
``read_facts`` and ``Forecaster.observe`` both take what :func:`rows_in_memory` takes.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from metatkgr.data.readers.formats import kind_of_file, pieces, suffixes_told
from metatkgr.data.readers.headers import recognise
from metatkgr.data.readers.options import ReadOptions
from metatkgr.data.readers.tables import (
    Rows,
    is_frame,
    rows_of_frame,
    rows_of_mappings,
    rows_of_tuples,
)
from metatkgr.data.readers.vocabularies import ENTITY_FILE, RELATION_FILE
from metatkgr.errors import DataError, need

__all__ = [
    "TAKEN",
    "Opened",
    "files_of",
    "holds_rows",
    "input_files",
    "open_input",
    "rows_in_memory",
]

TAKEN = (
    "tuples, dictionaries, a pandas or polars frame, anything that gives an Arrow stream (pyarrow, "
    "DuckDB), a directed graph of networkx, or the TemporalData of PyTorch Geometric"
)
_RELATION, _TIME = ("edge_type", "rel_type", "relation", "rel"), ("t", "edge_time", "time")
"""What attributes of PyTorch Geometric's data are called, the usual ones first."""
_SPLITS = (("train",), ("valid", "val", "validation", "dev"), ("test",))


@dataclass(frozen=True, eq=False)
class Opened:
    """An input, opened and split into rows."""

    label: str
    """What reports call it."""
    name: str
    """What to call the graph."""
    parts: list[Rows]
    folder: Path | None
    """Where vocabulary files may be; None for what does not come from files."""


def open_input(source: Any, options: ReadOptions) -> Opened:
    """Open whatever ``source`` is and split it into rows."""
    if isinstance(source, (str, os.PathLike)):
        return _open_path(Path(os.fspath(source)), options)
    rows = rows_in_memory(source, options)
    return Opened(rows.source, options.name or "", [rows], None)


def _open_path(path: Path, options: ReadOptions) -> Opened:
    try:
        path = path.expanduser()
        is_folder, is_file = path.is_dir(), path.is_file()
        exists = is_folder or is_file or path.exists()
        files = files_of(path) if is_folder else [path]
    except (OSError, ValueError, RuntimeError) as error:
        raise DataError(f"cannot open {str(path)!r}: {error}") from None
    if not exists:
        raise DataError(f"there is no file or folder {str(path)!r}")
    if not is_folder and not is_file:
        raise DataError(f"{path} is neither a file nor a folder")
    parts = [part for file in files for part in pieces(file, options)]
    plain = path.resolve().name if is_folder else kind_of_file(path)[0]
    folder = path if is_folder else path.parent
    return Opened(str(path), options.name or plain, parts, folder)


def files_of(folder: Path) -> list[Path]:
    """The data files of a folder: train, valid and test, or else the only one."""
    candidates = [
        path
        for path in sorted(folder.iterdir())
        if kind_of_file(path)[1]
        and path.name.lower() not in (ENTITY_FILE, RELATION_FILE)
        and not path.name.startswith(".")
    ]
    splits = []
    for names in _SPLITS:
        same = [path for path in candidates if kind_of_file(path)[0].lower() in names]
        if len(same) > 1:
            shown = " and ".join(path.name for path in same)
            raise DataError(f"{folder} has both {shown}: keep one of them")
        splits += same
    if splits:
        return splits
    files = [path for path in candidates if path.is_file()]
    if len(files) == 1:
        return files
    if not files:
        raise DataError(f"{folder} holds no data: files may be {suffixes_told()}")
    shown = ", ".join(path.name for path in files[:5]) + (", …" if len(files) > 5 else "")
    raise DataError(
        f"{folder} holds {len(files)} data files ({shown}) and none is called train, valid or test:"
        " name one of them"
    )


def input_files(sources: list[Path]) -> list[Path]:
    """The data files of files and folders, in order; of a folder without splits, all of its files.

    Raises:
        DataError: one of them is not there, or holds nothing that can be read.
    """
    files: list[Path] = []
    for source in sources:
        path = source.expanduser()
        if path.is_dir():
            parts = [file for file in sorted(path.iterdir()) if kind_of_file(file)[1]]
            numbered = [file for file in parts if file.name.lower().startswith("part")]
            files += numbered or files_of(path)
        elif path.is_file():
            files.append(path)
        else:
            raise DataError(f"there is no file or folder {str(path)!r}")
    for file in files:
        if not kind_of_file(file)[1]:
            raise DataError(
                f"cannot tell what {file} is by its name: files may be {suffixes_told()}"
            )
        if file.stat().st_size == 0:
            raise DataError(f"{file} is empty")
    return files


def rows_in_memory(source: Any, options: ReadOptions) -> Rows:
    """The rows of whatever ``source`` is.

    Raises:
        DataError: it holds no facts.
    """
    if is_frame(source):
        return rows_of_frame(source, options)
    if _is_a(source, "networkx", "Graph"):
        return rows_of_mappings(_edges(source), options, source=options.name or "graph")
    if _is_a(source, "torch_geometric.data", "TemporalData", "Data"):
        return rows_of_frame(_events(source), options)
    if hasattr(source, "__arrow_c_stream__"):
        return rows_of_frame(_streamed(source), options)
    if not isinstance(source, Iterable) or isinstance(source, (str, bytes, bytearray, Mapping)):
        raise DataError(
            f"cannot read facts from a {type(source).__name__}: give a file, a folder, {TAKEN}"
        )
    listed = list(source)
    if listed and isinstance(listed[0], Mapping):
        return rows_of_mappings(listed, options)
    return rows_of_tuples(listed, options)


def holds_rows(source: Any) -> bool:
    """Whether rows are in ``source`` as a whole, rather than its items."""
    return (
        is_frame(source)
        or _is_a(source, "networkx", "Graph")
        or _is_a(source, "torch_geometric.data", "TemporalData", "Data")
        or hasattr(source, "__arrow_c_stream__")
    )


def _is_a(source: Any, module: str, *names: str) -> bool:
    """Whether ``source`` is of a class of a library; one that nobody has imported made nothing."""
    loaded = sys.modules.get(module)
    return any(isinstance(source, getattr(loaded, name, ())) for name in names)


def _streamed(source: Any) -> Any:
    """All that an Arrow stream gives, as a table."""
    pa = need("pyarrow")
    try:
        return pa.RecordBatchReader.from_stream(source).read_all()
    except Exception as error:  # of whatever library gives the stream
        reason = " ".join(str(error).split())[:200]
        raise DataError(f"a {type(source).__name__} gives no Arrow stream: {reason}") from None


def _edges(graph: Any) -> Iterator[dict[str, Any]]:
    """The edges of a graph of networkx: their attributes, and the nodes as subject and object."""
    if not graph.is_directed():
        raise DataError("the graph is undirected, and a fact has a direction: give a DiGraph")
    if not graph.is_multigraph():
        for subject, other, attributes in graph.edges(data=True):
            yield {**attributes, "subject": subject, "object": other}
        return
    for subject, other, key, attributes in graph.edges(keys=True, data=True):
        row = {**attributes, "subject": subject, "object": other}
        if isinstance(key, str) and "relation" not in recognise(list(attributes)):
            row["relation"] = key
        yield row


def _events(data: Any) -> Any:
    """The events of PyTorch Geometric's ``TemporalData``, or the edges of its ``Data``."""
    import pyarrow as pa

    def first(*names: str) -> Any:
        found = (getattr(data, name, None) for name in names)
        return next((values for values in found if values is not None), None)

    relation, time, message = first(*_RELATION), first(*_TIME), first("msg")
    if relation is None and message is not None and message.reshape(len(message), -1).shape[1] == 1:
        relation = message.reshape(-1)
    pairs = first("edge_index")
    ends = (first("src"), first("dst")) if pairs is None else (pairs[0], pairs[1])
    columns = {"subject": ends[0], "relation": relation, "object": ends[1], "time": time}
    for name, column in columns.items():
        if column is None:
            where = {"relation": (*_RELATION, "msg with one column"), "time": _TIME}
            raise DataError(
                f"the {type(data).__name__} has no {name}: it may be in "
                f"{', '.join(where.get(name, ('src', 'dst', 'edge_index')))}"
            )
    arrays = {name: column.detach().cpu().reshape(-1).numpy() for name, column in columns.items()}
    return pa.table(arrays)

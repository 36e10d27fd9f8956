"""Facts that Python holds: frames, Arrow streams, tuples, dictionaries, graphs of other libraries.

``read_facts`` and ``Forecaster.observe`` both take what :func:`rows_in_memory` takes.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from metatkgr.data.readers.headers import recognise
from metatkgr.data.readers.options import ReadOptions
from metatkgr.data.readers.tables import (
    Rows,
    is_frame,
    rows_of_frame,
    rows_of_mappings,
    rows_of_tuples,
)
from metatkgr.errors import DataError

__all__ = ["TAKEN", "holds_rows", "rows_in_memory"]

TAKEN = (
    "tuples, dictionaries, a pandas or polars frame, anything that gives an Arrow stream (pyarrow, "
    "DuckDB), a directed graph of networkx, or the TemporalData of PyTorch Geometric"
)
_RELATION, _TIME = ("edge_type", "rel_type", "relation", "rel"), ("t", "edge_time", "time")
"""What attributes of PyTorch Geometric's data are called, the usual ones first."""


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
    try:
        import pyarrow as pa
    except ImportError:
        raise DataError("to read an Arrow stream, install pyarrow (pip install pyarrow)") from None
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

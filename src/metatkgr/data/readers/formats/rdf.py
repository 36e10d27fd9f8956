"""RDF with times: N-Quads, N-Triples, Turtle and TriG, also compressed; needs the extra ``rdf``.

A statement is a fact with the time of the graph that it is in, or with the time that is said of it
(RDF 1.2: a reifier has properties; or RDF-star, from which it came). The time of a graph is what is
said of the graph, or else the date at the end of its name. What is said is a time if its property
has a name as headers have (``validFrom``, ``date`` …) or its value is a date; one whose property is
named as an end (``validTo``, ``until`` …) is the end of an interval. RDF-star says start and end of
a statement apart: the first end belongs to the first start. A statement without a time is a bad
row. The whole file is in memory: what is said of a graph may stand anywhere.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from metatkgr.data.readers.bad_rows import FIRST, BadRow, shorten
from metatkgr.data.readers.formats import kind_of_file, register
from metatkgr.data.readers.formats.text import blocks_of
from metatkgr.data.readers.headers import role_of
from metatkgr.data.readers.options import Budget, ReadOptions
from metatkgr.data.readers.tables import Rows, rows_of_mappings
from metatkgr.data.readers.times import Kind, kind_of
from metatkgr.errors import DataError, need

_FORMATS = {".nq": "N_QUADS", ".nt": "N_TRIPLES", ".ttl": "TURTLE", ".trig": "TRIG"}
_BY_LINE = (".nq", ".nt")
_REIFIES = "http://www.w3.org/1999/02/22-rdf-syntax-ns#reifies"
_DATES = re.compile(r"http://www\.w3\.org/2001/XMLSchema#(date|dateTime|dateTimeStamp|gYear.*)")
_SEGMENT = re.compile(r"[/#:]")


@dataclass(eq=False)
class _Statements:
    """The statements of a file and what is said of graphs and of statements."""

    quads: list[tuple[int, Any]] = field(default_factory=list)
    bad: list[BadRow] = field(default_factory=list)
    bad_total: int = 0
    said: dict[str, dict[str, str]] = field(default_factory=dict)
    """Time and end by the name of a graph or a reifier."""
    reified: set[tuple[str, str, str]] = field(default_factory=set)


@register(*_FORMATS, compressed=True)
def read(file: Path, options: ReadOptions, rows: int | None, *, times_only: bool) -> Iterator[Rows]:
    """The facts of an RDF file; see :class:`FileFormat`."""
    pyoxigraph = need("pyoxigraph")
    _, suffix, compression = kind_of_file(file)
    data = b"".join(blocks_of(file, compression, None, Budget(str(file), options)))
    rdf = getattr(pyoxigraph.RdfFormat, _FORMATS[suffix])
    found = _Statements()
    if suffix in _BY_LINE:
        for number, line in enumerate(data.split(b"\n"), 1):
            _take(found, number, line, str(file), rdf)
    else:
        try:
            found.quads += enumerate(pyoxigraph.parse(data, format=rdf), 1)
        except (SyntaxError, ValueError) as error:
            raise DataError(f"{file} is not readable as RDF: {_reason(error)}") from None
    facts, numbers = _facts(found)
    if not facts:
        why = f": {found.bad[0].text()}" if found.bad else ""
        raise DataError(f"{file} holds no statement that can be read{why}")
    interval = any("end" in fact for fact in facts)
    keys = ("subject", "relation", "object", "time", *(("end",) if interval else ()))
    chosen = ReadOptions.of(options, {"columns": keys, "interval": None})
    listed = [{key: fact.get(key) for key in keys} for fact in facts]
    made = rows_of_mappings(listed, chosen, source=str(file), numbers=numbers)
    place = "line" if suffix in _BY_LINE else "row"
    yield replace(made, place=place, bad=tuple(found.bad), bad_total=found.bad_total)


def _take(found: _Statements, number: int, line: bytes, source: str, rdf: Any) -> None:
    """Parse one line, which holds one statement, nothing, or something else."""
    import pyoxigraph

    begin = line.lstrip()
    if begin.startswith(b"<<") and not begin.startswith(b"<<("):  # RDF-star, unknown to RDF 1.2
        rdf = pyoxigraph.RdfFormat.TURTLE
    try:
        found.quads += ((number, quad) for quad in pyoxigraph.parse(line, format=rdf))
    except (SyntaxError, ValueError) as error:
        found.bad_total += 1
        if len(found.bad) < FIRST:
            text = shorten(line.decode("utf-8", "backslashreplace").strip())
            found.bad.append(BadRow(source, "line", number, "subject", text, _reason(error)))


def _reason(error: Exception) -> str:
    return re.sub(r"^Parser error .*?: | \(line \d+\)$", "", str(error).splitlines()[0])[:200]


def _facts(found: _Statements) -> tuple[list[dict[str, str]], list[int]]:
    """The facts with their times, and their numbers."""
    graphs = {_text(quad.graph_name) for _, quad in found.quads}
    reifiers = {_text(q.subject) for _, q in found.quads if q.predicate.value == _REIFIES}
    others = []
    for number, quad in found.quads:
        about = _text(quad.subject)
        if quad.predicate.value == _REIFIES and hasattr(quad.object, "predicate"):
            found.reified.add(_triple(quad.object))
        elif about in reifiers or (about in graphs and _is_default(quad)):
            role = _time_role(quad)
            if role:
                found.said.setdefault(about, {})[role] = quad.object.value
            continue
        others.append((number, quad))
    facts, numbers = [], []
    halves: dict[tuple[str, str, str], list[dict[str, str]]] = {}
    for number, quad in others:
        reifies = quad.predicate.value == _REIFIES and hasattr(quad.object, "predicate")
        triple = _triple(quad.object if reifies else quad)
        if not reifies and _is_default(quad) and triple in found.reified:
            continue  # said once more, with its time
        named = _text(quad.subject) if reifies else _text(quad.graph_name)
        times = found.said.get(named) or _by_name("" if reifies else named)
        fact = dict(zip(("subject", "relation", "object"), triple, strict=True)) | times
        if reifies and len(times) == 1:
            waiting = halves.setdefault(triple, [])
            if waiting and waiting[0].keys() != fact.keys():
                waiting.pop(0).update(times)
                continue
            waiting.append(fact)
        facts.append(fact)
        numbers.append(number)
    return facts, numbers


def _time_role(quad: Any) -> str:
    """Whether a statement says a time, an end, or neither ('')."""
    datatype = getattr(getattr(quad.object, "datatype", None), "value", "")
    if not datatype:
        return ""
    role = role_of(_SEGMENT.split(quad.predicate.value)[-1])
    return role if role in ("time", "end") else "time" if _DATES.fullmatch(datatype) else ""


def _by_name(graph: str) -> dict[str, str]:
    """The date at the end of a graph's name."""
    end = _SEGMENT.split(graph)[-1]
    return {"time": end} if kind_of(end) in (Kind.DATE, Kind.INTEGER) else {}


def _is_default(quad: Any) -> bool:
    return not hasattr(quad.graph_name, "value")


def _triple(triple: Any) -> tuple[str, str, str]:
    return _text(triple.subject), _text(triple.predicate), _text(triple.object)


def _text(term: Any) -> str:
    """A name or a literal without its brackets; a blank node as it is written."""
    text = str(term)
    return text if text.startswith("_:") else getattr(term, "value", text)

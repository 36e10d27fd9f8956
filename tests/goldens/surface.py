"""All that the goldens touch of the package beyond ``import metatkgr as mt`` and the commands.

What was recorded must outlive the inside of the package. Where a name moves or a column changes its
type, this file is put right and no other; the recorded numbers stay as they are.
"""

from __future__ import annotations

import hashlib
import io
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np

import metatkgr as mt
from command_line import Ran

__all__ = [
    "command",
    "digest",
    "facts_outcome",
    "filters_of",
    "has_weights",
    "law_of",
    "loaded_model",
    "mrr",
    "part_of",
    "queries_of",
    "read_with_report",
    "sampled",
    "save_weights",
    "scores_of",
    "service_app",
    "service_client",
    "tasks_outcome",
    "trained_model",
]


def digest(*columns: Any) -> str:
    """The first 16 hexadecimal digits of a sha256 over integer columns and texts."""
    total = hashlib.sha256()
    for column in columns:
        if isinstance(column, str):
            data = column.encode("utf-8", "surrogatepass")
        else:
            data = np.ascontiguousarray(np.asarray(column).astype(np.int64)).tobytes()
        total.update(f"{len(data)}:".encode() + data)
    return total.hexdigest()[:16]


# Commands and files -------------------------------------------------------------------------------


def command(*words: object) -> Ran:
    """Call the command line in this process, as ``python -m metatkgr`` would."""
    from metatkgr.cli import main

    out, err, code = io.StringIO(), io.StringIO(), 0
    with (
        patch.object(sys, "argv", ["metatkgr", *map(str, words)]),
        patch.dict("os.environ", {"COLUMNS": "1000"}),
        redirect_stdout(out),
        redirect_stderr(err),
    ):
        try:
            main()
        except SystemExit as stop:
            code = int(stop.code or 0)
    return Ran(code, out.getvalue(), err.getvalue())


def read_with_report(source: Any, **options: Any) -> tuple[Any, dict[str, Any]]:
    """Facts and what came of the rows, as ``to_json`` tells it."""
    from metatkgr.data.readers import read_facts_with_report

    facts, report = read_facts_with_report(source, **options)
    return facts, report.to_json()


def facts_outcome(facts: Any, *, most: int = 12) -> dict[str, Any]:
    """Columns, names and calendar: written out where they are few, else as digests."""
    columns = [np.asarray(c) for c in (facts.subject, facts.relation, facts.object, facts.time)]
    names = {
        kind: [str(name) for name in vocabulary]
        for kind, vocabulary in (("entities", facts.entities), ("relations", facts.relations))
    }
    calendar = facts.calendar
    outcome: dict[str, Any] = {
        "facts": len(facts),
        "calendar": [calendar.unit, int(calendar.origin), int(calendar.stride)],
        "name": facts.name,
    }
    if len(facts) <= most and all(len(some) <= most for some in names.values()):
        outcome["columns"] = [" ".join(str(int(v)) for v in column) for column in columns]
        return outcome | names
    outcome["columns"] = digest(*columns)
    for kind, some in names.items():
        outcome[kind] = [len(some), digest(*some)]
    for kind, vocabulary in (("entities", facts.entities), ("relations", facts.relations)):
        labels = [vocabulary.label(number) for number in range(len(vocabulary))]
        if labels != names[kind]:
            outcome[f"{kind}_labels"] = digest(*labels)
    return outcome


# Tasks and ranks ----------------------------------------------------------------------------------


def law_of(facts: Any) -> Any:
    """The law of a simulated graph, else None."""
    return facts.law


def queries_of(tasks: Any) -> tuple[Any, Any, Any]:
    """(Q,) entity, relation and time of the distinct questions."""
    asked = tasks.questions
    return asked.entity, asked.relation, asked.time


def part_of(facts: Any, most: int) -> Any:
    """The graph of every n-th entity's facts as a subject, from its beginning to its end."""
    rows = np.asarray(facts.subject) % max(1, len(facts) // most) == 0
    columns = (facts.subject, facts.relation, facts.object, facts.time)
    return mt.Facts.build(
        *(np.asarray(column)[rows] for column in columns),
        entities=facts.entities,
        relations=facts.relations,
        name=facts.name,
    )


def tasks_outcome(tasks: Any) -> dict[str, Any]:
    """Digests of all that makes a set of tasks."""
    answers, supports, visible = tasks.answers, tasks.supports, tasks.visible
    # Links as the data has them; their inverses follow from them.
    given = np.asarray(visible.relation) < len(tasks.facts.relations)
    links = (visible.source, visible.relation, visible.target, visible.time)
    return {
        "tasks": int(tasks.count),
        "questions": [len(tasks.questions), digest(*queries_of(tasks))],
        "answers": [
            len(answers),
            digest(answers.question, answers.answer, answers.fact, answers.later),
        ],
        "supports": [
            len(supports),
            digest(supports.entity, supports.relation, supports.other, supports.time),
        ],
        "support_facts": [len(tasks.support_facts), digest(tasks.support_facts)],
        "public": [int(given.sum()), digest(*(np.asarray(column)[given] for column in links))],
    }


def filters_of(tasks: Any) -> dict[str, str]:
    """For each filter a digest of every question's true answers, in ascending order."""
    from metatkgr.data.answers import true_answers
    from metatkgr.data.visibility import VisibleFacts

    found = {}
    for name in ("static", "time"):
        true = true_answers(VisibleFacts.of(tasks.facts), tasks.questions, name)
        start, stop, entity = (np.asarray(c) for c in (true.start, true.stop, true.entity))
        count = stop - start
        inside = np.arange(int(count.sum())) - np.repeat(np.cumsum(count) - count, count)
        found[name] = digest(count, entity[np.repeat(start, count) + inside])
    return found


def sampled(tasks: Any, most: int) -> Any:
    """The same tasks with so many of their questions, always the same ones."""
    return tasks.sample(most, seed=0)


def mrr(ranks: Any) -> float:
    """Mean reciprocal rank."""
    return float((1.0 / np.asarray(ranks, np.float64)).mean())


# Models with weights ------------------------------------------------------------------------------


def has_weights(name: str) -> bool:
    """Whether a model has to be trained."""
    from metatkgr.models.base import TrainableModel

    return issubclass(mt.available()[name], TrainableModel)


def trained_model(name: str, facts: Any, settings: dict[str, Any]) -> Any:
    """A model after a training at seed 0, 3 shots, on one thread."""
    return mt.Estimator(name, shots=3, seed=0, device="cpu", **settings).fit(facts).model_


def save_weights(model: Any, path: Path) -> None:
    """Write what a training has learned."""
    from safetensors.torch import save_file

    path.parent.mkdir(parents=True, exist_ok=True)
    state = model.state_dict() if hasattr(model, "state_dict") else model.state()
    own = {key: value.detach().cpu().contiguous().clone() for key, value in state.items()}
    save_file(own, path)


def loaded_model(name: str, facts: Any, settings: dict[str, Any], path: Path) -> Any:
    """A model with weights that :func:`save_weights` wrote, of this code or an earlier one."""
    from safetensors.torch import load_file

    model: Any = mt.create(name, settings)
    load = model.load_state_dict if hasattr(model, "load_state_dict") else model.load_state
    load(load_file(path))
    return model


def scores_of(model: Any, tasks: Any, rows: Any, candidates: Any) -> Any:
    """(Q, C) scores of some candidates of some questions, as float64."""
    model.prepare(tasks.visible).adapt(tasks.supports)
    scores = model.score(tasks.questions[np.asarray(rows, np.int64)])
    return scores.detach().cpu().double().numpy()[:, np.asarray(candidates)]


# The service --------------------------------------------------------------------------------------


def service_app(forecaster: Any, store: Path, model: str, *, poll_seconds: float = 0.2) -> Any:
    """The application of a service that has read its store."""
    from metatkgr.forecasting.store import FactStore
    from metatkgr.serving.app import create_app
    from metatkgr.serving.limits import ServiceSettings
    from metatkgr.serving.service import Service

    service = Service(forecaster, FactStore(store), model=model, poll_seconds=poll_seconds)
    service.start()
    return create_app(service, ServiceSettings())


@contextmanager
def service_client(model: Any, facts: Any, store: Path) -> Iterator[Any]:
    """An HTTP client of a service in this process."""
    from fastapi.testclient import TestClient

    name = model if isinstance(model, str) else model.name
    app = service_app(mt.Forecaster.of(facts, model), store, name)
    with TestClient(app, base_url="http://127.0.0.1") as client:
        yield client

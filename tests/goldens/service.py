"""What the service answers about old entities, and about one that nobody had heard of before."""

from __future__ import annotations

import tempfile
from functools import partial
from pathlib import Path
from typing import Any

from goldens.cells import Cell
from goldens.surface import digest, has_weights, service_client
from goldens.trained import SMALL_WORLD, graph, taught

__all__ = ["cells"]

_MODELS = ("paths", "pagerank", "recurrency", "evidence", "metatkgr")
_NEW = "Zoltan Newcomer"


def cells() -> list[Cell]:
    """One for each model."""
    return [
        Cell(
            f"service/{model}",
            partial(_answers, model),
            tolerance=1e-5 if has_weights(model) else 1e-9,
        )
        for model in _MODELS
    ]


def _answers(model: str) -> dict[str, Any]:
    facts = graph(SMALL_WORLD)
    described = [facts.describe(row) for row in range(len(facts))]
    last, late = described[-1], described[-40][3]
    old, relation, other, _ = last
    answering = taught(SMALL_WORLD, model) if has_weights(model) else model
    found: dict[str, Any] = {}
    with (
        tempfile.TemporaryDirectory(prefix="goldens-") as place,
        service_client(answering, facts, Path(place) / "facts.sqlite") as client,
    ):

        def post(title: str, path: str, **body: Any) -> None:
            answer = client.post(path, json=body)
            content = answer.json()
            found[title] = _shorter(_plain(content)) | {"status": answer.status_code}
            if "calibration" in content:
                found["calibration"] = _shorter(content["calibration"])

        def ask(who: str, word: str) -> None:
            asked = {"entity": who, "relation": relation}
            post(f"{word}: explained", "/predict", **asked, top=2, explain=True)
            post(f"{word}: subject, later", "/predict", **asked, top=2, side="subject", within=3)
            post(f"{word}: as of {late}", "/predict", **asked, top=2, at=late)
            post(f"{word}: any relation", "/predict", entity=who, top=2)
            post(f"{word}: why", "/explain", **asked, answer=other)

        ask(old, "before, old")
        post("before, new", "/predict", entity=_NEW, relation=relation)
        first = {"subject": _NEW, "relation": relation, "object": other, "time": last[3]}
        post("first fact", "/facts", **first)
        ask(_NEW, "after one")
        more = [
            {
                "subject": _NEW,
                "relation": described[-n][1],
                "object": described[-n][2],
                "time": described[-n][3],
            }
            for n in (30, 20)
        ]
        more.append({"subject": "Zoe Newer", "relation": relation, "object": _NEW, "time": last[3]})
        post("more facts", "/facts", facts=[*more, first])
        ask(_NEW, "after four")
        post("after, old", "/predict", entity=old, relation=relation, top=2, explain=True)
        timeline = client.get("/facts", params={"entity": _NEW}).json()
        found["timeline"] = timeline
        found["graph"] = client.get("/graph").json()
    return found


def _plain(answer: dict[str, Any]) -> dict[str, Any]:
    """An answer in fewer words: the query, a forecast and a reason are a line each."""
    plain = {key: value for key, value in answer.items() if key not in _LONG}
    if "query" in answer:
        plain["query"] = " | ".join(map(str, answer["query"].values()))
    if "forecasts" in answer:
        plain["forecasts"] = [_forecast(forecast) for forecast in answer["forecasts"]]
    if "reasons" in answer:
        plain["reasons"] = _reasons(answer["reasons"])
    return plain


_LONG = ("query", "forecasts", "reasons", "calibration", "explanation")
"""What is told shorter; the explanation is that of the first forecast, once more."""


def _forecast(forecast: dict[str, Any]) -> list[Any]:
    words = ("rank", "entity", "relation", "side", "at")
    line = " | ".join(str(forecast[key]) for key in words)
    numbers = [_rounded(forecast["score"]), _rounded(forecast["probability"])]
    return [line, *numbers, *_reasons(forecast["reasons"])]


def _reasons(reasons: list[dict[str, Any]]) -> list[list[Any]]:
    """Kind and text, weight, and of its facts how many and a digest of all."""
    found = []
    for reason in reasons:
        facts = ["/".join(fact) for fact in reason["facts"]]
        line = [f"{reason['kind']}: {reason['text']}", _rounded(reason["weight"])]
        found.append([*line, len(facts), digest(*facts)])
    return found


def _shorter(answer: Any) -> Any:
    """The same with ten digits of each number."""
    if isinstance(answer, dict):
        return {key: _shorter(value) for key, value in answer.items()}
    if isinstance(answer, list):
        return [_shorter(value) for value in answer]
    return _rounded(answer) if isinstance(answer, float) else answer


def _rounded(value: float) -> float:
    return float(f"{value:.10g}")

"""Requests to the service, from well-formed to hostile, through the whole application."""

from __future__ import annotations

import asyncio
import json
import random
import shutil
from functools import cache
from typing import Any
from urllib.parse import quote

from fuzz.fuzzing import fuzzer, scratch
from fuzz.mutation import damage_bytes, damage_value, odd_text
from metatkgr.data.facts import Facts
from metatkgr.data.world import simulate
from metatkgr.errors import MetaTKGRError
from metatkgr.forecasting.forecaster import Forecaster
from metatkgr.forecasting.store import FactStore
from metatkgr.serving.app import create_app
from metatkgr.serving.limits import ServiceSettings
from metatkgr.serving.service import Service

_MOST = 2000
_state: dict[str, Any] = {}


class RefusedError(MetaTKGRError):
    """The service answered with an error of its own."""


@cache
def _facts() -> Facts:
    return simulate(facts=400, seed=1)


@cache
def _loop() -> asyncio.AbstractEventLoop:
    return asyncio.new_event_loop()


def _app() -> Any:
    """An application that is begun anew from time to time, because it gathers facts."""
    if "app" not in _state or _state["used"] > _MOST:
        if "app" in _state:
            _state["service"].stop()
        folder = scratch() / "service"
        shutil.rmtree(folder, ignore_errors=True)
        service = Service(
            Forecaster.of(_facts(), "paths"),
            FactStore(folder / "facts.sqlite"),
            model="paths",
            poll_seconds=60,
        )
        service.start()
        _ = service.forecaster.calibration
        _state.update(service=service, app=create_app(service, ServiceSettings()), used=0)
    _state["used"] += 1
    return _state["app"]


def _ask(
    method: str, target: str, headers: list[tuple[bytes, bytes]], body: bytes
) -> tuple[int, bytes]:
    path, _, query = target.partition("?")
    scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": method,
        "scheme": "http",
        "path": path,
        "raw_path": path.encode("utf-8", "surrogatepass"),
        "query_string": query.encode("utf-8", "surrogatepass"),
        "headers": [(b"host", b"127.0.0.1:8000"), *headers],
        "client": ("127.0.0.1", 5000),
        "server": ("127.0.0.1", 8000),
        "root_path": "",
    }
    parts = [{"type": "http.request", "body": body, "more_body": False}]
    said: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        if not parts:
            await asyncio.Event().wait()  # the client stays, and says no more
        return parts.pop(0)

    async def send(message: dict[str, Any]) -> None:
        said.append(message)

    async def whole() -> None:
        await _app()(scope, receive, send)

    _loop().run_until_complete(whole())
    assert said
    assert said[0]["type"] == "http.response.start"
    return said[0]["status"], b"".join(message.get("body", b"") for message in said[1:])


def _body(rng: random.Random) -> tuple[str, Any]:
    facts = _facts()
    names, relations = facts.entities, facts.relations
    entity = rng.choice(names.names) if rng.random() < 0.9 else odd_text(rng)
    relation = rng.choice(relations.names) if rng.random() < 0.95 else odd_text(rng)
    time = facts.calendar.label(rng.randrange(facts.steps))
    kind = rng.randrange(4)
    if kind == 0:
        asked = {"entity": entity, "relation": relation, "at": time, "top": 3, "side": "object"}
        return "/predict", asked
    if kind == 1:
        return "/explain", {"entity": entity, "relation": relation, "answer": names[1], "at": time}
    fact = {"subject": f"New {rng.randrange(50)}", "relation": relation, "object": entity}
    fact["time"] = time
    return "/facts", fact if kind == 2 else {"facts": [fact, {**fact, "object": names[2]}]}


@fuzzer(share=3)
def requests(rng: random.Random) -> None:
    """An answer that is no failure of ours; of facts, what was said to be kept is kept."""
    headers = [(b"content-type", b"application/json")]
    method, data = "POST", b""
    if rng.random() < 0.75:
        target, body = _body(rng)
        body = damage_value(rng, body, rng.choice((0, 0, 1, 1, 2)))
        data = json.dumps(body).encode()
        if rng.random() < 0.2:
            data = damage_bytes(rng, data)
        if rng.random() < 0.01:
            data = rng.choice((b"[" * 50_000, b'{"a":' * 50_000, b"9" * 6000))
    else:
        method = rng.choice(("GET", "GET", "GET", "HEAD", "PUT", "OPTIONS", "XYZ", "POST"))
        paths = ["/entities?q=", "/facts?entity=", "/graph", "/newcomers?limit=", "/health"]
        paths += ["/metrics", "/quality", "/page/../x", "/openapi.json", "/"]
        path = rng.choice(paths)
        target = path + (quote(odd_text(rng), errors="replace") if path.endswith("=") else "")
        if rng.random() < 0.2:
            target = "/" + odd_text(rng).replace("?", "")
    if rng.random() < 0.1:
        name = rng.choice(
            (b"content-type", b"content-length", b"authorization", b"host", b"origin")
        )
        headers = [pair for pair in headers if pair[0] != name]
        headers.append((name, odd_text(rng).encode("utf-8", "replace")[:2000]))
    status, said = _ask(method, target, headers, data)
    assert 200 <= status < 500 or status == 503, (
        f"{method} {target} {data[:200]!r}: {status} {said!r}"
    )
    if status >= 400:
        if method != "HEAD":
            error = json.loads(said)["error"]
            assert error["code"]
            assert error["message"]
        raise RefusedError(f"{status}")
    if method == "POST" and target == "/facts":
        _check_kept(json.loads(data), json.loads(said))


def _check_kept(body: Any, said: dict[str, Any]) -> None:
    told = body.get("facts", [body])
    assert said["accepted"] + said["duplicates"] == len(told)
    forecaster = _state["service"].forecaster
    for fact in told:
        # Space behind a name is not part of it.
        wanted = tuple(fact[key].strip() for key in ("subject", "relation", "object"))
        timeline = forecaster.timeline(wanted[0])
        assert wanted in {(one.subject, one.relation, one.object) for one in timeline}


@fuzzer(share=3)
def observed_rows(rng: random.Random) -> None:
    """Facts told to the forecaster from Python: all are counted, or none is taken."""
    from fuzz.mutation import odd_value

    _app()
    forecaster = _state["service"].forecaster
    facts = _facts()

    def cell(usual: Any) -> Any:
        draw = rng.random()
        return usual if draw < 0.85 else odd_text(rng) if draw < 0.95 else odd_value(rng)

    rows: Any = [
        (
            cell(f"New {rng.randrange(20)}"),
            cell(rng.choice(facts.relations.names)),
            cell(rng.choice(facts.entities.names)),
            cell(facts.calendar.label(rng.randrange(facts.steps))),
        )
        for _ in range(rng.choice((1, 2, 4)))
    ]
    if rng.random() < 0.05:
        rows = rng.choice((None, 3, "abcd", [3], [()], [{"subject": "a"}], {}, ("a", "b", "c", 1)))
    elif rng.random() < 0.2:
        rows = [
            dict(zip(("subject", "relation", "object", "time"), row, strict=True)) for row in rows
        ]
    before = len(forecaster.facts)
    try:
        result = forecaster.observe(rows)
    except MetaTKGRError:
        assert len(forecaster.facts) == before
        raise
    assert len(forecaster.facts) == before + result.accepted
    if isinstance(rows, list):
        assert result.accepted + result.duplicates == len(rows)

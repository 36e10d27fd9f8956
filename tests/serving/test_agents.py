"""The tools of an agent, asked through the client of the official SDK."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Awaitable, Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import anyio
import httpx2
import pytest
from mcp import Client, StdioServerParameters, stdio_client
from mcp.client.streamable_http import streamable_http_client

from command_line import Run
from local_service import Command, listening, started
from metatkgr.data.facts import Facts
from metatkgr.deadlines import check
from metatkgr.forecasting.store import FactStore
from metatkgr.serving.agents import PATH, agents_app, agents_server
from metatkgr.serving.auth import add_token
from metatkgr.serving.limits import Limits, ServiceSettings

NEW = "Zoltan Newcomer"
TOOLS = {"as_of", "graph", "newcomers", "observe", "search", "what_next", "why"}
PATIENCE = 120
"""Seconds; far more than anything here takes."""


def asked(server: Any, asking: Callable[[Client], Awaitable[None]]) -> None:
    async def talk() -> None:
        with anyio.fail_after(PATIENCE):
            async with Client(server) as client:
                await asking(client)

    anyio.run(talk)


async def call(client: Client, tool: str, **arguments: Any) -> Any:
    answer = await client.call_tool(tool, arguments)
    assert not answer.is_error, answer.content
    return answer.structured_content


async def refused(client: Client, tool: str, **arguments: Any) -> str:
    answer = await client.call_tool(tool, arguments)
    assert answer.is_error
    return answer.content[0].text


def first_fact(world: Facts) -> dict[str, str]:
    _, relation, other, _ = world.describe(0)
    last = world.calendar.label(world.steps - 1)
    return {"subject": NEW, "relation": relation, "object": other, "time": last}


async def the_whole_story(client: Client, world: Facts) -> None:
    """A newcomer is observed, found, forecast, explained and looked up."""
    assert {tool.name for tool in (await client.list_tools()).tools} == TOOLS
    graph = await call(client, "graph")
    fact = first_fact(world)
    assert graph["facts"] == len(world)
    assert fact["relation"] in {relation["name"] for relation in graph["relations"]}
    added = await call(client, "observe", facts=[fact])
    assert added == {"accepted": 1, "duplicates": 0, "new_entities": [NEW]}
    (found, *_) = (await call(client, "search", text="Zoltn Newcomer"))["entities"]
    assert (found["name"], found["facts"]) == (NEW, 1)
    said = await call(client, "what_next", entity=NEW, relation=fact["relation"], top=3)
    assert said["forecasts"][0]["entity"] == fact["object"]
    assert 0 < said["forecasts"][0]["probability"] <= 1
    question = {"entity": NEW, "relation": fact["relation"], "answer": fact["object"]}
    reasons = (await call(client, "why", **question))["reasons"]
    assert reasons[0]["facts"] == [list(fact.values())]
    assert (await call(client, "as_of", entity=NEW, time=graph["next"]))["total"] == 1
    assert (await call(client, "as_of", entity=NEW, time=fact["time"]))["facts"] == []
    assert len((await call(client, "newcomers", limit=2))["entities"]) == 2


def test_an_agent_asks_in_this_process(world: Facts, tmp_path: Path) -> None:
    service = started(world, tmp_path / "facts.sqlite")
    asked(agents_server(service), lambda client: the_whole_story(client, world))
    service.stop()


def test_an_agent_asks_over_http(world: Facts, tmp_path: Path) -> None:
    service = started(world, tmp_path / "facts.sqlite")
    with listening(agents_app(service, ServiceSettings())) as url:
        asked(url + PATH, lambda client: the_whole_story(client, world))
    service.stop()


def test_http_with_a_token_answers_only_who_sends_it(world: Facts, tmp_path: Path) -> None:
    service = started(world, tmp_path / "facts.sqlite")
    token = add_token(tmp_path / "tokens", "agent", "write", {"facts_per_day": 3})
    settings = ServiceSettings(token_file=tmp_path / "tokens")
    with listening(agents_app(service, settings)) as url:
        message = {"jsonrpc": "2.0", "id": 1, "method": "tools/list"}
        accept = {"Accept": "application/json, text/event-stream"}
        assert httpx2.post(url + PATH, json=message, headers=accept).status_code == 401
        known = httpx2.AsyncClient(headers={"Authorization": f"Bearer {token}"}, timeout=PATIENCE)

        async def asking(client: Client) -> None:
            await the_whole_story(client, world)
            others = [first_fact(world) | {"subject": f"Other {number}"} for number in range(3)]
            assert "3 facts a day" in await refused(client, "observe", facts=others)

        asked(streamable_http_client(url + PATH, http_client=known), asking)
    service.stop()


def test_an_agent_with_the_role_read_asks_and_tells_nothing(world: Facts, tmp_path: Path) -> None:
    service = started(world, tmp_path / "facts.sqlite")
    token = add_token(tmp_path / "tokens", "reader", "read")
    settings = ServiceSettings(token_file=tmp_path / "tokens", log=tmp_path / "log")
    with listening(agents_app(service, settings)) as url:
        known = httpx2.AsyncClient(headers={"Authorization": f"Bearer {token}"}, timeout=PATIENCE)

        async def asking(client: Client) -> None:
            said = await refused(client, "observe", facts=[first_fact(world)])
            assert "this needs the role write" in said
            assert (await call(client, "what_next", entity=world.entities[0]))["forecasts"]
            assert (await call(client, "graph"))["facts"] == len(world)

        asked(streamable_http_client(url + PATH, http_client=known), asking)
    assert (tmp_path / "log" / "audit.jsonl").read_text() == ""
    service.stop()


def test_what_a_client_does_wrong_prints_next_to_nothing(
    world: Facts,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    service = started(world, tmp_path / "facts.sqlite")

    def slowly(*words: Any, **how: Any) -> Any:
        while True:
            check()
            time.sleep(0.01)

    settings = ServiceSettings(port=0, limits=Limits(answer_seconds=0.3))
    with pytest.MonkeyPatch.context() as patch, listening(agents_app(service, settings)) as url:
        patch.setattr(service.forecaster, "predict", slowly)
        params = {"name": "what_next", "arguments": {"entity": world.entities[0]}}
        message = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
        headers = {"Accept": "application/json, text/event-stream"}
        told = httpx2.post(url + PATH, json=message, headers=headers, timeout=PATIENCE)
        assert told.status_code == 503
        headers["Origin"] = "http://evil.example"
        assert httpx2.post(url + PATH, json=message, headers=headers).status_code == 403
        time.sleep(0.5)  # the work sees that its time is over
    assert [record for record in caplog.records if record.name.startswith("mcp")] == []
    assert len(capfd.readouterr().err) < 1000
    service.stop()


def test_a_page_elsewhere_cannot_ask(world: Facts, tmp_path: Path) -> None:
    service = started(world, tmp_path / "facts.sqlite")
    with listening(agents_app(service, ServiceSettings())) as url:
        message = {"jsonrpc": "2.0", "id": 1, "method": "tools/list"}
        for headers in ({"Host": "evil.example"}, {"Origin": "http://evil.example"}):
            assert httpx2.post(url + PATH, json=message, headers=headers).status_code == 403
    service.stop()


def test_whatever_an_agent_changes_is_written_down(world: Facts, tmp_path: Path) -> None:
    service = started(world, tmp_path / "facts.sqlite")
    headers = {"Accept": "application/json, text/event-stream", "Content-Type": "application/json"}
    # What Python reads strictly, or otherwise, and the SDK does not mind.
    meta = ["NaN", "1e999, NaN", '{"a": 1, "a": 2}', "[" * 100 + "]" * 100]
    with listening(agents_app(service, ServiceSettings(log=tmp_path / "log"))) as url:
        for number, odd in enumerate(meta):
            fact = first_fact(world) | {"subject": f"Odd {number}"}
            arguments = {"facts": [fact], "confirm_new": True}
            params = {"name": "observe", "arguments": arguments, "_meta": {"x": ["ODD"]}}
            call = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
            body = json.dumps(call).replace('"ODD"', odd)
            answer = httpx2.post(url + PATH, content=body, headers=headers, timeout=PATIENCE)
            assert '"accepted":1' in answer.text, answer.text
        # Nothing is ever sent unasked, so nobody holds a place to wait for it.
        assert httpx2.get(url + PATH, headers=headers, timeout=PATIENCE).status_code == 405
    written = (tmp_path / "log" / "audit.jsonl").read_text().splitlines()
    assert [f"Odd {number}" in line for number, line in enumerate(written)] == [True] * len(meta)
    service.stop()


def test_what_cannot_be_answered_is_said_to_the_agent(world: Facts, tmp_path: Path) -> None:
    service = started(world, tmp_path / "facts.sqlite")
    fact = first_fact(world)

    async def asking(client: Client) -> None:
        name = world.entities[0]
        said = await refused(client, "what_next", entity=name[:-1] + "qq")
        assert "did you mean" in said
        assert name in said
        assert "unknown relation" in await refused(
            client, "observe", facts=[fact | {"relation": fact["relation"] + "x"}]
        )
        assert "top" in await refused(client, "what_next", entity=name, top=0)
        assert "facts" in await refused(client, "observe", facts=[])
        assert "sometime" in await refused(client, "as_of", entity=name, time="2018-sometime")
        # Nothing of it was taken, and the server still answers.
        assert (await call(client, "graph"))["facts"] == len(world)

    asked(agents_server(service), asking)
    service.stop()


def test_only_observe_is_told_to_write(world: Facts, tmp_path: Path) -> None:
    service = started(world, tmp_path / "facts.sqlite")

    async def asking(client: Client) -> None:
        tools = (await client.list_tools()).tools
        assert {t.name for t in tools if not t.annotations.read_only_hint} == {"observe"}
        assert all(tool.description and tool.output_schema for tool in tools)

    asked(agents_server(service), asking)
    service.stop()


def test_the_command_speaks_over_standard_input_and_keeps_what_it_was_told(
    world: Facts, tmp_path: Path
) -> None:
    kept = tmp_path / "facts.sqlite"
    words = ["-m", "metatkgr", "mcp", "world:3000:1", "--model", "paths", "--store", str(kept)]
    server = StdioServerParameters(command=sys.executable, args=words, env=dict(os.environ))
    asked(stdio_client(server), lambda client: the_whole_story(client, world))

    with closing(FactStore(kept)) as store:
        assert [row.fact.subject for row in store.since(0, 10)] == [NEW]


def test_the_command_listens_where_it_says(world: Facts, tmp_path: Path) -> None:
    words = ("world:3000:1", "--model", "paths", "--http", "--store", tmp_path / "facts.sqlite")
    with Command(*words, folder=tmp_path, command="mcp") as served:
        asked(served.url, lambda client: the_whole_story(client, world))
        served.process.send_signal(signal.SIGTERM)
        assert served.wait() == 0, served.said


def test_an_address_that_others_reach_needs_a_token(run: Run) -> None:
    shown = run("mcp", "world:3000:1", "--http", "--host", "0.0.0.0")
    assert shown.code == 2
    assert "--token-file" in shown.err


def test_without_the_extra_the_command_says_what_to_install(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "mcp", None)
    shown = run("mcp", "world:3000:1")
    assert shown.code == 2
    assert "pip install 'metatkgr[mcp]'" in shown.err

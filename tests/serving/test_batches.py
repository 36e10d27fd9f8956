"""Questions that wait are answered together, and nobody is worked for who has gone."""

from __future__ import annotations

import asyncio
import http.client
import json
import threading
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from local_service import app_of, client_of, listening, started
from metatkgr.data.facts import Facts
from metatkgr.deadlines import StoppedError, check, stopping
from metatkgr.errors import DataError
from metatkgr.forecasting.forecaster import Forecaster
from metatkgr.recent import Recent
from metatkgr.serving.app import create_app
from metatkgr.serving.batches import Batches
from metatkgr.serving.limits import Limits, ServiceSettings
from metatkgr.serving.middleware import LimitsMiddleware
from metatkgr.serving.schemas import PredictIn


class Slow:
    """Answers a question with itself, once it may."""

    def __init__(self) -> None:
        self.batches: list[list[str]] = []
        self.inside, self.go_on = threading.Event(), threading.Event()

    def __call__(self, questions: Sequence[PredictIn]) -> list[Any]:
        self.batches.append([question.entity for question in questions])
        self.inside.set()
        assert self.go_on.wait(10)
        bad = DataError("no")
        return [bad if question.entity == "bad" else question.entity for question in questions]


def question(entity: str, explain: bool = False) -> PredictIn:
    return PredictIn(entity=entity, explain=explain)


def test_who_comes_while_others_are_answered_is_answered_with_all_who_wait() -> None:
    slow = Slow()

    async def ask() -> list[Any]:
        batches = Batches(slow)
        first = asyncio.ensure_future(batches.ask(question("first")))
        await asyncio.to_thread(slow.inside.wait, 10)
        names = ("a", "bad", "b", "gone", "c")
        others = [asyncio.ensure_future(batches.ask(question(name))) for name in names]
        explained = [asyncio.ensure_future(batches.ask(question(str(n), True))) for n in range(9)]
        await asyncio.sleep(0)
        others[3].cancel()
        slow.go_on.set()
        answers = await asyncio.gather(first, *others, *explained, return_exceptions=True)
        batches.stop()
        return answers

    answers = asyncio.run(ask())
    assert ["first"] in slow.batches
    assert ["a", "bad", "b", "c"] in slow.batches, "in one batch, without who has gone"
    with_reasons = [batch for batch in slow.batches if batch[0].isdecimal()]
    assert sorted(name for batch in with_reasons for name in batch) == [str(n) for n in range(9)]
    assert max(map(len, with_reasons)) <= 8, "those with reasons apart, fewer"
    assert answers[:2] == ["first", "a"]
    assert isinstance(answers[2], DataError)
    assert isinstance(answers[4], asyncio.CancelledError)


def test_a_batch_that_fails_is_an_error_for_each_and_not_the_end() -> None:
    fails = True

    def answer(questions: Sequence[PredictIn]) -> list[Any]:
        if fails:
            raise RuntimeError("inside")
        return [question.entity for question in questions]

    async def ask() -> object:
        nonlocal fails
        batches = Batches(answer)
        with pytest.raises(RuntimeError):
            await batches.ask(question("a"))
        fails = False
        return await batches.ask(question("b"))

    assert asyncio.run(ask()) == "b"


def test_answers_of_a_batch_are_those_of_single_questions(world: Facts, tmp_path: Path) -> None:
    service = started(world, tmp_path / "facts.sqlite")
    names = [*world.entities[:3], "nobody"]
    questions = [
        PredictIn(entity=name, relation=relation, explain=explain)
        for name in names
        for relation in (None, world.relations[0])
        for explain in (False, True)
    ]
    together = service.answer(questions)
    for asked, answer in zip(questions, together, strict=True):
        if asked.entity == "nobody":
            assert isinstance(answer, Exception)
        else:
            words = {key: value for key, value in asked if key not in ("known_at", "what_if")}
            assert answer == service.forecaster.predict(**words)
    service.stop()


def post(url: str, asked: object) -> http.client.HTTPConnection:
    connection = http.client.HTTPConnection(url.removeprefix("http://"), timeout=30)
    body = json.dumps(asked)
    connection.request("POST", "/predict", body, {"Content-Type": "application/json"})
    return connection


def test_a_question_whose_client_has_gone_or_whose_time_is_over_is_dropped(
    world: Facts, tmp_path: Path
) -> None:
    service = started(world, tmp_path / "facts.sqlite")
    slow, whole = Slow(), service.answer

    def answer(questions: Sequence[PredictIn]) -> list[Any]:
        slow(questions)
        return whole(questions)

    assert service.forecaster.calibration.queries  # fitted before any answer has to be in time
    service.answer = answer  # type: ignore[method-assign]
    settings = ServiceSettings(port=0, limits=Limits(answer_seconds=3.0))
    names = world.entities
    with listening(create_app(service, settings), settings) as url:
        held = post(url, {"entity": names[0]})
        assert slow.inside.wait(10)
        gone, late = post(url, {"entity": names[1]}), post(url, {"entity": names[2]})
        time.sleep(0.3)
        gone.close()
        for connection in (held, late):
            said = connection.getresponse()
            assert (said.status, "took too long" in said.read().decode()) == (503, True)
        slow.go_on.set()
        again = post(url, {"entity": names[3]})
        assert again.getresponse().status == 200
        for connection in (held, late, again):
            connection.close()
    assert slow.batches == [[names[0]], [names[3]]]


class Endless:
    """Works until it is stopped."""

    def __init__(self) -> None:
        self.begun, self.stopped = threading.Event(), threading.Event()

    def __call__(self, *_: object) -> Any:
        self.begun.set()
        try:
            while True:
                check()
                time.sleep(0.005)
        except StoppedError:
            self.stopped.set()
            raise


@pytest.mark.parametrize("path", ["/newcomers", "/predict"])
@pytest.mark.parametrize("goes", [True, False])
def test_work_stops_when_the_client_goes_or_its_time_is_over(
    world: Facts, tmp_path: Path, path: str, goes: bool
) -> None:
    service, endless = started(world, tmp_path / "facts.sqlite"), Endless()
    service.newcomers = service.answer = endless  # type: ignore[method-assign]
    limits = Limits(answer_seconds=600.0 if goes else 0.5)
    settings = ServiceSettings(port=0, limits=limits)
    with listening(create_app(service, settings), settings) as url:
        connection = http.client.HTTPConnection(url.removeprefix("http://"), timeout=60)
        if path == "/predict":
            connection = post(url, {"entity": world.entities[0]})
        else:
            connection.request("GET", path)
        assert endless.begun.wait(60)
        if goes:
            connection.close()
        else:
            assert connection.getresponse().status == 503
        assert endless.stopped.wait(60), "it goes on for nobody"
        connection.close()


class Parts:
    """An app whose answer comes in parts, with a pause on the loop's clock before each."""

    def __init__(self, *pauses: float) -> None:
        self.pauses, self.sent, self.passed = pauses, 0, 0.0

    async def __call__(self, _: Any, receive: Any, send: Any) -> None:
        loop = asyncio.get_running_loop()
        real = loop.time
        loop.time = lambda: real() + self.passed  # type: ignore[method-assign]
        await send({"type": "http.response.start", "status": 200, "headers": []})
        for pause in self.pauses:
            self.passed += pause
            for _ in range(20):
                await asyncio.sleep(0)
            await send({"type": "http.response.body", "body": b"x", "more_body": True})
            self.sent += 1
        await send({"type": "http.response.body", "body": b"", "more_body": False})


@pytest.mark.parametrize(
    ("pauses", "sent"),
    [
        ([20] * 10, 10),  # each in time
        ([20, 20, 40, 1], 2),  # one too late
        ([25] * 200, 143),  # an hour is enough
    ],
)
@pytest.mark.parametrize("others", [0, 8])
def test_each_part_of_a_streamed_answer_has_its_time(
    pauses: list[float], sent: int, others: int
) -> None:
    parts = Parts(*pauses)
    gone = asyncio.Event()

    async def ask() -> None:
        metrics: Any = SimpleNamespace(
            busy=SimpleNamespace(set=lambda _: None), count=lambda *_: None
        )
        gate = LimitsMiddleware(parts, ServiceSettings(), metrics, ["/x"], [])
        gate._streams = others  # a quarter of 32 are long ones already
        headers = [(b"host", b"127.0.0.1")]
        scope = {"type": "http", "method": "GET", "path": "/x", "headers": headers,
                 "query_string": b"", "http_version": "1.1", "scheme": "http"}  # fmt: skip

        async def receive() -> Any:
            await gone.wait()

        async def send(_: Any) -> None:
            pass

        await asyncio.wait_for(gate(scope, receive, send), 10**6)
        assert (gate._busy, gate._streams) == (0, others)

    asyncio.run(ask())
    assert parts.sent == (1 if others else sent)


def test_a_connection_lasts_as_long_as_parts_of_an_answer_come() -> None:
    go_on = threading.Event()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"one ", "more_body": True})
        await asyncio.to_thread(go_on.wait, 60)
        await send({"type": "http.response.body", "body": b"two", "more_body": False})

    settings = ServiceSettings(port=0, limits=Limits(request_seconds=0.1))
    with listening(app, settings) as url:
        connection = http.client.HTTPConnection(url.removeprefix("http://"), timeout=60)
        connection.request("GET", "/")
        answer = connection.getresponse()
        assert answer.read(4) == b"one "
        time.sleep(1.5)  # connections are looked at once a second
        go_on.set()
        assert answer.read() == b"two"
        connection.close()


def test_a_question_without_reasons_is_answered_while_reasons_are_made(
    world: Facts, monkeypatch: pytest.MonkeyPatch
) -> None:
    forecaster = Forecaster.of(world, "paths")
    monkeypatch.setattr("metatkgr.forecasting.forecaster._REASONED_AT_ONCE", 3)
    whole = forecaster.predict(world.entities[0], explain=True)
    inside, go_on = threading.Event(), threading.Event()

    def between() -> None:
        inside.set()
        assert go_on.wait(60)

    monkeypatch.setattr("metatkgr.forecasting.forecaster.check", between)
    answers: list[Any] = []
    asking = threading.Thread(
        target=lambda: answers.append(forecaster.predict(world.entities[0], explain=True))
    )
    asking.start()
    assert inside.wait(60)
    last = world.calendar.label(world.steps)
    forecaster.observe([("Nova", world.relations[0], world.entities[0], last)])
    assert forecaster.predict("Nova").forecasts
    go_on.set()
    asking.join()
    assert answers == [whole], "it speaks of the facts that were known when it was asked"


def test_questions_of_many_clients_over_http_are_answered_rightly(
    world: Facts, tmp_path: Path
) -> None:
    with listening(app_of(world, tmp_path / "facts.sqlite")) as url:
        answers: dict[str, str] = {}

        def ask(name: str) -> None:
            connection = post(url, {"entity": name, "top": 1})
            answers[name] = json.loads(connection.getresponse().read())["query"]["entity"]
            connection.close()

        names = world.entities[:24]
        threads = [threading.Thread(target=ask, args=(name,)) for name in names]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert answers == {name: name for name in names}


def test_facts_are_observed_while_a_question_is_answered(world: Facts, tmp_path: Path) -> None:
    """Also while reasons are sought, which may take long: questions read a snapshot."""
    service = started(world, tmp_path / "facts.sqlite")
    forecaster = service.forecaster
    inside, go_on = threading.Event(), threading.Event()
    whole = forecaster._explanations

    def slow(*given: Any) -> Any:
        inside.set()
        assert go_on.wait(300)
        return whole(*given)

    forecaster._explanations = slow  # type: ignore[method-assign]
    answers: list[Any] = []
    asked = [PredictIn(entity=world.entities[0], explain=True)]
    asking = threading.Thread(target=lambda: answers.extend(service.answer(asked)))
    asking.start()
    assert inside.wait(300)
    last = world.calendar.label(world.steps)
    service.add([("Nova", world.relations[0], world.entities[0], last)])
    assert len(forecaster.timeline("Nova")) == 1
    assert forecaster.search("Nova")[0].name == "Nova"
    assert service.newcomers(1)
    go_on.set()
    asking.join()
    assert "Nova" not in str(answers[0])
    service.stop()


def test_a_look_back_is_waited_for_by_nobody_who_asks_about_now_or_has_gone(
    world: Facts, tmp_path: Path
) -> None:
    """It had the model while it was made; who had left waited for the turn, and had it made."""
    service = started(world, tmp_path / "facts.sqlite")
    forecaster = service.forecaster
    inside, go_on, made = threading.Event(), threading.Event(), []

    def make(when: Any) -> Forecaster:
        made.append(when)
        inside.set()
        assert go_on.wait(60)
        return forecaster

    forecaster._past = service._told_by = Recent(make, 2)  # type: ignore[assignment]
    asked = {"entity": world.entities[0]}
    moment = {**asked, "known_at": "2030-01-01T00:00:00Z"}
    date = {**asked, "as_of": world.calendar.label(world.steps - 2)}
    with client_of(create_app(service, ServiceSettings())) as client:
        for question in (date, moment):
            inside.clear()
            first = threading.Thread(target=partial(client.post, "/predict", json=question))
            first.start()
            assert inside.wait(60)
            with stopping(lambda: True), pytest.raises(StoppedError):
                service.look_back(PredictIn.model_validate_json(json.dumps(question)))
            assert client.post("/predict", json=asked).status_code == 200
            go_on.set()
            first.join()
            go_on.clear()
    assert len(made) == 2


@pytest.mark.parametrize("model", ["recurrency", "evidence"])
def test_a_calibration_is_not_fitted_for_who_has_gone(world: Facts, model: str) -> None:
    """A look back fits its own, which takes seconds."""
    forecaster = Forecaster.of(world, model)
    looks: list[bool] = []

    def gone() -> bool:
        looks.append(len(looks) >= 2)
        return looks[-1]

    with stopping(gone), pytest.raises(StoppedError):
        forecaster.calibrate()
    assert len(looks) == 3
    assert forecaster.calibration.queries

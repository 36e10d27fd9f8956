"""Who may do what, how much of it, and what is written down about it."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi.testclient import TestClient

from command_line import Run
from local_service import app_of, client_of, listening, started
from metatkgr.data.facts import Facts
from metatkgr.errors import MetaTKGRError
from metatkgr.forecasting.store import FactStore
from metatkgr.forecasting.store_tables import Amounts, QuotaError, Spending
from metatkgr.serving import auth, records
from metatkgr.serving.app import create_app
from metatkgr.serving.auth import Role, Tokens, add_token, needed_role
from metatkgr.serving.limits import ServiceSettings
from metatkgr.serving.records import Log


@pytest.fixture
def tokens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(auth, "_LOOK_SECONDS", 0.0)
    return tmp_path / "tokens.toml"


Asking = Callable[..., Any]


def asking(client: TestClient, token: str) -> Asking:
    """Requests with a token."""

    def ask(method: str, path: str, **how: Any) -> Any:
        return client.request(method, path, headers={"Authorization": f"Bearer {token}"}, **how)

    return ask


def fact_of(world: Facts, subject: str = "Nova") -> dict[str, str]:
    _, relation, other, _ = world.describe(0)
    last = world.calendar.label(world.steps - 1)
    return {"subject": subject, "relation": relation, "object": other, "time": last}


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text("ascii").splitlines()]


def test_a_token_is_asked_for_wherever_there_is_something_to_know(
    world: Facts, tokens: Path, tmp_path: Path
) -> None:
    token = add_token(tokens, "reader", "read")
    settings = ServiceSettings(host="0.0.0.0", token_file=tokens)
    with client_of(app_of(world, tmp_path / "facts.sqlite", settings)) as client:
        for path in ("/graph", "/metrics", "/openapi.json", "/entities?q=a", "/quality", "/no"):
            answer = client.get(path)
            assert answer.status_code == 401, path
            assert answer.headers["www-authenticate"] == "Bearer"
        for wrong in ("Bearer wrong", "Bearer", token, f"Basic {token}", "Bearer \xe9"):
            headers = {"Authorization": wrong.encode("latin-1")}
            assert client.get("/graph", headers=headers).status_code == 401
        right = {"Authorization": f"Bearer {token}", "Host": "service.example"}
        assert client.get("/graph", headers=right).status_code == 200
        assert client.get("/health").status_code == 200
        assert client.get("/").status_code == 200


def test_a_role_allows_what_it_says_and_a_changed_file_counts_at_once(
    world: Facts, tokens: Path, tmp_path: Path
) -> None:
    reader, writer = (add_token(tokens, role, role) for role in ("read", "write"))
    settings = ServiceSettings(token_file=tokens)
    service = started(world, tmp_path / "facts.sqlite")
    with client_of(create_app(service, settings)) as client:
        read, write = asking(client, reader), asking(client, writer)
        assert read("POST", "/predict", json={"entity": world.entities[0]}).status_code == 200
        refused = read("POST", "/facts", json=fact_of(world))
        assert (refused.status_code, refused.json()["error"]["code"]) == (403, "forbidden")
        assert write("POST", "/facts", json=fact_of(world)).status_code == 200
        assert write("GET", "/usage").status_code == 403
        admin = asking(client, add_token(tokens, "boss", "admin"))
        assert [t["name"] for t in admin("GET", "/usage").json()["tokens"]] == [
            "boss", "read", "write"
        ]  # fmt: skip
        text = tokens.read_text()
        tokens.write_text(text[: text.index("[write]")])
        assert write("GET", "/graph").status_code == 401
        assert read("GET", "/graph").status_code == 200
        # What is wrong with a file must not let anyone in, nor lock everyone out.
        tokens.write_text("[everyone]\nrole = 'admin'\n")
        assert read("GET", "/graph").status_code == 200
        tokens.unlink()
        assert read("GET", "/graph").status_code == 200
        assert write("GET", "/graph").status_code == 401


def test_what_nobody_has_thought_of_needs_the_right_to_write() -> None:
    assert needed_role("GET", "/graph") == needed_role("POST", "/predict") == Role.READ
    for method in ("POST", "PUT", "DELETE", "PATCH", "BREW"):
        assert needed_role(method, "/something/new") == Role.WRITE
    assert needed_role("GET", "/usage") == Role.ADMIN


def test_a_token_has_a_rate(world: Facts, tokens: Path, tmp_path: Path) -> None:
    token = add_token(tokens, "slow", "read", {"requests_per_minute": 3})
    other = add_token(tokens, "other", "read")
    settings = ServiceSettings(token_file=tokens)
    with client_of(create_app(started(world, tmp_path / "s"), settings)) as client:
        ask = asking(client, token)
        answers = [ask("GET", "/graph") for _ in range(10)]
        statuses = [answer.status_code for answer in answers]
        assert statuses[:3] == [200] * 3
        assert 429 in statuses[3:]
        assert 1 <= int(answers[statuses.index(429)].headers["retry-after"]) <= 20
        add_token(tokens, "third", "read")  # a new file does not give back what was used
        assert {ask("GET", "/graph").status_code for _ in range(5)} >= {429}
        assert asking(client, other)("GET", "/graph").status_code == 200


def test_quotas_of_facts_new_entities_and_bytes_outlive_a_restart(
    world: Facts, tokens: Path, tmp_path: Path
) -> None:
    limits = {"facts_per_day": 4, "new_entities_per_day": 2, "bytes_per_day": 10_000}
    token = add_token(tokens, "teller", "write", limits)
    boss = add_token(tokens, "boss", "admin")
    settings = ServiceSettings(token_file=tokens)
    for names, status in ((["A", "B"], 200), (["A", "C"], 429), (["A", "B"], 200), (["A"], 429)):
        # Each time anew.
        with client_of(create_app(started(world, tmp_path / "s"), settings)) as client:
            body = {"facts": [fact_of(world, name) for name in names]}
            answer = asking(client, token)("POST", "/facts", json=body)
            assert answer.status_code == status, answer.text
            if status == 429:
                assert "may tell" in answer.text
            used = asking(client, boss)("GET", "/usage").json()["tokens"][1]["used"]
            assert asking(client, boss)("POST", "/facts", json=fact_of(world, "Z")).is_success
    assert (used["facts"], used["entities"]) == (4, 2)
    with FactStore(tmp_path / "s") as store:
        assert {row.fact.subject for row in store.since()} == {"A", "B", "Z"}


def test_a_quota_is_kept_by_many_who_write_at_once(tmp_path: Path) -> None:
    def tell(number: int) -> None:
        spending = Spending("one", Amounts(1, 0, 0), Amounts(20, 0, 0))
        try:
            store.add([(f"S {number}", "r", "o", "2020")], spending=spending)
        except QuotaError:
            refused.append(number)

    refused: list[int] = []
    with FactStore(tmp_path / "s") as store:
        tellers = [threading.Thread(target=tell, args=(number,)) for number in range(50)]
        for teller in tellers:
            teller.start()
        for teller in tellers:
            teller.join()
        assert (len(store), len(refused)) == (20, 30)
        assert store.used_today() == {"one": Amounts(20, 0, 0)}


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("", "there is no token"),
        ("a-plain-token-of-before", "not TOML"),
        ("role = 'read'", "not a file of tokens"),
        ("[a]\nrole = 'read'", "not a file of tokens"),
        ("[a]\nrole = 'king'\nsha256 = '" + "0" * 64 + "'", "role must be one of"),
        ("[a]\nrole = 'read'\nsha256 = 'short'", "64 hexadecimal"),
        ("[a]\nrole = 'read'\nsha256 = '" + "0" * 64 + "'\nfacts_per_day = -1", "facts_per_day"),
        ("[a]\nrole = 'read'\nsha256 = '" + "0" * 64 + "'\nfacts = 1", "no field 'facts'"),
        ("['" + "a" * 65 + "']\nrole = 'read'\nsha256 = '" + "0" * 64 + "'", "a token's name"),
        ("['a\u202eb']\nrole = 'read'\nsha256 = '" + "0" * 64 + "'", "a token's name"),
    ],
)
def test_a_file_of_tokens_is_checked(tokens: Path, content: str, said: str) -> None:
    tokens.touch(mode=0o600)
    tokens.write_text(content)
    with pytest.raises(MetaTKGRError, match=said):
        Tokens(tokens)


def test_a_file_of_tokens_is_for_its_owner_and_holds_no_token(tokens: Path) -> None:
    token = add_token(tokens, "a", "read")
    assert token not in tokens.read_text()
    assert tokens.stat().st_mode & 0o777 == 0o600
    assert Tokens(tokens).find(token) is not None
    with pytest.raises(MetaTKGRError, match="already"):
        add_token(tokens, "a", "read")
    with pytest.raises(MetaTKGRError, match="name"):
        add_token(tokens, "a\nb", "read")
    for mode in (0o644, 0o620, 0o604):
        tokens.chmod(mode)
        with pytest.raises(MetaTKGRError, match="chmod 600"):
            Tokens(tokens)


def test_the_command_makes_tokens_and_serve_wants_a_file_of_them(run: Run, tokens: Path) -> None:
    made = run("token", "alice", "--role", "write", "--facts-per-day", 10, "--file", tokens)
    assert made.code == 0
    found = Tokens(tokens).find(made.out.strip())
    assert found is not None
    assert (found.name, found.role, found.most.facts) == ("alice", Role.WRITE, 10)
    assert run("token", "bob", "--role", "king", "--file", tokens).code == 2
    tokens.chmod(0o644)
    refused = run("serve", "world:2000", "--model", "paths", "--token-file", tokens)
    assert (refused.code, "chmod 600" in refused.err) == (2, True)


def test_logs_say_who_told_what_and_who_was_refused(
    world: Facts, tokens: Path, tmp_path: Path
) -> None:
    token = add_token(tokens, "alice", "write")
    settings = ServiceSettings(token_file=tokens, log=tmp_path / "log")
    hostile = "evil\u202e\u2028name"
    with client_of(create_app(started(world, tmp_path / "s"), settings)) as client:
        ask = asking(client, token)
        told = ask("POST", "/facts", json=fact_of(world, hostile))
        assert told.status_code == 200
        asking(client, "wrong-token")("POST", "/facts", json=fact_of(world, "B"))
        client.get("/graph")
        ask("GET", "/facts", params={"entity": hostile})
    (change,) = lines(tmp_path / "log" / "audit.jsonl")
    assert (change["token"], change["body"]) == ("alice", fact_of(world, hostile))
    assert change["request"] == told.headers["x-request-id"]
    access = lines(tmp_path / "log" / "access.jsonl")
    assert [(line["token"], line["status"], line.get("refused")) for line in access] == [
        ("alice", 200, None),
        (None, 401, "a wrong token"),
        (None, 401, "no token"),
        ("alice", 200, None),
    ]
    assert access[0]["request"] == change["request"]
    text = (tmp_path / "log" / "access.jsonl").read_text()
    assert token not in text
    assert "wrong-token" not in text
    for name in ("access.jsonl", "audit.jsonl"):
        assert (tmp_path / "log" / name).stat().st_mode & 0o777 == 0o600


def test_what_cannot_be_written_down_is_not_done(
    world: Facts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = ServiceSettings(log=tmp_path / "log")
    with client_of(create_app(started(world, tmp_path / "s"), settings)) as client:
        whole = os.write

        def full(file: int, line: bytes) -> int:
            return whole(file, line[: len(line) // 2])

        with monkeypatch.context() as patch:
            patch.setattr(records.os, "write", full)
            assert client.post("/facts", json=fact_of(world)).status_code == 503
            assert client.get("/graph").status_code == 200
        assert client.get("/facts", params={"entity": "Nova"}).status_code == 404
        told = client.post("/facts", json=fact_of(world))
        assert told.status_code == 200
    *_, last = (tmp_path / "log" / "audit.jsonl").read_text().splitlines()
    request = json.loads(last)["request"]
    assert request == told.headers["x-request-id"], "what was cut takes no later line along"


def test_who_a_proxy_says_to_speak_for_fills_no_log(world: Facts, tmp_path: Path) -> None:
    settings = ServiceSettings(port=0, log=tmp_path / "log")
    service = started(world, tmp_path / "facts.sqlite")
    with listening(create_app(service, settings), settings) as url:
        httpx.get(url + "/graph", headers={"X-Forwarded-For": "9" * 9000})
        httpx.get(url + "/graph", headers={"X-Forwarded-For": "2001:db8::1"})
    long, right = lines(tmp_path / "log" / "access.jsonl")
    assert (len(long["client"]), right["client"]) == (45, "2001:db8::1")


def test_a_log_is_put_aside_and_loses_nothing_while_several_write(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    logs = [Log(path, 1000) for _ in range(3)]  # as three processes have it

    def write(number: int) -> None:
        for count in range(20):
            logs[number].write({"who": number, "count": count})

    writers = [threading.Thread(target=write, args=(number,)) for number in range(3)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    files = sorted(path.parent.glob("log.jsonl*"))
    assert 3 < len(files) <= 10
    # Who has looked at the size writes one line more.
    assert all(file.stat().st_size <= 1300 for file in files)
    found = sorted((line["who"], line["count"]) for file in files for line in lines(file))
    assert found == [(who, count) for who in range(3) for count in range(20)]
    for number in range(2000):
        logs[0].write({"count": number})
    files = sorted(path.parent.glob("log.jsonl*"))
    assert len(files) == 10
    assert sum(file.stat().st_size for file in files) <= 10_000
    assert lines(path)[-1]["count"] == 1999

"""What the page about deployment shows is what systemd and nginx take, and works."""

from __future__ import annotations

import json
import shutil
import socket
import ssl
import subprocess
import sys
import time
from pathlib import Path
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen

import pytest

import metatkgr as mt
from local_service import listening, started
from metatkgr.serving.app import create_app
from metatkgr.serving.auth import add_token
from metatkgr.serving.limits import ServiceSettings

PAGE = Path(__file__).parent.parent.parent / "docs" / "deployment.md"


def block(language: str) -> str:
    text = PAGE.read_text(encoding="utf-8")
    return text.split(f"```{language}\n")[1].split("```")[0]


def test_systemd_takes_the_unit(tmp_path: Path) -> None:
    program = shutil.which("systemd-analyze")
    if program is None:
        pytest.skip("systemd-analyze is absent")
    unit = tmp_path / "metatkgr.service"
    # The account and the program are not here.
    text = block("ini").replace("User=metatkgr", "User=root")
    unit.write_text(text.replace("/opt/metatkgr/bin/metatkgr", sys.executable))
    done = subprocess.run(
        [program, "verify", "--man=no", str(unit)], capture_output=True, text=True, check=False
    )
    said = done.stdout + done.stderr
    if "Failed to" in said and "metatkgr.service" not in said:
        pytest.skip(f"systemd-analyze does not work here: {said[:200]}")
    assert (done.returncode, "metatkgr.service:" in said) == (0, False), said


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def test_nginx_ends_tls_before_the_service_and_says_who_asks(tmp_path: Path) -> None:
    nginx = shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin")
    if nginx is None or shutil.which("openssl") is None:
        pytest.skip("nginx or openssl is absent")
    make = "openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=forecasts.example"
    names = ["-addext", "subjectAltName=IP:127.0.0.1"]
    files = ["-keyout", str(tmp_path / "key.pem"), "-out", str(tmp_path / "cert.pem")]
    subprocess.run([*make.split(), *names, *files], check=True, capture_output=True)
    token = add_token(tmp_path / "tokens.toml", "reader", "read")
    log = tmp_path / "log"
    settings = ServiceSettings(port=0, token_file=tmp_path / "tokens.toml", log=log)
    service = started(mt.load("world:2000:1"), tmp_path / "facts.sqlite")
    with listening(create_app(service, settings), settings) as url:
        port = free_port()
        server = block("nginx").replace("127.0.0.1:8000", url.removeprefix("http://"))
        server = server.replace("listen 443 ssl", f"listen 127.0.0.1:{port} ssl")
        server = server.replace("/etc/ssl/forecasts.example/fullchain.pem", f"{tmp_path}/cert.pem")
        server = server.replace("/etc/ssl/forecasts.example/privkey.pem", f"{tmp_path}/key.pem")
        places = "".join(
            f"{kind}_temp_path {tmp_path}/{kind};\n"
            for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
        )
        (tmp_path / "nginx.conf").write_text(
            f"daemon off; master_process off; pid {tmp_path}/pid; error_log {tmp_path}/error.log;\n"
            f"events {{}}\nhttp {{\naccess_log off;\n{places}{server}\n}}\n"
        )
        command = [nginx, "-p", str(tmp_path), "-c", str(tmp_path / "nginx.conf")]
        subprocess.run([*command, "-t"], check=True, capture_output=True)
        trusted = ssl.create_default_context(cafile=str(tmp_path / "cert.pem"))
        proxy = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

        def ask(path: str, body: bytes | None = None) -> int:
            headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json",
                       "X-Forwarded-For": "203.0.113.9"}  # fmt: skip
            request = Request(f"https://127.0.0.1:{port}{path}", body, headers)
            try:
                with urlopen(request, timeout=60, context=trusted) as answer:
                    return int(answer.status)
            except HTTPError as error:
                return error.code

        try:
            end = time.monotonic() + 120
            while True:
                try:
                    assert ask("/graph") == 200
                    break
                except URLError:
                    assert proxy.poll() is None, (tmp_path / "error.log").read_text()
                    assert time.monotonic() < end
                    time.sleep(0.05)
            assert ask("/facts", b"{}") == 403
            assert ask("/predict", b" " * (5 << 20)) == 413
        finally:
            proxy.terminate()
            proxy.wait()
    lines = [json.loads(line) for line in (log / "access.jsonl").read_text().splitlines()]
    assert [(line["token"], line["status"], line["client"]) for line in lines] == [
        ("reader", 200, "127.0.0.1"),
        ("reader", 403, "127.0.0.1"),
    ], "what a client says of itself is not believed"

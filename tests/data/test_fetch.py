from __future__ import annotations

import hashlib
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from local_server import LocalServer

from metatkgr.data.catalog.download import DownloadError, download

CONTENT = bytes(range(256)) * 2_000
SUM = hashlib.sha256(CONTENT).hexdigest()


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[LocalServer]:
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with LocalServer({"/file": CONTENT}) as running:
        yield running


def get(server: LocalServer, target: Path, path: str = "/file", **options: object) -> Path:
    options = {"allow_loopback": True, "backoff": 0.0, **options}
    return download(server.url + path, target, **options)  # type: ignore[arg-type]


def parts_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_file_arrives_complete_and_leaves_nothing_beside_it(
    server: LocalServer, tmp_path: Path
) -> None:
    target = get(server, tmp_path / "deep" / "file", sha256=SUM)
    assert target.read_bytes() == CONTENT
    assert parts_in(target.parent) == ["file"]


def test_progress_ends_with_the_size_of_the_file(server: LocalServer, tmp_path: Path) -> None:
    seen: list[tuple[str, int, int | None]] = []
    get(server, tmp_path / "file", progress=lambda *report: seen.append(report))
    assert seen[0] == ("file", 0, len(CONTENT))
    assert seen[-1] == ("file", len(CONTENT), len(CONTENT))
    assert [done for _, done, _ in seen] == sorted(done for _, done, _ in seen)


def test_a_broken_connection_is_resumed_where_it_broke(server: LocalServer, tmp_path: Path) -> None:
    server.break_after = [200_000, 100_000]
    assert get(server, tmp_path / "file", sha256=SUM).read_bytes() == CONTENT
    assert [wanted for _, wanted in server.requests] == [None, "bytes=200000-", "bytes=300000-"]
    assert server.sent == len(CONTENT), "no byte was asked for twice"


def test_a_later_call_goes_on_where_a_failed_one_stopped(
    server: LocalServer, tmp_path: Path
) -> None:
    server.break_after = [200_000]
    with pytest.raises(DownloadError, match=r"broke after 200,000 of 512,000 bytes \(1 attempts\)"):
        get(server, tmp_path / "file", retries=0)
    assert not (tmp_path / "file").exists()
    assert get(server, tmp_path / "file").read_bytes() == CONTENT
    assert server.sent == len(CONTENT)


def test_a_killed_process_is_resumed_by_the_next_one(server: LocalServer, tmp_path: Path) -> None:
    target = tmp_path / "file"
    program = f"""
import os, pathlib
from metatkgr.data.catalog.download import download
def die(label, done, total):
    if done >= 250_000:
        os.kill(os.getpid(), 9)
download({server.url + "/file"!r}, pathlib.Path({str(target)!r}), progress=die, allow_loopback=True)
"""
    process = subprocess.run([sys.executable, "-c", program], check=False, capture_output=True)
    assert process.returncode == -9
    kept = (tmp_path / "file.part").stat().st_size
    assert kept > 150_000
    get(server, target, sha256=SUM)
    assert target.read_bytes() == CONTENT
    assert server.requests[-1] == ("/file", f"bytes={kept}-")


def test_a_file_that_changed_meanwhile_is_fetched_from_the_start(
    server: LocalServer, tmp_path: Path
) -> None:
    server.break_after = [200_000]
    with pytest.raises(DownloadError):
        get(server, tmp_path / "file", retries=0)
    server.files["/file"] = CONTENT[::-1]
    server.version = '"v2"'
    assert get(server, tmp_path / "file").read_bytes() == CONTENT[::-1]


def test_a_server_that_ignores_ranges_is_asked_for_everything_again(
    server: LocalServer, tmp_path: Path
) -> None:
    server.ranges = False
    server.break_after = [200_000]
    assert get(server, tmp_path / "file").read_bytes() == CONTENT


def test_without_a_version_or_a_sum_nothing_is_resumed(server: LocalServer, tmp_path: Path) -> None:
    server.version = ""
    server.break_after = [200_000]
    assert get(server, tmp_path / "file").read_bytes() == CONTENT
    assert [wanted for _, wanted in server.requests] == [None, None]


def test_without_a_version_a_sum_is_enough_to_resume(server: LocalServer, tmp_path: Path) -> None:
    server.version = ""
    server.break_after = [200_000]
    assert get(server, tmp_path / "file", sha256=SUM).read_bytes() == CONTENT
    assert server.sent == len(CONTENT)


def test_the_part_of_another_address_is_not_built_upon(server: LocalServer, tmp_path: Path) -> None:
    server.files["/other"] = CONTENT[::-1]
    server.break_after = [200_000]
    with pytest.raises(DownloadError):
        get(server, tmp_path / "file", retries=0)
    assert get(server, tmp_path / "file", "/other").read_bytes() == CONTENT[::-1]


def test_a_part_as_long_as_the_file_is_fetched_again(server: LocalServer, tmp_path: Path) -> None:
    server.break_after = [200_000]
    with pytest.raises(DownloadError):
        get(server, tmp_path / "file", retries=0)
    (tmp_path / "file.part").write_bytes(b"x" * len(CONTENT))
    assert get(server, tmp_path / "file").read_bytes() == CONTENT


@pytest.mark.parametrize("status", [429, 500, 503])
def test_passing_refusals_are_tried_again(server: LocalServer, tmp_path: Path, status: int) -> None:
    server.refusals = [status, status]
    assert get(server, tmp_path / "file").read_bytes() == CONTENT


def test_refusals_that_do_not_pass_end_with_one_sentence(
    server: LocalServer, tmp_path: Path
) -> None:
    server.refusals = [503] * 9
    with pytest.raises(DownloadError, match=r"answered 503 .* \(3 attempts\)") as caught:
        get(server, tmp_path / "file", retries=2)
    assert not caught.value.absent
    assert len(server.requests) == 3


def test_an_absent_file_is_not_asked_for_twice(server: LocalServer, tmp_path: Path) -> None:
    with pytest.raises(DownloadError, match="404") as caught:
        get(server, tmp_path / "file", "/nothing")
    assert caught.value.absent
    assert len(server.requests) == 1


def test_a_wrong_checksum_names_both_sums_and_keeps_nothing(
    server: LocalServer, tmp_path: Path
) -> None:
    with pytest.raises(DownloadError) as caught:
        get(server, tmp_path / "file", sha256="0" * 64)
    assert "0" * 64 in str(caught.value)
    assert SUM in str(caught.value)
    assert parts_in(tmp_path) == []


def test_too_large_a_file_is_refused_before_it_fills_the_disk(
    server: LocalServer, tmp_path: Path
) -> None:
    with pytest.raises(DownloadError, match="larger than 1,000 bytes"):
        get(server, tmp_path / "file", largest=1_000)
    assert parts_in(tmp_path) == []


def test_redirects_are_followed(server: LocalServer, tmp_path: Path) -> None:
    server.redirects["/moved"] = "/file"
    assert get(server, tmp_path / "file", "/moved").read_bytes() == CONTENT


@pytest.mark.parametrize("where", ["http://example.org/file", "http://localhost.example.org/file"])
def test_redirects_away_from_https_are_refused(
    server: LocalServer, tmp_path: Path, where: str
) -> None:
    server.redirects["/moved"] = where
    with pytest.raises(DownloadError, match="only https"):
        get(server, tmp_path / "file", "/moved")


@pytest.mark.parametrize(
    "url", ["http://127.0.0.1/x", "http://example.org/x", "file:///etc/hosts", "ftp://a/b", "x"]
)
def test_only_https_addresses_are_accepted(tmp_path: Path, url: str) -> None:
    with pytest.raises(DownloadError, match="only https"):
        download(url, tmp_path / "x")


def test_an_unknown_host_is_reported_without_waiting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise socket.gaierror(-3, "Temporary failure in name resolution")

    monkeypatch.setenv("no_proxy", "*")
    monkeypatch.setattr(socket, "getaddrinfo", fail)
    start = time.monotonic()
    with pytest.raises(DownloadError, match=r"could not download .*name resolution"):
        download("https://nowhere.invalid/x", tmp_path / "x", backoff=60)
    assert time.monotonic() - start < 5

"""Downloads over HTTPS that survive broken connections and killed processes.

What has arrived is kept in ``<target>.part`` with the server's name for that version of the file
beside it in ``<target>.part.json``; the next attempt, in this process or a later one, asks only for
the rest. The target appears at once and complete, after its checksum has been verified.
"""

from __future__ import annotations

import contextlib
import hashlib
import http.client
import ipaddress
import json
import os
import socket
import ssl
import sys
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable
from email.message import Message
from pathlib import Path
from typing import IO, Any

from metatkgr import __version__
from metatkgr.errors import DataError

__all__ = ["DownloadError", "Progress", "download", "terminal_progress"]

Progress = Callable[[str, int, int | None], None]
"""Called with what is being fetched, bytes so far, and bytes in all where known."""

_CHUNK = 1 << 16
_LARGEST = 1 << 28
_LONGEST_PAUSE = 30.0
_PASSING = {408, 425, 429, 500, 502, 503, 504}
"""HTTP answers after which the same request may well succeed."""


class DownloadError(DataError):
    """A file that could not be downloaded.

    Args:
        message: what happened.
        absent: whether the server answered that it has no such file (as against being out of
            reach), so that another address is worth trying.
    """

    def __init__(self, message: str, *, absent: bool = False) -> None:
        super().__init__(message)
        self.absent = absent


class _InterruptedError(Exception):
    """An attempt failed in a way that may pass."""

    def __init__(self, reason: str, pause: float | None = None) -> None:
        super().__init__(reason)
        self.pause = pause


def download(
    url: str,
    target: Path,
    *,
    sha256: str | None = None,
    progress: Progress | None = None,
    timeout: float = 30,
    retries: int = 3,
    backoff: float = 1.0,
    largest: int = _LARGEST,
    allow_loopback: bool = False,
) -> Path:
    """Download ``url`` to ``target``, resuming an earlier attempt where the server allows it.

    Args:
        url: an https address.
        target: the file to write; its folder is created.
        sha256: the expected checksum, in hexadecimal.
        progress: called with every piece that arrives.
        timeout: seconds without a sign of the server before an attempt is given up.
        retries: further attempts after passing errors.
        backoff: seconds before the first retry; doubled before each further one.
        largest: refuse anything larger, in bytes.
        allow_loopback: accept plain http from this very machine (for tests).

    Returns:
        ``target``.
    """
    _check_address(url, allow_loopback)
    target.parent.mkdir(parents=True, exist_ok=True)
    part = _Part(target, url)
    opener = urllib.request.build_opener(_SafeRedirects(allow_loopback))
    label = target.name
    attempt = 0
    while True:
        try:
            _attempt(opener, url, part, label, progress, timeout, largest, sha256 is not None)
            break
        except _InterruptedError as reason:
            if attempt == retries:
                raise DownloadError(
                    f"could not download {url}: {reason} ({attempt + 1} attempts)"
                ) from reason
            pause = backoff * 2**attempt if reason.pause is None else reason.pause
            time.sleep(min(pause, _LONGEST_PAUSE))
            attempt += 1
    try:
        _check_content(part.path, url, sha256)
    except DownloadError:
        # Resuming on top of wrong bytes could never end well: the next attempt starts afresh.
        part.discard()
        raise
    os.replace(part.path, target)
    part.discard()
    return target


def terminal_progress() -> Progress:
    """Progress bars on standard error, one per file; silent where that is not a terminal."""
    from tqdm import tqdm

    bars: dict[str, Any] = {}

    def report(label: str, done: int, total: int | None) -> None:
        if label not in bars:
            bars[label] = tqdm(
                desc=label, total=total, unit="B", unit_scale=True, file=sys.stderr, disable=None
            )
        bar = bars[label]
        bar.update(done - bar.n)
        if done == total:
            bars.pop(label).close()

    return report


class _Part:
    """What has arrived of a file, and which version of it that is."""

    def __init__(self, target: Path, url: str) -> None:
        self.path = target.with_name(target.name + ".part")
        self._note = target.with_name(target.name + ".part.json")
        self._url = url

    def __len__(self) -> int:
        return self.path.stat().st_size if self.path.exists() else 0

    def version(self) -> str | None:
        """The server's name for the version that has begun to arrive; None when not resumable."""
        try:
            note = json.loads(self._note.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return None
        if not isinstance(note, dict) or note.get("url") != self._url:
            return None
        return str(note.get("version", ""))

    def start(self, version: str) -> None:
        """Forget what has arrived; ``version`` is about to."""
        self.discard()
        note = json.dumps({"url": self._url, "version": version})
        self._note.write_text(note, encoding="utf-8")

    def discard(self) -> None:
        self.path.unlink(missing_ok=True)
        self._note.unlink(missing_ok=True)


class _SafeRedirects(urllib.request.HTTPRedirectHandler):
    """Follows redirects only to addresses that ``download`` itself would accept."""

    def __init__(self, allow_loopback: bool) -> None:
        self._allow_loopback = allow_loopback

    def redirect_request(
        self,
        req: urllib.request.Request,
        fp: IO[bytes],
        code: int,
        msg: str,
        headers: http.client.HTTPMessage,
        newurl: str,
    ) -> urllib.request.Request | None:
        """The request for the new address, or an error."""
        _check_address(newurl, self._allow_loopback)
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def _check_address(url: str, allow_loopback: bool) -> None:
    parsed = urllib.parse.urlsplit(url)
    if parsed.scheme == "https" and parsed.hostname:
        return
    if parsed.scheme == "http" and allow_loopback:
        with contextlib.suppress(ValueError):
            if ipaddress.ip_address(parsed.hostname or "").is_loopback:
                return
    raise DownloadError(f"refusing to download {url}: only https addresses are trusted")


def _attempt(
    opener: urllib.request.OpenerDirector,
    url: str,
    part: _Part,
    label: str,
    progress: Progress | None,
    timeout: float,
    largest: int,
    has_sum: bool,
) -> None:
    """One connection: ask for what is missing and append it to ``part``."""
    request = urllib.request.Request(
        url, headers={"User-Agent": f"metatkgr/{__version__}", "Accept-Encoding": "identity"}
    )
    have, version = len(part), part.version()
    # Without a version name only a checksum can tell whether two halves belong together.
    if have and version is not None and (version or has_sum):
        request.add_header("Range", f"bytes={have}-")
        if version:
            request.add_header("If-Range", version)
    try:
        with opener.open(request, timeout=timeout) as response:
            _receive(response, url, part, label, progress, largest)
    except urllib.error.HTTPError as error:
        error.close()
        if error.code == 416 and have:
            # What has arrived is not a beginning of what the server has now.
            part.discard()
            raise _InterruptedError("the file changed on the server") from error
        if error.code in _PASSING:
            wait = error.headers.get("Retry-After", "")
            raise _InterruptedError(
                f"the server answered {error.code} {error.reason}",
                float(wait) if wait.isdigit() else None,
            ) from error
        raise DownloadError(
            f"could not download {url}: the server answered {error.code} {error.reason}",
            absent=error.code in (404, 410),
        ) from error
    except urllib.error.URLError as error:
        if isinstance(error.reason, socket.gaierror):
            # Being offline doesn't pass within seconds; waiting would only delay the message.
            raise DownloadError(f"could not download {url}: {error.reason}") from error
        raise _InterruptedError(str(error.reason)) from error
    except (http.client.HTTPException, TimeoutError, ConnectionError, ssl.SSLError) as error:
        raise _InterruptedError(f"{type(error).__name__}: {error}") from error


def _receive(
    response: Any, url: str, part: _Part, label: str, progress: Progress | None, largest: int
) -> None:
    """Append the body of ``response`` to ``part``, or replace it when the server starts over."""
    have = len(part)
    length = response.headers.get("Content-Length")
    if response.status == 206:
        unit, _, span = response.headers.get("Content-Range", "").partition(" ")
        if unit != "bytes" or not span.startswith(f"{have}-"):
            part.discard()
            raise _InterruptedError(
                f"the server sent the range {span!r} where {have}- was asked for"
            )
    else:
        have = 0
        part.start(_version_name(response.headers))
    total = have + int(length) if length and length.isdigit() else None
    done = have
    with part.path.open("ab") as file:
        while True:
            if max(done, total or 0) > largest:
                file.close()
                part.discard()
                raise DownloadError(f"refusing to download {url}: larger than {largest:,} bytes")
            if progress:
                progress(label, done, total)
            piece = response.read(_CHUNK)
            if not piece:
                break
            file.write(piece)
            done += len(piece)
    if total is not None and done < total:
        raise _InterruptedError(f"the connection broke after {done:,} of {total:,} bytes")
    if progress and total is None:
        progress(label, done, done)


def _version_name(headers: Message) -> str:
    """What If-Range accepts: a strong ETag, else the date of the last change, else nothing."""
    tag = headers.get("ETag", "")
    return str(tag if tag.startswith('"') else headers.get("Last-Modified", ""))


def _check_content(path: Path, url: str, sha256: str | None) -> None:
    if sha256 is not None:
        with path.open("rb") as file:
            actual = hashlib.file_digest(file, "sha256").hexdigest()
        if actual != sha256:
            raise DownloadError(
                f"{url} should have the sha256 {sha256}, but {actual} arrived; either the file was"
                " changed at its home or something on the way changed it"
            )

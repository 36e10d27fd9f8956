"""Who may do what: tokens with roles, rates and daily quotas, from a file that is read again."""

from __future__ import annotations

import enum
import hashlib
import logging
import os
import re
import secrets
import stat
import threading
import time
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal, NamedTuple

from metatkgr.errors import DataError, MetaTKGRError, SettingsError
from metatkgr.files import atomic_path, read_text, read_toml, to_toml
from metatkgr.forecasting.store_tables import Amounts
from metatkgr.settings import Range, Settings, parse_settings

__all__ = [
    "ASKING",
    "Asking",
    "Role",
    "Token",
    "Tokens",
    "add_token",
    "may_change",
    "needed_role",
]

_LOG = logging.getLogger(__name__)
_LOOK_SECONDS = 1.0
"""How long a file of tokens is taken for unchanged."""
_QUESTIONS = frozenset({"/backtest", "/explain", "/predict"})
"""Paths to which a body is posted that changes nothing."""
_TOOLS = frozenset({"/mcp"})
"""Paths of questions and changes alike: what changes something looks at the role by itself."""
_FOR_ADMINS = frozenset({"/usage"})
_NAME = re.compile(r"[\w.@-]{1,64}", re.ASCII)
_UNBOUNDED = 1 << 50

_Most = Annotated[int, Range(0, _UNBOUNDED)]


class Role(enum.IntEnum):
    """What a token allows; each includes those before it."""

    READ = 1
    """Questions."""
    WRITE = 2
    """Telling facts, and taking them back."""
    ADMIN = 3
    """Seeing what all tokens have used."""


def needed_role(method: str, path: str) -> Role:
    """The role that a request needs; what nobody has thought of changes something."""
    if path in _FOR_ADMINS:
        return Role.ADMIN
    asks = method in ("GET", "HEAD", "OPTIONS") or path in _QUESTIONS | _TOOLS
    return Role.READ if asks else Role.WRITE


def may_change(who: Token | None, method: str, path: str) -> bool:
    """Whether a request of somebody (None: without a token) may change something."""
    if who is not None and who.role < Role.WRITE:
        return False
    return needed_role(method, path) == Role.WRITE or (path in _TOOLS and method == "POST")


@dataclass(frozen=True)
class _Entry(Settings):
    """A token as its file describes it; days are those of UTC."""

    sha256: str
    """Of the token, in hexadecimal digits; the token itself is nowhere."""
    role: Literal["read", "write", "admin"]
    requests_per_minute: Annotated[int, Range(1, _UNBOUNDED)] = _UNBOUNDED
    """Of any kind; counted by each process for itself."""
    facts_per_day: _Most = _UNBOUNDED
    """That it may tell; those that were known count, too."""
    new_entities_per_day: _Most = _UNBOUNDED
    """That its facts may introduce."""
    bytes_per_day: _Most = _UNBOUNDED
    """Of the bodies in which it tells them."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not re.fullmatch("[0-9a-f]{64}", self.sha256):
            raise SettingsError("sha256 has 64 hexadecimal digits; make a token: metatkgr token")


class Token:
    """Someone who asks.

    Args:
        name: as in the file.
        entry: what it may do.
    """

    def __init__(self, name: str, entry: _Entry) -> None:
        self.name, self.entry = name, entry
        self.role = Role[entry.role.upper()]
        self.most = Amounts(entry.facts_per_day, entry.new_entities_per_day, entry.bytes_per_day)
        self._left, self._at = float(entry.requests_per_minute), time.monotonic()

    @property
    def bounded(self) -> bool:
        """Whether it has a quota at all."""
        return min(self.most) < _UNBOUNDED

    def wait(self) -> float:
        """Count one request: 0, or the seconds until there is one to have."""
        most, now = float(self.entry.requests_per_minute), time.monotonic()
        self._left = min(most, self._left + (now - self._at) * most / 60)
        self._at = now
        if self._left < 1:
            return (1 - self._left) * 60 / most
        self._left -= 1
        return 0.0


class Asking(NamedTuple):
    """The request that is being worked on."""

    who: Token | None = None
    """None: somebody on this machine, who may do everything."""
    body_bytes: int = 0


_NOBODY = Asking()
ASKING: ContextVar[Asking] = ContextVar("asking", default=_NOBODY)
"""Of this thread or task."""


class Tokens:
    """The tokens of a file, which is read again when it has changed.

    A file that has become unreadable or wrong changes nothing but the log: who could ask before
    still can, until it is mended.

    Args:
        path: TOML with a table for each token: ``[NAME]``, ``sha256``, ``role`` and limits.

    Raises:
        MetaTKGRError: it cannot be read, or others can read it.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._state = _state(path)
        self._known = _read(path)
        self._looked = time.monotonic()

    def find(self, given: str) -> Token | None:
        """Whose token this is; None: nobody's."""
        # Looked up by its hash: how long that takes tells nothing about the tokens.
        return self._current().get(hashlib.sha256(given.encode()).hexdigest())

    def all(self) -> list[Token]:
        """All of them, by name."""
        return sorted(self._current().values(), key=lambda token: token.name)

    def _current(self) -> dict[str, Token]:
        with self._lock:
            now = time.monotonic()
            if now - self._looked >= _LOOK_SECONDS:
                self._looked = now
                state = _state(self._path)
                if state != self._state:
                    self._state = state
                    self._reload()
            return self._known

    def _reload(self) -> None:
        try:
            fresh = _read(self._path)
        except MetaTKGRError as error:
            _LOG.error("tokens stay as they were: %s", error)
            return
        for digest, token in fresh.items():
            before = self._known.get(digest)
            if before and before.name == token.name and before.entry == token.entry:
                fresh[digest] = before  # with what it has used of its rate
        self._known = fresh


def add_token(path: Path, name: str, role: str, limits: dict[str, int] | None = None) -> str:
    """Make a token and write its hash into a file of tokens, which is made where it is missing.

    Returns:
        the token, which is kept nowhere.
    """
    _check_name(name)
    known = [token.name for token in _read(path).values()] if path.exists() else []
    if name in known:
        raise SettingsError(f"{path} has a token {name} already; remove its lines to replace it")
    token = secrets.token_urlsafe(32)
    digest = hashlib.sha256(token.encode()).hexdigest()
    entry = {"sha256": digest, "role": role, **(limits or {})}
    parse_settings(_Entry, entry)
    text = read_text(path).rstrip() + "\n\n" if known else ""
    with atomic_path(path) as temporary:
        file = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with open(file, "w", encoding="utf-8") as written:
            written.write(text + to_toml({name: entry}))
    return token


def _check_name(name: str) -> None:
    """Stores and logs take any that passes."""
    if not _NAME.fullmatch(name):
        raise SettingsError(f"a token's name has letters, digits and ._@-, not {name!r}")


def _state(path: Path) -> tuple[int, int, int, int] | None:
    """What changes when a file does; None: it is not there."""
    try:
        now = path.stat()
    except OSError:
        return None
    return now.st_mtime_ns, now.st_size, now.st_ino, now.st_mode


def _read(path: Path) -> dict[str, Token]:
    """Tokens by their hashes."""
    content = read_toml(path)
    if os.name == "posix" and stat.S_IMODE(path.stat().st_mode) & 0o037:
        raise DataError(f"others can read or change the tokens in {path}: chmod 600 {path}")
    tokens: dict[str, Token] = {}
    for name, entry in content.items():
        if not isinstance(entry, dict) or not {"sha256", "role"} <= entry.keys():
            raise DataError(
                f"{path} is not a file of tokens: each has a table [NAME] with sha256 and role; "
                "make one with: metatkgr token NAME --role read --file FILE"
            )
        _check_name(name)
        try:
            token = Token(name, parse_settings(_Entry, entry))
        except SettingsError as error:
            raise SettingsError(f"{path}, token {name}: {error}") from None
        if token.entry.sha256 in tokens:
            raise SettingsError(f"{path}: {name} is the same token as another")
        tokens[token.entry.sha256] = token
    if not tokens:
        raise SettingsError(f"there is no token in {path}; make one with: metatkgr token")
    return tokens

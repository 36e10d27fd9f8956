"""What a service allows, and to whom."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from pathlib import Path

from metatkgr.errors import DataError, SettingsError

__all__ = ["Limits", "ServiceSettings", "is_loopback", "read_token"]

_SHORTEST_TOKEN = 16


@dataclass(frozen=True)
class Limits:
    """Bounds on what one client can ask for."""

    body_bytes: int = 4 << 20
    """Largest body of a request."""
    body_seconds: float = 30.0
    """Longest time a body may take to arrive."""
    concurrency: int = 32
    """Requests worked on at once; more are answered 503 with Retry-After."""
    steps_ahead: float = 1.0
    """How far after the graph's last step a fact may lie, in lengths of the graph."""

    def __post_init__(self) -> None:
        for name in ("body_bytes", "body_seconds", "concurrency", "steps_ahead"):
            value = getattr(self, name)
            if not value > 0:  # NaN is not more than 0 either
                raise SettingsError(f"{name} must be more than 0, not {value}")


@dataclass(frozen=True)
class ServiceSettings:
    """How a service is reached."""

    host: str = "127.0.0.1"
    """Address to listen on."""
    port: int = 8000
    """Port to listen on; 0 takes a free one."""
    token: str | None = None
    """What clients send as ``Authorization: Bearer TOKEN``; None: no token is asked for."""
    limits: Limits = Limits()

    def __post_init__(self) -> None:
        if not 0 <= self.port <= 65535:
            raise SettingsError(f"a port lies between 0 and 65535, not at {self.port}")
        if self.token is None and not is_loopback(self.host):
            raise SettingsError(
                f"{self.host} can be reached from other machines: give a token with --token-file, "
                "or listen on 127.0.0.1"
            )


def is_loopback(host: str) -> bool:
    """Whether an address can be reached from this machine alone."""
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def read_token(path: Path) -> str:
    """The token in a file; space around it does not count."""
    try:
        token = path.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"the token file {path} cannot be read: {error}") from None
    if len(token) < _SHORTEST_TOKEN or any(letter.isspace() for letter in token):
        raise SettingsError(
            f"a token has at least {_SHORTEST_TOKEN} characters and no space; make one with: "
            "python -c 'import secrets; print(secrets.token_urlsafe(32))'"
        )
    return token

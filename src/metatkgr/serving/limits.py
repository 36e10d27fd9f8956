"""How much a service allows, and how it is reached."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

from metatkgr.errors import SettingsError
from metatkgr.settings import Range, Settings

__all__ = ["Limits", "ServiceSettings", "is_loopback"]


@dataclass(frozen=True)
class Limits(Settings):
    """Bounds on what one client can ask for."""

    body_bytes: Annotated[int, Range(1)] = 4 << 20
    """Largest body of a request."""
    body_seconds: Annotated[float, Range(above=0)] = 30.0
    """Longest time a body may take to arrive."""
    bodies_bytes: Annotated[int, Range(1)] = 64 << 20
    """What all bodies that are being read or worked on may hold together, but for 64 kB each; and
    all answers that wait to be read by their clients."""
    answer_seconds: Annotated[float, Range(above=0)] = 30.0
    """Longest time an answer, or the next part of a streamed one, may take once the whole request
    has arrived."""
    stream_seconds: Annotated[float, Range(above=0)] = 3600.0
    """Longest time a streamed answer may take in all."""
    header_seconds: Annotated[float, Range(above=0)] = 10.0
    """Longest time the header of a request may take to arrive."""
    idle_seconds: Annotated[float, Range(1)] = 30.0
    """Longest time between two requests on one connection."""
    request_seconds: Annotated[float, Range(above=0)] = 90.0
    """Longest time from a request's header to the end of its answer, or to its beginning where it
    is streamed."""
    connections: Annotated[int, Range(1)] = 512
    """Open at once; a further one takes the place of the one that has been idle longest."""
    connections_each: Annotated[int, Range(1)] = 256
    """The same for one client's address."""
    concurrency: Annotated[int, Range(1)] = 32
    """Requests worked on at once; more are answered 503 with Retry-After. A quarter of them may be
    streamed answers that take longer than ``answer_seconds``."""
    import_facts: Annotated[int, Range(1)] = 50_000
    """Facts of one file of ``POST /import``: others who write wait until all of them are in."""
    import_bytes: Annotated[int, Range(1, 1 << 50)] = 128 << 20
    """Memory that what is in such a file may take, as for ``ReadOptions.most_bytes``: Parquet is
    compressed, and an interval is a fact a step."""
    steps_ahead: Annotated[float, Range(above=0)] = 1.0
    """How far after the graph's last step a fact may lie, in lengths of the graph."""
    new_relations: Annotated[int, Range(0, 4000)] = 200
    """Relations that may come with facts."""
    new_names_bytes: Annotated[int, Range(0, 1 << 50)] = 256 << 20
    """What the names of new entities may take together, with 64 bytes more for each of them."""

    def fewer_connections(self, most: int) -> Limits:
        """The same with at most so many connections."""
        fewer = min(self.connections, most)
        return replace(self, connections=fewer, connections_each=min(self.connections_each, fewer))


@dataclass(frozen=True)
class ServiceSettings(Settings):
    """How a service is reached."""

    host: str = "127.0.0.1"
    """Address to listen on."""
    port: Annotated[int, Range(0, 65535)] = 8000
    """Port to listen on; 0 takes a free one."""
    token_file: Path | None = None
    """The tokens that clients send as ``Authorization: Bearer TOKEN``; None: none is asked for."""
    limits: Limits = Limits()
    log: Path | None = None
    """Folder of the logs of requests and of changes; None: they are not written."""
    log_bytes: Annotated[int, Range(1 << 16, 1 << 40)] = 64 << 20
    """Of one file of a log; ten of each are kept."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.token_file is None and not is_loopback(self.host):
            raise SettingsError(
                f"{self.host} can be reached from other machines: give a token with --token-file, "
                "or listen on 127.0.0.1"
            )


def is_loopback(host: str) -> bool:
    """Whether an address can be reached from this machine alone."""
    if host.lower() == "localhost":
        return True
    try:  # a zone, as in ::1%zone, could be any text
        return "%" not in host and ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False

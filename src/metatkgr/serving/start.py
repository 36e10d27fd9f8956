"""Start a service, and stop it gracefully."""

from __future__ import annotations

import signal
import socket
from collections.abc import Callable

import uvicorn

from metatkgr.errors import DataError
from metatkgr.serving.app import create_app
from metatkgr.serving.quality import Quality
from metatkgr.serving.service import Service
from metatkgr.serving.settings import ServiceSettings

__all__ = ["serve"]

_STOP_SECONDS = 10
"""How long requests that are being worked on may take when the service is told to stop."""


def serve(
    service: Service,
    settings: ServiceSettings,
    quality: Quality | None = None,
    *,
    ready: Callable[[str], object] = lambda url: None,
) -> None:
    """Serve until SIGINT or SIGTERM; then finish what is being answered, and return.

    Args:
        service: not started yet.
        settings: where to listen, and to whom.
        quality: measures the model in the background; None: nothing is measured.
        ready: called with the service's URL once it accepts connections.
    """
    with _listen(settings) as listening:
        service.start()
        app = create_app(service, settings, quality)
        config = uvicorn.Config(
            app,
            access_log=False,
            log_config=None,
            server_header=False,
            timeout_graceful_shutdown=_STOP_SECONDS,
            timeout_keep_alive=30,
        )
        host = f"[{settings.host}]" if ":" in settings.host else settings.host
        ready(f"http://{host}:{listening.getsockname()[1]}")
        # The server hands the signal on when it has stopped; here that is the normal end.
        before = signal.signal(signal.SIGTERM, lambda *_: None)
        try:
            uvicorn.Server(config).run(sockets=[listening])
        except KeyboardInterrupt:
            pass
        finally:
            signal.signal(signal.SIGTERM, before)


def _listen(settings: ServiceSettings) -> socket.socket:
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    try:
        return socket.create_server((settings.host, settings.port), family=family, backlog=512)
    except (OSError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or error
        raise DataError(
            f"cannot listen on {settings.host}, port {settings.port}: {reason}; choose another "
            "with --port"
        ) from None

"""What a service counts, for Prometheus."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from metatkgr import __version__

if TYPE_CHECKING:
    from metatkgr.serving.service import Service

__all__ = ["Metrics"]

_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)


class Metrics:
    """Counters of one service; a registry of its own, so that several can live in one process."""

    def __init__(self, service: Service) -> None:
        self._registry = CollectorRegistry()
        labels = ("method", "path", "status")
        self._requests = Counter(
            "metatkgr_requests", "Requests answered.", labels, registry=self._registry
        )
        self._seconds = Histogram(
            "metatkgr_request_seconds",
            "Time to answer.",
            ("path",),
            buckets=_BUCKETS,
            registry=self._registry,
        )
        self.busy = Gauge(
            "metatkgr_requests_in_progress", "Requests worked on now.", registry=self._registry
        )
        info = Gauge(
            "metatkgr_info",
            "What is served, and by which process; each counts for itself.",
            ("version", "model", "process"),
            registry=self._registry,
        )
        info.labels(__version__, service.model, str(os.getpid())).set(1)
        observed = Gauge(
            "metatkgr_observed_facts",
            "Facts of the store that were new to the graph.",
            registry=self._registry,
        )
        observed.set_function(lambda: service.observed)
        refused = Gauge(
            "metatkgr_refused_facts",
            "Facts of the store that do not fit the graph.",
            registry=self._registry,
        )
        refused.set_function(lambda: service.refused)

    def count(self, method: str, path: str, status: int, seconds: float) -> None:
        """One request was answered."""
        self._requests.labels(method, path, str(status)).inc()
        self._seconds.labels(path).observe(seconds)

    def text(self) -> bytes:
        """Everything, as Prometheus reads it."""
        return generate_latest(self._registry)

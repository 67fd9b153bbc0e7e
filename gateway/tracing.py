"""Begins or continues each request's trace, and hands its spans on when it is over.

Spans are made at a request's end from its timeline, so tracing costs nothing while it runs. They
go to an OpenTelemetry collector from a thread of its own and wait in a bounded queue: a slow or
absent collector loses spans and never delays a request.
"""

import secrets
import time
from importlib.util import find_spec
from typing import Protocol

from gateway.config import ConfigError, Settings
from gateway.domain import Headers
from gateway.spans import Span, spans
from gateway.traceparent import TraceContext, continued
from gateway.visit import Visit

__all__ = ["Sink", "Tracer", "make_tracer"]

NEEDS = ("opentelemetry.sdk", "opentelemetry.exporter.otlp.proto.http")


class Sink(Protocol):
    """Where spans go; takes them without blocking."""

    def add(self, trace: TraceContext, span: Span) -> None:
        """Send one span soon."""

    def close(self) -> None:
        """Send what waits, for a few seconds at most, and stop."""


class Tracer:
    """Begins or continues a trace for each request, and sends its spans at the end.

    Args:
        sink: where spans go; None: nowhere, only the context is kept.
    """

    def __init__(self, sink: Sink | None = None) -> None:
        self._sink = sink

    def begin(self, headers: Headers) -> TraceContext:
        """The context of a request: its caller's, continued, or a new one.

        A trace that begins here is kept if its spans go anywhere.
        """
        return continued(headers, secrets.token_hex, sample=self._sink is not None)

    def record(self, visit: Visit, trace: TraceContext, ended_s: float) -> None:
        """Send the spans of a request that is over."""
        if self._sink is None or not trace.sampled:
            return
        for span in spans(visit, trace, ended_s, time.time_ns(), secrets.token_hex):
            self._sink.add(trace, span)

    def close(self) -> None:
        """Send what waits and stop."""
        if self._sink is not None:
            self._sink.close()


def make_tracer(settings: Settings, *, dry: bool = False) -> Tracer | None:
    """The tracer that the configuration asks for; None where it is off.

    A ``dry`` one is only for finding out whether it can be made: it sends nothing.

    Raises:
        ConfigError: spans are to be sent and the libraries for it are not installed.
    """
    section = settings.document.tracing
    if not section.enabled:
        return None
    if section.otlp_endpoint is None:
        return Tracer()
    if not all(_is_there(name) for name in NEEDS):
        reason = "needs the extra 'otel': pip install 'sluicegate[otel]'"
        raise ConfigError(settings.path, "tracing.otlp_endpoint", reason)
    if dry:
        return Tracer()
    from gateway.otlp import Collector  # noqa: PLC0415  an extra, absent from most installations

    return Tracer(Collector(section.otlp_endpoint, section.service_name, section.max_waiting))


def _is_there(name: str) -> bool:
    try:
        return find_spec(name) is not None
    except ModuleNotFoundError:  # its parent package is not there
        return False

"""Sends spans to an OpenTelemetry collector over HTTP, with the libraries of the extra ``otel``.

The library's batch processor owns the bounded queue and the thread; its exporter the retries.
"""

import threading

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import SpanContext, SpanKind, TraceFlags
from opentelemetry.trace.status import Status, StatusCode

from gateway import __version__
from gateway.spans import Span
from gateway.traceparent import TraceContext

__all__ = ["Collector"]

MAX_BATCH = 512
EVERY_MS = 1000.0
EXPORT_TIMEOUT_S = 5.0
CLOSE_S = 2.0


class Collector:
    """A collector that listens at ``endpoint``; at most ``max_waiting`` spans wait for it."""

    def __init__(self, endpoint: str, service_name: str, max_waiting: int) -> None:
        self._resource = Resource({"service.name": service_name, "service.version": __version__})
        self._scope = InstrumentationScope("sluicegate", __version__)
        self._batches = BatchSpanProcessor(
            OTLPSpanExporter(endpoint, timeout=EXPORT_TIMEOUT_S),
            max_queue_size=max_waiting,
            schedule_delay_millis=EVERY_MS,
            max_export_batch_size=min(MAX_BATCH, max_waiting),
        )

    def add(self, trace: TraceContext, span: Span) -> None:
        """Send one span soon; the oldest is dropped where too many wait."""
        self._batches.on_end(
            ReadableSpan(
                span.name,
                _context(trace, span.span_id),
                _context(trace, span.parent_id) if span.parent_id else None,
                self._resource,
                dict(span.attributes),
                kind=SpanKind.SERVER if span.server else SpanKind.INTERNAL,
                status=Status(StatusCode.ERROR if span.failed else StatusCode.UNSET),
                start_time=span.began_ns,
                end_time=span.ended_ns,
                instrumentation_scope=self._scope,
            )
        )

    def close(self) -> None:
        """Send what waits, for ``CLOSE_S`` at most, and stop."""
        # The library waits for a collector that does not answer much longer than a restart may.
        ending = threading.Thread(target=self._batches.shutdown, daemon=True)
        ending.start()
        ending.join(CLOSE_S)


def _context(trace: TraceContext, span_id: str) -> SpanContext:
    return SpanContext(
        int(trace.trace_id, 16), int(span_id, 16), is_remote=False, trace_flags=TraceFlags(1)
    )

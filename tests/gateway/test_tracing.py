"""Spans of finished requests: which, how long, what they say, and that a collector gets them."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from gateway import tracing
from gateway.config import ConfigError, parse
from gateway.domain import Outcome, Principal, Surface
from gateway.lifetime import Ending, Timeline
from gateway.otlp import Collector
from gateway.spans import Span, Stage, attributes, stages
from gateway.traceparent import TraceContext
from gateway.tracing import Tracer, make_tracer
from gateway.visit import Visit
from tests.gateway.minimal import CONFIG, write

TRACE = TraceContext("ab" * 16, "cd" * 8, "ef" * 8)


@pytest.fixture
def anyio_backend() -> Any:
    return "asyncio"


def visit(**facts: Any) -> Visit:
    """A streamed chat from 10.0 s on: classified till 10.3, dispatched at 10.5, first byte 11."""
    marks = Timeline(lambda: 0.0)
    marks.dispatched_s, marks.first_event_s = facts.pop("marks", (10.5, 11.0))
    made = Visit("r-1", "u-1", 10.0, marks, Ending(), {}, trace=TRACE)
    known = {
        "surface": Surface.CHAT, "outcome": Outcome.COMPLETED, "status": 200, "model": "m",
        "size_class": "short", "pool": "a", "engine": "http://e", "stream": True,
        "prompt_tokens": 9, "completion_tokens": 4, "classify_s": 0.2, "classified_s": 10.3,
        "principal": Principal("alice", "interactive"),
    }  # fmt: skip
    for name, value in {**known, **facts}.items():
        setattr(made, name, value)
    return made


class Kept:
    """Where spans go in a test."""

    def __init__(self) -> None:
        self.spans: list[Span] = []

    def add(self, trace: TraceContext, span: Span) -> None:
        assert trace is TRACE or trace.sampled
        self.spans.append(span)

    def close(self) -> None:
        self.spans.clear()


def test_a_stream_went_through_four_stages() -> None:
    assert list(stages(visit(), 12.0)) == [
        Stage("classify", pytest.approx(10.1), 10.3),
        Stage("queue", 10.3, 10.5),
        Stage("first_byte", 10.5, 11.0),
        Stage("stream", 11.0, 12.0),
    ]


@pytest.mark.parametrize(
    ("facts", "names"),
    [
        ({"marks": (10.5, None)}, ["classify", "queue", "first_byte"]),
        ({"marks": (None, None)}, ["classify", "queue"]),
        ({"marks": (None, None), "classify_s": None, "classified_s": None}, []),
    ],
)
def test_a_request_that_ended_early_has_the_stages_it_came_to(
    facts: dict[str, Any], names: list[str]
) -> None:
    found = list(stages(visit(**facts), 12.0))
    assert [stage.name for stage in found] == names
    assert not found or found[-1].ended_s == 12.0


def test_the_server_span_says_how_it_ended_in_words_of_the_configuration() -> None:
    said = attributes(visit())
    assert said["sluicegate.outcome"] == "completed"
    assert said["gen_ai.usage.input_tokens"] == 9
    assert said["http.response.status_code"] == 200
    assert "alice" not in said.values()
    assert (
        None not in attributes(Visit("r", "u", 0.0, Timeline(lambda: 0.0), Ending(), {})).values()
    )


def test_one_request_is_one_server_span_over_its_stages() -> None:
    kept = Kept()
    Tracer(kept).record(visit(), TRACE, 12.0)
    *children, server = kept.spans
    assert (server.name, server.server, server.failed) == ("chat", True, False)
    assert (server.span_id, server.parent_id) == (TRACE.span_id, TRACE.parent_id)
    assert {child.parent_id for child in children} == {TRACE.span_id}
    assert len({span.span_id for span in kept.spans}) == 5
    assert server.ended_ns - server.began_ns == 2_000_000_000
    assert [child.name for child in children] == ["classify", "queue", "first_byte", "stream"]
    assert all(server.began_ns <= c.began_ns <= c.ended_ns <= server.ended_ns for c in children)


@pytest.mark.parametrize(
    ("facts", "failed"),
    [
        ({"status": 503, "outcome": Outcome.NO_ENGINE}, True),
        ({"status": 200, "outcome": Outcome.STREAM_INTERRUPTED}, True),
        ({"status": 429, "outcome": Outcome.QUEUE_FULL}, False),
        ({"status": None, "outcome": Outcome.CLIENT_CANCELLED}, False),
    ],
)
def test_a_span_failed_where_the_server_is_to_blame(facts: dict[str, Any], failed: bool) -> None:
    kept = Kept()
    Tracer(kept).record(visit(**facts), TRACE, 12.0)
    assert kept.spans[-1].failed is failed


def test_an_unsampled_trace_and_a_tracer_without_a_sink_keep_nothing() -> None:
    kept = Kept()
    Tracer(kept).record(visit(), TraceContext("ab" * 16, "cd" * 8, flags=0), 12.0)
    Tracer().record(visit(), TRACE, 12.0)
    assert kept.spans == []
    assert Tracer(kept).begin([]).sampled
    assert not Tracer().begin([]).sampled


# -- a collector ---------------------------------------------------------------------------


class Receiver:
    """A collector that keeps what it is sent; ``silent``: it takes and never answers."""

    def __init__(self) -> None:
        self.spans: list[Any] = []
        self.resources: list[Any] = []
        self.came = threading.Event()


@contextmanager
def receiver() -> Iterator[tuple[str, Receiver]]:
    got = Receiver()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            sent = ExportTraceServiceRequest()
            sent.ParseFromString(self.rfile.read(int(self.headers["content-length"])))
            for resource in sent.resource_spans:
                got.resources.append(resource.resource)
                for scope in resource.scope_spans:
                    got.spans.extend(scope.spans)
            self.send_response(200)
            self.send_header("content-length", "0")
            self.end_headers()
            got.came.set()

        def log_message(self, *_: object) -> None:
            return

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/v1/traces", got
        finally:
            server.shutdown()
            thread.join()


def test_a_collector_gets_the_spans_with_their_ids_times_and_words() -> None:
    with receiver() as (url, got):
        tracer = Tracer(Collector(url, "my-gateway", 100))
        tracer.record(visit(), TRACE, 12.0)
        tracer.record(visit(status=503, outcome=Outcome.NO_ENGINE), TRACE, 12.0)
        tracer.close()
    assert [span.name for span in got.spans[:5]] == [
        "classify", "queue", "first_byte", "stream", "chat",
    ]  # fmt: skip
    server, failed = got.spans[4], got.spans[9]
    assert server.trace_id.hex() == TRACE.trace_id
    assert (server.span_id.hex(), server.parent_span_id.hex()) == ("cd" * 8, "ef" * 8)
    assert server.end_time_unix_nano - server.start_time_unix_nano == 2_000_000_000
    said = {a.key: a.value for a in server.attributes}
    assert said["sluicegate.outcome"].string_value == "completed"
    assert (server.status.code, failed.status.code) == (0, 2)
    assert server.kind == 2
    names = {a.key: a.value.string_value for a in got.resources[0].attributes}
    assert names["service.name"] == "my-gateway"


def test_without_a_collector_spans_are_dropped_and_nobody_waits() -> None:
    collector = Collector("http://127.0.0.1:9/v1/traces", "x", 8)
    tracer = Tracer(collector)
    for _ in range(200):
        tracer.record(visit(), TRACE, 12.0)
    waiting = collector._batches._batch_processor._queue
    assert len(waiting) <= 8


# -- the configuration ---------------------------------------------------------------------


def made(folder: Path, table: str) -> Tracer | None:
    return make_tracer(parse(f"[tracing]\n{table}\n{CONFIG}", write(folder)), dry=True)


def test_tracing_is_off_unless_it_is_turned_on(tmp_path: Path) -> None:
    assert made(tmp_path, "") is None
    assert made(tmp_path, 'otlp_endpoint = "http://127.0.0.1:4318/v1/traces"') is None
    assert made(tmp_path, "enabled = true") is not None
    both = 'enabled = true\notlp_endpoint = "http://127.0.0.1:4318/v1/traces"'
    assert made(tmp_path, both) is not None


def test_without_the_extra_the_key_that_needs_it_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tracing, "NEEDS", ("opentelemetry.none", "nothing.at.all"))
    with pytest.raises(ConfigError, match=r"sluicegate\[otel\]") as error:
        made(tmp_path, 'enabled = true\notlp_endpoint = "http://127.0.0.1:4318/v1/traces"')
    assert error.value.key == "tracing.otlp_endpoint"

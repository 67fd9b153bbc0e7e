"""What the console shows: queues against caps, engines against limits, what was not served."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import orjson
import pytest

from gateway.control import Change
from gateway.domain import Outcome
from gateway.finished import Finished
from gateway.panel import Panel
from tests.gateway.controlled import Held, controlled

ENGINE = "http://127.0.0.1:8001"


@pytest.fixture
def anyio_backend() -> Any:
    return ("asyncio", {"use_uvloop": True})


@pytest.fixture
async def held(tmp_path: Path) -> AsyncIterator[Held]:
    async with controlled(tmp_path) as made:
        yield made


def finished(outcome: Outcome = Outcome.COMPLETED, size_class: str | None = "short") -> Finished:
    """A request that ran two seconds, its first token after 0.2 s."""
    return Finished(
        outcome=outcome, request_id="r", surface=None, arrived_s=100.0, ended_s=102.0,
        size_class=size_class, service_class="interactive", dispatched_s=100.1, first_event_s=100.2,
    )  # fmt: skip


def panel(held: Held) -> Panel:
    return Panel(held.control, lambda: {"revision": 1})


async def test_every_flow_stands_against_its_caps_and_every_engine_against_its_limits(
    held: Held,
) -> None:
    shown = panel(held).view()
    assert [(f["size_class"], f["service_class"]) for f in shown["flows"]] == [
        (size, service) for size in ("short", "long") for service in ("interactive", "batch")
    ]
    flow = shown["flows"][0]
    assert (flow["depth"], flow["max_queued"], flow["oldest_age_s"]) == (0, 512, 0.0)
    assert (flow["paused"], flow["paused_by"], flow["candidate_running"]) == (False, [], 0)
    (engine,) = shown["engines"]
    assert (engine["engine"], engine["pools"], engine["up"]) == (ENGINE, ["a"], False)
    assert (engine["slots"], engine["slots_limit"]) == (0, 128)
    assert (engine["prefill_tokens_limit"], engine["kv_tokens_limit"]) == (40960, 353894)
    assert engine["prefilling"] == [{"size_class": "long", "count": 0, "limit": 1}]
    assert shown["gateway"]["reasons"] == ["no healthy engine", "engines not yet probed"]
    assert shown["routes"] == {"revision": 1}
    assert shown["outcomes"] == []


async def test_what_happened_is_told_by_class_and_outcome(held: Held) -> None:
    watching = panel(held)
    observer = held.gateway.parts.observer
    observer.record(finished())
    assert watching.view()["classes"][0]["completed"] == 0  # before anybody looked
    held.clock.now += 10.0
    for _ in range(3):
        observer.record(finished())
    for outcome in (Outcome.QUEUE_FULL, Outcome.QUEUE_FULL, Outcome.CLIENT_CANCELLED):
        observer.record(finished(outcome=outcome))
    observer.record(finished(outcome=Outcome.NOT_FOUND, size_class=None))
    shown = watching.view()
    assert shown["window_s"] == 10.0
    row = next(r for r in shown["classes"] if r["completed"])
    assert (row["size_class"], row["service_class"]) == ("short", "interactive")
    assert (row["completed"], row["not_completed"]) == (3, 2)
    assert row["ttft"]["count"] > 0
    assert row["ttft"]["p50_s"] <= row["ttft"]["p95_s"] <= row["ttft"]["p99_s"]
    assert [(r["outcome"], r["status"], r["count"]) for r in shown["outcomes"]] == [
        ("queue_full", 429, 2), ("not_found", 404, 1),
    ]  # fmt: skip
    assert shown["outcomes"][0]["by_class"] == {"short.interactive": 2}


async def test_a_paused_flow_says_by_whom_and_until_when(held: Held) -> None:
    paths = {"flow.short.batch.paused": True, "flow.m.short.batch.paused": True}
    held.control.change("ben", Change(1, paths, 60.0))
    held.control.change("eva", Change(2, {f"engine.{ENGINE}.paused": True}))
    held.clock.now += 10.0
    shown = panel(held).view()
    flow = next(f for f in shown["flows"] if f["paused"])
    assert (flow["size_class"], flow["service_class"]) == ("short", "batch")
    assert flow["paused_by"] == [
        {"path": path, "value": True, "by": "ben", "expires_in_s": 50.0}
        for path in ("flow.m.short.batch.paused", "flow.short.batch.paused")
    ]
    assert shown["engines"][0]["paused"]
    assert shown["limits_revision"] == 3


async def test_who_looks_at_the_same_moment_is_shown_one_document_until_something_changes(
    held: Held,
) -> None:
    made = 0

    def routes() -> dict[str, Any]:
        nonlocal made
        made += 1
        return {"revision": made}

    shown = Panel(held.control, routes)
    first = shown.document()
    held.clock.now += 0.4
    assert (shown.document(), made) == (first, 1)
    assert orjson.loads(first)["routes"] == {"revision": 1}
    wanted = {"flow.short.interactive.weight": 9.0}
    held.control.change("ben", Change(held.control.overlay.revision, wanted))
    assert orjson.loads(shown.document())["flows"][0]["weight"] == 9.0
    held.clock.now += 0.5
    shown.document()
    assert made == 3

"""Outcomes that only an operator or a fault of the gateway's own can bring about."""

import asyncio
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson
import pytest

from gateway.app import Gateway
from gateway.lifetime import Ending
from tests.e2e.harness import CHAT, chat, endless, eventually, refused
from tests.e2e.inside import assert_at_zero, inside

SECRET = "a detail that is nobody's business"


@pytest.mark.parametrize("admission", ["enforce", "observe", "off"])
async def test_a_paused_flow_refuses_new_requests_and_serves_again_when_resumed(
    fast: str, tmp_path: Path, admission: str
) -> None:
    group = ("simulated", "short", "interactive")
    async with inside(tmp_path, fast, admission=admission) as (gateway, outside, lines):
        gateway.parts.turnstile.core.pause(group, paused=True)
        refused(await outside.ask(chat()), "paused")
        gateway.parts.turnstile.core.pause(group, paused=False)
        assert (await outside.ask(chat())).status_code == 200
        await eventually(lambda: not gateway.running)
        assert_at_zero(gateway)
        assert [line["outcome"] for line in lines()] == ["paused", "completed"]


class Breaking:
    """A part that raises where the real one would work."""

    def __init__(self, real: Any, method: str) -> None:
        self._real = real
        self._method = method

    def __getattr__(self, name: str) -> Any:
        if name == self._method:
            raise RuntimeError(SECRET)
        return getattr(self._real, name)


class Counting:
    """Counts for ever; knows the tasks of its requests."""

    def __init__(self, real: Any) -> None:
        self._real = real
        self.tasks: list[asyncio.Task[Any]] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)

    async def classify(self, *_: Any) -> Any:
        task = asyncio.current_task()
        assert task is not None
        self.tasks.append(task)
        await asyncio.Event().wait()


async def test_what_a_process_that_ends_cuts_off_before_its_engine_is_told_so(
    fast: str, tmp_path: Path
) -> None:
    stuck: list[Counting] = []

    def counting(gateway: Gateway) -> Gateway:
        stuck.append(Counting(gateway.setup.counting))
        setup = replace(gateway.setup, counting=stuck[0])  # type: ignore[arg-type]
        return Gateway(gateway.parts, setup)

    async with inside(tmp_path, fast, change=counting) as (gateway, outside, lines):
        asking = asyncio.ensure_future(outside.ask(chat()))
        await eventually(lambda: stuck[0].tasks)
        assert gateway.end_all() == 1
        stuck[0].tasks[0].cancel()
        refused(await asking, "draining")
        await eventually(lambda: not gateway.running)
        assert_at_zero(gateway)
        assert [(line["outcome"], line["status"]) for line in lines()] == [("draining", 503)]


@pytest.mark.parametrize(
    ("part", "method"),
    [("counting", "classify"), ("turnstile", "enter"), ("table", "route")],
)
async def test_a_fault_of_the_gateways_own_is_logged_and_not_shown(
    fast: str, tmp_path: Path, part: str, method: str
) -> None:
    def broken(gateway: Gateway) -> Gateway:
        holder = gateway.parts if part == "turnstile" else gateway.setup
        changed = replace(holder, **{part: Breaking(getattr(holder, part), method)})
        whole: dict[str, Any] = {"parts": gateway.parts, "setup": gateway.setup}
        return Gateway(**{**whole, "parts" if part == "turnstile" else "setup": changed})

    async with inside(tmp_path, fast, change=broken) as (gateway, outside, lines):
        answer = await outside.ask(chat(), X_Request_Id="unlucky")
        refused(answer, "internal_error")
        assert SECRET not in answer.text
        await eventually(lambda: not gateway.running)
        assert (gateway.parts.intake.requests, gateway.parts.intake.bytes) == (0, 0)
        fault, request = lines()
    assert (fault["event"], fault["request_id"]) == ("internal_error", "unlucky")
    assert fault["error"] == "RuntimeError"
    assert any("test_inside.py" in frame for frame in fault["trace"])
    assert SECRET not in str(fault)
    assert (request["outcome"], request["status"]) == ("internal_error", 500)


async def test_a_fault_in_the_middle_of_a_stream_gives_everything_back(
    fast: str, tmp_path: Path
) -> None:
    async with inside(tmp_path, fast) as (gateway, outside, lines):

        def broken(*_: object) -> None:
            raise RuntimeError(SECRET)

        gateway.parts.turnstile.first_event = broken  # type: ignore[method-assign,assignment]
        with pytest.raises(Exception, match=r"incomplete|disconnected"):
            async with outside.stream(chat()) as stream:
                await stream.rest()
        await eventually(lambda: not gateway.running)
        assert_at_zero(gateway)
        assert [line.get("outcome") for line in lines()] == [None, "internal_error"]


async def test_a_task_that_is_cancelled_while_it_waits_leaves_nothing_behind(
    fast: str, tmp_path: Path
) -> None:
    """A listener may cancel a request's task outright; every await point gives back what it has."""
    async with inside(tmp_path, fast, limits={"slots": 2}) as (gateway, outside, _):
        async with outside.stream(endless(n=2)) as held:
            assert await held.next() is not None
            task = asyncio.ensure_future(_call(gateway, outside.headers()["authorization"]))
            await eventually(lambda: gateway.parts.turnstile.waiting == 1)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert gateway.parts.turnstile.waiting == 0
        await eventually(lambda: not gateway.running)
        assert_at_zero(gateway)


async def _call(gateway: Gateway, credential: str) -> None:
    """One request straight into the application, without a listener."""
    body = orjson.dumps(chat())
    messages = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive() -> Any:
        if messages:
            return messages.pop()
        return await asyncio.Event().wait()

    async def send(_: Any) -> None:
        return

    headers = [(b"content-type", b"application/json"), (b"authorization", credential.encode())]
    scope = {
        "type": "http", "method": "POST", "path": CHAT, "raw_path": CHAT.encode(),
        "headers": [*headers, (b"content-length", b"%d" % len(body))],
        "sluicegate.ending": Ending(),
    }  # fmt: skip
    await gateway(scope, receive, send)


NOBODY, NOBODY_ELSE = "http://127.0.0.1:9", "http://127.0.0.1:7"


async def test_a_request_that_finds_an_engine_gone_is_sent_to_the_other(
    fast: str, tmp_path: Path
) -> None:
    async with inside(tmp_path, NOBODY, fast) as (gateway, outside, lines):
        health = gateway.parts.prober.health
        while health[NOBODY].up:
            # Different beginnings prefer different engines.
            answer = await outside.ask(chat(f"{len(health)} {time.monotonic()}"))
            assert answer.status_code == 200, answer.text
        await eventually(lambda: not gateway.running)
        assert_at_zero(gateway)
        assert (await outside.ask(chat())).status_code == 200
        down, *requests = [line for line in lines() if line.get("retries") != 0]
    assert (down["event"], down["engine"]) == ("engine_down", NOBODY)
    assert [(line["outcome"], line["retries"]) for line in requests] == [("completed", 1)]


async def test_a_request_that_finds_both_engines_gone_is_told_so_after_one_retry(
    tmp_path: Path,
) -> None:
    async with inside(tmp_path, NOBODY, NOBODY_ELSE) as (gateway, outside, lines):
        refused(await outside.ask(chat()), "upstream_unreachable")
        await eventually(lambda: not gateway.running)
        assert_at_zero(gateway)
        assert [health.up for health in gateway.parts.prober.health.values()] == [False, False]
        assert (lines()[-1]["outcome"], lines()[-1]["retries"]) == ("upstream_unreachable", 1)

"""A gateway that is told to stop: what it still serves, what it refuses, how it ends."""

import asyncio
import signal
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from tests.e2e.configs import Served
from tests.e2e.harness import (
    LIMIT_S,
    Front,
    caller,
    chat,
    endless,
    engine_idle,
    eventually,
    refused,
)
from tests.faults.caller import post, read_reply
from tests.faults.crooked import crooked_engine
from tests.faults.test_callers import MORE_THAN_SOCKETS_HOLD, floods

Start = Callable[..., Front]


async def health(gateway: Front, name: str) -> int:
    async with caller() as client:
        return (await client.get(f"{gateway.admin_url}/health/{name}")).status_code


def tell(gateway: Front, number: signal.Signals = signal.SIGTERM) -> None:
    assert gateway.process is not None
    gateway.process.send_signal(number)


async def exit_code(gateway: Front) -> int:
    assert gateway.process is not None
    return await asyncio.to_thread(gateway.process.wait, LIMIT_S)


def outcomes(gateway: Front) -> Counter[str]:
    return Counter(line["outcome"] for line in gateway.requests())


async def depth_is(gateway: Front, depth: int) -> bool:
    return await gateway.total("sluicegate_queue_depth") == depth


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_an_idle_gateway_ends_at_once_and_well(
    fast: str, started: Start, number: signal.Signals
) -> None:
    gateway = started({"simulated": Served([fast])}, (fast,))
    assert (await health(gateway, "ready"), await health(gateway, "live")) == (200, 200)
    tell(gateway, number)
    assert await exit_code(gateway) == 0
    assert [line["event"] for line in gateway.lines()][-2:] == ["draining", "drained"]


async def test_a_drain_is_unready_at_once_then_serves_then_refuses_and_finishes_what_it_has(
    slow: str, started: Start
) -> None:
    gateway = started(
        {"simulated": Served([slow])},
        (slow,),
        server={"shutdown_delay_s": 1.5, "drain_deadline_s": 15.0},
        limits={"slots": 2},
    )
    async with gateway.stream(chat(n=2, ignore_eos=True, max_tokens=160)) as stream:
        assert await stream.next() is not None
        queued = asyncio.ensure_future(gateway.ask(chat()))
        await eventually(lambda: depth_is(gateway, 1))
        tell(gateway)
        await eventually(lambda: unready(gateway))
        assert await health(gateway, "live") == 200
        assert await gateway.total("sluicegate_draining") == 1
        # Load balancers have not noticed yet: what they still send is taken.
        late = asyncio.ensure_future(gateway.ask(chat()))
        await eventually(lambda: depth_is(gateway, 2))

        async def turned_away() -> bool:
            answer = await gateway.ask(chat(), X_Sluicegate_Max_Wait="0")
            return answer.headers["x-sluicegate-outcome"] == "draining"

        await eventually(turned_away)
        refused(await gateway.ask(chat()), "draining")
        assert (await health(gateway, "ready"), await health(gateway, "live")) == (503, 200)
        events = await stream.rest()
    assert events[-1] == "[DONE]"
    assert ((await queued).status_code, (await late).status_code) == (200, 200)
    assert await exit_code(gateway) == 0
    assert outcomes(gateway)["completed"] == 3
    assert outcomes(gateway)["draining"] >= 2
    assert gateway.events("drained")[0]["ended"] == 0
    await engine_idle(slow)


async def unready(gateway: Front) -> bool:
    return await health(gateway, "ready") == 503


async def both_run(gateway: Front) -> bool:
    return await gateway.total("sluicegate_in_flight") == 2


async def test_what_is_left_at_the_deadline_is_ended_and_says_so(slow: str, started: Start) -> None:
    gateway = started(
        {"simulated": Served([slow])},
        (slow,),
        server={"drain_deadline_s": 0.8},
        limits={"slots": 2},
    )
    async with gateway.stream(endless()) as stream:
        assert await stream.next() is not None
        whole = asyncio.ensure_future(gateway.ask(endless()))
        await eventually(lambda: both_run(gateway))
        queued = asyncio.ensure_future(gateway.ask(chat()))
        await eventually(lambda: depth_is(gateway, 1))
        tell(gateway)
        events = await stream.rest()
        refused(await whole, "draining")
        refused(await queued, "draining")
    assert events[-1]["error"]["code"] == "drain_terminated"
    assert await exit_code(gateway) == 3
    assert outcomes(gateway) == {"drain_terminated": 1, "draining": 2}
    assert gateway.events("drained")[0]["ended"] == 3
    await engine_idle(slow)


async def test_a_second_signal_ends_it_without_waiting(slow: str, started: Start) -> None:
    gateway = started(
        {"simulated": Served([slow])},
        (slow,),
        server={"shutdown_delay_s": 60.0, "drain_deadline_s": 60.0},
    )
    async with gateway.stream(endless()) as stream:
        assert await stream.next() is not None
        tell(gateway)
        await eventually(lambda: bool(gateway.events("draining")))
        tell(gateway)
        assert (await stream.rest())[-1]["error"]["code"] == "drain_terminated"
    assert await exit_code(gateway) == 3
    await engine_idle(slow)


async def test_a_caller_who_does_not_read_cannot_hold_up_the_end(slow: str, started: Start) -> None:
    gateway = started({"simulated": Served([slow])}, (slow,), server={"drain_deadline_s": 0.3})
    host, port = gateway.url.removeprefix("http://").rsplit(":", 1)
    _, idle = await asyncio.open_connection(host, int(port))
    async with gateway.stream(endless()) as stream:
        assert await stream.next() is not None
        tell(gateway)
        assert await exit_code(gateway) == 3
    idle.close()
    await engine_idle(slow)


async def test_a_body_that_still_comes_at_the_deadline_is_refused_as_draining(
    fast: str, started: Start
) -> None:
    gateway = started({"simulated": Served([fast])}, (fast,), server={"drain_deadline_s": 0.3})
    async with connected(gateway, post(chat(), gateway.headers()["authorization"])[:-1]) as reader:
        await eventually(lambda: is_running(gateway, 1))
        tell(gateway)
        reply = await read_reply(reader)
    assert (reply.status, reply.error()["code"]) == (503, "draining")
    assert reply.headers["retry-after"]
    assert await exit_code(gateway) == 3
    assert [(line["outcome"], line["status"]) for line in gateway.requests()] == [("draining", 503)]


async def test_a_stream_that_nobody_reads_at_the_deadline_is_logged_as_ended_by_the_drain(
    started: Start,
) -> None:
    async with crooked_engine(floods(MORE_THAN_SOCKETS_HOLD, [])) as engine:
        gateway = await asyncio.to_thread(
            started,
            {"simulated": Served([engine.url])},
            (engine.url,),
            server={"drain_deadline_s": 0.3},
        )
        request = post(chat(stream=True), gateway.headers()["authorization"])
        async with connected(gateway, request) as reader:
            assert (await reader.readuntil(b"\r\n")).startswith(b"HTTP/1.1 200 ")
            reader._transport.pause_reading()  # type: ignore[attr-defined]
            await eventually(lambda: is_running(gateway, 1))
            tell(gateway)
            assert await exit_code(gateway) == 3
    assert [(line["outcome"], line["status"]) for line in gateway.requests()] == [
        ("drain_terminated", 200)
    ]


@asynccontextmanager
async def connected(gateway: Front, data: bytes) -> AsyncIterator[asyncio.StreamReader]:
    """A connection on which ``data`` was sent."""
    host, port = gateway.url.removeprefix("http://").rsplit(":", 1)
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        writer.write(data)
        yield reader
    finally:
        writer.transport.abort()


async def is_running(gateway: Front, requests: int) -> bool:
    return bool((await gateway.status())["running"] == requests)


async def test_nothing_written_to_a_log_holds_a_key_or_a_prompt(
    plain: Front, tmp_path: Any
) -> None:
    marker = "a prompt nobody may find in a log"
    async with plain.expect(completed=1, bad_request=1, unauthenticated=1):
        await plain.ask(chat(marker))
        await plain.ask({"model": "simulated", "messages": marker})
        async with caller() as client:
            headers = {"authorization": f"Bearer {plain.keys['batch']}x"}
            await client.post(plain.url + "/v1/chat/completions", json=chat(), headers=headers)
    text = plain.log.read_text()
    assert marker not in text
    for key in plain.keys.values():
        assert key.split("_", 2)[2] not in text

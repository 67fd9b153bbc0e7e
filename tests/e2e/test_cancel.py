"""A caller who leaves, in the queue, before the first byte, in the stream, leaves nothing."""

import asyncio
import json
from typing import Any

import pytest

from tests.e2e.harness import (
    CHAT,
    Front,
    chat,
    endless,
    engine_idle,
    eventually,
    ids,
    sim_state,
)


class Caller:
    """A caller on a bare socket, who can leave at any moment and in two ways."""

    def __init__(self, gateway: Front) -> None:
        self.gateway = gateway

    async def __aenter__(self) -> "Caller":
        host, port = self.gateway.url.removeprefix("http://").rsplit(":", 1)
        self.reader, self.writer = await asyncio.open_connection(host, int(port))
        return self

    async def __aexit__(self, *_: object) -> None:
        self.writer.transport.abort()

    async def send(self, body: dict[str, Any]) -> None:
        """Send a whole request and read nothing."""
        content = json.dumps(body).encode()
        head = (
            f"POST {CHAT} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
            f"authorization: {self.gateway.headers()['authorization']}\r\n"
            f"content-length: {len(content)}\r\n\r\n"
        )
        self.writer.write(head.encode() + content)
        await self.writer.drain()

    def leave(self, *, abruptly: bool) -> None:
        """Close in good order, or reset the connection."""
        if abruptly:
            self.writer.transport.abort()
        else:
            self.writer.close()


async def phases(gateway: Front) -> Any:
    return await gateway.counts("sluicegate_cancelled_total", "phase")


async def engine_runs(engine: str, count: int) -> bool:
    return bool((await sim_state(engine))["running"] == count)


# Long enough for the engine to be found at work on it before its first token.
LONG = [{"role": "user", "content": "word " * 1500}]
WAYS = pytest.mark.parametrize("abruptly", [False, True], ids=["closed", "reset"])
STREAMS = pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])


@WAYS
@STREAMS
async def test_a_caller_who_leaves_the_queue_is_never_dispatched(
    tight: Front, slow: str, stream: bool, abruptly: bool
) -> None:
    before, seen = await phases(tight), (await sim_state(slow))["requests_total"]
    async with (
        tight.expect(client_cancelled=2),
        Caller(tight) as caller,
        tight.stream(endless(n=2)) as held,
    ):
        assert await held.next() is not None
        await caller.send(chat(stream=stream))
        await eventually(lambda: depth_is(tight, 1))
        caller.leave(abruptly=abruptly)
        await eventually(lambda: depth_is(tight, 0))
        assert (await phases(tight))["queued"] - before["queued"] == 1
    await engine_idle(slow)
    assert (await sim_state(slow))["requests_total"] == seen + 1
    assert tight.requests()[-2]["status"] == 499


async def depth_is(gateway: Front, depth: int) -> bool:
    return await gateway.total("sluicegate_queue_depth") == depth


@WAYS
@STREAMS
async def test_a_caller_who_leaves_before_the_first_byte_ends_the_work(
    tight: Front, slow: str, stream: bool, abruptly: bool
) -> None:
    before = await phases(tight)
    async with tight.expect(client_cancelled=1), Caller(tight) as caller:
        await caller.send({**endless(messages=LONG), "stream": stream})
        await eventually(lambda: engine_runs(slow, 1))
        caller.leave(abruptly=abruptly)
        await engine_idle(slow)
    assert (await phases(tight))["before_first_byte"] - before["before_first_byte"] == 1
    line = tight.requests()[-1]
    assert (line["outcome"], line["status"]) == ("client_cancelled", 499)


@WAYS
@STREAMS
async def test_a_caller_who_leaves_while_its_request_is_on_a_used_connection_is_not_sent_again(
    tight: Front, slow: str, stream: bool, abruptly: bool
) -> None:
    # A connection that fails before it said anything may be stale, and is tried once more; one
    # that the gateway itself gave up must not be.
    async with tight.expect(completed=1, client_cancelled=1), Caller(tight) as caller:
        assert (await tight.ask(chat(max_tokens=1))).status_code == 200
        sent = (await sim_state(slow))["requests_total"]
        await caller.send({**endless(n=2, messages=LONG), "stream": stream})
        await eventually(lambda: engine_runs(slow, 2))
        caller.leave(abruptly=abruptly)
        await engine_idle(slow)
    assert (await sim_state(slow))["requests_total"] == sent + 1


@WAYS
async def test_a_caller_who_leaves_mid_stream_ends_the_work(
    tight: Front, slow: str, abruptly: bool
) -> None:
    before = await phases(tight)
    async with tight.expect(client_cancelled=1), Caller(tight) as caller:
        await caller.send({**endless(), "stream": True})
        await caller.reader.readuntil(b"data: ")
        assert await engine_runs(slow, 1)
        caller.leave(abruptly=abruptly)
        await engine_idle(slow)
    assert (await phases(tight))["mid_stream"] - before["mid_stream"] == 1


async def test_a_place_that_a_caller_leaves_goes_to_the_next(tight: Front) -> None:
    async with tight.expect(client_cancelled=1, completed=1), Caller(tight) as first:
        await first.send({**endless(n=2), "stream": True})
        await first.reader.readuntil(b"data: ")
        next_one = asyncio.ensure_future(tight.ask(chat()))
        await eventually(lambda: depth_is(tight, 1))
        first.leave(abruptly=True)
        assert (await next_one).status_code == 200


async def test_many_callers_who_leave_at_any_moment_leave_nothing_behind(
    tight: Front, slow: str
) -> None:
    async def come_and_go(number: int) -> None:
        async with Caller(tight) as caller:
            await caller.send({**endless(), "stream": number % 2 == 0})
            await asyncio.sleep(number * 0.011)
            caller.leave(abruptly=number % 3 == 0)

    async with tight.expect(client_cancelled=40):
        await asyncio.gather(*(come_and_go(number) for number in range(40)))
        await engine_idle(slow)


async def test_a_long_prompt_whose_caller_left_in_prefill_lets_the_next_one_in(
    tight: Front, slow: str
) -> None:
    async with tight.expect(client_cancelled=1, completed=1), Caller(tight) as caller:
        await caller.send({**chat("word " * 1500), "stream": True})
        await eventually(lambda: engine_runs(slow, 1))
        caller.leave(abruptly=False)
        answer = await tight.ask(ids(1900, max_tokens=1), "/v1/completions")
        assert answer.status_code == 200

import asyncio
import random
import time
from contextlib import asynccontextmanager

import orjson
import pytest

from loadgen.record import Outcome
from loadgen.scenario import Call
from loadgen.scenario_client import Server, payload_of, play_call, retry_delay_s

HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n"
FULL = (
    b"HTTP/1.1 429 Too Many Requests\r\nretry-after: 0.01\r\ncontent-length: 38\r\n"
    b"connection: close\r\n\r\n" + b'{"error":{"code":"queue_full","x":"y"}}'[:38]
)
EVENT = b'data: {"choices":[{"delta":{"content":"a"},"finish_reason":null}]}\n\n'
LAST = b'data: {"choices":[{"delta":{},"finish_reason":"length"}]}\n\ndata: [DONE]\n\n'


@asynccontextmanager
async def serving(*answers):
    """Answer the nth connection with the nth list of parts (the last again); None: say nothing."""
    seen, handlers, stop = [], [], asyncio.Event()

    async def handle(reader, writer):
        handlers.append(asyncio.current_task())
        await reader.readuntil(b"\r\n\r\n")
        parts = answers[min(len(seen), len(answers) - 1)]
        seen.append(time.monotonic())
        for part in parts:
            if part is None:
                await stop.wait()
            else:
                writer.write(part)
            await asyncio.sleep(0.01)
        writer.transport.abort() if stop.is_set() else writer.close()
        await asyncio.sleep(0)

    server = await asyncio.start_server(handle, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", seen
    finally:
        stop.set()
        server.close()
        await asyncio.gather(*handlers)


async def played(url, call, for_s=5.0):
    now = time.monotonic()
    payload = payload_of(url, "key", orjson.dumps({}))
    return await play_call(Server(url, {}, 1.0, now, now + for_s), call, payload, random.Random(1))


async def test_a_whole_answer_is_ok():
    async with serving([HEAD, EVENT, EVENT, LAST]) as (url, _):
        told = await played(url, Call(0.0, 8, 3))
    assert told.outcome is Outcome.OK
    assert told.tries[0].events == 3


async def test_a_caller_leaves_after_its_events():
    async with serving([HEAD, EVENT, EVENT, EVENT, None]) as (url, _):
        told = await played(url, Call(0.0, 8, 3, leave_after_events=2))
    assert (told.outcome, told.tries[0].code) == (Outcome.CANCELLED, "after_events")


async def test_a_caller_leaves_after_its_time_and_the_deadline_makes_it_unfinished():
    async with serving([None]) as (url, _):
        left = await played(url, Call(0.0, 8, 3, leave_after_s=0.05))
        waited = await played(url, Call(0.0, 8, 3), for_s=0.1)
    assert left.outcome is Outcome.CANCELLED
    assert waited.outcome is Outcome.UNFINISHED


async def test_an_sdk_tries_twice_more_and_others_do_not():
    async with serving([FULL]) as (url, seen):
        told = await played(url, Call(0.0, 8, 3, manner="sdk"))
        assert len(seen) == len(told.tries) == 3
        assert told.outcome is Outcome.REJECTED
        plain = await played(url, Call(0.0, 8, 3))
    assert len(plain.tries) == 1
    assert plain.tries[0].retry_after_s == 0.01


async def test_an_sdk_is_content_with_the_first_good_answer():
    async with serving([FULL], [HEAD, EVENT, LAST]) as (url, seen):
        told = await played(url, Call(0.0, 8, 2, manner="sdk"))
    assert [t.outcome for t in told.tries] == [Outcome.REJECTED, Outcome.OK]
    assert len(seen) == 2


async def test_an_sdk_does_as_it_is_told_about_trying_again():
    refused = FULL.replace(b"retry-after", b"x-should-retry: false\r\nretry-after")
    async with serving([refused]) as (url, seen):
        await played(url, Call(0.0, 8, 3, manner="sdk"))
    assert len(seen) == 1


async def test_a_slow_reader_gets_everything():
    async with serving([HEAD, *[EVENT] * 20, LAST]) as (url, _):
        told = await played(url, Call(0.0, 8, 21, manner="slow"))
    assert told.outcome is Outcome.OK


async def test_a_server_that_is_not_there_is_an_error_not_a_crash():
    told = await played("http://127.0.0.1:9", Call(0.0, 8, 3))
    assert told.outcome is Outcome.ERROR
    assert told.tries[0].code.startswith("connect_failed")


@pytest.mark.parametrize(
    ("tries", "advice_s", "luck", "wanted_s"),
    [
        (1, None, 0.0, 0.5),
        (2, None, 0.0, 1.0),
        (2, None, 1.0, 0.75),
        (9, None, 0.0, 8.0),
        (1, 3.0, 0.7, 3.0),
        (1, 61.0, 0.0, 0.5),
        (1, 0.0, 0.0, 0.5),
    ],
)
def test_the_pause_before_a_try_is_that_of_the_sdks(tries, advice_s, luck, wanted_s):
    assert retry_delay_s(tries, advice_s, luck) == pytest.approx(wanted_s)

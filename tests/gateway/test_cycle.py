import asyncio
from typing import Any

import pytest

from gateway.cycle import Cycle

START = {"type": "http.response.start", "status": 200, "headers": []}


class Transport:
    """Keeps what is written."""

    def __init__(self) -> None:
        self.written: list[bytes] = []
        self.closing = False

    def write(self, data: bytes) -> None:
        self.written.append(data)

    def is_closing(self) -> bool:
        return self.closing


class Connection:
    """As much of a caller's connection as an answer needs."""

    def __init__(self) -> None:
        self.transport: Any = Transport()
        self.loop = asyncio.get_running_loop()
        self.write_paused = False

    async def drained(self) -> None:
        self.write_paused = False

    def resume_reading(self) -> None:
        raise AssertionError("nothing was paused")

    def completed(self) -> None:
        """Nothing follows."""


def cycle(version: str = "1.1") -> tuple[Cycle, Connection]:
    connection = Connection()
    scope = {"http_version": version, "method": "POST"}
    return Cycle(connection, scope, keep_alive=True, expects_continue=False), connection


def part(body: bytes, *, more: bool = True) -> dict[str, Any]:
    return {"type": "http.response.body", "body": body, "more_body": more}


async def test_a_chunk_is_passed_on_as_send_would_frame_it() -> None:
    one, connection = cycle()
    await one.send(START)
    await one.send(part(b"first"))
    connection.transport.written.clear()
    await one.send(part(b"hello"))
    assert one.pass_on(b"5\r\nhello\r\n")
    assert connection.transport.written[0] == connection.transport.written[1]


async def test_no_chunk_overtakes_the_head_or_what_waits() -> None:
    one, connection = cycle()
    assert not one.pass_on(b"1\r\na\r\n")
    await one.send(START)
    assert not one.pass_on(b"1\r\na\r\n")
    await one.send(part(b"a"))
    connection.write_paused = True
    assert not one.pass_on(b"1\r\nb\r\n")


@pytest.mark.parametrize("why", ["closing", "complete", "http10", "length"])
async def test_a_chunk_goes_only_where_chunks_are_spoken_and_somebody_listens(why: str) -> None:
    one, connection = cycle("1.0" if why == "http10" else "1.1")
    headers = [(b"content-length", b"2")] if why == "length" else []
    await one.send({**START, "headers": headers})
    await one.send(part(b"a", more=why != "complete"))
    connection.transport.closing = why == "closing"
    written = len(connection.transport.written)
    assert not one.pass_on(b"1\r\nb\r\n")
    assert len(connection.transport.written) == written


BODY_HEAD = [(b"content-length", b"5"), (b"x-word", b"w")]


async def test_a_whole_answer_is_written_as_send_would_write_it() -> None:
    (one, direct), (other, sent) = cycle(), cycle()
    assert one.answer(200, BODY_HEAD, b"hello")
    await other.send({**START, "headers": BODY_HEAD})
    await other.send(part(b"hello", more=False))
    assert direct.transport.written == sent.transport.written
    assert len(direct.transport.written) == 1
    assert one.complete


@pytest.mark.parametrize("why", ["closing", "paused", "started"])
async def test_a_whole_answer_is_left_to_send_where_it_must_wait_or_is_late(why: str) -> None:
    one, connection = cycle()
    connection.transport.closing, connection.write_paused = why == "closing", why == "paused"
    if why == "started":
        await one.send(START)
    assert not one.answer(200, BODY_HEAD, b"hello")
    assert (connection.transport.written, one.complete) == ([], False)


async def test_a_whole_answer_must_be_as_long_as_it_says() -> None:
    one, _ = cycle()
    with pytest.raises(RuntimeError, match="not as long"):
        one.answer(200, BODY_HEAD, b"hell")


async def test_a_body_is_taken_once_and_only_when_all_of_it_is_there() -> None:
    one, connection = cycle()
    one.got_body(b"ab")
    assert one.take() is None
    one.got_body(b"cd")
    one.got_all()
    assert (one.take(), one.take()) == (b"abcd", None)
    assert one.unread_bytes == 0
    two, connection = cycle()
    two.got_all()
    connection.transport.closing = True
    assert two.take() is None


async def test_what_was_taken_in_part_is_left_to_receive() -> None:
    one, _ = cycle()
    one.got_body(b"ab")
    assert (await one.receive())["body"] == b"ab"
    one.got_all()
    assert one.take() == b""

"""The table of engine faults: what an engine does, and how the request must end for its caller.

The expected words are those of the failure contract. ``reads`` says what the caller has at the
end: ``whole`` (the engine's good answer, byte for byte), ``engine's`` (another answer of the
engine's own, unchanged), ``refusal`` (the gateway's error object), ``error event`` (a beginning of
the stream, then the gateway's error event, then the proper end of the body), ``engine's event``
(the same with the engine's own error event) and ``cut`` (the connection ended first).
"""

import asyncio
import json
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from tests.faults.crooked import Peer, Script, chunk, plain

__all__ = [
    "DONE",
    "GOOD_BODY",
    "GOOD_STREAM",
    "ROWS",
    "STREAM_EVENTS",
    "STREAM_HEAD",
    "Row",
    "cut_after",
    "event",
    "good",
    "is_stream",
    "says_and_hangs",
    "whole_answer",
]

STREAM_HEAD = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\n"
    b"transfer-encoding: chunked\r\n\r\n"
)
DONE = b"data: [DONE]\n\n"
LAST_CHUNK = b"0\r\n\r\n"


def event(text: str = "", finish: str | None = None) -> bytes:
    """One chat chunk as vLLM writes it."""
    choice = {"index": 0, "delta": {"content": text}, "logprobs": None, "finish_reason": finish}
    body = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "choices": [choice]}
    return b"data: " + json.dumps(body, separators=(",", ":")).encode() + b"\n\n"


def error_event(code: int) -> bytes:
    error = {"message": "it broke", "type": "InternalServerError", "param": None, "code": code}
    return b"data: " + json.dumps({"error": error}).encode() + b"\n\n"


STREAM_EVENTS = (event(), event("Good"), event(" day"), event("", "stop"), DONE)
GOOD_STREAM = b"".join(STREAM_EVENTS)
GOOD_BODY = json.dumps(
    {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": "Good day"},
                "finish_reason": "stop",
            }
        ],
        "usage": {"prompt_tokens": 8, "completion_tokens": 2, "total_tokens": 10},
    }
).encode()
ERROR_BODY = json.dumps(
    {"error": {"message": "no", "type": "BadRequestError", "param": None, "code": 400}}
).encode()
ABORTED_BODY = GOOD_BODY.replace(b'"stop"', b'"abort"')


def is_stream(request: bytes) -> bool:
    return b'"stream":true' in request.replace(b": ", b":")


def chunked(*parts: bytes) -> bytes:
    return STREAM_HEAD + b"".join(map(chunk, parts)) + LAST_CHUNK


def whole_answer(stream: bool) -> bytes:
    """The recorded good answer, as the engine writes it."""
    return chunked(*STREAM_EVENTS) if stream else plain(GOOD_BODY)


async def good(peer: Peer) -> None:
    """Answer well."""
    await peer.send(whole_answer(is_stream(peer.request)))


# -- what a script may do ------------------------------------------------------------------

_OPEN = STREAM_HEAD + chunk(STREAM_EVENTS[0])


def says(data: bytes) -> Script:
    """Write ``data`` and keep the connection."""
    return lambda peer: peer.send(data)


def says_and_ends(data: bytes) -> Script:
    async def script(peer: Peer) -> None:
        await peer.send(data)
        await peer.end()

    return script


def says_and_resets(data: bytes = b"") -> Script:
    async def script(peer: Peer) -> None:
        if data:
            await peer.send(data)
        peer.reset()

    return script


def says_and_hangs(data: bytes = b"") -> Script:
    """Write ``data``, then nothing more until the gateway hangs up."""

    async def script(peer: Peer) -> None:
        if data:
            await peer.send(data)
        await peer.closed()

    return script


def cut_after(count: int, stream: bool) -> Script:
    """The good answer's first ``count`` bytes; then a reset, or by turns a proper close."""
    data = whole_answer(stream)[:count]
    return says_and_resets(data) if count % 2 else says_and_ends(data)


def drips(first: bytes, part: bytes, gap_s: float) -> Script:
    """Write ``first``, then ``part`` again and again until the gateway hangs up."""

    async def script(peer: Peer) -> None:
        await peer.send(first)
        gone = asyncio.ensure_future(peer.closed())
        while not gone.done():
            await peer.send(part)
            await asyncio.wait([gone], timeout=gap_s)

    return script


async def slowly(peer: Peer) -> None:
    """The good answer, a few bytes at a time."""
    data = whole_answer(is_stream(peer.request))
    for start in range(0, len(data), 7):
        await peer.send(data[start : start + 7])
        await asyncio.sleep(0.001)


async def resets_used_connections(peer: Peer) -> None:
    """The second request on a connection finds it dead; the same request does well on a new one."""
    if peer.served:
        peer.reset()
    else:
        await good(peer)


def first(script: Script) -> Script:
    """``script`` for the first request, the good answer for those after it."""
    seen: list[Callable[[Peer], Awaitable[None]]] = [script]

    async def turn(peer: Peer) -> None:
        await (seen.pop() if seen else good)(peer)

    return turn


def in_turn(*parts: bytes) -> Script:
    """Write a stream's chunks so far apart that each is a read of its own, then end it well."""

    async def script(peer: Peer) -> None:
        await peer.send(STREAM_HEAD)
        for part in parts:
            await peer.send(chunk(part))
            await asyncio.sleep(0.02)
        await peer.send(LAST_CHUNK)

    return script


# -- the table -----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Row:
    """One fault. ``status`` is the caller's, ``warm``: another request goes before it."""

    name: str
    fault: Script
    stream: bool
    outcome: str
    status: int
    reads: str
    warm: bool = False

    @property
    def label(self) -> str:
        """The row's name with how it was asked."""
        return f"{self.name}, {'stream' if self.stream else 'whole'}"


def _both(name: str, fault: Script, outcome: str, status: int, reads: str) -> list[Row]:
    return [Row(name, fault, stream, outcome, status, reads) for stream in (True, False)]


def _unreachable(name: str, fault: Script) -> list[Row]:
    return _both(name, fault, "upstream_unreachable", 502, "refusal")


def _timeout(name: str, fault: Script, *, streams: Sequence[bool] = (True, False)) -> list[Row]:
    return [Row(name, fault, s, "upstream_timeout", 504, "refusal") for s in streams]


def _interrupted(name: str, fault: Script, reads: str = "error event") -> list[Row]:
    return [Row(name, fault, True, "stream_interrupted", 200, reads)]


def _completed(name: str, fault: Script, reads: str = "whole") -> list[Row]:
    return _both(name, fault, "completed", 200, reads)


_HALF_BODY = plain(GOOD_BODY)[:-20]
_LONG_LENGTH = plain(GOOD_BODY).replace(b"length: ", b"length: 9")
_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n"
_LENGTH = b"content-length: %d\r\n" % len(GOOD_BODY)


def _with_header(line: bytes) -> bytes:
    return _HEAD + line + b"\r\n" + _LENGTH + b"\r\n" + GOOD_BODY


def _bad_framing() -> list[Row]:
    """Answers that no two readers understand alike."""
    heads = {
        "a header with a bare CR": b"x: a\rset-cookie: b",
        "a header with a bare LF": b"x: a\nset-cookie: b",
        "a header with NUL": b"x: a\0b",
        "a folded header": b"x: a\r\n b",
        "a space before the colon": b"x : a",
        "length and chunks": b"transfer-encoding: chunked",
        "two lengths": b"content-length: 3",
        "a negative length": b"content-length: -1",
        "an unknown transfer coding": b"transfer-encoding: gzip, chunked",
        "100 KiB of headers": b"\r\n".join(b"x-%d: %b" % (n, b"y" * 1000) for n in range(100)),
        "one header of 100 KiB": b"x: " + b"y" * 100_000,
    }
    rows = [
        row
        for name, line in heads.items()
        for row in _unreachable(name, says_and_hangs(_with_header(line)))
    ]
    return [
        *rows,
        *_unreachable("a content coding nobody asked for",
                      says(_with_header(b"content-encoding: gzip"))),
        *_unreachable("garbage instead of HTTP", says_and_hangs(b"SSH-2.0-OpenSSH_9.2\r\n")),
        *_unreachable("binary garbage", says_and_hangs(bytes(range(256)) * 8)),
        *_unreachable("HTTP/0.9", says_and_ends(GOOD_BODY)),
        *_unreachable("another protocol's version", says_and_hangs(b"HTTP/2.0 200 OK\r\n\r\n")),
        *_unreachable("status 99", says_and_hangs(b"HTTP/1.1 099 ?\r\n\r\n")),
        *_unreachable("status 101", says_and_hangs(b"HTTP/1.1 101 Switching Protocols\r\n\r\n")),
        *_unreachable("a chunk size that is none", says_and_hangs(STREAM_HEAD + b"zz\r\n")),
        *_unreachable("a chunk size beyond all", says_and_hangs(STREAM_HEAD + b"f" * 20 + b"\r\n")),
        *_unreachable("a chunk without end", says_and_ends(STREAM_HEAD + b"99\r\ndata: {")),
        *_unreachable("150 KiB of chunk extension",
                      says_and_hangs(STREAM_HEAD + b"5;x=" + b"y" * 150_000)),
        *_unreachable("an endless head", drips(_HEAD, b"x: " + b"y" * 4096 + b"\r\n", 0.0)),
        *_interrupted("a bad chunk size mid-stream", says_and_hangs(_OPEN + b"zz\r\n")),
        *_interrupted("a chunk cut short", says_and_ends(_OPEN + b"99\r\ndata: {")),
    ]  # fmt: skip


ROWS: tuple[Row, ...] = (
    *_completed("no fault", good),
    *_unreachable("reset after the request", says_and_resets()),
    *_unreachable("closed after the request", says_and_ends(b"")),
    *(
        Row("a used connection that is dead", resets_used_connections, stream, "completed", 200,
            "whole", warm=True)
        for stream in (True, False)
    ),
    *_timeout("no answer", says_and_hangs()),
    *_timeout("half a head", says_and_hangs(_HEAD[:30])),
    *_timeout("a head, and no event", says_and_hangs(STREAM_HEAD), streams=[True]),
    *_timeout("comments only", drips(STREAM_HEAD, chunk(b": keep-alive\n\n"), 0.02),
              streams=[True]),
    *_timeout("half an event", says_and_hangs(STREAM_HEAD + b"99\r\ndata: {"), streams=[True]),
    *_timeout("half a body", says_and_hangs(_HALF_BODY), streams=[False]),
    *_timeout("a length beyond the body", says_and_hangs(_LONG_LENGTH), streams=[False]),
    *_interrupted("a hang mid-stream", says_and_hangs(_OPEN)),
    *_interrupted("comments after the first event",
                  drips(_OPEN, chunk(b": keep-alive\n\n"), 0.02)),
    *_interrupted("an event that never ends", drips(_OPEN, chunk(b"data: "), 0.02)),
    *_interrupted("reset mid-stream", says_and_resets(_OPEN)),
    *_interrupted("closed mid-stream", says_and_ends(_OPEN)),
    *_interrupted("closed inside an event",
                  says_and_ends(_OPEN + chunk(STREAM_EVENTS[1][:20]))),
    *_interrupted("ended without [DONE]", says(chunked(*STREAM_EVENTS[:-1]))),
    *_interrupted("[DONE] without a finish reason", in_turn(event("a"), DONE)),
    *_interrupted("finish reason abort", in_turn(event("a"), event("", "abort"), DONE)),
    *_interrupted("finish reason error", in_turn(event("a"), event("", "error"), DONE)),
    *_interrupted("an unknown finish reason", in_turn(event("a"), event("", "odd"), DONE)),
    *_interrupted("error event later",
                  in_turn(event("a"), error_event(500), DONE), "engine's event"),
    *_interrupted("error event last",
                  in_turn(*STREAM_EVENTS[:-1], error_event(500), DONE), "engine's event"),
    Row("error event 503 first", says(chunked(error_event(503), DONE)), True,
        "engine_rejected", 503, "refusal"),
    Row("error event 500 first", says(chunked(error_event(500), DONE)), True,
        "engine_error", 500, "engine's"),
    Row("error event 400 first", says(chunked(error_event(400), DONE)), True,
        "engine_error", 400, "engine's"),
    Row("error event 503 first, comments before it",
        says(chunked(b": wait\n\n", error_event(503), DONE)), True,
        "engine_rejected", 503, "refusal"),
    Row("abort at once", says(chunked(event("", "abort"), DONE)), True,
        "engine_rejected", 503, "refusal"),
    Row("abort in one piece with the first event",
        says(STREAM_HEAD + chunk(event("") + event("", "abort") + DONE) + LAST_CHUNK), True,
        "engine_rejected", 503, "refusal"),
    *_unreachable("closed after a head", says_and_ends(STREAM_HEAD)),
    Row("comments only, then the end", says(chunked(b": keep-alive\n\n")), True,
        "upstream_unreachable", 502, "refusal"),
    Row("an empty stream", says(chunked()), True, "upstream_unreachable", 502, "refusal"),
    Row("[DONE] at once", says(chunked(DONE)), True, "upstream_unreachable", 502, "refusal"),
    Row("a page instead of a stream", says(plain(b"<html>", kind=b"text/html")), True,
        "upstream_unreachable", 502, "refusal"),
    Row("a length that is too long", says_and_ends(_LONG_LENGTH), False,
        "upstream_unreachable", 502, "refusal"),
    *_both("status 200 with a JSON error", says(plain(ERROR_BODY)), "engine_error", 200,
           "engine's"),
    *_both("status 400", says(plain(ERROR_BODY, b"400 Bad Request")), "engine_error", 400,
           "engine's"),
    *_both("status 500", says(plain(ERROR_BODY, b"500 Oops")), "engine_error", 500, "engine's"),
    *_both("status 503", says(plain(ERROR_BODY, b"503 Busy")), "engine_rejected", 503, "refusal"),
    Row("finish reason abort", says(plain(ABORTED_BODY)), False, "engine_rejected", 503, "refusal"),
    Row("bytes after the answer", says(plain(GOOD_BODY) + b"HTTP/1.1 200 OK\r\n\r\n"), False,
        "completed", 200, "whole"),
    Row("another whole answer after the first", says(plain(GOOD_BODY) + plain(ERROR_BODY)), False,
        "completed", 200, "whole"),
    Row("a comment after [DONE]", says(chunked(GOOD_STREAM, b": bye\n\n")), True,
        "completed", 200, "engine's"),
    Row("an error event after [DONE]", says(chunked(GOOD_STREAM, error_event(500))), True,
        "stream_interrupted", 200, "engine's event"),
    Row("no last chunk after [DONE]", says_and_ends(STREAM_HEAD + chunk(GOOD_STREAM)), True,
        "completed", 200, "whole"),
    *(
        Row("informational answers before it",
            says(b"HTTP/1.1 102 Processing\r\nx: y\r\n\r\n" * 3 + whole_answer(stream)),
            stream, "completed", 200, "whole")
        for stream in (True, False)
    ),
    *_completed("a slow drip", slowly),
    Row("events in one chunk", says(chunked(GOOD_STREAM)), True, "completed", 200, "whole"),
    Row("events without a length",
        says_and_ends(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n" + GOOD_STREAM),
        True, "completed", 200, "whole"),
    *_bad_framing(),
)  # fmt: skip

"""Requests that two readers could understand differently, and what the engine gets of each.

The engine notes every byte it is sent. What a caller smuggles must be refused, or reach the engine
in exactly one reading, without what callers may not say.
"""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.e2e.harness import CHAT, chat
from tests.faults.caller import ask, read_reply
from tests.faults.stand import Stand, stand

BODY = json.dumps(chat()).encode()
EVIL = b"POST /evil HTTP/1.1\r\nhost: x\r\ncontent-length: 0\r\n\r\n"


@pytest.fixture(scope="module")
def anyio_backend() -> Any:
    return ("asyncio", {"use_uvloop": True})


@pytest.fixture(scope="module")
async def pair(
    anyio_backend: Any, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Stand]:
    async with stand(tmp_path_factory.mktemp("smuggling"), {"upstream": {}}) as running:
        yield running


def head(key: str, *lines: str, target: str = CHAT, host: str = "host: x") -> bytes:
    always = (host, "content-type: application/json", f"authorization: {key}")
    return "\r\n".join([f"POST {target} HTTP/1.1", *always, *lines, "", ""]).encode("latin-1")


LENGTH = f"content-length: {len(BODY)}"
CHUNKED = "transfer-encoding: chunked"
CHUNKS = b"%x\r\n%b\r\n0\r\n\r\n" % (len(BODY), BODY)


# What has no single reading is refused, and the connection is not used for more.
REFUSED: dict[str, tuple[list[str], bytes]] = {
    "length and chunks": ([LENGTH, CHUNKED], CHUNKS),
    "chunks and length": ([CHUNKED, LENGTH], CHUNKS),
    "two equal lengths": ([LENGTH, LENGTH], BODY),
    "two different lengths": ([LENGTH, "content-length: 0"], BODY),
    "a list of lengths": ([f"content-length: {len(BODY)}, {len(BODY)}"], BODY),
    "a signed length": ([f"content-length: +{len(BODY)}"], BODY),
    "a length in hex": (["content-length: 0x10"], BODY),
    "a length with a space inside": (["content-length: 1 0"], BODY),
    "a negative length": (["content-length: -1"], BODY),
    "a length beyond 64 bits": (["content-length: 18446744073709551617"], BODY),
    "two transfer codings": ([CHUNKED, CHUNKED], CHUNKS),
    "chunked twice": (["transfer-encoding: chunked, chunked"], CHUNKS),
    "chunked not last": (["transfer-encoding: chunked, identity"], CHUNKS),
    "identity": (["transfer-encoding: identity", LENGTH], BODY),
    "an unknown coding": (["transfer-encoding: xchunked"], CHUNKS),
    "a vertical tab before chunked": (["transfer-encoding:\x0bchunked"], CHUNKS),
    "a space before the colon": (["transfer-encoding : chunked"], CHUNKS),
    "a folded coding": (["transfer-encoding:\r\n chunked"], CHUNKS),
    "a folded header": (["x: a\r\n b", LENGTH], BODY),
    "a bare CR in a value": (["x: a\rcontent-length: 3", LENGTH], BODY),
    "NUL in a value": (["x: a\0", LENGTH], BODY),
    "a name with a space": (["x y: z", LENGTH], BODY),
    "two hosts": (["host: y", LENGTH], BODY),
    "an upgrade": (["connection: upgrade", "upgrade: websocket", LENGTH], BODY),
    "an upgrade to h2c": (
        ["connection: upgrade, http2-settings", "upgrade: h2c", "http2-settings: AA", LENGTH],
        BODY,
    ),
    "two credentials": (["authorization: Bearer x", LENGTH], BODY),
    "a chunk longer than said": ([CHUNKED], b"3\r\n" + BODY + b"\r\n0\r\n\r\n"),
    "a chunk size with a sign": ([CHUNKED], b"+5\r\nhello\r\n0\r\n\r\n"),
    "a chunk size with 0x": ([CHUNKED], b"0x5\r\nhello\r\n0\r\n\r\n"),
    "a chunk size ended by LF": ([CHUNKED], b"5\nhello\n0\n\n"),
    "a chunk size of 17 digits": ([CHUNKED], b"0" * 3000 + b"f" * 17 + b"\r\n"),
}


@pytest.mark.parametrize("name", REFUSED)
async def test_what_has_no_single_reading_reaches_nobody(pair: Stand, name: str) -> None:
    lines, body = REFUSED[name]
    pair.engine.requests.clear()
    reply = await ask(pair.url, head(pair.key, *lines) + body + EVIL, limit_s=8.0)
    assert reply.status in {400, 401, 431}, reply
    await pair.at_rest()
    assert pair.engine.requests == []


TARGETS = [
    "http://x/v1/chat/completions", "//v1/chat/completions", "/v1/../v1/chat/completions",
    "/v1/./chat/completions", "/v1//chat/completions", "/v1/chat%2fcompletions",
    "/v1/%63hat/completions", "/V1/chat/completions", "/v1/chat/completions/",
    "/v1/chat/completions;x", "/v1/chat/completions%00", "/v1/chat/completions%20",
    "/v1/../invocations", "/v1/%2e%2e/invocations", "/v1/..%2finvocations", "/invocations",
    "/metrics", "/health", "/load", "/v1/load_lora_adapter", "/pause", "/server_info", "*", "/",
    "/v1/chat/completions\\..\\..\\invocations", "/.//v1/chat/completions", "x:80",
]  # fmt: skip


@pytest.mark.parametrize("target", TARGETS)
async def test_a_path_that_is_not_letter_for_letter_an_allowed_one_is_no_path(
    pair: Stand, target: str
) -> None:
    pair.engine.requests.clear()
    reply = await ask(pair.url, head(pair.key, LENGTH, target=target) + BODY)
    assert reply.status in {400, 404}, reply
    await pair.at_rest()
    assert pair.engine.requests == []


# What callers may not say, in the ways there are to say it.
DROPPED = [
    "X-Vllm-Priority: -99", "x-vllm-priority: -99", "X-VLLM-PRIORITY: -99", "x-vllm-priority:-99",
    "x-vllm-priority:\t-99", "X-data-parallel-rank: 3", "X-Session-ID: s", "x-request-id: a b",
    "X-Request-Id: one\r\nX-Request-Id: two", "x_vllm_priority: -99", "connection: x-vllm-priority",
    "x-forwarded-for: 1.2.3.4", "forwarded: for=1.2.3.4", "cookie: a=b", "proxy-connection: close",
    "te: trailers", "trailer: x-vllm-priority", "expect: 200-ok", "keep-alive: 99",
    "content-encoding: identity", "x-real-ip: 1.2.3.4", "via: 1.1 evil",
    "x-http-method-override: GET",
    "accept: application/json\r\naccept: x/evil", "accept-encoding: gzip", "range: bytes=0-1",
]  # fmt: skip
# Names of headers that may reach the engine at all.
PASSED = {
    b"host", b"content-type", b"content-length", b"x-request-id", b"x-vllm-priority", b"accept",
    b"traceparent", b"tracestate",
}  # fmt: skip


@pytest.mark.parametrize("line", DROPPED)
async def test_a_header_of_the_callers_reaches_the_engine_only_if_it_may(
    pair: Stand, line: str
) -> None:
    pair.engine.requests.clear()
    reply = await ask(pair.url, head(pair.key, line, LENGTH) + BODY)
    await pair.at_rest()
    if reply.status != 200:
        assert (reply.status, pair.engine.requests) == (400, [])
        return
    (request,) = pair.engine.requests
    sent, _, body = request.partition(b"\r\n\r\n")
    fields = [tuple(x.split(b": ", 1)) for x in sent.split(b"\r\n")[1:]]
    names = [name.lower() for name, _ in fields]
    assert len(names) == len(set(names))
    assert set(names) <= PASSED
    values = {name.lower(): value for name, value in fields}
    assert values[b"x-vllm-priority"] == b"-10"
    assert json.loads(body)["priority"] == -10
    assert b"evil" not in request
    assert int(values[b"content-length"]) == len(body)
    assert b" " not in values[b"x-request-id"]


async def test_a_trailer_changes_nothing(pair: Stand) -> None:
    pair.engine.requests.clear()
    trailers = b"x-vllm-priority: -99\r\nauthorization: Bearer x\r\n\r\n"
    body = CHUNKS.removesuffix(b"\r\n") + trailers
    reply = await ask(pair.url, head(pair.key, CHUNKED, "trailer: x-vllm-priority") + body)
    assert reply.status == 200
    await pair.at_rest()
    assert b"-99" not in pair.engine.requests[0]


async def test_requests_in_one_piece_reach_the_engine_as_requests_of_their_own(
    pair: Stand,
) -> None:
    """What follows a body is the next request, and judged as such."""
    pair.engine.requests.clear()
    sound = head(pair.key, LENGTH) + BODY
    host, port = pair.url.removeprefix("http://").rsplit(":", 1)
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(sound + EVIL)
    collected = asyncio.StreamReader()
    statuses = []
    async with asyncio.timeout(5):
        while b"not_found" not in (data := await reader.read(65536)):
            collected.feed_data(data)
    collected.feed_data(data)
    statuses.append((await read_reply(collected)).status)
    writer.close()
    await pair.at_rest()
    assert statuses == [200]
    assert len(pair.engine.requests) == 1

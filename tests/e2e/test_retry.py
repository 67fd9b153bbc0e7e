"""A second engine for a request whose first did not begin to answer: when, and when not."""

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest

from gateway.app import Gateway
from gateway.health import after_success
from tests.e2e.harness import Front, chat, eventually, refused
from tests.e2e.inside import assert_at_zero, inside
from tests.gateway.scripted import Engine, Peer, Script, scripted_engine

MODES = ("enforce", "observe", "off")
GOOD = b'{"choices":[{"finish_reason":"stop"}],"usage":{"completion_tokens":2}}'
CHUNK = b'data: {"choices":[{"delta":{"content":"a"},"finish_reason":"stop"}]}\n\n'
BUSY = b'{"error":{"message":"full","type":"ServiceUnavailable","param":null,"code":503}}'


def answer(body: bytes, status: bytes = b"200 OK", kind: bytes = b"application/json") -> bytes:
    return b"HTTP/1.1 %b\r\ncontent-type: %b\r\ncontent-length: %d\r\n\r\n%b" % (
        status,
        kind,
        len(body),
        body,
    )


STREAM = b"text/event-stream"
SAYS: Mapping[str, bytes] = {
    "good": answer(GOOD),
    "good stream": answer(CHUNK + b"data: [DONE]\n\n", kind=STREAM),
    "503": answer(BUSY, b"503 Service Unavailable"),
    "503 with advice": answer(BUSY, b"503 X\r\nretry-after: 7"),
    "503 first": answer(b'data: {"error":{"message":"full","code":503}}\n\n', kind=STREAM),
    "abort": answer(CHUNK.replace(b"stop", b"abort") + b"data: [DONE]\n\n", kind=STREAM),
    "500": answer(BUSY.replace(b"503", b"500"), b"500 Internal Server Error"),
    "reset": b"",
    "garbage": b"SSH-2.0-OpenSSH_9.2\r\n",
    "head, then reset": b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n",
    "half a body": answer(GOOD)[:-10],
}
ENDS = frozenset({"reset", "garbage", "head, then reset", "half a body"})


@dataclass
class Pair:
    """Two engines: ``first`` gets the first request; both count what they were asked."""

    words: dict[str, str]
    asked: Counter[str] = field(default_factory=Counter)

    def script(self, name: str) -> Script:
        async def serve(peer: Peer) -> None:
            while True:
                await peer.request()
                self.asked[name] += 1
                word = self.words[name]
                if word == "hang":
                    await peer.closed()
                    return
                await peer.send(SAYS[word])
                if word in ENDS:
                    peer.reset()
                    return

        return serve


@asynccontextmanager
async def pair(
    folder: Path, first: str, second: str | None, mode: str = "enforce", **changes: Any
) -> AsyncIterator[tuple[Pair, Gateway, Front, Callable[[], list[dict[str, Any]]]]]:
    """A gateway before two engines that say so; without ``second``, before one."""
    engines = Pair({"first": first, "second": second or ""})
    upstream = {"first_byte_timeout_s": 0.3, "answer_timeout_s": 0.3, **changes}
    async with (
        scripted_engine(engines.script("first")) as one,
        scripted_engine(engines.script("second")) as two,
    ):
        urls = [one.url] + ([two.url] if second else [])
        async with inside(folder, *urls, changes={"upstream": upstream}, admission=mode) as (
            gateway,
            outside,
            lines,
        ):
            _prefer(gateway, one)
            yield engines, gateway, outside, lines
            await eventually(lambda: not gateway.running)
            assert_at_zero(gateway)


def _prefer(gateway: Gateway, engine: Engine) -> None:
    """Make the core take ``engine`` while it may: the other one looks busier."""
    core = gateway.parts.turnstile.core
    for ledger in core.engines.values():
        if ledger.name != engine.url:
            ledger.prefill_used += 20_000


def _fresh(engines: Pair, gateway: Gateway) -> None:
    """Begin counting, on new connections: one that was kept is replaced when it turns out dead."""
    for client in gateway.parts.clients.values():
        client.drop_idle()
    engines.asked.clear()


@asynccontextmanager
async def weighed(*args: Any, **kwargs: Any) -> AsyncIterator[Any]:
    """As ``pair``; the weight that makes the first one preferred is taken off at the end."""
    async with pair(*args, **kwargs) as (engines, gateway, outside, lines):
        try:
            yield engines, gateway, outside, lines
        finally:
            for ledger in list(gateway.parts.turnstile.core.engines.values())[1:]:
                ledger.prefill_used -= 20_000


RETRIED = [
    ("reset", False),
    ("garbage", False),
    ("503", False),
    ("reset", True),
    ("503", True),
    ("503 first", True),
    ("abort", True),
]


@pytest.mark.parametrize("mode", MODES)
async def test_what_did_not_begin_is_served_by_the_other_engine(tmp_path: Path, mode: str) -> None:
    async with weighed(tmp_path, "good", "good", mode) as (engines, gateway, outside, lines):
        for word, stream in RETRIED:
            good = "good stream" if stream else "good"
            engines.words.update(first=word, second=good)
            _fresh(engines, gateway)
            got = await outside.ask(chat(stream=stream))
            assert got.status_code == 200, (word, got.text)
            assert got.content == SAYS[good].partition(b"\r\n\r\n")[2]
            assert engines.asked == {"first": 1, "second": 1}, word
        await eventually(lambda: not gateway.running)
        requests = [line for line in lines() if line["event"] == "request"]
    assert {(line["outcome"], line["retries"]) for line in requests} == {("completed", 1)}
    assert {line["engine"] for line in requests} == {list(gateway.parts.clients)[1]}


NOT_RETRIED = [
    ("hang", False, "upstream_timeout"),
    ("hang", True, "upstream_timeout"),
    ("500", False, "engine_error"),
    ("half a body", False, "upstream_unreachable"),
    ("head, then reset", True, "upstream_unreachable"),
]


async def test_what_may_still_run_or_was_answered_is_not_sent_again(tmp_path: Path) -> None:
    async with weighed(tmp_path, "good", "good") as (engines, gateway, outside, lines):
        for word, stream, outcome in NOT_RETRIED:
            engines.words["first"] = word
            _fresh(engines, gateway)
            got = await outside.ask(chat(stream=stream))
            assert got.headers["x-sluicegate-outcome"] == outcome, word
            assert engines.asked == {"first": 1}, word
        await eventually(lambda: not gateway.running)
        assert {line.get("retries", 0) for line in lines()} == {0}


async def test_an_engine_that_refuses_twice_is_a_refusal_with_its_own_advice(
    tmp_path: Path,
) -> None:
    async with weighed(tmp_path, "503", "503 with advice") as (engines, _, outside, _lines):
        got = await outside.ask(chat())
        refused(got, "engine_rejected")
        assert 7 <= int(got.headers["retry-after"]) <= 30
        assert engines.asked == {"first": 1, "second": 1}


async def test_where_there_is_no_other_engine_there_is_no_second_attempt(tmp_path: Path) -> None:
    async with pair(tmp_path, "503", None) as (engines, gateway, outside, _lines):
        refused(await outside.ask(chat()), "engine_rejected")
        engines.words["first"] = "reset"
        for client in gateway.parts.clients.values():
            client.drop_idle()
        refused(await outside.ask(chat()), "upstream_unreachable")
        assert engines.asked == {"first": 2}


async def test_retries_are_a_part_of_all_requests_and_then_stop(tmp_path: Path) -> None:
    async with weighed(tmp_path, "503", "503", retry_budget=0.1) as (engines, _, outside, _lines):
        answers = [await outside.ask(chat()) for _ in range(40)]
        assert {got.status_code for got in answers} == {503}
        again = sum(engines.asked.values()) - 40
        # Ten may follow each other; every ten requests allow one more.
        assert 13 <= again <= 14


async def test_a_budget_of_nothing_allows_none(tmp_path: Path) -> None:
    async with weighed(tmp_path, "503", "good", retry_budget=0.0) as (engines, _, outside, _lines):
        refused(await outside.ask(chat()), "engine_rejected")
        assert engines.asked == {"first": 1}


async def test_a_caller_who_has_left_is_not_served_by_the_second(tmp_path: Path) -> None:
    async with weighed(
        tmp_path, "hang", "good", first_byte_timeout_s=20.0, answer_timeout_s=20.0
    ) as (
        engines,
        gateway,
        outside,
        lines,
    ):
        asking = asyncio.ensure_future(outside.ask(chat()))
        await eventually(lambda: engines.asked["first"] == 1)
        asking.cancel()
        await eventually(lambda: not gateway.running)
        assert engines.asked == {"first": 1}
        assert lines()[-1]["outcome"] == "client_cancelled"


async def test_an_engine_that_nobody_can_connect_to_leaves_its_request_waiting_in_front(
    tmp_path: Path,
) -> None:
    """The only engine comes back while the request waits: it is served, within its own deadline."""
    async with pair(tmp_path, "good", None) as (engines, gateway, outside, lines):
        (url,) = gateway.parts.clients
        prober, client = gateway.parts.prober, gateway.parts.clients[url]
        real, client.origin = client.origin, type(client.origin)("127.0.0.1", 9)
        asking = asyncio.ensure_future(outside.ask(chat()))
        await eventually(lambda: gateway.parts.turnstile.waiting == 1)
        assert not prober.health[url].up
        client.origin = real
        prober._set(after_success(prober.health[url], gateway.parts.clock()))
        assert (await asking).status_code == 200
        assert engines.asked == {"first": 1}
        await eventually(lambda: not gateway.running)
        assert lines()[-1]["retries"] == 1


@pytest.mark.parametrize("mode", MODES)
async def test_whatever_engines_do_every_lease_is_released_once(tmp_path: Path, mode: str) -> None:
    """Both engines change their minds at random under many callers, some of whom hang up."""
    choose = random.Random(mode)
    async with pair(tmp_path, "good", "good", mode) as (engines, gateway, outside, lines):
        for ledger in list(gateway.parts.turnstile.core.engines.values())[1:]:
            ledger.prefill_used -= 20_000
        async with httpx.AsyncClient(trust_env=False, timeout=20.0) as client:

            async def ask() -> None:
                body = chat(stream=choose.random() < 0.5, n=choose.choice([1, 1, 3]))
                engines.words[choose.choice(["first", "second"])] = choose.choice(
                    ["good", "good stream", "503", "503 first", "reset", "garbage", "500"]
                )
                patience_s = choose.choice([0.002, 5.0, 5.0])
                try:
                    async with asyncio.timeout(patience_s):
                        await client.post(
                            f"{outside.url}/v1/chat/completions",
                            json=body,
                            headers=outside.headers(),
                        )
                except (TimeoutError, httpx.HTTPError):
                    return

            for _ in range(30):
                await asyncio.gather(*(ask() for _ in range(8)))
        await eventually(lambda: not gateway.running)
        done = [line for line in lines() if line["event"] == "request"]
    assert len(done) <= 240
    assert {line["retries"] for line in done} == {0, 1}
    assert not [line for line in lines() if line["event"] == "internal_error"]

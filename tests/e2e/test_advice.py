"""How long refused callers are told to wait: whose bound it was, and nobody else's doing."""

import asyncio
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from gateway.app import Gateway
from gateway.edge import EdgeLimits
from tests.e2e.harness import CHAT, Front, caller, chat, endless, eventually
from tests.e2e.inside import inside
from tests.e2e.test_queues import all_slots_taken
from tests.e2e.test_retry import SAYS, pair
from tests.e2e.test_sdk import FEW, client

KEYS: Mapping[str, Any] = {
    "calm": {"service_class": "interactive"},
    "eager": {"service_class": "interactive", "max_in_flight": 1},
    "holder": {"service_class": "interactive"},
}
TIGHT: Mapping[str, Any] = {"max_queued": 1, "predict": False, "principal_share": 1.0}


class Clock:
    """The gateway's own: a test moves it on between refusals."""

    def __init__(self) -> None:
        self.ahead_s = 0.0

    def __call__(self) -> float:
        return time.monotonic() + self.ahead_s


@asynccontextmanager
async def gate(
    folder: Path, engine: str, **changes: Mapping[str, Any]
) -> AsyncIterator[tuple[Gateway, Front, Clock]]:
    """A gateway with two slots and one place in each queue, whose clock can be moved on."""
    clock = Clock()
    flow = {"short": {"interactive": TIGHT}, "long": {"interactive": TIGHT}}
    async with inside(
        folder,
        engine,
        limits={"slots": 2},
        changes={"grants": KEYS, "flow": flow, **changes},
        clock=clock,
    ) as (gateway, outside, _):
        yield gateway, outside, clock


def advised(answer: httpx.Response, outcome: str) -> int:
    assert answer.headers["x-sluicegate-outcome"] == outcome
    return int(answer.headers["retry-after"])


async def hammered(
    outside: Front,
    clock: Clock,
    outcome: str,
    body: Any = None,
    key: str = "calm",
    headers: Mapping[str, str] | None = None,
) -> list[int]:
    """What a caller is told who comes six times in each second of four."""
    told = []
    async with caller() as ours:
        for _ in range(4):
            for _ in range(6):
                answer = await ours.post(
                    outside.url + CHAT,
                    json=body or chat(),
                    headers={**outside.headers(key), **(headers or {})},
                )
                told.append(advised(answer, outcome))
            clock.ahead_s += 1.0
    return told


@asynccontextmanager
async def queued(gateway: Gateway, outside: Front, *bodies: Any) -> AsyncIterator[None]:
    """One of each of ``bodies`` waits until the block ends."""
    asks = [asyncio.ensure_future(outside.ask(body, key="holder")) for body in bodies]
    try:
        await eventually(lambda: gateway.parts.turnstile.waiting == len(asks))
        yield
    finally:
        for ask in asks:
            ask.cancel()
        await asyncio.gather(*asks, return_exceptions=True)


@asynccontextmanager
async def full(gateway: Gateway, outside: Front, *bodies: Any) -> AsyncIterator[None]:
    """Both slots are taken, and one of each of ``bodies`` waits."""
    async with all_slots_taken(outside), queued(gateway, outside, *bodies):
        yield


async def test_a_key_at_its_own_cap_does_not_spoil_what_others_of_its_flow_are_told(
    slow: str, tmp_path: Path
) -> None:
    async with gate(tmp_path, slow) as (gateway, outside, clock):
        async with outside.stream(endless(), key="eager") as held:
            await held.next()
            told = await hammered(outside, clock, "principal_limit", key="eager")
        assert told[0] <= 2 < told[-1]
        async with full(gateway, outside, chat()):
            assert advised(await outside.ask(chat(), key="calm"), "queue_full") <= 2


async def test_who_would_not_wait_at_all_does_not_spoil_what_others_are_told(
    slow: str, tmp_path: Path
) -> None:
    async with gate(tmp_path, slow) as (gateway, outside, clock), full(gateway, outside):
        now = {"x-sluicegate-max-wait": "0"}
        told = await hammered(outside, clock, "queue_expired", headers=now)
        assert told[0] <= 2 < told[-1]
        async with queued(gateway, outside, chat()):
            assert advised(await outside.ask(chat(), key="calm"), "queue_full") <= 2


async def test_a_full_queue_is_remembered_before_it_is_known_which_of_two(
    slow: str, tmp_path: Path
) -> None:
    either, long = chat("hi " * 600), chat("hi there, you " * 130)
    async with (
        gate(tmp_path, slow) as (gateway, outside, clock),
        full(gateway, outside, chat(), long),
    ):
        told = await hammered(outside, clock, "queue_full", either)
        assert told[0] <= 2 < told[-1]
        await eventually(lambda: len(gateway.running) == 3)


async def test_a_full_gateway_tells_callers_that_keep_coming_to_wait_longer(
    fast: str, tmp_path: Path
) -> None:
    server = {"max_requests": 1, "principal_share": 1.0}
    async with (
        gate(tmp_path, fast, server=server) as (gateway, outside, clock),
        half_a_body(gateway, outside, "holder"),
    ):
        told = await hammered(outside, clock, "ingress_full")
    assert told[0] <= 2 < told[-1]


async def test_a_key_that_fills_its_share_of_the_gateway_waits_longer_and_others_do_not(
    fast: str, tmp_path: Path
) -> None:
    server = {"max_requests": 2, "principal_share": 0.5}
    async with (
        gate(tmp_path, fast, server=server) as (gateway, outside, clock),
        half_a_body(gateway, outside, "holder"),
    ):
        told = await hammered(outside, clock, "principal_limit", key="holder")
        assert told[0] <= 2 < told[-1]
        async with half_a_body(gateway, outside, "eager"):
            assert advised(await outside.ask(chat(), key="calm"), "ingress_full") <= 2


async def test_connections_over_the_cap_are_told_to_wait_longer_while_they_keep_coming(
    fast: str, tmp_path: Path
) -> None:
    clock, told = Clock(), []
    edge = EdgeLimits(max_connections_per_address=1)
    async with inside(tmp_path, fast, edge=edge, clock=clock) as (_, outside, _lines):
        host, port = outside.url.removeprefix("http://").rsplit(":", 1)
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(b"GET /v1/models HTTP/1.1\r\nhost: x\r\n\r\n")
        await reader.readuntil(b"\r\n\r\n")
        for _ in range(4):
            for _ in range(6):
                answer = await outside.raw(b"")
                assert answer.startswith(b"HTTP/1.1 429 ")
                told.append(int(answer.partition(b"retry-after: ")[2].split(b"\r")[0]))
            clock.ahead_s += 1.0
        writer.close()
    assert told[0] <= 2 < told[-1]


@asynccontextmanager
async def half_a_body(gateway: Gateway, outside: Front, key: str) -> AsyncIterator[None]:
    before = gateway.parts.intake.requests
    host, port = outside.url.removeprefix("http://").rsplit(":", 1)
    _, writer = await asyncio.open_connection(host, int(port))
    head = f"POST {CHAT} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
    head += (
        f"content-length: 99\r\nauthorization: {outside.headers(key)['authorization']}\r\n\r\n{{"
    )
    writer.write(head.encode())
    await eventually(lambda: gateway.parts.intake.requests == before + 1)
    yield
    writer.close()


@pytest.mark.parametrize(("changes", "seconds"), [({}, 5), ({"paused_retry_after_s": 17.0}, 17)])
async def test_callers_of_a_paused_flow_are_told_the_configured_time_however_often_they_come(
    fast: str, tmp_path: Path, changes: Mapping[str, Any], seconds: int
) -> None:
    async with gate(tmp_path, fast, server=changes) as (gateway, outside, clock):
        gateway.parts.turnstile.core.pause(("simulated", "short", "interactive"), paused=True)
        assert set(await hammered(outside, clock, "paused")) == {seconds}


async def test_an_engine_that_refuses_without_advice_is_a_matter_of_1_to_5_seconds(
    tmp_path: Path,
) -> None:
    async with pair(tmp_path, "503", None) as (engines, _, outside, _lines):
        told = [advised(await outside.ask(chat()), "engine_rejected") for _ in range(100)]
        assert set(told) == {1, 2, 3, 4, 5}
        engines.words["first"] = "503 with advice"
        told = [advised(await outside.ask(chat()), "engine_rejected") for _ in range(10)]
        assert set(told) == {7}


async def test_openais_client_is_not_kept_waiting_for_what_another_key_did(
    slow: str, tmp_path: Path
) -> None:
    told: list[int] = []

    async def note(answer: httpx.Response) -> None:
        told.append(advised(answer, "queue_full"))

    async with gate(tmp_path, slow) as (gateway, outside, clock):
        async with outside.stream(endless(), key="eager") as held:
            await held.next()
            await hammered(outside, clock, "principal_limit", key="eager")
        watched = openai.DefaultAsyncHttpxClient(event_hooks={"response": [note]})
        async with (
            full(gateway, outside, chat()),
            client(outside, outside.keys["calm"], http_client=watched) as ours,
        ):
            with pytest.raises(openai.RateLimitError):
                await ours.chat.completions.create(model="simulated", **FEW)
    assert len(told) == 3
    assert max(told) <= 2


async def test_openais_client_retries_an_engines_refusal_twice_after_the_engines_own_figure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(SAYS, "soon", SAYS["503 with advice"].replace(b": 7", b": 1"))
    async with pair(tmp_path, "soon", None) as (engines, _, outside, _lines):
        started_s = time.monotonic()
        async with client(outside) as ours:
            with pytest.raises(openai.InternalServerError) as told:
                await ours.chat.completions.create(model="simulated", **FEW)
        assert time.monotonic() - started_s >= 2.0
        assert told.value.response.headers["retry-after"] == "1"
        assert engines.asked == {"first": 3}

"""The priority that the gateway stamps orders an engine's queue; a caller's own never does."""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx

from gateway.capability import probe_priority
from tests.e2e.harness import CHAT, PLAIN, Front, caller, eventually
from tests.engine.conftest import SEATS
from tests.engine.vllm import Engine

RANK = {"priority": -1000}
# Events that some surfaces send before the engine has begun.
ANNOUNCED = ("response.created", "response.in_progress", "message_start")
GRANTS = {"batch": {"service_class": "batch"}, "person": {"service_class": "interactive"}}
CLASSES = {"batch": {"engine_priority": 10}, "interactive": {"engine_priority": -10}}


@dataclass(frozen=True)
class Ask:
    """One request of a line: ``text`` is written before the body's own keys as it is."""

    name: str
    path: str = PLAIN
    key: str = "batch"
    fields: Mapping[str, Any] = field(default_factory=dict)
    headers: Sequence[tuple[str, str]] = ()
    text: str = ""

    @property
    def content(self) -> bytes:
        hi = [{"role": "user", "content": "A"}]
        bodies: dict[str, dict[str, Any]] = {
            PLAIN: {"prompt": "A"},
            CHAT: {"messages": hi},
            "/v1/messages": {"messages": hi},
            "/v1/responses": {"input": "A", "max_output_tokens": 1},
        }
        body = {"model": "simulated", "max_tokens": 1, "stream": True}
        return (
            f"{{{self.text}{json.dumps({**body, **bodies[self.path], **self.fields})[1:]}".encode()
        )


# Every way of saying it that some release honours on some route, on each surface that generates.
CHEATS = (
    *(Ask(f"body, {path}", path, fields=RANK) for path in (PLAIN, CHAT)),
    *(Ask(f"body, {path}", path, fields=RANK) for path in ("/v1/messages", "/v1/responses")),
    *(
        Ask(f"header, {path}", path, headers=[("X-Vllm-Priority", "-1000")])
        for path in (PLAIN, CHAT, "/v1/messages", "/v1/responses")
    ),
    Ask("small letters", headers=[("x-vllm-priority", "-1000")]),
    Ask("header twice", headers=[("X-VLLM-PRIORITY", "-1000"), ("x-vllm-priority", "-2000")]),
    Ask(
        "named by connection",
        headers=[("X-Vllm-Priority", "-9"), ("Connection", "x-vllm-priority")],
    ),
    Ask("key twice", text='"priority":-1000,"priority":-999,'),
    Ask("key in escapes", text='"pri\\u006frity":-1000,'),
    Ask("nested", fields={"vllm_xargs": RANK, "extra_body": RANK}),
    Ask("tier", fields={"service_tier": "priority"}),
    Ask("session", fields={"session_id": "a"}, headers=[("X-Session-ID", "a")]),
    Ask("rank of data", headers=[("X-data-parallel-rank", "0")]),
    Ask(
        "all at once",
        CHAT,
        fields={**RANK, "service_tier": "priority"},
        headers=[("X-Vllm-Priority", "-1000")],
    ),
)
POLITE, PERSON = Ask("polite"), Ask("person", key="person")


async def started(client: httpx.AsyncClient, url: str, ask: Ask, key: str) -> tuple[float, str]:
    """When the first event of the answer came, and whose it is."""
    headers = [("authorization", f"Bearer {key}"), ("content-type", "application/json")]
    sent = {"content": ask.content, "headers": [*headers, *ask.headers]}
    async with client.stream("POST", url + ask.path, **sent) as answer:
        assert answer.status_code == 200, (ask.name, await answer.aread())
        async for line in answer.aiter_lines():
            if line.startswith("data: ") and not any(word in line for word in ANNOUNCED):
                return time.monotonic(), ask.name
    raise AssertionError(f"{ask.name}: no event")


@asynccontextmanager
async def full(engine: Engine) -> AsyncIterator[Callable[[], None]]:
    """The engine without a free seat; what is yielded frees one."""

    async def hold(client: httpx.AsyncClient) -> None:
        body = {"model": "simulated", "prompt": "A", "max_tokens": 9000, "ignore_eos": True}
        first = {**body, "stream": True, **RANK}
        async with client.stream("POST", engine.url + PLAIN, json=first) as answer:
            async for _ in answer.aiter_bytes():
                pass

    async with caller() as client:
        held = [asyncio.ensure_future(hold(client)) for _ in range(SEATS)]
        await engine.until(running=SEATS)
        yield lambda: held[0].cancel() and None
        for task in held:
            task.cancel()
        await asyncio.gather(*held, return_exceptions=True)
    await engine.until(running=0)


async def queued(engine: Engine, number: int, tasks: Sequence[asyncio.Task[Any]]) -> None:
    """Wait until so many wait in the engine; a request that ended before is at fault."""

    async def reached() -> bool:
        for task in tasks:
            assert not task.done(), task.result()
        return (await engine.scrape()).waiting == number

    await eventually(reached, 30.0)


async def order(
    engine: Engine, url: str, asks: Sequence[Ask], keys: Mapping[str, str]
) -> list[str]:
    """Queue the requests one after another while the engine is full; who starts when."""
    async with caller() as client, full(engine) as free_one:
        tasks = []
        for number, ask in enumerate(asks, start=1):
            tasks.append(
                asyncio.ensure_future(started(client, url, ask, keys.get(ask.key, "none")))
            )
            await queued(engine, number, tasks)
        free_one()
        return [name for _, name in sorted(await asyncio.gather(*tasks))]


async def test_a_stamped_priority_overtakes_and_a_callers_own_never_does(
    first: Engine, before: Callable[..., Front]
) -> None:
    gateway = before(first, grants=GRANTS, service=CLASSES)
    seen = await order(first, gateway.url, [POLITE, *CHEATS, PERSON], gateway.keys)
    assert seen == [ask.name for ask in (PERSON, POLITE, *CHEATS)]
    await gateway.at_rest()


async def test_without_a_gateway_the_same_words_do_overtake(first: Engine) -> None:
    """What the test above finds is the gateway's doing: this engine would obey."""
    asks = [POLITE, *(ask for ask in CHEATS if ask.name.startswith(("body", "header,")))]
    seen = await order(first, first.url, asks, {})
    # The messages surface has no such field in its body; all else is obeyed.
    assert seen[-2:] == [POLITE.name, "body, /v1/messages"]
    assert len(seen) == 9


async def test_a_first_come_engine_takes_priorities_without_a_word_and_is_not_trusted(
    qwen: Engine, before: Callable[..., Front]
) -> None:
    gateway = before(qwen, limits={"policy": "priority"})
    async with caller() as client:
        body = {"model": "simulated", "prompt": "A", "max_tokens": 1, **RANK}
        direct = await client.post(qwen.url + PLAIN, json=body)
    assert direct.status_code == 200

    async def known() -> bool:
        return bool((await gateway.status())["health"][0]["priority"] == "unverified")

    await eventually(known)


async def test_the_experiment_tells_a_priority_engine_from_a_first_come_one(
    first: Engine, qwen: Engine
) -> None:
    honours, ignores = await asyncio.gather(
        probe_priority(first.url, "simulated"), probe_priority(qwen.url, "simulated")
    )
    assert (honours.honoured, ignores.honoured) == (True, False), (honours, ignores)
    for engine in (first, qwen):
        await engine.until(running=0)

"""Finds out whether an engine honours priorities: what it says of itself, or what it does.

An engine that schedules first come, first served takes a priority and ignores it without a word.
Only an engine in development mode says how it schedules (``policy_of``); in production it takes an
experiment (``probe_priority``): fill its seats, queue requests of low priority, then one of high
priority, and look who starts first. That loads the engine: it is for operators, on purpose.
"""

import asyncio
import ssl
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any

import httpx
import orjson

from gateway.endpoint import Endpoint
from gateway.engine_http import http_client
from gateway.progress import PriorityState
from gateway.scrape import Scrape, parse_metrics

__all__ = ["policy_of", "probe_priority", "stated"]

LOW, HIGH = 1000, -1000
QUEUED_LOW = 4
# Of long answers; an engine that holds less gets half of what it holds.
FILLER_TOKENS = 4096
# Seats are filled in steps until something waits; more than this is no engine we can fill.
MOST_FILLERS = 2048
POLL_S = 0.1
# Looks one after another that must see somebody wait: who has just come waits for a step.
SETTLED = 3
# Of the long answers that wait, so many go on waiting: where an engine has several queues, none of
# them is to run dry before its seats are freed.
SPARE = 8
ADVICE = (
    "this says nothing of how it schedules: try again while it is idle, with a longer --timeout; "
    "or look for --scheduling-policy among the flags it was started with"
)


def policy_of(server_info: Any) -> str | None:
    """The scheduling policy in what ``/server_info?config_format=json`` answers, if it is there."""
    if not isinstance(server_info, Mapping):
        return None
    scheduler = server_info.get("scheduler_config")
    if isinstance(scheduler, Mapping) and isinstance(scheduler.get("policy"), str):
        return str(scheduler["policy"])
    found = (policy_of(value) for value in server_info.values())
    return next((policy for policy in found if policy is not None), None)


def stated(status: int, body: bytes) -> PriorityState:
    """What an engine's answer to that question says; most answer 404."""
    try:
        policy = policy_of(orjson.loads(body)) if status == 200 else None
    except orjson.JSONDecodeError:
        policy = None
    if policy is None:
        return PriorityState.UNVERIFIED
    return PriorityState.VERIFIED if policy == "priority" else PriorityState.CONTRADICTED


@dataclass(frozen=True, slots=True)
class Report:
    """What the experiment showed. ``honoured`` is None where it could not tell."""

    honoured: bool | None
    evidence: tuple[str, ...]

    @property
    def ok(self) -> bool:
        """Whether the engine was seen to honour priorities."""
        return self.honoured is True

    @property
    def verdict(self) -> str:
        """The answer in words."""
        if self.honoured is None:
            return "could not tell"
        return "priority honoured" if self.honoured else "not honoured (fcfs)"

    @property
    def advice(self) -> str | None:
        """What to do where it could not tell."""
        return ADVICE if self.honoured is None else None


class _Inconclusive(Exception):
    """The experiment did not come about; the message says why."""


async def probe_priority(
    engine: str,
    model: str,
    *,
    api_key: str | None = None,
    timeout_s: float = 60.0,
    tls: ssl.SSLContext | None = None,
) -> Report:
    """Fill an engine's seats, queue low and then high priority, and see who starts first.

    Args:
        engine: its address.
        model: as the engine calls it.
        api_key: the engine's own key, where it has one.
        timeout_s: for the whole experiment; everything is cancelled at its end.
        tls: how an ``https`` engine is verified, and what is shown to it.

    Returns:
        The report; an engine that can't be reached, or does not answer as vLLM does, is one of
        which nothing could be told.
    """
    endpoint = Endpoint(engine, tls)
    try:
        async with asyncio.timeout(timeout_s), http_client(endpoint, timeout_s) as client:
            if api_key is not None:
                client.headers["authorization"] = f"Bearer {api_key}"
            return await _experiment(_Subject(client, model))
    except _Inconclusive as reason:
        return Report(None, (str(reason),))
    except httpx.HTTPError as error:
        return Report(None, (f"the engine did not answer: {type(error).__name__}: {error}",))
    except (orjson.JSONDecodeError, AttributeError, TypeError):
        return Report(None, ("it does not answer as vLLM does",))
    except TimeoutError:
        return Report(None, (f"not over in {timeout_s:g} s",))


async def _experiment(subject: "_Subject") -> Report:
    async with AsyncExitStack() as stack:
        await subject.measure()
        tasks = _Tasks()
        stack.push_async_callback(tasks.cancel)
        fillers = await _fill(subject, tasks)
        before = await subject.page()
        waiting = before.waiting or 0.0
        low = [tasks.start(subject.first_event(LOW)) for _ in range(QUEUED_LOW)]
        await _until_waiting(subject, waiting + QUEUED_LOW)
        high = tasks.start(subject.first_event(HIGH))
        await _until_waiting(subject, waiting + QUEUED_LOW + 1)
        evidence = (
            f"{fillers} long answers fill it: {before.running:g} running, {waiting:g} waiting",
            f"then {QUEUED_LOW} requests of priority {LOW} were queued, then one of {HIGH}",
        )
        await tasks.release_fillers(int(waiting), [*low, high])
        started = await asyncio.gather(*low, high)
        earlier = sum(at < started[-1] for at in started[:-1])
        words = f"{earlier} of the {QUEUED_LOW} that came before it started before it"
        return Report(earlier < QUEUED_LOW / 2, (*evidence, words))


async def _fill(subject: "_Subject", tasks: "_Tasks") -> int:
    """Start long answers until some go on waiting: no seat is left."""
    number = 8
    while number <= MOST_FILLERS:
        for _ in range(number - len(tasks.fillers)):
            tasks.fillers.append(tasks.start(subject.long_answer()))
        if await _some_wait(subject, tasks, number):
            return number
        number *= 2
    raise _Inconclusive(f"{MOST_FILLERS} long answers do not fill its seats")


async def _some_wait(subject: "_Subject", tasks: "_Tasks", number: int) -> bool:
    """Whether some of so many long answers go on waiting, once the engine has them all."""
    seen = 0
    while seen < SETTLED:
        await asyncio.sleep(POLL_S)
        page = await subject.page()
        if any(task.done() for task in tasks.fillers):
            raise _Inconclusive(await _why_ended(tasks.fillers))
        running, waiting = page.running or 0.0, page.waiting or 0.0
        if running >= number:
            return False
        seen = seen + 1 if waiting and running and running + waiting >= number else 0
    return True


async def _why_ended(fillers: "list[asyncio.Task[float]]") -> str:
    ended = next(task for task in fillers if task.done())
    error = ended.exception()
    return str(error) if error else "the engine ends long answers early: its seats can't be filled"


async def _until_waiting(subject: "_Subject", wanted: float) -> None:
    for _ in range(50):
        if ((await subject.page()).waiting or 0.0) >= wanted:
            return
        await asyncio.sleep(POLL_S)
    raise _Inconclusive("what was queued does not wait: its seats did not stay full")


class _Tasks:
    """Requests under way; whatever happens, none outlives the experiment."""

    def __init__(self) -> None:
        self.all: list[asyncio.Task[float]] = []
        self.fillers: list[asyncio.Task[float]] = []

    def start(self, request: Any) -> "asyncio.Task[float]":
        """Run one request."""
        task: asyncio.Task[float] = asyncio.get_running_loop().create_task(request)
        self.all.append(task)
        return task

    async def release_fillers(self, waiting: int, queued: "list[asyncio.Task[float]]") -> None:
        """Free the seats one after another, until those who are ``queued`` have started.

        Of the long answers that wait themselves most go at once: they came last.
        """
        for _ in range(waiting - SPARE):
            self.fillers.pop().cancel()
        for task in self.fillers:
            task.cancel()
            _, left = await asyncio.wait(queued, timeout=POLL_S)
            if not left:
                return

    async def cancel(self) -> None:
        """End whatever still runs."""
        for task in self.all:
            task.cancel()
        await asyncio.gather(*self.all, return_exceptions=True)


class _Subject:
    """The engine under experiment."""

    def __init__(self, client: httpx.AsyncClient, model: str) -> None:
        self._client = client
        self._model = model
        self._long_tokens = FILLER_TOKENS

    async def measure(self) -> None:
        """Find out how long an answer may be."""
        answer = await self._client.get("/v1/models")
        if answer.status_code == 200:
            rows = orjson.loads(answer.content).get("data", [])
            held = [row.get("max_model_len") for row in rows if row.get("id") == self._model]
            if held and isinstance(held[0], int):
                self._long_tokens = max(1, min(FILLER_TOKENS, held[0] // 2))

    async def page(self) -> Scrape:
        """Its figures now."""
        answer = await self._client.get("/metrics")
        page = parse_metrics(answer.text) if answer.status_code == 200 else Scrape()
        if page.running is None or page.waiting is None:
            raise _Inconclusive("its /metrics does not say what runs and what waits")
        return page

    async def first_event(self, priority: int) -> float:
        """When the first event of a short answer came."""
        async with self._asked(priority, 1, stream=True) as answer:
            async for line in answer.aiter_lines():
                if line.startswith("data: "):
                    return time.monotonic()
        return time.monotonic()

    async def long_answer(self) -> float:
        """A long answer, to its end; whole, so that hundreds of them cost nobody anything."""
        async with self._asked(0, self._long_tokens, stream=False) as answer:
            await answer.aread()
        return time.monotonic()

    @asynccontextmanager
    async def _asked(
        self, priority: int, tokens: int, *, stream: bool
    ) -> AsyncIterator[httpx.Response]:
        body = {
            "model": self._model,
            "prompt": "A",
            "max_tokens": tokens,
            "ignore_eos": True,
            "stream": stream,
            "priority": priority,
        }
        headers = {"x-vllm-priority": str(priority)}
        async with self._client.stream(
            "POST", "/v1/completions", json=body, headers=headers
        ) as answer:
            if answer.status_code != 200:
                words = (await answer.aread())[:200].decode(errors="replace")
                raise _Inconclusive(f"a request was answered {answer.status_code}: {words}")
            yield answer

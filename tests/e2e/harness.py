"""Real gateways in front of real (simulated) engines, each a process of its own.

A ``Front`` is a gateway as a caller and an operator see it: its addresses, its log, its admin
page. ``Front.expect`` brackets what a test does with the promise that holds for every request
whatever its end: counted once under its outcome, logged once, and nothing leased afterwards.
"""

import asyncio
import json
import os
import signal
import ssl
import subprocess
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
from prometheus_client.parser import text_string_to_metric_families

from gateway.journal import EVERY_S
from tests.e2e.configs import ADMIN_TOKEN

ROOT = Path(__file__).resolve().parents[2]
CHAT, PLAIN = "/v1/chat/completions", "/v1/completions"
LIMIT_S = 60.0  # a start takes 20 s beside six others on two cores
# Made once: reading the machine's certificates for each client takes longer than most tests.
_TLS = ssl.create_default_context()
# Outcomes of the listener itself: there is no request yet that could have a log line.
UNLOGGED = {"headers_too_large", "header_timeout"}

# outcome -> (status, has Retry-After, x-should-retry), as the failure contract has it.
ROWS: Mapping[str, tuple[int, bool, str]] = {
    "unauthenticated": (401, False, "false"),
    "identity_unavailable": (503, True, "true"),
    "forbidden": (403, False, "false"),
    "not_found": (404, False, "false"),
    "bad_request": (400, False, "false"),
    "body_too_large": (413, False, "false"),
    "body_timeout": (400, False, "false"),
    "prompt_too_long": (400, False, "false"),
    "principal_limit": (429, True, "true"),
    "ingress_full": (429, True, "true"),
    "queue_full": (429, True, "true"),
    "queue_tokens_full": (429, True, "true"),
    "queue_bytes_full": (429, True, "true"),
    "paused": (503, True, "true"),
    "predicted_wait": (429, True, "true"),
    "queue_expired": (429, True, "true"),
    "no_engine": (503, True, "true"),
    "draining": (503, True, "true"),
    "engine_rejected": (503, True, "true"),
    "upstream_unreachable": (502, False, "true"),
    "upstream_timeout": (504, False, "true"),
    "internal_error": (500, False, "false"),
    "headers_too_large": (431, False, "false"),
}


def caller() -> httpx.AsyncClient:
    """A client with a connection of its own."""
    return httpx.AsyncClient(timeout=LIMIT_S, trust_env=False, verify=_TLS)


# -- a gateway -----------------------------------------------------------------------------


@dataclass
class Front:
    """A running gateway."""

    url: str
    admin_url: str
    keys: Mapping[str, str]
    log: Path
    process: subprocess.Popen[bytes] | None = None

    # As a caller.

    def headers(self, key: str | None = None) -> dict[str, str]:
        """The credential of a key id; by default the first key."""
        return {"authorization": f"Bearer {self.keys[key or next(iter(self.keys))]}"}

    async def ask(
        self, body: Any, path: str = CHAT, key: str | None = None, **headers: str
    ) -> httpx.Response:
        """Post ``body`` on a connection of its own and return the whole answer."""
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        async with caller() as client:
            return await client.post(
                self.url + path, json=body, headers={**self.headers(key), **named}
            )

    @asynccontextmanager
    async def stream(
        self, body: Mapping[str, Any], path: str = CHAT, key: str | None = None
    ) -> AsyncIterator["Stream"]:
        """An open stream; leaving the block early is a caller who hangs up."""
        async with (
            caller() as client,
            client.stream(
                "POST", self.url + path, json={**body, "stream": True}, headers=self.headers(key)
            ) as response,
        ):
            yield Stream(response)

    async def raw(self, data: bytes) -> bytes:
        """Send bytes as they are; everything that comes back until the connection closes."""
        host, port = self.url.removeprefix("http://").rsplit(":", 1)
        reader, writer = await asyncio.open_connection(host, int(port))
        try:
            writer.write(data)
            async with asyncio.timeout(LIMIT_S):
                return await reader.read()
        finally:
            writer.close()

    # As an operator.

    async def status(self) -> dict[str, Any]:
        """The admin page's view."""
        async with caller() as client:
            answer = await client.get(
                f"{self.admin_url}/admin/status",
                headers={"authorization": f"Bearer {ADMIN_TOKEN}"},
            )
        assert answer.status_code == 200, answer.text
        found: dict[str, Any] = answer.json()
        return found

    async def samples(self) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
        """The metrics page: value by name and labels."""
        async with caller() as client:
            page = (await client.get(f"{self.admin_url}/metrics")).text
        return {
            (sample.name, frozenset(sample.labels.items())): sample.value
            for family in text_string_to_metric_families(page)
            for sample in family.samples
        }

    async def counts(self, name: str, label: str) -> Counter[str]:
        """One metric summed by one of its labels, zeros left out."""
        found: Counter[str] = Counter()
        for (metric, labels), value in (await self.samples()).items():
            if metric == name and value:
                found[dict(labels)[label]] += int(value)
        return found

    async def total(self, name: str, **labels: str) -> float:
        """One metric summed over all series that carry ``labels``."""
        wanted = set(labels.items())
        rows = (await self.samples()).items()
        return sum(value for (metric, has), value in rows if metric == name and wanted <= has)

    def lines(self) -> list[dict[str, Any]]:
        """The log so far; a line that is being written is left out."""
        whole, _, _ = self.log.read_text().rpartition("\n")
        return [json.loads(line) for line in whole.splitlines()]

    def requests(self) -> list[dict[str, Any]]:
        """The log's lines of finished requests."""
        return [line for line in self.lines() if line["event"] == "request"]

    def events(self, word: str) -> list[dict[str, Any]]:
        """The log's lines of one change of state."""
        return [line for line in self.lines() if line["event"] == word]

    async def at_rest(self) -> None:
        """Wait until no request is left, then require every account to be at zero."""
        await eventually(self._running_is_zero)
        status = await self.status()
        for flow in status["flows"]:
            assert (flow["depth"], flow["tokens"], flow["bytes"], flow["running"]) == (0, 0, 0, 0)
        for engine in status["engines"]:
            assert (engine["slots"], engine["prefill_tokens"], engine["kv_tokens"]) == (0, 0, 0)
            assert all(count == 0 for _, count in engine["prefilling"])

    async def _running_is_zero(self) -> bool:
        return bool((await self.status())["running"] == 0)

    @asynccontextmanager
    async def expect(self, **outcomes: int) -> AsyncIterator[None]:
        """What happens inside ends in exactly these outcomes, counted and logged, and at rest."""
        await asyncio.sleep(2 * EVERY_S)  # until what was before stands in the log
        before = await self.counts("sluicegate_outcomes_total", "outcome")
        offered = await self.total("sluicegate_offered_total")
        logged = len(self.requests())
        yield
        await self.at_rest()
        counted = await self.counts("sluicegate_outcomes_total", "outcome")
        counted.subtract(before)
        assert {k: v for k, v in counted.items() if v} == outcomes
        assert await self.total("sluicegate_offered_total") - offered == sum(outcomes.values())
        wanted = {k: v for k, v in outcomes.items() if k not in UNLOGGED}
        await eventually(lambda: len(self.requests()) - logged >= sum(wanted.values()))
        assert Counter(line["outcome"] for line in self.requests()[logged:]) == wanted


class Stream:
    """A streamed answer, event by event."""

    def __init__(self, response: httpx.Response) -> None:
        self.response = response
        self._lines = response.aiter_lines()

    async def next(self) -> Any:
        """The next data event: its JSON, or ``[DONE]``; None at the end."""
        async for line in self._lines:
            if line.startswith("data: "):
                data = line.removeprefix("data: ")
                return data if data == "[DONE]" else json.loads(data)
        return None

    async def rest(self) -> list[Any]:
        """All events that still come."""
        events = []
        while (event := await self.next()) is not None:
            events.append(event)
        return events


@contextmanager
def front(config: Path, keys: Mapping[str, str], engines: Sequence[str] = ()) -> Iterator[Front]:
    """Run ``serve`` until the block ends; inside, all of ``engines`` are known to be up."""
    log = config.with_name("gateway.log")
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "gateway", "serve", "--config", str(config)],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )
    gateway = Front("", "", keys, log, process)
    try:
        _wait_ready(gateway, process, set(engines))
        yield gateway
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGKILL)
        process.wait()


def _wait_ready(gateway: Front, process: subprocess.Popen[bytes], engines: set[str]) -> None:
    until_s = time.monotonic() + LIMIT_S
    while True:
        assert process.poll() is None, gateway.log.read_text()
        assert time.monotonic() < until_s, gateway.log.read_text()
        ready = gateway.events("ready")
        if ready and engines <= {line["engine"] for line in gateway.events("engine_up")}:
            gateway.url, gateway.admin_url = ready[0]["url"], ready[0]["admin_url"]
            return
        time.sleep(0.02)


# -- small tools ---------------------------------------------------------------------------


async def eventually(condition: Callable[[], Any], limit_s: float = 10.0) -> None:
    """Wait until ``condition`` (plain or async) holds; fail when it does not come to."""
    async with asyncio.timeout(limit_s):
        while True:
            held = condition()
            if asyncio.iscoroutine(held):
                held = await held
            if held:
                return
            await asyncio.sleep(0.01)


def chat(text: str = "Hello there.", **fields: Any) -> dict[str, Any]:
    """A chat body of one user message, with a short answer unless told otherwise."""
    message = {"role": "user", "content": text}
    return {"model": "simulated", "messages": [message], "max_tokens": 4, **fields}


def ids(count: int, **fields: Any) -> dict[str, Any]:
    """A completion body whose prompt is exactly ``count`` tokens."""
    return {"model": "simulated", "prompt": [9] * count, "max_tokens": 4, **fields}


def endless(**fields: Any) -> dict[str, Any]:
    """A body whose answer takes longer than any test."""
    return chat(ignore_eos=True, max_tokens=3000, **fields)


def refused(answer: httpx.Response, outcome: str, status: int | None = None) -> dict[str, Any]:
    """Check an answer against the failure contract; returns its error object."""
    usual, waits, retry = ROWS[outcome]
    assert answer.status_code == (status or usual), answer.text
    assert answer.headers["x-sluicegate-outcome"] == outcome
    assert answer.headers["x-should-retry"] == retry
    assert answer.headers["content-type"] == "application/json"
    assert answer.headers["x-request-id"]
    if waits:
        assert 1 <= int(answer.headers["retry-after"]) <= 30
    else:
        assert "retry-after" not in answer.headers
    error: dict[str, Any] = answer.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["message"]
    code = "context_length_exceeded" if outcome == "prompt_too_long" else outcome
    assert error["code"] == code
    return error


async def sim_state(engine: str) -> dict[str, Any]:
    """What an engine says about itself and its last requests."""
    async with caller() as client:
        found: dict[str, Any] = (await client.get(f"{engine}/sim/state")).json()
        return found


async def engine_idle(engine: str) -> None:
    """Wait until nothing runs or waits in an engine."""

    async def idle() -> bool:
        state = await sim_state(engine)
        return bool(state["running"] == 0 and state["waiting"] == 0)

    await eventually(idle)

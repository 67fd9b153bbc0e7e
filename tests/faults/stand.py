"""One gateway before one crooked engine, in the test's own process, and how a row is played.

The gateway is the real one with real sockets on both sides, and probes its engine as it does in
service. It runs in the test's process so that what is left behind can be seen: leases, queue,
intake, connections.
"""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gateway.app import Gateway
from gateway.journal import Line
from tests.e2e.harness import chat, eventually
from tests.e2e.inside import assert_at_zero, inside
from tests.faults.caller import Reply, ask, post
from tests.faults.crooked import Crooked, crooked_engine
from tests.faults.table import GOOD_BODY, GOOD_STREAM, Row, good

__all__ = ["CHANGES", "Played", "Stand", "play", "reads", "stand"]

# Short limits, because most rows are about one of them running out.
CHANGES: Mapping[str, Mapping[str, Any]] = {
    "upstream": {
        "connect_timeout_s": 0.15,
        "first_byte_timeout_s": 0.3,
        "answer_timeout_s": 0.3,
        "idle_timeout_s": 0.25,
        "total_timeout_s": 20.0,
    },
    "probe": {"interval_s": 0.05, "timeout_s": 5.0},
    "flow": {"short": {"interactive": {"max_age_s": 5.0, "principal_share": 1.0}}},
}


def _noting(journal: Any, requests: list[dict[str, Any]]) -> None:
    """Have the journal keep the lines of finished requests, besides writing them."""
    write = journal.line

    def line(data: Line, **facts: object) -> None:
        told = json.loads(data if isinstance(data, bytes) else data())
        if told["event"] == "request":
            requests.append(told)
        write(data, **facts)

    journal.line = line


@dataclass(slots=True, eq=False)
class Stand:
    """The running pair. ``requests``: the log's lines of those that have ended."""

    gateway: Gateway
    engine: Crooked
    url: str
    key: str
    requests: list[dict[str, Any]] = field(default_factory=list)

    async def ask(self, *, stream: bool, **fields: Any) -> Reply:
        return await ask(self.url, post(chat(stream=stream, **fields), self.key))

    async def at_rest(self) -> None:
        """Wait until all is over; then nothing may be held, on either side."""
        await eventually(lambda: not self.gateway.running)
        assert_at_zero(self.gateway)
        await eventually(lambda: self.engine.at_work == 0)

    async def has_served(self) -> bool:
        """Whether a good request is served; it need not be the first time that one is asked."""
        return (await self.ask(stream=True)).status == 200

    async def serves_well(self) -> None:
        """A good request gets the engine's good answer, byte for byte."""
        self.engine.script = good
        reply = await self.ask(stream=True)
        assert (reply.status, reply.body, reply.cut) == (200, GOOD_STREAM, None), reply
        await self.at_rest()


@asynccontextmanager
async def stand(
    folder: Path, changes: Mapping[str, Mapping[str, Any]] | None = None, **parts: Any
) -> AsyncIterator[Stand]:
    """Run the pair; inside, the engine is up and answers well. ``parts`` are ``inside``'s."""
    async with crooked_engine(good) as engine:
        whole = {**CHANGES, **(changes or {})}
        limits = whole.pop("limits", None)
        pair = inside(folder, engine.url, limits=limits, changes=whole, **parts)
        async with pair as (gateway, outside, _):
            found = Stand(gateway, engine, outside.url, outside.headers()["authorization"])
            _noting(gateway.parts.journal, found.requests)
            probing = asyncio.ensure_future(gateway.parts.prober.run())
            try:
                # What is done for the first time takes longer than the limits of these tests.
                await eventually(found.has_served)
                yield found
            finally:
                probing.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await probing


# -- rows ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Played:
    """What came of a row."""

    outcome: str
    status: int | None
    reads: str
    reply: Reply

    def expected(self, row: Row) -> bool:
        """Whether it is what the failure contract says."""
        return (self.outcome, self.status, self.reads) == (row.outcome, row.status, row.reads)


async def play(pair: Stand, row: Row) -> Played:
    """Play one row; AssertionError if it leaves anything behind or the next request fails."""
    pair.requests.clear()
    pair.engine.script = row.fault
    if row.warm:
        warm = await pair.ask(stream=row.stream)
        assert warm.status == 200, warm
        pair.requests.clear()
    reply = await pair.ask(stream=row.stream)
    await pair.at_rest()
    outcome = pair.requests[-1]["outcome"]
    played = Played(outcome, reply.status, reads(reply, outcome), reply)
    await pair.serves_well()
    return played


def reads(reply: Reply, outcome: str) -> str:
    """The table's word for what the caller has."""
    if reply.cut is not None:
        return "cut"
    if reply.body in {GOOD_STREAM, GOOD_BODY}:
        return "whole"
    if reply.error().get("code") == outcome:
        assert reply.headers["x-sluicegate-outcome"] == outcome, reply
        return "refusal"
    if reply.headers.get("content-type", "").startswith("text/event-stream"):
        return _reads_stream(reply.body, outcome)
    return "engine's"


def _reads_stream(body: bytes, outcome: str) -> str:
    events = [e.removeprefix(b"data: ") for e in body.split(b"\n\n")]
    if events[-1]:
        return "half an event"
    own = [n for n, e in enumerate(events) if b'"code":"%b"' % outcome.encode() in e]
    done = [n for n, e in enumerate(events) if e == b"[DONE]"]
    if own:  # clients stop reading at [DONE]: what comes after it is never seen
        return "error event" if not done or own[0] < done[0] else "error event after [DONE]"
    return "engine's event" if b'"error"' in body else "engine's"

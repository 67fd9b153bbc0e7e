"""The offered load: arrivals of a Poisson process, independent of answers, of several kinds."""

import asyncio
import json
import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tests.soak.call import Behaviour, Result, perform

__all__ = ["Load", "Mix", "Offered"]

CHAT = "/v1/chat/completions"
_BAD = (
    b'{"model":"simulated","messages":"x"}',
    b'{"model":"nobody","messages":[]}',
    b"{",
    b'{"model":"simulated","messages":[{"role":"user","content":1}]}',
)


@dataclass(frozen=True, slots=True)
class Mix:
    """Parts of the offered requests, 0 to 1 each."""

    long: float = 0.2
    streamed: float = 0.7
    leaves: float = 0.0
    slow: float = 0.0
    bad: float = 0.0
    retries: float = 0.0


@dataclass(frozen=True, slots=True)
class Offered:
    """One request that was sent, and how it ended."""

    size: str
    service: str
    stream: bool
    leaves: bool
    result: Result


@dataclass(slots=True, eq=False)
class Load:
    """Offers requests to one gateway and keeps what came of them."""

    host: str
    port: int
    keys: Mapping[str, str]
    mix: Mix
    rng: random.Random
    done: list[Offered] = field(default_factory=list)
    running: set[asyncio.Task[None]] = field(default_factory=set)

    async def offer(self, rate: float, seconds: float) -> None:
        """Send ``rate`` requests per second for so long; answers may still be under way after."""
        loop = asyncio.get_running_loop()
        due_s = loop.time()
        end_s = due_s + seconds
        while due_s < end_s:
            due_s += self.rng.expovariate(rate)
            if (wait_s := due_s - loop.time()) > 0:
                await asyncio.sleep(wait_s)
            task = asyncio.ensure_future(self._one())
            self.running.add(task)
            task.add_done_callback(self.running.discard)

    async def rest(self) -> None:
        """Wait until all that was sent has ended."""
        while self.running:
            await asyncio.wait(set(self.running))

    async def _one(self) -> None:
        rng, mix = self.rng, self.mix
        key_id = rng.choice(list(self.keys))
        size = "long" if rng.random() < mix.long else "short"
        stream = rng.random() < mix.streamed
        leaves = rng.random() < mix.leaves
        behaviour = Behaviour(
            rng.uniform(0.0, 3.0) if leaves else None,
            rng.uniform(0.5, 3.0) if rng.random() < mix.slow else None,
        )
        bad = rng.random() < mix.bad
        body = rng.choice(_BAD) if bad else self._body(size, stream)
        request = self._request(body, self.keys[key_id])
        obeys = rng.random() < 0.5
        tries = 3 if rng.random() < mix.retries else 1
        for left in reversed(range(tries)):
            result = await perform(self.host, self.port, request, behaviour)
            service = key_id.partition("-")[0]
            self.done.append(Offered("bad" if bad else size, service, stream, leaves, result))
            if not left or result.status not in {429, 503}:
                return
            await asyncio.sleep(result.retry_after_s or 1 if obeys else 0.05)

    def _body(self, size: str, stream: bool) -> bytes:
        words = 8000 if size == "long" else self.rng.randint(50, 700)
        text = f"{self.rng.getrandbits(32):x} " + "word " * words
        body: dict[str, Any] = {
            "model": "simulated",
            "messages": [{"role": "user", "content": text}],
            "max_tokens": 128,
            "min_tokens": 64,
            "stream": stream,
        }
        return json.dumps(body).encode()

    def _request(self, body: bytes, key: str) -> bytes:
        return (
            f"POST {CHAT} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
            f"authorization: Bearer {key}\r\ncontent-length: {len(body)}\r\n\r\n"
        ).encode() + body

"""Keeps a fixed number of requests in flight at a running server and counts what it completes.

Only for finding the rate at which a server saturates: a closed loop offers less when the server
slows, so no latency is taken from it.
"""

import asyncio
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from urllib.parse import urlsplit

import orjson

from loadgen.capture import Capture
from loadgen.corpus import body_of
from loadgen.record import BenchError, Prompt
from loadgen.saturation import MEASURED_S, SETTLE_S
from loadgen.stream import Pool, request_bytes

__all__ = ["Server", "measure_completions"]

# Above this share of failures the completions say nothing of the server's capacity.
FAILED_SHARE = 0.01


@dataclass(frozen=True, slots=True)
class Server:
    """Where requests go: an engine, or a gateway that passes everything on."""

    url: str
    model: str
    key: str | None = field(default=None, repr=False)
    settle_s: float = SETTLE_S
    measured_s: float = MEASURED_S

    def request(self, prompt: Prompt, seq: int) -> bytes:
        """Return the bytes of a streamed request of exactly the planned length."""
        tokens = prompt.output_tokens
        body = {
            "model": self.model,
            **body_of(prompt.text),
            "max_tokens": tokens,
            "min_tokens": tokens,
            "ignore_eos": True,
            "stream": True,
            "temperature": 0,
        }
        headers = {"X-Request-Id": f"calibrate-{seq}"}
        if self.key is not None:
            headers["Authorization"] = f"Bearer {self.key}"
        host = urlsplit(self.url).netloc
        return request_bytes(host, "/v1/chat/completions", headers, orjson.dumps(body))


@dataclass(slots=True)
class _Counts:
    """What ended inside the measured seconds."""

    done: int = 0
    failed: int = 0
    reason: str = ""


def _prompts(
    names: Iterator[str], prompts: Mapping[str, Sequence[Prompt]]
) -> Iterator[tuple[int, Prompt]]:
    """Yield numbered prompts of the classes asked for, each class's over and over."""
    used = dict.fromkeys(prompts, 0)
    for seq, name in enumerate(names):
        own = prompts[name]
        yield seq, own[used[name] % len(own)]
        used[name] += 1


async def _one(pool: Pool, server: Server, seq: int, prompt: Prompt) -> Capture:
    ended: asyncio.Future[Capture] = asyncio.get_running_loop().create_future()
    pool.send(Capture(seq), server.request(prompt, seq), ended.set_result)
    return await ended


async def _keep_going(
    pool: Pool, server: Server, work: Iterator[tuple[int, Prompt]], counts: _Counts, begin_s: float
) -> None:
    end_s = begin_s + server.measured_s
    for seq, prompt in work:
        capture = await _one(pool, server, seq, prompt)
        now = time.monotonic()
        if begin_s <= now < end_s:
            ok = capture.status == 200 and capture.fault is None
            counts.done += ok
            counts.failed += not ok
            counts.reason = counts.reason if ok else capture.fault or f"status {capture.status}"
        if now >= end_s or counts.failed > 10 + counts.done:
            return


async def measure_completions(
    server: Server,
    prompts: Mapping[str, Sequence[Prompt]],
    names: Iterator[str],
    in_flight: int,
) -> float:
    """Return the completions per second of a closed loop.

    Args:
        server: what to measure.
        prompts: of each class; prefix caching must be off, since they are sent again and again.
        names: the classes, in order, without end.
        in_flight: how many requests at any time.

    Raises:
        BenchError: more than one in a hundred failed, or nothing was completed.
    """
    pool, counts = Pool(server.url, in_flight), _Counts()
    work = _prompts(names, prompts)
    try:
        await pool.fill()
        begin_s = time.monotonic() + server.settle_s
        async with asyncio.TaskGroup() as group:
            for _ in range(in_flight):
                group.create_task(_keep_going(pool, server, work, counts, begin_s))
    except OSError as error:
        raise BenchError(f"{server.url}: {error.strerror or error}") from error
    finally:
        await pool.close()
    if not counts.done or counts.failed > FAILED_SHARE * counts.done:
        reason = counts.reason or "nothing was completed"
        ended = counts.failed + counts.done
        raise BenchError(f"{server.url}: {counts.failed} failed of {ended}: {reason}")
    return counts.done / server.measured_s

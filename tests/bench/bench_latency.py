"""Prints what the gateway adds to what callers wait for: first tokens, refusals, stalls.

Run: python -m tests.bench.bench_latency [--seconds 5]

The whole gateway, everything on, in a process of its own, beside the bench's own upstream. Wall
times: run it on a machine that does nothing else. Asserts nothing.
"""

import argparse
import asyncio
import contextlib
import os
import random
import sys
import tempfile
import threading
import time

import orjson
import uvloop

from tests.bench.bench_relay import (
    EVENTS,
    PATH,
    PROMPT,
    SLOW_EVENTS,
    SLOW_INTERVAL_S,
    Callers,
    Proxy,
    judged,
    own,
    process,
    run_delay_s,
    whole_gateway,
)
from tests.ports import free_port

STREAMS = 200
SLOTS, HELD = 256, 1000  # streams find room; what is held open does not
PROMPTS_PER_S = 50
WORDS = ["gate", "water", "level", "flow", "channel", "weir", "lock", "river", "stone", "rain"]


def request(port: int, mode: str, prompt: str = PROMPT) -> bytes:
    asked = {"model": "m", "stream": mode != "whole", "user": mode, "max_tokens": EVENTS}
    body = orjson.dumps({**asked, "messages": [{"role": "user", "content": prompt}]})
    head = (
        f"POST {PATH} HTTP/1.1\r\nhost: 127.0.0.1:{port}\r\nauthorization: Bearer {Callers.key}\r\n"
        f"content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


class Asker(asyncio.Protocol):
    """One connection that notes how long the first bytes of each answer take."""

    def __init__(self) -> None:
        self.arrived: asyncio.Future[bytes] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        if self.arrived is not None and not self.arrived.done():
            self.arrived.set_result(data)

    async def ask(self, data: bytes) -> tuple[float, bytes]:
        self.arrived = asyncio.get_running_loop().create_future()
        sent_s = time.perf_counter()
        self.transport.write(data)  # type: ignore[attr-defined]
        first = await asyncio.wait_for(self.arrived, 60)
        return time.perf_counter() - sent_s, first


async def opened(port: int) -> Asker:
    _, asker = await asyncio.get_running_loop().create_connection(Asker, "127.0.0.1", port)
    return asker


def at(times_s: list[float], part: float) -> float:
    return sorted(times_s)[min(len(times_s) - 1, int(part * len(times_s)))] * 1e3


async def first_tokens(port: int) -> list[float]:
    """Times to the first bytes of streams of which 200 run at once."""
    askers = [await opened(port) for _ in range(STREAMS)]
    times: list[float] = []
    length_s = SLOW_EVENTS * SLOW_INTERVAL_S

    async def one(place: int, asker: Asker) -> None:
        await asyncio.sleep(place * length_s / STREAMS)
        for _ in range(3):
            times.append((await asker.ask(request(port, "slow")))[0])
            await asyncio.sleep(length_s * 1.1)

    await asyncio.gather(*(one(place, asker) for place, asker in enumerate(askers)))
    for asker in askers:
        asker.transport.abort()  # type: ignore[attr-defined]
    return times[STREAMS:]


async def refusals(port: int, seconds: float) -> list[float]:
    """Times to a refusal while every queue is full and ten times too many go on asking."""
    held = [await opened(port) for _ in range(HELD)]
    for asker in held:
        asker.transport.write(request(port, "open"))  # type: ignore[attr-defined]
    await asyncio.sleep(2.0)
    asker, times = await opened(port), []
    until_s = time.perf_counter() + seconds
    while time.perf_counter() < until_s:
        taken_s, answer = await asker.ask(request(port, "open"))
        if not answer.startswith((b"HTTP/1.1 429", b"HTTP/1.1 503")):
            raise RuntimeError(f"not a refusal: {answer[:60]!r}")
        times.append(taken_s)
        await asyncio.sleep(0.002)
    for each in (asker, *held):
        each.transport.abort()  # type: ignore[attr-defined]
    return times


async def stalls(gateway: Proxy, seconds: float) -> tuple[list[float], list[float]]:
    """Times to the shortest answer there is; the longest shows the loop's longest stall.

    Also the same less what the system made both ends wait for a core: that is no stall of the
    gateway's.
    """
    asker, times, own = await opened(gateway.port), [], []
    nothing = f"GET /nothing HTTP/1.1\r\nhost: 127.0.0.1:{gateway.port}\r\n\r\n".encode()

    def unscheduled_s() -> float:
        here = run_delay_s(os.getpid(), threading.get_native_id())
        return here + run_delay_s(gateway.pid, gateway.pid)

    until_s = time.perf_counter() + seconds
    while time.perf_counter() < until_s:
        before_s = unscheduled_s()
        taken_s = (await asker.ask(nothing))[0]
        times.append(taken_s)
        own.append(max(0.0, taken_s - (unscheduled_s() - before_s)))
        await asyncio.sleep(0.001)
    return times, own


async def send_prompts(port: int, key: str) -> None:
    """8k-token prompts, 50 a second, each with a connection of its own turn."""
    Callers.key = key
    words = random.Random(7)
    askers = [await opened(port) for _ in range(PROMPTS_PER_S)]
    prompts = [
        request(port, "whole", " ".join(words.choices(WORDS, k=8000))) for _ in range(len(askers))
    ]
    while True:
        for asker, prompt in zip(askers, prompts, strict=True):
            asker.transport.write(prompt)  # type: ignore[attr-defined]
            await asyncio.sleep(1 / PROMPTS_PER_S)


async def measure(gateway: Proxy, upstream: int, seconds: float) -> None:
    port = gateway.port
    direct, through = await first_tokens(upstream), await first_tokens(port)
    added = [at(through, part) - at(direct, part) for part in (0.5, 0.99)]
    print(f"ms, added to the first token at {STREAMS} streams, p50 {added[0]:10.2f}")
    print("ms, the same, p99            ", judged(added[1], 5, 2))
    times = await refusals(port, seconds)
    print(f"ms, refusal at overload, p50   {at(times, 0.5):8.2f}   ({len(times)} refusals)")
    print("ms, refusal at overload, p99 ", judged(at(times, 0.99), 10, 3))
    await asyncio.sleep(1.0)
    quiet, _ = await stalls(gateway, 2.0)
    sender = [sys.executable, "-m", "tests.bench.bench_latency", "prompts", str(port), Callers.key]
    with process(sender, port):
        await asyncio.sleep(1.5)
        busy, own_times = await stalls(gateway, seconds)
    print(f"ms, longest of the shortest answers, quiet {at(quiet, 1.0):8.2f}")
    print(f"ms, with 8k-token prompts      {at(busy, 1.0):8.2f}   (p99 {at(busy, 0.99):.2f})")
    print("ms, less waits for a core    ", judged(at(own_times, 1.0), 5, 2))


def main() -> None:
    if sys.argv[1:2] == ["prompts"]:
        uvloop.run(send_prompts(int(sys.argv[2]), sys.argv[3]))
        return
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=5.0, help="for each figure")
    options = parser.parse_args()
    upstream = free_port()
    with contextlib.ExitStack() as stack:
        stack.enter_context(process(own("upstream", upstream), upstream))
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        gateway = stack.enter_context(whole_gateway(folder, upstream, SLOTS))
        uvloop.run(measure(gateway, upstream, options.seconds))


if __name__ == "__main__":
    main()

"""A gateway before two simulated engines, each a process of its own, under load for a while."""

import asyncio
import contextlib
import os
import random
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from loadgen.engine.launch import EngineProcess, start_engine
from tests.e2e.configs import Served, write_config
from tests.e2e.harness import Front, front
from tests.soak.figures import LIMITS_S, Sample
from tests.soak.load import Load, Mix

__all__ = ["Soak", "World", "soak", "world"]

# Few sequences, so that two engines are full at a rate that one machine can offer ten times of.
ENGINE_FLAGS = ("--max-num-seqs", "16", "--sim-state")
# What both engines together can serve of the default mix, requests per second.
CAPACITY = 18.0


@dataclass(slots=True, eq=False)
class World:
    """The running processes. An engine that is restarted keeps its address."""

    folder: Path
    gateway: Front
    engines: list[EngineProcess]

    async def restart(self, number: int) -> None:
        """Kill an engine outright and start it again at the same address."""
        old = self.engines[number]
        await asyncio.to_thread(old.kill)
        await asyncio.sleep(2.0)
        port = old.url.rsplit(":", 1)[1]
        flags = (*ENGINE_FLAGS, "--port", port)
        self.engines[number] = await asyncio.to_thread(start_engine, flags, old.log_path)

    def sample(self, at_s: float) -> Sample:
        assert self.gateway.process is not None
        proc = Path(f"/proc/{self.gateway.process.pid}")
        pages = int((proc / "statm").read_text().split()[1])
        rss_kib = pages * os.sysconf("SC_PAGE_SIZE") // 1024
        return Sample(at_s, rss_kib, len(list((proc / "fd").iterdir())))


@asynccontextmanager
async def world(folder: Path) -> AsyncIterator[World]:
    """Start all of it; nothing runs after the block."""
    engines = [
        await asyncio.to_thread(start_engine, ENGINE_FLAGS, folder / f"engine-{n}.log")
        for n in range(2)
    ]
    path, keys = write_config(
        folder / "gateway",
        {"simulated": Served([e.url for e in engines], max_model_len=16384)},
        {f"{service}-{n}": {"service_class": service}
         for service in ("interactive", "batch") for n in range(4)},
        size=_sizes(),
        service={"interactive": {"engine_priority": -10, "weight": 4.0}, "batch": {"weight": 1.0}},
        flow={
            "short": {"interactive": {"max_age_s": 10.0}, "batch": {"max_age_s": 20.0}},
            "long": {"interactive": {"max_age_s": 30.0}, "batch": {"max_age_s": 60.0}},
        },
        limits={"slots": 16},
        probe={"interval_s": 0.5},
        server={"max_connections_per_address": 4096},
    )  # fmt: skip
    found: World | None = None
    try:
        with front(path, keys, [e.url for e in engines]) as gateway:
            found = World(folder, gateway, engines)
            yield found
    finally:
        for engine in found.engines if found else engines:
            engine.kill()


def _sizes() -> dict[str, Any]:
    bounds = {"short": 1024, "long": 10_000}
    return {
        name: {
            "max_prompt_tokens": bounds[name],
            "ttft_limit_s": first_s,
            "max_stall_s": stall_s,
            "e2e_limit_s": end_s,
        }
        for name, (first_s, stall_s, end_s) in LIMITS_S.items()
    }


@dataclass(slots=True, eq=False)
class Soak:
    """One soak's course so far."""

    load: Load
    samples: list[Sample] = field(default_factory=list)


async def soak(
    place: World,
    mix: Mix,
    rate: float,
    seconds: float,
    *,
    restart_every_s: float | None = None,
    tell: Callable[[Soak], None] = lambda _: None,
) -> Soak:
    """Offer the load, watch the gateway's process, and wait until all is at rest.

    Raises:
        AssertionError: something is held after the end.
    """
    host, port = place.gateway.url.removeprefix("http://").rsplit(":", 1)
    load = Load(host, int(port), place.gateway.keys, mix, random.Random(1))
    course = Soak(load)
    beside = [asyncio.ensure_future(_watch(place, course, tell))]
    if restart_every_s is not None:
        beside.append(asyncio.ensure_future(_restarts(place, restart_every_s, seconds)))
    try:
        await load.offer(rate, seconds)
        await load.rest()
        if restart_every_s is not None:
            await beside[1]
    finally:
        for task in beside:
            task.cancel()
        for task in beside:
            with contextlib.suppress(asyncio.CancelledError):
                await task
    await place.gateway.at_rest()
    return course


async def _watch(place: World, course: Soak, tell: Callable[[Soak], None]) -> None:
    started_s = time.monotonic()
    while True:
        course.samples.append(place.sample(time.monotonic() - started_s))
        tell(course)
        await asyncio.sleep(1.0)


async def _restarts(place: World, every_s: float, seconds: float) -> None:
    for number in range(int(seconds / every_s)):
        await asyncio.sleep(every_s / 2)
        await place.restart(number % 2)
        await asyncio.sleep(every_s / 2)

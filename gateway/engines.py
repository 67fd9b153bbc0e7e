"""Asks engines for their health and load, and decides which are in use.

``EngineHealth`` is a value; pure functions decide the next one from what was seen. An engine is
up after one good probe, down after several silent ones or at once when its address refuses
connections. Only transport errors count against it: an engine that answers anything at all is
reachable, and how well it serves is for admission to limit. A changed process start time is a
new epoch. ``Prober`` is the thin loop around it.
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

import httpx

__all__ = [
    "EngineHealth",
    "Prober",
    "Scrape",
    "after_refused",
    "after_scrape",
    "after_silence",
    "after_success",
    "parse_metrics",
]

HEALTH_BYTES = 64 << 10
METRICS_BYTES = 4 << 20
_WANTED = MappingProxyType(
    {
        "vllm:num_requests_running": "running",
        "vllm:num_requests_waiting": "waiting",
        "process_start_time_seconds": "process_start_s",
    }
)


@dataclass(frozen=True, slots=True)
class Scrape:
    """What an engine's metrics page said; ``None``: it did not say."""

    running: float | None = None
    waiting: float | None = None
    process_start_s: float | None = None


@dataclass(frozen=True, slots=True)
class EngineHealth:
    """What is known of one engine. It starts down: nothing is sent on trust.

    ``since_s`` is when ``up`` last changed. ``epoch`` counts the starts seen.
    """

    engine: str
    up: bool = False
    failures: int = 0
    since_s: float = 0.0
    epoch: int = 0
    last: Scrape = Scrape()
    reason: str = "not yet probed"


def after_success(health: EngineHealth, now: float) -> EngineHealth:
    """The engine answered its health check with 200."""
    since_s = health.since_s if health.up else now
    return replace(health, up=True, failures=0, since_s=since_s, reason="")


def after_silence(
    health: EngineHealth, now: float, reason: str, allowed_failures: int
) -> EngineHealth:
    """A probe was not answered well; ``allowed_failures`` of them in a row make it down."""
    failures = health.failures + 1
    if failures < allowed_failures and health.up:
        return replace(health, failures=failures, reason=reason)
    return _down(replace(health, failures=failures), now, reason)


def after_refused(health: EngineHealth, now: float, reason: str) -> EngineHealth:
    """Nobody listens at the engine's address, as a probe or a request found out: down at once."""
    return _down(replace(health, failures=health.failures + 1), now, reason)


def _down(health: EngineHealth, now: float, reason: str) -> EngineHealth:
    since_s = now if health.up else health.since_s
    return replace(health, up=False, since_s=since_s, reason=reason)


def after_scrape(health: EngineHealth, scrape: Scrape) -> EngineHealth:
    """The metrics page was read; another process start time than before is a new epoch."""
    started, before = scrape.process_start_s, health.last.process_start_s
    if started is None:
        return replace(health, last=replace(scrape, process_start_s=before))
    epoch = health.epoch + (started != before)
    return replace(health, last=scrape, epoch=epoch)


def parse_metrics(page: str) -> Scrape:
    """The wanted gauges of a metrics page, each summed over its label sets.

    A line that is no number is skipped: a half-understood page must not stop probing.
    """
    sums: dict[str, float] = {}
    for line in page.splitlines():
        name = line.partition("{")[0].partition(" ")[0]
        field = _WANTED.get(name)
        if field is None:
            continue
        value = _number(line.rpartition("}")[2] if "{" in line else line[len(name) :])
        if value is not None:
            sums[field] = sums.get(field, 0.0) + value
    return Scrape(**sums)


def _number(text: str) -> float | None:
    words = text.split()
    try:
        return float(words[0])  # a timestamp may follow
    except (IndexError, ValueError):
        return None


class Prober:
    """Probes engines until cancelled, and tells of each change.

    ``on_change(before, after)`` is called, on the loop, when ``up`` or ``epoch`` differ, and when
    the first probe of an engine fails.
    """

    def __init__(
        self,
        engines: Iterable[str],
        *,
        interval_s: float,
        timeout_s: float,
        failures: int,
        clock: Callable[[], float],
        on_change: Callable[[EngineHealth, EngineHealth], None],
    ) -> None:
        self._health = {engine: EngineHealth(engine) for engine in engines}
        self._interval_s = interval_s
        self._timeout_s = timeout_s
        self._failures = failures
        self._clock = clock
        self._on_change = on_change

    @property
    def health(self) -> Mapping[str, EngineHealth]:
        """What is known now, by engine."""
        return MappingProxyType(self._health)

    def refused(self, engine: str, reason: str) -> None:
        """A request found that nobody listens at ``engine``: down until a probe succeeds."""
        self._set(after_refused(self._health[engine], self._clock(), reason))

    def silent(self, engine: str, reason: str) -> None:
        """A probe or a request was not answered; several in a row make the engine down."""
        health = self._health[engine]
        self._set(after_silence(health, self._clock(), reason, self._failures))

    async def run(self) -> None:
        """Probe every engine each interval, independently of each other; runs until cancelled."""
        async with (
            httpx.AsyncClient(timeout=self._timeout_s, trust_env=False) as client,
            asyncio.TaskGroup() as group,
        ):
            for engine in self._health:
                group.create_task(self._watch(client, engine))

    async def _watch(self, client: httpx.AsyncClient, engine: str) -> None:
        while True:
            try:
                await self.probe(client, engine)
            except Exception as error:  # whatever it is, the other engines are watched on
                self.silent(engine, _words(error))
            await asyncio.sleep(self._interval_s)

    async def probe(self, client: httpx.AsyncClient, engine: str) -> None:
        """One health check, and a look at the metrics of an engine that is up."""
        try:
            status, _ = await self._get(client, f"{engine}/health", HEALTH_BYTES)
        except httpx.ConnectError as error:
            self._set(after_refused(self._health[engine], self._clock(), _words(error)))
            return
        except (httpx.HTTPError, TimeoutError) as error:
            self.silent(engine, _words(error))
            return
        if status != 200:
            self.silent(engine, f"health answered {status}")
            return
        self._set(after_success(self._health[engine], self._clock()))
        await self._scrape(client, engine)

    async def _scrape(self, client: httpx.AsyncClient, engine: str) -> None:
        try:
            status, page = await self._get(client, f"{engine}/metrics", METRICS_BYTES)
        except (httpx.HTTPError, TimeoutError):
            return  # shown figures go stale; health does not rest on them
        if status == 200:
            text = page.decode(errors="replace")
            self._set(after_scrape(self._health[engine], parse_metrics(text)))

    async def _get(
        self, client: httpx.AsyncClient, url: str, limit_bytes: int
    ) -> tuple[int, bytes]:
        """Status and at most so much of a body, all of it within the time-out."""
        async with asyncio.timeout(self._timeout_s), client.stream("GET", url) as answer:
            parts, size = [], 0
            async for part in answer.aiter_bytes():
                parts.append(part)
                size += len(part)
                if size >= limit_bytes:
                    break
            return answer.status_code, b"".join(parts)[:limit_bytes]

    def _set(self, health: EngineHealth) -> None:
        before = self._health[health.engine]
        self._health[health.engine] = health
        never_up = not (before.since_s or before.failures or health.up)
        if (before.up, before.epoch) != (health.up, health.epoch) or never_up:
            self._on_change(before, health)


def _words(error: Exception) -> str:
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__

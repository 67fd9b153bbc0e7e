"""Asks engines for their health and load, and tells what changed: the shell around ``health``.

Each engine is probed on its own, each time on a fresh connection: a connection that is kept would
show one of several engines behind a name for ever, and would not show that no new one is accepted.
What relayed requests find out (refused, cut, answered) comes in here too.
"""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from gateway.endpoint import Endpoint
from gateway.health import (
    EngineHealth,
    HealthRules,
    after_failure,
    after_refused,
    after_reply,
    after_scrape,
    after_silence,
    after_success,
)
from gateway.scrape import Scrape, parse_metrics
from gateway.wire import (
    ConnectFailed,
    ConnectTimedOut,
    EngineClient,
    Exchange,
    NoSocket,
    TimedOut,
    WireError,
)

__all__ = ["Prober", "Probing"]

HEALTH_BYTES = 64 << 10
METRICS_BYTES = 4 << 20
# A page beyond it, of very many engine cores, takes too long to read on the loop.
PARSE_INLINE_BYTES = 128 << 10
# Nothing compressed: bounds on bytes are to hold for what is kept.
HEADERS = ((b"accept", b"*/*"), (b"accept-encoding", b"identity"))


@dataclass(frozen=True, slots=True)
class Probing:
    """An engine is probed each ``interval_s``; ``timeout_s`` is for each of the two answers."""

    interval_s: float = 1.0
    timeout_s: float = 2.0
    rules: HealthRules = field(default_factory=HealthRules)


class Prober:
    """Probes the engines that it is told to watch, and tells of each change.

    Args:
        probing: how often, how long, and when an engine counts as down.
        clock: monotonic seconds.
        on_change: called, on the loop, when ``up``, ``epoch`` or ``epochs.mixed`` differ, and when
            the first probe of an engine fails.
        on_page: called after each metrics page that was read.
    """

    def __init__(
        self,
        probing: Probing,
        clock: Callable[[], float],
        on_change: Callable[[EngineHealth, EngineHealth], None],
        on_page: Callable[[EngineHealth], None] = lambda _: None,
    ) -> None:
        self._endpoints: dict[str, Endpoint] = {}
        self._clients: dict[str, EngineClient] = {}
        self._health: dict[str, EngineHealth] = {}
        self._probing = probing
        self._clock = clock
        self._on_change = on_change
        self._on_page = on_page
        self._group: asyncio.TaskGroup | None = None
        self._tasks: dict[str, asyncio.Task[None]] = {}
        # Engines of which a whole look was had, and whether that is all of them.
        self._rounds: set[str] = set()
        self._probed = asyncio.Event()

    @property
    def health(self) -> Mapping[str, EngineHealth]:
        """What is known now, by engine."""
        return MappingProxyType(self._health)

    def endpoint(self, engine: str) -> Endpoint:
        """Where an engine that is watched is reached."""
        return self._endpoints[engine]

    # -- which engines ---------------------------------------------------------------------

    def watch(self, engine: str, endpoint: Endpoint, *, known: bool = False) -> None:
        """Probe one more engine; with ``known`` the same one in another way."""
        health = self._health[engine] if known else EngineHealth(engine)
        self.forget(engine)
        self._endpoints[engine] = endpoint
        self._clients[engine] = self._client(endpoint)
        self._health[engine] = health
        self._note_probed()
        if self._group is not None:
            self._start(engine, self._group)

    def forget(self, engine: str) -> None:
        """Probe an engine no longer, and know nothing of it."""
        self._endpoints.pop(engine, None)
        self._clients.pop(engine, None)
        self._health.pop(engine, None)
        self._rounds.discard(engine)
        task = self._tasks.pop(engine, None)
        if task is not None:
            task.cancel()
        self._note_probed()

    def use(self, probing: Probing) -> None:
        """Probe by other rules from now on."""
        self._probing = probing
        self._clients = {name: self._client(found) for name, found in self._endpoints.items()}

    def _client(self, endpoint: Endpoint) -> EngineClient:
        # It keeps no connection: there is never one to close.
        return EngineClient(
            endpoint.url,
            connect_timeout_s=self._probing.timeout_s,
            max_idle=0,
            tls=endpoint.tls,
            service=endpoint.service,
        )

    # -- what requests find out ------------------------------------------------------------

    def refused(self, engine: str, reason: str) -> None:
        """A request found that nobody listens at ``engine``: down until a probe succeeds."""
        self._change(engine, lambda h: after_refused(h, self._clock(), reason))

    def silent(self, engine: str, reason: str) -> None:
        """A probe or a request was not answered; several in a row make the engine down."""
        self._change(engine, lambda h: after_silence(h, self._clock(), reason, self._probing.rules))

    def failed(self, engine: str, reason: str) -> None:
        """A request failed in transport: the breaker counts it."""
        self._change(engine, lambda h: after_failure(h, self._clock(), reason, self._probing.rules))

    def replied(self, engine: str) -> None:
        """A request was answered, with whatever."""
        health = self._health.get(engine)
        if health is not None and health.breaker.failures:  # else there is nothing to forget
            self._set(after_reply(health))

    def _change(self, engine: str, change: Callable[[EngineHealth], EngineHealth]) -> None:
        health = self._health.get(engine)
        if health is not None:  # else it was removed while a request ran there
            self._set(change(health))

    # -- probing ---------------------------------------------------------------------------

    async def run(self) -> None:
        """Probe every engine each interval, independently of each other; runs until cancelled."""
        async with asyncio.TaskGroup() as group:
            self._group = group
            try:
                for engine in self._endpoints:
                    self._start(engine, group)
                await asyncio.Event().wait()
            finally:
                self._group = None
                self._tasks.clear()

    async def first_round(self, limit_s: float) -> bool:
        """Wait until every engine has been probed once; False if that takes too long."""
        self._note_probed()
        try:
            await asyncio.wait_for(self._probed.wait(), limit_s)
        except TimeoutError:
            return False
        return True

    def _start(self, engine: str, group: asyncio.TaskGroup) -> None:
        self._tasks[engine] = group.create_task(self._watch(engine))

    async def _watch(self, engine: str) -> None:
        while True:
            try:
                await self.probe(engine)
            except Exception as error:  # whatever it is, the other engines are watched on
                self.silent(engine, _words(error))
            self._rounds.add(engine)
            self._note_probed()
            await asyncio.sleep(self._probing.interval_s)

    async def probe(self, engine: str) -> None:
        """One health check, and a look at the metrics of an engine that answers it."""
        try:
            status, _ = await self.get(engine, "/health", HEALTH_BYTES)
        except NoSocket:
            return  # ours: it says nothing of the engine
        except WireError as error:
            nobody = isinstance(error, ConnectFailed) and not isinstance(error, ConnectTimedOut)
            tell = self.refused if nobody else self.silent
            tell(engine, _words(error))
            return
        if status != 200:
            self.silent(engine, f"health answered {status}")
            return
        self._change(engine, lambda h: after_success(h, self._clock(), self._probing.rules))
        await self._scrape(engine)

    async def page(self, engine: str) -> Scrape | None:
        """Its metrics page as it is now, empty where it has none; None where it was not had whole.

        Of two that are asked for one after another the second was made later.
        """
        try:
            status, page = await self.get(engine, "/metrics", METRICS_BYTES)
        except WireError:
            return None
        if len(page) >= METRICS_BYTES:
            return None  # sums over a part of a page would be wrong figures
        if status != 200:
            return Scrape()
        if len(page) <= PARSE_INLINE_BYTES:
            return _figures(page)
        return await asyncio.to_thread(_figures, page)

    async def _scrape(self, engine: str) -> None:
        scrape = await self.page(engine)
        if scrape is None:
            return  # shown figures go stale; health does not rest on them
        self._change(engine, lambda h: after_scrape(h, scrape, self._clock(), self._probing.rules))
        if engine in self._health:
            self._on_page(self._health[engine])

    async def get(self, engine: str, path: str, limit_bytes: int) -> tuple[int, bytes]:
        """Status and at most so much of a body, on a connection of its own.

        Raises:
            WireError: there was no such answer, or it was not had within the time-out.
        """
        exchange = self._clients[engine].exchange(b"GET", path.encode(), HEADERS)
        timeout_s = self._probing.timeout_s
        try:
            async with asyncio.timeout(timeout_s):
                await exchange.start()
                return exchange.status, await _read(exchange, limit_bytes)
        except TimeoutError:
            raise TimedOut(f"{path}: no whole answer in {timeout_s:g} s") from None
        finally:
            exchange.close()

    def _set(self, health: EngineHealth) -> None:
        before = self._health[health.engine]
        if before is health:
            return
        self._health[health.engine] = health
        first = health.probed and not before.probed
        if _shown(before) != _shown(health) or (first and not health.up):
            self._on_change(before, health)

    def _note_probed(self) -> None:
        if self._health.keys() <= self._rounds:
            self._probed.set()
        else:
            self._probed.clear()


def _figures(page: bytes) -> Scrape:
    return parse_metrics(page.decode(errors="replace"))


def _shown(health: EngineHealth) -> tuple[bool, int, bool]:
    return health.up, health.epoch, health.epochs.mixed


async def _read(exchange: Exchange, limit_bytes: int) -> bytes:
    body = bytearray()
    while len(body) < limit_bytes and (part := await exchange.read()):
        body += part
    return bytes(body[:limit_bytes])


def _words(error: Exception) -> str:
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__

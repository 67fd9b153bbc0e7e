"""Finds out what engines are to each other and to their configuration: aliases and priorities.

Now and then it looks up where each engine is, compares who says the same of itself (``aliases``),
and asks engines that should schedule by priority whether they do. What it finds is told once, when
it changes. It looks only: what follows is for readiness, the log and people.
"""

import asyncio
import socket
from collections.abc import Callable, Mapping, Sequence
from itertools import combinations
from pathlib import Path

from gateway import schema
from gateway.aliases import EngineIdentity, Pair, Shared, Told, judged, shared, suspects
from gateway.capability import stated
from gateway.domain import EngineLimits
from gateway.engines import Prober
from gateway.journal import Journal
from gateway.membership import Members, engines_of
from gateway.origin import Origin
from gateway.progress import PriorityState
from gateway.scrape import Scrape
from gateway.wire import WireError

__all__ = ["Standing"]

EVERY_S = 5.0
LOOKUP_S = 2.0
INFO_BYTES = 1 << 20


class Standing:
    """What is known of the engines beside their health."""

    def __init__(self, prober: Prober, journal: Journal, clock: Callable[[], float]) -> None:
        self._prober, self._journal, self._clock = prober, journal, clock
        self._members: Members = {}
        self._required = False
        self._shared: list[Shared] = []
        self._told: dict[Pair, Told] = {}
        self._priority: dict[str, PriorityState] = {}
        self._asked: set[str] = set()
        self._lookups: dict[str, str] = {}
        self._looked_s = float("-inf")

    def use(
        self, document: schema.Document, members: Members, limits: Mapping[str, EngineLimits]
    ) -> None:
        """Watch these engines under this configuration."""
        self._members = members
        self._required = document.isolation == "required"
        self._looked_s = float("-inf")
        before, self._priority = self._priority, {}
        for name, has in limits.items():
            fresh = PriorityState.NOT_ASKED if has.fcfs else PriorityState.UNVERIFIED
            known = before.get(name, fresh)
            asked = PriorityState.NOT_ASKED not in {fresh, known}
            self._priority[name] = known if asked else fresh
        self._asked &= self._priority.keys()
        self._told = {pair: t for pair, t in self._told.items() if limits.keys() >= set(pair)}

    def restarted(self, engine: str) -> None:
        """Another process answers there: ask it anew."""
        self._asked.discard(engine)

    def lookup_failed(self, pool: str, reason: str | None) -> None:
        """A pool's name could not be looked up, or could again (None)."""
        before = self._lookups.pop(pool, None)
        if reason is not None:
            self._lookups[pool] = reason
        if (before is None) != (reason is None):
            word = "lookup_failed" if reason else "lookup_works_again"
            self._journal.event(word, pool=pool, reason=reason or before)

    # -- looking ---------------------------------------------------------------------------

    async def look(self, *, at_once: bool = False) -> None:
        """Look at every engine, unless that was done a moment ago."""
        if not at_once and self._clock() < self._looked_s + EVERY_S:
            return
        self._looked_s = self._clock()
        for name in [
            n for n, state in self._priority.items() if state is not PriorityState.NOT_ASKED
        ]:
            health = self._prober.health.get(name)
            if name not in self._asked and health is not None and health.up:
                await self._ask(name)
        await self._compare()

    async def _ask(self, name: str) -> None:
        path = "/server_info?config_format=json"
        try:
            state = stated(*await self._prober.get(name, path, INFO_BYTES))
        except WireError:
            # No answer yet: it is asked again. vLLM 0.32 may take seconds for its first one.
            return
        if name in self._priority:  # else it was removed meanwhile
            self._asked.add(name)
            self._priority[name] = state
            self._journal.event("engine_priority", engine=name, state=state)

    async def _compare(self) -> None:
        addresses = engines_of(self._members)
        places = await asyncio.gather(*map(_places, addresses.values()))
        identities = {}
        for name, found in zip(addresses, places, strict=True):
            health = self._prober.health.get(name)
            seen = health is not None and health.up and not health.epochs.mixed
            page = health.last if health is not None and seen else None
            known = (page.process_start_s, page.served) if page else (None, None)
            identities[name] = EngineIdentity(found, *known)
        before = {(s.engines, s.because) for s in self._shared}
        for group in suspects(identities):
            await self._tell_apart(group)
        self._shared = shared(identities, self._members, self._told)
        for one in self._shared:
            if (one.engines, one.because) not in before:
                self._journal.event(
                    "engines_are_one",
                    engines=list(one.engines),
                    pools=list(one.pools),
                    reason=one.because,
                )

    async def _tell_apart(self, group: Sequence[str]) -> None:
        """Ask them in turn, twice each: only one process counts on from what another said."""
        pages: list[tuple[str, Scrape]] = []
        for name in (*group, *group):
            page = await self._prober.page(name) if name in self._prober.health else None
            if page is None:
                return
            pages.append((name, page))
        for pair in combinations(group, 2):
            said = [page for name, page in pages if name in pair]
            told = judged(self._told.get(pair), said)
            if told is not None:
                self._told[pair] = told

    # -- what was found --------------------------------------------------------------------

    def isolation_fault(self) -> str | None:
        """Under required isolation: two pools that are the same engine."""
        across = (str(one) for one in self._shared if one.across)
        return next(across, None) if self._required else None

    def priority(self, engine: str) -> PriorityState:
        """What is known of an engine's priorities."""
        return self._priority.get(engine, PriorityState.NOT_ASKED)

    def same_as(self, engine: str) -> list[str]:
        """The other engines that are this one."""
        pairs = (one.engines for one in self._shared if engine in one.engines)
        return [other for pair in pairs for other in pair if other != engine]


async def _places(address: str) -> frozenset[str]:
    """Where an engine really is; nothing where that can't be looked up."""
    origin = Origin.parse(address)
    if origin.path is not None:
        return frozenset({str(await asyncio.to_thread(Path(origin.path).resolve))})
    looking = asyncio.get_running_loop().getaddrinfo(
        origin.host, origin.port, type=socket.SOCK_STREAM
    )
    try:
        found = await asyncio.wait_for(looking, LOOKUP_S)
    except (OSError, TimeoutError):
        return frozenset()
    return frozenset(f"{where[0]}:{origin.port}" for *_, where in found)

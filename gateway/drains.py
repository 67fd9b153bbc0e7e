"""Ends what still runs of a drained pool or route: at its own end, or at the drain's deadline.

The table keeps new work away (``routing.serving``); this watches what runs there. At the deadline
what is left is ended as ``drain_terminated``. How many ended by themselves and how many were ended
is told in the log, in the audit trail and to operators. A drain is kept in the state with the table
that begins it: after a restart its pool is still out of use, and nothing runs there any more.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from gateway.app import Gateway
from gateway.domain import Outcome
from gateway.moves import RouteError
from gateway.routing import RouteTable
from gateway.state import StateError
from gateway.steering import Extra, Move, StaleTableError
from gateway.trail import Trail
from gateway.visit import Visit

__all__ = ["KIND", "Drains"]

KIND = "drain"
MAX_DEADLINE_S = 24 * 3600.0
POLL_S = 0.05
LAST_ANSWERS_S = 2.0
SHOWN = 20


@dataclass(slots=True, eq=False)
class _Drain:
    """One drain. ``began_s`` and ``until_s`` are on the gateway's clock; ``seen`` is what ran."""

    name: str
    pool: str | None
    route: str | None
    by: str
    why: str
    since: str
    deadline_s: float
    began_s: float
    until_s: float
    state: str = "draining"
    drained: int = 0
    ended: int = 0
    remaining: int = 0
    seen: set[Visit] = field(default_factory=set)

    def record(self) -> dict[str, Any]:
        """What is kept of it."""
        kept = ("pool", "route", "by", "why", "since", "deadline_s", "state", "drained", "ended")
        return {key: getattr(self, key) for key in kept}


class Drains:
    """All drains of a gateway, by name: a pool's, a route's as MODEL/SIZE, or one arm's.

    Args:
        gateway: what runs.
        trail: where drains are kept and audited.
    """

    def __init__(self, gateway: Gateway, trail: Trail) -> None:
        self._gateway, self._trail = gateway, trail
        self._drains: dict[str, _Drain] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        gateway.waited_for = self._remaining

    # -- as steering calls it --------------------------------------------------------------

    async def prepare(self, who: str, move: Move, before: RouteTable, after: RouteTable) -> Extra:
        """The records of the drains that this move begins and ends.

        Raises:
            RouteError: the deadline can't be.
        """
        if move.deadline_s is not None and not 0.0 <= move.deadline_s <= MAX_DEADLINE_S:
            raise RouteError(f"deadline_s: must be from 0 to {MAX_DEADLINE_S:g} seconds")
        begun = sorted(after.draining - before.draining)
        records: list[tuple[str, str, Mapping[str, Any] | None]] = [
            (KIND, name, self._made(name, who, move).record()) for name in begun
        ]
        records += [(KIND, name, None) for name in sorted(before.draining - after.draining)]
        return Extra({"deadline_s": self._deadline_s(move)} if begun else {}, tuple(records))

    def took_effect(self, who: str, move: Move, before: RouteTable, after: RouteTable) -> None:
        """Watch what the move began to drain; forget what it took back."""
        for name in after.draining - before.draining:
            self._begin(self._made(name, who, move))
        for name in before.draining - after.draining:
            if name in self._drains:
                self._drains[name].state = "cancelled"

    def rows(self) -> dict[str, Any]:
        """The drains as operators see them, the newest first."""
        newest = sorted(self._drains.values(), key=lambda d: d.since, reverse=True)
        return {"drains": [self._row(drain) for drain in newest]}

    # -- others ----------------------------------------------------------------------------

    async def end_candidate(
        self, route: str, by: str, drain: Move, change: Callable[[Move], Awaitable[Any]]
    ) -> str:
        """Drain the pool of ``drain``, in which ``route`` has nothing to begin any more.

        Where other routes use it, only what this one has there is drained, and the table stays.

        Args:
            route: the name of the route that had the pool as its candidate.
            by: in whose name.
            drain: of the pool.
            change: makes a move, as ``Steering.change`` does.

        Returns:
            The drain's name.

        Raises:
            RouteError: as of ``change``.
            StateError: as of ``change``.
        """
        pool = drain.pool or ""
        while not (table := self._gateway.setup.table).uses(pool):
            try:
                if pool not in table.draining:
                    # The revision is one in which nobody else uses the pool.
                    await change(replace(drain, revision=table.revision))
            except StaleTableError:
                continue
            return pool
        name = f"{route}@{pool}"
        arm = self._made(name, by, drain)
        arm.route, arm.pool = route, pool
        self._begin(arm)
        return name

    async def resume(self) -> None:
        """After a restart: what was draining is out of use still, and has nothing left to end.

        Raises:
            StateError: the records can't be read.
        """
        draining = self._gateway.setup.table.draining
        for name, kept in (await self._trail.get_all(KIND)).items():
            if name not in draining:
                continue
            try:
                self._drains[name] = drain = _over(name, kept, self._gateway.parts.clock())
            except (KeyError, TypeError, ValueError) as error:
                at = self._trail.state.name
                raise StateError(f"{at}: drain {name}: the record is damaged: {error!r}") from error
            if kept.get("state") == "draining":
                await self._told(drain, "the gateway was restarted meanwhile")

    async def close(self) -> None:
        """Stop watching."""
        for task in list(self._tasks):
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task

    # -- one drain -------------------------------------------------------------------------

    def _made(self, name: str, who: str, move: Move) -> _Drain:
        deadline_s, now = self._deadline_s(move), self._gateway.parts.clock()
        pool, route = (None, name) if "/" in name else (name, None)
        told = (name, pool, route, who, move.why, self._trail.at())
        return _Drain(*told, deadline_s, now, now + deadline_s)

    def _deadline_s(self, move: Move) -> float:
        if move.deadline_s is not None:
            return move.deadline_s
        return self._gateway.setup.settings.document.server.drain_deadline_s

    def _begin(self, drain: _Drain) -> None:
        old = self._drains.pop(drain.name, None)
        if old is not None:
            old.state = "cancelled"
        self._drains[drain.name] = drain
        while len(self._drains) > SHOWN and (over := self._oldest_over()) is not None:
            del self._drains[over]
        drain.seen.update(self._running(drain))
        drain.remaining = len(drain.seen)
        self._gateway.parts.journal.event(
            "drain_begun", drain=drain.name, by=drain.by, running=drain.remaining,
            deadline_s=drain.deadline_s,
        )  # fmt: skip
        task = asyncio.get_running_loop().create_task(self._watch(drain))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _oldest_over(self) -> str | None:
        return next((n for n, d in self._drains.items() if d.state != "draining"), None)

    async def _watch(self, drain: _Drain) -> None:
        clock, ended_s = self._gateway.parts.clock, None
        while drain.state == "draining":
            running = self._look(drain)
            if not running or (ended_s is not None and clock() >= ended_s + LAST_ANSWERS_S):
                drain.state = "done"
                drain.remaining = 0
                await self._told(drain, "")
                break
            if ended_s is None and clock() >= drain.until_s:
                ended_s = clock()
                drain.ended += _end(running)
            await asyncio.sleep(POLL_S)
        drain.seen.clear()

    def _look(self, drain: _Drain) -> list[Visit]:
        """What still runs; counts what ended by itself since."""
        running = self._running(drain)
        drain.seen.update(running)
        over = {v for v in drain.seen if v not in self._gateway.running}
        drain.seen -= over
        drain.drained += sum(v.ending.outcome is not Outcome.DRAIN_TERMINATED for v in over)
        drain.remaining = len(running)
        return running

    def _running(self, drain: _Drain) -> list[Visit]:
        pools = self._gateway.parts.fleet.pools
        others = {e for name, has in pools.items() if name != drain.pool for e in has}
        here = frozenset(pools.get(drain.pool or "", ()))
        return [v for v in self._gateway.running if _served(drain, v, here, others)]

    async def _told(self, drain: _Drain, more: str) -> None:
        counts = {"drained": drain.drained, "ended": drain.ended}
        journal = self._gateway.parts.journal
        journal.event("drain_ended", drain=drain.name, by=drain.by, **counts)
        try:
            if drain.name in self._gateway.setup.table.draining:
                await self._trail.put(KIND, drain.name, drain.record())
            await self._trail.note(drain.by, "drained", drain.name, more or drain.why, counts)
        except StateError as error:
            journal.event("state_not_written", what=f"drain {drain.name}", reason=str(error))

    def _row(self, drain: _Drain) -> dict[str, Any]:
        left_s = max(0.0, drain.until_s - self._gateway.parts.clock())
        kept = drain.record()
        return {
            "drain": drain.name,
            **kept,
            "deadline_s_left": round(left_s, 3) if drain.state == "draining" else None,
            "remaining": drain.remaining,
        }

    def _remaining(self) -> int:
        return sum(d.remaining for d in self._drains.values() if d.state == "draining")


def _over(name: str, kept: Mapping[str, Any], now: float) -> _Drain:
    """A drain that is kept, and has nothing left to end."""
    told = (kept["pool"], kept["route"], kept["by"], kept["why"], kept["since"])
    drained, ended = int(kept["drained"]), int(kept["ended"])
    return _Drain(name, *told, float(kept["deadline_s"]), now, now, "done", drained, ended)


def _served(drain: _Drain, visit: Visit, here: frozenset[str], others: set[str]) -> bool:
    """Whether a request runs on what drains; an engine of two pools serves both.

    What began in the pool is its own also where the pool or the engine has left the configuration;
    what comes later is not: the pool, or the route's candidate, may have been taken up again.
    """
    if visit.engine is None or visit.arrived_s > drain.began_s:
        return False
    if drain.route is not None and f"{visit.model}/{visit.size_class}" != drain.route:
        return False
    if drain.pool is None:
        return True
    return visit.pool == drain.pool or (visit.engine in here and visit.engine not in others)


def _end(visits: list[Visit]) -> int:
    ended = 0
    for visit in visits:
        if visit.ending.outcome is None:
            visit.ending.set(Outcome.DRAIN_TERMINATED)
            ended += 1
    return ended

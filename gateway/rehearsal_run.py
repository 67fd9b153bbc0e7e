"""Carries out one rehearsal: canary, flip, rollback, drain; puts everything back, whatever comes.

It moves the routes as an operator would, through ``steering``, in an operator's name. It goes back
at once where callers would suffer (``broken_already``), where the candidate is gone, or where it is
told to. If somebody else moves the route meanwhile, theirs stands: it makes no further move of the
route, and says so.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from gateway.audit import WATCH
from gateway.canary_start import baseline_fault
from gateway.drains import Drains
from gateway.moves import RouteError
from gateway.rehearsal_facts import (
    CANARY_HOLDS,
    Capacity,
    Limits,
    Observed,
    Phase,
    Probe,
    broken_already,
    capacity_fault,
)
from gateway.rehearsal_watch import LOOK_S, RouteWatch
from gateway.route_record import changes
from gateway.routing import Route, RouteTable
from gateway.state import StateError
from gateway.steering import Move, StaleTableError, Steering

__all__ = ["Order", "Run"]

PERSIST_S = 30.0
DRAIN_SLACK_S = 5.0
_WATCHS_OWN = frozenset({"abort", "drain"})


@dataclass(frozen=True, slots=True)
class Order:
    """What is to be rehearsed. ``weight`` is a fraction; ``options`` are of the canary."""

    id: str
    who: str
    key: tuple[str, str]
    to: str
    weight: float
    hold_s: float
    limits: Limits
    deadline_s: float | None = None
    options: Mapping[str, Any] = field(default_factory=dict)


class Run:
    """One rehearsal. Call it on the loop.

    Args:
        steering: moves the routes; the gateway is its.
        drains: drain what the candidate still has.
        order: what to do.
    """

    def __init__(self, steering: Steering, drains: Drains, order: Order) -> None:
        self.order = order
        self.gateway = steering.control.gateway
        self.base = self.gateway.setup.table
        self.route = self.base.routes[order.key]
        self.revisions: dict[str, int] = {}
        self.faults: list[str] = []
        self.said: list[dict[str, Any]] = []
        self.capacity: Capacity | None = None
        self.probes: dict[str, Sequence[Probe]] = {}
        self.stopped = False
        self._baseline = self.route.stable_pool
        self._names = {order.to, self._baseline, self.route.name}
        self._steering, self._drains = steering, drains
        self._watch = RouteWatch(self.gateway, self.route, order.to)
        self._clock: Callable[[], float] = self.gateway.parts.clock
        self._began_s = self._effect_s = self._clock()
        self._own: Move | None = None
        self._left: Route | None = self.route  # as the last move, whoever's, left it
        self._drain_row: Mapping[str, Any] = {}
        self._back = asyncio.Event()
        self._taken = False

    # -- told from outside -----------------------------------------------------------------

    def stop(self, why: str) -> None:
        """Go back at once, without waiting for anything."""
        if not self.stopped:
            self.stopped = True
            self._cut(why)

    def moved(self, who: str, move: Move, before: RouteTable, after: RouteTable) -> None:
        """A move took effect, its own or another's, in this step of the loop."""
        self._left = after.routes.get(self.order.key)
        if move is self._own:
            self._effect_s = self._clock()
            return
        key = self.order.key
        moved = before.routes.get(key) != after.routes.get(key)
        if moved or (before.draining ^ after.draining) & self._names:
            # A watch takes its canary back for this rehearsal's sake: the rest is still ours.
            self._taken = self._taken or who != WATCH or move.action not in _WATCHS_OWN
            why = f": {move.why}" if move.why else ""
            self._cut(f"{who} moved the route meanwhile ({move.action}){why}")

    # -- the way ---------------------------------------------------------------------------

    async def look(self) -> dict[str, Any]:
        """Look whether it could be carried out at all, its record included; what the flip changes.

        A candidate that nobody goes to is no canary in force: it is there again in the end.

        Raises:
            RouteError: not; the message has the figures.
        """
        route, order = self.route, self.order
        if route.candidate_weight > 0:
            raise RouteError(
                f"{route.name}: has a canary in force ({route.candidate_weight * 100:g} % to "
                f"{route.candidate_pool}): end it first (sluicegate routes abort {route.name})"
            )
        if self._names & self.base.draining:
            raise RouteError(f"{route.name}: it or one of its pools is draining")
        if (fault := baseline_fault(self.gateway, route)) is not None:
            raise RouteError(fault)
        asked = Move("flip", route=route.name, to=order.to, check=True)
        canary = replace(asked, action="canary", weight=order.weight, options=order.options)
        await self._steering.change(order.who, canary)
        return await self._steering.change(order.who, asked)

    async def carry_out(self, may_begin: Callable[[], Awaitable[None]]) -> None:
        """All phases and back again; ``may_begin`` is awaited before the first move.

        Raises:
            RouteError: the baseline could not take the load back; nothing was moved.
            StateError: nothing can be written down; nothing was moved.
        """
        self.gateway.heard.append(self._watch.hear)
        sampling = asyncio.get_running_loop().create_task(self._watch.sample())
        try:
            await self._before()
            await may_begin()
            try:
                await self._there()
            finally:
                await self._home()
            if not self.stopped:
                self._say("warm probe of the baseline")
                self.probes["after"] = await self._watch.probe(self.order.limits.warm_probe_ratio)
            self._watch.note_running()
        finally:
            sampling.cancel()
            self.gateway.heard.remove(self._watch.hear)
            await asyncio.gather(sampling, return_exceptions=True)

    async def _before(self) -> None:
        self._say("warm probe of the baseline")
        self.probes["before"] = await self._watch.probe(self.order.limits.warm_probe_ratio)
        bad = [probe.why for probe in self.probes["before"] if probe.why is not None]
        if bad:
            raise RouteError(self._no_way_back("; ".join(bad)))
        self._effect_s = self._clock()
        self._enter(Phase.BEFORE, f"all on {self._baseline}")
        await self._hold(Phase.BEFORE)
        if self.stopped:
            return
        self.capacity = self._watch.capacity()
        fault = capacity_fault(self.capacity, self.order.limits)
        if fault is not None:
            raise RouteError(self._no_way_back(fault))
        least, found = self.order.limits.min_count, self._watch.offered(Phase.BEFORE)
        if found < least:
            raise RouteError(
                f"{self.route.name}: {found} requests in {self.order.hold_s:g} s are too few to "
                f"rehearse with: each phase needs {least} (hold longer, or bring load)"
            )

    def _no_way_back(self, fault: str) -> str:
        name, pool = self.route.name, self._baseline
        return f"{name}: pool {pool!r} could not take the load back: {fault}"

    async def _there(self) -> None:
        order, name = self.order, self.route.name
        if self._back.is_set():
            return
        await self._move("canary", route=name, to=order.to, weight=order.weight)
        least, most_s = order.limits.min_count, CANARY_HOLDS * order.hold_s
        self._enter(
            Phase.CANARY,
            f"{order.weight:.0%} of the callers to {order.to}, until it has served {least} "
            f"requests (at most {most_s:g} s)",
        )
        await self._hold(Phase.CANARY)
        if self._back.is_set():
            return
        try:
            await self._move("flip", route=name, to=order.to)
        except (RouteError, StateError) as error:
            self._cut(f"the flip was refused: {error}")
            return
        self._enter(Phase.FLIP, f"all to {order.to}")
        await self._hold(Phase.FLIP)

    async def _home(self) -> None:
        """Take the route back, drain the candidate, and leave nothing changed."""
        if "canary" not in self.revisions:
            return
        await self._restored("rollback", self._rolled_back)
        if "rollback" in self.revisions:
            self._enter(Phase.ROLLBACK, f"all to {self._baseline}")
            if not self.stopped:
                await self._drain()
                await self._hold(Phase.ROLLBACK)
        await self._restored("undrain", self._undrained)
        self.revisions["after"] = self._table.revision
        left = list(self._differences())
        self._say("; ".join(left) if left else "the routes are as they were")

    async def _drain(self) -> None:
        order, why = self.order, self._why("drain")
        drain = Move("drain", pool=order.to, deadline_s=order.deadline_s, why=why)
        try:
            name = await self._drains.end_candidate(self.route.name, order.who, drain, self._make)
        except (RouteError, StateError) as error:
            self.faults.append(f"the candidate could not be drained: {error}")
            return
        await self._drained(name)

    async def _drained(self, name: str) -> None:
        until_s = self._clock() + self._deadline_s() + DRAIN_SLACK_S
        row: Mapping[str, Any] = {"state": "draining"}
        while row.get("state") == "draining" and not self.stopped:
            await asyncio.sleep(LOOK_S)
            rows = self._drains.rows()["drains"]
            row = next((row for row in rows if row["drain"] == name), {})
            if self._clock() > until_s:
                self.faults.append(f"the drain of {name} did not end")
                break
        self._drain_row = row
        done, cut = row.get("drained", 0), row.get("ended", 0)
        self._say(f"drain of {name}: {done} ended by themselves, {cut} cut off")

    def _deadline_s(self) -> float:
        given = self.order.deadline_s
        usual = self.gateway.setup.settings.document.server.drain_deadline_s
        return usual if given is None else given

    # -- moves -----------------------------------------------------------------------------

    async def _move(self, step: str, **what: Any) -> None:
        """Make one move, based on a table in which nobody else has touched the route."""
        options = self.order.options if step == "canary" else {}
        move = Move(step, why=self._why(step), options=options, **what)
        while True:
            try:
                await self._make(replace(move, revision=self._table.revision))
            except StaleTableError:
                continue
            return

    async def _make(self, move: Move) -> None:
        if self._heed_configuration():
            raise RouteError("somebody else moved the route")
        self._own = move
        told = await self._steering.change(self.order.who, move)
        self.revisions[move.action] = told["revision"]

    def _why(self, step: str) -> str:
        return f"rehearsal {self.order.id}: {step}"

    async def _restored(self, step: str, restore: Callable[[], Awaitable[None]]) -> None:
        """Restore until it is committed, or until it can't be for long."""
        until_s = self._clock() + PERSIST_S
        while not self._heed_configuration():
            try:
                await restore()
            except (RouteError, StateError) as error:
                if self._clock() > until_s:
                    self._give_up(step, str(error))
                    return
                await asyncio.sleep(4 * LOOK_S)
            else:
                return

    def _give_up(self, step: str, reason: str) -> None:
        name, revision = self.route.name, self.base.revision
        self.faults.append(f"{step} failed: {reason}")
        self._say(
            f"{step} failed ({reason}): restore by hand with `sluicegate routes rollback "
            f"{name} --to-revision {revision}` and `sluicegate routes undrain {self.order.to}`"
        )

    async def _rolled_back(self) -> None:
        if self._table.routes.get(self.order.key) != self.route:
            await self._move("rollback", route=self.route.name, to_revision=self.base.revision)

    async def _undrained(self) -> None:
        if self.order.to in self._table.draining - self.base.draining:
            await self._move("undrain", pool=self.order.to)

    def _heed_configuration(self) -> bool:
        """Whether the route is somebody else's by now; no move tells of a reload."""
        if not self._taken and self._table.routes.get(self.order.key) != self._left:
            self._taken = True
            self._cut("the configuration moved the route meanwhile (reload)")
        return self._taken

    # -- on the way ------------------------------------------------------------------------

    def _enter(self, phase: Phase, said: str) -> None:
        """The phase began when the last move took effect."""
        self._watch.began_s[phase] = self._effect_s
        self._say(f"{phase}: {said}")

    def _say(self, what: str) -> None:
        at_s = round(self._clock() - self._began_s, 2)
        self.said.append({"at_s": at_s, "said": what})

    def _cut(self, why: str) -> None:
        self.faults.append(why)
        self._say(f"cut short: {why}")
        self._back.set()

    async def _hold(self, phase: Phase) -> None:
        while self._goes_on(phase) and not self.stopped:
            if self._heed_configuration():
                break
            if phase in {Phase.CANARY, Phase.FLIP}:
                self._protect(phase)
                if self._back.is_set():
                    break
            await asyncio.sleep(LOOK_S)
        counted = self._watch.counted[phase]
        self._say(
            f"{phase}: {counted.ended} requests ended, {counted.errors} failed, "
            f"{counted.refused} refused, {counted.late} late, {counted.stalled} stalled"
        )

    def _goes_on(self, phase: Phase) -> bool:
        """Whether a phase has time left; a canary lasts longer where its candidate has little."""
        held_s, hold_s = self._clock() - self._watch.began_s[phase], self.order.hold_s
        if phase is Phase.CANARY and self._watch.tried < self.order.limits.min_count:
            hold_s *= CANARY_HOLDS
        return held_s < hold_s

    def _protect(self, phase: Phase) -> None:
        if self._back.is_set():
            return
        why = broken_already(self._watch.counted[phase], self.order.limits)
        if why is None and not self._watch.usable(self.order.to):
            why = f"no engine of pool {self.order.to!r} is up any more"
        if why is not None:
            self._cut(f"{phase}: {why}")

    # -- afterwards ------------------------------------------------------------------------

    @property
    def _table(self) -> RouteTable:
        return self.gateway.setup.table

    def observed(self) -> Observed:
        """Everything that was seen, to be judged."""
        watch, drain = self._watch, self._drain_row
        return Observed(
            baseline=self._baseline,
            candidate=self.order.to,
            began_s=watch.began_s,
            seen=watch.seen,
            prefill=watch.prefill,
            oldest_age_s=watch.oldest_s,
            drained=int(drain.get("drained", 0)),
            ended=int(drain.get("ended", 0)),
            probes_after=self.probes.get("after", ()),
            differences=tuple(self._differences()),
            faults=tuple(self.faults),
        )

    def _differences(self) -> Iterator[str]:
        """What of this rehearsal is not as it was; what others did elsewhere is theirs."""
        for row in changes(self.base, self._table):
            name = row.get("route") or row.get("pool")
            if name in self._names and row["before"] != row["after"]:
                yield f"{name} is not as it was"

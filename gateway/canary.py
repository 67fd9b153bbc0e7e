"""Watches canaries: begins with the move that starts one, and takes it back by itself on a breach.

What a canary needs to begin is in ``canary_start``. Once a second both arms are judged (``watch``).
A breach is written to the state first, then the route goes back, then what the candidate still has
is drained: a gateway that dies in between goes on from there. After a restart a watch is taken up
where its candidate is still in the table, with what it had counted a few seconds before. It never
promotes.
"""

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

from gateway.app import Gateway
from gateway.audit import WATCH
from gateway.canary_start import asked_for, baseline_fault, checked_record
from gateway.domain import Arm
from gateway.drains import Drains
from gateway.finished import Finished
from gateway.manifest_desk import Desk
from gateway.moves import RouteError
from gateway.routing import Route, RouteTable
from gateway.state import Record, StateError
from gateway.steering import Extra, Move, StaleTableError, Steering
from gateway.thresholds import defaults, from_json, to_json
from gateway.trail import Trail
from gateway.watch import Contract, Finding, Judgement, Now, Verdict, Watch, behind

__all__ = ["KIND", "Canaries"]

KIND = "watch"
LOOK_S = 1.0
KEEP_S = 2.0
ACTIVE = frozenset({"watching", "breached"})

Key = tuple[str, str]


@dataclass(slots=True, eq=False)
class _Canary:
    """One canary and its watch. ``began_s`` is on the gateway's clock."""

    key: Key
    route: Route
    by: str
    since: str
    began_s: float
    watch: Watch
    state: str = "watching"
    why: str = ""
    drained: bool = False
    judgement: Judgement | None = None
    kept_s: float = 0.0

    def record(self, now: float) -> dict[str, Any]:
        """What is kept of it."""
        return {
            "stable": self.route.stable_pool,
            "candidate": self.route.candidate_pool,
            "by": self.by,
            "since": self.since,
            "state": self.state,
            "why": self.why,
            "drained": self.drained,
            "abort": [to_json(threshold) for threshold in self.watch.thresholds],
            "counts": self.watch.state(now),
        }


class Canaries:
    """The canaries of a gateway, by route.

    Args:
        gateway: whose requests are watched.
        trail: where watches are kept.
        steering: takes a canary back.
        drains: drains what a candidate still has.
        desk: checks rollback records.
    """

    def __init__(
        self, gateway: Gateway, trail: Trail, steering: Steering, drains: Drains, desk: Desk
    ) -> None:
        self._gateway, self._trail = gateway, trail
        self._steering, self._drains, self._desk = steering, drains, desk
        self._canaries: dict[Key, _Canary] = {}
        gateway.watched = lambda: [(c.route.name, c.state) for c in self._canaries.values()]

    # -- as steering calls it --------------------------------------------------------------

    async def prepare(self, who: str, move: Move, before: RouteTable, after: RouteTable) -> Extra:
        """Check a canary before it begins; note what a move means for those that run.

        Raises:
            RouteError: the canary may not begin.
        """
        told: dict[str, Any] = {}
        begun: dict[Key, _Canary] = {}
        if move.action == "canary":
            for key, route in after.routes.items():
                if route != before.routes.get(key) and route.candidate_pool is not None:
                    told[route.name], canary = await self._prepare(who, move, key, route)
                    begun |= {} if canary is None else {key: canary}
        records = [_kept(c, self._now()) for c in begun.values()]
        for canary in self._leaving(move, after):
            ended = {**canary.record(self._now()), **_end(canary, who, move)}
            records.append((KIND, canary.route.name, ended))
            if who == WATCH:
                told[canary.route.name] = {"figures": _figures(canary.judgement)}
        detail = {"canary": told} if told else {}
        return Extra(detail, tuple(records), lambda: self._canaries.update(begun))

    def took_effect(self, who: str, move: Move, before: RouteTable, after: RouteTable) -> None:
        """End the watches whose candidate has gone."""
        for canary in list(self._leaving(move, after)):
            ends = _end(canary, who, move)
            canary.state, canary.why = ends["state"], ends["why"]
        for canary in self._canaries.values():
            if canary.state in ACTIVE:
                canary.route = after.routes[canary.key]  # perhaps of another weight
        self._listen()

    def rows(self) -> dict[str, Any]:
        """The watches as operators see them."""
        return {"watches": [self._row(canary) for canary in self._canaries.values()]}

    # -- before a canary -------------------------------------------------------------------

    async def _prepare(
        self, who: str, move: Move, key: Key, route: Route
    ) -> tuple[dict[str, Any], _Canary | None]:
        running = self._canaries.get(key)
        goes_on = running is not None and running.state == "watching" and _same(running, route)
        fault = None if move.force else baseline_fault(self._gateway, route)
        if fault is not None:
            raise RouteError(fault)
        told: dict[str, Any] = {}
        rules: Sequence[Mapping[str, Any]] = ()
        if not goes_on:
            told["record"], rules = await checked_record(self._desk, move.options, route)
        thresholds = asked_for(move.options, rules, route)
        if goes_on and not thresholds:
            return told, None  # another weight: the watch sees it in the table
        thresholds = thresholds or defaults(self._contract(route).ttft_limit_s)
        watch, now = Watch(thresholds, self._contract(route)), self._now()
        begun = _Canary(key, route, who, self._trail.at(), now, watch)
        return {**told, "abort": [to_json(threshold) for threshold in thresholds]}, begun

    def _contract(self, route: Route) -> Contract:
        size = self._gateway.setup.settings.document.size[route.size_class]
        return Contract(size.ttft_limit_s, size.max_stall_s)

    def _leaving(self, move: Move, after: RouteTable) -> Iterator[_Canary]:
        """The active watches whose candidate a move takes away, or a rollback all its callers."""
        for canary in self._canaries.values():
            if canary.state in ACTIVE and _is_left(canary, move, after.routes.get(canary.key)):
                yield canary

    # -- while it runs ---------------------------------------------------------------------

    async def run(self) -> None:
        """Take up what was watched before a restart; look once a second, until cancelled."""
        resumed = False
        while True:
            resumed = resumed or await self._resumed()
            for canary in list(self._canaries.values()):
                try:
                    await self._look(canary)
                except Exception as error:  # whatever it is, it is looked at again, and the others
                    self._gateway.parts.journal.fault(error, watch=canary.route.name)
            self._listen()
            await asyncio.sleep(LOOK_S)

    def _heard(self, finished: Finished) -> None:
        canary = self._canaries.get((finished.model or "", finished.size_class or ""))
        if canary is None or canary.state != "watching" or finished.arrived_s < canary.began_s:
            return
        if finished.arm is not None and finished.pool == canary.route.pool(Arm(finished.arm)):
            canary.watch.finished(Arm(finished.arm), finished, self._now())

    def _listen(self) -> None:
        """Requests are told only while somebody watches."""
        watching = any(c.state == "watching" for c in self._canaries.values())
        heard = self._gateway.heard
        if watching and self._heard not in heard:
            heard.append(self._heard)
        elif not watching and self._heard in heard:
            heard.remove(self._heard)

    async def _look(self, canary: _Canary) -> None:
        if canary.state not in ACTIVE:
            if canary.state == "reverted" and not canary.drained:
                await self._drain(canary)
            return
        route = self._gateway.setup.table.routes.get(canary.key)
        if route is None or not _same(canary, route):  # a reload knows nothing of watches
            canary.state, canary.why = "ended", "the configuration took the candidate away"
            await self._keep(canary)
            return
        canary.route = route
        if canary.state == "watching":
            self._judge(canary)
        if canary.state == "breached":
            if await self._keep(canary):
                await self._take_back(canary)  # unless somebody moved the route meanwhile
        elif self._now() - canary.kept_s >= KEEP_S:
            await self._keep(canary)

    def _judge(self, canary: _Canary) -> None:
        before = None if canary.judgement is None else canary.judgement.verdict
        canary.watch.sample(self._arm_now(canary, Arm.STABLE), self._arm_now(canary, Arm.CANDIDATE))
        canary.judgement = judged = canary.watch.judge(self._now())
        canary.why = judged.why
        if judged.verdict is Verdict.BREACH:
            canary.state = "breached"
        if judged.verdict is not before:
            self._gateway.parts.journal.event(
                "canary_watch", route=canary.route.name, candidate=canary.route.candidate_pool,
                verdict=judged.verdict, why=judged.why,
            )  # fmt: skip

    def _arm_now(self, canary: _Canary, arm: Arm) -> Now:
        now, contract = self._now(), self._contract(canary.route)
        flows = self._gateway.parts.turnstile.core.flows.items()
        ages = (f.oldest_age_s(now) for k, f in flows if (k[:2], k.arm) == (canary.key, arm))
        late = stalled = 0
        for visit in self._gateway.running:
            here = (visit.model, visit.size_class) == canary.key and visit.arm is arm
            if here and visit.arrived_s >= canary.began_s:
                marks, arrived_s = visit.marks, visit.arrived_s
                is_late, is_stalled = behind(
                    arrived_s, marks.first_event_s, marks.last_event_s, now, contract
                )
                late, stalled = late + is_late, stalled + is_stalled
        return Now(max(ages, default=0.0), late, stalled)

    # -- back ------------------------------------------------------------------------------

    async def _take_back(self, canary: _Canary) -> None:
        name = canary.route.name
        if canary.state != "breached" or not self._is_of_now(canary):
            return
        revision = self._gateway.setup.table.revision  # in which the route has this candidate
        back = Move("abort", route=name, why=canary.why, revision=revision)
        try:
            await self._steering.change(WATCH, back)
        except StaleTableError:
            await self._take_back(canary)
            return
        except (RouteError, StateError) as error:  # tried again at the next look
            self._gateway.parts.journal.event("canary_abort_failed", route=name, reason=str(error))
            return
        self._gateway.parts.observer.canary_aborted(name)
        self._gateway.parts.journal.event(
            "canary_aborted", route=name, candidate=canary.route.candidate_pool, why=canary.why
        )
        await self._drain(canary)

    async def _drain(self, canary: _Canary) -> None:
        why = f"canary aborted: {canary.why}"
        drain = Move("drain", pool=canary.route.candidate_pool, why=why)
        change = partial(self._steering.change, WATCH)
        try:
            await self._drains.end_candidate(canary.route.name, WATCH, drain, change)
        except (RouteError, StateError) as error:
            self._gateway.parts.journal.event(
                "canary_drain_failed", route=canary.route.name, reason=str(error)
            )
            if isinstance(error, StateError):
                return
        canary.drained = True
        await self._keep(canary)

    # -- kept ------------------------------------------------------------------------------

    async def _keep(self, canary: _Canary) -> bool:
        """Write a watch to the state; False where that failed, which is said and not fatal."""
        if not self._is_of_now(canary):
            return False
        canary.kept_s = self._now()
        kind, name, body = _kept(canary, canary.kept_s)
        try:
            await self._trail.put(kind, name, body or {})
        except StateError as error:
            self._gateway.parts.journal.event(
                "state_not_written", what=f"watch of {name}", reason=str(error)
            )
            return False
        return True

    async def _resumed(self) -> bool:
        """Take up what is kept; False where it can't be read now, which is said."""
        try:
            found = await self._trail.get_all(KIND)
        except StateError as error:
            self._gateway.parts.journal.event("state_not_read", what="watches", reason=str(error))
            return False
        routes = {route.name: key for key, route in self._gateway.setup.table.routes.items()}
        for name, kept in found.items():
            # A canary that began while the state could not be read is watched already.
            if name in routes and routes[name] not in self._canaries:
                canary = self._taken_up(routes[name], kept)
                self._canaries[canary.key] = canary
                self._gateway.parts.journal.event(
                    "canary_resumed", route=name, state=canary.state, why=canary.why
                )
        self._listen()
        return True

    def _taken_up(self, key: Key, kept: Mapping[str, Any]) -> _Canary:
        try:
            return self._as_kept(key, kept)
        except (KeyError, TypeError, ValueError) as error:
            self._gateway.parts.journal.fault(error, watch="/".join(key))
        route = self._gateway.setup.table.routes[key]
        contract = self._contract(route)
        watch = Watch(defaults(contract.ttft_limit_s), contract)
        state = "ended" if route.candidate_pool is None else "watching"
        return _Canary(key, route, WATCH, self._trail.at(), self._now(), watch, state)

    def _as_kept(self, key: Key, kept: Mapping[str, Any]) -> _Canary:
        table, now = self._gateway.setup.table, self._now()
        route = table.routes[key]
        watch = Watch(from_json(kept["abort"]), self._contract(route))
        watch.resume(kept["counts"], now)
        was = replace(route, stable_pool=kept["stable"], candidate_pool=kept["candidate"])
        canary = _Canary(key, was, kept["by"], kept["since"], now, watch, kept["state"])
        canary.why, canary.drained = kept["why"], kept["drained"]
        if canary.state in ACTIVE and not _same(canary, route):
            # It died between the note of the watch and the move, whichever of the two came last.
            canary.state = "ended"
        return canary

    # -- shown -----------------------------------------------------------------------------

    def _row(self, canary: _Canary) -> dict[str, Any]:
        judged = canary.judgement
        return {
            "route": canary.route.name,
            "stable": canary.route.stable_pool,
            "candidate": canary.route.candidate_pool,
            "weight": round(canary.route.candidate_weight * 100, 6),
            "state": canary.state,
            "by": canary.by,
            "since": canary.since,
            "verdict": None if judged is None else judged.verdict,
            "why": canary.why,
            "figures": _figures(judged),
        }

    def _is_of_now(self, canary: _Canary) -> bool:
        """Whether no later canary took its place."""
        return self._canaries.get(canary.key) is canary

    def _now(self) -> float:
        return self._gateway.parts.clock()


def _same(canary: _Canary, route: Route) -> bool:
    """Whether a route still has the pair of pools that is watched."""
    watched = (canary.route.stable_pool, canary.route.candidate_pool)
    return watched == (route.stable_pool, route.candidate_pool)


def _is_left(canary: _Canary, move: Move, route: Route | None) -> bool:
    if route is None or not _same(canary, route):
        return True
    had = canary.route.candidate_weight > 0
    return move.action == "rollback" and had and route.candidate_weight == 0


def _end(canary: _Canary, who: str, move: Move) -> dict[str, str]:
    """How a move that takes the candidate away ends its watch."""
    if who == WATCH and move.action == "abort":
        return {"state": "reverted", "why": canary.why}
    return {"state": "ended", "why": f"{move.action} by {who}"}


def _kept(canary: _Canary, now: float) -> Record:
    return KIND, canary.route.name, canary.record(now)


def _figures(judged: Judgement | None) -> list[dict[str, Any]]:
    return [] if judged is None else [_figure(finding) for finding in judged.findings]


def _figure(finding: Finding) -> dict[str, Any]:
    return {
        "metric": finding.threshold.metric,
        "limit": finding.threshold.limit,
        "margin": finding.threshold.margin,
        "stable": asdict(finding.stable),
        "candidate": asdict(finding.candidate),
        "verdict": finding.verdict,
    }

"""Keeps the rehearsals of a gateway: begins one at a time, shows it, stops it, keeps its record.

A rehearsal runs inside the gateway, so it ends and puts everything back also where whoever asked
for it has gone. It is written down before its first move: a gateway that dies in the middle takes
the route back when it starts again. Every move and the verdict are in the audit trail.
"""

import asyncio
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any

from gateway import __version__
from gateway.drains import Drains
from gateway.manifest import Record, abort_rules, opened
from gateway.manifest_desk import Desk
from gateway.manifest_fields import RecordError
from gateway.moves import RouteError, selected
from gateway.rehearsal_facts import limits_of
from gateway.rehearsal_run import Order, Run
from gateway.rehearsal_verdict import PASS, judge, sealed, unsealed, with_client
from gateway.route_record import route_view, table_digest
from gateway.routing import Route, RouteTable
from gateway.state import StateError
from gateway.steering import Extra, Move, Steering
from gateway.thresholds import ThresholdError, from_json
from gateway.warm_probe import engine_facts

__all__ = ["KIND", "Rehearsals"]

KIND = "rehearsal"
ACTION = "rehearse"
SHOWN = 50
_RECORD_KEYS = ("manifest", "launch_record", "accept_unverified")


class Rehearsals:
    """All rehearsals of a gateway. Call it on the loop.

    Args:
        steering: moves the routes; this follows it.
        drains: drain what a candidate still has.
        desk: has the rollback records.
    """

    def __init__(self, steering: Steering, drains: Drains, desk: Desk) -> None:
        self._steering, self._drains, self._desk = steering, drains, desk
        self._gateway, self._trail = steering.control.gateway, steering.control.trail
        self._run: Run | None = None
        self._task: asyncio.Task[None] | None = None
        self._last: dict[str, Any] = {}

    # -- as steering calls it --------------------------------------------------------------

    async def prepare(self, who: str, move: Move, before: RouteTable, after: RouteTable) -> Extra:
        """Nothing to refuse: people move routes also while they are rehearsed."""
        return Extra()

    def took_effect(self, who: str, move: Move, before: RouteTable, after: RouteTable) -> None:
        """Tell the rehearsal that runs, which is about one of these routes."""
        if self._run is not None:
            self._run.moved(who, move, before, after)

    def rows(self) -> dict[str, Any]:
        """Nothing: rehearsals have a page of their own."""
        return {}

    # -- looking ---------------------------------------------------------------------------

    async def view(self) -> dict[str, Any]:
        """The one that runs, and all that are kept, newest first; raises ``StateError``."""
        kept = await self._trail.get_all(KIND)
        rows = [_row(name, body) for name, body in kept.items()]
        if self._run is not None:
            rows = [self._running(self._run), *(r for r in rows if r["id"] != self._run.order.id)]
        return {"rehearsals": sorted(rows, key=lambda row: row["id"], reverse=True)[:SHOWN]}

    async def one(self, name: str) -> dict[str, Any]:
        """One whole: how it stands, what it said so far, and its record when it is over.

        Raises:
            RecordError: there is none of this name.
            StateError: it can't be read.
        """
        if self._run is not None and self._run.order.id == name:
            return {**self._running(self._run), "said": self._run.said, "record": None}
        if self._last.get("id") == name:
            return self._last
        body = (await self._trail.get_all(KIND)).get(name)
        if body is None:
            raise RecordError(f"rehearsal {name[:80]}: there is none")
        return {**_row(name, body), "said": body.get("said", []), "record": body.get("record")}

    def _running(self, run: Run) -> dict[str, Any]:
        said = run.said[-1]["said"] if run.said else ""
        return {**_head(run), "state": "running", "result": None, "why": said, "digest": None}

    # -- beginning and stopping ------------------------------------------------------------

    async def begin(self, who: str, asked: Mapping[str, Any]) -> dict[str, Any]:
        """Begin a rehearsal, or only check whether it could; it goes on by itself.

        Args:
            who: the operator.
            asked: as ``POST /admin/rehearsals`` has it.

        Raises:
            RouteError: it can't be, or another one runs; nothing was changed.
            StateError: the state can't be read.
        """
        if self._run is not None:
            raise RouteError(f"a rehearsal of {self._run.route.name} is running: stop it first")
        run, record = await self._made(who, asked)
        told = await run.look()
        answer = {"revision": told["revision"], "changed": told["changed"], "id": run.order.id}
        if asked.get("check"):
            return {**answer, "checked": True, "limits": asdict(run.order.limits)}
        if self._run is not None:
            raise RouteError("another rehearsal began meanwhile")
        self._run = run
        self._task = asyncio.get_running_loop().create_task(self._carried_out(run, asked, record))
        return {**answer, "checked": False}

    def stop(self, who: str, name: str) -> dict[str, Any]:
        """Have the one that runs go back at once; it is over when its state says so.

        Raises:
            RouteError: it does not run.
        """
        if self._run is None or self._run.order.id != name:
            raise RouteError(f"rehearsal {name[:80]}: does not run")
        self._run.stop(f"stopped by {who}")
        return self._running(self._run)

    async def keep(self, who: str, found: Any) -> dict[str, Any]:
        """Keep the record of a rehearsal to which its load's client has added what it saw.

        Raises:
            RecordError: it is no such record, or not of a rehearsal that is kept here.
            StateError: it can't be written.
        """
        record = unsealed(found)
        name = str(record.get("id"))
        body = (await self._trail.get_all(KIND)).get(name, {})
        had, client = body.get("record"), record.get("client")
        if had is None or had.get("digest") != record.get("parent"):
            raise RecordError(f"rehearsal {name[:80]}: parent: is not the record kept here")
        if not isinstance(client, Mapping) or with_client(had, client) != record:
            raise RecordError(f"rehearsal {name[:80]}: adds more than what its client saw")
        detail = {"id": name, "digest": record["digest"], "parent": record["parent"]}
        await self._trail.note(who, f"{ACTION}_record", record.get("route"), "", detail)
        await self._trail.put(KIND, name, {**body, "record": record})
        self._last = {}
        return {"id": name, "digest": record["digest"]}

    async def close(self) -> None:
        """Have the one that runs go back, and wait until it has."""
        if self._run is not None and self._task is not None:
            self._run.stop("the gateway ends")
            await self._task

    async def resume(self) -> None:
        """After a restart: take back the route of a rehearsal that the gateway did not survive.

        Raises:
            StateError: the state can't be read.
        """
        for name, body in (await self._trail.get_all(KIND)).items():
            if body.get("state") == "running":
                why = await self._taken_back(name, body)
                await self._kept(name, {**body, "state": "cut_off", "why": why})

    # -- making ----------------------------------------------------------------------------

    async def _made(self, who: str, asked: Mapping[str, Any]) -> tuple[Run, Record | None]:
        table = self._gateway.setup.table
        keys = selected(table, str(asked["route"]))
        if len(keys) > 1:
            names = ", ".join(table.routes[key].name for key in keys)
            raise RouteError(f"{asked['route']}: rehearse one route at a time: {names}")
        key, route = keys[0], table.routes[keys[0]]
        name = f"{_now():%Y%m%dT%H%M%S}-{secrets.token_hex(2)}"
        size = self._gateway.setup.settings.document.size[route.size_class]
        try:
            record = await self._record(asked)
            rules = () if record is None else from_json(abort_rules(record))
            limits = limits_of(rules, asked.get("limits") or {}, size.ttft_limit_s)
        except (RecordError, ThresholdError) as error:
            raise RouteError(f"{route.name}: {error}") from error
        order = Order(
            name, who, key, self._candidate(asked.get("to"), route),
            float(asked["weight"]) / 100.0, float(asked["hold_s"]), limits,
            asked.get("drain_deadline_s"), _options(asked, name),
        )  # fmt: skip
        return Run(self._steering, self._drains, order), record

    def _candidate(self, named: str | None, route: Route) -> str:
        pools = [p for p in self._gateway.parts.fleet.pools if p != route.stable_pool]
        named = named or route.candidate_pool or (pools[0] if len(pools) == 1 else None)
        if named is None:
            raise RouteError(f"{route.name}: name the pool to rehearse with ({', '.join(pools)})")
        return named

    async def _record(self, asked: Mapping[str, Any]) -> Record | None:
        manifest = asked.get("manifest")
        if manifest is None:
            return None
        return await self._desk.find(manifest) if isinstance(manifest, str) else opened(manifest)

    # -- one rehearsal ---------------------------------------------------------------------

    async def _carried_out(self, run: Run, asked: Mapping[str, Any], record: Record | None) -> None:
        body = {**_begun(run), "said": run.said}
        try:
            body |= await self._ended(run, asked, record)
        except (RouteError, StateError) as error:
            body |= {"state": "refused", "why": str(error)}
        except Exception as error:  # whatever it is: it is told, and no other is kept from running
            body |= {"state": "broken", "why": f"internal error: {type(error).__name__}"}
            self._gateway.parts.journal.fault(error, where=ACTION)
        row = _row(run.order.id, body)
        self._last = {**row, "said": run.said, "record": body.get("record")}
        try:
            await self._kept(run.order.id, body)
            await self._noted(run, row)
        finally:
            self._run = None

    async def _ended(
        self, run: Run, asked: Mapping[str, Any], record: Record | None
    ) -> dict[str, Any]:
        engines = await self._engines(run)

        async def may_begin() -> None:
            await self._trail.put(KIND, run.order.id, _begun(run))

        await run.carry_out(may_begin)
        judged = judge(run.observed(), run.order.limits)
        told = {**_told(run), "engines": engines, **_origin(asked, record, engines)}
        return {"state": "stopped" if run.stopped else "done", "record": sealed(told, judged)}

    async def _engines(self, run: Run) -> list[dict[str, Any]]:
        pools = self._gateway.parts.fleet.pools
        named = [(p, e) for p in (run.route.stable_pool, run.order.to) for e in pools.get(p, ())]
        ends = [self._gateway.parts.prober.endpoint(engine) for _, engine in named]
        found = await asyncio.gather(*(engine_facts(end) for end in ends))
        return [{"pool": pool, **told} for (pool, _), told in zip(named, found, strict=True)]

    async def _kept(self, name: str, body: Mapping[str, Any]) -> None:
        try:
            await self._trail.put(KIND, name, body)
        except StateError as error:
            self._not_written(name, error)

    async def _noted(self, run: Run, row: Mapping[str, Any]) -> None:
        detail = {key: row[key] for key in ("id", "state", "result", "digest")}
        told = {**detail, "route": run.route.name, "by": run.order.who, "why": row["why"]}
        self._gateway.parts.journal.event("rehearsal", **told)
        try:
            await self._trail.note(run.order.who, ACTION, run.route.name, row["why"], detail)
        except StateError as error:
            self._not_written(run.order.id, error)

    def _not_written(self, name: str, error: StateError) -> None:
        self._gateway.parts.journal.event(
            "state_not_written", what=f"rehearsal {name}", reason=str(error)
        )

    async def _taken_back(self, name: str, body: Mapping[str, Any]) -> str:
        table, why = self._gateway.setup.table, f"rehearsal {name}: "
        last = next((r for r in self._trail.history if r.why.startswith(why)), None)
        if last is None or last.revision != table.revision:
            return "the gateway ended meanwhile; the routes were moved by others since"
        again = f"{why}the gateway ended meanwhile"
        try:
            base, to, route = int(body["base_revision"]), body["to"], body["route"]
            if to in table.draining:
                await self._steering.change(body["by"], Move("undrain", pool=to, why=again))
            now = next(r for r in table.routes.values() if r.name == route)
            if route_view(now) != body["base"]:
                back = Move("rollback", route=route, to_revision=base, why=again)
                await self._steering.change(body["by"], back)
        except (RouteError, StateError, KeyError, ValueError) as error:
            return f"the gateway ended meanwhile; not taken back: {error}"
        return "the gateway ended meanwhile; the route was taken back at its start"


def _options(asked: Mapping[str, Any], name: str) -> dict[str, Any]:
    """What the canary's move says of the record it rests on."""
    if asked.get("manifest") is None or not asked.get("verify", True):
        return {"without_record": f"rehearsal {name}"}
    return {key: asked[key] for key in _RECORD_KEYS if key in asked}


def _head(run: Run) -> dict[str, Any]:
    at = datetime.strptime(run.order.id[:15], "%Y%m%dT%H%M%S").replace(tzinfo=UTC)
    return {"id": run.order.id, "route": run.route.name, "to": run.order.to, "by": run.order.who,
            "at": at.isoformat()}  # fmt: skip


def _begun(run: Run) -> dict[str, Any]:
    base = {"base_revision": run.base.revision, "base": route_view(run.route)}
    return {**_head(run), "state": "running", **base}


def _told(run: Run) -> dict[str, Any]:
    """What the record says beside what was seen."""
    order, gateway = run.order, run.gateway
    return {
        **_head(run),
        "ended_at": _now().isoformat(timespec="seconds"),
        "gateway_version": __version__,
        "config_digest": gateway.setup.settings.digest(),
        "baseline": run.route.stable_pool,
        "weight": round(order.weight * 100, 6),
        "hold_s": order.hold_s,
        "limits": asdict(order.limits),
        "revisions": {"before": run.base.revision, **run.revisions},
        "table_digest": {
            "before": table_digest(run.base), "after": table_digest(gateway.setup.table),
        },
        "capacity": None if run.capacity is None else asdict(run.capacity),
        "probes": {when: [asdict(p) for p in found] for when, found in run.probes.items()},
        "drain": {"drained": run.observed().drained, "ended": run.observed().ended},
        "progress": run.said,
    }  # fmt: skip


def _origin(
    asked: Mapping[str, Any], record: Record | None, engines: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    return {
        "why_asked": asked.get("why") or "",
        "load": asked.get("load") or {"kind": "the traffic that was there"},
        "manifest": None if record is None else record.digest,
        "synthetic": any(engine["synthetic"] for engine in engines),
    }


def _row(name: str, body: Mapping[str, Any]) -> dict[str, Any]:
    """One in brief, as operators see it."""
    record = body.get("record") or {}
    result, why = record.get("verdict"), body.get("why") or "; ".join(record.get("why", ()))
    keys = ("route", "to", "by", "at", "state")
    more = {"result": result, "why": why, "digest": record.get("digest")}
    return {"id": name, **{key: body.get(key) for key in keys}, **more, "passed": result == PASS}


def _now() -> datetime:
    return datetime.now(UTC)

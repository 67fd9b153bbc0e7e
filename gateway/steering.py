"""Moves traffic of a running gateway: one move at a time, committed, then in force at once.

A move names the revision that it is based on, so two operators can't overwrite each other. What it
brings about is checked whole (``moves``, ``table_rules``, the health of where traffic would go)
before it is committed; then it takes effect in one step of the loop. What waits follows a route;
what runs stays. ``followers`` watch and drain: they are asked before and told after.
"""

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from gateway import moves
from gateway.audit import AuditEntry
from gateway.control import Control
from gateway.domain import MisuseError
from gateway.lease import EngineView
from gateway.moves import RouteError
from gateway.orders import Move, PoolMove, note_of, ordered
from gateway.route_record import changes, route_view, table_digest
from gateway.routing import Route, RouteTable, serving
from gateway.state import Record
from gateway.table_rules import table_faults
from gateway.trail import Draft

__all__ = ["Extra", "Follower", "Move", "StaleTableError", "Steering"]

_ONWARD = frozenset({"flip", "canary", "promote"})


class StaleTableError(Exception):
    """Somebody else moved first: ``told`` says the revision in force, by whom and by what."""

    def __init__(self, told: Mapping[str, Any]) -> None:
        super().__init__(
            f"the routes are at revision {told['revision']} now ({told['action']} by "
            f"{told['by']}): look again, then decide"
        )
        self.told = told


@dataclass(frozen=True, slots=True)
class Extra:
    """What a follower adds to a change: to its audit entry, and to its transaction.

    ``then`` is called in the step in which the move takes effect, before ``took_effect``.
    """

    detail: Mapping[str, Any] = field(default_factory=dict)
    records: tuple[Record, ...] = ()
    then: Callable[[], None] | None = None


@dataclass(frozen=True, slots=True)
class _Planned:
    """A move that was looked at whole, and what it changes."""

    before: RouteTable
    told: Mapping[str, Any]
    draft: Draft
    extras: Sequence[Extra]


class Follower(Protocol):
    """Takes part in every move."""

    async def prepare(self, who: str, move: Move, before: RouteTable, after: RouteTable) -> Extra:
        """Refuse (``RouteError``), or say what is to be written with it. Nothing may change yet.

        It may take its time. Several moves may be looked at at once; one that is looked at need
        not come, and is looked at again if something changed: keep nothing of it but in ``then``.
        """

    def took_effect(self, who: str, move: Move, before: RouteTable, after: RouteTable) -> None:
        """The move is in force, in this step of the loop."""

    def rows(self) -> dict[str, Any]:
        """What ``GET /admin/routes`` shows of it."""


class Steering:
    """Changes the route table of a gateway. Call it on the loop.

    Args:
        control: puts tables in force; it has the committed ones.
    """

    def __init__(self, control: Control) -> None:
        self.followers: list[Follower] = []
        self.control = control
        self._gateway = control.gateway
        self._tasks: set[asyncio.Task[dict[str, Any]]] = set()

    # -- looking ---------------------------------------------------------------------------

    def view(self) -> dict[str, Any]:
        """The routes, the pools behind them, and how they came to be so."""
        table, trail = self._table, self.control.trail
        rows: dict[str, Any] = {"drains": [], "watches": []}
        for follower in self.followers:
            rows |= follower.rows()
        return {
            "revision": table.revision,
            "table_digest": table_digest(table),
            "state": trail.standing,
            "state_fault": trail.state.fault,
            "routes": [route_view(r, table.draining) for r in table.routes.values()],
            "pools": self._pools(),
            **rows,
            "history": trail.moves(),
        }

    def _pools(self) -> dict[str, Any]:
        views, draining = self._views(), self._table.draining
        return {
            pool: {
                "draining": pool in draining,
                "engines": [
                    {
                        "engine": name,
                        "usable": view.usable,
                        "running": view.slots,
                        "slots": view.slot_limit,
                        "prefill_tokens": view.prefill_tokens,
                        "draining": pool in draining,
                    }
                    for name in engines
                    if (view := views.get(name)) is not None
                ],
            }
            for pool, engines in self._gateway.parts.fleet.pools.items()
        }

    def _views(self) -> dict[str, EngineView]:
        return {view.engine: view for view in self._gateway.parts.turnstile.core.engine_views()}

    @property
    def _table(self) -> RouteTable:
        return self._gateway.setup.table

    # -- moving ----------------------------------------------------------------------------

    async def change(self, who: str, move: Move) -> dict[str, Any]:
        """Make a move, or only check it; returns what changes, and the revision then in force.

        Once begun it is carried out whole, also if the caller is cancelled.

        Raises:
            RouteError: it can't be made; nothing was changed.
            StaleTableError: the routes are at another revision.
            StateError: it could not be committed; nothing was changed.
        """
        task = asyncio.get_running_loop().create_task(self._change(who, move))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return await asyncio.shield(task)

    async def change_pool(self, who: str, move: PoolMove) -> dict[str, Any]:
        """Give a pool other engines, until its keys change or the gateway restarts; or only check.

        Raises:
            RouteError: they can't be; nothing was changed.
            StaleTableError: the routes are at another revision.
            StateError: it could not be written down; nothing was changed.
        """
        async with self.control.changing:
            fleet, revision = self._gateway.parts.fleet, self._table.revision
            if move.revision not in {None, revision}:
                raise StaleTableError(self._told())
            self._check_pool(move)
            change = {
                "pool": move.pool,
                "before": {"engines": list(fleet.pools[move.pool])},
                "after": {"engines": list(move.engines)},
            }
            if not move.check:
                detail = {"changed": [change]}
                await self.control.trail.note(who, "pool", move.pool, move.why, detail)
                await fleet.change_pool(move.pool, move.engines)
            return {"revision": revision, "changed": [change], "checked": move.check}

    def _check_pool(self, move: PoolMove) -> None:
        fleet = self._gateway.parts.fleet
        try:
            fleet.check_pool(move.pool, move.engines)
        except ValueError as error:
            raise RouteError(str(error)) from error
        for reason in _shared(
            self._table.routes.values(), {**fleet.pools, move.pool: move.engines}
        ):
            raise RouteError(reason)

    async def audit(self, limit: int) -> dict[str, Any]:
        """The last entries of the audit trail, newest first; raises ``StateError``."""
        return await self.control.trail.audit(limit)

    async def _change(self, who: str, move: Move) -> dict[str, Any]:
        while True:
            setup, pools = self._gateway.setup, dict(self._gateway.parts.fleet.pools)
            planned = await self._plan(who, move, setup.table)
            if move.check:
                revision = setup.table.revision
                return {
                    "revision": revision,
                    "checked": True,
                    "action": move.action,
                    **planned.told,
                }
            async with self.control.changing:
                # What was looked at may have changed meanwhile: then all is looked at again.
                if self._gateway.setup is setup and self._gateway.parts.fleet.pools == pools:
                    return await self._carry_out(who, move, planned)

    async def _plan(self, who: str, move: Move, before: RouteTable) -> _Planned:
        """Look at everything; nobody is kept from moving for as long as that takes."""
        if move.revision not in {None, before.revision}:
            raise StaleTableError(self._told())
        after = await self._moved(before, move)
        self._check(before, after)
        unfit = list(self._unfit(before, after))
        if unfit and move.action in _ONWARD and not move.force:
            raise RouteError(f"{unfit[0]} (force goes there all the same)")
        extras = [await f.prepare(who, move, before, after) for f in self.followers]
        warnings = [*unfit, *self._aliases(before, after), *_out_of_use(before, after)]
        told = {"changed": changes(before, after), "warnings": warnings}
        note = note_of(who, move, (before, after), _detail(move, told, extras))
        records = tuple(record for extra in extras for record in extra.records)
        return _Planned(before, told, Draft(after, note, records=records), extras)

    async def _carry_out(self, who: str, move: Move, planned: _Planned) -> dict[str, Any]:
        before, draft, after = planned.before, planned.draft, planned.draft.table
        entry = await self.control.trail.commit(draft)
        await self._take_effect(draft)
        for extra in planned.extras:
            if extra.then is not None:
                extra.then()
        for follower in self.followers:
            follower.took_effect(who, move, before, after)
        self._log(entry, after)
        return {
            "revision": after.revision, "table_digest": table_digest(after), "checked": False,
            "action": move.action, **planned.told, "audit": entry.digest,
        }  # fmt: skip

    async def _moved(self, before: RouteTable, move: Move) -> RouteTable:
        pools = moves.pool_facts(self._gateway.setup.settings.document)
        if move.action == "rollback":
            return await self._rolled_back(before, move, pools)
        return ordered(before, move, pools)

    async def _rolled_back(self, before: RouteTable, move: Move, pools: moves.Pools) -> RouteTable:
        keys = None if move.route is None else moves.selected(before, move.route)
        if move.to_revision is None:
            history = await self.control.trail.tables(before)
            return moves.rollback(before, moves.previous(before, history, keys), pools)
        earlier = await self.control.trail.table(move.to_revision, before)
        if earlier is None or earlier.revision >= before.revision:
            raise RouteError(
                f"to_revision: there is no revision {move.to_revision} before this one"
            )
        back = {key: earlier.routes[key] for key in keys or before.routes if key in earlier.routes}
        return moves.rollback(before, back, pools, earlier.draining)

    def _check(self, before: RouteTable, after: RouteTable) -> None:
        """Refuse what the configuration could not have said itself, or the engines not bear."""
        settings = self._gateway.setup.settings
        document, limits = settings.document, settings.pool_limits
        for key, reason in table_faults(document, settings.flows, limits, after):
            raise RouteError(f"{_named(key, after)}: {reason}")
        fault = self.control.route_fault(after)
        if fault is not None:
            raise RouteError(fault)
        pools = self._gateway.parts.fleet.pools
        for route, pool in moves.unknown_pools(after, pools):
            raise RouteError(f"{route}: pool {pool!r}: is not there")
        for reason in _shared(_fresh_canaries(before, after), pools):
            raise RouteError(reason)

    def _aliases(self, before: RouteTable, after: RouteTable) -> Iterator[str]:
        """Canaries on engines that seem to be the stable side's under another name.

        Never a reason to refuse: processes that began together may look alike for a while.
        """
        fleet = self._gateway.parts.fleet
        for route in _fresh_canaries(before, after):
            stable = set(fleet.pools[route.stable_pool])
            for engine in fleet.pools[route.candidate_pool or ""]:
                for other in stable & set(fleet.same_as(engine)):
                    at = f"pool {route.stable_pool!r}"
                    yield f"{route.name}: {engine} seems to be {other} of {at}"

    def _unfit(self, before: RouteTable, after: RouteTable) -> Iterator[str]:
        """Why pools that get traffic now, and did not before, can't take it."""
        views, pools = self._views(), self._gateway.parts.fleet.pools
        for key, route in after.routes.items():
            old = before.routes[key]
            pools_now = (route.stable_pool, route.candidate_pool) if route != old else ()
            for pool in {p for p in pools_now if p is not None and p != old.stable_pool}:
                usable = [v for e in pools.get(pool, ()) if (v := views.get(e)) and v.usable]
                if not usable:
                    yield f"{route.name}: pool {pool!r}: no engine of it is up"
                elif all(_is_full(view) for view in usable):
                    yield f"{route.name}: pool {pool!r}: every engine of it is full"

    async def _take_effect(self, draft: Draft) -> None:
        try:
            self.control.steer(draft.table)
        except MisuseError as error:
            await self.control.take_back(draft, str(error))
            raise RouteError(f"it did not take effect, and was taken back: {error}") from error

    def _told(self) -> dict[str, Any]:
        last, revision = self.control.trail.last, self._table.revision
        by, action = (last.who, last.action) if last else ("", "")
        return {"revision": revision, "by": by, "action": action}

    def _log(self, entry: AuditEntry, after: RouteTable) -> None:
        self._gateway.parts.journal.event(
            "admin_change",
            who=entry.who,
            action=entry.action,
            route=entry.route,
            revision=after.revision,
            why=entry.why,
            changed=entry.detail["changed"],
            audit=entry.digest,
        )


def _detail(move: Move, told: Mapping[str, Any], extras: Iterable[Extra]) -> dict[str, Any]:
    detail = {**told, **({"force": True} if move.force else {})}
    if move.deadline_s is not None:
        detail["deadline_s"] = move.deadline_s
    for extra in extras:
        detail |= extra.detail
    return detail


def _fresh_canaries(before: RouteTable, after: RouteTable) -> list[Route]:
    known = set(before.routes.values())
    return [r for r in after.routes.values() if r.candidate_pool is not None and r not in known]


def _out_of_use(before: RouteTable, after: RouteTable) -> Iterator[str]:
    """What a drain means for routes that lose their stable pool by it, or everything."""
    for route in after.routes.values():
        then, now = (serving(route, table.draining) for table in (before, after))
        if now.draining and not then.draining:
            yield f"{route.name}: its requests are refused as draining"
        elif route.stable_pool != now.stable_pool != then.stable_pool:
            yield f"{route.name}: all of its callers go to its candidate, which is not watched then"


def _shared(routes: Iterable[Route], pools: Mapping[str, Sequence[str]]) -> Iterator[str]:
    """Canaries on engines that the stable side has too."""
    for route in (r for r in routes if r.candidate_pool is not None):
        for engine in set(pools[route.stable_pool]) & set(pools[route.candidate_pool or ""]):
            yield (
                f"{route.name}: pool {route.candidate_pool!r}: {engine} is an engine of "
                f"pool {route.stable_pool!r} too"
            )


def _named(key: str, table: RouteTable) -> str:
    """A fault's place: ``route[2].candidate_pool`` is the second route of the table."""
    word, _, rest = key.partition("[")
    number, bracket, below = rest.partition("]")
    if word != "route" or not bracket:
        return key
    return f"{list(table.routes.values())[int(number) - 1].name}{below}"


def _is_full(view: EngineView) -> bool:
    return view.slots >= view.slot_limit or view.prefill_tokens >= view.prefill_limit

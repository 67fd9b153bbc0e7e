"""Decides what becomes of a route table when an operator moves traffic.

Each move is a function from a table to the next, one revision later, or ``RouteError``, which names
route, pool and reason: then nothing is changed. A route pins the model revision and the data region
of its stable pool, so no move leads to a pool that differs: an incident does not authorise another
model or region. Weights are fractions. Pure: no I/O, no clock.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from math import isfinite
from types import MappingProxyType

from gateway import schema
from gateway.routing import Route, RouteTable

__all__ = [
    "Key",
    "PoolFacts",
    "Pools",
    "RouteError",
    "abort",
    "canary",
    "configured",
    "drain",
    "flip",
    "pool_facts",
    "previous",
    "promote",
    "rollback",
    "selected",
    "undrain",
    "unknown_pools",
]

Key = tuple[str, str]


class RouteError(Exception):
    """A move can't be made; the message begins with the route or pool that is at fault."""


@dataclass(frozen=True, slots=True)
class PoolFacts:
    """What a pool is known to be. ``models`` are the public ones it serves, ``None`` for any."""

    models: frozenset[str] | None = None
    model_revision: str | None = None
    data_region: str | None = None


Pools = Mapping[str, PoolFacts]
Routes = Mapping[Key, Route]


def pool_facts(document: schema.Document) -> dict[str, PoolFacts]:
    """The pools of a configuration.

    One that doesn't say which models it serves has those of the routes that name it; any where
    none does.
    """
    routed: dict[str, set[str]] = {}
    for route in document.route:
        for pool in (route.pool, route.candidate_pool):
            routed.setdefault(pool or "", set()).add(route.model)
    return {
        name: PoolFacts(
            frozenset(pool.models or routed.get(name, set())) or None,
            pool.model_revision,
            pool.data_region,
        )
        for name, pool in document.pool.items()
    }


def selected(table: RouteTable, name: str) -> tuple[Key, ...]:
    """The routes that ``name`` means: MODEL/SIZE is one, MODEL all of its sizes.

    Raises:
        RouteError: there is none.
    """
    found = tuple(key for key, route in table.routes.items() if route.name == name)
    found = found or tuple(key for key in table.routes if key[0] == name)
    if not found:
        known = ", ".join(route.name for route in table.routes.values())
        raise RouteError(f"{name[:200]}: there is no such route (known: {known})")
    return found


def unknown_pools(table: RouteTable, pools: Iterable[str]) -> Iterator[tuple[str, str]]:
    """The (route, pool) pairs of the table whose pool is none of ``pools``."""
    known = set(pools)
    for route in table.routes.values():
        for pool in _pools_of(route):
            if pool not in known:
                yield route.name, pool


# -- moves ---------------------------------------------------------------------------------


def flip(table: RouteTable, keys: Iterable[Key], to: str | None, pools: Pools) -> RouteTable:
    """All of the routes' requests go to ``to``, or to their candidates; no candidate is left.

    Raises:
        RouteError: a route has no candidate, goes there already, or may not go there.
    """

    def moved(route: Route) -> Route:
        target = to or route.candidate_pool
        if target is None:
            raise RouteError(f"{route.name}: has no candidate: name the pool to flip to")
        if target == route.stable_pool:
            raise RouteError(f"{route.name}: pool {target!r}: is its stable pool already")
        _check(table, route, target, pools)
        return _settled(route, target)

    return _moved(table, keys, moved)


def promote(table: RouteTable, keys: Iterable[Key], pools: Pools) -> RouteTable:
    """The routes' candidates become their stable pools.

    Raises:
        RouteError: a route has no candidate, or may not go there.
    """

    def moved(route: Route) -> Route:
        target = _candidate(route)
        _check(table, route, target, pools)
        return _settled(route, target)

    return _moved(table, keys, moved)


def canary(
    table: RouteTable, keys: Iterable[Key], to: str | None, weight: float, pools: Pools
) -> RouteTable:
    """The part ``weight`` of the routes' callers goes to ``to``, or to the candidate there is.

    Raises:
        RouteError: the weight can't be, or a route may not go there or is there already.
    """
    if not isfinite(weight) or not 0.0 <= weight <= 1.0:
        raise RouteError(f"weight: must be from 0 to 100 percent, not {weight * 100:g}")

    def moved(route: Route) -> Route:
        target = to or _candidate(route)
        if target == route.stable_pool:
            raise RouteError(f"{route.name}: pool {target!r}: is its stable pool, and no canary")
        _check(table, route, target, pools)
        return replace(route, candidate_pool=target, candidate_weight=weight)

    return _moved(table, keys, moved)


def abort(table: RouteTable, keys: Iterable[Key]) -> RouteTable:
    """The routes' candidates are taken away; all goes to the stable pools.

    Raises:
        RouteError: a route has no candidate.
    """

    def moved(route: Route) -> Route:
        _candidate(route)
        return replace(route, candidate_pool=None, candidate_weight=0.0)

    return _moved(table, keys, moved)


def rollback(
    table: RouteTable,
    back: Routes,
    pools: Pools,
    drained: frozenset[str] = frozenset(),
) -> RouteTable:
    """The routes ``back`` are as they were; pools and routes that come back into use are undrained.

    How admission treats a route stays as it is configured now.

    Args:
        table: the table in force.
        back: earlier values of some of its routes, as ``previous`` finds them.
        pools: the configured pools.
        drained: what drained then as well, and goes on draining.

    Raises:
        RouteError: a route is gone, may not go where it went, or nothing differs.
    """
    for key, old in back.items():
        route = table.routes.get(key)
        if route is None:
            raise RouteError(f"{old.name}: is not configured any more")
        for pool in _pools_of(old):
            _check_pins(route, pool, pools)
    restored = {key: replace(old, mode=table.routes[key].mode) for key, old in back.items()}
    changed = [route for key, route in restored.items() if route != table.routes[key]]
    if not changed:
        raise RouteError(f"{_names(back.values())}: nothing would change")
    used = {name for route in changed for name in (*_pools_of(route), route.name)}
    return replace(
        table,
        revision=table.revision + 1,
        routes=MappingProxyType({**table.routes, **restored}),
        draining=table.draining - (used - drained),
    )


def previous(
    table: RouteTable, history: Iterable[RouteTable], keys: Iterable[Key] | None = None
) -> dict[Key, Route]:
    """What routes were before their pools changed last, with no canary in force.

    A restored route carries the revision of its old pair, so asking again leads further back.

    Args:
        table: the table in force.
        history: the tables before it, newest first; it may be among them.
        keys: the routes in question; None: those whose pools changed last.

    Raises:
        RouteError: one has no such state, or it leads where the route goes now.
    """
    tables = tuple(history)
    oldest = tables[-1] if tables else table
    # Then no revision that could be named differs either.
    if oldest.revision == 1 and all(earlier.routes == table.routes for earlier in tables):
        raise RouteError("no route has moved yet: there is nothing to go back to")
    latest = max(route.since for route in table.routes.values())
    asked = keys or [key for key, route in table.routes.items() if route.since == latest]
    return {key: _before(table.routes[key], key, tables) for key in asked}


def _before(route: Route, key: Key, tables: Iterable[RouteTable]) -> Route:
    for earlier in tables:
        old = earlier.routes.get(key)
        if old is None or old.since >= route.since or old.candidate_weight > 0:
            continue
        if (old.stable_pool, route.candidate_weight) == (route.stable_pool, 0.0):
            break
        return old
    raise RouteError(
        f"{route.name}: there is no earlier state to go back to under this configuration: "
        "name a revision"
    )


def drain(table: RouteTable, names: Iterable[str], pools: Pools) -> RouteTable:
    """The pools or routes named get no new work.

    Raises:
        RouteError: one is unknown, or drains already.
    """
    names = frozenset(names)
    for name in sorted(names):
        _known(table, name, pools)
        if name in table.draining:
            raise RouteError(f"{name}: is draining already")
    return replace(table, revision=table.revision + 1, draining=table.draining | names)


def undrain(table: RouteTable, names: Iterable[str], pools: Pools) -> RouteTable:
    """The pools or routes named get work again.

    Raises:
        RouteError: one is unknown, or does not drain.
    """
    names = frozenset(names)
    for name in sorted(names):
        _known(table, name, pools)
        if name not in table.draining:
            raise RouteError(f"{name}: is not draining")
    return replace(table, revision=table.revision + 1, draining=table.draining - names)


def configured(before: RouteTable | None, fresh: RouteTable, pools: Iterable[str]) -> RouteTable:
    """The table that a configuration brings: its own routes, one revision after ``before``.

    Callers keep their arms where a route's pools stay; what drains goes on draining.

    Args:
        before: the table in force, if any.
        fresh: the routes as configured.
        pools: the names of the configured pools.
    """
    revision = 1 if before is None else before.revision + 1
    old: Routes = {} if before is None else before.routes
    routes = {key: _since(route, old.get(key), revision) for key, route in fresh.routes.items()}
    known = {*pools, *(route.name for route in routes.values())}
    return replace(
        fresh,
        revision=revision,
        salt=fresh.salt if before is None else before.salt,
        routes=MappingProxyType(routes),
        draining=frozenset() if before is None else before.draining & known,
    )


# -- parts ---------------------------------------------------------------------------------


def _moved(table: RouteTable, keys: Iterable[Key], move: Callable[[Route], Route]) -> RouteTable:
    revision, routes, keys = table.revision + 1, dict(table.routes), tuple(keys)
    for key in keys:
        routes[key] = _since(move(table.routes[key]), table.routes[key], revision)
    if routes == table.routes:
        raise RouteError(f"{_names(table.routes[key] for key in keys)}: nothing would change")
    return replace(table, revision=revision, routes=MappingProxyType(routes))


def _since(route: Route, before: Route | None, revision: int) -> Route:
    """The route with the revision in which its pair of pools came."""
    pair = (route.stable_pool, route.candidate_pool)
    if before is not None and pair == (before.stable_pool, before.candidate_pool):
        return replace(route, since=before.since)
    return replace(route, since=revision)


def _settled(route: Route, pool: str) -> Route:
    return replace(
        route,
        stable_pool=pool,
        candidate_pool=None,
        candidate_weight=0.0,
        previous_pool=route.stable_pool,
    )


def _names(routes: Iterable[Route]) -> str:
    return ", ".join(route.name for route in routes)


def _candidate(route: Route) -> str:
    if route.candidate_pool is None:
        raise RouteError(f"{route.name}: has no candidate")
    return route.candidate_pool


def _pools_of(route: Route) -> tuple[str, ...]:
    return tuple(pool for pool in (route.stable_pool, route.candidate_pool) if pool is not None)


def _check(table: RouteTable, route: Route, pool: str, pools: Pools) -> None:
    _check_pins(route, pool, pools)
    if pool in table.draining:
        raise RouteError(f"{route.name}: pool {pool!r}: is draining (undrain it first)")


def _check_pins(route: Route, pool: str, pools: Pools) -> None:
    at = f"{route.name}: pool {pool!r}"
    facts, pinned = pools.get(pool), pools.get(route.stable_pool, PoolFacts())
    if facts is None:
        raise RouteError(f"{at}: is not configured (known: {', '.join(pools)})")
    if facts.models is not None and route.model not in facts.models:
        raise RouteError(f"{at}: serves {', '.join(sorted(facts.models))} (pool.{pool}.models)")
    for key in ("model_revision", "data_region"):
        has, wanted = getattr(facts, key), getattr(pinned, key)
        if has != wanted:
            raise RouteError(
                f"{at}: its {key} is {has or 'not given'}, and the route pins "
                f"{wanted or 'none'} (of pool {route.stable_pool!r})"
            )


def _known(table: RouteTable, name: str, pools: Pools) -> None:
    if name not in pools and name not in {route.name for route in table.routes.values()}:
        raise RouteError(f"{name[:200]}: there is no such pool or route")

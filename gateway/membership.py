"""Decides which engines each pool has, under which names, and what may be outstanding on each.

A pool's members are addresses by engine name. An engine that the configuration names is called by
its address; one that was looked up has one of its pool's own names. Pure: no I/O, no clock.
"""

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType

from pydantic import ValidationError

from gateway import schema
from gateway.domain import EngineLimits
from gateway.replicas import share_all
from gateway.routing import Route, RouteTable
from gateway.verdicts import Topology

__all__ = [
    "Members",
    "carried",
    "engines_of",
    "limits_of",
    "named",
    "topology",
    "users_of",
    "with_engines",
]

Members = Mapping[str, Mapping[str, str]]


def named(document: schema.Document) -> dict[str, Mapping[str, str]]:
    """The members as the configuration names them; those behind a name are not known yet."""
    return {
        name: MappingProxyType({engine: engine for engine in pool.engines})
        for name, pool in document.pool.items()
    }


def carried(before: schema.Document, members: Members, after: schema.Document) -> Members:
    """The members under another configuration: where a pool's own keys stay, so do its engines."""
    found: dict[str, Mapping[str, str]] = named(after)
    for name in found.keys() & before.pool.keys():
        old, new = before.pool[name], after.pool[name]
        if (old.engines, old.dns) == (new.engines, new.dns):
            found[name] = MappingProxyType(
                dict(list(members.get(name, {}).items())[: new.engine_bound])
            )
    return found


def with_engines(
    document: schema.Document, members: Members, pool: str, engines: Sequence[str]
) -> Members:
    """The members if an operator gives ``pool`` these engines.

    Raises:
        ValueError: the pool or the addresses can't be; the message says why.
    """
    section = document.pool.get(pool)
    if section is None:
        raise ValueError(f"no pool {pool!r} is configured")
    if section.dns is not None:
        raise ValueError(f"pool {pool!r} has the engines of {section.dns}")
    if not engines or len(set(engines)) < len(engines):
        raise ValueError(f"pool {pool!r}: name each engine once, and at least one")
    if len(engines) > section.engine_bound:
        raise ValueError(
            f"pool {pool!r} may have {section.engine_bound} engines (pool.{pool}.max_engines)"
        )
    try:
        schema.Pool.model_validate({"engines": tuple(engines)})
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        raise ValueError(f"pool {pool!r}: {first['input']!r}: {first['msg']}") from error
    return {**members, pool: MappingProxyType({engine: engine for engine in engines})}


def engines_of(members: Members) -> dict[str, str]:
    """Every engine's address by name."""
    return {engine: address for pool in members.values() for engine, address in pool.items()}


def topology(table: RouteTable, members: Members, limits: Mapping[str, EngineLimits]) -> Topology:
    """What the admission core needs to know of engines, pools and routes."""
    pools = {name: tuple(engines) for name, engines in members.items()}
    return Topology(limits, pools, table.views())


def users_of(members: Members, routes: Iterable[Route]) -> dict[str, set[tuple[str, str]]]:
    """By engine, the (model, size class) pairs whose routes lead there."""
    found: dict[str, set[tuple[str, str]]] = {engine: set() for engine in engines_of(members)}
    for route in routes:
        for pool in (route.stable_pool, route.candidate_pool):
            for engine in members.get(pool or "", {}):
                found[engine].add((route.model, route.size_class))
    return found


def limits_of(
    pools: Mapping[str, EngineLimits],
    members: Members,
    routes: Iterable[Route],
    replica: tuple[int, int],
) -> dict[str, EngineLimits]:
    """What this gateway may have outstanding on each engine, by name.

    Args:
        pools: the limits of a whole engine of each pool.
        members: the engines.
        routes: all routes; they say which size classes an engine serves.
        replica: which one this is, from 0, and how many there are.
    """
    # Replicas know an engine by its address: each may have given it another name.
    mine = share_all(_whole(pools, members), *replica, _served(members, routes))
    return {engine: mine[address] for engine, address in engines_of(members).items()}


def _whole(pools: Mapping[str, EngineLimits], members: Members) -> dict[str, EngineLimits]:
    """The limits of whole engines by address."""
    return {a: pools[pool] for pool, here in members.items() for a in here.values()}


def _served(members: Members, routes: Iterable[Route]) -> dict[str, set[str]]:
    """The addresses of the engines that serve each size class."""
    addresses = engines_of(members)
    served: dict[str, set[str]] = {}
    for engine, users in users_of(members, routes).items():
        for _, size in users:
            served.setdefault(size, set()).add(addresses[engine])
    return served

"""Says how a route table is written: as the state keeps it, and as operators see it.

Operators see weights in percent; the state keeps fractions. Pure: no I/O, no clock.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from gateway.audit import digest_of
from gateway.domain import AdmissionMode
from gateway.routing import ModelName, Route, RouteTable

__all__ = [
    "changes",
    "kept",
    "read_back",
    "route_view",
    "routes_digest",
    "table_digest",
    "touched",
]


def kept(table: RouteTable) -> dict[str, Any]:
    """The table as the state keeps it: all but salt, names of models, and revision."""
    return {
        "routes": [
            {
                "model": route.model,
                "size_class": route.size_class,
                "stable_pool": route.stable_pool,
                "candidate_pool": route.candidate_pool,
                "candidate_weight": route.candidate_weight,
                "mode": route.mode.value,
                "since": route.since,
                "previous_pool": route.previous_pool,
            }
            for route in table.routes.values()
        ],
        "draining": sorted(table.draining),
    }


def read_back(
    body: Mapping[str, Any], revision: int, salt: bytes, models: Mapping[str, ModelName]
) -> RouteTable:
    """The table that ``kept`` wrote.

    Raises:
        ValueError: it did not write this.
    """
    try:
        routes = [Route(**{**row, "mode": AdmissionMode(row["mode"])}) for row in body["routes"]]
        draining = frozenset(body["draining"])
    except (KeyError, TypeError) as error:
        raise ValueError(f"revision {revision} is no route table: {error}") from error
    by_key = {(route.model, route.size_class): route for route in routes}
    return RouteTable(revision, salt, MappingProxyType(by_key), models, draining)


def route_view(route: Route, draining: frozenset[str] = frozenset()) -> dict[str, Any]:
    """One route as operators see it."""
    return {
        "route": route.name,
        "model": route.model,
        "size_class": route.size_class,
        **_targets(route),
        "admission": route.mode.value,
        "previous": route.previous_pool,
        "draining": route.name in draining,
    }


def changes(before: RouteTable, after: RouteTable) -> list[dict[str, Any]]:
    """What differs: routes by their targets, then what began or ceased to drain."""
    found: list[dict[str, Any]] = [
        {"route": route.name, "before": _targets(old), "after": _targets(route)}
        for key, route in after.routes.items()
        if (old := before.routes.get(key, route)) != route
    ]
    names = {route.name for route in after.routes.values()}
    return found + [
        {
            "route" if name in names else "pool": name,
            "before": {"draining": name in before.draining},
            "after": {"draining": name in after.draining},
        }
        for name in sorted(before.draining ^ after.draining)
    ]


def touched(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    """The routes and pools in which two tables differ, by name; both as ``kept`` wrote them."""
    old, new = _kept_routes(before), _kept_routes(after)
    routes = [name for name in {**old, **new} if old.get(name) != new.get(name)]
    drains = set(before["draining"]) ^ set(after["draining"])
    return routes + sorted(drains - set(routes))


def _kept_routes(body: Mapping[str, Any]) -> dict[str, Any]:
    told = ("stable_pool", "candidate_pool", "candidate_weight", "mode")
    return {
        f"{row['model']}/{row['size_class']}": [row[key] for key in told] for row in body["routes"]
    }


def table_digest(table: RouteTable) -> str:
    """SHA-256 of where requests go now: alike on gateways that route alike."""
    targets = {route.name: _targets(route) for route in table.routes.values()}
    return digest_of({"routes": targets, "draining": sorted(table.draining)})


def routes_digest(routes: Mapping[tuple[str, str], Route]) -> str:
    """SHA-256 of routes as configured; tells whether a configuration's routes were edited."""
    told = [[r.name, _targets(r), r.mode.value] for r in routes.values()]
    return digest_of(sorted(told, key=lambda row: str(row[0])))


def _targets(route: Route) -> dict[str, Any]:
    return {
        "stable": route.stable_pool,
        "candidate": route.candidate_pool,
        "candidate_weight": round(route.candidate_weight * 100, 6),
    }

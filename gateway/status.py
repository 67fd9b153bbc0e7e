"""Says what state the gateway is in: ready or not, and everything an operator may look at."""

from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import Any

from gateway.app import Gateway
from gateway.health import EngineHealth
from gateway.routing import serving

__all__ = ["readiness", "status", "usage"]


def readiness(gateway: Gateway) -> dict[str, Any]:
    """Whether load balancers should send here, why not, and the engines of each pool that are up.

    ``status`` is "ready" or the first of ``reasons``.
    """
    reasons = list(_reasons(gateway))
    health = gateway.parts.prober.health
    pools = {
        name: {"engines": len(engines), "up": sum(_is_up(health, e) for e in engines)}
        for name, engines in gateway.parts.fleet.pools.items()
    }
    return {"status": reasons[0] if reasons else "ready", "reasons": reasons, "pools": pools}


def _reasons(gateway: Gateway) -> Iterator[str]:
    table = gateway.setup.table
    if gateway.draining or all(serving(r, table.draining).draining for r in table.routes.values()):
        yield "draining"
    health = gateway.parts.prober.health
    if not any(h.up for h in health.values()):
        yield "no healthy engine"
    if not gateway.probed:
        yield "engines not yet probed"
    fault = gateway.parts.fleet.isolation_fault()
    if fault is not None:
        yield fault


def _is_up(health: Mapping[str, EngineHealth], engine: str) -> bool:
    known = health.get(engine)
    return known is not None and known.up


def status(gateway: Gateway) -> dict[str, Any]:
    """The state of the gateway, for operators: nothing of what requests contain."""
    parts, setup = gateway.parts, gateway.setup
    core, now = parts.turnstile.core, parts.clock()
    return {
        "draining": gateway.draining,
        "running": len(gateway.running),
        "config_digest": setup.settings.digest(),
        "route_revision": setup.table.revision,
        "routes": [
            {**asdict(route), "draining": serving(route, setup.table.draining).draining}
            for route in setup.table.routes.values()
        ],
        "flows": [{**asdict(v), "key": v.key._asdict()} for v in core.flow_views(now)],
        "engines": [
            {**asdict(v), "held_for": v.held_for._asdict() if v.held_for else None}
            for v in core.engine_views()
        ],
        "health": parts.fleet.status(),
        "issuers": [asdict(view) for view in parts.identity.views()],
    }


def usage(gateway: Gateway) -> dict[str, Any]:
    """What each caller has used since the process began; a figure nobody reported is absent."""
    rows = (asdict(row) for row in gateway.parts.usage.rows())
    return {"usage": [{k: v for k, v in row.items() if v is not None} for row in rows]}

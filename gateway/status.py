"""Says what state the gateway is in: ready or not, and everything an operator may look at."""

from dataclasses import asdict
from typing import Any

from gateway.app import Gateway

__all__ = ["status", "unready_reason"]


def unready_reason(gateway: Gateway) -> str | None:
    """Why no load balancer should send here; None if it should."""
    if gateway.draining:
        return "draining"
    health = gateway.parts.prober.health
    return None if any(h.up for h in health.values()) else "no healthy engine"


def status(gateway: Gateway) -> dict[str, Any]:
    """The state of the gateway, for operators: nothing of what requests contain."""
    parts, setup = gateway.parts, gateway.setup
    core, now = parts.turnstile.core, parts.clock()
    return {
        "draining": gateway.draining,
        "running": len(gateway.running),
        "config_digest": setup.settings.digest(),
        "route_revision": setup.table.revision,
        "routes": [asdict(route) for route in setup.table.routes.values()],
        "flows": [asdict(view) for view in core.flow_views(now)],
        "engines": [asdict(view) for view in core.engine_views()],
        "health": [
            {**asdict(h), "since_s": round(now - h.since_s, 3) if h.since_s else None}
            for h in parts.prober.health.values()
        ],
    }

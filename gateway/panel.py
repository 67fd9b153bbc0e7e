"""Puts together what the console shows, at one moment: queues, engines, the last minute, routes.

Queues stand against their caps and engines against their limits as both are in force. Readings of
the counters are taken all the time, so that who looks for the first time sees a minute at once.
"""

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict
from typing import Any

import orjson

from gateway.contract import CONTRACT
from gateway.control import Control
from gateway.domain import Arm, Outcome
from gateway.lease import EngineView
from gateway.limits import PAUSED
from gateway.live import Recent, Shown, Window, recent
from gateway.status import readiness
from gateway.tallies import BOUNDS_S
from gateway.verdicts import FlowView

__all__ = ["Panel"]

EVERY_S = 5.0
# What the caller chose, or a success: neither a refusal nor a failure.
_QUIET = frozenset({Outcome.COMPLETED, Outcome.CLIENT_CANCELLED})


class Panel:
    """What the console shows. Call it on the loop.

    Args:
        control: the gateway and its limits.
        routes: the route table as ``GET /admin/routes`` answers it.
    """

    def __init__(self, control: Control, routes: Callable[[], dict[str, Any]]) -> None:
        self._control = control
        self._gateway = control.gateway
        self._routes = routes
        self._window = Window()
        self._shown = Shown()

    async def run(self) -> None:
        """Take readings for as long as it runs."""
        while True:
            self._window.add(self._gateway.parts.observer.reading(self._gateway.parts.clock()))
            await asyncio.sleep(EVERY_S)

    def document(self) -> bytes:
        """``view`` as JSON, a moment old at most, and never of other routes or limits."""
        gateway, limits = self._gateway, self._control.overlay
        state = (gateway.setup.table.revision, limits.revision, gateway.draining)
        return self._shown.get(state, self._made, gateway.parts.clock())

    def _made(self) -> bytes:
        return orjson.dumps(self.view(), option=orjson.OPT_APPEND_NEWLINE)

    def view(self) -> dict[str, Any]:
        """Everything, as one JSON object."""
        gateway, limits = self._gateway, self._control.view()
        last = self._recent()
        return {
            "gateway": {
                **readiness(gateway),
                "draining": gateway.draining,
                "running": len(gateway.running),
                "config_digest": gateway.setup.settings.digest(),
            },
            "window_s": round(last.span_s, 1),
            "limits_revision": limits["revision"],
            "flows": list(self._flows(limits)),
            "engines": list(self._engines(limits["engines"])),
            "classes": list(self._classes(last)),
            "outcomes": _ended(last),
            "routes": self._routes(),
        }

    def _recent(self) -> Recent:
        now = self._gateway.parts.observer.reading(self._gateway.parts.clock())
        self._window.add(now)
        return recent(self._window.first() or now, now, BOUNDS_S)

    def _flows(self, limits: dict[str, Any]) -> Iterator[dict[str, Any]]:
        core, now = self._gateway.parts.turnstile.core, self._gateway.parts.clock()
        by_group: dict[tuple[str, str, str], list[FlowView]] = {}
        for view in core.flow_views(now):
            key = view.key
            by_group.setdefault((key.model, key.size_class, key.service_class), []).append(view)
        for spec in limits["flows"]:
            group = spec["model"], spec["size_class"], spec["service_class"]
            yield {
                **spec,
                **_queue(by_group.get(group, ())),
                "paused_by": list(_paused_by(limits["set"], *group)),
            }

    def _engines(self, limits: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
        fleet = self._gateway.parts.fleet
        paused = {row["engine"] for row in limits if row[PAUSED]}
        health = {row["engine"]: row for row in fleet.status()}
        for view in self._gateway.parts.turnstile.core.engine_views():
            known = health.get(view.engine, {})
            caps = dict(fleet.engines[view.engine].max_prefilling) if known else {}
            yield {
                **_account(view, caps),
                "pools": [name for name, members in fleet.pools.items() if view.engine in members],
                PAUSED: view.engine in paused,
                "up": known.get("up", False),
                "reason": known.get("reason"),
            }

    def _classes(self, last: Recent) -> Iterator[dict[str, Any]]:
        settings = self._gateway.setup.settings
        for size in settings.sizes:
            for service in settings.document.service:
                key = (size.name, service)
                ended = {o: n for (a, b, o), n in last.outcomes.items() if (a, b) == key}
                yield {
                    "size_class": size.name,
                    "service_class": service,
                    "completed": ended.get(Outcome.COMPLETED, 0),
                    "not_completed": sum(n for o, n in ended.items() if o not in _QUIET),
                    "ttft_limit_s": size.ttft_limit_s,
                    "max_stall_s": size.max_stall_s,
                    "ttft": asdict(last.ttft[key]) if key in last.ttft else None,
                    "gaps": asdict(last.gaps[key]) if key in last.gaps else None,
                }


def _queue(views: Iterable[FlowView]) -> dict[str, Any]:
    """The arms of one flow together, as they share its caps; and the candidate's alone."""
    views = list(views)
    candidate = [view for view in views if view.key.arm is Arm.CANDIDATE]
    return {
        "depth": sum(view.depth for view in views),
        "tokens": sum(view.tokens for view in views),
        "running": sum(view.running for view in views),
        "oldest_age_s": round(max((view.oldest_age_s for view in views), default=0.0), 3),
        "candidate_depth": sum(view.depth for view in candidate),
        "candidate_running": sum(view.running for view in candidate),
    }


def _paused_by(
    entries: Mapping[str, dict[str, Any]], model: str, size: str, service: str
) -> Iterator[dict[str, Any]]:
    """The run-time limits that pause a flow: its own, and that of the flow of every model."""
    for target in (f"{model}.{size}.{service}", f"{size}.{service}"):
        path = f"flow.{target}.{PAUSED}"
        if entries.get(path, {}).get("value"):
            yield {"path": path, **entries[path]}


def _account(view: EngineView, caps: dict[str, int]) -> dict[str, Any]:
    counts = dict(view.prefilling)
    return {
        "engine": view.engine,
        "usable": view.usable,
        "slots": view.slots,
        "slots_limit": view.slot_limit,
        "prefill_tokens": view.prefill_tokens,
        "prefill_tokens_limit": view.prefill_limit,
        "kv_tokens": view.kv_tokens,
        "kv_tokens_limit": view.kv_limit,
        "prefilling": [
            {"size_class": size, "count": counts.get(size, 0), "limit": caps.get(size)}
            for size in sorted(counts.keys() | caps)
        ],
        "held_for": view.held_for._asdict() if view.held_for else None,
    }


def _ended(last: Recent) -> list[dict[str, Any]]:
    """Requests that were not served, by outcome, most first."""
    found: dict[str, dict[str, int]] = {}
    for (size, service, outcome), count in last.outcomes.items():
        if outcome not in _QUIET:
            found.setdefault(outcome, {})[f"{size}.{service}"] = count
    rows = [
        {
            "outcome": outcome,
            "status": CONTRACT[Outcome(outcome)].status,
            "count": sum(by_class.values()),
            "by_class": by_class,
        }
        for outcome, by_class in found.items()
    ]
    return sorted(rows, key=lambda row: -row["count"])

"""Serves the simulator's own paths: what arrived, and which faults are planned.

No real engine has them; each stands behind a flag of its own.
"""

from typing import Any

from pydantic import BaseModel

from loadgen.engine.exchange import Exchange
from loadgen.engine.refusals import bad_request, parse
from loadgen.engine.service import Routes, Service

__all__ = ["SimSurface"]


class _FaultBody(BaseModel):
    fault: str | list[str] | None


class SimSurface:
    """Test aids of one engine."""

    def __init__(self, service: Service) -> None:
        self._service = service

    def routes(self) -> Routes:
        """The paths served here."""
        routes: Routes = {}
        if self._service.settings.sim_state:
            routes["/sim/state"] = ("GET", self._state)
        if self._service.settings.sim_control:
            routes["/sim/fault"] = ("POST", self._fault)
        return routes

    async def _state(self, exchange: Exchange) -> None:
        scheduler, seen = self._service.core.scheduler, self._service.seen
        state: dict[str, Any] = {
            "synthetic": True,
            "running": scheduler.running,
            "waiting": scheduler.waiting,
            "kv_used_blocks": scheduler.kv_used_blocks,
            "preemptions_total": scheduler.preemptions_total,
            "policy": scheduler.config.policy,
            "requests_total": seen.total,
            "requests": seen.as_list(),
        }
        await exchange.answer_json(200, state)

    async def _fault(self, exchange: Exchange) -> None:
        """Put other faults in place: one, a list, or none for null or an empty text."""
        wanted = parse(_FaultBody, await self._service.json(exchange)).fault
        texts = wanted if isinstance(wanted, list) else [wanted] if wanted else []
        try:
            self._service.gate.replan(texts)
        except ValueError as error:
            raise bad_request(str(error)) from error
        await exchange.answer_json(200, {"synthetic": True, "fault": texts})

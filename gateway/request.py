"""Makes of a body what admission and the engine need: the model, the exact count, the flow.

The parsed body ends here; what goes on is its re-serialisation, with the gateway's own priority.
"""

from dataclasses import dataclass
from typing import Any

from gateway import sanitize
from gateway.counting import affinity
from gateway.domain import AdmissionMode, FlowKey, Outcome, Principal, Refused, Surface
from gateway.head import max_wait_s
from gateway.observe import Observer
from gateway.prompt import requested_model
from gateway.setup import Setup
from gateway.verdicts import Offer
from gateway.visit import Visit

__all__ = ["Request", "understand"]

Headers = list[tuple[bytes, bytes]]


@dataclass(frozen=True, slots=True)
class Request:
    """A classified request: what it offers to admission, and what goes to the engine."""

    surface: Surface
    offer: Offer
    mode: AdmissionMode
    headers: Headers
    body: bytes


async def understand(
    setup: Setup, visit: Visit, body: dict[str, Any], headers: Headers, observer: Observer
) -> Request:
    """Find the model, count the prompt exactly, name the flow.

    ``visit`` has its principal and surface; what is found out is noted there.

    Raises:
        Refused: for whatever makes the request one that no engine gets.
    """
    principal, surface = _known(visit)
    model = setup.table.model(requested_model(body))
    if principal.models is not None and model.public not in principal.models:
        raise Refused(Outcome.FORBIDDEN, f"This key may not use {model.public}.", param="model")
    visit.model = model.public
    asked = await setup.counting.classify(visit, principal, surface, body)
    size, visit.stream = visit.size_class or "", asked.stream
    observer.offered(size, principal.service_class)
    visit.offered = True
    route = setup.table.route(model.public, size)
    visit.arm = setup.table.arm(route, principal.key_id)
    visit.pool = route.pool(visit.arm)
    flow = FlowKey(model.public, size, principal.service_class, visit.arm)
    priority = setup.specs[flow.group].engine_priority
    stamped = sanitize.stamp(body, priority, model.engine_model)
    offer = Offer(
        flow,
        principal.key_id,
        visit.prompt_tokens or 0,
        visit.arrived_s,
        slots=asked.slots,
        max_tokens=asked.max_tokens,
        body_bytes=len(stamped),
        streamed=asked.stream,
        affinity=affinity(asked, principal),
        max_wait_s=max_wait_s(headers),
        principal_cap=principal.max_in_flight,
    )
    passed = sanitize.upstream_headers(headers, visit.upstream_id, priority)
    return Request(surface, offer, route.mode, passed, stamped)


def _known(visit: Visit) -> tuple[Principal, Surface]:
    if visit.principal is None or visit.surface is None:
        raise TypeError("a request is understood after it was authenticated")
    return visit.principal, visit.surface

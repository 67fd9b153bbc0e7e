"""Makes of a body what admission and the engine need: the model, the exact count, the flow.

The parsed body ends here; what goes on is its re-serialisation, with the gateway's own priority.
"""

from typing import Any, NamedTuple

from gateway import multipart, sanitize
from gateway.counting import affinity
from gateway.domain import AdmissionMode, FlowKey, Header, Outcome, Principal, Refused, Surface
from gateway.head import max_wait_s
from gateway.observe import Observer
from gateway.prompt import requested_model
from gateway.routing import ModelName
from gateway.setup import Setup
from gateway.surfaces import SURFACES, BodyForm
from gateway.verdicts import Offer
from gateway.visit import Visit

__all__ = ["Request", "count_only", "read", "understand"]

# Looked up once: Python 3.11 finds an enum's member in ten times the time of a global.
_MULTIPART = BodyForm.MULTIPART


class Request(NamedTuple):
    """A classified request: what it offers to admission, and what goes to the engine.

    ``hide_usage``: the stream was made to end with its usage, and the caller did not ask for it.
    """

    surface: Surface
    offer: Offer
    mode: AdmissionMode
    headers: list[Header]
    body: bytes
    hide_usage: bool = False


def read(raw: bytes, surface: Surface, content_type: bytes) -> dict[str, Any]:
    """The body in the form its surface takes, without what callers may not say.

    Raises:
        Refused: ``bad_request``.
    """
    if SURFACES[surface].body is _MULTIPART:
        return dict(multipart.parse_form(raw, content_type))
    return sanitize.clean_body(raw)


async def count_only(
    setup: Setup, visit: Visit, principal: Principal, surface: Surface, body: dict[str, Any]
) -> int:
    """The exact token count of a prompt that no engine is to get; raises as ``understand``."""
    _model(setup, visit, principal, body)
    await setup.counting.classify(visit, principal, surface, body)
    return visit.prompt_tokens or 0


async def understand(
    setup: Setup,
    visit: Visit,
    principal: Principal,
    surface: Surface,
    body: dict[str, Any],
    observer: Observer,
) -> Request:
    """Find the model, count the prompt exactly, name the flow; ``visit`` is told what is found.

    Raises:
        Refused: for whatever makes the request one that no engine gets.
    """
    model = _model(setup, visit, principal, body)
    asked = await setup.counting.classify(visit, principal, surface, body)
    visit.classified_s = visit.marks.clock()
    size, visit.stream = visit.size_class or "", asked.stream
    observer.offered(size, principal.service_class)
    visit.offered = True
    route = setup.table.route(model.public, size)
    visit.arm = setup.table.arm(route, principal.key_id)
    visit.pool = route.pool(visit.arm)
    flow = FlowKey(model.public, size, principal.service_class, visit.arm)
    priority = setup.specs[flow[:3]].engine_priority
    hidden = setup.settings.document.upstream.force_usage and sanitize.ask_usage(body, surface)
    kind, stamped = _onward(surface, body, priority, model.engine_model)
    offer = Offer(
        flow,
        principal.key_id,
        visit.prompt_tokens or 0,
        visit.arrived_s,
        asked.slots,
        asked.max_tokens,
        len(stamped),
        asked.stream,
        affinity(asked, principal),
        max_wait_s(visit.sent),
        principal.max_in_flight,
    )
    passed = sanitize.upstream_headers(visit.sent, visit.upstream_id, priority, kind)
    if visit.trace is not None:
        passed = visit.trace.onward(passed)
    return Request(surface, offer, route.mode, passed, stamped, hidden)


def _model(setup: Setup, visit: Visit, principal: Principal, body: dict[str, Any]) -> ModelName:
    """The model that is asked for, by a caller who may."""
    model = setup.table.model(requested_model(body))
    if principal.models is not None and model.grant not in principal.models:
        raise Refused(Outcome.FORBIDDEN, f"This key may not use {model.grant}.", param="model")
    visit.model = model.public
    return model


def _onward(
    surface: Surface, body: dict[str, Any], priority: int, engine_model: str
) -> tuple[bytes, bytes]:
    """The content type and the bytes for the engine."""
    if SURFACES[surface].body is _MULTIPART:
        return multipart.write_form(body, {"model": engine_model})
    return b"application/json", sanitize.stamp(body, priority, engine_model, surface)

"""The way of a request, top to bottom: the ASGI application, the only place that knows the order.

``_serve`` reads as the product's sentence: authenticate, intake bound, read the body, count and
classify, wait at the turnstile, relay to an engine, give the engine back, observe. A stage that
ends a request raises ``Refused``; the failure contract makes the answer. Whatever happens, a
request is recorded exactly once, in ``__call__``.
"""

import sys
import traceback
from collections.abc import Callable, Mapping, MutableMapping
from dataclasses import asdict, dataclass
from typing import Any

import orjson

from gateway import sanitize
from gateway.auth import authenticate
from gateway.config import Settings
from gateway.contract import CONTRACT, Advice, Answer, RetryAfter, answer
from gateway.counting import CountingStage, affinity
from gateway.domain import AdmissionMode, FlowKey, Outcome, Principal, Refused, Surface
from gateway.edge import ClientGone, Receive, caller_ending, read_body
from gateway.engines import Prober
from gateway.head import (
    TARGETS,
    check_content_type,
    check_declared_length,
    max_wait_s,
    surface_of,
    trace_id,
)
from gateway.intake import Held, Intake
from gateway.journal import Journal
from gateway.lifetime import Timeline, Timeouts
from gateway.observe import Observer, log_line
from gateway.prompt import requested_model
from gateway.relay import Relayed, Send, UpstreamCall, relay
from gateway.routing import RouteTable
from gateway.turnstile import Pass, Turnstile
from gateway.verdicts import Offer
from gateway.visit import Visit
from gateway.wire import EngineClient

__all__ = ["Gateway", "Parts"]

Scope = MutableMapping[str, Any]

# Retries that may follow each other; every relayed request adds ``retry_budget`` up to this.
RETRY_BURST = 10.0


@dataclass(frozen=True, slots=True)
class Parts:
    """Everything the application is composed of; ``serve`` builds the real one."""

    settings: Settings
    table: RouteTable
    intake: Intake
    counting: CountingStage
    turnstile: Turnstile
    clients: Mapping[str, EngineClient]
    prober: Prober
    observer: Observer
    journal: Journal
    advice: Mapping[tuple[str, str, str], RetryAfter]
    clock: Callable[[], float]
    fresh_id: Callable[[], str]


@dataclass(frozen=True, slots=True)
class _Request:
    """A classified request: what it offers to admission, and what goes to the engine."""

    surface: Surface
    offer: Offer
    mode: AdmissionMode
    headers: list[tuple[bytes, bytes]]
    body: bytes


class Gateway:
    """The ASGI application.

    ``keyring`` may be replaced while it serves: that is how keys are added and revoked.
    ``refusing`` turns new requests away as draining; ``running`` holds what must be ended when a
    drain reaches its deadline.
    """

    def __init__(self, parts: Parts) -> None:
        self.parts = parts
        self.observer = parts.observer
        self.keyring = parts.settings.keyring
        self.running: set[Visit] = set()
        self.draining = False
        self.refusing = False
        upstream = parts.settings.document.upstream
        total_s = upstream.total_timeout_s
        self._streamed = Timeouts(upstream.first_byte_timeout_s, upstream.idle_timeout_s, total_s)
        # An engine sends the head of an answer that is not streamed when all of it is made.
        self._whole = Timeouts(upstream.answer_timeout_s, upstream.idle_timeout_s, total_s)
        self._specs = {spec.group: spec for spec in parts.settings.flows}
        self._retries_left = RETRY_BURST

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request and record it, however it ends."""
        if scope["type"] != "http":
            return
        visit = self._visit(scope)
        self.running.add(visit)
        try:
            await self._serve(visit, scope, receive, send)
        except Refused as refused:
            await self._refuse(visit, refused, send)
        except ClientGone:
            visit.outcome = Outcome.CLIENT_CANCELLED
        except Exception:  # the last line of defence: logged, told, never shown
            self._log_fault(visit)
            await self._refuse(visit, Refused(Outcome.INTERNAL_ERROR, "Internal error."), send)
        finally:
            self.running.discard(visit)
            finished = visit.finished(self.parts.clock())
            self.observer.record(finished)
            self.parts.journal.line(log_line(finished))

    # -- the way ---------------------------------------------------------------------------

    async def _serve(self, visit: Visit, scope: Scope, receive: Receive, send: Send) -> None:
        surface = visit.surface = surface_of(scope)
        if self.refusing:
            raise Refused(Outcome.DRAINING, "The gateway is draining.")
        principal = visit.principal = authenticate(scope["headers"], self.keyring)
        if principal.surfaces is not None and surface not in principal.surfaces:
            raise Refused(Outcome.FORBIDDEN, f"This key may not use {scope['path']}.")
        if surface is Surface.MODELS:
            visit.outcome = Outcome.COMPLETED
            await self._send(visit, self._models(principal), send)
            return
        held = self.parts.intake.enter(principal.key_id)
        try:
            # The parsed body is not kept while the request waits and runs: only what goes out is.
            request = await self._classify(
                visit,
                principal,
                surface,
                await self._body(visit, held, scope, receive),
                scope["headers"],
            )
            await self._admit_and_relay(visit, request, send)
        finally:
            self.parts.intake.leave(held)

    async def _body(
        self, visit: Visit, held: Held, scope: Scope, receive: Receive
    ) -> dict[str, Any]:
        """The body, whole and in bounds, without what callers may not say."""
        server = self.parts.settings.document.server
        check_content_type(scope["headers"])
        check_declared_length(scope["headers"], server.max_body_bytes)
        raw = await read_body(
            receive,
            server.max_body_bytes,
            server.body_timeout_s,
            lambda more_bytes: self.parts.intake.received(held, more_bytes),
        )
        visit.body_bytes = len(raw)
        return await self.parts.counting.pool.work(len(raw), lambda: sanitize.clean_body(raw))

    async def _classify(
        self,
        visit: Visit,
        principal: Principal,
        surface: Surface,
        body: dict[str, Any],
        headers: list[tuple[bytes, bytes]],
    ) -> _Request:
        """Find the model, count the prompt exactly, name the flow."""
        parts = self.parts
        model = parts.table.model(requested_model(body))
        if principal.models is not None and model.public not in principal.models:
            raise Refused(Outcome.FORBIDDEN, f"This key may not use {model.public}.", param="model")
        visit.model = model.public
        asked = await parts.counting.classify(visit, principal, surface, body)
        size, visit.stream = visit.size_class or "", asked.stream
        self.observer.offered(size, principal.service_class)
        visit.offered = True
        route = parts.table.route(model.public, size)
        visit.arm = parts.table.arm(route, principal.key_id)
        visit.pool = route.pool(visit.arm)
        flow = FlowKey(model.public, size, principal.service_class, visit.arm)
        priority = self._specs[flow.group].engine_priority
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
        return _Request(surface, offer, route.mode, passed, stamped)

    async def _admit_and_relay(self, visit: Visit, request: _Request, send: Send) -> None:
        """Wait for an engine and relay; once more on another if nothing was sent to the first."""
        budget = self.parts.settings.document.upstream.retry_budget
        self._retries_left = min(RETRY_BURST, self._retries_left + budget)
        while True:
            held = await self.parts.turnstile.enter(request.offer, request.mode, visit.ending)
            visit.engine = held.engine
            visit.queue_s = self.parts.clock() - visit.arrived_s
            output_tokens = None
            try:
                relayed = await self._relay(visit, request, held, send)
                if relayed.outcome is Outcome.COMPLETED:
                    output_tokens = relayed.completion_tokens
            finally:
                self.parts.turnstile.give_back(held, output_tokens)
            if not self._may_retry(relayed, visit):
                await self._end(visit, relayed, send)
                return
            visit.retries += 1
            self._retries_left -= 1

    async def _relay(self, visit: Visit, request: _Request, held: Pass, send: Send) -> Relayed:
        turnstile = self.parts.turnstile
        visit.marks.on_first_event = lambda: turnstile.first_event(held)
        visit.marks.on_progress = lambda events: turnstile.grow(held, events)
        call = UpstreamCall(
            TARGETS[request.surface],
            request.headers,
            request.body,
            visit.stream,
            request.surface,
            visit.headers(),
        )
        visit.committed = True  # until the relay says otherwise: no second head, whatever breaks
        client = self.parts.clients[held.engine]
        timeouts = self._streamed if visit.stream else self._whole
        relayed = await relay(client, call, send, visit.ending, visit.marks, timeouts)
        visit.committed = relayed.committed
        if relayed.detail == "connect_failed":
            self.parts.prober.refused(held.engine, "a request could not connect")
        elif relayed.detail == "connect_timeout":
            self.parts.prober.silent(held.engine, "a request could not connect in time")
        return relayed

    def _may_retry(self, relayed: Relayed, visit: Visit) -> bool:
        """Only where nothing was sent anywhere, once, and within the recent retry budget."""
        return (
            relayed.detail in {"connect_failed", "connect_timeout"}
            and not visit.ending.is_set()
            and visit.retries == 0
            and self._retries_left >= 1
            and self.parts.settings.document.upstream.retry_budget > 0
        )

    async def _end(self, visit: Visit, relayed: Relayed, send: Send) -> None:
        """Note how the relay ended; answer where the caller has no head yet."""
        visit.outcome, visit.status = relayed.outcome, relayed.status
        visit.detail = relayed.detail or None
        visit.completion_tokens = relayed.completion_tokens
        visit.engine_prompt_tokens = relayed.prompt_tokens
        if relayed.committed or relayed.outcome is Outcome.CLIENT_CANCELLED:
            return
        if relayed.outcome is Outcome.ENGINE_ERROR:
            passed_on = _json(relayed.status or 500, relayed.outcome, relayed.body or b"")
            await self._send(visit, passed_on, send)
            return
        raise Refused(relayed.outcome, _UPSTREAM[relayed.outcome], relayed.retry_after_s)

    # -- answers of our own ----------------------------------------------------------------

    async def _refuse(self, visit: Visit, refused: Refused, send: Send) -> None:
        visit.outcome = refused.outcome
        row = CONTRACT[refused.outcome]
        if visit.committed or row.status is None:
            return
        reply = answer(
            refused.outcome,
            refused.message,
            retry_after_s=self._advise(visit, refused),
            param=refused.param,
            surface=visit.surface or Surface.CHAT,
            status=refused.status,
        )
        await self._send(visit, reply, send)

    def _advise(self, visit: Visit, refused: Refused) -> float | None:
        """Seconds to advise: the refusal's own figure, by a memory of how the last one went."""
        if CONTRACT[refused.outcome].advice is Advice.NONE:
            return None
        if refused.outcome is Outcome.NO_ENGINE:
            return self.parts.settings.document.probe.interval_s
        service = visit.principal.service_class if visit.principal else ""
        memory = self.parts.advice.get((visit.model or "", visit.size_class or "", service))
        if memory is None:
            return refused.retry_after_s
        return memory.refused(self.parts.clock(), refused.retry_after_s or 0.0)

    async def _send(self, visit: Visit, reply: Answer, send: Send) -> None:
        visit.committed = True
        visit.status = reply.status
        headers = [*reply.headers, *visit.headers()]
        await send({"type": "http.response.start", "status": reply.status, "headers": headers})
        await send({"type": "http.response.body", "body": reply.body, "more_body": False})

    def _models(self, principal: Principal) -> Answer:
        """The public names this principal may use."""
        document = self.parts.settings.document
        rows = [
            {"id": n, "object": "model", "owned_by": "sluicegate", "max_model_len": m.max_model_len}
            for name, m in document.model.items()
            if principal.models is None or name in principal.models
            for n in (name, *m.aliases)
        ]
        return _json(200, Outcome.COMPLETED, orjson.dumps({"object": "list", "data": rows}))

    # -- state -----------------------------------------------------------------------------

    def _visit(self, scope: Scope) -> Visit:
        headers = scope["headers"]
        fresh = self.parts.fresh_id()
        request_id = sanitize.request_id(headers, fresh)
        # Engines key requests by it: a caller's own id must not meet another caller's.
        upstream_id = fresh if request_id == fresh else f"{request_id}-{fresh}"
        marks, ending = Timeline(self.parts.clock), caller_ending(scope)
        visit = Visit(request_id, upstream_id, self.parts.clock(), marks, ending)
        visit.trace_id = trace_id(headers)
        return visit

    def _log_fault(self, visit: Visit) -> None:
        """Where it broke and on what kind of error; its message may quote the caller."""
        kind, _, trace = sys.exc_info()
        where = [f"{f.filename}:{f.lineno} {f.name}" for f in traceback.extract_tb(trace)]
        name = kind.__name__ if kind else ""
        self.parts.journal.event(
            "internal_error", request_id=visit.request_id, error=name, trace=where
        )

    def unready_reason(self) -> str | None:
        """Why no load balancer should send here; None if it should."""
        if self.draining:
            return "draining"
        return None if any(h.up for h in self.parts.prober.health.values()) else "no healthy engine"

    def status(self) -> dict[str, Any]:
        """The state of the gateway, for operators."""
        core, now = self.parts.turnstile.core, self.parts.clock()
        return {
            "draining": self.draining,
            "running": len(self.running),
            "config_digest": self.parts.settings.digest(),
            "route_revision": self.parts.table.revision,
            "routes": [asdict(route) for route in self.parts.table.routes.values()],
            "flows": [asdict(view) for view in core.flow_views(now)],
            "engines": [asdict(view) for view in core.engine_views()],
            "health": [
                {**asdict(h), "since_s": round(now - h.since_s, 3) if h.since_s else None}
                for h in self.parts.prober.health.values()
            ],
        }

    def end_all(self) -> int:
        """A drain reached its deadline: end what still runs; returns how many that were."""
        visits = list(self.running)
        for visit in visits:
            visit.ending.set(Outcome.DRAIN_TERMINATED)
        return len(visits)


_UPSTREAM = {
    Outcome.ENGINE_REJECTED: "The engine is too busy to take this request.",
    Outcome.UPSTREAM_UNREACHABLE: "The engine could not be reached, or broke off its answer.",
    Outcome.UPSTREAM_TIMEOUT: "The engine did not answer in time.",
    Outcome.DRAINING: "The gateway is draining.",
}


def _json(status: int, outcome: Outcome, body: bytes) -> Answer:
    headers = [
        (b"content-type", b"application/json"),
        (b"content-length", b"%d" % len(body)),
        (b"x-sluicegate-outcome", outcome.encode()),
    ]
    return Answer(status, headers, body)

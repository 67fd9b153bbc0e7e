"""The way of a request, top to bottom: the ASGI application, the only place that knows the order.

``_serve`` reads as the product's sentence: authenticate, intake bound, read the body, count and
classify, wait at the turnstile, relay to an engine, give the engine back, observe. A stage that
ends a request raises ``Refused``; the failure contract makes the answer. Whatever happens, a
request is recorded exactly once, in ``__call__``.
"""

import asyncio
from collections.abc import Callable, MutableMapping, Sequence
from functools import partial
from typing import Any

from gateway import sanitize
from gateway.attempt import Attempts
from gateway.catalogue import counted_answer, models_answer
from gateway.contract import CONTRACT, Advice, Answer, answer, json_answer
from gateway.domain import Outcome, Refused, Surface
from gateway.early import EarlySend
from gateway.edge import ClientGone, Receive, caller_ending, read_body
from gateway.head import (
    check_content_type,
    check_declared_length,
    check_query,
    model_named,
    surface_at,
    surface_of,
)
from gateway.intake import Held
from gateway.lifetime import Timeline
from gateway.observe import Finished, log_line
from gateway.relay import Relayed, Send
from gateway.request import count_only, read, understand
from gateway.sent import by_name
from gateway.setup import Parts, Setup
from gateway.surfaces import SURFACES
from gateway.traceparent import trace_id
from gateway.visit import Visit

__all__ = ["Gateway"]

Scope = MutableMapping[str, Any]

# Looked up once: Python 3.11 finds an enum's member in ten times the time of a global.
_CHAT, _MODELS, _COUNT_TOKENS = Surface.CHAT, Surface.MODELS, Surface.COUNT_TOKENS
_CANCELLED, _ENGINE_ERROR = Outcome.CLIENT_CANCELLED, Outcome.ENGINE_ERROR
_EXPIRED, _DRAINED = Outcome.QUEUE_EXPIRED, Outcome.DRAIN_TERMINATED


class Gateway:
    """The ASGI application.

    ``setup`` may be replaced while it serves; requests end with the one they began with.
    ``probed``: every engine was asked for its health once. ``refusing`` turns new requests away
    as draining; ``running`` holds what must be ended when a drain reaches its deadline.
    All in ``heard`` are told each request at its end; ``waited_for`` says how many requests drains
    of pools and routes wait for, ``watched`` the state of each route's canary.
    """

    def __init__(self, parts: Parts, setup: Setup) -> None:
        self.parts = parts
        self.setup = setup
        self.running: set[Visit] = set()
        self.probed = False
        self.draining = False
        self.refusing = False
        self.reload_refused = False
        self.heard: list[Callable[[Finished], None]] = []
        self.waited_for: Callable[[], int] = int
        self.watched: Callable[[], Sequence[tuple[str, str]]] = tuple
        self._attempts = Attempts(parts, lambda: self.setup.table)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request and record it, however it ends."""
        if scope["type"] != "http":
            return
        visit = self._visit(scope)
        early_s = self.setup.settings.document.server.early_commit_after_s
        if early_s is not None:
            send = EarlySend(send, early_s, visit.pass_on)
            visit.pass_on = send.pass_on
        self.running.add(visit)
        try:
            await self._serve(visit, scope, receive, send)
        except Refused as refused:
            if visit.surface is None:  # a path has a form for errors, whatever the method
                visit.surface = surface_at(scope)
            await self._refuse(visit, refused, send)
        except ClientGone:
            visit.outcome = Outcome.CLIENT_CANCELLED
        except asyncio.CancelledError:
            self._cut_off(visit)
            raise
        except Exception as error:  # the last line of defence: logged, told, never shown
            self.parts.journal.fault(error, request_id=visit.request_id)
            await self._refuse(visit, Refused(Outcome.INTERNAL_ERROR, "Internal error."), send)
        finally:
            self.running.discard(visit)
            self._finish(visit, send)

    def refused_at_edge(self, outcome: Outcome) -> float | None:
        """Count what the listener refused by itself; the seconds to advise."""
        self.parts.observer.refused_at_edge(outcome)
        rule, now = CONTRACT[outcome].advice, self.parts.clock()
        return self.setup.advice.seconds(rule, None, now, ("", "", ""), "")

    def _finish(self, visit: Visit, send: Send) -> None:
        """Record a request that is over: metrics, its caller's sums, spans, one log line."""
        if isinstance(send, EarlySend):
            send.disarm()
            if send.begun:
                visit.status = 200  # whatever came of it, that is what was sent
        parts, ended_s = self.parts, self.parts.clock()
        finished = visit.finished(ended_s)
        parts.observer.record(finished)
        for hear in self.heard:
            hear(finished)
        reached = visit.marks.dispatched_s is not None
        prompt_tokens = visit.prompt_tokens if reached else None
        parts.usage.add(finished.key_id, visit.outcome, prompt_tokens, visit.completion_tokens)
        if parts.tracer is not None and visit.trace is not None:
            parts.tracer.record(visit, visit.trace, ended_s)
        parts.journal.line(partial(log_line, finished), request_id=finished.request_id)

    # -- the way ---------------------------------------------------------------------------

    async def _serve(self, visit: Visit, scope: Scope, receive: Receive, send: Send) -> None:
        setup = self.setup
        surface = visit.surface = surface_of(scope)
        if scope.get("query_string"):
            check_query(scope, surface)
        if self.refusing:
            raise Refused(Outcome.DRAINING, "The gateway is draining.")
        principal = visit.principal = await self.parts.identity.principal(visit.sent)
        if principal.surfaces is not None and surface not in principal.surfaces:
            raise Refused(Outcome.FORBIDDEN, f"This key may not use {scope['path']}.")
        if surface is _MODELS:
            visit.outcome = Outcome.COMPLETED
            models, name = setup.settings.document.model, model_named(scope["path"])
            await self._send(visit, models_answer(models, principal, name), send)
            return
        held = self.parts.intake.enter(principal.key_id)
        try:
            if surface is _COUNT_TOKENS:
                body = await self._body(setup, visit, held, scope, receive)
                reply = counted_answer(await count_only(setup, visit, principal, surface, body))
                visit.outcome = Outcome.COMPLETED
                await self._send(visit, reply, send)
                return
            # The parsed body is not kept while the request waits and runs: only what goes out is.
            request = await understand(
                setup,
                visit,
                principal,
                surface,
                await self._body(setup, visit, held, scope, receive),
                self.parts.observer,
            )
            if visit.stream and isinstance(send, EarlySend):
                send.arm(surface, visit.headers)
            relayed = await self._attempts.serve(setup, visit, request, send)
            error = _ended(visit, relayed)
            if error is not None:
                await self._send(visit, error, send)
        finally:
            self.parts.intake.leave(held)

    async def _body(
        self, setup: Setup, visit: Visit, held: Held, scope: Scope, receive: Receive
    ) -> dict[str, Any]:
        """The body, whole and in bounds, without what callers may not say."""
        server = setup.settings.document.server
        surface, sent = visit.surface or _CHAT, visit.sent
        declared = check_content_type(sent, SURFACES[surface].body)
        check_declared_length(sent, server.max_body_bytes)
        raw = await read_body(
            receive,
            server.max_body_bytes,
            server.body_timeout_s,
            partial(self.parts.intake.received, held),
            scope.get("sluicegate.take"),
            visit.ending,
        )
        visit.body_bytes = len(raw)
        pool = setup.counting.pool
        if pool.at_once(len(raw)):
            return read(raw, surface, declared)
        return await pool.work(len(raw), lambda: read(raw, surface, declared), held.principal)

    # -- answers of our own ----------------------------------------------------------------

    async def _refuse(self, visit: Visit, refused: Refused, send: Send) -> None:
        reply = self._refusal(visit, refused)
        if reply is not None:
            await self._send(visit, reply, send)

    def _cut_off(self, visit: Visit) -> None:
        """The process ends before a request that a drain ended: say so where nothing hinders."""
        if visit.ending.outcome is not _DRAINED:
            return
        outcome = _DRAINED if visit.committed else Outcome.DRAINING
        reply = self._refusal(visit, Refused(outcome, "The gateway ended before this request."))
        if reply is not None and visit.answer is not None:
            visit.answer(reply.status, [*reply.headers, *visit.headers()], reply.body)

    def _refusal(self, visit: Visit, refused: Refused) -> Answer | None:
        """Note how a request ends; the answer to it, where it can still have one."""
        visit.outcome = refused.outcome
        row = CONTRACT[refused.outcome]
        if visit.committed or row.status is None:
            return None
        return answer(
            refused.outcome,
            refused.message,
            retry_after_s=self._advise(visit, refused),
            param=refused.param,
            surface=visit.surface or Surface.CHAT,
            status=refused.status,
        )

    def _advise(self, visit: Visit, refused: Refused) -> float | None:
        """Seconds to advise, by the rule of the outcome's row."""
        rule, principal = CONTRACT[refused.outcome].advice, visit.principal
        if refused.outcome is _EXPIRED and b"x-sluicegate-max-wait" in visit.sent:
            rule = Advice.CALLER  # who would not wait says nothing about the queue
        service, key_id = (principal.service_class, principal.key_id) if principal else ("", "")
        group = (visit.model or "", visit.size_class or "", service)
        now, told_s = self.parts.clock(), refused.retry_after_s
        return self.setup.advice.seconds(rule, told_s, now, group, key_id)

    async def _send(self, visit: Visit, reply: Answer, send: Send) -> None:
        visit.committed = True
        visit.status = reply.status
        headers = [*reply.headers, *visit.headers()]
        await send({"type": "http.response.start", "status": reply.status, "headers": headers})
        await send({"type": "http.response.body", "body": reply.body, "more_body": False})

    # -- state -----------------------------------------------------------------------------

    def _visit(self, scope: Scope) -> Visit:
        sent = by_name(scope["headers"])
        fresh = self.parts.fresh_id()
        request_id = sanitize.request_id(sent, fresh)
        # Engines key requests by it: a caller's own id must not meet another caller's.
        upstream_id = fresh if request_id == fresh else f"{request_id}-{fresh}"
        clock, pass_on = self.parts.clock, scope.get("sluicegate.pass_on")
        marks, ending, now = Timeline(clock), caller_ending(scope), clock()
        answer_whole = scope.get("sluicegate.answer")
        visit = Visit(request_id, upstream_id, now, marks, ending, sent, pass_on, answer_whole)
        if self.parts.tracer is None:
            parent = sent.get(b"traceparent")
            visit.trace_id = None if parent is None else trace_id(parent)
        else:
            visit.trace = self.parts.tracer.begin(scope["headers"])
            visit.trace_id = visit.trace.trace_id
        return visit

    def end_all(self) -> int:
        """A drain reached its deadline: end what still runs; returns how many that were."""
        visits = list(self.running)
        for visit in visits:
            visit.ending.set(_DRAINED)
        return len(visits)


def _ended(visit: Visit, relayed: Relayed) -> Answer | None:
    """Note how the relay ended; the engine's own error, where the caller has no head yet.

    Raises:
        Refused: the caller has none and gets one of ours.
    """
    visit.outcome, visit.status = relayed.outcome, relayed.status
    visit.detail = relayed.detail or None
    visit.completion_tokens = relayed.completion_tokens
    visit.engine_prompt_tokens = relayed.prompt_tokens
    if relayed.committed or relayed.outcome is _CANCELLED:
        return None
    if relayed.outcome is _ENGINE_ERROR:
        return json_answer(relayed.status or 500, relayed.outcome, relayed.body or b"")
    raise Refused(relayed.outcome, _UPSTREAM[relayed.outcome], relayed.retry_after_s)


_UPSTREAM = {
    Outcome.ENGINE_REJECTED: "The engine is too busy to take this request.",
    Outcome.UPSTREAM_UNREACHABLE: "The engine could not be reached, or broke off its answer.",
    Outcome.UPSTREAM_TIMEOUT: "The engine did not answer in time.",
    Outcome.DRAINING: "What served this request was drained, and the drain reached its deadline.",
}

"""Gets one classified request served: an engine for it, the relay, another engine where one failed.

An engine is taken from the turnstile and given back on every way out, once. A request goes to a
second engine, and no further, where the first had not begun to answer: its connection failed, or
it refused with a 503 of its own. Never after a time-out, for the first may still be at work; never
for a caller who has left; and only while retries are few among all requests, so that a failing
pool is not asked twice as much.
"""

from collections.abc import Callable

from gateway.domain import Outcome
from gateway.head import TARGETS
from gateway.relay import Relayed, Send, UpstreamCall, relay
from gateway.request import Request
from gateway.routing import RouteTable, serving
from gateway.setup import Parts, Setup
from gateway.turnstile import Pass
from gateway.visit import Visit

__all__ = ["Attempts"]

# Retries that may follow each other; every request adds ``retry_budget`` up to this.
RETRY_BURST = 10.0
# Nothing was sent: what waits in front may as well wait for this engine to come back.
_UNSENT = frozenset({"connect_failed", "connect_timeout"})
_TRANSPORT = frozenset({*_UNSENT, "disconnected", "bad_response"})
# Looked up once: Python 3.11 finds an enum's member in ten times the time of a global.
_COMPLETED, _REJECTED = Outcome.COMPLETED, Outcome.ENGINE_REJECTED
_REPLIES = frozenset({Outcome.COMPLETED, Outcome.ENGINE_ERROR})


class Attempts:
    """Serves requests on engines; its mutable state is how many retries are left.

    Args:
        parts: of the gateway.
        table: the route table in force.
    """

    def __init__(self, parts: Parts, table: Callable[[], RouteTable]) -> None:
        self._parts = parts
        self._table = table
        self._retries_left = RETRY_BURST

    async def serve(self, setup: Setup, visit: Visit, request: Request, send: Send) -> Relayed:
        """Wait for an engine and relay; once more on another if the first did not begin.

        Raises:
            Refused: no engine was to be had.
        """
        turnstile = self._parts.turnstile
        budget = setup.settings.document.upstream.retry_budget
        self._retries_left = min(RETRY_BURST, self._retries_left + budget)
        held = await turnstile.enter(request.offer, request.mode, visit.ending)
        while True:
            visit.engine = held.engine
            if self._table() is not setup.table:
                visit.pool = _pool_now(self._table(), visit)
            visit.queue_s = self._parts.clock() - visit.arrived_s
            output_tokens, why = None, None
            try:
                call = self._call(setup, visit, request, held)
                visit.committed = True  # until the relay says otherwise: no second head
                relayed = await relay(
                    self._parts.clients[held.engine],
                    call,
                    send,
                    visit.ending,
                    visit.marks,
                    setup.streamed if visit.stream else setup.whole,
                )
                visit.committed = relayed.committed
                self._learn(held.engine, relayed)
                if relayed.outcome is _COMPLETED:
                    output_tokens = relayed.completion_tokens
                if budget > 0 and not relayed.committed:
                    why = self._why_again(relayed, visit, held)
            finally:
                if why is None:
                    turnstile.give_back(held, output_tokens)
            if why is None:
                return relayed
            visit.retry_reason = why
            self._retries_left -= 1
            held = await turnstile.again(held, visit.ending)

    def _call(self, setup: Setup, visit: Visit, request: Request, held: Pass) -> UpstreamCall:
        """What to ask of the engine; what the answer tells on its way goes to the turnstile."""
        if visit.stream:
            turnstile = self._parts.turnstile
            visit.marks.on_first_event = lambda: turnstile.first_event(held)
            visit.marks.on_progress = lambda events: turnstile.grow(held, events)
        return UpstreamCall(
            TARGETS[request.surface],
            request.headers,
            request.body,
            visit.stream,
            request.surface,
            visit.headers(),
            b"POST",
            request.hide_usage,
            setup.pass_headers,
            visit.pass_on,
            visit.answer,
        )

    def _learn(self, engine: str, relayed: Relayed) -> None:
        """Tell what the relay found out about the engine."""
        prober, detail = self._parts.prober, relayed.detail
        if detail in _TRANSPORT:
            prober.failed(engine, detail)
            if detail == "connect_failed":
                prober.refused(engine, "a request could not connect")
            elif detail == "connect_timeout":
                prober.silent(engine, "a request could not connect in time")
        elif relayed.outcome is _REJECTED:
            self._parts.fleet.rejected(engine)
        elif relayed.outcome in _REPLIES:
            prober.replied(engine)

    def _why_again(self, relayed: Relayed, visit: Visit, held: Pass) -> str | None:
        """The reason to send a request to another engine (a label of the metric), or None."""
        if visit.retry_reason is not None or self._retries_left < 1:
            return None
        if relayed.began:
            return None
        if relayed.detail in _UNSENT:
            return "unreachable"
        rejected = relayed.outcome is _REJECTED
        if not (rejected or relayed.detail in _TRANSPORT) or not self._parts.turnstile.elsewhere(
            held
        ):
            return None
        return "rejected" if rejected else "disconnected"


def _pool_now(table: RouteTable, visit: Visit) -> str | None:
    """The pool that serves a request which waited while the routes changed."""
    route = table.routes.get((visit.model or "", visit.size_class or ""))
    if route is None or visit.arm is None:
        return visit.pool
    return serving(route, table.draining).pool(visit.arm)

"""Gets one classified request served: an engine for it, the relay, another engine where one failed.

An engine is taken from the turnstile and given back on every way out, once. A request goes to a
second engine, and no further, where the first had not begun to answer: its connection failed, or
it refused with a 503 of its own. Never after a time-out, for the first may still be at work; never
for a caller who has left; and only while retries are few among all requests, so that a failing
pool is not asked twice as much.
"""

from gateway.domain import Outcome
from gateway.head import TARGETS
from gateway.relay import Relayed, Send, UpstreamCall, relay
from gateway.request import Request
from gateway.setup import Parts, Setup
from gateway.turnstile import Pass
from gateway.visit import Visit

__all__ = ["Attempts"]

# Retries that may follow each other; every request adds ``retry_budget`` up to this.
RETRY_BURST = 10.0
# Nothing was sent: what waits in front may as well wait for this engine to come back.
_UNSENT = frozenset({"connect_failed", "connect_timeout"})
_TRANSPORT = frozenset({*_UNSENT, "disconnected", "bad_response"})


class Attempts:
    """Serves requests on engines; its mutable state is how many retries are left."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
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
            visit.queue_s = self._parts.clock() - visit.arrived_s
            output_tokens, again = None, False
            try:
                relayed = await self._relay(setup, visit, request, held, send)
                self._learn(held.engine, relayed)
                if relayed.outcome is Outcome.COMPLETED:
                    output_tokens = relayed.completion_tokens
                again = budget > 0 and self._may_retry(relayed, visit, held)
            finally:
                if not again:
                    turnstile.give_back(held, output_tokens)
            if not again:
                return relayed
            visit.retries += 1
            self._retries_left -= 1
            held = await turnstile.again(held, visit.ending)

    async def _relay(
        self, setup: Setup, visit: Visit, request: Request, held: Pass, send: Send
    ) -> Relayed:
        turnstile = self._parts.turnstile
        visit.marks.on_first_event = lambda: turnstile.first_event(held)
        visit.marks.on_progress = lambda events: turnstile.grow(held, events)
        call = UpstreamCall(
            TARGETS[request.surface],
            request.headers,
            request.body,
            visit.stream,
            request.surface,
            visit.headers(),
            hide_usage=request.hide_usage,
            pass_headers=setup.pass_headers,
        )
        visit.committed = True  # until the relay says otherwise: no second head, whatever breaks
        client = self._parts.clients[held.engine]
        timeouts = setup.streamed if visit.stream else setup.whole
        relayed = await relay(client, call, send, visit.ending, visit.marks, timeouts)
        visit.committed = relayed.committed
        return relayed

    def _learn(self, engine: str, relayed: Relayed) -> None:
        """Tell what the relay found out about the engine."""
        prober, detail = self._parts.prober, relayed.detail
        if detail in _TRANSPORT:
            prober.failed(engine, detail)
            if detail == "connect_failed":
                prober.refused(engine, "a request could not connect")
            elif detail == "connect_timeout":
                prober.silent(engine, "a request could not connect in time")
        elif relayed.outcome is Outcome.ENGINE_REJECTED:
            self._parts.fleet.rejected(engine)
        elif relayed.outcome in {Outcome.COMPLETED, Outcome.ENGINE_ERROR}:
            prober.replied(engine)

    def _may_retry(self, relayed: Relayed, visit: Visit, held: Pass) -> bool:
        if visit.retries or self._retries_left < 1:
            return False
        if relayed.committed or relayed.began:
            return False
        if relayed.detail in _UNSENT:
            return True
        failed = relayed.detail in _TRANSPORT or relayed.outcome is Outcome.ENGINE_REJECTED
        return failed and self._parts.turnstile.elsewhere(held)

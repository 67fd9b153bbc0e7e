"""Gets one classified request served: an engine for it, the relay, another engine where one failed.

An engine is taken from the turnstile and given back on every way out, once. A request goes to a
second engine only where nothing was sent to the first, and only while retries are few.
"""

from gateway.domain import Outcome
from gateway.head import TARGETS
from gateway.relay import Relayed, Send, UpstreamCall, relay
from gateway.request import Request
from gateway.setup import Parts, Setup
from gateway.turnstile import Pass
from gateway.visit import Visit

__all__ = ["Attempts"]

# Retries that may follow each other; every relayed request adds ``retry_budget`` up to this.
RETRY_BURST = 10.0


class Attempts:
    """Serves requests on engines; its mutable state is how many retries are left."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._retries_left = RETRY_BURST

    async def serve(self, setup: Setup, visit: Visit, request: Request, send: Send) -> Relayed:
        """Wait for an engine and relay; once more on another if nothing was sent to the first.

        Raises:
            Refused: no engine was to be had.
        """
        turnstile = self._parts.turnstile
        budget = setup.settings.document.upstream.retry_budget
        self._retries_left = min(RETRY_BURST, self._retries_left + budget)
        while True:
            held = await turnstile.enter(request.offer, request.mode, visit.ending)
            visit.engine = held.engine
            visit.queue_s = self._parts.clock() - visit.arrived_s
            output_tokens = None
            try:
                relayed = await self._relay(setup, visit, request, held, send)
                if relayed.outcome is Outcome.COMPLETED:
                    output_tokens = relayed.completion_tokens
            finally:
                turnstile.give_back(held, output_tokens)
            if not self._may_retry(relayed, visit, budget):
                return relayed
            visit.retries += 1
            self._retries_left -= 1

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
        )
        visit.committed = True  # until the relay says otherwise: no second head, whatever breaks
        client = self._parts.clients[held.engine]
        timeouts = setup.streamed if visit.stream else setup.whole
        relayed = await relay(client, call, send, visit.ending, visit.marks, timeouts)
        visit.committed = relayed.committed
        if relayed.detail == "connect_failed":
            self._parts.prober.refused(held.engine, "a request could not connect")
        elif relayed.detail == "connect_timeout":
            self._parts.prober.silent(held.engine, "a request could not connect in time")
        return relayed

    def _may_retry(self, relayed: Relayed, visit: Visit, budget: float) -> bool:
        """Only where nothing was sent anywhere, once, and within the recent retry budget."""
        return (
            relayed.detail in {"connect_failed", "connect_timeout"}
            and not visit.ending.is_set()
            and visit.retries == 0
            and self._retries_left >= 1
            and budget > 0
        )

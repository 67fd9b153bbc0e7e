"""Performs what the admission core decides: one future per waiting request, one timer for all.

Every call into the core goes through here, and so do its verdicts: a dispatch wakes its request, a
refusal ends it, and the timer is set to the core's next wakeup. A request that leaves while it
waits is cancelled in the core in the same step, so nothing is dispatched to a caller who has gone.

In observe mode the request goes ahead at once and its *ghost* waits in the core in its place:
what the core would have refused is counted, what it dispatches is charged until the real answer
has come as far. A pause and a key's own cap are no decisions to be tried out: they hold.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from gateway.admission import Admission
from gateway.domain import AdmissionMode, FlowKey, MisuseError, Outcome, Refused
from gateway.ledger import EngineLedger
from gateway.lifetime import Ending
from gateway.verdicts import Dispatched, Offer, Queued, Refusal, Verdict

__all__ = ["Pass", "Turnstile"]

# Looked up once: Python 3.11 finds an enum's member in ten times the time of a global.
_OBSERVE = AdmissionMode.OBSERVE
_MESSAGES = {
    Outcome.PROMPT_TOO_LONG: "The prompt and its output do not fit any engine.",
    Outcome.PAUSED: "An operator has paused this class of requests.",
    Outcome.PRINCIPAL_LIMIT: "This key has too many requests or tokens in flight.",
    Outcome.NOT_FOUND: "This class of requests is not served any more.",
    Outcome.NO_ENGINE: "No engine is available for this model now.",
    Outcome.QUEUE_FULL: "The queue of this class is full.",
    Outcome.QUEUE_TOKENS_FULL: "The queue of this class holds too many prompt tokens.",
    Outcome.QUEUE_BYTES_FULL: "The queue of this class holds too many bytes.",
    Outcome.PREDICTED_WAIT: "The request could not start soon enough to meet its latency target.",
    Outcome.DRAINING: "What serves this request is being drained, and the request had not begun.",
    Outcome.QUEUE_EXPIRED: "The request waited as long as its class allows.",
}


@dataclass(slots=True, eq=False)
class Pass:
    """The right to use one engine, until it is given back to the turnstile.

    ``counted``: in observe mode, the flow group and the caller in whose own cap it counts.
    """

    engine: str
    lease_id: int | None
    key: FlowKey
    ghost: bool = False
    prefilled: bool = False
    output_tokens: int | None = None
    returned: bool = False
    counted: tuple[tuple[str, str, str], str] | None = None


class Turnstile:
    """The async shell of the admission core.

    Args:
        core: decides; nobody else may call it.
        clock: monotonic seconds, the event loop's.
        would_refuse: told each refusal that observe mode did not act on.
    """

    def __init__(
        self,
        core: Admission,
        clock: Callable[[], float],
        would_refuse: Callable[[Offer, Outcome], None],
    ) -> None:
        self.core = core
        self._clock = clock
        self._would_refuse = would_refuse
        self._waiting: dict[int, asyncio.Future[Verdict]] = {}
        self._ghosts: dict[int, tuple[Pass, Offer]] = {}
        # The core knows of ghosts, which wait longer than their requests, or not at all.
        self._own: Counter[tuple[tuple[str, str, str], str]] = Counter()
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at_s = float("inf")

    def refuse_if_full(self, groups: Sequence[tuple[str, str, str]], body_bytes: int) -> None:
        """Refuse a body before it is counted where every flow it may turn out to be in is full.

        Raises:
            Refused: they are.
        """
        full = self.core.full(groups, body_bytes, self._clock())
        if full is not None:
            _refuse(full)

    def begin_counting(self, groups: Sequence[tuple[str, str, str]], body_bytes: int) -> None:
        """Charge a body that is about to be counted to every flow it may turn out to be in.

        Raises:
            Refused: all of them are full; nothing is charged.
        """
        _refuse(self.core.begin_counting(groups, body_bytes, self._clock()))

    def end_counting(self, groups: Sequence[tuple[str, str, str]], body_bytes: int) -> None:
        """Give that charge back; what asks for admission next does so in the same step."""
        self.core.end_counting(groups, body_bytes)

    async def enter(self, offer: Offer, mode: AdmissionMode, ending: Ending) -> Pass:
        """Wait for an engine.

        Raises:
            Refused: with the core's outcome, or the ending's if the request ends while it waits.
        """
        if ending.outcome is not None:  # who left while the prompt was counted gets no engine
            raise _refused(Refusal(0, ending.outcome))
        if mode is _OBSERVE:
            return self._observe(offer)
        now = self._clock()
        ticket_id, verdicts = self.core.offer(offer, now)
        if len(verdicts) == 1 and isinstance(verdicts[0], Dispatched):
            # Nothing else was decided, so it is its own: the way of all while engines have room.
            self._arm(now)
            return Pass(verdicts[0].engine, verdicts[0].lease_id, offer.key)
        return await self._decided(offer.key, ticket_id, verdicts, ending)

    def elsewhere(self, held: Pass) -> bool:
        """Whether another engine than this one could be had for its request now."""
        return bool(self._others(held))

    async def again(self, held: Pass, ending: Ending) -> Pass:
        """Wait for another engine, in front of the others: this one failed before its first byte.

        The request keeps its deadline and its charge. ``held`` ends here, whatever follows.

        Raises:
            Refused: as ``enter``.
        """
        if ending.outcome is not None:
            self.give_back(held)
            raise _refused(Refusal(0, ending.outcome))
        if held.ghost:
            return self._observe_again(held)
        if held.lease_id is None:
            raise MisuseError("a pass that was given back can't be used again")
        lease_id, held.lease_id, held.returned = held.lease_id, None, True
        return await self._decided(held.key, *self.core.requeue(lease_id, self._clock()), ending)

    async def _decided(
        self, key: FlowKey, ticket_id: int, verdicts: Sequence[Verdict], ending: Ending
    ) -> Pass:
        """Perform what the core said, and wait for its word on this ticket if it is still out."""
        own = [verdict for verdict in verdicts if verdict.ticket_id == ticket_id]
        if not own or isinstance(own[0], Queued):
            waiting: asyncio.Future[Verdict] = asyncio.get_running_loop().create_future()
            self._waiting[ticket_id] = waiting
            self._perform(verdicts)
            if not waiting.done():
                await self._wait(ticket_id, waiting, ending)
            verdict = waiting.result()
        else:
            verdict = own[0]
            self._perform([v for v in verdicts if v is not verdict] if len(verdicts) > 1 else ())
        if isinstance(verdict, Dispatched):
            return Pass(verdict.engine, verdict.lease_id, key)
        raise _refused(verdict)

    def first_event(self, held: Pass) -> None:
        """The first data event of a streamed answer came."""
        held.prefilled = True
        if held.lease_id is not None:
            self._perform(self.core.prefill_done(held.lease_id, self._clock()))

    def grow(self, held: Pass, output_tokens: int) -> None:
        """The answer has this many output tokens so far."""
        if held.lease_id is not None:
            self.core.grow(held.lease_id, output_tokens)

    def give_back(self, held: Pass, output_tokens: int | None = None) -> None:
        """The one end of a pass, whatever the way the request ended."""
        held.returned = True
        held.output_tokens = output_tokens
        if held.counted is not None:
            self._discount(held.counted)
            held.counted = None
        if held.lease_id is not None:
            lease_id, held.lease_id = held.lease_id, None
            now = self._clock()
            verdicts = self.core.release(lease_id, now, output_tokens)
            if verdicts:
                self._perform(verdicts)
            else:
                self._arm(now)

    def tell(self, change: Callable[[Admission, float], Sequence[Verdict]]) -> None:
        """Apply a change of health, limits or routes, and perform what follows from it."""
        self._perform(change(self.core, self._clock()))

    def close(self) -> None:
        """Stop the timer. Nobody may wait any more."""
        if self._timer is not None:
            self._timer.cancel()

    @property
    def waiting(self) -> int:
        """Requests that wait now."""
        return len(self._waiting)

    # -- waiting ---------------------------------------------------------------------------

    async def _wait(self, ticket_id: int, waiting: asyncio.Future[Verdict], ending: Ending) -> None:
        """Until the core decides or the request ends; an ended request leaves the core first."""

        def leave() -> None:
            self._perform(self.core.cancel(ticket_id, self._clock()))
            if self._waiting.pop(ticket_id, None) is not None:
                waiting.set_result(Refusal(ticket_id, ending.outcome or Outcome.CLIENT_CANCELLED))

        ending.watch(leave)
        try:
            await asyncio.wait((waiting,))
        except asyncio.CancelledError:
            self._abandon(ticket_id, waiting)
            raise
        finally:
            ending.unwatch(leave)

    def _abandon(self, ticket_id: int, waiting: asyncio.Future[Verdict]) -> None:
        """The task was cancelled: take back whatever was decided for it in the same moment.

        The core may have expired or dispatched it just now: its verdicts are performed first.
        """
        self._perform(self.core.cancel(ticket_id, self._clock()))
        if self._waiting.pop(ticket_id, None) is None:
            verdict = waiting.result()
            if isinstance(verdict, Dispatched):
                self._perform(self.core.release(verdict.lease_id, self._clock()))

    def _observe(self, offer: Offer) -> Pass:
        self._obey(offer)
        engine = self.core.pick(offer.key)
        if engine is None:
            raise self._none(offer.key)
        held = Pass(engine, None, offer.key, ghost=True)
        if offer.principal_cap is not None:
            held.counted = (offer.key.group, offer.principal)
            self._own[held.counted] += 1
        ticket_id, verdicts = self.core.offer(offer, self._clock())
        self._ghosts[ticket_id] = (held, offer)
        self._perform(verdicts)
        return held

    def _obey(self, offer: Offer) -> None:
        """What holds in every mode, in the core's order: a drain, a pause, the key's own cap."""
        flow, cap = self.core.flows.get(offer.key), offer.principal_cap
        if flow is None or flow.draining:
            raise self._none(offer.key)
        if flow.group.paused:
            raise Refused(Outcome.PAUSED, _MESSAGES[Outcome.PAUSED])
        if cap is not None and self._own[offer.key.group, offer.principal] >= cap:
            raise Refused(Outcome.PRINCIPAL_LIMIT, _MESSAGES[Outcome.PRINCIPAL_LIMIT])

    def _discount(self, counted: tuple[tuple[str, str, str], str]) -> None:
        self._own[counted] -= 1
        if not self._own[counted]:
            del self._own[counted]

    def _observe_again(self, held: Pass) -> Pass:
        """Forward to another engine; the ghost goes on waiting, or stays charged, as it is."""
        others = self._others(held)
        if not others:
            self.give_back(held)
            raise self._none(held.key)
        held.engine = min(others, key=lambda e: (e.prefill_used, e.slots_used)).name
        return held

    def _none(self, key: FlowKey) -> Refused:
        flow = self.core.flows.get(key)
        draining = flow is not None and flow.draining
        outcome = Outcome.DRAINING if draining else Outcome.NO_ENGINE
        return Refused(outcome, _MESSAGES[outcome])

    def _others(self, held: Pass) -> list[EngineLedger]:
        flow = self.core.flows.get(held.key)
        engines = () if flow is None else flow.engines
        return [e for e in engines if e.usable and e.name != held.engine]

    # -- verdicts --------------------------------------------------------------------------

    def _perform(self, verdicts: Sequence[Verdict]) -> None:
        for verdict in verdicts:
            if not isinstance(verdict, Queued):
                waiting = self._waiting.pop(verdict.ticket_id, None)
                if waiting is not None:
                    waiting.set_result(verdict)
                else:
                    self._perform_ghost(verdict)
        self._arm(self._clock())

    def _perform_ghost(self, verdict: Dispatched | Refusal) -> None:
        held, offer = self._ghosts.pop(verdict.ticket_id)
        if isinstance(verdict, Refusal):
            self._would_refuse(offer, verdict.outcome)
            return
        held.lease_id = verdict.lease_id
        if held.returned:
            self.give_back(held, held.output_tokens)
        elif held.prefilled:
            self.first_event(held)

    def _arm(self, now: float) -> None:
        """One timer: set it if the next wakeup comes before the one that is set."""
        if self.core.idle_until(self._timer_at_s, now):
            return
        due_s = self.core.next_wakeup(now)
        if due_s is None or due_s >= self._timer_at_s:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at_s = due_s
        delay_s = max(0.0, due_s - now)
        self._timer = asyncio.get_running_loop().call_later(delay_s, self._tick)

    def _tick(self) -> None:
        self._timer_at_s = float("inf")
        self._perform(self.core.tick(self._clock()))


def _refuse(full: tuple[Outcome, float] | None) -> None:
    if full is not None:
        raise Refused(full[0], _MESSAGES[full[0]], full[1])


def _refused(verdict: Verdict) -> Refused:
    if not isinstance(verdict, Refusal):
        raise TypeError(f"no end for {verdict}")
    outcome = verdict.outcome
    if outcome is Outcome.DRAIN_TERMINATED:
        return Refused(Outcome.DRAINING, _MESSAGES[Outcome.DRAINING])
    return Refused(outcome, _MESSAGES.get(outcome, ""), verdict.wait_s)

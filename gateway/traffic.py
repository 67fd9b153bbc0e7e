"""Moves requests: from the queues to engines under a lease, back, and out; and keeps what is due.

``admission`` says what happened, and this does what follows from it: whoever can go goes, whoever
is late leaves. Tickets and leases are keyed by its own counter, never by an id a caller can choose.
Pure: no I/O, no clock.
"""

from gateway.agenda import Agenda
from gateway.arrival import could_ever_fit, late
from gateway.domain import MisuseError, Outcome
from gateway.flows import Ticket
from gateway.lease import Lease
from gateway.ledger import EngineLedger
from gateway.ring import Ring
from gateway.topology import Layout
from gateway.verdicts import Dispatched, Refusal, Verdict

__all__ = ["Traffic"]

RAMP_STEP_S = 1.0


class Traffic:
    """What waits, what runs, and two heaps of deadlines.

    Args:
        layout: the flows, engines and rings.
    """

    def __init__(self, layout: Layout) -> None:
        self.layout = layout
        self.tickets: dict[int, Ticket] = {}
        self.leases: dict[int, Lease] = {}
        self.deadlines = Agenda(self.tickets.__contains__)
        self.estimates = Agenda(self.still_prefilling)
        self._last_id = 0

    def number(self) -> int:
        """The next number for a ticket or a lease."""
        self._last_id += 1
        return self._last_id

    def lease(self, lease_id: int) -> Lease:
        """A lease that has not been given back.

        Raises:
            MisuseError: there is none of that number.
        """
        lease = self.leases.get(lease_id)
        if lease is None:
            raise MisuseError(f"no such lease, or it was released before: {lease_id}")
        return lease

    def still_prefilling(self, lease_id: int) -> bool:
        """Whether an estimate of the end of its prefill still matters."""
        lease = self.leases.get(lease_id)
        return lease is not None and lease.prefilling

    def idle_until(self, at_s: float, now: float) -> bool:
        """Whether there is nothing to do before ``at_s``; found without a search, so it may err."""
        return (
            at_s <= self.estimates.soonest_s
            and at_s <= self.deadlines.soonest_s
            and at_s <= now + RAMP_STEP_S
        )

    def is_due(self, now: float) -> bool:
        """Whether a deadline or an estimate has come that nothing was done about yet."""
        return self.deadlines.is_due(now) or self.estimates.is_due(now)

    def next_wakeup(self, now: float) -> float | None:
        """When something is due by time, if nothing else happens before."""
        due = [self.deadlines.next_s(), self.estimates.next_s()]
        if any(e.ramp_from_s is not None for e in self.layout.engines.values()):
            due.append(now + RAMP_STEP_S)
        return min((at_s for at_s in due if at_s is not None), default=None)

    # -- who can go, goes ------------------------------------------------------------------

    def dispatch_all(self, now: float) -> list[Verdict]:
        """Let every ring go as far as it can."""
        rings = dict.fromkeys(self.layout.rings.values())
        return [v for ring in rings for v in self.run(ring, now)]

    def changed(self, engine: EngineLedger, now: float) -> list[Verdict]:
        """Health or limits of an engine changed, for better or worse of those who may use it."""
        ring = self.layout.engine_rings.get(engine.name)
        if ring is None:
            return []
        ring.look_again()
        return self.run(ring, now)

    def freed(self, engine: EngineLedger, now: float) -> list[Verdict]:
        """Something came free on an engine; one that no route names any more serves nobody."""
        ring = self.layout.engine_rings.get(engine.name)
        if ring is None or (ring.holding and engine.is_spent()):
            return []
        if not self.tickets:
            ring.rest()
            return []
        return self.run(ring, now)

    def run(self, ring: Ring, now: float) -> list[Verdict]:
        """Let one ring go as far as it can."""
        verdicts: list[Verdict] = []
        while (choice := ring.next(now)) is not None or ring.refused:
            for ticket in ring.refused:
                del self.tickets[ticket.id]
                ticket.flow.group.leave(ticket.principal)
                verdicts.append(Refusal(ticket.id, Outcome.PREDICTED_WAIT))
            if choice is not None:
                ticket, engine = choice
                del self.tickets[ticket.id]
                verdicts.append(self.start(ticket, engine, now))
            if ring.refused:  # not before the lease: a flow at rest may be gone after this
                ring.refused.clear()
                self.settle()
        return verdicts

    def start(self, ticket: Ticket, engine: EngineLedger, now: float) -> Dispatched:
        """Take the lease of a ticket that goes to ``engine``."""
        lease = engine.take(self.number(), ticket, now)
        self.leases[lease.id] = lease
        ticket.flow.running += 1
        if lease.prefill_until_s is not None:
            self.estimates.add(lease.prefill_until_s, lease.id)
        return Dispatched(ticket.id, engine.name, lease.id)

    # -- waiting and leaving ---------------------------------------------------------------

    def give_back(self, lease: Lease) -> EngineLedger:
        """End a lease; returns its engine."""
        del self.leases[lease.id]
        engine = self.layout.engines[lease.engine]
        engine.release(lease)
        lease.flow.running -= 1
        return engine

    def wait_in_front(self, ticket: Ticket, now: float) -> None:
        """Put back what was dispatched, before all others of its flow; a hold there ends."""
        flow = ticket.flow
        if flow.hold is not None:
            self.layout.rings[flow].end_hold(flow)
        flow.restore(ticket, now)
        self.tickets[ticket.id] = ticket
        self.deadlines.add(ticket.deadline_s, ticket.id)

    def leave(self, ticket: Ticket) -> None:
        """Take a waiting ticket out of its queue without a dispatch."""
        flow = ticket.flow
        if flow.hold is not None and flow.hold.ticket is ticket:
            self.layout.rings[flow].end_hold(flow)
        flow.remove(ticket)
        del self.tickets[ticket.id]
        flow.group.leave(ticket.principal)

    def expire(self, now: float) -> list[Verdict]:
        """Do what is due: refuse who is late, end estimated prefills, and what follows."""
        verdicts: list[Verdict] = []
        if self.deadlines.soonest_s > now and self.estimates.soonest_s > now:
            return verdicts
        touched: dict[Ring, None] = {}
        freed: dict[EngineLedger, None] = {}
        while (ticket_id := self.deadlines.pop_due(now)) is not None:
            ticket = self.tickets[ticket_id]
            verdicts.append(late(ticket, now))
            self.leave(ticket)
            touched[self.layout.rings[ticket.flow]] = None
        while (lease_id := self.estimates.pop_due(now)) is not None:
            lease = self.leases[lease_id]
            engine = self.layout.engines[lease.engine]
            engine.prefill_done(lease)
            freed[engine] = None
        for ring in touched:
            verdicts += self.run(ring, now)
        for engine in freed:
            verdicts += self.freed(engine, now)
        if touched:
            self.settle()
        return verdicts

    def refuse_misfits(self) -> list[Verdict]:
        """Limits, pools or routes changed: what drains or can't fit any more waits for nothing."""
        verdicts: list[Verdict] = []
        for ticket in list(self.tickets.values()):
            if ticket.flow.draining:
                outcome = Outcome.DRAINING
            elif ticket.flow.engines and not could_ever_fit(ticket):
                outcome = Outcome.PROMPT_TOO_LONG
            else:
                continue
            self.leave(ticket)
            verdicts.append(Refusal(ticket.id, outcome))
        self.settle()
        return verdicts

    def settle(self) -> None:
        """Drop what the configuration no longer names and is at rest now."""
        if self.layout.leaving:
            self.layout.settle()

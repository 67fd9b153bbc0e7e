"""Decides who starts, who waits, who is refused: the one place where that answer can change.

A request arrives (``offer``), waits in its flow's queue, is dispatched to an engine under a
lease, and gives the lease back. Every call takes ``now``, does what is due, and returns verdicts
in the order in which they fell; the caller performs them. Nothing polls: dispatch is tried on
arrival, end of prefill, release, limit, health and route changes, expiry, and at ``next_wakeup``.

Rules, each proved by a property test in ``tests/gateway/test_admission_properties.py``:
what waits is bounded by count, tokens and bytes; nobody waits past a deadline; flows get their
shares; a head that waits for shared capacity is passed only by reserved capacity; an engine's
account is exact; capacity is never idle while an eligible head fits.

Tickets and leases are keyed by this module's own counters, never by an id a caller can choose.
``ARCHITECTURE.md`` has the essay. Pure: no I/O, no clock.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from operator import attrgetter

from gateway.arrival import (
    refusal_on_arrival,
    refusal_on_return,
    refusal_to_wait,
    refusal_uncounted,
)
from gateway.domain import AdmissionMode, EngineLimits, FlowKey, FlowSpec, MisuseError, Outcome
from gateway.flows import Flow, Ticket
from gateway.lease import EngineView
from gateway.ledger import EngineLedger
from gateway.principals import PrincipalRates
from gateway.topology import Layout
from gateway.traffic import Traffic
from gateway.verdicts import (
    FlowView,
    Offer,
    Queued,
    Refusal,
    Topology,
    Verdict,
)

__all__ = ["Admission"]

# Looked up once: Python 3.11 finds an enum's member in ten times the time of a global.
_ENFORCE, _OFF = AdmissionMode.ENFORCE, AdmissionMode.OFF
_PREDICTED = Outcome.PREDICTED_WAIT


class Admission:
    """The admission core. Mutable state: flows, ledgers, leases and two heaps of deadlines.

    Args:
        specs: one per (model, size class, service class).
        topology: engines, pools and routes.
        now: the current moment; engines count as down since then until told otherwise.
        quantum: cost units per turn and weight; ``beta``: an output token's cost in prompt tokens.
    """

    def __init__(
        self,
        specs: Sequence[FlowSpec],
        topology: Topology,
        now: float,
        *,
        quantum: float = 1024.0,
        beta: float = 0.3,
    ) -> None:
        self.beta = beta
        self._layout = Layout(specs, topology, now, quantum, beta)
        self._traffic = Traffic(self._layout)
        self.engines = self._layout.engines
        self.groups = self._layout.groups
        self.flows = self._layout.flows
        self._rates = PrincipalRates()

    # -- a request's life ------------------------------------------------------------------

    def offer(self, offer: Offer, now: float) -> tuple[int, list[Verdict]]:
        """Admit, queue or refuse one request; returns its ticket id and all verdicts that fell."""
        verdicts = self._traffic.expire(now)
        number = self._traffic.number()
        flow = self.flows.get(offer.key)
        if flow is None:
            verdicts.append(Refusal(number, Outcome.NOT_FOUND))
            return number, verdicts
        ticket = self._ticket(number, offer, flow)
        refusal = refusal_on_arrival(ticket, offer.principal_cap, self._rates, now)
        if refusal is not None:
            verdicts.append(refusal)
            return number, verdicts
        flow.group.enter(offer.principal)
        if flow.rated:
            self._rates.charge(flow.group.spec, offer.principal, ticket.prompt_tokens, now)
        if flow.mode is _OFF:
            verdicts.append(self._pass_through(ticket, now))
            return ticket.id, verdicts
        ring, was_empty = self._layout.rings[flow], not flow.queue
        engine = ring.at_once(flow, ticket) if was_empty else None
        if engine is not None:
            verdicts.append(self._traffic.start(ticket, engine, now))
            return number, verdicts
        ahead = flow.queued_cost
        self._traffic.tickets[ticket.id] = ticket
        flow.append(ticket, now)
        if was_empty:
            verdicts += self._traffic.run(ring, now)
        if ticket.id in self._traffic.tickets:
            verdicts.append(self._wait_or_refuse(ticket, ahead, now))
        return ticket.id, verdicts

    def requeue(
        self, lease_id: int, now: float, *, avoid: bool = True
    ) -> tuple[int, list[Verdict]]:
        """The request under this lease failed before its first byte: it goes back to wait.

        The lease is released. The ticket returns to the front of its flow, under a new number,
        with its arrival, deadline, cost and its caller's count; the dispatch's charge is given back
        to the flow. With ``avoid`` it keeps away from the engine it failed on while another could
        take it, now or later. Where admission is off it starts at once elsewhere, or is refused.

        Returns:
            The ticket id to wait on, and all verdicts that fell: its own is among them.
        """
        lease = self._traffic.lease(lease_id)
        verdicts = self._traffic.expire(now)
        ticket, flow = lease.ticket, lease.flow
        engine = self._traffic.give_back(lease)
        ticket.id = self._traffic.number()
        if avoid and engine not in ticket.avoids:
            ticket.avoids = (*ticket.avoids, engine)
        refusal = refusal_on_return(ticket, now)
        if refusal is not None:
            flow.group.leave(ticket.principal)
            verdicts.append(refusal)
        elif flow.mode is _OFF:
            verdicts.append(self._pass_through(ticket, now))
        else:
            self._traffic.wait_in_front(ticket, now)
            verdicts += self._traffic.run(self._layout.rings[flow], now)
        verdicts += self._traffic.freed(engine, now)
        if ticket.id in self._traffic.tickets:
            verdicts.append(Queued(ticket.id, ticket.deadline_s))
        self._traffic.settle()
        return ticket.id, verdicts

    def cancel(self, ticket_id: int, now: float) -> list[Verdict]:
        """Its caller left while it waited. A ticket that no longer waits is left alone."""
        verdicts = self._traffic.expire(now)
        ticket = self._traffic.tickets.get(ticket_id)
        if ticket is not None:
            self._traffic.leave(ticket)
            verdicts += self._traffic.run(self._layout.rings[ticket.flow], now)
            self._traffic.settle()
        return verdicts

    def prefill_done(self, lease_id: int, now: float) -> list[Verdict]:
        """The first data event of an answer came: its prompt is computed."""
        lease = self._traffic.lease(lease_id)
        verdicts = self._traffic.expire(now)
        if lease.prefilling:
            engine = self.engines[lease.engine]
            engine.prefill_done(lease, now)
            if lease.ticket.streamed:
                due_s = lease.ticket.due_s
                lease.flow.group.first_event(now - (lease.dispatched_s if due_s is None else due_s))
            verdicts += self._traffic.freed(engine, now)
        return verdicts

    def grow(self, lease_id: int, output_tokens: int) -> None:
        """An answer has this many output tokens so far, over all its sequences.

        What exceeds the estimate is charged to the KV account.
        """
        lease = self._traffic.lease(lease_id)
        self.engines[lease.engine].grow(lease, output_tokens)

    def release(self, lease_id: int, now: float, output_tokens: int | None = None) -> list[Verdict]:
        """The one owner of a lease gives it back, whatever the way it ended.

        Args:
            lease_id: from ``Dispatched``.
            now: the moment.
            output_tokens: what a completed answer produced over all its sequences, where the
                engine said so.
        """
        lease = self._traffic.lease(lease_id)
        verdicts = self._traffic.expire(now)
        engine = self._traffic.give_back(lease)
        lease.flow.group.leave(lease.ticket.principal)
        if output_tokens is not None:
            lease.flow.group.completed(output_tokens // lease.ticket.slots)
        verdicts += self._traffic.freed(engine, now)
        self._traffic.settle()
        return verdicts

    def tick(self, now: float) -> list[Verdict]:
        """Do what is due by time: expire, end estimated prefills, raise ramps."""
        verdicts = self._traffic.expire(now)
        for engine in self.engines.values():
            engine.ramp(now)
        return verdicts + self._traffic.dispatch_all(now)

    def next_wakeup(self, now: float) -> float | None:
        """When ``tick`` has something to do, if nothing else happens before."""
        return self._traffic.next_wakeup(now)

    def idle_until(self, at_s: float, now: float) -> bool:
        """True: ``next_wakeup`` is not before ``at_s``; costs less. False: ask it."""
        return self._traffic.idle_until(at_s, now)

    # -- configuration and health ----------------------------------------------------------

    def reconfigure(
        self, specs: Sequence[FlowSpec], topology: Topology, now: float
    ) -> list[Verdict]:
        """Put another configuration in force in one step; what runs stays, what waits follows it.

        New engines start down. A waiting deadline becomes the earlier of its own and the new
        maximum age from now. ``gateway.topology`` tells what becomes of what is gone.

        Raises:
            MisuseError: the configuration names what it does not define; nothing was changed.
        """
        verdicts = self._traffic.expire(now)
        self._layout.replace(specs, topology, now)
        for ticket in self._traffic.tickets.values():
            if ticket.flow.accepts:
                latest_s = now + ticket.flow.group.spec.max_age_s
                ticket.deadline_s = min(ticket.deadline_s, latest_s)
        self._traffic.deadlines.restart(
            (t.deadline_s, t.id) for t in self._traffic.tickets.values()
        )
        return verdicts + self._traffic.refuse_misfits() + self._traffic.dispatch_all(now)

    def adapt(self, engine: str, limits: EngineLimits, now: float) -> list[Verdict]:
        """Put other N and U in force on one engine, in the bounds of what is configured.

        Raises:
            MisuseError: they are above the configured ones, or differ in anything else.
        """
        ledger = self.engines[engine]
        most = ledger.configured
        mine = replace(most, slots=limits.slots, prefill_tokens=limits.prefill_tokens)
        if (
            mine != limits
            or limits.slots > most.slots
            or limits.prefill_tokens > most.prefill_tokens
        ):
            raise MisuseError(f"{engine}: {limits} is no part of the configured {most}")
        verdicts = self._traffic.expire(now)
        if ledger.limits != limits:
            ledger.adapt(limits, now)
            verdicts += self._traffic.changed(ledger, now)
        return verdicts

    def restarted(self, engine: str, now: float) -> list[Verdict]:
        """Another epoch of an engine: learnt rate and adapted limits go, N ramps; leases stay."""
        ledger = self.engines[engine]
        verdicts = self._traffic.expire(now)
        ledger.restarted(now)
        return verdicts + self._traffic.changed(ledger, now)

    def set_engine(
        self, engine: str, now: float, *, up: bool | None = None, draining: bool | None = None,
        paused: bool | None = None, ramp: bool = False,
    ) -> list[Verdict]:  # fmt: skip
        """Tell the health, drain or pause of an engine; a hold on a lost engine ends."""
        ledger = self.engines[engine]
        ledger.set_state(now, up=up, draining=draining, paused=paused, ramp=ramp)
        for flow in (f for f in self.flows.values() if ledger in f.engines):
            if not any(e.usable for e in flow.engines):
                flow.rate.empty()
            elif flow.queue:
                flow.rate.waiting(now)
        verdicts = self._traffic.expire(now)
        return verdicts + self._traffic.changed(ledger, now)

    def pause(self, group: tuple[str, str, str], *, paused: bool) -> None:
        """An operator stops or resumes new arrivals of a flow; what waits still goes."""
        self.groups[group].paused = paused

    # -- the counting stage's provisional charge -------------------------------------------

    def begin_counting(
        self, groups: Sequence[tuple[str, str, str]], body_bytes: int, now: float
    ) -> tuple[Outcome, float] | None:
        """Charge an uncounted body to every group it may be in, unless ``full`` refuses it."""
        full = self.full(groups, body_bytes, now)
        if full is None:
            for group in groups:
                self.groups[group].count(1, body_bytes)
        return full

    def full(
        self, groups: Sequence[tuple[str, str, str]], body_bytes: int, now: float
    ) -> tuple[Outcome, float] | None:
        """Whether an uncounted body can't wait in any of the groups it may turn out to be in.

        If all of them enforce, and are at their caps or would have the smallest request wait longer
        than its target, the last one's refusal and its time in seconds are returned: no need to
        count what ends as well.
        """
        found, room = None, not groups
        for group in groups:
            flow = self.flows.get(FlowKey(*group))
            if flow is None or not flow.accepts:
                return Outcome.NOT_FOUND, 0.0
            enforced = flow.mode is _ENFORCE
            found = refusal_uncounted(flow, body_bytes, now) if enforced else None
            # What is due first may let the queue move on: then it is for the count to say.
            due = found is not None and found[0] is _PREDICTED and self._traffic.is_due(now)
            room = room or found is None or due
        return None if room else found

    def end_counting(self, groups: Sequence[tuple[str, str, str]], body_bytes: int) -> None:
        """Give the provisional charge back, in the same step as ``offer`` or an early end."""
        for group in groups:
            self.groups[group].count(-1, -body_bytes)
        self._traffic.settle()

    # -- what an observer may ask ----------------------------------------------------------

    def flow_views(self, now: float) -> list[FlowView]:
        """Every flow's queue at this moment; ages come from the enqueue times."""
        return [flow.view(now) for flow in self.flows.values()]

    def engine_views(self) -> list[EngineView]:
        """Every engine's account at this moment."""
        return [e.view() for e in self.engines.values()]

    def pick(self, key: FlowKey) -> str | None:
        """The usable engine with the least prefill outstanding, whatever its limits."""
        engine = _least_loaded(self.flows[key].engines) if key in self.flows else None
        return None if engine is None else engine.name

    def gate_bound(self, engine: str) -> bool:
        """Whether slots or prefill tokens of this engine stopped a head since this was asked."""
        ledger, ring = self.engines[engine], self._layout.engine_rings.get(engine)
        for flow in () if ring is None else ring.flows:
            if flow.head is not None and ledger in flow.engines:
                ledger.obstacle(flow, flow.head)
        bound, ledger.bound = ledger.bound, False
        return bound

    def __repr__(self) -> str:
        waiting = [f for f in self.flows.values() if f.queue]
        running = len(self._traffic.leases)
        return f"<Admission: {running} running; {waiting}; {[*self.engines.values()]}>"

    # -- arrival ---------------------------------------------------------------------------

    def _ticket(self, number: int, offer: Offer, flow: Flow) -> Ticket:
        charge = flow.group.output_charge(offer.max_tokens, offer.slots)
        age_s = flow.group.spec.max_age_s
        if offer.max_wait_s is not None:
            age_s = min(age_s, max(0.0, offer.max_wait_s))
        return Ticket(
            number, flow, offer.principal, offer.slots, offer.prompt_tokens, charge,
            offer.body_bytes, offer.streamed, offer.affinity, offer.arrived_s,
            offer.arrived_s + age_s, offer.prompt_tokens + self.beta * charge,
            offer.prompt_tokens + charge,
        )  # fmt: skip

    def _pass_through(self, ticket: Ticket, now: float) -> Verdict:
        engine = _least_loaded(e for e in ticket.flow.engines if e not in ticket.avoids)
        if engine is None:
            ticket.flow.group.leave(ticket.principal)
            return Refusal(ticket.id, Outcome.NO_ENGINE)
        return self._traffic.start(ticket, engine, now)

    def _wait_or_refuse(self, ticket: Ticket, ahead: float, now: float) -> Verdict:
        refusal = refusal_to_wait(ticket, ahead, now)
        if refusal is not None:
            self._traffic.leave(ticket)
            return refusal
        self._traffic.deadlines.add(ticket.deadline_s, ticket.id)
        return Queued(ticket.id, ticket.deadline_s)


def _least_loaded(engines: Iterable[EngineLedger]) -> EngineLedger | None:
    return min((e for e in engines if e.usable), key=attrgetter("left"), default=None)

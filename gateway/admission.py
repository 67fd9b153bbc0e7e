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

from collections import Counter
from collections.abc import Mapping, Sequence

from gateway.agenda import Agenda
from gateway.arrival import caps_outcome, refusal_on_arrival, wait_s
from gateway.domain import (
    AdmissionMode,
    Arm,
    EngineLimits,
    FlowKey,
    FlowSpec,
    MisuseError,
    Outcome,
)
from gateway.flows import Flow, Group, Ticket
from gateway.lease import EngineView, Lease
from gateway.ledger import EngineLedger
from gateway.principals import PrincipalRates
from gateway.ring import Ring, rings_of
from gateway.verdicts import (
    Dispatched,
    FlowView,
    Offer,
    Queued,
    Refusal,
    RouteView,
    Topology,
    Verdict,
)

__all__ = ["Admission"]

RAMP_STEP_S = 1.0


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
        self.quantum = quantum
        self.beta = beta
        self.engines = {n: EngineLedger(n, lim, now) for n, lim in topology.engines.items()}
        self.groups = {s.group: Group(s) for s in specs}
        self.flows: dict[FlowKey, Flow] = {}
        self._pools = {name: tuple(members) for name, members in topology.pools.items()}
        self._routes: dict[tuple[str, str], RouteView] = {}
        self._rings: dict[Flow, Ring] = {}
        self._engine_rings: dict[str, Ring] = {}
        self._tickets: dict[int, Ticket] = {}
        self._leases: dict[int, Lease] = {}
        self._deadlines = Agenda(self._tickets.__contains__)
        self._estimates = Agenda(self._still_prefilling)
        self._rates = PrincipalRates()
        self._last_id = 0
        self.set_routes(topology.routes, now)

    # -- a request's life ------------------------------------------------------------------

    def offer(self, offer: Offer, now: float) -> tuple[int, list[Verdict]]:
        """Admit, queue or refuse one request; returns its ticket id and all verdicts that fell."""
        verdicts = self._expire(now)
        self._last_id += 1
        ticket = self._ticket(offer)
        flow = ticket.flow
        refusal = refusal_on_arrival(ticket, offer.principal_cap, self._rates, now)
        if refusal is not None:
            verdicts.append(refusal)
            return ticket.id, verdicts
        flow.group.enter(offer.principal)
        self._rates.charge(flow.group.spec, offer.principal, ticket.prompt_tokens, now)
        if flow.mode is AdmissionMode.OFF:
            verdicts.append(self._pass_through(ticket, now))
            return ticket.id, verdicts
        ahead = flow.queued_cost
        was_empty = not flow.queue
        self._tickets[ticket.id] = ticket
        flow.append(ticket, now)
        if was_empty:
            verdicts += self._run(self._rings[flow], now)
        if ticket.id in self._tickets:
            verdicts.append(self._wait_or_refuse(ticket, ahead, now))
        return ticket.id, verdicts

    def cancel(self, ticket_id: int, now: float) -> list[Verdict]:
        """Its caller left while it waited. A ticket that no longer waits is left alone."""
        verdicts = self._expire(now)
        ticket = self._tickets.get(ticket_id)
        if ticket is not None:
            self._leave_queue(ticket)
            verdicts += self._run(self._rings[ticket.flow], now)
        return verdicts

    def prefill_done(self, lease_id: int, now: float) -> list[Verdict]:
        """The first data event of an answer came: its prompt is computed."""
        lease = self._lease(lease_id)
        verdicts = self._expire(now)
        if lease.prefilling:
            self.engines[lease.engine].prefill_done(lease, now)
            if lease.streamed:
                lease.flow.group.first_event(now - lease.dispatched_s)
            verdicts += self._freed(lease.engine, now)
        return verdicts

    def grow(self, lease_id: int, output_tokens: int) -> None:
        """An answer has this many output tokens so far, over all its sequences.

        What exceeds the estimate is charged to the KV account.
        """
        lease = self._lease(lease_id)
        self.engines[lease.engine].grow(lease, output_tokens)

    def release(self, lease_id: int, now: float, output_tokens: int | None = None) -> list[Verdict]:
        """The one owner of a lease gives it back, whatever the way it ended.

        Args:
            lease_id: from ``Dispatched``.
            now: the moment.
            output_tokens: what a completed answer produced over all its sequences, where the
                engine said so.
        """
        lease = self._lease(lease_id)
        verdicts = self._expire(now)
        del self._leases[lease_id]
        self.engines[lease.engine].release(lease)
        lease.flow.group.leave(lease.principal)
        if output_tokens is not None:
            lease.flow.group.completed(output_tokens // lease.slots)
        verdicts += self._freed(lease.engine, now)
        return verdicts

    def tick(self, now: float) -> list[Verdict]:
        """Do what is due by time: expire, end estimated prefills, raise ramps."""
        verdicts = self._expire(now)
        for engine in self.engines.values():
            engine.ramp(now)
        return verdicts + self._dispatch_all(now)

    def next_wakeup(self, now: float) -> float | None:
        """When ``tick`` has something to do, if nothing else happens before."""
        due = [self._deadlines.next_s(), self._estimates.next_s()]
        if any(e.ramp_from_s is not None for e in self.engines.values()):
            due.append(now + RAMP_STEP_S)
        return min((at_s for at_s in due if at_s is not None), default=None)

    # -- configuration and health ----------------------------------------------------------

    def set_routes(self, routes: Mapping[tuple[str, str], RouteView], now: float) -> list[Verdict]:
        """Put another route table in force; what still waits follows it, what runs stays."""
        verdicts = self._expire(now)
        self._routes = dict(routes)
        for spec in (g.spec for g in self.groups.values()):
            for arm in Arm:
                self._place_flow(FlowKey(spec.model, spec.size_class, spec.service_class, arm))
        for engine in self.engines.values():
            named = (f for f in self.flows.values() if engine in f.engines and f.routed)
            engine.reserve(named, now)
        rings = rings_of(self.flows.values(), self.quantum, self._rings)
        self._rings = {flow: ring for ring in rings for flow in ring.flows}
        self._engine_rings = {e.name: ring for ring in rings for e in ring.engines}
        return verdicts + self._dispatch_all(now)

    def set_limits(self, engine: str, limits: EngineLimits, now: float) -> list[Verdict]:
        """Put other limits in force on one engine. A shrink cancels nothing that runs."""
        self.engines[engine].set_limits(limits, now)
        for flow in self.flows.values():
            flow.use(flow.engines)
        return self._expire(now) + self._dispatch_all(now)

    def set_engine(
        self, engine: str, now: float, *, up: bool | None = None, draining: bool | None = None,
        paused: bool | None = None, ramp: bool = False,
    ) -> list[Verdict]:  # fmt: skip
        """Tell the health, drain or pause of an engine; a hold on a lost engine ends."""
        ledger = self.engines[engine]
        ledger.set_state(now, up=up, draining=draining, paused=paused, ramp=ramp)
        if ledger.hold is not None and not ledger.usable:
            self._rings[ledger.hold.flow].end_hold(ledger.hold.flow)
        for flow in (f for f in self.flows.values() if ledger in f.engines):
            if not any(e.usable for e in flow.engines):
                flow.rate.empty()
            elif flow.queue:
                flow.rate.waiting(now)
        return self._expire(now) + self._dispatch_all(now)

    def pause(self, group: tuple[str, str, str], *, paused: bool) -> None:
        """An operator stops or resumes new arrivals of a flow; what waits still goes."""
        self.groups[group].paused = paused

    # -- the counting stage's provisional charge -------------------------------------------

    def begin_counting(
        self, groups: Sequence[tuple[str, str, str]], body_bytes: int, now: float
    ) -> tuple[Outcome, float] | None:
        """Charge an uncounted body to every group it may turn out to be in.

        If all of them are at their caps and enforce them, nothing is charged, and the last one's
        refusal and drain time in seconds are returned: no need to count what can't wait.
        """
        flows = [self.flows[FlowKey(*group)] for group in groups]
        full = [caps_outcome(flow.group, 0, body_bytes) for flow in flows]
        enforced = all(flow.mode is AdmissionMode.ENFORCE for flow in flows)
        if enforced and flows and full[-1] is not None and all(full):
            return full[-1], wait_s(flows[-1], flows[-1].queued_cost, now)
        for flow in flows:
            flow.group.count(1, body_bytes)
        return None

    def end_counting(self, groups: Sequence[tuple[str, str, str]], body_bytes: int) -> None:
        """Give the provisional charge back, in the same step as ``offer`` or an early end."""
        for group in groups:
            self.groups[group].count(-1, -body_bytes)

    # -- what an observer may ask ----------------------------------------------------------

    def flow_views(self, now: float) -> list[FlowView]:
        """Every flow's queue at this moment; ages come from the enqueue times."""
        running = Counter(lease.flow for lease in self._leases.values())
        return [flow.view(running[flow], now) for flow in self.flows.values()]

    def engine_views(self) -> list[EngineView]:
        """Every engine's account at this moment."""
        return [e.view() for e in self.engines.values()]

    def pick(self, key: FlowKey) -> str | None:
        """The usable engine with the least prefill outstanding, whatever its limits."""
        usable = [e for e in self.flows[key].engines if e.usable]
        return min(usable, key=lambda e: (e.prefill_used, e.slots_used)).name if usable else None

    def __repr__(self) -> str:
        waiting = [f for f in self.flows.values() if f.queue]
        return f"<Admission: {len(self._leases)} running; {waiting}; {[*self.engines.values()]}>"

    # -- arrival ---------------------------------------------------------------------------

    def _ticket(self, offer: Offer) -> Ticket:
        flow = self.flows.get(offer.key)
        if flow is None:
            raise MisuseError(f"no such flow: {offer.key}")
        charge = flow.group.output_charge(offer.max_tokens, offer.slots)
        age_s = flow.group.spec.max_age_s
        if offer.max_wait_s is not None:
            age_s = min(age_s, max(0.0, offer.max_wait_s))
        return Ticket(
            self._last_id, flow, offer.principal, offer.slots, offer.prompt_tokens, charge,
            offer.body_bytes, offer.streamed, offer.affinity, offer.arrived_s,
            offer.arrived_s + age_s, offer.prompt_tokens + self.beta * charge,
        )  # fmt: skip

    def _pass_through(self, ticket: Ticket, now: float) -> Verdict:
        name = self.pick(ticket.flow.key)
        if name is None:
            ticket.flow.group.leave(ticket.principal)
            return Refusal(ticket.id, Outcome.NO_ENGINE)
        return self._start(ticket, self.engines[name], now)

    def _wait_or_refuse(self, ticket: Ticket, ahead: float, now: float) -> Verdict:
        if ticket.deadline_s <= now:
            self._leave_queue(ticket)
            return Refusal(ticket.id, Outcome.QUEUE_EXPIRED)
        target_s = ticket.flow.group.target_wait_s
        if target_s is not None:
            predicted_s = wait_s(ticket.flow, ahead, now)
            if predicted_s > target_s:
                self._leave_queue(ticket)
                return Refusal(ticket.id, Outcome.PREDICTED_WAIT, predicted_s - target_s)
        self._deadlines.add(ticket.deadline_s, ticket.id)
        return Queued(ticket.id, ticket.deadline_s)

    # -- dispatch --------------------------------------------------------------------------

    def _dispatch_all(self, now: float) -> list[Verdict]:
        rings = dict.fromkeys(self._rings.values())
        return [v for ring in rings for v in self._run(ring, now)]

    def _freed(self, engine: str, now: float) -> list[Verdict]:
        """Something came free on an engine; one that no route names any more serves nobody."""
        ring = self._engine_rings.get(engine)
        if ring is None or (ring.holding and self.engines[engine].is_spent()):
            return []
        return self._run(ring, now)

    def _run(self, ring: Ring, now: float) -> list[Verdict]:
        """Let a ring go as far as it can."""
        verdicts: list[Verdict] = []
        while (choice := ring.next(now)) is not None or ring.refused:
            while ring.refused:
                ticket = ring.refused.pop(0)
                del self._tickets[ticket.id]
                ticket.flow.group.leave(ticket.principal)
                verdicts.append(Refusal(ticket.id, Outcome.PREDICTED_WAIT))
            if choice is not None:
                ticket, engine = choice
                del self._tickets[ticket.id]
                verdicts.append(self._start(ticket, engine, now))
        return verdicts

    def _start(self, ticket: Ticket, engine: EngineLedger, now: float) -> Dispatched:
        self._last_id += 1
        lease = engine.take(self._last_id, ticket, now)
        self._leases[lease.id] = lease
        if lease.prefill_until_s is not None:
            self._estimates.add(lease.prefill_until_s, lease.id)
        return Dispatched(ticket.id, engine.name, lease.id)

    # -- leaving ---------------------------------------------------------------------------

    def _expire(self, now: float) -> list[Verdict]:
        verdicts: list[Verdict] = []
        touched: dict[Ring, None] = {}
        freed: dict[str, None] = {}
        while (ticket_id := self._deadlines.pop_due(now)) is not None:
            ticket = self._tickets[ticket_id]
            without = not any(e.usable for e in ticket.flow.engines)
            outcome = Outcome.NO_ENGINE if without else Outcome.QUEUE_EXPIRED
            drain_s = wait_s(ticket.flow, ticket.flow.queued_cost, now)
            self._leave_queue(ticket)
            touched[self._rings[ticket.flow]] = None
            verdicts.append(Refusal(ticket.id, outcome, drain_s))
        while (lease_id := self._estimates.pop_due(now)) is not None:
            lease = self._leases[lease_id]
            self.engines[lease.engine].prefill_done(lease)
            freed[lease.engine] = None
        for ring in touched:
            verdicts += self._run(ring, now)
        for engine in freed:
            verdicts += self._freed(engine, now)
        return verdicts

    def _leave_queue(self, ticket: Ticket) -> None:
        flow = ticket.flow
        if flow.hold is not None and flow.hold.ticket_id == ticket.id:
            self._rings[flow].end_hold(flow)
        flow.remove(ticket)
        del self._tickets[ticket.id]
        flow.group.leave(ticket.principal)

    def _lease(self, lease_id: int) -> Lease:
        lease = self._leases.get(lease_id)
        if lease is None:
            raise MisuseError(f"no such lease, or it was released before: {lease_id}")
        return lease

    def _still_prefilling(self, lease_id: int) -> bool:
        lease = self._leases.get(lease_id)
        return lease is not None and lease.prefilling

    # -- flows and rings -------------------------------------------------------------------

    def _place_flow(self, key: FlowKey) -> None:
        """Create or move one flow to where the route table says."""
        route = self._routes.get((key.model, key.size_class))
        flow = self.flows.get(key)
        if flow is None:
            if route is None or (key.arm is Arm.CANDIDATE and route.candidate is None):
                return
            flow = Flow(key, self.groups[key.group], 1.0, self.beta)
            self.flows[key] = flow
        if route is None:
            flow.use(())
            flow.routed = False
            return
        flow.routed = key.arm is Arm.STABLE or route.candidate is not None
        share = route.candidate_weight if route.candidate else 0.0
        part = share if key.arm is Arm.CANDIDATE else 1.0 - share
        flow.weight = flow.group.spec.weight * max(part, 0.01)
        flow.deficit = min(flow.deficit, flow.weight * self.quantum)
        flow.mode = route.mode
        flow.use(tuple(self.engines[e] for e in self._pools[route.pool(key.arm)]))

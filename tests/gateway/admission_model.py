"""Keeps a second account of the admission core, by brute force, and says where the two differ.

``Account`` sees the calls and the verdicts, nothing else, and recomputes from that history what
waits, what runs, ``n``, ``u``, ``L`` and ``k`` of every engine, what fits where. Three facts are
read from the core because only it knows them: the slot limit in force (a recovering engine is
ramped), the learnt prefill rate (it sets when an unanswered prefill counts as done), and which
engine is held for which ticket. A difference raises ``Breach`` with the property's name.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from gateway.admission import Admission
from gateway.domain import Arm, EngineLimits, FlowKey, FlowSpec, Outcome
from gateway.flows import Ticket
from gateway.ledger import EngineLedger
from gateway.verdicts import Dispatched, Offer, RouteView, Topology

Group = tuple[str, str, str]


class Breach(AssertionError):
    """A property does not hold."""

    def __init__(self, prop: str, what: str) -> None:
        super().__init__(f"{prop}: {what}")
        self.prop = prop


def require(prop: str, fact: bool, *what: object) -> None:
    """Raise a breach of ``prop``, described by ``what``, unless ``fact`` holds."""
    if not fact:
        raise Breach(prop, " ".join(map(str, what)))


@dataclass(frozen=True, slots=True)
class Start:
    """What stood at the moment of a dispatch: engine -> (ticket held for, exceptional)."""

    ticket_id: int
    holds: Mapping[str, tuple[int, bool]]
    rate: float
    prefilling_tokens: int


class Probed(Admission):
    """The core, noting which engines were held at each dispatch."""

    def __init__(self, specs: Iterable[FlowSpec], topology: Topology, now: float) -> None:
        super().__init__(tuple(specs), topology, now)
        self.starts: list[Start] = []
        start = self._traffic.start

        def noting(ticket: Ticket, engine: EngineLedger, now: float) -> Dispatched:
            self.starts.append(Start(ticket.id, self.holds(), engine.rate, engine.prefill_used))
            return start(ticket, engine, now)

        self._traffic.start = noting  # type: ignore[method-assign]

    def holds(self) -> dict[str, tuple[int, bool]]:
        return {
            e.name: (e.hold.ticket.id, e.hold.exceptional)
            for e in self.engines.values()
            if e.hold is not None
        }


@dataclass(slots=True, eq=False)
class Job:
    """One request as the account knows it, waiting or running."""

    id: int
    offer: Offer
    charge: int
    deadline_s: float
    cost: float
    max_age_s: float
    engine: str = ""
    prefilling: bool = True
    until_s: float = math.inf
    kv: int = 0
    key: FlowKey = field(init=False)
    first: tuple[int, int] = field(init=False)
    avoids: set[str] = field(default_factory=set)
    returned: bool = False
    exempt: bool = False

    def __post_init__(self) -> None:
        self.key = self.offer.key
        self.first = (self.charge, self.kv)


@dataclass(slots=True)
class Load:
    """What runs on one engine: slots and prefilling tokens by flow, seats by class, KV."""

    n: Counter[FlowKey] = field(default_factory=Counter)
    u: Counter[FlowKey] = field(default_factory=Counter)
    seats: Counter[str] = field(default_factory=Counter)
    k: int = 0


class Account:
    """The second account."""

    def __init__(self, specs: Iterable[FlowSpec], topology: Topology, now: float) -> None:
        self.specs: dict[Group, FlowSpec] = {}
        self.limits: dict[str, EngineLimits] = {}
        self.force: dict[str, EngineLimits] = {}
        self.slot_limit: dict[str, int] = {}
        self.up: dict[str, bool] = {}
        self.draining: dict[str, bool] = {}
        self.paused: dict[str, bool] = {}
        self.down_since_s: dict[str, float] = {}
        self.bound: set[str] = set()
        self.retired: set[str] = set()
        self.pool_of: dict[FlowKey, tuple[str, ...]] = {}
        self.weights: dict[FlowKey, float] = {}
        self.paused_groups: set[Group] = set()
        self.waiting: dict[FlowKey, list[Job]] = {}
        self.drained: set[FlowKey] = set()
        self.running: dict[int, Job] = {}
        self.counting: list[tuple[tuple[Group, ...], int, Group | None]] = []
        self.outputs: dict[Group, list[int]] = defaultdict(list)
        self.exceptional_s: dict[str, float] = {}
        self.exceptional_id: dict[str, int] = {}
        self.now = now
        self.reconfigured(specs, topology)

    # -- configuration ---------------------------------------------------------------------

    def reconfigured(self, specs: Iterable[FlowSpec], topology: Topology) -> None:
        """Take everything over; what is gone stays until it is at rest."""
        specs = tuple(specs)
        self.specs |= {s.group: s for s in specs}
        self.in_force = {s.group for s in specs}
        self.pools = topology.pools
        self.retired |= self.limits.keys() - topology.engines.keys()
        for engine, limits in topology.engines.items():
            if engine not in self.limits or engine in self.retired:
                self.up[engine] = self.draining[engine] = self.paused[engine] = False
                self.down_since_s[engine] = self.now
                self.force[engine] = limits
                self.slot_limit[engine] = limits.slots
            if engine not in self.limits:
                self.exceptional_id.pop(engine, None)
                self.exceptional_s.pop(engine, None)
            if self.limits.get(engine) != limits:
                self.force[engine] = limits
            self.limits[engine] = limits
            self.retired.discard(engine)
        self.learnt_routes(topology.routes)
        self.bounded_waits()
        for job in [j for q in self.waiting.values() for j in q]:
            job.exempt = True
        # So may bodies that are being counted: they had room when they began.
        self.counting = [(groups, body, None) for groups, body, _ in self.counting]

    def bounded_waits(self) -> None:
        """Nobody waits longer from now than those who arrive now."""
        for job in [j for q in self.waiting.values() for j in q if self.accepts(j.key)]:
            job.deadline_s = min(job.deadline_s, self.now + self.spec(job.key).max_age_s)

    def accepts(self, key: FlowKey) -> bool:
        group_stands = key.group in self.in_force
        return group_stands and key in self.waiting and (key.model, key.size_class) in self.routes

    def settled(self) -> None:
        """Forget what is gone and at rest."""
        running = [j.key for j in self.running.values()]
        for key in [k for k, q in self.waiting.items() if not q and not self.accepts(k)]:
            if key not in running:
                del self.waiting[key], self.pool_of[key], self.ring_of[key]
                self.drained.discard(key)
        busy = {j.engine for j in self.running.values()}
        for engine in self.retired - busy:
            self.retired.discard(engine)
            del self.limits[engine], self.users[engine]
            # Another engine of the same name is not the one that failed.
            waiting = (j for q in self.waiting.values() for j in q)
            for job in (*waiting, *self.running.values()):
                job.avoids.discard(engine)
        counted = {g for groups, *_ in self.counting for g in groups}
        kept = self.in_force | counted | {k.group for k in self.waiting}
        self.specs = {g: s for g, s in self.specs.items() if g in kept}
        self.paused_groups &= kept
        for group in self.outputs.keys() - kept:
            del self.outputs[group]

    def learnt_routes(self, routes: Mapping[tuple[str, str], RouteView]) -> None:
        self.routes = dict(routes)
        for spec in (s for g, s in self.specs.items() if g in self.in_force):
            route = self.routes.get((spec.model, spec.size_class))
            for arm in (Arm.STABLE, Arm.CANDIDATE):
                key = FlowKey(spec.model, spec.size_class, spec.service_class, arm)
                if route and (arm is Arm.STABLE or route.candidate):
                    self.waiting.setdefault(key, [])
        for key in filter(self.accepts, self.waiting):
            draining = self.routes[(key.model, key.size_class)].draining
            (self.drained.add if draining else self.drained.discard)(key)
        self.weights = {key: self._weight(key) for key in self.waiting}
        self.pool_of = {key: self._pool(key) for key in self.waiting}
        self.ring_of = {key: self._ring(key) for key in self.waiting}
        routed = [k for k in self.pool_of if self._routed(k)]
        self.users = {e: [k for k in routed if e in self.pool_of[k]] for e in self.limits}

    def _pool(self, key: FlowKey) -> tuple[str, ...]:
        if not self.accepts(key):
            return tuple(e for e in self.pool_of.get(key, ()) if self._takes(e, key))
        route = self.routes[(key.model, key.size_class)]
        if route.draining:
            return ()
        candidate = route.candidate if key.arm is Arm.CANDIDATE else None
        return tuple(e for e in self.pools[candidate or route.stable] if self._takes(e, key))

    def drains(self, key: FlowKey) -> bool:
        """Whether its route drains, or did when the flow was taken away: it has no engine left."""
        return key in self.drained

    def _takes(self, engine: str, key: FlowKey) -> bool:
        if engine not in self.limits or engine in self.retired:
            return False
        return (key.size_class, 0) not in self.limits[engine].max_prefilling

    def _routed(self, key: FlowKey) -> bool:
        """An arm that the table no longer names drains without a reservation."""
        if not self.accepts(key):
            return False
        route = self.routes[(key.model, key.size_class)]
        return key.arm is Arm.STABLE or route.candidate is not None

    def spec(self, key: FlowKey) -> FlowSpec:
        return self.specs[key.group]

    def weight(self, key: FlowKey) -> float:
        return self.weights[key]

    def _weight(self, key: FlowKey) -> float:
        """The weight a flow has by the table; one that is gone keeps what it had."""
        if not self.accepts(key):
            return self.weights[key]
        route = self.routes[(key.model, key.size_class)]
        split = route.candidate_weight if route.candidate else 0.0
        return self.spec(key).weight * max(split if key.arm is Arm.CANDIDATE else 1 - split, 0.01)

    def usable(self, engine: str) -> bool:
        stopped = self.draining[engine] or self.paused[engine] or engine in self.retired
        return self.up[engine] and not stopped

    def _ring(self, key: FlowKey) -> set[str]:
        """Engines that flows reach from this one's, through whomever they share them with."""
        reached = set(self.pool_of[key])
        while True:
            more = {e for p in self.pool_of.values() if reached & set(p) for e in p}
            if more <= reached:
                return reached
            reached |= more

    # -- what waits ------------------------------------------------------------------------

    def queued(self, group: Group) -> list[Job]:
        model, size, service = group
        queues = [
            q for k, q in self.waiting.items()
            if k.service_class == service and k.size_class == size and k.model == model
        ]  # fmt: skip
        return [j for q in queues for j in q]

    def heads(self) -> list[Job]:
        return [q[0] for q in self.waiting.values() if q]

    def find(self, ticket_id: int) -> Job | None:
        return next((j for q in self.waiting.values() for j in q if j.id == ticket_id), None)

    def in_flight(self, group: Group, principal: str) -> int:
        everyone = [*self.queued(group), *self.running.values()]
        return sum(j.key.group == group and j.offer.principal == principal for j in everyone)

    def output_charge(self, offer: Offer) -> int:
        spec, recent = self.spec(offer.key), self.outputs[offer.key.group][-200:]
        estimate = spec.output_estimate_tokens
        if len(recent) >= 59:
            within = [x for x in set(recent) if sum(y <= x for y in recent) >= 0.95 * len(recent)]
            estimate = min(within)
        wanted = estimate if offer.max_tokens is None else min(offer.max_tokens, estimate)
        return wanted * offer.slots

    def job(self, ticket_id: int, offer: Offer) -> Job:
        charge = self.output_charge(offer)
        most_s = age_s = self.spec(offer.key).max_age_s
        if offer.max_wait_s is not None:
            age_s = max(0.0, min(age_s, offer.max_wait_s))
        cost = offer.prompt_tokens + 0.3 * charge
        kv = offer.prompt_tokens + charge
        return Job(ticket_id, offer, charge, offer.arrived_s + age_s, cost, most_s, kv=kv)

    def would_pass_caps(self, group: Group, tokens: int, body: int) -> Outcome | None:
        spec, queue = self.specs[group], self.queued(group)
        bodies = [b for groups, b, _ in self.counting if group in groups]
        if len(queue) + len(bodies) >= spec.max_queued:
            return Outcome.QUEUE_FULL
        if sum(j.offer.prompt_tokens for j in queue) + tokens > spec.max_queued_tokens:
            return Outcome.QUEUE_TOKENS_FULL
        if sum(j.offer.body_bytes for j in queue) + sum(bodies) + body > spec.max_queued_bytes:
            return Outcome.QUEUE_BYTES_FULL
        return None

    def refusal(self, job: Job, now: float) -> Outcome | None:
        """What must be answered on arrival, in the order of the contract; None: it may wait."""
        offer, spec = job.offer, self.spec(job.key)
        pool = [self.limits[e] for e in self.pool_of[job.key]]
        if self.drains(job.key):
            return Outcome.DRAINING
        if self.misfit(job):
            return Outcome.PROMPT_TOO_LONG
        if job.key.group in self.paused_groups:
            return Outcome.PAUSED
        cap = offer.principal_cap
        if cap is None:
            room = spec.max_queued + sum(x.slots for x in pool)
            cap = max(1, math.floor(spec.principal_share * room))
        if self.in_flight(job.key.group, offer.principal) >= cap:
            return Outcome.PRINCIPAL_LIMIT
        names = self.pool_of[job.key]
        if not any(self.up[e] for e in names) and all(
            now - self.down_since_s[e] >= 2.0 for e in names
        ):
            return Outcome.NO_ENGINE
        return self.would_pass_caps(job.key.group, offer.prompt_tokens, offer.body_bytes)

    # -- what fits -------------------------------------------------------------------------

    def loads(self) -> dict[str, Load]:
        loads = {e: Load() for e in self.limits}
        for job in self.running.values():
            load = loads[job.engine]
            load.n[job.key] += job.offer.slots
            load.k += job.kv
            if job.prefilling:
                load.u[job.key] += job.offer.prompt_tokens
                load.seats[job.key.size_class] += 1
        return loads

    def misfit(self, job: Job) -> bool:
        """Whether there are engines for it, and none could ever take it."""
        pool = self.pool_of[job.key]
        return bool(pool) and not any(self.could_fit(job, self.limits[e]) for e in pool)

    def could_fit(self, job: Job, limits: EngineLimits) -> bool:
        return (
            job.offer.slots <= limits.slots
            and job.offer.prompt_tokens <= limits.prefill_tokens
            and job.kv <= limits.kv_tokens
        )

    def shunned(self, job: Job) -> set[str]:
        """The engines it failed on, while another could take it, now or later."""
        if not job.avoids:
            return job.avoids
        others = [e for e in self.pool_of[job.key] if e not in job.avoids and self.usable(e)]
        return job.avoids if any(self.could_fit(job, self.limits[e]) for e in others) else set()

    def too_large(self, job: Job, engine: str) -> bool:
        """Whether the limits of the moment would not let it in alone."""
        fits = self.could_fit(job, self.force[engine])
        return not fits or job.offer.slots > self.slot_limit[engine]

    def capped(self, key: FlowKey, engine: str, load: Load) -> bool:
        cap = dict(self.limits[engine].max_prefilling).get(key.size_class)
        return cap is not None and load.seats[key.size_class] >= cap

    def room(self, job: Job, engine: str, load: Load, *, alone: bool = False) -> bool:
        """Slots, prefill tokens and KV, beside what the others have reserved and not used."""
        lim = self.force[engine]
        slots = sum(load.n.values()) + job.offer.slots
        tokens = sum(load.u.values()) + job.offer.prompt_tokens
        for key in self.users[engine] if not alone else ():
            if key != job.key:
                spec = self.spec(key)
                slots += max(0, spec.reserved_slots - load.n[key])
                tokens += max(0, spec.reserved_prefill_tokens - load.u[key])
        return (
            slots <= self.slot_limit[engine]
            and tokens <= lim.prefill_tokens
            and load.k + job.kv <= lim.kv_tokens
        )

    def fits(self, job: Job, engine: str, load: Load) -> bool:
        return (
            engine in self.pool_of[job.key]
            and self.usable(engine)
            and engine not in self.shunned(job)
            and not self.capped(job.key, engine, load)
            and self.room(job, engine, load)
        )

    def exceptional(self, job: Job, engine: str) -> bool:
        """Whether the others' reservations, unused, leave no place for it on this engine."""
        lim = self.force[engine]
        others = [self.spec(k) for k in self.users[engine] if k != job.key]
        kv = sum(
            s.reserved_slots * (s.largest_prompt_tokens + s.output_estimate_tokens) for s in others
        )
        return (
            job.offer.slots + sum(s.reserved_slots for s in others) > lim.slots
            or job.offer.prompt_tokens + sum(s.reserved_prefill_tokens for s in others)
            > lim.prefill_tokens
            or job.kv + kv > lim.kv_tokens
        )

    def eligible(self, key: FlowKey, loads: Mapping[str, Load]) -> bool:
        """Stopped neither by health, nor by its own class cap, nor by the limits of the moment."""
        head = self.waiting[key][0] if self.waiting[key] else None
        shunned = self.shunned(head) if head else ()
        return any(
            self.usable(e)
            and e not in shunned
            and not self.capped(key, e, loads[e])
            and not (head and self.too_large(head, e))
            for e in self.pool_of[key]
        )

    # -- what happens ----------------------------------------------------------------------

    def end_estimates(self, now: float) -> None:
        for job in self.running.values():
            if job.until_s <= now:
                job.prefilling = False

    def first_event(self, lease_id: int) -> None:
        """A stream's first event also ends what was sent before it, on a first-come engine."""
        job = self.running[lease_id]
        if not job.prefilling:
            return
        job.prefilling = False
        if job.offer.streamed and self.limits[job.engine].fcfs:
            for other_id, other in self.running.items():
                if other_id < lease_id and other.engine == job.engine and not other.offer.streamed:
                    other.prefilling = False

    def dispatched(self, job: Job, verdict: Dispatched, ahead: int, rate: float) -> None:
        """Move a job from the queue to an engine that has ``ahead`` tokens in prefill."""
        job.engine = verdict.engine
        if not job.offer.streamed:
            tokens = ahead + job.offer.prompt_tokens
            job.until_s = self.now + (1.25 * tokens / rate + 0.020)
        self.waiting[job.key].remove(job)
        require("P6", verdict.lease_id not in self.running, "a lease id was given twice")
        self.running[verdict.lease_id] = job

    def suspended(self, job: Job, engine: str, now: float) -> None:
        """The others' reservations do not count on ``engine`` for ``job``: at most once per A."""
        if self.exceptional_id.get(engine) != job.id:
            last, age_s = self.exceptional_s.get(engine, -math.inf), self.spec(job.key).max_age_s
            require("P4", now - last >= age_s, engine, "suspended again within", age_s, "s")
            self.exceptional_id[engine], self.exceptional_s[engine] = job.id, now

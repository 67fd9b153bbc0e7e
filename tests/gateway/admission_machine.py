"""Drives the admission core through generated events and checks every property after each.

One set of rules serves hypothesis (which shrinks) and seeded long runs (which bring the volume).
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

from gateway.admission import Admission
from gateway.domain import EngineLimits, FlowKey, MisuseError, Outcome
from gateway.verdicts import Dispatched, Offer, Queued, Refusal, RouteView
from tests.gateway.admission_fairness import Fairness
from tests.gateway.admission_invariants import Invariants
from tests.gateway.admission_model import Account, Breach, Job, Load, Probed, Start, require
from tests.gateway.admission_worlds import World

Entry = tuple[str, tuple[object, ...], dict[str, object], object]


class Machine:
    """A core, its second account, and the rules that exercise both."""

    def __init__(self, world: World) -> None:
        self.world = self.current = world
        self.core = Probed(world.specs, world.topology, 0.0)
        self.account = Account(world.specs, world.topology, 0.0)
        self.fair = Fairness(self.account)
        self.now = 0.0
        self.journal: list[Entry] = []
        self.stats: Counter[str] = Counter()
        self.recovering: dict[str, float] = {}
        self.released: list[int] = []
        self.arriving = -1
        self.certain = True
        self.invariants = Invariants(self.core, self.account)
        for engine in world.topology.engines:
            self.set_engine(engine, up=True)

    # -- calls: each is one event ----------------------------------------------------------

    def _perform(self, name: str, *args: object, **kwargs: object) -> object:
        self.core.starts.clear()
        try:
            result = getattr(self.core, name)(*args, **kwargs)
        except MisuseError as error:
            result = str(error)
        self.journal.append((name, args, kwargs, result))
        self.stats["events"] += 1
        return result

    def _due(self) -> bool:
        account, now = self.account, self.now
        return any(j.deadline_s <= now for q in account.waiting.values() for j in q) or any(
            j.prefilling and j.until_s <= now for j in account.running.values()
        )

    def _timed(self, name: str, *args: object, **kwargs: object) -> object:
        """A call with ``now``. What it finds due falls before its own effect: a new interval."""
        self.account.now = self.now
        if self._due() and name != "tick":
            self.fair.reset()
            self.certain = False
        self.account.end_estimates(self.now)
        return self._perform(name, *args, **kwargs)

    def tick(self) -> None:
        self._after(self._timed("tick", self.now))

    def offer(self, offer: Offer) -> None:
        account = self.account
        if not account.accepts(offer.key):
            self._offer_nowhere(offer)
            return
        certain = not self._due()
        job = account.job(-1, offer)
        expected = account.refusal(job, self.now)
        result = self._timed("offer", offer, self.now)
        assert isinstance(result, tuple)
        job.id, verdicts = result
        spec = account.spec(offer.key)
        own = next((v for v in verdicts if v.ticket_id == job.id), None)
        require("P1", own is not None, "an offer without an answer")
        outcome = own.outcome if isinstance(own, Refusal) else None
        if outcome is None:
            account.waiting[offer.key].append(job)
            self.fair.cmax[offer.key] = max(self.fair.cmax.get(offer.key, 0.0), job.cost)
        late = outcome is Outcome.QUEUE_EXPIRED and job.deadline_s <= self.now
        heads = [e for e in account.pool_of[offer.key] if account.exceptional(job, e)]
        judged = outcome is Outcome.PREDICTED_WAIT and (spec.target_wait_s is not None or heads)
        if certain:
            self.stats[f"answer {outcome or type(own).__name__}"] += 1
            right = outcome is expected or (expected is None and (late or bool(judged)))
            require("P1", right, "answered", own, ", expected", expected, "for", offer)
        if isinstance(own, Queued):
            require("P2", own.deadline_s == job.deadline_s, own, "but", job.deadline_s)
        # A wait that was over before it began may still start at once, or not at all.
        self.arriving = job.id
        self._after([v for v in verdicts if v.ticket_id != job.id or not isinstance(v, Refusal)])
        self.arriving = -1

    def _offer_nowhere(self, offer: Offer) -> None:
        result = self._timed("offer", offer, self.now)
        assert isinstance(result, tuple)
        own = result[1][-1]
        refused = isinstance(own, Refusal) and own.outcome is Outcome.NOT_FOUND
        require("P1", refused, own, "for a flow that is gone:", offer)
        self._after(result[1][:-1])

    def requeue(self, lease_id: int, *, avoid: bool) -> None:
        """It failed before its first byte: back to the front, as it came."""
        if self._due():
            self.tick()  # what is due falls first
        account = self.account
        job = account.running.pop(lease_id)
        self.released.append(lease_id)
        job.prefilling, job.until_s = True, math.inf
        job.charge, job.kv = job.first
        job.avoids |= {job.engine} if avoid else set()
        gone = account.misfit(job) or account.drains(job.key)
        late = job.deadline_s <= self.now or gone
        job.returned = not late
        result = self._timed("requeue", lease_id, self.now, avoid=avoid)
        assert isinstance(result, tuple), result
        before, (job.id, verdicts) = job.id, result
        for engine in [e for e, i in account.exceptional_id.items() if i == before]:
            account.exceptional_id[engine] = job.id
        account.waiting[job.key].insert(0, job)
        own = [v for v in verdicts if v.ticket_id == job.id]
        require("P2", len(own) == 1, "one answer for what came back, not", own)
        refused = isinstance(own[0], Refusal) and own[0].outcome is not Outcome.PREDICTED_WAIT
        require("P2", refused == late, job, "came back, may wait:", not late, "but", own[0])
        if isinstance(own[0], Queued):
            require("P2", own[0].deadline_s == job.deadline_s, own[0], "but", job.deadline_s)
            verdicts = [v for v in verdicts if v is not own[0]]
        self.stats[f"back {'late' if late else type(own[0]).__name__}"] += 1
        self._after(verdicts)

    def reconfigure(self, world: World) -> None:
        if self._due():
            self.tick()  # what is due falls under the old configuration
        self.current = world
        self.account.now = self.now
        self.fair.reset()
        known = {
            e: self.account.limits[e] for e in self.account.limits.keys() - self.account.retired
        }
        self.account.reconfigured(world.specs, world.topology)
        for engine in world.topology.engines.keys() - known.keys():
            self.recovering.pop(engine, None)
        rates = {v.engine: v.prefill_tokens_per_s for v in self.core.engine_views()}
        self._after(self._timed("reconfigure", world.specs, world.topology, self.now))
        for view in self.core.engine_views():
            if view.engine in known:
                learnt = view.prefill_tokens_per_s == rates[view.engine]
                require("P6", learnt, view.engine, "forgot its rate")

    def reconfigure_wrongly(self, world: World) -> None:
        """All or nothing: a configuration that does not hold together changes nothing."""
        before = (self.core.engine_views(), self.core.flow_views(self.now), self.core.holds())
        if self._due():
            self.tick()
        result = self._perform("reconfigure", world.specs, world.topology, self.now)
        require("P6", isinstance(result, str), "a wrong configuration was taken")
        after = (self.core.engine_views(), self.core.flow_views(self.now), self.core.holds())
        require("P6", before == after or self.journal[-2][0] == "tick", "refused, but it changed")
        self._check()

    def restarted(self, engine: str) -> None:
        account = self.account
        if self._due():
            self.tick()  # what is due falls under the old limits
        if engine not in account.limits:
            return  # it was gone, and the last lease ended
        account.force[engine] = account.limits[engine]
        self.recovering.pop(engine, None)
        if account.up[engine]:
            self.recovering[engine] = self.now
        self.fair.reset()
        self._after(self._timed("restarted", engine, self.now))
        view = next(v for v in self.core.engine_views() if v.engine == engine)
        configured = account.limits[engine].prefill_tokens_per_s
        require("P6", view.prefill_tokens_per_s == configured, engine, "kept its learnt rate")
        most = account.limits[engine].slots
        reserved = sum(account.spec(k).reserved_slots for k in account.users[engine])
        least = min(most, reserved + max(2, math.ceil(most / 4))) if account.up[engine] else most
        require("P6", view.slot_limit == least, engine, "does not ramp:", view)

    def adapt(self, engine: str, limits: EngineLimits) -> None:
        if self._due():
            self.tick()  # what is due falls under the old limits
        if self.account.limits.get(engine) is None:
            return
        self.account.force[engine] = limits
        self.fair.reset()
        self._after(self._timed("adapt", engine, limits, self.now))

    def gate_bound(self, engine: str) -> None:
        stopped = self._stopped_at(engine)
        result = self._perform("gate_bound", engine)
        require(
            "P6", result is True or not stopped, engine, "stops", stopped, "and does not say so"
        )
        self.stats[f"bound {result}"] += 1

    def _stopped_at(self, engine: str) -> list[Job]:
        """Heads that lack slots or prefill tokens here and nothing else."""
        account, load = self.account, self.account.loads()[engine]
        ticket_id, exceptional = self.core.holds().get(engine, (-1, False))
        return [
            job
            for job in account.heads()
            if engine in account.pool_of[job.key]
            and account.usable(engine)
            and engine not in account.shunned(job)
            and not account.capped(job.key, engine, load)
            and not account.too_large(job, engine)
            and load.k + job.kv <= account.limits[engine].kv_tokens
            and not account.room(job, engine, load)
            and not (exceptional and ticket_id == job.id)
        ]

    def prefill_done(self, lease_id: int) -> None:
        due = self._due()
        self.account.end_estimates(self.now)
        self.account.first_event(lease_id)
        if due:
            self.fair.reset()
            self.certain = False
        self._after(self._timed("prefill_done", lease_id, self.now))

    def release(self, lease_id: int, output_tokens: int | None) -> None:
        if self._due():
            self.certain = False
            self.fair.reset()
        job = self.account.running.pop(lease_id)
        self.released.append(lease_id)
        if output_tokens is not None:
            self.account.outputs[job.key.group].append(output_tokens // job.offer.slots)
        self._after(self._timed("release", lease_id, self.now, output_tokens))

    def release_again(self, lease_id: int) -> None:
        before = self.core.engine_views()
        result = self._perform("release", lease_id, self.now)
        require("P6", isinstance(result, str), "lease", lease_id, "was released twice")
        require("P6", before == self.core.engine_views(), "a refused release changed an account")

    def grow(self, lease_id: int, output_tokens: int) -> None:
        job = self.account.running[lease_id]
        self._perform("grow", lease_id, output_tokens)
        grown = max(job.charge, output_tokens)
        job.kv, job.charge = job.kv + grown - job.charge, grown
        self.fair.observe(self.account.loads())
        self._check()

    def cancel(self, ticket_id: int) -> None:
        if self._due():
            self.tick()  # what is due falls first, and may be the dispatch of this very ticket
        job = self.account.find(ticket_id)
        if job is not None:
            self.account.waiting[job.key].remove(job)
        self._after(self._timed("cancel", ticket_id, self.now))

    def set_engine(self, engine: str, *, ramp: bool = False, **change: bool) -> None:
        account = self.account
        if change.get("up", account.up[engine]) != account.up[engine]:
            account.up[engine] = change["up"]
            account.down_since_s[engine] = self.now
            self.recovering.pop(engine, None)
            if change["up"] and ramp:
                self.recovering[engine] = self.now
        account.draining[engine] = change.get("draining", account.draining[engine])
        account.paused[engine] = change.get("paused", account.paused[engine])
        self.fair.reset()
        self._after(self._timed("set_engine", engine, self.now, ramp=ramp, **change))

    def set_limits(self, engine: str, limits: EngineLimits) -> None:
        if self._due():
            self.tick()  # what is due falls under the old limits
        if self.account.limits[engine] != limits:
            self.account.limits[engine] = self.account.force[engine] = limits
        self.account.learnt_routes(self.account.routes)
        self._change()

    def set_routes(self, routes: Mapping[tuple[str, str], RouteView]) -> None:
        if self._due():
            self.tick()  # what is due falls under the old table
        self.account.learnt_routes(routes)
        self._change()

    def _change(self) -> None:
        """Put the routes and limits of the account in force, under the flows that there are."""
        self.account.now = self.now
        self.account.bounded_waits()
        self.fair.reset()
        limits, topology = self.account.limits, self.current.topology
        engines = {name: limits[name] for name in topology.engines}
        topology = replace(topology, engines=engines, routes=self.account.routes)
        self._after(self._timed("reconfigure", self.current.specs, topology, self.now))

    def pause(self, group: tuple[str, str, str], *, paused: bool) -> None:
        (self.account.paused_groups.add if paused else self.account.paused_groups.discard)(group)
        self._perform("pause", group, paused=paused)

    def begin_counting(self, groups: Sequence[tuple[str, str, str]], body: int) -> None:
        if not all(self.account.accepts(FlowKey(*g)) for g in groups):
            result = self._perform("begin_counting", groups, body, self.now)
            require("P1", result == (Outcome.NOT_FOUND, 0.0), "counting for", groups, ":", result)
            return
        room = [g for g in groups if self.account.would_pass_caps(g, 0, body) is None]
        full = self.account.would_pass_caps(groups[-1], 0, body)
        result = self._perform("begin_counting", groups, body, self.now)
        answer = result[0] if isinstance(result, tuple) else result
        expected = None if room else full
        # Only where others wait and a wait is predicted may there be room for nothing.
        judged = answer in (Outcome.PREDICTED_WAIT, full) and all(map(self._is_judged, room))
        right = answer is expected or (answer is not None and judged)
        require("P1", right, "counting", body, "bytes for", groups, ":", result)
        if answer is None:
            self.account.counting.append((tuple(groups), body, room[0]))
        self._check()

    def _is_judged(self, group: tuple[str, str, str]) -> bool:
        key = FlowKey(*group)
        return self.account.spec(key).target_wait_s is not None and bool(self.account.waiting[key])

    def end_counting(self, index: int) -> None:
        groups, body, _ = self.account.counting.pop(index)
        self._perform("end_counting", groups, body)
        self._check()

    # -- what follows from the verdicts ----------------------------------------------------

    def _after(self, result: object) -> None:
        assert isinstance(result, list), result
        self._limits_in_force()
        starts = {s.ticket_id: s for s in self.core.starts}
        loads = self.account.loads()
        self.fair.observe(loads)
        for verdict in result:
            if isinstance(verdict, Dispatched):
                self._dispatched(verdict, starts[verdict.ticket_id], loads)
            elif isinstance(verdict, Refusal):
                self._refused(verdict)
            loads = self.account.loads()
            self.fair.observe(loads)
        self.certain = True
        self._check()

    def _limits_in_force(self) -> None:
        for name, engine in self.core.engines.items():
            configured, reserved = self.account.force[name].slots, 0
            for key in self.account.users[name]:
                reserved += self.account.spec(key).reserved_slots
            least = self.account.limits[name].slots // 4
            least = min(configured, reserved + max(2, least))
            since = self.recovering.get(name)
            full = since is None or (self.now >= since + 30.0 and self.journal[-1][0] == "tick")
            least = configured if full else least
            right = least <= engine.slot_limit <= configured
            require(
                "P6", right, name, ": N is", engine.slot_limit, ", not", least, "..", configured
            )
            self.account.slot_limit[name] = engine.slot_limit

    def _dispatched(self, verdict: Dispatched, start: Start, loads: Mapping[str, Load]) -> None:
        account, engine = self.account, verdict.engine
        job = account.find(verdict.ticket_id)
        if job is None:
            raise Breach("P6", f"{verdict} does not wait")
        in_time = job.deadline_s > self.now or job.id == self.arriving
        require("P2", in_time, job, "went after its deadline at", self.now)
        age_s = self.now - job.offer.arrived_s
        require("P2", age_s < job.max_age_s, job, "went at", age_s, "s")
        require("P5", account.waiting[job.key][0] is job, job, "jumped its own queue")
        load = loads[engine]
        require("isolation", engine in account.pool_of[job.key], job, "to foreign", engine)
        require("P6", account.usable(engine), job, "went to unusable", engine)
        require("P6", engine not in account.shunned(job), job, "went to avoided", engine)
        require("P6", not account.capped(job.key, engine, load), job, "passed its class cap")
        if not account.room(job, engine, load):
            may = account.exceptional_id.get(engine) == job.id or account.exceptional(job, engine)
            alone = may and account.room(job, engine, load, alone=True)
            require("P6", alone, job, "did not fit", engine)
            self.stats["exceptional dispatches"] += 1
            account.suspended(job, engine, self.now)
        hold = start.holds.get(engine)
        if hold is not None:
            self._passed(job, engine, load, exceptional=hold[1])
        self.fair.dispatched(job, engine, loads, start)
        # What was due falls before the effect of the call, which ``load`` has already.
        ahead = load.u.total() if self.certain else start.prefilling_tokens
        account.dispatched(job, verdict, ahead, start.rate)
        job.returned = False

    def _passed(self, job: Job, engine: str, load: Load, *, exceptional: bool) -> None:
        """P4: another head holds this engine."""
        spec = self.account.spec(job.key)
        require("P4", not exceptional, job, "passed an exceptional hold on", engine)
        slots = load.n[job.key] + job.offer.slots
        tokens = load.u[job.key] + job.offer.prompt_tokens
        within = slots <= spec.reserved_slots and tokens <= spec.reserved_prefill_tokens
        require("P4", within, job, "passed the hold on", engine, "without a reservation")
        self.stats["reserved passes"] += 1

    def _refused(self, verdict: Refusal) -> None:
        account = self.account
        job = account.find(verdict.ticket_id)
        if job is None:
            raise Breach("P6", f"{verdict} does not wait")
        pool = account.pool_of[job.key]
        if verdict.outcome is Outcome.PROMPT_TOO_LONG:
            require("P4", account.misfit(job), job, "fits an engine, but", verdict)
        elif verdict.outcome is Outcome.DRAINING:
            require("P4", account.drains(job.key), job, "is refused, and nothing drains")
        elif verdict.outcome is Outcome.PREDICTED_WAIT:
            sizes = any(account.exceptional(job, e) for e in pool)
            require("P4", sizes and account.waiting[job.key][0] is job, verdict, "for", job)
        else:
            dead = not any(account.usable(e) for e in pool)
            right = Outcome.NO_ENGINE if dead else Outcome.QUEUE_EXPIRED
            require("P2", verdict.outcome is right, verdict, ", expected", right)
            require("P2", job.deadline_s <= self.now, job, "was refused early at", self.now)
        account.waiting[job.key].remove(job)

    def _check(self) -> None:
        self.account.settled()
        loads, holds = self.account.loads(), self.core.holds()
        self.invariants.check(self.now, loads, holds)
        self._count(loads, holds)

    def _count(self, loads: Mapping[str, Load], holds: Mapping[str, tuple[int, bool]]) -> None:
        account, stats = self.account, self.stats
        backlogged = sum(map(bool, account.waiting.values()))
        stats["saturated"] += backlogged >= 4 and len(account.limits) >= 2
        stats["held"] += bool(holds)
        stats["exceptional"] += any(exceptional for _, exceptional in holds.values())
        stats["capped"] += any(
            any(account.usable(e) for e in account.pool_of[j.key])
            and not account.eligible(j.key, loads)
            for j in account.heads()
        )

    # -- ends ------------------------------------------------------------------------------

    def finish(self) -> None:
        """At rest everything is zero; the journal replays to the same answers (P8)."""
        for jobs in list(self.account.waiting.values()):
            for job in reversed(list(jobs)):
                self.cancel(job.id)
        while self.account.running:
            self.release(next(iter(self.account.running)), None)
            for jobs in list(self.account.waiting.values()):
                for job in list(jobs):
                    self.cancel(job.id)
        while self.account.counting:
            self.end_counting(0)
        self.tick()
        core = self.core
        rest: list[object] = [core._traffic.tickets, core._traffic.leases]
        rest += [g.in_flight for g in core.groups.values()]
        rest += [(e.slots_by_flow, e.prefill_by_flow, e.unary) for e in core.engines.values()]
        empty = not any(any(x) if isinstance(x, tuple) else x for x in rest)
        require("P6", empty, "not all is zero at rest:", repr(core))
        require("P8", replayed(self.world, self.journal) == [e[3] for e in self.journal], "replay")


def replayed(world: World, journal: Sequence[Entry]) -> list[object]:
    """What a fresh core answers to the same calls."""
    core = Admission(world.specs, world.topology, 0.0)
    answers: list[object] = []
    for name, args, kwargs, _ in journal:
        try:
            answers.append(getattr(core, name)(*args, **kwargs))
        except MisuseError as error:
            answers.append(str(error))
    return answers

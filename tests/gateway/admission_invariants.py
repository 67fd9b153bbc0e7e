"""What must hold of the admission core after every event, whatever the event was."""

from collections import Counter
from collections.abc import Mapping

from tests.gateway.admission_fairness import QUANTUM
from tests.gateway.admission_model import Account, Breach, Load, Probed, require

Loads = Mapping[str, Load]
Holds = Mapping[str, tuple[int, bool]]


class Invariants:
    """Compares a core with its second account."""

    def __init__(self, core: Probed, account: Account) -> None:
        self.core = core
        self.account = account
        self.peak = 0
        self.most = 0

    def check(self, now: float, loads: Loads, holds: Holds) -> None:
        """Raise ``Breach`` at the first property that does not hold at ``now``."""
        self._memory()
        self._waiting(now)
        self._views(now)
        self._credit()
        self._ledgers(loads)
        self._conservation(loads, holds)
        self._holds(now, loads, holds)

    def _memory(self) -> None:
        """P1. A body that is being counted is charged to a group that had room when it began."""
        account = self.account
        for group, spec in account.specs.items():
            # What came back is bounded by what ran; what waited when caps were lowered may stay.
            queue = [j for j in account.queued(group) if not (j.returned or j.exempt)]
            bodies = [b for _, b, charged in account.counting if charged == group]
            tokens = sum(j.offer.prompt_tokens for j in queue)
            size = sum(j.offer.body_bytes for j in queue) + sum(bodies)
            require("P1", len(queue) + len(bodies) <= spec.max_queued, group, ": count")
            require("P1", tokens <= spec.max_queued_tokens, group, ":", tokens, "tokens")
            require("P1", size <= spec.max_queued_bytes, group, ":", size, "bytes")
        self.peak = max(self.peak, len(account.running))
        self.most = most = max(self.most, sum(map(len, account.waiting.values())) + 1)
        heaps = (len(self.core._traffic.deadlines), len(self.core._traffic.estimates))
        require("P1", heaps[0] <= 2 * most + 65, heaps[0], "deadlines")
        require("P1", heaps[1] <= 2 * self.peak + 65, heaps[1], "estimates")

    def _waiting(self, now: float) -> None:
        """P2: nobody is past a deadline, and the timer is asked for early enough."""
        account = self.account
        jobs = [j for q in account.waiting.values() for j in q]
        # Calls without a time (pause, counting, growth) may find that it has moved on.
        for job in jobs if account.now == now else ():
            require("P2", job.deadline_s > now, job, "still waits at", now)
            age_s = now - job.offer.arrived_s
            require("P2", age_s <= job.max_age_s, job, "is", age_s, "s old")
        for job in jobs:
            gone = account.misfit(job) or account.drains(job.key)
            require("P4", not gone, job, "waits and can never go")
        due = [j.deadline_s for j in jobs]
        due += [
            j.until_s for j in account.running.values() if j.prefilling and not j.offer.streamed
        ]
        wakeup = self.core.next_wakeup(now)
        if due:
            require("P2", wakeup is not None and wakeup <= min(due), wakeup, ", due", min(due))

    def _credit(self) -> None:
        """P3: nobody saves up more than a quantum, beside what came back and waits again."""
        for key, flow in self.core.flows.items():
            owed = sum(j.cost for j in self.account.waiting[key] if j.returned)
            most = self.account.weights[key] * QUANTUM + owed
            require("P3", flow.deficit <= most + 1e-6, flow, "has more credit than", most)

    def _views(self, now: float) -> None:
        """P6: what an observer is told of the queues is what waits."""
        views = self.core.flow_views(now)
        left = {v.key for v in views} ^ self.account.waiting.keys()
        require("P6", not left, "flows that are there and should not, or should:", left)
        running = Counter(j.key for j in self.account.running.values())
        for view in views:
            queue = self.account.waiting[view.key]
            oldest = max((now - j.offer.arrived_s for j in queue), default=0.0)
            seen = (view.depth, view.tokens, view.bytes, view.oldest_age_s)
            body = sum(j.offer.body_bytes for j in queue)
            own = (len(queue), sum(j.offer.prompt_tokens for j in queue), body, oldest)
            require("P6", seen == own, view, "but", own)
            require("P6", view.running == running[view.key], view, "but", running[view.key], "run")

    def _ledgers(self, loads: Loads) -> None:
        """P6: the engines' counters are the sums over what runs; so are the callers' counts."""
        views = self.core.engine_views()
        left = {v.engine for v in views} ^ self.account.limits.keys()
        require("P6", not left, "engines that are there and should not, or should:", left)
        for view in views:
            load = loads[view.engine]
            seats = {c: x for c, x in view.prefilling if x}
            own = (load.n.total(), load.u.total(), +load.seats, load.k)
            seen = (view.slots, view.prefill_tokens, seats, view.kv_tokens)
            require("P6", seen == own, view.engine, "has", seen, ", runs", own)
        everyone = [*self.account.running.values()]
        everyone += [j for q in self.account.waiting.values() for j in q]
        own_callers = Counter((j.key.group, j.offer.principal) for j in everyone)
        callers = {
            (g, p): x for g, group in self.core.groups.items() for p, x in group.in_flight.items()
        }
        require("P6", callers == own_callers, callers, "in flight, not", own_callers)

    def _conservation(self, loads: Loads, holds: Holds) -> None:
        """P7: no head waits that fits an engine which nobody else's hold keeps."""
        account = self.account
        for job in account.heads():
            for engine in account.pool_of[job.key]:
                ticket_id, exceptional = holds.get(engine, (job.id, False))
                if ticket_id != job.id:
                    continue
                load = loads[engine]
                goes = account.fits(job, engine, load) or (
                    exceptional
                    and account.usable(engine)
                    and engine not in account.shunned(job)
                    and not account.capped(job.key, engine, load)
                    and account.room(job, engine, load, alone=True)
                )
                require("P7", not goes, job, "waits though it fits", engine)

    def _holds(self, now: float, loads: Loads, holds: Holds) -> None:
        """P4: who holds may hold, and somebody does while only shared capacity is missing."""
        account = self.account
        held = Counter(ticket_id for ticket_id, _ in holds.values())
        require("P4", not held or max(held.values()) == 1, "two engines for one head:", holds)
        for engine, (ticket_id, exceptional) in holds.items():
            job = account.find(ticket_id)
            if job is None:
                raise Breach("P4", f"{engine} is held for {ticket_id}, which does not wait")
            require("P4", account.waiting[job.key][0] is job, job, "holds but is no head")
            require("P4", engine in account.pool_of[job.key], job, "holds foreign", engine)
            require("P4", account.usable(engine), job, "holds unusable", engine)
            stopped = account.capped(job.key, engine, loads[engine])
            require("P4", not stopped, job, "holds", engine, "at its own class cap")
            require("P4", engine not in account.shunned(job), job, "holds", engine, "it avoids")
            require("P4", not account.too_large(job, engine), job, "can't go to its", engine)
            if exceptional:
                account.suspended(job, engine, now)
        self._somebody_holds(loads, holds)

    def _somebody_holds(self, loads: Loads, holds: Holds) -> None:
        account = self.account
        for job in account.heads():
            shunned = account.shunned(job)
            engines = [e for e in account.pool_of[job.key] if account.usable(e)]
            engines = [e for e in engines if e not in shunned and not account.too_large(job, e)]
            lacking = engines and not any(
                account.capped(job.key, e, loads[e]) or account.room(job, e, loads[e])
                for e in engines
            )
            if lacking:
                somebody = account.ring_of[job.key] & holds.keys()
                require("P4", bool(somebody), job, "lacks shared capacity, nobody holds")

"""Measures shares: property P3 of the admission core, over every interval at once.

For flows f and g of one ring, an interval is a stretch in which both have somebody
waiting and neither is stopped by health or its own class cap; it also ends where weights change.
The lead of f over g is S_f/w_f - S_g/w_g, and within an interval it never rises by more than
2Q + cmax_f/w_f + cmax_g/w_g, plus the debt floor of each of the two that went out of turn. In a
ring of one engine every dispatch of f counts but those that pass a hold on reserved capacity,
which are promised on top of the share. With several engines work conservation forces dispatches
that g could not have had, and rounds pass meanwhile: so a dispatch of f counts towards its lead
over g only if g's head could have gone to the same engine in the same moment, and the interval
ends at a dispatch, by anybody, while g's head could go nowhere. Nobody is held back later to make
such a loss good: capacity that g could not use is in nobody's share. All dispatches of g count
against f's lead.

What failed before its first byte and goes again was charged once, so it counts once: the second
dispatch is in nobody's lead.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import permutations

from gateway.domain import FlowKey
from tests.gateway.admission_model import Account, Job, Load, Start, require

QUANTUM = 1024.0
Key = FlowKey


@dataclass(slots=True)
class Lead:
    """How far one flow is ahead of another since their interval began, and its least value."""

    value: float = 0.0
    least: float = 0.0
    floors: dict[Key, float] = field(default_factory=dict)


class Fairness:
    """Property P3, measured over every interval at once."""

    def __init__(self, account: Account) -> None:
        self.account = account
        self.leads: dict[tuple[Key, Key], Lead] = {}
        self.active: set[Key] = set()
        self.cmax: dict[Key, float] = {}
        self.worst = 0.0
        self.worst_single = 0.0

    def reset(self) -> None:
        self.leads.clear()
        self.active.clear()

    def observe(self, loads: Mapping[str, Load]) -> None:
        """Begin and end intervals for what stands now."""
        account = self.account
        active = {k for k, q in account.waiting.items() if q and account.eligible(k, loads)}
        if active == self.active:
            return
        pairs = permutations(active, 2)
        self.active = active
        self.leads = {
            (f, g): self.leads.get((f, g)) or Lead()
            for f, g in pairs
            if account.ring_of[f] == account.ring_of[g]
        }

    def dispatched(self, job: Job, engine: str, loads: Mapping[str, Load], start: Start) -> None:
        """Count one dispatch, seen before it is charged."""
        flow, hold = job.key, start.holds.get(engine)
        amount = 0.0 if job.returned else job.cost / self.account.weight(flow)
        single = len(self.account.ring_of[flow]) == 1
        usable = {} if single else {g: self._usable_by(g, loads, start) for _, g in self.leads}
        for (ahead, behind), lead in self.leads.items():
            if flow == behind:
                lead.value -= amount
                lead.least = min(lead.value, lead.least)
            if hold is not None and flow in (ahead, behind):
                lead.floors[flow] = QUANTUM + self.largest(flow) / self.account.weight(flow)
            if not single and flow != behind and not usable[behind]:
                lead.value = lead.least = 0.0
                lead.floors.clear()
            elif flow == ahead and hold is None and (single or engine in usable[behind]):
                lead.value += amount
                self._check(ahead, behind, lead, single=single)

    def _usable_by(self, key: Key, loads: Mapping[str, Load], start: Start) -> set[str]:
        """Engines to which this flow's head could go in this moment."""
        head = self.account.waiting[key][0]
        return {
            e
            for e in self.account.pool_of[key]
            if start.holds.get(e, (head.id,))[0] == head.id and self.account.fits(head, e, loads[e])
        }

    def largest(self, key: Key) -> float:
        spec = self.account.spec(key)
        spec_cost = spec.largest_prompt_tokens + 0.3 * spec.output_estimate_tokens
        return max(spec_cost, self.cmax.get(key, 0.0))

    def _check(self, ahead: Key, behind: Key, lead: Lead, *, single: bool) -> None:
        weight = self.account.weight
        bound = 2 * QUANTUM + sum(lead.floors.values())
        bound += self.cmax[ahead] / weight(ahead) + self.cmax[behind] / weight(behind)
        rise = lead.value - lead.least
        self.worst = max(self.worst, rise / bound)
        if single:
            self.worst_single = max(self.worst_single, rise / bound)
        require("P3", rise <= bound + 1e-6, ahead, "leads", behind, "by", rise, ">", bound)

"""Decides which waiting head goes next, and to which engine: surplus round robin with holds.

A ring is a set of flows whose pools share engines, directly or through others; flows of
different rings never touch each other.

**Turns.** On its turn a flow gets ``weight * quantum`` of deficit, unless it still has some, and
dispatches while its deficit is positive; the deficit may go negative (surplus round robin, after
deficit round robin, Shreedhar and Varghese 1996). The turn survives between events. Quanta stay
small although one long prompt costs eight of them; rounds in which nobody could go are skipped
in one step.

**Holds.** A head that lacks what others consume (slots, prefill tokens, KV) on every engine it may
use would be passed for ever by smaller ones. It gets a hold on the engine with the least left to
do: there the others may use only their own unused reservations until it has gone. A head stopped
by its own class cap is never held; it keeps its deficit, gets no quantum and is tried first when
the cap frees. While nobody fits anywhere, only the flow whose turn it is holds, so that the next
capacity, wherever it appears, goes in turn order.

The order of trials at every event: held heads, heads freed from their class cap, the turn,
reservations beside holds. Pure: no I/O, no clock.
"""

from collections.abc import Iterable, Sequence

from gateway.flows import Flow, Ticket
from gateway.ledger import EngineLedger, Hold, Obstacle

__all__ = ["Choice", "Ring", "rings_of"]

_MASK = (1 << 64) - 1

Choice = tuple[Ticket, EngineLedger]


class Ring:
    """One set of flows that compete, and whose turn it is.

    Args:
        flows: the competitors, in turn order.
        quantum: cost units a flow of weight 1 gets on its turn.
    """

    __slots__ = (
        "_capped", "_seen", "_turn", "_turn_open", "engines", "flows", "holding", "quantum",
        "refused",
    )  # fmt: skip

    def __init__(self, flows: Sequence[Flow], quantum: float) -> None:
        self.flows = tuple(flows)
        self.engines = tuple(dict.fromkeys(e for f in flows for e in f.engines))
        self.quantum = quantum
        self.holding: list[Flow] = []
        self.refused: list[Ticket] = []
        self._turn = 0
        self._turn_open = False
        self._capped: dict[Flow, None] = {}
        self._seen: dict[EngineLedger, int] = {}
        weights = sum(f.weight for f in flows)
        for flow in flows:
            flow.surveyed = None
            flow.share = flow.weight / weights

    def next(self, now: float) -> Choice | None:
        """The next dispatch, already charged to its flow's deficit; None if nothing can go.

        The caller takes the lease before it asks again. Heads that may not hold a second
        time are left in ``refused``; while there are any, it asks again too.
        """
        self._survey()
        return (
            self._held_head(now)
            or self._freed_head(now)
            or self._turn_head(now)
            or self._reserved_head(now)
        )

    # -- the four trials -------------------------------------------------------------------

    def _held_head(self, now: float) -> Choice | None:
        for flow in tuple(self.holding):
            if flow.fits:
                return self._go(flow, now)
            if flow.hold_engine and flow.obstacles[flow.hold_engine] is Obstacle.CLASS_CAP:
                self.end_hold(flow)
                self._survey()
        return None

    def _freed_head(self, now: float) -> Choice | None:
        for flow in tuple(self._capped):
            if flow.queue and flow.deficit > 0 and flow.fits:
                return self._go(flow, now)
            if not flow.queue or flow.deficit <= 0 or not flow.stopped_by_cap:
                del self._capped[flow]
        return None

    def _turn_head(self, now: float) -> Choice | None:
        waiting = [f for f in self.flows if f.queue]
        fitting = [f for f in waiting if f.fits]
        if not fitting:
            self._hold_for_turn(waiting, now)
            return self._held_head(now)
        while fitting:
            choice, placed = self._round(now)
            if choice is not None:
                return choice
            if not placed:
                self._skip_rounds(fitting)
                continue
            held = self._held_head(now)
            if held is not None:
                return held
            fitting = [f for f in fitting if f.queue and f.fits]
        return None

    def _reserved_head(self, now: float) -> Choice | None:
        order = self.flows[self._turn :] + self.flows[: self._turn]
        for held in self.holding:
            engine = held.hold_engine
            if engine is None or not engine.unused_slots:
                continue
            for flow in order:
                if flow.queue and engine.fits_reservation(flow, flow.head):
                    return self._go(flow, now, beside_hold=engine)
        return None

    # -- turns -----------------------------------------------------------------------------

    def _round(self, now: float) -> tuple[Choice | None, bool]:
        """Let every flow have its turn once, until one dispatches or a hold is placed."""
        for _ in self.flows:
            flow = self.flows[self._turn]
            if flow.queue and self._may_go(flow):
                if flow.fits:
                    return self._go(flow, now), False
                if flow.stopped_by_cap:
                    self._capped[flow] = None
                elif self._place_hold(flow, now):
                    return None, True
            self._turn = (self._turn + 1) % len(self.flows)
            self._turn_open = False
        return None, False

    def _may_go(self, flow: Flow) -> bool:
        """Give the quantum where the turn begins with none left; say whether it is in credit."""
        if not self._turn_open:
            self._turn_open = True
            if flow.deficit <= 0 and not flow.stopped_by_cap:
                flow.deficit += flow.weight * self.quantum
        return flow.deficit > 0

    def _skip_rounds(self, claimants: Sequence[Flow]) -> None:
        """Give at once the quanta of the rounds in which no claimant gets out of debt."""
        rounds = min(self._rounds_in_debt(f) for f in claimants)
        if not rounds:
            return
        for flow in self.flows:
            if flow.queue and flow.deficit <= 0 and not flow.stopped_by_cap:
                gained = min(rounds, self._rounds_in_debt(flow) + 1)
                flow.deficit += gained * flow.weight * self.quantum

    def _rounds_in_debt(self, flow: Flow) -> int:
        """Quanta after which the deficit is still not positive."""
        return int(-flow.deficit // (flow.weight * self.quantum)) if flow.deficit <= 0 else 0

    def _go(self, flow: Flow, now: float, beside_hold: EngineLedger | None = None) -> Choice:
        ticket = flow.head
        engine = beside_hold or self._choose(flow, ticket)
        flow.deficit -= ticket.cost
        if beside_hold is not None:
            floor = -(flow.weight * self.quantum + flow.max_cost)
            flow.deficit = max(flow.deficit, floor)
        flow.rate.served(ticket.cost, now, flow.stall_s)
        if flow.hold is not None:
            self.end_hold(flow)
            if flow.deficit > 0:
                self._turn = self.flows.index(flow)
                self._turn_open = True
        flow.remove(ticket)
        return ticket, engine

    # -- holds -----------------------------------------------------------------------------

    def _hold_for_turn(self, waiting: Sequence[Flow], now: float) -> None:
        """Nobody fits: the first in turn order that may hold does so, if nobody holds yet."""
        for flow in waiting:
            if flow.stopped_by_cap and flow.deficit > 0:
                self._capped[flow] = None
        if self.holding:
            return
        able = [f for f in waiting if self._holdable(f)]
        if able:
            self._skip_rounds(able)
            placed = False
            while not placed:
                _, placed = self._round(now)

    def _holdable(self, flow: Flow) -> list[EngineLedger]:
        """Engines on which a hold could help: what others consume is all that is missing."""
        if flow.hold is not None:
            return []
        if Obstacle.HELD in flow.obstacles.values():
            return []
        return [e for e, o in flow.obstacles.items() if o is Obstacle.SHARED and e.hold is None]

    def _place_hold(self, flow: Flow, now: float) -> bool:
        """Hold an engine for this flow's head, or refuse a head that may not; False if neither."""
        engines = self._holdable(flow)
        if not engines:
            return False
        ticket = flow.head
        regular = [e for e in engines if not e.is_exceptional(flow, ticket)]
        exceptional = not regular
        if exceptional:
            age_s = flow.group.spec.max_age_s
            regular = [e for e in engines if now - e.last_exceptional_s >= age_s]
        if regular:
            engine = min(regular, key=lambda e: (e.prefill_used, e.slots_used))
            if exceptional:
                engine.last_exceptional_s = now
            flow.hold = engine.hold = Hold(flow, ticket.id, now, exceptional)
            flow.hold_engine = engine
            engine.version += 1
            self.holding.append(flow)
        else:
            flow.remove(ticket)
            self.refused.append(ticket)
        self._survey()
        return True

    def end_hold(self, flow: Flow) -> None:
        """The held head has gone, whatever the way: its engine is everybody's again."""
        engine = flow.hold_engine
        if engine is None:
            return
        engine.hold = flow.hold = flow.hold_engine = None
        engine.version += 1
        self.holding.remove(flow)

    # -- what fits -------------------------------------------------------------------------

    def _survey(self) -> None:
        """Bring every waiting head's obstacles up to date: new heads, and engines that changed."""
        seen = self._seen
        dirty = [e for e in self.engines if seen.get(e) != e.version]
        for engine in dirty:
            seen[engine] = engine.version
        for flow in self.flows:
            if not flow.queue:
                continue
            head = flow.head
            if flow.surveyed is not head:
                flow.surveyed = head
                flow.obstacles = {e: e.obstacle(flow, head) for e in flow.engines}
                _conclude(flow)
            elif dirty:
                _revise(flow, head, dirty)

    def _choose(self, flow: Flow, ticket: Ticket) -> EngineLedger:
        """Among the engines that fit: the least prefill outstanding, then prefix affinity."""
        fits = [e for e, o in flow.obstacles.items() if o is None]
        least = min(fits, key=lambda e: e.prefill_used)
        if len(fits) == 1 or not ticket.affinity:
            return least
        bound = least.prefill_used + least.limits.token_budget
        near = (e for e in fits if e.prefill_used <= bound)
        return max(near, key=lambda e: _rendezvous(ticket.affinity, e.name))


def _revise(flow: Flow, head: Ticket, dirty: Iterable[EngineLedger]) -> None:
    changed = False
    for engine in dirty:
        if engine in flow.obstacles:
            obstacle = engine.obstacle(flow, head)
            if obstacle is not flow.obstacles[engine]:
                flow.obstacles[engine] = obstacle
                changed = True
    if changed:
        _conclude(flow)


def _conclude(flow: Flow) -> None:
    """Whether the head can go; if not, whether its own class cap is what stops it."""
    found = set(flow.obstacles.values())
    flow.fits = None in found
    flow.stopped_by_cap = (
        Obstacle.CLASS_CAP in found and not flow.fits and Obstacle.SHARED not in found
    )


def _rendezvous(affinity: int, engine: str) -> int:
    """Highest random weight of (prompt prefix, engine): Thaler and Ravishankar 1998."""
    mixed = affinity & _MASK
    for byte in engine.encode():
        mixed = ((mixed ^ byte) * 0x100000001B3) & _MASK
    mixed ^= mixed >> 29
    return (mixed * 0xBF58476D1CE4E5B9) & _MASK


def rings_of(flows: Iterable[Flow], quantum: float) -> list[Ring]:
    """Part the flows: those whose engines meet, directly or through others, share a ring."""
    parts: list[tuple[set[EngineLedger], list[Flow]]] = []
    for flow in flows:
        engines, members, apart = set(flow.engines), [flow], []
        for part in parts:
            if part[0] & engines:
                engines |= part[0]
                members = part[1] + members
            else:
                apart.append(part)
        parts = [*apart, (engines, members)]
    return [Ring(members, quantum) for _, members in parts]

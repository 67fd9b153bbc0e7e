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
from operator import attrgetter

from gateway.flows import Flow, Ticket, share_out
from gateway.lease import Hold, Obstacle
from gateway.ledger import EngineLedger

__all__ = ["Choice", "Ring", "shape_of"]

_MASK = (1 << 64) - 1

# Looked up once: Python 3.11 finds an enum's member in ten times the time of a global.
_SHARED, _CLASS_CAP, _HELD = Obstacle.SHARED, Obstacle.CLASS_CAP, Obstacle.HELD

Choice = tuple[Ticket, EngineLedger]

_least_left, _head = attrgetter("left"), attrgetter("head")


class Ring:
    """One set of flows that compete, and whose turn it is.

    Args:
        flows: the competitors, in turn order.
        quantum: cost units a flow of weight 1 gets on its turn.
    """

    def __init__(self, flows: Sequence[Flow], quantum: float) -> None:
        self.flows = tuple(flows)
        self.engines = tuple(dict.fromkeys(e for f in flows for e in f.engines))
        self.shape = shape_of(flows)
        self.quantum = quantum
        self.holding: list[Flow] = []
        self.refused: list[Ticket] = []
        self._turn = 0
        self._turn_open = False
        self._capped: dict[Flow, None] = {}
        self._uniform = len({f.engines for f in flows}) == 1
        self._seen = {e: (-1, e.room()) for e in self.engines}
        self._rate = share_out(flows)
        for flow in flows:
            flow.surveyed = None

    def next(self, now: float) -> Choice | None:
        """The next dispatch, already charged to its flow's deficit; None if nothing can go.

        The caller takes the lease before it asks again. Heads that may not hold a second
        time are left in ``refused``; while there are any, it asks again too.
        """
        waiting = [flow for flow in self.flows if flow.head is not None]
        if not waiting:
            self._rate.empty()
            return None
        self._rate.waiting(now)
        if len(waiting) == 1 and not self.holding and not self._capped:
            self._survey()
            if waiting[0].fits:
                return self._go_alone(waiting[0], now)
        if self.holding:
            self._survey_held()
            held = self._held_head(now)
            if held is not None:
                return held
        self._survey()
        return (
            self._held_head(now)
            or self._freed_head(now)
            or self._turn_head(now)
            or self._reserved_head(now)
        )

    def at_once(self, flow: Flow, ticket: Ticket) -> EngineLedger | None:
        """The engine for a request that meets no other: to what ``next`` would come, in one step.

        ``ticket`` is in no queue. None: somebody waits or holds, or it fits nowhere now, or time
        in which somebody waited is still counted; then it has to take the whole way.
        """
        if self.holding or self._capped or self._rate.counts or any(map(_head, self.flows)):
            return None
        flow.obstacles, fits = {}, []
        for engine in flow.engines:
            found = flow.obstacles[engine] = engine.obstacle(flow, ticket)
            if found is None:
                fits.append(engine)
        if not fits:
            return None
        flow.surveyed, flow.fits = ticket, True
        flow.stopped_by_cap = flow.may_hold = False
        self._take_turn(flow)
        flow.charge(ticket)
        flow.deficit = min(0.0, flow.deficit)
        return fits[0] if len(fits) == 1 else _best(fits, ticket)

    def rest(self) -> None:
        """Nobody waits in any flow."""
        self._rate.empty()

    # -- the four trials -------------------------------------------------------------------

    def _held_head(self, now: float) -> Choice | None:
        for flow in tuple(self.holding):
            if flow.fits and flow.head is not None:
                return self._go(flow, flow.head, now)
            if flow.hold_engine and flow.obstacles.get(flow.hold_engine) is _CLASS_CAP:
                self.end_hold(flow)
                self._survey()
        return None

    def _freed_head(self, now: float) -> Choice | None:
        for flow in tuple(self._capped):
            if flow.head is not None and flow.deficit > 0 and flow.fits:
                return self._go(flow, flow.head, now)
            if flow.head is None or flow.deficit <= 0 or not flow.stopped_by_cap:
                del self._capped[flow]
        return None

    def _turn_head(self, now: float) -> Choice | None:
        fitting = [f for f in self.flows if f.head is not None and f.fits]
        if not fitting:
            return self._held_head(now) if self._hold_for_turn(now) else None
        while fitting:
            choice, placed = self._round(now)
            if choice is not None:
                return choice
            if not placed:
                self._skip_rounds(f for f in self.flows if f.fits or f.may_hold)
                continue
            held = self._held_head(now)
            if held is not None:
                return held
            fitting = [f for f in fitting if f.head is not None and f.fits]
        return None

    def _reserved_head(self, now: float) -> Choice | None:
        for held in self.holding:
            engine = held.hold_engine
            if engine is None or not engine.unused_slots:
                continue
            for flow in engine.reserved:
                head = flow.head
                if head is not None and engine.fits_reservation(flow, head):
                    return self._go(flow, head, now, beside_hold=engine)
        return None

    # -- turns -----------------------------------------------------------------------------

    def _round(self, now: float) -> tuple[Choice | None, bool]:
        """Let every flow have its turn once, until one dispatches or a hold is placed."""
        for _ in self.flows:
            flow = self.flows[self._turn]
            head = flow.head
            if head is not None and self._may_go(flow):
                if flow.fits:
                    return self._go(flow, head, now), False
                if flow.stopped_by_cap:
                    self._capped[flow] = None
                elif self._place_hold(flow, head, now):
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

    def _go_alone(self, flow: Flow, now: float) -> Choice | None:
        """The turn of the only flow that waits: where the rounds would end, without going them."""
        self._take_turn(flow)
        return None if flow.head is None else self._go(flow, flow.head, now)

    def _take_turn(self, flow: Flow) -> None:
        if flow.deficit <= 0:
            flow.deficit += (self._rounds_in_debt(flow) + 1) * flow.weight * self.quantum
        self._turn, self._turn_open = self.flows.index(flow), True

    def _skip_rounds(self, claimants: Iterable[Flow]) -> None:
        """Give at once the quanta of the rounds in which no claimant gets out of debt.

        A claimant in credit has had its turn in vain: it does not keep the others waiting.
        """
        owing = [f for f in claimants if f.head is not None and f.deficit <= 0]
        rounds = min((self._rounds_in_debt(f) for f in owing), default=0)
        if not rounds:
            return
        for flow in self.flows:
            if flow.head is not None and flow.deficit <= 0 and not flow.stopped_by_cap:
                gained = min(rounds, self._rounds_in_debt(flow) + 1)
                flow.deficit += gained * flow.weight * self.quantum

    def _rounds_in_debt(self, flow: Flow) -> int:
        """Quanta after which the deficit is still not positive."""
        return int(-flow.deficit // (flow.weight * self.quantum)) if flow.deficit <= 0 else 0

    def _go(
        self, flow: Flow, ticket: Ticket, now: float, beside_hold: EngineLedger | None = None
    ) -> Choice:
        fits = [e for e, o in flow.obstacles.items() if o is None]
        engine = beside_hold or _best(fits, ticket)
        if beside_hold is None:
            flow.charge(ticket)
        else:
            flow.charge(ticket, -(flow.weight * self.quantum + flow.max_cost))
        flow.served(ticket.cost, now)
        if flow.hold is not None:
            self.end_hold(flow)
            if flow.deficit > 0:
                self._turn = self.flows.index(flow)
                self._turn_open = True
        flow.remove(ticket)
        return ticket, engine

    # -- holds -----------------------------------------------------------------------------

    def _hold_for_turn(self, now: float) -> bool:
        """Nobody fits: the first in turn order that may hold does so, if nobody holds yet."""
        able = []
        for flow in self.flows:
            if flow.head is None:
                continue
            if flow.stopped_by_cap and flow.deficit > 0:
                self._capped[flow] = None
            elif flow.may_hold:
                able.append(flow)
        if self.holding or not able:
            return False
        while not self._round(now)[1]:
            self._skip_rounds(able)
        return True

    def _place_hold(self, flow: Flow, ticket: Ticket, now: float) -> bool:
        """Hold an engine for this flow's head, or refuse a head that may not; False if neither."""
        if flow.hold is not None or not flow.may_hold:
            return False
        engines = [e for e, o in flow.obstacles.items() if o is _SHARED and e.hold is None]
        if not engines:
            return False
        engine, exceptional = _to_hold(engines, flow, ticket, now)
        if engine is not None:
            flow.hold = Hold(flow, ticket, now, exceptional)
            flow.hold_engine = engine
            engine.hold_for(flow.hold)
            self.holding.append(flow)
            if not exceptional and not any(f.fits for f in self.flows):
                # Nobody could go there, so nobody is stopped by the hold: no need to look again.
                self._seen[engine] = (engine.version, engine.room())
                return True
        else:
            flow.remove(ticket)
            self.refused.append(ticket)
        self._survey()
        return True

    def look_again(self) -> None:
        """Limits, reservations or health changed: doubt what was found of heads and holds.

        A hold whose head now fits only an engine without other load is no regular one any more,
        and one whose engine cannot take it now keeps that engine for nobody.
        """
        for flow in self.flows:
            head, engine, hold = flow.head, flow.hold_engine, flow.hold
            flow.surveyed = None
            if head is not None and head.avoids:
                head.shunned = _shunned(flow, head)
            if head is None or engine is None or hold is None:
                continue
            found = engine.obstacle(flow, head)
            unfit = found in {Obstacle.UNUSABLE, Obstacle.TOO_LARGE}
            if unfit or (not hold.exceptional and engine.is_exceptional(flow, head)):
                self.end_hold(flow)

    def end_hold(self, flow: Flow) -> None:
        """The held head has gone, whatever the way: its engine is everybody's again."""
        engine = flow.hold_engine
        if engine is None:
            return
        flow.hold = flow.hold_engine = None
        engine.hold_for(None)
        self.holding.remove(flow)

    # -- what fits -------------------------------------------------------------------------

    def _survey(self) -> None:
        """Bring every waiting head's obstacles up to date: new heads, and engines that changed."""
        known = self._survey_heads(self.flows)
        for engine in self._changed():
            here = known if self._uniform else [f for f in known if engine in f.obstacles]
            for flow in engine.revise(here, self._seen[engine][1]) if here else ():
                _conclude(flow)
            self._seen[engine] = (engine.version, engine.room())

    def _survey_held(self) -> None:
        """As ``_survey`` for the held heads alone: mostly it is one of them that can go."""
        known = self._survey_heads(self.holding)
        for engine in self._changed():
            for flow in known:
                if flow.surveyed is not None and engine in flow.obstacles:
                    flow.obstacles[engine] = engine.obstacle(flow, flow.surveyed)
                    _conclude(flow)

    def _changed(self) -> list[EngineLedger]:
        """The engines that something happened to since the last survey."""
        return [e for e, (version, _) in self._seen.items() if version != e.version]

    def _survey_heads(self, flows: Iterable[Flow]) -> list[Flow]:
        """Look at new heads on all their engines; returns the waiting flows with a known one."""
        known = []
        for flow in flows:
            head = flow.head
            if head is None:
                continue
            if flow.surveyed is head:
                known.append(flow)
            else:
                flow.surveyed = head
                head.shunned = _shunned(flow, head) if head.avoids else ()
                flow.obstacles = {e: e.obstacle(flow, head) for e in flow.engines}
                _conclude(flow)
        return known


def _best(fits: Sequence[EngineLedger], ticket: Ticket) -> EngineLedger:
    """Among the engines that fit: the least prefill outstanding, then prefix affinity."""
    least = min(fits, key=_least_left)
    if len(fits) == 1 or not ticket.affinity:
        return least
    bound = least.prefill_used + least.limits.token_budget
    near = (e for e in fits if e.prefill_used <= bound)
    return max(near, key=lambda e: _rendezvous(ticket.affinity, e.name))


def _shunned(flow: Flow, ticket: Ticket) -> tuple[EngineLedger, ...]:
    """The engines it keeps away from, if there is another that could take it, now or later."""
    others = (e for e in flow.engines if e.usable and e not in ticket.avoids)
    return ticket.avoids if any(e.could_fit(ticket) for e in others) else ()


def _to_hold(
    engines: Sequence[EngineLedger], flow: Flow, ticket: Ticket, now: float
) -> tuple[EngineLedger | None, bool]:
    """Which of the engines to hold, and whether the head is exceptional on all of them."""
    least = min(engines, key=_least_left)
    if not least.is_exceptional(flow, ticket):
        return least, False
    regular = [e for e in engines if not e.is_exceptional(flow, ticket)]
    able = regular or [e for e in engines if e.may_suspend(ticket, now)]
    return min(able, key=_least_left, default=None), not regular


def _conclude(flow: Flow) -> None:
    """Whether the head can go; if not, what stops it.

    It may hold an engine if what others consume is all that is missing where its own class cap
    and health do not stop it anyway.
    """
    found = flow.obstacles.values()
    flow.fits = None in found
    shared = not flow.fits and _SHARED in found
    flow.stopped_by_cap = not (flow.fits or shared) and _CLASS_CAP in found
    flow.may_hold = shared and _HELD not in found


def _rendezvous(affinity: int, engine: str) -> int:
    """Highest random weight of (prompt prefix, engine): Thaler and Ravishankar 1998."""
    mixed = affinity & _MASK
    for byte in engine.encode():
        mixed = ((mixed ^ byte) * 0x100000001B3) & _MASK
    mixed ^= mixed >> 29
    return (mixed * 0xBF58476D1CE4E5B9) & _MASK


def shape_of(flows: Iterable[Flow]) -> list[tuple[Flow, tuple[EngineLedger, ...], float]]:
    """What makes a ring of these flows the one it is."""
    return [(f, f.engines, f.weight) for f in flows]

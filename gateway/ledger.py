"""Decides whether an engine can take a request, and keeps the exactly-once account of what it has.

One ``EngineLedger`` per engine. It changes only through a ``Lease``: taken at dispatch, told
once when its prefill ends, released once. Four resources are counted, in the notation of
``ARCHITECTURE.md``: slots ``n``, prompt tokens in prefill ``u``, requests of a size class in
prefill ``L``, KV tokens ``k``. Every flow may have reserved slots and reserved prefill tokens
on the engine; what of them is unused is kept free from the other flows.

``version`` grows with every change, so that a caller may keep an answer for as long as it stands.
Pure: no I/O, no clock.
"""

from collections.abc import Iterable

from gateway.domain import EngineLimits, MisuseError
from gateway.floors import slots_floor
from gateway.flows import Flow, Ticket
from gateway.lease import EngineView, Hold, Lease, Obstacle, Room
from gateway.rates import learnt_prefill_rate, unstreamed_prefill_s

__all__ = ["EngineLedger"]

RAMP_S = 30.0

# Looked up once: Python 3.11 finds an enum's member in ten times the time of a global.
_UNUSABLE, _CLASS_CAP, _TOO_LARGE, _SHARED, _HELD = Obstacle
_NOTHING = (0, 0)


class EngineLedger:
    """The account of one engine and the limits now in force.

    ``configured`` are the limits it has by right; ``limits`` may be less for a while (``adapt``).
    ``bound`` tells that slots or prefill tokens have stopped a head that would fit when empty.

    Args:
        name: the engine's name in the configuration.
        limits: what may be outstanding.
        now: when it was added; it counts as down until told otherwise.
    """

    def __init__(self, name: str, limits: EngineLimits, now: float) -> None:
        self.name = name
        self.configured = limits
        self.limits = limits
        self.caps = dict(limits.max_prefilling)
        self.slot_limit = limits.slots
        self.rate = limits.prefill_tokens_per_s
        self.slots_used = self.prefill_used = self.kv_used = 0
        self.slots_by_flow: dict[Flow, int] = {}
        self.prefill_by_flow: dict[Flow, int] = {}
        self.prefilling: dict[str, int] = {}
        self.reserved: dict[Flow, tuple[int, int]] = {}
        # What of its reservation each flow has not used: slots and prefill tokens.
        self._spare: dict[Flow, tuple[int, int]] = {}
        self.unused_slots = self.unused_prefill = 0
        self.unary: dict[int, Lease] = {}
        self.hold: Hold | None = None
        self.last_exceptional_s = float("-inf")
        self.last_exceptional: Ticket | None = None
        self.bound = False
        self.retired = False
        self.up = False
        self.usable = False
        self.draining = self.paused = False
        self.down_since_s = now
        self.ramp_from_s: float | None = None
        self.version = 0
        self.full: list[str] = []
        self.left = (0, 0)
        self._promised = (0, 0, 0)
        self._note_full()
        self._changed()

    # -- what fits -------------------------------------------------------------------------

    def obstacle(self, flow: Flow, ticket: Ticket) -> Obstacle | None:
        """Why ``ticket`` cannot start here in its flow's turn; None if it can."""
        if not self.usable or self in ticket.shunned:
            return _UNUSABLE
        if flow.size_class in self.full:
            return _CLASS_CAP
        hold = self.hold
        if hold is not None and hold.exceptional and hold.flow is flow:
            room = self._room_alone(ticket)
        elif flow in self._spare:
            room = self._room(flow, ticket)
        else:
            room = (
                ticket.slots <= self._slot_room
                and ticket.prompt_tokens <= self._prefill_room
                and ticket.kv_tokens <= self._kv_room
            )
        if room:
            return None if hold is None or hold.flow is flow else _HELD
        if ticket.slots > self.slot_limit or not ticket.within(self.limits):
            return _TOO_LARGE
        self.bound = self.bound or ticket.kv_tokens <= self._kv_room
        return _SHARED

    def could_fit(self, ticket: Ticket) -> bool:
        """Whether the configured limits let it in when the engine has nothing else to do."""
        return self.takes(ticket.flow.size_class) and ticket.within(self.configured)

    def takes(self, size_class: str) -> bool:
        """Whether requests of this class may ever come here; a cap of 0 means never."""
        return self.caps.get(size_class) != 0

    def is_spent(self) -> bool:
        """Whether no slot is left for anybody who waits: nothing can start here."""
        if self._slot_room >= 1 or (self.hold is not None and self.hold.exceptional):
            return False
        return not self.unused_slots or all(flow.head is None for flow in self.reserved)

    def room(self) -> Room:
        """What there is now, to be compared with what there is later."""
        return Room(self._is_full_up(), self.full, self.slot_limit)

    def _is_full_up(self) -> bool:
        exceptional = self.hold is not None and self.hold.exceptional
        return self._slot_room < 1 and self.usable and not exceptional

    def revise(self, flows: Iterable[Flow], seen: Room) -> list[Flow]:
        """Bring the obstacle here of each flow's head up to date; returns those that changed.

        ``seen`` is the room at the last look. Where not a slot was left then and none is now, only
        flows with reservations, or of a class whose cap filled or freed, need another look.
        """
        if seen.spent and seen.slot_limit == self.slot_limit and self._is_full_up():
            if self.full == seen.full:
                flows = [f for f in self.reserved if f.head is not None]
            else:
                turned = set(self.full).symmetric_difference(seen.full)
                flows = [f for f in flows if f in self.reserved or f.size_class in turned]
        changed = []
        for flow in flows:
            head = flow.surveyed
            if head is None:
                continue
            found = self.obstacle(flow, head)
            if found is not flow.obstacles[self]:
                flow.obstacles[self] = found
                changed.append(flow)
        return changed

    def fits_reservation(self, flow: Flow, ticket: Ticket) -> bool:
        """Whether ``ticket`` may pass the held head here, using only its flow's reservation."""
        hold = self.hold
        if hold is None or hold.exceptional or hold.flow is flow:
            return False
        if not self.usable or self in ticket.shunned:
            return False
        slots, prefill = self.reserved.get(flow, (0, 0))
        return (
            self.slots_by_flow.get(flow, 0) + ticket.slots <= slots
            and self.prefill_by_flow.get(flow, 0) + ticket.prompt_tokens <= prefill
            and flow.size_class not in self.full
            and self._room(flow, ticket)
        )

    def _room(self, flow: Flow, ticket: Ticket) -> bool:
        slots, prefill = self._spare.get(flow, _NOTHING)
        return (
            ticket.slots <= self._slot_room + slots
            and ticket.prompt_tokens <= self._prefill_room + prefill
            and ticket.kv_tokens <= self._kv_room
        )

    def _room_alone(self, ticket: Ticket) -> bool:
        return (
            ticket.slots <= self._slot_room + self.unused_slots
            and ticket.prompt_tokens <= self._prefill_room + self.unused_prefill
            and ticket.kv_tokens <= self._kv_room
        )

    def _changed(self) -> None:
        """Keep what every look needs: what is left beside the others' unused reservations."""
        limits = self.limits
        self._slot_room = self.slot_limit - self.slots_used - self.unused_slots
        self._prefill_room = limits.prefill_tokens - self.prefill_used - self.unused_prefill
        self._kv_room = limits.kv_tokens - self.kv_used
        self.left = (self.prefill_used, self.slots_used)
        self.version += 1

    def is_exceptional(self, flow: Flow, ticket: Ticket) -> bool:
        """Whether it fits only without other load: not beside the others' full reservations."""
        slots, prefill, kv = self._promised
        own = self.reserved.get(flow)
        if own is not None:
            slots, prefill = slots - own[0], prefill - own[1]
            kv -= own[0] * flow.largest_kv_tokens
        limits = self.limits
        return (
            ticket.slots + slots > limits.slots
            or ticket.prompt_tokens + prefill > limits.prefill_tokens
            or ticket.kv_tokens + kv > limits.kv_tokens
        )

    def hold_for(self, hold: Hold | None) -> None:
        """Keep this engine for a head, or for everybody again."""
        self.hold = hold
        if hold is not None and hold.exceptional and self.last_exceptional is not hold.ticket:
            self.last_exceptional, self.last_exceptional_s = hold.ticket, hold.since_s
        self.version += 1

    def may_suspend(self, ticket: Ticket, now: float) -> bool:
        """Whether the reservations may be suspended for it: one head at most per maximum age."""
        rested_s = now - self.last_exceptional_s
        return self.last_exceptional is ticket or rested_s >= ticket.flow.group.spec.max_age_s

    # -- leases ----------------------------------------------------------------------------

    def take(self, lease_id: int, ticket: Ticket, now: float) -> Lease:
        """Charge ``ticket`` to this engine. The caller has decided that it goes here."""
        flow = ticket.flow
        lease = Lease(
            lease_id, ticket, flow, self.name, now, self.prefill_used,
            ticket.kv_tokens, ticket.output_charge_tokens,
        )  # fmt: skip
        if not ticket.streamed:
            ahead = self.prefill_used + ticket.prompt_tokens
            lease.prefill_until_s = now + unstreamed_prefill_s(ahead, self.rate)
            self.unary[lease_id] = lease
        self._seat(flow.size_class, 1)
        self._charge(flow, ticket.slots, ticket.prompt_tokens)
        self.kv_used += ticket.kv_tokens
        self._changed()
        return lease

    def prefill_done(self, lease: Lease, now: float | None = None) -> None:
        """Give back the prefill tokens and the class seat; a second call changes nothing.

        Args:
            lease: whose prompt has been computed.
            now: the moment of the first data event, where it was seen: it teaches the rate.
        """
        if not self._end_prefill(lease):
            return
        self._charge(lease.flow, 0, -lease.ticket.prompt_tokens)
        self._changed()
        if now is not None and lease.ticket.streamed:
            tokens = lease.prefill_ahead_tokens + lease.ticket.prompt_tokens
            self.rate = learnt_prefill_rate(self.rate, tokens, now - lease.dispatched_s)
            self._end_older_unary(lease)

    def _end_prefill(self, lease: Lease) -> bool:
        ended, lease.prefilling = lease.prefilling, False
        if ended:
            self.unary.pop(lease.id, None)
            self._seat(lease.flow.size_class, -1)
        return ended

    def grow(self, lease: Lease, output_tokens: int) -> None:
        """True the KV charge up when an answer, all its sequences, grows past the estimate."""
        excess = output_tokens - lease.output_charge_tokens
        if excess > 0:
            lease.output_charge_tokens += excess
            lease.kv_tokens += excess
            self.kv_used += excess
            self._changed()

    def release(self, lease: Lease) -> None:
        """Give everything back. The owner of the leases sees to it that this happens once."""
        tokens = lease.ticket.prompt_tokens if self._end_prefill(lease) else 0
        self._charge(lease.flow, -lease.ticket.slots, -tokens)
        self.kv_used -= lease.kv_tokens
        self._changed()
        if self.slots_used < 0 or self.prefill_used < 0 or self.kv_used < 0:
            raise MisuseError(f"ledger of {self.name} went negative: {self!r}")

    def _seat(self, size_class: str, more: int) -> None:
        self.prefilling[size_class] = self.prefilling.get(size_class, 0) + more
        if size_class in self.caps:
            self._note_full()

    def _note_full(self) -> None:
        found = self.prefilling.get
        self.full = [size for size, cap in self.caps.items() if found(size, 0) >= cap]

    def _charge(self, flow: Flow, slots: int, tokens: int) -> None:
        self.slots_used += slots
        self.prefill_used += tokens
        held = self.slots_by_flow.get(flow, 0) + slots, self.prefill_by_flow.get(flow, 0) + tokens
        self.slots_by_flow[flow], self.prefill_by_flow[flow] = held
        if not held[0]:  # what has nothing is not kept
            del self.slots_by_flow[flow]
        if not held[1]:
            del self.prefill_by_flow[flow]
        if flow in self._spare:
            self._note_spare(flow)

    def _note_spare(self, flow: Flow) -> None:
        before, (slots, tokens) = self._spare.get(flow, _NOTHING), self.reserved[flow]
        slots = max(0, slots - self.slots_by_flow.get(flow, 0))
        tokens = max(0, tokens - self.prefill_by_flow.get(flow, 0))
        self._spare[flow] = slots, tokens
        self.unused_slots += slots - before[0]
        self.unused_prefill += tokens - before[1]

    def _end_older_unary(self, streamed: Lease) -> None:
        """On a first-come engine, whatever was sent before a request that answers is prefilled."""
        older = [x for x in self.unary.values() if x.id < streamed.id]
        for lease in older if self.limits.fcfs else ():
            self.prefill_done(lease)

    # -- limits, reservations, health ------------------------------------------------------

    def reserve(self, flows: Iterable[Flow], now: float) -> None:
        """Set whose reservations count here: the flows that the route table sends here."""
        self.reserved = {
            f: (f.reserved_slots, f.reserved_prefill_tokens)
            for f in flows
            if f.reserved_slots or f.reserved_prefill_tokens
        }
        self._promised, self.unused_slots, self.unused_prefill = (0, 0, 0), 0, 0
        self._spare.clear()
        for flow, (slots, tokens) in self.reserved.items():
            all_slots, all_tokens, all_kv = self._promised
            kv = slots * flow.largest_kv_tokens
            self._promised = (all_slots + slots, all_tokens + tokens, all_kv + kv)
            self._note_spare(flow)
        self.ramp(now)
        self._changed()

    def set_limits(self, limits: EngineLimits, now: float) -> None:
        """Configure other limits and put them in force; what runs is never cancelled."""
        self.configured = limits
        self.caps = dict(limits.max_prefilling)
        self._note_full()
        self.adapt(limits, now)

    def adapt(self, limits: EngineLimits, now: float) -> None:
        """Put N and U in force for a while, in the bounds of what is configured."""
        self.limits = limits
        self.ramp(now)
        self._changed()

    def restarted(self, now: float) -> None:
        """Another epoch: nothing learnt of the one before counts, and N ramps if it is up."""
        self.rate = self.configured.prefill_tokens_per_s
        self.ramp_from_s = now if self.up else None
        self.adapt(self.configured, now)

    def retire(self, now: float) -> None:
        """Leave the configuration: take nothing new; what runs ends as it ends."""
        self.retired = True
        self.set_state(now)

    def revive(self, limits: EngineLimits, now: float) -> None:
        """Come back to the configuration before the last lease has ended: down, as if new."""
        self.retired = False
        self.set_state(now, up=False, draining=False, paused=False)
        self.down_since_s = now
        self.set_limits(limits, now)
        self.restarted(now)

    def set_state(
        self, now: float, *, up: bool | None = None, draining: bool | None = None,
        paused: bool | None = None, ramp: bool = False,
    ) -> None:  # fmt: skip
        """Change health, drain or pause; with ``ramp`` a recovery raises N over 30 seconds."""
        if up is not None and up != self.up:
            self.up = up
            self.down_since_s = now
            self.ramp_from_s = now if up and ramp else None
        self.draining = self.draining if draining is None else draining
        self.paused = self.paused if paused is None else paused
        self.usable = self.up and not (self.draining or self.paused or self.retired)
        self.ramp(now)
        self._changed()

    def slot_floor(self) -> int:
        """The least N that keeps every reservation usable: ΣR + max(2, N/4)."""
        return min(self.limits.slots, slots_floor(self._promised[0], self.configured.slots))

    def ramp(self, now: float) -> None:
        """Set N for this moment: from its floor to the full limit over 30 s after a recovery."""
        if self.ramp_from_s is not None and now >= self.ramp_from_s + RAMP_S:
            self.ramp_from_s = None
        limit = self.limits.slots
        if self.ramp_from_s is not None:
            floor = self.slot_floor()
            limit = floor + int((limit - floor) * (now - self.ramp_from_s) / RAMP_S)
        if limit != self.slot_limit:
            self.slot_limit = limit
            self._changed()

    def view(self) -> EngineView:
        """This account as a value."""
        return EngineView(
            self.name, self.usable, self.slots_used, self.slot_limit, self.prefill_used,
            self.limits.prefill_tokens, self.kv_used, self.limits.kv_tokens,
            tuple(sorted(self.prefilling.items())),
            self.hold.flow.key if self.hold else None, self.rate,
        )  # fmt: skip

    def __repr__(self) -> str:
        held = f" held for {self.hold.flow.key}" if self.hold else ""
        used = f"{self.slots_used}/{self.slot_limit} slots, {self.prefill_used} prefill"
        return f"<{self.name}: {used}, {self.kv_used} kv{held}>"

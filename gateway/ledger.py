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
from dataclasses import dataclass
from enum import Enum

from gateway.domain import EngineLimits, FlowKey, MisuseError
from gateway.flows import Flow, Ticket

__all__ = ["EngineLedger", "EngineView", "Hold", "Lease", "Obstacle"]

UNARY_PREFILL_FACTOR = 1.25
UNARY_PREFILL_GRACE_S = 0.020
RATE_MEMORY_TOKENS = 200_000.0
RATE_MIN_SAMPLE_TOKENS = 256
RAMP_S = 30.0


class Obstacle(Enum):
    """Why a head cannot go to an engine now: the first that applies, in this order."""

    UNUSABLE = "unusable"
    CLASS_CAP = "class_cap"
    SHARED = "shared"
    HELD = "held"


@dataclass(frozen=True, slots=True)
class Hold:
    """An engine kept for one head: other flows may use only their own unused reservations.

    ``exceptional`` marks a head that fits only an engine without other load: then the
    reservations of the others are suspended too.
    """

    flow: Flow
    ticket_id: int
    since_s: float
    exceptional: bool


@dataclass(slots=True)
class Lease:
    """What one request holds of one engine, from dispatch to release."""

    id: int
    ticket_id: int
    flow: Flow
    engine: str
    slots: int
    prompt_tokens: int
    kv_tokens: int
    output_charge_tokens: int
    streamed: bool
    dispatched_s: float
    prefill_ahead_tokens: int
    principal: str
    prefill_until_s: float | None = None
    prefilling: bool = True


@dataclass(frozen=True, slots=True)
class EngineView:
    """One engine's account as a value, for the metrics and the operator."""

    engine: str
    usable: bool
    slots: int
    slot_limit: int
    prefill_tokens: int
    prefill_limit: int
    kv_tokens: int
    kv_limit: int
    prefilling: tuple[tuple[str, int], ...]
    held_for: FlowKey | None
    prefill_tokens_per_s: float


class EngineLedger:
    """The account of one engine and the limits now in force.

    Args:
        name: the engine's name in the configuration.
        limits: what may be outstanding.
        now: when it was added; it counts as down until told otherwise.
    """

    __slots__ = (
        "caps", "down_since_s", "draining", "hold", "kv_used", "last_exceptional_s", "limits",
        "name", "paused", "prefill_by_flow", "prefill_used", "prefilling", "ramp_from_s", "rate",
        "reserved", "slot_limit", "slots_by_flow", "slots_used", "unary", "unused_prefill",
        "unused_slots", "up", "usable", "version",
    )  # fmt: skip

    def __init__(self, name: str, limits: EngineLimits, now: float) -> None:
        self.name = name
        self.limits = limits
        self.caps = dict(limits.max_prefilling)
        self.slot_limit = limits.slots
        self.rate = limits.prefill_tokens_per_s
        self.slots_used = 0
        self.prefill_used = 0
        self.kv_used = 0
        self.slots_by_flow: dict[Flow, int] = {}
        self.prefill_by_flow: dict[Flow, int] = {}
        self.prefilling: dict[str, int] = {}
        self.reserved: dict[Flow, tuple[int, int]] = {}
        self.unused_slots = 0
        self.unused_prefill = 0
        self.unary: dict[int, Lease] = {}
        self.hold: Hold | None = None
        self.last_exceptional_s = float("-inf")
        self.up = False
        self.usable = False
        self.draining = False
        self.paused = False
        self.down_since_s = now
        self.ramp_from_s: float | None = None
        self.version = 0

    # -- what fits -------------------------------------------------------------------------

    def obstacle(self, flow: Flow, ticket: Ticket) -> Obstacle | None:
        """Why ``ticket`` cannot start here in its flow's turn; None if it can."""
        if not self.usable:
            return Obstacle.UNUSABLE
        cap = self.caps.get(flow.size_class)
        if cap is not None and self.prefilling.get(flow.size_class, 0) >= cap:
            return Obstacle.CLASS_CAP
        hold = self.hold
        own = hold is not None and hold.flow is flow
        if not self._room(flow, ticket, alone=hold is not None and own and hold.exceptional):
            return Obstacle.SHARED
        return None if hold is None or own else Obstacle.HELD

    def fits_reservation(self, flow: Flow, ticket: Ticket) -> bool:
        """Whether ``ticket`` may pass the held head here, using only its flow's reservation."""
        hold = self.hold
        if hold is None or hold.exceptional or hold.flow is flow or not self.usable:
            return False
        slots, prefill = self.reserved.get(flow, (0, 0))
        if self.slots_by_flow.get(flow, 0) + ticket.slots > slots:
            return False
        if self.prefill_by_flow.get(flow, 0) + ticket.prompt_tokens > prefill:
            return False
        cap = self.caps.get(flow.size_class)
        capped = cap is not None and self.prefilling.get(flow.size_class, 0) >= cap
        return not capped and self._room(flow, ticket, alone=False)

    def _room(self, flow: Flow, ticket: Ticket, *, alone: bool) -> bool:
        limits = self.limits
        slots = self.slots_used + ticket.slots
        prefill = self.prefill_used + ticket.prompt_tokens
        if not alone:
            slots += self.unused_slots
            prefill += self.unused_prefill
            own = self.reserved.get(flow)
            if own is not None:
                slots -= max(0, own[0] - self.slots_by_flow.get(flow, 0))
                prefill -= max(0, own[1] - self.prefill_by_flow.get(flow, 0))
        return (
            slots <= self.slot_limit
            and prefill <= limits.prefill_tokens
            and self.kv_used + ticket.kv_tokens <= limits.kv_tokens
        )

    def could_ever_fit(self, slots: int, prompt_tokens: int, kv_tokens: int) -> bool:
        """Whether an engine of these limits without any load could take such a request."""
        limits = self.limits
        return (
            slots <= limits.slots
            and prompt_tokens <= limits.prefill_tokens
            and kv_tokens <= limits.kv_tokens
        )

    def is_exceptional(self, flow: Flow, ticket: Ticket) -> bool:
        """Whether it fits only without other load: not beside the others' full reservations."""
        others = [(g, r) for g, r in self.reserved.items() if g is not flow]
        limits = self.limits
        return (
            ticket.slots + sum(r[0] for _, r in others) > limits.slots
            or ticket.prompt_tokens + sum(r[1] for _, r in others) > limits.prefill_tokens
            or ticket.kv_tokens + sum(r[0] * g.largest_kv_tokens for g, r in others)
            > limits.kv_tokens
        )

    # -- leases ----------------------------------------------------------------------------

    def take(self, lease_id: int, ticket: Ticket, now: float) -> Lease:
        """Charge ``ticket`` to this engine. The caller has decided that it goes here."""
        flow = ticket.flow
        lease = Lease(
            lease_id, ticket.id, flow, self.name, ticket.slots, ticket.prompt_tokens,
            ticket.kv_tokens, ticket.output_charge_tokens, ticket.streamed, now,
            self.prefill_used, ticket.principal,
        )  # fmt: skip
        if not ticket.streamed:
            ahead = self.prefill_used + ticket.prompt_tokens
            estimate_s = UNARY_PREFILL_FACTOR * ahead / self.rate + UNARY_PREFILL_GRACE_S
            lease.prefill_until_s = now + estimate_s
            self.unary[lease_id] = lease
        self._charge_slots(flow, ticket.slots)
        self._charge_prefill(flow, ticket.prompt_tokens)
        self.prefilling[flow.size_class] = self.prefilling.get(flow.size_class, 0) + 1
        self.kv_used += ticket.kv_tokens
        self.version += 1
        return lease

    def prefill_done(self, lease: Lease, now: float | None = None) -> None:
        """Give back the prefill tokens and the class seat; a second call changes nothing.

        Args:
            lease: whose prompt has been computed.
            now: the moment of the first data event, where it was seen: it teaches the rate.
        """
        if not lease.prefilling:
            return
        lease.prefilling = False
        self.unary.pop(lease.id, None)
        self._charge_prefill(lease.flow, -lease.prompt_tokens)
        self.prefilling[lease.flow.size_class] -= 1
        self.version += 1
        if now is not None and lease.streamed:
            self._learn_rate(lease, now)
            self._end_older_unary(lease)

    def grow(self, lease: Lease, output_tokens: int) -> None:
        """True the KV charge up when an answer grows past what was estimated."""
        excess = output_tokens * lease.slots - lease.output_charge_tokens
        if excess > 0:
            lease.output_charge_tokens += excess
            lease.kv_tokens += excess
            self.kv_used += excess
            self.version += 1

    def release(self, lease: Lease) -> None:
        """Give everything back. The owner of the leases sees to it that this happens once."""
        self.prefill_done(lease)
        self._charge_slots(lease.flow, -lease.slots)
        self.kv_used -= lease.kv_tokens
        self.version += 1
        if min(self.slots_used, self.prefill_used, self.kv_used) < 0:
            raise MisuseError(f"ledger of {self.name} went negative: {self!r}")

    def _charge_slots(self, flow: Flow, slots: int) -> None:
        before = self.slots_by_flow.get(flow, 0)
        after = before + slots
        self.slots_used += slots
        reserved = self.reserved.get(flow)
        if reserved is not None:
            self.unused_slots += max(0, reserved[0] - after) - max(0, reserved[0] - before)
        if after:
            self.slots_by_flow[flow] = after
        else:
            self.slots_by_flow.pop(flow, None)

    def _charge_prefill(self, flow: Flow, tokens: int) -> None:
        before = self.prefill_by_flow.get(flow, 0)
        after = before + tokens
        self.prefill_used += tokens
        reserved = self.reserved.get(flow)
        if reserved is not None:
            self.unused_prefill += max(0, reserved[1] - after) - max(0, reserved[1] - before)
        if after:
            self.prefill_by_flow[flow] = after
        else:
            self.prefill_by_flow.pop(flow, None)

    def _learn_rate(self, lease: Lease, now: float) -> None:
        tokens = lease.prefill_ahead_tokens + lease.prompt_tokens
        elapsed_s = now - lease.dispatched_s
        if tokens >= RATE_MIN_SAMPLE_TOKENS and elapsed_s > 0:
            weight = min(1.0, tokens / RATE_MEMORY_TOKENS)
            self.rate = 1 / ((1 - weight) / self.rate + weight * elapsed_s / tokens)

    def _end_older_unary(self, streamed: Lease) -> None:
        """On a first-come engine, whatever was sent before a request that answers is prefilled."""
        if not self.limits.fcfs:
            return
        for lease in [x for x in self.unary.values() if x.id < streamed.id]:
            self.prefill_done(lease)

    # -- limits, reservations, health ------------------------------------------------------

    def reserve(self, flows: Iterable[Flow]) -> None:
        """Set whose reservations count here: the flows that the route table sends here."""
        self.reserved = {
            f: (f.reserved_slots, f.reserved_prefill_tokens)
            for f in flows
            if f.reserved_slots or f.reserved_prefill_tokens
        }
        self.unused_slots = sum(
            max(0, r[0] - self.slots_by_flow.get(f, 0)) for f, r in self.reserved.items()
        )
        self.unused_prefill = sum(
            max(0, r[1] - self.prefill_by_flow.get(f, 0)) for f, r in self.reserved.items()
        )
        self.version += 1

    def set_limits(self, limits: EngineLimits, now: float) -> None:
        """Put other limits in force; what runs is never cancelled."""
        self.limits = limits
        self.caps = dict(limits.max_prefilling)
        self.ramp(now)
        self.version += 1

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
        self.usable = self.up and not self.draining and not self.paused
        self.ramp(now)
        self.version += 1

    def slot_floor(self) -> int:
        """The least N that keeps every reservation usable: ΣR + max(2, N/4)."""
        floor = sum(r[0] for r in self.reserved.values()) + max(2, self.limits.slots // 4)
        return min(self.limits.slots, floor)

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
            self.version += 1

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
        return (
            f"<{self.name}: {self.slots_used}/{self.slot_limit} slots, "
            f"{self.prefill_used}/{self.limits.prefill_tokens} prefill, "
            f"{self.kv_used}/{self.limits.kv_tokens} kv{held}>"
        )

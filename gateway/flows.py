"""Keeps what waits: one first-in first-out queue per flow, its deficit, and how fast it is served.

A *flow* is (model, size class, service class, arm). A *group* is what both arms of a flow
share: the queue caps, the maximum age, the callers' own caps. Cost is
``prompt tokens + beta * output charge``. Pure: no I/O, no clock.
"""

import math
from bisect import bisect_left, insort
from collections import OrderedDict, deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from gateway.domain import AdmissionMode, EngineLimits, FlowKey, FlowSpec, MisuseError
from gateway.verdicts import FlowView

if TYPE_CHECKING:
    from gateway.lease import Hold, Obstacle
    from gateway.ledger import EngineLedger

__all__ = ["Flow", "Group", "ServiceRate", "Ticket"]

RATE_MEMORY_S = 10.0
STALL_SHARE_OF_AGE = 0.25
STALL_LEAST_S = 2.0
RECENT_VALUES = 200
VALUES_FOR_P95 = 59
TARGET_LEAST_SHARE = 0.25


@dataclass(slots=True, eq=False)
class Ticket:
    """One request in the admission core, keyed by the core's own counter.

    ``kv_tokens`` is what it is charged of the KV cache: every prompt token and the output it is
    expected to make.
    """

    id: int
    flow: "Flow"
    principal: str
    slots: int
    prompt_tokens: int
    output_charge_tokens: int
    body_bytes: int
    streamed: bool
    affinity: int
    arrived_s: float
    deadline_s: float
    cost: float
    kv_tokens: int = field(init=False)

    def __post_init__(self) -> None:
        self.kv_tokens = self.prompt_tokens + self.output_charge_tokens


class ServiceRate:
    """Cost served per second while somebody waited, forgetting over about ten seconds.

    Only time with a non-empty queue counts, so an idle gateway knows nothing rather than
    something wrong; a gap as long as a stall makes it forget everything.
    """

    __slots__ = ("_cost", "_mark_s", "_seconds", "last_sample_s")

    def __init__(self) -> None:
        self._cost = 0.0
        self._seconds = 0.0
        self._mark_s: float | None = None
        self.last_sample_s: float | None = None

    def waiting(self, now: float) -> None:
        """The queue became non-empty."""
        if self._mark_s is None:
            self._mark_s = now

    def empty(self) -> None:
        """The queue emptied, or nothing can serve it: time stops counting."""
        self._mark_s = None

    def served(self, cost: float, now: float, stall_s: float) -> None:
        """``cost`` left a non-empty queue at ``now``."""
        if self._mark_s is None:
            return
        elapsed_s = now - self._mark_s
        self._mark_s = now
        if elapsed_s > stall_s:
            self._cost = self._seconds = 0.0
            self.last_sample_s = None
            return
        keep = math.exp(-elapsed_s / RATE_MEMORY_S)
        self._cost = self._cost * keep + cost
        self._seconds = self._seconds * keep + elapsed_s
        self.last_sample_s = now

    def per_second(self, now: float, stale_s: float) -> float | None:
        """The rate, or None while nothing recent enough is known."""
        if self.last_sample_s is None or now - self.last_sample_s > stale_s:
            return None
        return self._cost / self._seconds if self._seconds > 0 else None


class RecentP95:
    """The p95, by nearest rank, of the last 200 values; None until there are enough for one."""

    __slots__ = ("_ranked", "_recent")

    def __init__(self) -> None:
        self._recent: deque[float] = deque()
        self._ranked: list[float] = []

    def add(self, value: float) -> None:
        """Take one more value, and forget the oldest if there are too many."""
        if len(self._recent) == RECENT_VALUES:
            del self._ranked[bisect_left(self._ranked, self._recent.popleft())]
        self._recent.append(value)
        insort(self._ranked, value)

    @property
    def value(self) -> float | None:
        """The p95 now."""
        if len(self._ranked) < VALUES_FOR_P95:
            return None
        return self._ranked[math.ceil(0.95 * len(self._ranked)) - 1]


@dataclass(slots=True, eq=False)
class Group:
    """Caps and counts of one (model, size class, service class), shared by its arms."""

    spec: FlowSpec
    queued: int = 0
    queued_tokens: int = 0
    queued_bytes: int = 0
    counting: int = 0
    counting_bytes: int = 0
    paused: bool = False
    in_flight: dict[str, int] = field(default_factory=dict)
    _outputs: RecentP95 = field(default_factory=RecentP95)
    _first_events_s: RecentP95 = field(default_factory=RecentP95)

    @property
    def target_wait_s(self) -> float | None:
        """The longest predicted wait that is not refused; None: nothing is.

        Unless configured, what the TTFT limit leaves beside the p95 of dispatch to first event, so
        that what is admitted can still meet its contract; and at least a quarter of the limit, or
        engines that are slow by themselves would make everything that waits be refused.
        """
        spec = self.spec
        if spec.target_wait_s is not None or spec.ttft_limit_s is None:
            return spec.target_wait_s
        left_s = spec.ttft_limit_s - (self._first_events_s.value or 0.0)
        return max(left_s, TARGET_LEAST_SHARE * spec.ttft_limit_s)

    def output_charge(self, max_tokens: int | None, slots: int) -> int:
        """Output tokens charged: what was asked for, bounded by what this class produces."""
        learnt = self._outputs.value
        estimate = self.spec.output_estimate_tokens if learnt is None else int(learnt)
        per_slot = estimate if max_tokens is None else min(max_tokens, estimate)
        return per_slot * slots

    def completed(self, output_tokens: int) -> None:
        """Learn from an answer: the estimate becomes the p95 of recent completions."""
        self._outputs.add(output_tokens)

    def first_event(self, seconds: float) -> None:
        """Learn how long engines take from dispatch to the first event."""
        self._first_events_s.add(seconds)

    def count(self, requests: int, body_bytes: int) -> None:
        """Charge or give back bodies that are being counted and may turn out to be here."""
        self.counting += requests
        self.counting_bytes += body_bytes
        if self.counting < 0 or self.counting_bytes < 0:
            raise MisuseError(f"counting ended twice for {self.spec.group}")

    def enter(self, principal: str) -> None:
        """One more request of this caller is queued or running."""
        self.in_flight[principal] = self.in_flight.get(principal, 0) + 1

    def leave(self, principal: str) -> None:
        """One fewer; a caller with none left is forgotten."""
        left = self.in_flight[principal] - 1
        if left:
            self.in_flight[principal] = left
        else:
            del self.in_flight[principal]


class Flow:
    """One queue in one scheduling ring.

    Args:
        key: its name.
        group: the caps it shares with its other arm.
        weight: its share in the ring, in proportion to the others'.

    ``routed`` is false for an arm that the route table no longer names: it drains on the pool of
    the other arm, without reservations of its own. ``head`` is the oldest waiting ticket.
    """

    def __init__(self, key: FlowKey, group: Group, weight: float, beta: float) -> None:
        spec = group.spec
        self.key = key
        self.group = group
        self.weight = weight
        self.share = 1.0
        self.size_class = key.size_class
        self.reserved_slots = spec.reserved_slots
        self.reserved_prefill_tokens = spec.reserved_prefill_tokens
        self.largest_kv_tokens = spec.largest_prompt_tokens + spec.output_estimate_tokens
        self.max_cost = spec.largest_prompt_tokens + beta * spec.output_estimate_tokens
        self.mode = AdmissionMode.ENFORCE
        self.routed = True
        self.queue: OrderedDict[int, Ticket] = OrderedDict()
        self.queued_cost = 0.0
        self.deficit = 0.0
        self.rate = ServiceRate()
        self.engines: tuple[EngineLedger, ...] = ()
        self.limits: tuple[EngineLimits, ...] = ()
        self.slots = 0
        self.head: Ticket | None = None
        self.hold: Hold | None = None
        self.hold_engine: EngineLedger | None = None
        self.surveyed: Ticket | None = None  # the head that ``obstacles`` is about
        self.obstacles: dict[EngineLedger, Obstacle | None] = {}
        self.fits = False
        self.stopped_by_cap = False
        self.may_hold = False

    def use(self, engines: "tuple[EngineLedger, ...]") -> None:
        """Let this flow be served by these engines from now on."""
        self.engines = engines
        self.limits = tuple({e.limits: None for e in engines})
        self.slots = sum(e.limits.slots for e in engines)

    @property
    def stall_s(self) -> float:
        """A gap in service this long says nothing about the rate."""
        return max(STALL_LEAST_S, STALL_SHARE_OF_AGE * self.group.spec.max_age_s)

    def append(self, ticket: Ticket, now: float) -> None:
        """Charge the caps and wait at the end."""
        group = self.group
        self.queue[ticket.id] = ticket
        self.head = self.head or ticket
        self.queued_cost += ticket.cost
        group.queued += 1
        group.queued_tokens += ticket.prompt_tokens
        group.queued_bytes += ticket.body_bytes
        self.rate.waiting(now)

    def remove(self, ticket: Ticket) -> None:
        """Give the caps back; an emptied queue loses a positive deficit and keeps a debt."""
        group = self.group
        del self.queue[ticket.id]
        if ticket is self.head:
            self.head = next(iter(self.queue.values()), None)
        self.queued_cost -= ticket.cost
        group.queued -= 1
        group.queued_tokens -= ticket.prompt_tokens
        group.queued_bytes -= ticket.body_bytes
        if not self.queue:
            self.queued_cost = 0.0
            self.deficit = min(0.0, self.deficit)
            self.rate.empty()

    def view(self, running: int, now: float) -> FlowView:
        """This queue as a value; ``running`` of its requests hold a lease."""
        waiting = self.queue.values()
        return FlowView(
            self.key,
            len(waiting),
            sum(t.prompt_tokens for t in waiting),
            sum(t.body_bytes for t in waiting),
            self.oldest_age_s(now),
            self.group.spec.max_age_s,
            running,
        )

    def oldest_age_s(self, now: float) -> float:
        """How long the oldest waiting request has waited, from its headers; 0 if none waits."""
        return max((now - t.arrived_s for t in self.queue.values()), default=0.0)

    def __repr__(self) -> str:
        key = self.key
        return (
            f"<{key.model}/{key.size_class}/{key.service_class}/{key.arm}: "
            f"{len(self.queue)} queued, deficit {self.deficit:.0f}>"
        )

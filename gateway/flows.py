"""Keeps what waits: one first-in first-out queue per flow, its deficit, and how fast it is served.

A *flow* is (model, size class, service class, arm). A *group* is what both arms of a flow
share: the queue caps, the maximum age, the callers' own caps. Cost is
``prompt tokens + beta * output charge``. Pure: no I/O, no clock.
"""

import math
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from gateway.domain import AdmissionMode, EngineLimits, FlowKey, FlowSpec, MisuseError
from gateway.rates import RecentP95, ServiceRate
from gateway.verdicts import FlowView

if TYPE_CHECKING:
    from gateway.lease import Hold, Obstacle
    from gateway.ledger import EngineLedger

__all__ = ["Flow", "Group", "Ticket", "share_out"]

STALL_SHARE_OF_AGE = 0.25
STALL_LEAST_S = 2.0
TARGET_LEAST_SHARE = 0.25
# An overload begins with few samples: of five, the largest stands for their p95.
FIRST_EVENTS_LEAST = 5


@dataclass(slots=True, eq=False)
class Ticket:
    """One request in the admission core, keyed by the core's own counter.

    ``kv_tokens`` is what it is charged of the KV cache: every prompt token and the output it is
    expected to make. ``charged`` is what its last dispatch took from its flow's deficit, and
    ``given_back`` what of that came back with it while it waits again. It keeps away from the
    engines it ``avoids``; ``shunned`` are those of them that it need not go to now. ``due_s`` is
    when it was predicted to start, where it had to wait and that was known.
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
    kv_tokens: int
    charged: float = 0.0
    due_s: float | None = None
    given_back: float = 0.0
    avoids: "tuple[EngineLedger, ...]" = ()
    shunned: "tuple[EngineLedger, ...]" = ()

    def within(self, limits: EngineLimits) -> bool:
        """Whether an engine with these limits could take it if it had nothing else to do."""
        return (
            self.slots <= limits.slots
            and self.prompt_tokens <= limits.prefill_tokens
            and self.kv_tokens <= limits.kv_tokens
        )


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
    _first_events_s: RecentP95 = field(default_factory=lambda: RecentP95(FIRST_EVENTS_LEAST))

    @property
    def target_wait_s(self) -> float | None:
        """The longest predicted wait that is not refused; None: nothing is.

        Unless configured, what the TTFT limit leaves beside the p95 of dispatch to first event, so
        that what is admitted can still meet its contract; and at least a quarter of the limit, or
        engines that are slow by themselves would make everything that waits be refused. Dispatch
        is the predicted one, where there was a prediction: turns come in lumps, and what is
        admitted under overload has all of it a wait near the target, so that half would be late
        if predictions were right on average.
        """
        spec = self.spec
        if spec.target_wait_s is not None or spec.ttft_limit_s is None:
            return spec.target_wait_s
        left_s = spec.ttft_limit_s - max(0.0, self._first_events_s.value or 0.0)
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
        """Learn after how long, from its dispatch as predicted, a request's first event came.

        Negative: it came before it was predicted to be dispatched.
        """
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

    ``accepts`` is false once the configuration no longer names the flow: what waits drains on the
    engines it had. ``routed`` is false then, and for an arm that the route table no longer names:
    that drains on the pool of the other arm; neither has reservations of its own. ``draining``
    ones refuse what arrives and what waits; what runs goes on. ``running``
    requests hold a lease; ``head`` is the first waiting ticket. ``share`` is its part of the
    ring's weights, ``ring_rate`` how fast all flows of the ring are served together. Where a flow
    is not ``rated``, callers' rates are not asked.
    """

    def __init__(self, key: FlowKey, group: Group, weight: float, beta: float) -> None:
        self.key = key
        self.group = group
        self.weight = weight
        self.share = 1.0
        self.size_class = key.size_class
        self.promise(beta)
        self.mode = AdmissionMode.ENFORCE
        self.routed = True
        self.accepts = True
        self.draining = False
        self.running = 0
        self.queue: OrderedDict[int, Ticket] = OrderedDict()
        self.queued_cost = 0.0
        self.deficit = 0.0
        self.given_back = 0.0
        self.rate = ServiceRate()
        self.ring_rate = ServiceRate()
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

    def promise(self, beta: float) -> None:
        """Take over what the group's specification says now."""
        spec = self.group.spec
        rates = (spec.principal_requests_per_minute, spec.principal_tokens_per_minute)
        self.rated = rates != (None, None)
        self.reserved_slots = spec.reserved_slots
        self.reserved_prefill_tokens = spec.reserved_prefill_tokens
        self.largest_kv_tokens = spec.largest_prompt_tokens + spec.output_estimate_tokens
        self.max_cost = spec.largest_prompt_tokens + beta * spec.output_estimate_tokens

    def weigh(self, weight: float, quantum: float) -> None:
        """Take another weight: credit and debt become at most what that one allows out of turn.

        A debt that a canary's half may run up on reservations is fifty times as many turns of the
        hundredth that is left when it is taken back.
        """
        if weight == self.weight:
            return
        self.weight = weight
        turn, own = weight * quantum, self.deficit - self.given_back
        self.deficit = self.given_back + min(max(own, -(turn + self.max_cost)), turn)

    def use(self, pool: "Iterable[EngineLedger]") -> None:
        """Let this flow be served by a pool from now on: by those that ever take its class."""
        enforced = self.mode is not AdmissionMode.OFF
        self.engines = tuple(e for e in pool if not enforced or e.takes(self.size_class))
        self.limits = tuple({e.configured: None for e in self.engines})
        self.slots = sum(e.configured.slots for e in self.engines)

    def served(self, cost: float, now: float) -> None:
        """``cost`` leaves this queue for an engine: what it and its ring were served."""
        self.rate.served(cost, now, self.stall_s)
        self.ring_rate.served(cost, now, self.stall_s)

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

    def charge(self, ticket: Ticket, least: float = -math.inf) -> None:
        """Take the cost of a dispatch from the deficit, down to ``least``; a debt stays."""
        before = self.deficit
        self.deficit = max(before - ticket.cost, min(before, least))
        ticket.charged = before - self.deficit
        self.given_back -= ticket.given_back
        ticket.given_back = 0.0

    def restore(self, ticket: Ticket, now: float) -> None:
        """Wait again, before all others, with what the dispatch was charged given back.

        The caps are charged but not checked: there is no more to come back than what ran. What
        was given back belongs to the ticket: it goes again if the ticket ends without a dispatch.
        """
        ticket.due_s = None
        self.append(ticket, now)
        self.queue.move_to_end(ticket.id, last=False)
        self.head = ticket
        self.surveyed = None
        self.deficit += ticket.charged
        self.given_back += ticket.charged
        ticket.given_back, ticket.charged = ticket.charged, 0.0

    def remove(self, ticket: Ticket) -> None:
        """Give the caps back; an emptied queue loses a positive deficit and keeps a debt."""
        group = self.group
        if ticket.given_back:
            self.deficit -= ticket.given_back
            self.given_back -= ticket.given_back
            ticket.given_back = 0.0
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

    def view(self, now: float) -> FlowView:
        """This queue as a value."""
        waiting = self.queue.values()
        return FlowView(
            self.key,
            len(waiting),
            sum(t.prompt_tokens for t in waiting),
            sum(t.body_bytes for t in waiting),
            self.oldest_age_s(now),
            self.group.spec.max_age_s,
            self.running,
        )

    def oldest_age_s(self, now: float) -> float:
        """How long the oldest waiting request has waited, from its headers; 0 if none waits."""
        return max((now - t.arrived_s for t in self.queue.values()), default=0.0)

    def __repr__(self) -> str:
        queued = len(self.queue)
        return f"<{'.'.join(self.key)}: {queued} queued, deficit {self.deficit:.0f}>"


def share_out(flows: Sequence[Flow]) -> ServiceRate:
    """Tell the flows of a new ring their shares; returns the rate at which all are served."""
    weights, rate = sum(f.weight for f in flows), ServiceRate()
    for flow in flows:
        flow.share = flow.weight / weights
        flow.ring_rate = rate
    return rate

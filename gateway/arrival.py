"""Decides whether an arriving request is refused before it waits, and how long it would wait.

The checks run in the order of the failure contract: what can never fit, what an operator paused,
the caller's own caps and rates, a pool without an engine, the flow's caps. Where admission is off
only a drain, a pause, a key's own cap and the lack of an engine count. Pure: no I/O, no clock.
"""

from gateway.domain import AdmissionMode, Outcome
from gateway.flows import Flow, Group, Ticket
from gateway.principals import PrincipalRates
from gateway.verdicts import Refusal

__all__ = [
    "NO_ENGINE_GRACE_S",
    "caps_outcome",
    "could_ever_fit",
    "late",
    "refusal_on_arrival",
    "refusal_on_return",
    "refusal_to_wait",
    "refusal_uncounted",
    "wait_s",
]

NO_ENGINE_GRACE_S = 2.0
COLD_RATE_SHARE = 0.25
RING_RATE_STALE_S = 10.0
# Looked up once: Python 3.11 finds an enum's member in ten times the time of a global.
_OFF = AdmissionMode.OFF


def refusal_on_arrival(
    ticket: Ticket, principal_cap: int | None, rates: PrincipalRates, now: float
) -> Refusal | None:
    """The first reason to refuse ``ticket`` now, or None if it may be dispatched or wait.

    Args:
        ticket: charged to nothing yet.
        principal_cap: the caller's own in-flight cap, None for the flow's default.
        rates: every caller's rates.
        now: the moment.
    """
    enforced = ticket.flow.mode is not _OFF
    if not ticket.flow.accepts:
        return Refusal(ticket.id, Outcome.NOT_FOUND)
    if ticket.flow.draining:
        return Refusal(ticket.id, Outcome.DRAINING)
    if enforced and ticket.flow.engines and not could_ever_fit(ticket):
        return Refusal(ticket.id, Outcome.PROMPT_TOO_LONG)
    return _refusal_of_the_caller(ticket, principal_cap, rates, now) or (
        _refusal_of_the_flow(ticket, now, enforced=enforced)
    )


def _refusal_of_the_caller(
    ticket: Ticket, principal_cap: int | None, rates: PrincipalRates, now: float
) -> Refusal | None:
    flow, group = ticket.flow, ticket.flow.group
    if group.paused:
        return Refusal(ticket.id, Outcome.PAUSED)
    if _over_principal_cap(ticket, principal_cap):
        return Refusal(ticket.id, Outcome.PRINCIPAL_LIMIT)
    if flow.mode is _OFF or not flow.rated:
        return None
    wait = rates.wait_s(group.spec, ticket.principal, ticket.prompt_tokens, now)
    return Refusal(ticket.id, Outcome.PRINCIPAL_LIMIT, wait) if wait > 0 else None


def _refusal_of_the_flow(ticket: Ticket, now: float, *, enforced: bool) -> Refusal | None:
    flow, group = ticket.flow, ticket.flow.group
    if _without_engine_s(flow, now) >= NO_ENGINE_GRACE_S:
        return Refusal(ticket.id, Outcome.NO_ENGINE)
    if not enforced:
        return None
    full = caps_outcome(group, ticket.prompt_tokens, ticket.body_bytes)
    if full is not None:
        return Refusal(ticket.id, full, wait_s(flow, flow.queued_cost, now))
    too_old = now - ticket.arrived_s >= group.spec.max_age_s
    return Refusal(ticket.id, Outcome.QUEUE_EXPIRED) if too_old else None


def refusal_on_return(ticket: Ticket, now: float) -> Refusal | None:
    """Why what failed on an engine may not wait again: a drain, its time is up, limits shrank."""
    if ticket.flow.draining:
        return Refusal(ticket.id, Outcome.DRAINING)
    if ticket.flow.mode is _OFF:
        return None
    if ticket.deadline_s <= now:
        return late(ticket, now)
    misfit = ticket.flow.engines and not could_ever_fit(ticket)
    return Refusal(ticket.id, Outcome.PROMPT_TOO_LONG) if misfit else None


def late(ticket: Ticket, now: float) -> Refusal:
    """The refusal of a ticket whose time is up: the pool's fault if nothing there serves."""
    flow = ticket.flow
    served = any(e.usable for e in flow.engines)
    outcome = Outcome.QUEUE_EXPIRED if served else Outcome.NO_ENGINE
    return Refusal(ticket.id, outcome, wait_s(flow, flow.queued_cost, now))


def caps_outcome(group: Group, tokens: int, body_bytes: int) -> Outcome | None:
    """Which cap of the group one more request of this size would pass, the counting included."""
    spec = group.spec
    if group.queued + group.counting + 1 > spec.max_queued:
        return Outcome.QUEUE_FULL
    if group.queued_tokens + tokens > spec.max_queued_tokens:
        return Outcome.QUEUE_TOKENS_FULL
    if group.queued_bytes + group.counting_bytes + body_bytes > spec.max_queued_bytes:
        return Outcome.QUEUE_BYTES_FULL
    return None


def wait_s(flow: Flow, cost_ahead: float, now: float) -> float:
    """Seconds until ``cost_ahead`` is served; 0 while nothing is known of the rate.

    The rate is never taken below the flow's share of what its ring is served, nor below a quarter
    of its share of the configured engine rate, and nothing older than twice the maximum age
    counts: a cold or idle gateway, or one after a stall, refuses nothing by prediction.
    """
    rate = _rate(flow, now)
    return 0.0 if rate is None else cost_ahead / rate


def refusal_to_wait(ticket: Ticket, ahead: float, now: float) -> Refusal | None:
    """Whether a request that can't start now may wait behind cost ``ahead``; notes when it is due.

    What the flow sent last counts as well: it is paid for before the next turn. With nobody ahead
    so does the time since then, so that a flow that nothing waits in is never shut out for long by
    what was learnt.
    """
    if ticket.deadline_s <= now:
        return Refusal(ticket.id, Outcome.QUEUE_EXPIRED)
    flow = ticket.flow
    rate = _rate(flow, now)
    if rate is None:
        return None
    wait = (ahead + (flow.rate.last_cost or ticket.cost)) / rate
    if ahead <= 0:
        last_s = flow.rate.last_sample_s
        wait = 0.0 if last_s is None else max(0.0, wait - (now - last_s))
    ticket.due_s = now + wait
    target_s = flow.group.target_wait_s
    if target_s is None or wait <= target_s:
        return None
    return Refusal(ticket.id, Outcome.PREDICTED_WAIT, wait - target_s)


def refusal_uncounted(flow: Flow, body_bytes: int, now: float) -> tuple[Outcome, float] | None:
    """Why a body could not wait in this flow however few tokens it has, and for how long.

    By prediction only behind others: with an empty queue it might start at once.
    """
    full = caps_outcome(flow.group, 0, body_bytes)
    if full is not None:
        return full, wait_s(flow, flow.queued_cost, now)
    target_s = flow.group.target_wait_s if flow.queue else None
    if target_s is None:
        return None
    over_s = wait_s(flow, flow.queued_cost + flow.rate.last_cost, now) - target_s
    return (Outcome.PREDICTED_WAIT, over_s) if over_s > 0 else None


def _rate(flow: Flow, now: float) -> float | None:
    """Cost per second at which the flow's queue is served, or None while nothing is known.

    What its ring serves is shared by weight, so a flow that was never served from its queue gets
    its share of that, and none gets less: one whose queue is often empty gives its turns away, and
    what it was served says little about what it would be.
    """
    own = flow.rate.per_second(now, 2 * flow.group.spec.max_age_s)
    if own is None and flow.rate.last_sample_s is not None:
        return None
    shared = flow.ring_rate.per_second(now, RING_RATE_STALE_S)
    if own is None and shared is None:
        return None
    configured = 0.0
    for engine in flow.engines:
        if engine.usable:
            configured += engine.limits.prefill_tokens_per_s
    floor = max(shared or 0.0, configured * COLD_RATE_SHARE)
    return max(own or 0.0, flow.share * floor, 1.0)


def could_ever_fit(ticket: Ticket) -> bool:
    """Whether some engine could take it if it had nothing else to do."""
    return any(map(ticket.within, ticket.flow.limits))


def _over_principal_cap(ticket: Ticket, cap: int | None) -> bool:
    flow, group = ticket.flow, ticket.flow.group
    if cap is None:
        if flow.mode is _OFF:
            return False
        cap = max(1, int(group.spec.principal_share * (group.spec.max_queued + flow.slots)))
    return group.in_flight.get(ticket.principal, 0) >= cap


def _without_engine_s(flow: Flow, now: float) -> float:
    """For how long the flow's pool has had no healthy engine."""
    if not flow.engines:
        return NO_ENGINE_GRACE_S
    for engine in flow.engines:
        if engine.up:
            return 0.0
    return now - max(e.down_since_s for e in flow.engines)

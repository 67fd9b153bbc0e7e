"""Decides whether limits leave every flow a way in: the floors of the admission core.

A limit below its floor starves a flow for ever rather than for a while, so the floors are
checked when a configuration is loaded; the ramp after a recovery keeps N above its own. For one
engine, its flows F and limits N (slots), U (prefill tokens), K (KV tokens):

- N >= sum R + max(2, N / 4): reservations leave a quarter, and at least two, to be shared;
- U >= longest class's cap * largest prompt + sum P + 2 * token budget;
- K >= largest (prompt + output estimate) + sum over g of R_g * largest KV charge of g;
- R_f > 0 needs P_f >= largest prompt of f: slots reserved beside a long prefill are unusable
  without prefill room for one prompt.

Pure: no I/O, no clock.
"""

from collections.abc import Iterable
from dataclasses import replace
from math import ceil

from gateway.domain import EngineLimits, FlowSpec

__all__ = ["broken_floors", "least_limits", "prefill_floor_tokens", "slots_floor"]


def slots_floor(reserved_slots: int, configured_slots: int) -> int:
    """The least N: the reserved slots and a shared quarter of the configured N."""
    return reserved_slots + max(2, ceil(configured_slots / 4))


def prefill_floor_tokens(flows: Iterable[FlowSpec], limits: EngineLimits) -> int:
    """The least U: the largest admitted prefills, what is reserved, two budgets of slack."""
    caps = dict(limits.max_prefilling)
    specs = _served(flows, limits)
    largest = max(specs, key=lambda flow: flow.largest_prompt_tokens)
    admitted = caps.get(largest.size_class, 1) * largest.largest_prompt_tokens
    reserved = sum(flow.reserved_prefill_tokens for flow in specs)
    return admitted + reserved + 2 * limits.token_budget


def least_limits(flows: Iterable[FlowSpec], limits: EngineLimits) -> EngineLimits:
    """The least N and U that the flows of an engine with these limits can do with."""
    specs = _served(flows, limits)
    if not specs:
        return limits
    slots = slots_floor(sum(f.reserved_slots for f in specs), limits.slots)
    tokens = prefill_floor_tokens(specs, limits)
    return replace(
        limits,
        slots=min(limits.slots, slots),
        prefill_tokens=min(limits.prefill_tokens, tokens),
    )


def _served(flows: Iterable[FlowSpec], limits: EngineLimits) -> tuple[FlowSpec, ...]:
    """The flows that may come here at all: a class whose cap is 0 may not."""
    never = {size for size, cap in limits.max_prefilling if cap == 0}
    return tuple(flow for flow in flows if flow.size_class not in never)


def _kv_charge(flow: FlowSpec) -> int:
    return flow.largest_prompt_tokens + flow.output_estimate_tokens


def _kv_floor(specs: tuple[FlowSpec, ...]) -> int:
    reserved = sum(flow.reserved_slots * _kv_charge(flow) for flow in specs)
    return max(map(_kv_charge, specs)) + reserved


def broken_floors(flows: Iterable[FlowSpec], limits: EngineLimits) -> list[str]:
    """Every floor that ``limits`` break for the flows that use the engine, naming who suffers.

    An empty list means that each flow's largest request is admitted sooner or later.
    """
    specs = _served(flows, limits)
    if not specs:
        return []
    broken = [
        f"flow.{flow.name}: reserved_slots needs reserved_prefill_tokens >= "
        f"{flow.largest_prompt_tokens}, its largest prompt (it is "
        f"{flow.reserved_prefill_tokens}), or its reserved slots are unusable"
        for flow in specs
        if flow.reserved_slots > 0 and flow.reserved_prefill_tokens < flow.largest_prompt_tokens
    ]
    largest = max(specs, key=_kv_charge)
    floors = (
        ("slots", limits.slots, slots_floor(sum(f.reserved_slots for f in specs), limits.slots)),
        ("prefill_tokens", limits.prefill_tokens, prefill_floor_tokens(specs, limits)),
        ("kv_tokens", limits.kv_tokens, _kv_floor(specs)),
    )
    broken += [
        f"limits.{key} is {value}, must be at least {floor:g}: "
        f"flow.{largest.name} could otherwise never fit beside the reservations"
        for key, value, floor in floors
        if value < floor
    ]
    return broken

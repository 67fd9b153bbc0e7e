"""Makes worlds for the admission properties: flows, engines, pools and routes that keep the floors.

``Draw`` is the one source of chance: ``draw(n)`` is a whole number below n, from a seeded
generator in the long runs and from hypothesis where shrinking is wanted.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from gateway.domain import EngineLimits, FlowSpec
from gateway.verdicts import RouteView, Topology

Draw = Callable[[int], int]
T = TypeVar("T")

LARGEST = {"short": 512, "medium": 2048, "long": 8192}
BUDGET = 512


def pick(draw: Draw, options: Sequence[T]) -> T:
    return options[draw(len(options))]


@dataclass(frozen=True, slots=True)
class World:
    """Everything a core is built from."""

    specs: tuple[FlowSpec, ...]
    topology: Topology


def flow(model: str, size: str, service: str, draw: Draw) -> FlowSpec:
    largest = LARGEST[size]
    reserved = pick(draw, (0, 2, 3)) if size == "short" else 0
    queued = pick(draw, (6, 12, 30))
    return FlowSpec(
        model, size, service,
        weight=pick(draw, (0.5, 1.0, 2.0, 4.0)),
        reserved_slots=reserved,
        reserved_prefill_tokens=largest * pick(draw, (1, 2)) if reserved else 0,
        max_queued=queued,
        max_queued_tokens=largest * pick(draw, (queued // 2, queued)),
        max_queued_bytes=4096 * queued,
        max_age_s=pick(draw, (2.0, 8.0, 60.0)),
        target_wait_s=pick(draw, (None, None, None, 1.0)),
        output_estimate_tokens=pick(draw, (64, 256)),
        principal_share=0.5,
        largest_prompt_tokens=largest,
    )  # fmt: skip


def limits_above_floors(specs: Sequence[FlowSpec], draw: Draw) -> EngineLimits:
    """Limits that keep the floors even while both arms of every flow use the engine."""
    both = [*specs, *specs]
    reserved = sum(s.reserved_slots for s in both)
    slots = max(12, 2 * reserved) + pick(draw, (0, 4, 12))
    tokens = 2 * 8192 + sum(s.reserved_prefill_tokens for s in both) + 2 * BUDGET
    largest_kv = max(s.largest_prompt_tokens + s.output_estimate_tokens for s in specs)
    kv = largest_kv + sum(
        s.reserved_slots * (s.largest_prompt_tokens + s.output_estimate_tokens) for s in both
    )
    caps = pick(draw, ((("long", 1),), (("long", 1), ("medium", 1)), (("long", 2),), ()))
    return EngineLimits(
        slots=slots,
        prefill_tokens=tokens + pick(draw, (0, 2048)),
        kv_tokens=kv + pick(draw, (0, 20_000, 200_000)),
        max_prefilling=caps,
        token_budget=BUDGET,
        prefill_tokens_per_s=pick(draw, (8_000.0, 39_000.0)),
        fcfs=bool(draw(2)),
    )


def make_world(draw: Draw, engines: int, *, models: int = 1, apart: bool = False) -> World:
    """Flows of one or two models; ``apart`` gives the second model its own engine."""
    services = ("interactive", "batch")
    specs = [flow("a", size, service, draw) for size in LARGEST for service in services]
    if models > 1:
        specs += [flow("b", size, "interactive", draw) for size in ("short", "long")]
    names = [f"e{i}" for i in range(engines)]
    pools: dict[str, tuple[str, ...]] = {"main": tuple(names), "first": (names[0],)}
    pools["rest"] = tuple(names[1:]) or (names[0],)
    of_b = "main"
    if apart:
        pools["b"], of_b = ("x0",), "b"
        names.append("x0")
    limits = {name: limits_above_floors(specs, draw) for name in names}
    routes = {(s.model, s.size_class): RouteView("main" if s.model == "a" else of_b) for s in specs}
    return World(tuple(specs), Topology(limits, pools, routes))


def shrunk(limits: EngineLimits, specs: Sequence[FlowSpec], draw: Draw) -> EngineLimits:
    """Other limits for the same engine, again above the floors."""
    other = limits_above_floors(specs, draw)
    caps = (("long", 0),) if draw(5) == 0 else other.max_prefilling
    return replace(other, prefill_tokens_per_s=limits.prefill_tokens_per_s, max_prefilling=caps)


def other_world(now: World, first: World, draw: Draw) -> World:
    """Another configuration: flows and engines come, go and change."""
    known = {s.group: s for s in now.specs}
    specs = []
    for spec in first.specs:
        fate = draw(8)
        if fate == 0:
            continue
        other = flow(*spec.group, draw) if fate == 1 else known.get(spec.group, spec)
        specs.append(other)
    specs = specs or list(first.specs)
    topology = first.topology
    main = [e for e in topology.pools["main"] if draw(5)] + ["new"] * (draw(4) == 0)
    main = main or list(topology.pools["main"])
    pools: dict[str, Sequence[str]] = {**topology.pools, "main": tuple(main), "first": (main[0],)}
    pools["rest"] = tuple(main[1:]) or (main[0],)
    engines = {e: limits_above_floors(specs, draw) for p in pools.values() for e in p}
    if specs == list(now.specs):
        engines = {e: now.topology.engines.get(e, lim) for e, lim in engines.items()}
    routes = {k: r for k, r in topology.routes.items() if draw(10)}
    return World(tuple(specs), Topology(engines, pools, routes))

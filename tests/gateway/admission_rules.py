"""The generated events of the admission properties: what a caller, an engine or an operator may do.

Each rule draws what it needs and makes one call (``wait`` makes at most one). The same rules run
under hypothesis and under a seeded generator.
"""

import random
from collections.abc import Callable
from dataclasses import replace

from gateway.domain import AdmissionMode, FlowKey
from gateway.floors import least_limits
from gateway.verdicts import Offer, RouteView
from tests.gateway.admission_machine import Machine
from tests.gateway.admission_worlds import (
    LARGEST,
    Draw,
    World,
    make_world,
    other_world,
    pick,
    shrunk,
)

Rule = Callable[[Machine, Draw], None]


def offer(machine: Machine, draw: Draw) -> None:
    account = machine.account
    if not account.waiting:
        return  # a configuration may route nothing
    key = pick(draw, list(account.waiting))
    if not account.pool_of[key] and not account.drains(key):
        return
    if draw(60) == 0:
        key = key._replace(service_class="unheard")
        machine.offer(Offer(key, "caller-0", 64, machine.now))
        return
    largest = account.spec(key).largest_prompt_tokens
    tokens = largest // pick(draw, (1, 1, 2, 4)) - draw(3)
    slots = pick(draw, (1, 1, 1, 1, 1, 2, 4))
    if draw(25) == 0 and account.pool_of[key]:
        slots, tokens = _exceptional_slots(machine, key), 64
    machine.offer(
        Offer(
            key,
            principal=f"caller-{draw(8)}",
            prompt_tokens=tokens,
            arrived_s=machine.now - pick(draw, (0.0, 0.0, 0.0, 0.05, 1.0)),
            slots=slots,
            max_tokens=pick(draw, (None, 8, 128, 4096)),
            body_bytes=pick(draw, (200, 2048, 8192)),
            streamed=draw(3) > 0,
            affinity=pick(draw, (0, 7, 123_456_789)),
            max_wait_s=pick(draw, (None, None, None, None, 0.25, 1.5, 900.0)),
            principal_cap=pick(draw, (None, None, None, None, 3)),
        )
    )


def _exceptional_slots(machine: Machine, key: FlowKey) -> int:
    """Slots that fit the flow's first engine only beside no reservation of the others."""
    account = machine.account
    engine = account.pool_of[key][0]
    reserved = sum(account.spec(k).reserved_slots for k in account.users[engine] if k != key)
    return min(account.limits[engine].slots, account.limits[engine].slots - reserved + 1)


def fill(machine: Machine, draw: Draw) -> None:
    """An offer to the shortest queue, so that many flows are backlogged at once."""
    account = machine.account
    keys = [k for k in account.waiting if account.pool_of[k] and account.accepts(k)]
    if not keys:
        return
    key = min(keys, key=lambda k: len(account.waiting[k]))
    largest = account.spec(key).largest_prompt_tokens
    tokens = largest // pick(draw, (1, 2, 8))
    caller = f"caller-{draw(20)}"
    machine.offer(Offer(key, caller, tokens, machine.now, max_tokens=pick(draw, (None, 16))))


def prefill_done(machine: Machine, draw: Draw) -> None:
    lease_ids = [i for i, j in machine.account.running.items() if j.prefilling]
    if lease_ids:
        machine.prefill_done(pick(draw, lease_ids))


def release(machine: Machine, draw: Draw) -> None:
    if machine.account.running:
        lease_id = pick(draw, [*machine.account.running])
        machine.release(lease_id, pick(draw, (None, 1, 40, 300)))


def release_untold(machine: Machine, draw: Draw) -> None:
    """A release that teaches nothing about output lengths."""
    if machine.account.running:
        machine.release(pick(draw, [*machine.account.running]), None)


def release_again(machine: Machine, draw: Draw) -> None:
    if machine.released:
        machine.release_again(pick(draw, machine.released[-20:]))


def requeue(machine: Machine, draw: Draw) -> None:
    jobs = machine.account.running.items()
    leases = [i for i, j in jobs if j.prefilling or not j.offer.streamed]
    if leases:
        machine.requeue(pick(draw, leases), avoid=draw(4) > 0)


def outage(machine: Machine, draw: Draw) -> None:
    """Everything that has had no first byte on one engine comes back at once."""
    engine = pick(draw, sorted(machine.account.limits))
    jobs = machine.account.running.items()
    for lease in [i for i, j in jobs if j.engine == engine and j.prefilling]:
        if lease in machine.account.running:
            machine.requeue(lease, avoid=True)


def reconfigure(machine: Machine, draw: Draw) -> None:
    machine.reconfigure(other_world(machine.current, machine.world, draw))


def reconfigure_wrongly(machine: Machine, draw: Draw) -> None:
    topology, specs = machine.current.topology, machine.current.specs
    wrong = pick(
        draw,
        (
            World((*specs, specs[0]), topology),
            World(specs, replace(topology, engines={})),
            World(specs[:1], replace(topology, routes={("a", "short"): RouteView("nowhere")})),
        ),
    )
    machine.reconfigure_wrongly(wrong)


def restarted(machine: Machine, draw: Draw) -> None:
    machine.restarted(pick(draw, sorted(machine.account.limits)))


def adapt(machine: Machine, draw: Draw) -> None:
    """Less than configured, above the floors, or all of it again."""
    account = machine.account
    engine = pick(draw, sorted(account.limits))
    most = account.limits[engine]
    both = [*machine.current.specs, *machine.current.specs]
    least = least_limits(both, most)
    limits = replace(
        most,
        slots=least.slots + draw(most.slots - least.slots + 1),
        prefill_tokens=pick(draw, (most.prefill_tokens, least.prefill_tokens)),
    )
    machine.adapt(engine, limits if draw(2) else most)


def gate_bound(machine: Machine, draw: Draw) -> None:
    machine.gate_bound(pick(draw, sorted(machine.account.limits)))


def grow(machine: Machine, draw: Draw) -> None:
    if machine.account.running:
        machine.grow(pick(draw, [*machine.account.running]), draw(600))


def cancel(machine: Machine, draw: Draw) -> None:
    waiting = [j.id for q in machine.account.waiting.values() for j in q]
    machine.cancel(pick(draw, waiting) if waiting and draw(8) else draw(1000))


def wait(machine: Machine, draw: Draw) -> None:
    machine.now += pick(draw, (0.001, 0.01, 0.05, 0.2, 0.2, 1.0))
    if draw(2):
        machine.tick()


def wait_and_tick(machine: Machine, draw: Draw) -> None:
    """Time moves, and nothing else happens before what is due."""
    machine.now += pick(draw, (0.001, 0.01, 0.05, 0.2))
    machine.tick()


def wake(machine: Machine, draw: Draw) -> None:
    """The one timer fires when the core asked for it."""
    due = machine.core.next_wakeup(machine.now)
    if due is not None and due < machine.now + 1.0:
        machine.now = max(machine.now, due)
        machine.tick()


def health(machine: Machine, draw: Draw) -> None:
    """One engine changes; whoever is off comes back more often than another goes."""
    account = machine.account
    engine = pick(draw, sorted(account.limits.keys() - account.retired))
    if not account.up[engine]:
        machine.set_engine(engine, up=True, ramp=bool(draw(2)))
    elif account.draining[engine] or account.paused[engine]:
        machine.set_engine(engine, draining=False, paused=False)
    else:
        change = pick(draw, ("up", "draining", "paused"))
        machine.set_engine(engine, **{change: change != "up"})


def limits(machine: Machine, draw: Draw) -> None:
    engine = pick(draw, sorted(machine.account.limits.keys() - machine.account.retired))
    now = machine.account.limits[engine]
    machine.set_limits(engine, shrunk(now, machine.current.specs, draw))


def routes(machine: Machine, draw: Draw) -> None:
    """Flip, canary or abort one (model, size class) among the pools its model may use."""
    account = machine.account
    table = dict(account.routes)
    where = pick(draw, sorted(machine.world.topology.routes))
    pools = (
        ("main", "first", "rest")
        if machine.world.topology.routes[where].stable == "main"
        else ("b",)
    )
    candidate = pick(draw, (None, None, *pools))
    table[where] = RouteView(
        pick(draw, (pools[0], *pools)),
        candidate,
        pick(draw, (0.1, 0.5)) if candidate else 0.0,
        AdmissionMode.ENFORCE,
    )
    machine.set_routes(table)


def drain(machine: Machine, draw: Draw) -> None:
    """Drain or undrain one (model, size class)."""
    where = pick(draw, sorted(machine.account.routes))
    route = machine.account.routes[where]
    machine.set_routes(
        {**machine.account.routes, where: replace(route, draining=not route.draining)}
    )


def pause(machine: Machine, draw: Draw) -> None:
    paused = machine.account.paused_groups
    paused = paused & machine.account.specs.keys()
    group = min(paused) if paused else pick(draw, machine.current.specs).group
    machine.pause(group, paused=not paused)


def begin_counting(machine: Machine, draw: Draw) -> None:
    specs = machine.world.specs
    model, service = specs[0].model, pick(draw, ("interactive", "batch"))
    sizes = pick(draw, (("short",), ("short", "medium"), ("medium", "long"), tuple(LARGEST)))
    machine.begin_counting([(model, s, service) for s in sizes], pick(draw, (500, 6000)))


def end_counting(machine: Machine, draw: Draw) -> None:
    if machine.account.counting:
        machine.end_counting(draw(len(machine.account.counting)))


ALL: dict[Rule, int] = {
    offer: 30, fill: 10, prefill_done: 22, release: 22, wait: 16, wake: 6, cancel: 3, grow: 3,
    begin_counting: 3, end_counting: 4, health: 2, limits: 1, routes: 1, pause: 1,
    release_again: 1, requeue: 4, outage: 1, restarted: 1, adapt: 2, gate_bound: 2, reconfigure: 1,
    reconfigure_wrongly: 1,
}  # fmt: skip
SATURATED = ALL | {fill: 55, offer: 20, health: 1}


def run(world: World, seed: int, events: int, weights: dict[Rule, int] = ALL) -> Machine:
    """A long seeded run; the machine raises at the first breach."""
    rng = random.Random(seed)
    machine = Machine(world)
    rules, chances = list(weights), list(weights.values())
    while machine.stats["events"] < events:
        rng.choices(rules, chances)[0](machine, rng.randrange)
    machine.finish()
    return machine


def seeded_world(seed: int, engines: int, *, models: int = 1, apart: bool = False) -> World:
    return make_world(random.Random(seed).randrange, engines, models=models, apart=apart)

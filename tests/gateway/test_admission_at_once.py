"""A request that meets no other takes a shorter way: it must come to what the long way comes to."""

import pytest

from gateway.admission import Admission
from gateway.domain import MisuseError
from gateway.flows import Flow, Ticket
from gateway.ledger import EngineLedger
from gateway.ring import Ring
from tests.gateway.admission_machine import Entry, Machine
from tests.gateway.admission_rules import ALL, run, seeded_world

EVENTS = 1500
LEAST_AT_ONCE = 15


class Ways:
    """Two cores of one world: one that may take the shorter way, and one that may not."""

    def __init__(self, machine: Machine, patch: pytest.MonkeyPatch) -> None:
        self.at_once, self.open = 0, True
        self.cores = [Admission(machine.world.specs, machine.world.topology, 0.0) for _ in "ab"]
        real = Ring.at_once

        def at_once(ring: Ring, flow: Flow, ticket: Ticket) -> EngineLedger | None:
            engine = real(ring, flow, ticket) if self.open else None
            self.at_once += engine is not None
            return engine

        patch.setattr(Ring, "at_once", at_once)

    def step(self, entry: Entry) -> None:
        """Do the same in both, and see that they answer and stand alike."""
        stands = []
        for is_open, core in zip((True, False), self.cores, strict=True):
            self.open = is_open
            stands.append((answer(core, entry), stand(core)))
        assert stands[0] == stands[1], entry


def answer(core: Admission, entry: Entry) -> object:
    name, args, kwargs, _ = entry
    try:
        return getattr(core, name)(*args, **kwargs)
    except MisuseError as error:
        return str(error)


def stand(core: Admission) -> object:
    """All that a later decision may depend on."""
    rings = dict.fromkeys(core._layout.rings.values())
    flows = [
        (f.deficit, f.queued_cost, f.running, [*f.queue], f.rate.counts, f.rate.last_sample_s)
        for f in core.flows.values()
    ]
    groups = [
        (g.queued, g.queued_tokens, g.queued_bytes, g.in_flight) for g in core.groups.values()
    ]
    turns = [(r._turn, r._turn_open, len(r.holding), len(r._capped)) for r in rings]
    bound = [e.bound for e in core.engines.values()]
    due = (core._traffic.deadlines.next_s(), core._traffic.estimates.next_s())
    return flows, groups, turns, bound, due, core.engine_views()


@pytest.mark.parametrize("seed", range(6))
def test_the_shorter_way_ends_where_the_long_one_does(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = run(seeded_world(seed, 1 + seed % 3), seed, EVENTS, ALL)
    ways = Ways(machine, monkeypatch)
    for entry in machine.journal:
        ways.step(entry)
    assert ways.at_once >= LEAST_AT_ONCE

"""The core with the measured step costs reproduces the figures it was designed by, within 15 %."""

from dataclasses import replace

import pytest

from loadgen.engine.scheduler import SchedulerConfig
from loadgen.simulate import simulate
from tests.simulation.worlds import (
    COST,
    TABLE_FLOWS,
    UNLIMITED,
    PassThrough,
    Prioritised,
    World,
    nearest_rank,
    poisson,
    ttft_ms,
)

GATE = World(flows=TABLE_FLOWS, limits=UNLIMITED)
GATE_64 = replace(GATE, limits=replace(UNLIMITED, slots=64))
BUDGET_2048 = SchedulerConfig(max_num_batched_tokens=2048)
HALF, FIFTH = (5.58, 0.5), (10.53, 0.8)

# policy, (rate, share of shorts), short p50/p95/p99 ms, long p50/p95/p99 ms
TABLE = [
    ("off", HALF, (134, 736, 999), (440, 968, 1114)),
    ("priority", HALF, (133, 395, 430), (440, 969, 1114)),
    ("gate 128", HALF, (86, 233, 258), (352, 1009, 1229)),
    ("gate 64", HALF, (86, 233, 258), (352, 1009, 1229)),
    ("gate 64, budget 2048", HALF, (93, 268, 292), (458, 1325, 1741)),
    ("off", FIFTH, (51, 620, 1052), (432, 873, 1355)),
    ("priority", FIFTH, (50, 388, 427), (432, 886, 1483)),
    ("gate 128", FIFTH, (47, 249, 277), (308, 1068, 1651)),
    ("gate 64", FIFTH, (53, 260, 368), (316, 1513, 2202)),
    ("gate 64, budget 2048", FIFTH, (68, 273, 307), (389, 1800, 2364)),
]


def play(policy: str, seed: int, mix: tuple[float, float]):
    arrivals = poisson(seed, *mix, until_s=130.0)
    if policy == "off":
        return simulate(arrivals, PassThrough(1), [SchedulerConfig()], COST)
    if policy == "priority":
        engine = SchedulerConfig(policy="priority")
        return simulate(arrivals, Prioritised(1), [engine], COST)
    world = GATE if policy == "gate 128" else GATE_64
    if policy.endswith("2048"):
        world = replace(world, config=BUDGET_2048)
    return world.run(arrivals)


@pytest.mark.parametrize(("policy", "mix", "short", "long"), TABLE)
def test_a_row_of_the_published_table_is_reproduced(policy, mix, short, long):
    results = [r for seed in (1, 2, 3) for r in play(policy, seed, mix)]
    for size_class, published in (("short", short), ("long", long)):
        measured = ttft_ms(results, size_class)
        for p, expected in zip((0.5, 0.95, 0.99), published, strict=True):
            assert nearest_rank(measured, p) == pytest.approx(expected, rel=0.15)
    assert all(r.done for r in results)

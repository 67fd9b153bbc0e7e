"""What is admitted under overload meets its contract, and calm is not punished for it afterwards.

All in virtual time: the same arrivals give the same figures on any machine.
"""

import pytest

from tests.simulation.overload import CAPACITY, FLOWS, Figures, arrivals, figures, play

# Until then queues fill that nothing is known of yet: a cold gateway refuses nothing by prediction.
COLD_S = 10.0
UNTIL_S = 300.0
# Prompt tokens per second within their contract, by what is offered over capacity. Refusing all
# but a few would meet every contract, too. Judged by the average wait alone, they were 29,000,
# 12,000 and 9,000.
GOOD_TOKENS_PER_S = {2: 38_000, 5: 26_000, 10: 20_000}
SHORT, LONG = ("short", "interactive"), ("long", "interactive")


def told(rows: dict[tuple[str, str], Figures]) -> str:
    return "\n".join(f"{' '.join(f):18} {row} {row.attainment:.1%}" for f, row in rows.items())


@pytest.mark.parametrize(
    ("factor", "quantum"), [(2, 1024.0), (5, 1024.0), (10, 1024.0), (10, 256.0)]
)
def test_what_is_admitted_meets_its_contract_and_much_is(factor: int, quantum: float) -> None:
    results = play(arrivals(factor * CAPACITY, UNTIL_S), quantum)
    rows = figures(results, COLD_S, UNTIL_S)
    print(f"\n{factor}x, quantum {quantum:.0f}\n{told(rows)}")
    assert min(row.attainment for row in rows.values()) >= 0.95, told(rows)
    good = sum(row.met_tokens for row in rows.values()) / (UNTIL_S - COLD_S)
    assert good >= GOOD_TOKENS_PER_S[factor], good
    assert all(row.met for row in rows.values()), told(rows)
    refused = {r.refused for r in results if r.refused and r.arrival.at_s >= COLD_S}
    assert refused == {"predicted_wait"}


def test_the_flow_of_the_greater_weight_is_served_more_of_the_same_demand() -> None:
    rows = figures(play(arrivals(10 * CAPACITY, 60.0)), COLD_S, 60.0)
    for size in ("short", "long"):
        assert rows[size, "interactive"].met > 2 * rows[size, "batch"].met, told(rows)


def test_a_flow_within_its_share_is_hardly_refused_while_others_overflow() -> None:
    rows = figures(play(arrivals(2 * CAPACITY, 120.0)), COLD_S, 120.0)
    for flow in (SHORT, LONG):
        assert rows[flow].predicted <= 0.05 * rows[flow].offered, told(rows)


def test_an_overload_after_a_calm_time_is_seen_at_once_and_forgotten_at_once() -> None:
    """What goes straight to an engine says nothing of how fast a queue is served."""
    calm = arrivals(6.0, 200.0)
    over = arrivals(6 * CAPACITY, 280.0, 2, 200.0, len(calm))
    after = arrivals(6.0, 360.0, 3, 280.0, len(calm) + len(over))
    results = play([*calm, *over, *after])
    assert not any(row.predicted for row in figures(results, 0.0, 200.0).values())
    rows = figures(results, 200.0 + COLD_S, 280.0)
    assert min(row.attainment for row in rows.values()) >= 0.95, told(rows)
    later = figures(results, 280.0 + COLD_S, 360.0)
    assert sum(row.predicted for row in later.values()) == 0, told(later)
    assert {flow for flow in FLOWS if later[flow].attainment < 1.0} == set()

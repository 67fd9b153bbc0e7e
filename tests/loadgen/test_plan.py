from collections import Counter

import pytest

from loadgen.capacity import Demand
from loadgen.engine.cost import StepCost
from loadgen.plan import (
    DEMO_CONTRACT,
    Intervals,
    check_intervals,
    default_cells,
    demo_plan,
    sweep_plan,
)
from loadgen.record import BenchError, canonical

COSTS = StepCost(5.0e-3, 2.53e-5, 9.6e-6, 3.6e-8)
DEMANDS = {"short": Demand(17.44, 512, 128), "long": Demand(4.36, 8192, 128)}
INPUTS = {"corpus_sha256": "c", "traces": {"mixed": "m", "shorts-only": "s"}}
INTERVALS = Intervals(3.0, 25.0, 15.0, 15.0)
MIXES, RATES = ("short", "80-20", "50-50"), ("low", "near")


def demo():
    return demo_plan(INPUTS, INTERVALS, DEMANDS, COSTS)


def test_the_demonstration_replays_one_trace_three_ways_on_equal_hardware():
    ways = [r for r in demo()["runs"] if not r["control"]]
    assert [(r["admission"], r["topology"]) for r in ways] == [
        ("off", "shared"),
        ("enforce", "shared"),
        ("enforce", "isolated"),
    ]
    assert {r["trace_sha256"] for r in ways} == {"m"}
    assert {sum(p["engines"] for p in r["pools"]) for r in ways} == {2}


def test_the_control_is_the_trace_without_longs_and_is_offered_less_work():
    *ways, control = demo()["runs"]
    assert control["trace_sha256"] == "s"
    assert control["pools"][0]["offered_work"] < ways[0]["pools"][0]["offered_work"] / 2


def test_only_the_isolated_long_pool_is_offered_more_than_it_can_do():
    over = [
        (r["name"], p["name"]) for r in demo()["runs"] for p in r["pools"] if p["offered_work"] > 1
    ]
    assert over == [("admission-isolated", "long")]


def test_the_plan_fixes_the_contract_before_the_runs():
    assert demo()["contract"]["short"]["ttft_s"] == 2.0
    assert canonical(demo()) == canonical(demo())


@pytest.mark.parametrize(
    ("intervals", "reason"),
    [
        (Intervals(3, 25, 10, 15), "drain of 10 s is shorter than the timeout"),
        (Intervals(3, 25, 15, 5), "timeout is shorter than a limit of contract.short"),
    ],
)
def test_intervals_that_could_cut_off_a_counting_request_are_refused(intervals, reason):
    with pytest.raises(BenchError, match=reason):
        check_intervals(intervals, DEMO_CONTRACT)


def test_the_default_sweep_has_126_runs_on_21_starts_each_once_per_round():
    plan = sweep_plan(default_cells(), MIXES, RATES, 3, seed=1)
    assert len(plan["runs"]) == 126
    assert plan["engine_starts"] == 21
    seen = Counter((r["cell_id"], r["mix"], r["rate"], r["repeat"]) for r in plan["runs"])
    assert set(seen.values()) == {1}
    assert len(seen) == 126


def test_the_six_runs_of_a_cell_stand_together_so_that_they_share_a_start():
    runs = sweep_plan(default_cells(), MIXES, RATES, 3, seed=1)["runs"]
    for n in range(0, 126, 6):
        assert len({(r["cell_id"], r["repeat"]) for r in runs[n : n + 6]}) == 1


def test_cells_come_in_another_order_in_another_round_and_all_share_a_rounds_traces():
    runs = sweep_plan(default_cells(), MIXES, RATES, 3, seed=1)["runs"]
    orders = [[r["cell_id"] for r in runs[n : n + 42 : 6]] for n in (0, 42, 84)]
    assert len({tuple(o) for o in orders}) == 3
    traces = {(r["mix"], r["rate"], r["repeat"]): r["trace"] for r in runs}
    assert len(set(traces.values())) == 18


def test_the_candidates_are_the_grid_of_budgets_and_sequence_limits():
    cells = {c.cell_id: c.args for c in default_cells()}
    assert cells["B0"] == {}
    assert cells["C1"] == {"max_num_batched_tokens": 2048, "max_num_seqs": 16}
    assert cells["C6"] == {"max_num_batched_tokens": 8192, "max_num_seqs": 32}

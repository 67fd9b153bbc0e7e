import pytest

from loadgen.capacity import Demand
from loadgen.engine.cost import StepCost
from loadgen.plan import (
    DEMO_CONTRACT,
    Intervals,
    check_intervals,
    demo_plan,
)
from loadgen.record import BenchError, canonical

COSTS = StepCost(5.0e-3, 2.53e-5, 9.6e-6, 3.6e-8)
DEMANDS = {"short": Demand(17.44, 512, 128), "long": Demand(4.36, 8192, 128)}
INPUTS = {"corpus_sha256": "c", "traces": {"mixed": "m", "shorts-only": "s"}}
INTERVALS = Intervals(3.0, 25.0, 15.0, 15.0)


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

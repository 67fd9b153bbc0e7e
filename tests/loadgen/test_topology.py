from dataclasses import replace

import pytest

from loadgen.capacity import Demand, Pool
from loadgen.engine.flags import default_step_model_path, read_step_model
from loadgen.freeze import preview
from loadgen.record import BenchError
from loadgen.simulate import SimArrival
from loadgen.sweep_file import read_sweep
from loadgen.topology import (
    PoolPass,
    demands_of,
    plan_split,
    split_lines,
    topology_plan,
    topology_settings,
)
from tests.loadgen.conftest import ROOT

SWEEP = read_sweep(ROOT / "config" / "sweep.toml")
COST = read_step_model(default_step_model_path())


def made(engines, cell="B0"):
    settings = topology_settings(SWEEP.settings, engines, cell)
    split = plan_split(engines, demands_of(settings), COST, 8192)
    return topology_plan(preview(replace(SWEEP, settings=settings)), split, cell), split


def demand(short, long):
    return {"mix/near": {"short": Demand(short, 512, 128), "long": Demand(long, 8192, 128)}}


@pytest.mark.parametrize(
    ("engines", "offered", "wanted"),
    [
        (2, demand(8, 2), {"short": 1, "long": 1}),
        (4, demand(30, 8), {"short": 1, "long": 3}),
        (4, demand(60, 4), {"short": 2, "long": 2}),
        (4, demand(90, 1), {"short": 3, "long": 1}),
    ],
)
def test_the_split_follows_from_the_work_that_is_offered(engines, offered, wanted):
    assert plan_split(engines, offered, COST, 8192).engines == wanted


def test_no_other_split_has_a_less_busy_busiest_pool():
    offered = demand(25, 11)
    best = plan_split(5, offered, COST, 8192)
    for short in range(1, 5):
        own = {n: d.rate_per_s for n, d in offered["mix/near"].items()}
        busy = {"short": best.utilisation["mix/near"]["short"] * best.engines["short"] / short}
        busy["long"] = best.utilisation["mix/near"]["long"] * best.engines["long"] / (5 - short)
        assert best.busiest <= max(busy.values()) + 1e-12, own


def test_a_pool_that_cannot_carry_its_load_is_said():
    lines = split_lines(plan_split(2, demand(5, 6), COST, 8192))
    assert lines[0] == "split: 1 short + 1 long (of 2 engines)"
    assert lines[1].endswith("cannot carry it: long")


def test_rates_are_those_of_the_sweep_for_each_engine():
    for engines in (2, 4):
        plan, _ = made(engines)
        near = next(s for s in plan["strata"] if (s["mix"], s["rate"]) == ("80-20", "near"))
        assert near["rate_per_s"] == pytest.approx(9.6 * engines)


def test_every_run_has_the_whole_hardware_and_pools_that_add_up_to_it():
    plan, split = made(4)
    assert plan["split"] == dict(split.engines)
    for run in plan["runs"]:
        assert run["engines"] == 4
        assert sum(p["engines"] for p in run["pools"]) == 4
        shared = run["topology"] == "shared"
        assert len(run["pools"]) == (1 if shared else 2)


def test_a_class_alone_replays_its_own_arrivals_of_the_same_trace():
    plan, _ = made(2)
    traces = {
        (r["topology"], r["repeat"]): r["trace"]
        for r in plan["runs"]
        if (r["mix"], r["rate"]) == ("80-20", "near")
    }
    assert traces["shared", 1] == traces["isolated", 1] == "80-20-near-r1"
    assert traces["alone-long", 2] == "80-20-only-long-near-r2"
    assert len(plan["runs"]) == 3 * 4 * 4
    assert set(plan["mixes"]) == {"80-20", "50-50"}
    assert all(r["gate"] for r in plan["runs"])


def test_another_cell_s_arguments_can_be_compared():
    plan, _ = made(2, "C2")
    assert [c["cell_id"] for c in plan["cells"]] == ["C2"]
    assert {r["cell_id"] for r in plan["runs"]} == {"C2"}


def test_impossible_comparisons_are_refused_by_name():
    with pytest.raises(BenchError, match="1 engines"):
        topology_settings(SWEEP.settings, 1, "B0")
    with pytest.raises(BenchError, match="--cell C9"):
        topology_settings(SWEEP.settings, 2, "C9")
    with pytest.raises(BenchError, match="cannot be split"):
        plan_split(1, demand(1, 1), COST, 8192)


def test_pools_pass_each_class_to_their_own_engines():
    policy = PoolPass((Pool("short", ("short",), 1), Pool("long", ("long",), 3)))
    longs = [policy.offer(SimArrival(n, 0.0, "long", 8192, 1), 0.0)[0].engine for n in range(3)]
    shorts = [policy.offer(SimArrival(9 + n, 0.0, "short", 64, 1), 0.0)[0].engine for n in range(3)]
    assert sorted(longs) == [1, 2, 3]
    assert shorts == [0, 0, 0]
    policy.first_event(1, 0.1)
    policy.finished(1, 0.2, 1)
    assert policy.offer(SimArrival(20, 0.3, "long", 8192, 1), 0.3)[0].engine == longs[1]
    assert list(policy.tick(1.0)) == []
    assert policy.next_wakeup(1.0) is None

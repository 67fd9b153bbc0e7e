import random

import pytest

from loadgen.engine.cost import StepCost
from loadgen.expectation import (
    Planted,
    baseline_rounds,
    drawn_trace,
    error_rates,
    expected,
    play_plan,
)
from loadgen.freeze import freeze_sweep, preview
from loadgen.record import BenchError
from loadgen.sweep_file import read_sweep
from loadgen.virtual_sweep import named_trace
from tests.loadgen.sweeps import DEFAULT, write

COST = StepCost(5.0e-3, 2.53e-5, 9.6e-6, 3.6e-8)


@pytest.fixture(scope="module")
def default():
    return preview(read_sweep(DEFAULT))


@pytest.fixture(scope="module")
def pools(default):
    return list(baseline_rounds(default, COST, 6))


def test_a_trace_drawn_from_the_plan_is_the_frozen_one(tmp_path):
    plan = freeze_sweep(read_sweep(write(tmp_path)), tmp_path / "out")
    for run in plan["runs"]:
        drawn, frozen = drawn_trace(plan, run), named_trace(tmp_path / "out", run)
        assert [(a.offset_us, a.size_class, a.input_tokens) for a in drawn] == [
            (a.offset_us, a.size_class, a.input_tokens) for a in frozen
        ]


def test_a_recorded_trace_cannot_be_drawn_again(default):
    run = default["runs"][0]
    plan = {**default, "mixes": {name: {} for name in default["mixes"]}}
    with pytest.raises(BenchError, match="replays a recorded trace"):
        drawn_trace(plan, run)


def test_a_cell_with_too_few_seats_falls_behind_and_the_baseline_does_not(default):
    cells = [
        default["cells"][0],
        {
            "cell_id": "C1",
            "args": {**default["cells"][0]["args"], "max_num_seqs": 6},
            "changed": {},
        },
    ]
    runs = [r for r in default["runs"] if r["cell_id"] in ("B0", "C1") and r["mix"] == "80-20"]
    loads = [load for _, load in play_plan({**default, "cells": cells, "runs": runs}, COST)]
    near = {x.cell_id: x for x in loads if x.rate == "near"}
    assert near["C1"].falls_behind
    assert not near["B0"].falls_behind
    assert near["C1"].waiting_most > 20
    assert near["C1"].seats == 6
    assert near["C1"].work == pytest.approx(near["B0"].work)


def test_cells_that_are_all_alike_end_in_retain(default, pools):
    rates = error_rates(default, pools, Planted(0.05), 12)
    assert sum(rates.values()) == pytest.approx(1.0)
    assert rates.get("retain", 0.0) >= 0.9
    assert rates.get("isolate", 0.0) == 0.0


def test_a_planted_gain_of_a_fifth_is_found(default, pools):
    rates = error_rates(default, pools, Planted(0.05, "C2", 0.20), 12)
    assert rates.get("retune(C2)", 0.0) >= 0.8


def test_the_same_seed_makes_up_the_same_sweeps(default, pools):
    one = error_rates(default, pools, Planted(0.3), 5, seed=4)
    assert one == error_rates(default, pools, Planted(0.3), 5, seed=4)


def test_fewer_traces_than_rounds_are_refused(default, pools):
    with pytest.raises(BenchError, match="2 traces are too few for 3 rounds"):
        error_rates(default, pools[:2], Planted(), 1)


def test_the_order_of_the_runs_does_not_change_the_expected_verdict(default):
    runs = [r for r in default["runs"] if r["cell_id"] in ("B0", "C4")]
    cells = [c for c in default["cells"] if c["cell_id"] in ("B0", "C4")]
    plan = {**default, "cells": cells, "runs": runs}
    facts = [f for f, _ in play_plan(plan, COST)]
    told = expected(plan, facts)
    random.Random(1).shuffle(facts)
    assert expected(plan, facts)["verdict"] == told["verdict"] == "retune(C4)"

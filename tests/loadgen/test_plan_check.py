import io

import pytest
from rich.console import Console

from loadgen.engine.cost import StepCost
from loadgen.freeze import preview
from loadgen.plan_check import check_plan, show_check
from loadgen.sweep_file import read_sweep
from tests.loadgen.sweeps import write

COST = StepCost(5.0e-3, 2.53e-5, 9.6e-6, 3.6e-8)


def plan_of(folder, **swap):
    return preview(read_sweep(write(folder, swap=swap)))


def shown(told):
    out = io.StringIO()
    show_check(Console(file=out, width=200), told)
    return out.getvalue()


def test_each_cell_and_stratum_stands_there_once_as_its_busiest_round_has_it(tmp_path):
    told = check_plan(plan_of(tmp_path), COST, 0)
    places = [(x["cell_id"], x["mix"]) for x in told["loads"]]
    assert places == [("B0", "80-20"), ("B0", "short"), ("C1", "80-20"), ("C1", "short")]
    assert "rates" not in told


def test_overload_and_missing_seats_are_said(tmp_path):
    plan = plan_of(
        tmp_path, **{"near = 8.0": "near = 150.0", "max_num_seqs = 16": "max_num_seqs = 2"}
    )
    notes = shown(check_plan(plan, COST, 0))
    assert "falls behind, more than its seats" in notes


def test_the_rule_s_rates_are_shares_of_the_made_up_sweeps(tmp_path):
    told = check_plan(plan_of(tmp_path), COST, 4)
    assert sum(told["rates"]["all_alike"].values()) == pytest.approx(1.0)
    assert told["rates"]["planted"]["cell_id"] == "C1"
    assert "4 made-up sweeps" in shown(told)


def test_it_says_how_far_it_is_stage_by_stage(tmp_path):
    plan, told = plan_of(tmp_path), []
    check_plan(plan, COST, 3, watch=lambda *step: told.append(step))
    stages = list(dict.fromkeys(stage for stage, _, _ in told))
    assert [stage.split()[0] for stage in stages] == ["playing", "playing", "deciding", "deciding"]
    for stage in stages:
        done = [(d, total) for s, d, total in told if s == stage]
        assert [d for d, _ in done[-3:]] == [done[-1][1] - 2, done[-1][1] - 1, done[-1][1]]
        assert len({total for _, total in done}) == 1
    assert told[0] == (stages[0], 0, len(plan["runs"]))


def test_a_burst_says_how_long_each_class_needs_to_recover(tmp_path):
    burst = '[arrivals]\nkind = "burst"\nfactor = 20.0\nfor_s = 0.5\n'
    plan = plan_of(tmp_path, **{"[rates.80-20]": f"{burst}[rates.80-20]"})
    told = check_plan(plan, COST, 0)
    assert all("short" in x["recovered_s"] for x in told["loads"])
    assert "short recovers " in shown(told)

from collections import Counter
from dataclasses import replace

import pytest

from loadgen.freeze import preview
from loadgen.record import canonical
from loadgen.sweep_file import read_sweep
from loadgen.sweep_plan import changed, effort, trace_keys, trace_spec
from tests.loadgen.sweeps import DEFAULT


@pytest.fixture(scope="module")
def sweep():
    return read_sweep(DEFAULT)


@pytest.fixture(scope="module")
def plan(sweep):
    return preview(sweep)


def of(sweep, **settings):
    return preview(replace(sweep, settings=replace(sweep.settings, **settings)))


def test_the_default_is_126_runs_on_21_starts_each_once_per_round(plan):
    assert len(plan["runs"]) == 126
    assert plan["engine_starts"] == 21
    seen = Counter((r["cell_id"], r["mix"], r["rate"], r["repeat"]) for r in plan["runs"])
    assert set(seen.values()) == {1}
    assert len(seen) == 126
    assert [r["order"] for r in plan["runs"]] == list(range(1, 127))


def test_the_six_runs_of_a_cell_stand_together_on_one_start(plan):
    for n in range(0, 126, 6):
        own = plan["runs"][n : n + 6]
        assert len({(r["cell_id"], r["repeat"]) for r in own}) == 1
        assert {r["start"] for r in own} == {n // 6 + 1}


def test_cells_come_in_another_order_in_each_round_and_share_its_traces(plan):
    orders = [[r["cell_id"] for r in plan["runs"][n : n + 42 : 6]] for n in (0, 42, 84)]
    assert len({tuple(o) for o in orders}) == 3
    traces = {(r["mix"], r["rate"], r["repeat"]): r["trace"] for r in plan["runs"]}
    assert len(set(traces.values())) == 18


def test_strata_are_shuffled_inside_a_cell(plan):
    orders = {
        tuple((r["mix"], r["rate"]) for r in plan["runs"][n : n + 6]) for n in range(0, 126, 6)
    }
    assert len(orders) > 15


def test_short_only_is_offered_at_the_short_rate_of_the_mix_it_comes_from(plan):
    rates = {(s["mix"], s["rate"]): s["rate_per_s"] for s in plan["strata"]}
    assert rates["short", "near"] == pytest.approx(0.8 * rates["80-20", "near"])
    assert rates["short", "near"] >= 0.5 * rates["50-50", "near"]
    assert plan["derived_mixes"] == {"short": "80-20"}
    assert plan["mixes"]["short"] == {"short": 1.0}


def test_shared_traces_are_one_set_for_all_rounds(sweep):
    plan = of(sweep, traces="shared")
    assert len({r["trace"] for r in plan["runs"]}) == 6
    assert plan["traces_mode"] == "shared"


def test_the_floor_measures_b0_twice_in_every_round(sweep):
    plan = of(sweep, aa=True)
    assert len(plan["runs"]) == 144
    twin = next(c for c in plan["cells"] if c.get("aa_of") == "B0")
    assert twin["args"] == plan["cells"][0]["args"]


def test_stress_stands_outside_the_gates(sweep):
    plan = of(sweep, strata=("low", "near", "stress"))
    assert {s["rate"]: s["gate"] for s in plan["strata"]} == {
        "low": True,
        "near": True,
        "stress": False,
    }


def test_six_rounds_with_two_looks_share_the_error_between_them(sweep):
    plan = of(sweep, rounds=6, looks=(3, 6))
    assert (plan["alphas"], plan["alpha"]) == ([0.02, 0.03], 0.03)
    assert len(plan["runs"]) == 252


def test_another_seed_gives_another_order_and_other_traces(sweep, plan):
    other = replace(sweep.settings, seed=2)
    assert [r["run_id"] for r in of(sweep, seed=2)["runs"]] != [r["run_id"] for r in plan["runs"]]
    drawn = [k for k in trace_keys(sweep.settings) if k.mix == "80-20"]
    assert all(trace_spec(sweep.settings, k).seed != trace_spec(other, k).seed for k in drawn)


def test_rounds_have_traces_of_their_own(sweep):
    drawn = [k for k in trace_keys(sweep.settings) if k.mix == "80-20"]
    assert len({trace_spec(sweep.settings, k).seed for k in drawn}) == len(drawn) == 6


def test_a_cell_names_what_it_changes(plan):
    cells = {c["cell_id"]: c["changed"] for c in plan["cells"]}
    assert cells["B0"] == {}
    assert cells["C5"] == {"max_num_seqs": {"from": 1024, "to": 16}}
    assert set(cells["C1"]) == {"max_num_batched_tokens", "max_num_seqs"}
    assert changed({}, {"a": 1}) == {"a": {"from": None, "to": 1}}


def test_contracts_and_margins_are_in_the_plan_and_so_in_its_digest(sweep, plan):
    assert plan["contract"]["short"]["ttft_s"] == 2.0
    assert plan["margins"]["superior"] == 0.10
    other = of(sweep, margins=replace(sweep.settings.margins, superior=0.2))
    assert canonical(other) != canonical(plan)
    assert canonical(preview(sweep)) == canonical(plan)


def test_the_effort_counts_runs_starts_and_seconds(plan):
    told = effort(plan)
    assert (told["runs"], told["engine_starts"]) == (126, 21)
    assert told["least_s"] == 126 * 40 + 21 * 13
    assert told["most_s"] == told["least_s"] + 126 * 20

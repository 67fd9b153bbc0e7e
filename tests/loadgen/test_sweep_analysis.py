import pytest

from loadgen.record import BenchError, Outcome
from loadgen.sweep_analysis import changed_arguments
from tests.loadgen.made import PER_RUN, PLAIN, Behaviour, analysis, better, plan


def row_of(found, unit, size_class="short", mix="80-20"):
    return next(
        r
        for r in found["strata"]
        if (r["cell_id"], r["size_class"], r["mix"]) == (unit, size_class, mix)
    )


def test_a_stratum_pools_its_rounds_and_shows_each():
    row = row_of(analysis({"B0": Behaviour(missed={"short": 0.1})}), "B0")
    assert row["rounds"] == [1, 2, 3]
    assert (row["n"], row["misses"], row["gate"]) == (3 * PER_RUN, 24, True)
    assert row["attainments"] == pytest.approx([0.9, 0.9, 0.9])
    assert row["late"] == 24
    assert row["goodput_per_s"] == pytest.approx(72 / 20.0)
    assert row["goodput_by_round"] == pytest.approx([72 / 20.0] * 3)
    assert row["state"] == "fail"
    assert row["certified"] == {"p95": False, "p99": False}
    assert "24 of 240 missed over 3 runs" in row["why"]


def test_a_run_s_own_p95_is_kept_for_analysis_where_it_is_too_small_to_print_p99():
    row = row_of(analysis({"B0": Behaviour(failed={"short": 0.1})}), "B0")
    assert row["per_run_p95"]["n"] == [PER_RUN] * 3
    assert row["per_run_p95"]["ttft_s"] == [None, None, None]
    assert row["ttft_s"]["offered"]["p95"]["value"] is None
    assert row["ttft_s"]["accepted"]["n"] == 216
    assert row["ttft_s"]["offered"]["p99"] == {"too_few": True, "n": 240, "needs": 299}


def test_what_is_missing_invalid_and_done_is_listed_while_a_sweep_runs():
    made = plan()
    done = {r["run_id"] for r in made["runs"][:11]}
    without = {r["run_id"] for r in made["runs"]} - done
    found = analysis(made=made, without=without, faulty={made["runs"][0]["run_id"]})
    assert set(found["missing"]) == without
    assert [r["run_id"] for r in found["invalid"]] == ["r1-B0-80-20-near"]
    assert found["look"]["complete"] is False
    assert found["look"]["rounds_done"] == 2
    assert {tuple(row["rounds"]) for row in found["strata"]} == {(1,), (1, 2), (2,)}


def test_nothing_at_all_can_be_analysed_too():
    made = plan()
    found = analysis(made=made, without={r["run_id"] for r in made["runs"]})
    assert found["strata"] == []
    assert len(found["missing"]) == len(made["runs"])
    assert found["spread"]["short_ttft_p95"] is None


def test_a_bound_on_refusals_tighter_than_on_misses_is_a_demand_of_its_own():
    made = plan()
    strict = {n: {**c, "max_refused": 0.02} for n, c in made["contract"].items()}
    some = Behaviour(failed={"short": 0.02}, failure=Outcome.REJECTED)
    found = analysis({"B0": some}, {**made, "contract": strict})
    row = row_of(found, "B0")
    assert row["refused"] == 6
    assert row["state"] == "undecided"
    assert "not refused" in row["why"]
    assert row_of(analysis({"B0": some}), "B0")["state"] == "pass"


def test_tokens_are_counted_beside_events():
    row = row_of(analysis({("B0", "80-20"): Behaviour(tokens=100)}), "B0")
    assert row["output_tokens_per_ok"] == 100
    assert row["tokens_per_event"] == 50


def test_the_distance_of_a_cell_is_counted_in_arguments_and_doublings():
    changed = {"a": {"from": 8192, "to": 2048}, "b": {"from": None, "to": "fcfs"}}
    assert changed_arguments({"changed": changed}) == (2, 2.0)
    assert changed_arguments({}) == (0, 0.0)


def test_looks_without_an_alpha_each_are_refused():
    with pytest.raises(BenchError, match="2 looks need as many values in `alphas`"):
        analysis(made=plan(rounds=6, looks=[3, 6], alphas=[0.05]))


def test_the_same_records_give_the_same_bytes_whatever_the_order_of_cells_behaviours():
    one = analysis({"C1": better(), "C2": PLAIN})
    assert one == analysis({"C2": PLAIN, "C1": better()})

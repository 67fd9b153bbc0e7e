"""Every outcome of the rule, from request records on."""

from dataclasses import replace

import pytest

from loadgen.record import Outcome
from loadgen.sweep_analysis import Absent
from tests.loadgen.made import PLAIN, Behaviour, analysis, better, decided, plan

SLOW = replace(PLAIN, missed={"short": 0.2})
SLOW_LONG = replace(PLAIN, missed={"long": 0.2})
UNSURE = replace(PLAIN, missed={"short": 0.04})
ALL_SLOW = dict.fromkeys(("B0", "C1", "C2", "C3"), SLOW)


def split(
    behaviours=None, units=("shared", "isolated", "alone-short", "alone-long"), work=0.6, **more
):
    made = plan(units, kind="topology")
    pools = [
        {"name": n, "classes": [n], "engines": 1, "offered_work": w}
        for n, w in (("short", 0.3), ("long", work))
    ]
    runs = [{**r, "pools": pools if r["topology"] != "shared" else []} for r in made["runs"]]
    return analysis(behaviours, {**made, "runs": runs}, **more)


def test_cells_that_are_alike_keep_the_baseline_and_the_smallest_visible_gain_is_said():
    found = decided()
    assert (found["verdict"], found["rule"], found["action"]) == (
        "retain",
        2,
        "keep the baseline",
    )
    said = "\n".join(found["reasons"])
    assert "the smallest gain these data could have shown: short_ttft_p95 10.0%" in said
    assert found["smallest_gain"] == {"short_stall_p95": 0.1, "short_ttft_p95": 0.1}


def test_a_clear_gain_with_its_guardrails_held_is_named():
    found = decided({"C2": better()})
    assert (found["verdict"], found["rule"], found["named"]) == ("retune(C2)", 3, "C2")
    assert any(
        "C2: short_stall_p95 -" in reason and "Holm" in reason for reason in found["reasons"]
    )


def test_a_gain_below_the_margin_is_no_gain_however_sure():
    assert decided({"C2": better(short_stall=0.93)})["verdict"] == "retain"


def test_a_gain_that_costs_the_longs_too_much_keeps_the_baseline_and_names_the_guardrail():
    costly = replace(better(), ttft_s={"short": 0.4, "long": 0.8})
    found = decided({"C2": costly})
    assert found["verdict"] == "retain"
    assert any("not held: long_ttft_p95" in reason for reason in found["reasons"])


def test_of_several_that_would_do_the_one_that_changes_least_is_named():
    found = decided(dict.fromkeys(("C1", "C2", "C3"), better()))
    # C1 and C2 change one argument; 8192 -> 4096 is the smaller step.
    assert found["verdict"] == "retune(C2)"
    assert "C1, C3 would do as well; C2 changes least" in found["reasons"]


def test_a_baseline_that_fails_is_replaced_by_a_cell_that_passes_without_being_superior():
    found = decided({"B0": SLOW_LONG, "C1": SLOW_LONG, "C3": SLOW_LONG})
    assert (found["verdict"], found["rule"]) == ("retune(C2)", 3)
    assert any(reason.startswith("B0 fails: long at") for reason in found["reasons"])


def test_a_superior_cell_that_is_not_proved_to_pass_is_not_named():
    found = decided({"C2": replace(better(), missed={"short": 0.04})})
    assert (found["verdict"], found["rule"]) == ("inconclusive", 6)
    assert any("C2, short at 80-20 near is undecided" in line for line in found["more_rounds"])


def test_a_baseline_that_is_undecided_is_not_failed():
    found = decided({"B0": UNSURE})
    assert found["verdict"] == "inconclusive"
    assert any("B0 undecided" in reason for reason in found["reasons"])
    assert any("rounds like these would pass" in line for line in found["more_rounds"])


def test_where_nothing_passes_and_there_are_no_topology_runs_nothing_is_concluded():
    found = decided(ALL_SLOW)
    assert (found["verdict"], found["rule"]) == ("inconclusive", 6)
    assert "no shared cell passes, and there are no topology runs to tell why" in found["reasons"]


def test_a_class_that_fails_in_every_shared_cell_and_passes_alone_is_given_its_own_engines():
    found = decided(ALL_SLOW, topology=split({"shared": SLOW}))
    assert (found["verdict"], found["rule"], found["named"]) == ("isolate", 5, "isolated")
    assert found["action"] == "give each class engines of its own"
    assert found["cost"]["replicas"] == 2
    idle = {p["pool"]: p["idle_share"] for p in found["cost"]["pools"]}
    assert idle == pytest.approx({"short": 0.7, "long": 0.4})
    # 2 engines x 20 s over 160 ok responses, against 1 engine.
    assert found["cost"]["gpu_s_per_ok"] == pytest.approx(0.25)
    assert found["cost"]["best_shared_gpu_s_per_ok"] == pytest.approx(0.125)
    assert found["inputs"]["topology_analysis_sha256"] == "topology sha"


def test_the_split_stands_for_a_class_alone_where_it_was_not_run_alone():
    found = decided(ALL_SLOW, topology=split({"shared": SLOW}, units=("shared", "isolated")))
    assert found["verdict"] == "isolate"


def test_a_class_that_fails_alone_needs_capacity_and_not_isolation():
    found = decided(ALL_SLOW, topology=split({"alone-long": SLOW_LONG, "isolated": SLOW_LONG}))
    assert (found["verdict"], found["rule"]) == ("capacity(long)", 4)
    assert any(reason.startswith("long alone fails") for reason in found["reasons"])


def test_a_split_that_cannot_carry_a_class_by_arithmetic_needs_capacity():
    found = decided(ALL_SLOW, topology=split(work=1.35))
    assert found["verdict"] == "capacity(long)"
    assert "long pool at 135% at" in found["reasons"][0]


def test_isolation_is_not_proved_by_a_class_that_is_undecided_in_one_shared_cell():
    found = decided({**ALL_SLOW, "C3": UNSURE}, topology=split())
    assert found["verdict"] == "inconclusive"
    assert any("prove neither cause" in reason for reason in found["reasons"])


def test_isolation_is_not_proved_by_a_split_that_is_undecided():
    found = decided(ALL_SLOW, topology=split({"isolated": UNSURE}))
    assert found["verdict"] == "inconclusive"


def test_topology_runs_change_nothing_where_a_shared_cell_passes():
    found = decided({"B0": UNSURE}, topology=split({"shared": SLOW}))
    assert found["verdict"] == "inconclusive"


def test_classes_that_fail_in_different_cells_are_no_case_for_isolation():
    cells = {"B0": SLOW, "C1": SLOW, "C2": SLOW_LONG, "C3": SLOW_LONG}
    assert decided(cells, topology=split())["verdict"] == "inconclusive"


def test_a_missing_run_of_the_baseline_makes_the_sweep_invalid():
    found = decided(without={"r2-B0-80-20-near"})
    assert (found["verdict"], found["rule"]) == ("invalid", 1)
    assert found["reasons"] == ["incomplete: r2-B0-80-20-near is missing"]


def test_a_client_faulty_run_of_the_baseline_makes_the_sweep_invalid():
    found = decided(faulty={"r2-B0-80-20-near"})
    said, advice = found["reasons"]
    assert said == "r2-B0-80-20-near is client-faulty: loop lag 99.0 ms, limit 25 ms"
    assert advice.startswith("this machine was too busy for the measuring client")
    assert "close other work on it" in advice


@pytest.mark.parametrize("how", ["without", "faulty"])
def test_a_cell_about_to_be_named_must_be_complete(how):
    found = decided({"C2": better()}, **{how: {"r3-C2-80-20-near"}})
    assert (found["verdict"], found["rule"]) == ("invalid", 1)
    assert found["reasons"][0] == "C2 would be named"


def test_a_missing_run_of_another_cell_stops_nothing_and_is_said():
    found = decided({"C2": better()}, without={"r3-C1-80-20-near"})
    assert found["verdict"] == "retune(C2)"
    assert "C1 is judged without 1 of its runs" in found["reasons"]


def test_missing_topology_runs_make_their_verdict_invalid():
    found = decided(ALL_SLOW, topology=split(without={"r1-isolated-80-20-near"}))
    assert (found["verdict"], found["rule"]) == ("invalid", 1)
    assert found["reasons"][0] == "isolate would be named"


def test_an_incompatible_cell_is_excluded_by_name_and_stops_nothing():
    found = decided({"C1": better()}, absent=Absent(excluded={"C1": "max_num_seqs is 8"}))
    assert found["verdict"] == "retain"
    assert "C1 is excluded: max_num_seqs is 8" in found["reasons"]
    assert found["omitted"] == [{"cell_id": "C1", "reason": "max_num_seqs is 8"}]


def test_an_incompatible_baseline_makes_the_sweep_invalid():
    found = decided(absent=Absent(excluded={"B0": "max_num_seqs is 8"}))
    assert found["verdict"] == "invalid"
    assert found["reasons"] == ["the baseline B0 is excluded: max_num_seqs is 8"]


def test_a_plan_with_a_second_look_says_so_where_the_first_is_inconclusive():
    made = plan(rounds=6, looks=[3, 6])
    later = {r["run_id"] for r in made["runs"] if r["repeat"] > 3}
    found = decided({"B0": UNSURE}, made, without=later)
    assert found["look"] == {
        "alpha": 0.02,
        "complete": True,
        "last": False,
        "looks": [3, 6],
        "number": 1,
        "rounds": 3,
        "rounds_done": 3,
    }
    assert "the plan looks again after 6 rounds" in found["reasons"]


def test_the_second_look_has_an_alpha_of_its_own_and_all_rounds():
    found = decided(made=plan(rounds=6, looks=[3, 6]))
    assert (found["look"]["alpha"], found["look"]["rounds"]) == (0.03, 6)


def test_a_plan_with_one_look_after_six_rounds_is_incomplete_after_three():
    made = plan(rounds=6)
    later = {r["run_id"] for r in made["runs"] if r["repeat"] > 3}
    found = decided(made=made, without=later)
    assert found["verdict"] == "invalid"
    assert len(found["reasons"]) == 6


def test_failures_never_make_a_candidate_look_faster():
    shedding = replace(better(), failed={"short": 0.5}, failure=Outcome.REJECTED)
    found = analysis({"C2": shedding})
    row = next(r for r in found["comparisons"] if r["cell_id"] == "C2")
    assert row["unbounded"] == ["short_ttft_p95", "short_stall_p95"]
    assert not row["guardrails_held"]
    assert decided({"C2": shedding})["verdict"] == "retain"


def test_a_cell_whose_responses_are_shorter_is_not_superior():
    found = decided({"C2": replace(better(), tokens=120)})
    assert found["verdict"] == "retain"


def test_a_twin_of_the_baseline_is_neither_a_candidate_nor_one_more_cell():
    made = plan(("B0", "B0b", "C1"))
    found = analysis({"B0b": better()}, made)
    assert [row["cell_id"] for row in found["comparisons"]] == ["C1"]
    assert found["spread"]["short_ttft_p95"]["cells"] == ["B0", "C1"]
    assert found["aa"]["B0b"]["short_stall_p95"]["ratio"] == pytest.approx(0.7, abs=0.05)
    assert decided({"B0b": better()}, made)["verdict"] == "retain"


def test_only_real_verified_evidence_for_something_new_may_be_deployed():
    real = {**plan(), "synthetic": False}
    assert decided({"C2": better()}, real)["deployable"] is True
    assert decided({"C2": better()}, real)["not_deployable"] == []
    unverified = decided({"C2": better()}, real, config={"effective_source": "unverified"})
    assert unverified["deployable"] is False
    assert unverified["not_deployable"] == ["effective values are unverified: B0, C2"]
    assert decided({"C2": better()})["not_deployable"] == ["the engines were simulated"]
    assert decided(made=real)["not_deployable"] == ["there is nothing to deploy"]


def test_virtual_time_needs_no_client_and_is_stamped():
    found = decided({"C2": better()}, samples=(), config={"virtual": True})
    assert found["verdict"] == "retune(C2)"
    assert "the runs took place in virtual time" in found["not_deployable"]


def test_a_behaviour_is_what_its_records_say():
    row = analysis({"B0": Behaviour(variation=0.0)})["strata"][0]
    assert row["ttft_s"]["offered"]["p50"]["value"] == pytest.approx(0.4, abs=0.01)


def test_topology_runs_without_a_split_prove_nothing():
    found = decided(ALL_SLOW, topology=split(units=("shared", "alone-short")))
    assert found["verdict"] == "inconclusive"


def test_a_sweep_in_which_no_candidate_could_be_compared_does_not_retain():
    made = plan(("B0", "C1"))
    lost = [run["run_id"] for run in made["runs"] if run["cell_id"] == "C1"]
    found = decided({}, made, without=lost)
    assert found["verdict"] == "invalid"
    assert found["reasons"][0] == "no candidate could be compared"
    assert f"incomplete: {lost[0]} is missing" in found["reasons"]


def test_what_could_not_be_compared_is_not_among_the_candidates_that_lost():
    made = plan(("B0", "C1", "C2"))
    lost = [run["run_id"] for run in made["runs"] if run["cell_id"] == "C1"]
    found = decided({}, made, without=lost)
    assert found["verdict"] == "retain"
    said = "none of 1 candidates that were compared is superior with its guardrails held"
    assert said in found["reasons"]
    assert f"C1 is judged without {len(lost)} of its runs" in found["reasons"]

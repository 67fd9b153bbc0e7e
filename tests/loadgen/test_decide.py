import pytest

from loadgen.decide import decide

POOL = {"name": "long", "classes": ["long"], "engines": 1, "offered_work": 0.5}


def analysis(*runs):
    return {"runs": list(runs), "rounds": 1, "synthetic": True, "inputs": {"plan_sha256": "p"}}


def run(run_id="a", faults=(), work=0.5):
    return {"run_id": run_id, "faults": list(faults), "pools": [{**POOL, "offered_work": work}]}


def test_a_run_whose_client_was_at_fault_makes_everything_invalid():
    decision = decide(analysis(run(), run("b", ["loop lag 30 ms"], work=2.0)), "x")
    assert decision["verdict"] == "invalid"
    assert decision["reasons"] == ["b: loop lag 30 ms"]


def test_a_pool_offered_more_than_its_engines_can_do_is_a_matter_of_capacity():
    decision = decide(analysis(run(), run("b", work=1.12)), "x")
    assert decision["verdict"] == "capacity(long)"
    assert decision["reasons"] == ["b: long pool at 112% of its capacity"]


@pytest.mark.parametrize("work", [0.0, 1.0])
def test_one_round_decides_nothing(work):
    decision = decide(analysis(run(work=work)), "x")
    assert decision["verdict"] == "inconclusive"
    assert decision["reasons"][0].startswith("1 round")


def test_no_synthetic_decision_is_deployable_and_each_names_its_inputs():
    decision = decide(analysis(run()), "x")
    assert decision["synthetic"] is True
    assert decision["deployable"] is False
    assert decision["action"] == "keep the baseline"
    assert decision["inputs"] == {"analysis_sha256": "x", "plan_sha256": "p"}

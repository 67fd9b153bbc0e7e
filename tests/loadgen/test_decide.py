import pytest

from loadgen.decide import decide
from loadgen.record import BenchError
from tests.loadgen.made import analysis as sweep
from tests.loadgen.made import better, decided, plan

POOL = {"name": "long", "classes": ["long"], "engines": 1, "offered_work": 0.5}


def analysis(*runs):
    told = {"plan_kind": "demo", "rounds": 1, "synthetic": True}
    return {**told, "runs": list(runs), "inputs": {"plan_sha256": "p"}}


def run(run_id="a", faults=(), work=0.5):
    return {"run_id": run_id, "faults": list(faults), "pools": [{**POOL, "offered_work": work}]}


def test_a_run_whose_client_was_at_fault_makes_everything_invalid():
    decision = decide(analysis(run(), run("b", ["loop lag 30 ms"], work=2.0)), "x")
    assert decision["verdict"] == "invalid"
    busy, fault = decision["reasons"]
    assert busy.startswith("this machine was too busy for the measuring client")
    assert fault == "b: loop lag 30 ms"


def test_a_fault_that_is_not_the_machine_s_is_not_called_its():
    decision = decide(analysis(run("b", ["offered 3 requests, planned 4"])), "x")
    assert decision["reasons"] == ["b: offered 3 requests, planned 4"]


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


def test_the_contract_of_the_topology_runs_must_be_the_sweep_s():
    made = plan(("shared", "isolated"), kind="topology")
    contract = {**made["contract"], "short": {**made["contract"]["short"], "ttft_s": 9.0}}
    with pytest.raises(BenchError, match=r"contract.short.ttft_s is 9.0, but the sweep's is 2.0"):
        decided(topology=sweep({}, {**made, "contract": contract}))


def test_only_topology_runs_are_taken_as_such():
    with pytest.raises(BenchError, match="topology: its plan is of kind sweep"):
        decided(topology=sweep())


def test_policy_arms_have_contrasts_and_no_verdict():
    found = decided({"enforce": better()}, plan(("off", "enforce", "both"), kind="arms"))
    assert found["verdict"] == "none"
    assert any(
        line.startswith("enforce against off: short_stall_p95 -") and "superior" in line
        for line in found["reasons"]
    )

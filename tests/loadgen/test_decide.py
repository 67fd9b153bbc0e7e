import pytest

from loadgen.decide import decide, sound
from loadgen.record import BenchError
from tests.loadgen.made import Behaviour, better, decided, plan
from tests.loadgen.made import analysis as sweep

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


ARMS = ("off", "enforce", "both")


def test_an_arm_whose_requests_fail_is_not_passed_over():
    failing = Behaviour(failed={"short": 0.12})
    reasons = decided({"enforce": failing}, plan(ARMS, kind="arms"))["reasons"]
    assert (
        "enforce against off: short_ttft_p95 is unbounded: that p95 falls on a request that failed"
        in reasons
    )
    assert any(line.startswith("enforce fails: short") for line in reasons)


def test_runs_that_an_arm_lacks_are_named_and_the_decision_is_not_sound():
    made = plan(ARMS, kind="arms")
    whole = decided({"enforce": better()}, made)
    assert (whole["missing"], sound(whole)) == ([], True)
    found = decided({"enforce": better()}, made, without=["r1-off-50-50-near"])
    assert found["missing"] == ["r1-off-50-50-near"]
    assert "incomplete: r1-off-50-50-near is missing" in found["reasons"]
    assert not sound(found)
    faulty = decided({"enforce": better()}, made, faulty=["r2-enforce-50-50-near"])
    assert any("r2-enforce-50-50-near is client-faulty" in line for line in faulty["reasons"])
    assert not sound(faulty)


def test_one_round_of_arms_says_that_nothing_was_compared():
    reasons = decided({}, plan(ARMS, kind="arms", rounds=1))["reasons"]
    said = "was not compared: that takes two rounds of two units that do not fail"
    assert f"enforce against off: short_ttft_p95 {said}" in reasons


def test_the_guardrail_that_a_superior_arm_breaks_is_among_the_reasons():
    slow = Behaviour(ttft_s={"short": 0.2, "long": 0.9})
    reasons = decided({"enforce": slow}, plan(ARMS, kind="arms"))["reasons"]
    broken = [line for line in reasons if "guardrail" in line]
    assert len(broken) == 1
    assert broken[0].startswith("enforce against off: long p95 TTFT +48.2%, bound +50.1%")
    assert broken[0].endswith("guardrail +10.0% not held")

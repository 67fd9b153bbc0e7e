from xml.etree import ElementTree as ET

import pytest

from loadgen.files import read_json
from loadgen.gate import Check, GateResult, junit, pass_gate
from tests.loadgen.made import Behaviour, analysis, better, decided, plan


def gate(behaviours=None, accepted=("retain", "retune"), **more):
    deployable = more.pop("deployable", False)
    found = analysis(behaviours, **more)
    return pass_gate(found, decided(behaviours, **more), accepted, deployable=deployable)


def states(result):
    return {f"{c.group}: {c.name}": c.state for c in result.checks}


def test_an_accepted_verdict_whose_contract_holds_passes():
    result = gate()
    assert result.passed
    assert result.served == "B0"
    assert states(result)["contract.B0: short at 80-20 near"] == "passed"


def test_what_would_serve_is_what_the_verdict_names_with_its_guardrails():
    result = gate({"C1": better(short_stall=0.5)})
    assert result.served == "C1"
    assert result.passed
    assert "guardrail.C1: long_ttft_p95" in states(result)


def test_a_candidate_that_fails_its_contract_shuts_nothing():
    assert gate({"C1": Behaviour(missed={"short": 0.3})}).passed


def test_a_verdict_that_is_not_accepted_fails_and_says_which_are():
    result = gate({"C1": better(short_stall=0.5)}, accepted=["retain"])
    assert not result.passed
    assert "accepted are retain" in result.checks[0].why


def test_a_baseline_that_fails_is_no_pass_even_where_its_verdict_is_accepted():
    slow = {u: Behaviour(missed={"short": 0.5}) for u in ("B0", "C1", "C2", "C3")}
    result = gate(slow, accepted=["inconclusive"])
    assert states(result)["contract.B0: short at 80-20 near"] == "failed"
    assert not result.passed


def test_lack_of_proof_is_skipped_and_no_failure():
    shaky = {u: Behaviour(missed={"short": 0.05}) for u in ("B0", "C1", "C2", "C3")}
    result = gate(shaky, accepted=["inconclusive"])
    assert states(result)["contract.B0: short at 80-20 near"] == "skipped"
    assert result.passed


@pytest.mark.parametrize("lack", ["without", "faulty"])
def test_a_run_that_is_missing_or_invalid_fails(lack):
    result = gate(accepted=["retain", "invalid"], **{lack: ["r1-C1-80-20-near"]})
    assert states(result)["evidence: every run is there and valid"] == "failed"


def test_what_may_not_be_deployed_fails_only_where_that_is_asked_for():
    assert gate().passed
    assert not gate(deployable=True).passed


def test_a_demonstration_passes_by_its_verdict_alone(demo):
    found, decision = (read_json(demo[0] / f"{n}.json") for n in ("analysis", "decision"))
    word = decision["verdict"].partition("(")[0]
    valid = not any(r["faults"] for r in found["runs"])
    assert pass_gate(found, decision, [word]).passed == valid
    assert not pass_gate(found, decision, ["retain"]).passed


def test_junit_counts_what_it_lists_and_holds_any_text():
    checks = [
        Check("a", "x", "passed", "fine"),
        Check("a", "y", "failed", "server said \x00\x1b<&\ufffe"),
        Check("b", "z", "skipped", "undecided"),
    ]
    root = ET.fromstring(junit(GateResult("retain", "B0", checks)))  # noqa: S314 - our own
    assert {k: root.get(k) for k in ("tests", "failures", "skipped", "errors")} == {
        "tests": "3",
        "failures": "1",
        "skipped": "1",
        "errors": "0",
    }
    cases = root.findall("./testsuite/testcase")
    assert [c.get("classname") for c in cases] == ["sluicegate.a", "sluicegate.a", "sluicegate.b"]
    assert cases[1].find("failure").text == "server said \ufffd\ufffd<&\ufffd"
    assert cases[2].find("skipped").get("message") == "undecided"


def test_as_json_the_gate_says_whether_it_is_open():
    found = gate(accepted=["retain"]).as_json()
    assert found["passed"] is True
    assert found["verdict"] == "retain"
    assert found["checks"][0] == {
        "group": "verdict",
        "name": "retain",
        "state": "passed",
        "why": "",
    }


def test_a_stratum_outside_the_gates_shuts_nothing():
    made = plan()
    for contract in made["contract"].values():
        contract["gate_strata"] = [["80-20", "near"]]
    failing = {("B0", "50-50"): Behaviour(missed={"short": 0.5})}
    result = gate(failing, accepted=["retain", "inconclusive"], made=made)
    assert result.passed
    assert not any("50-50" in name for name in states(result))

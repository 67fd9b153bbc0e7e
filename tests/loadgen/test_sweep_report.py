import re
from html import unescape

import pytest

from loadgen.files import read_json
from loadgen.report_file import report_page
from loadgen.sweep_report import SweepEvidence, render_sweep
from tests.loadgen.made import Behaviour, analysis, plan
from tests.loadgen.swept import write_sweep


def text_of(page):
    """The page without scripts and style, as a reader has it."""
    bare = re.sub(r"<(script|style)[^>]*>.*?</\1>", "", page, flags=re.DOTALL)
    return re.sub(r"\s+", " ", unescape(re.sub(r"<[^>]+>", " ", bare)))


def page_of(folder, **changes):
    found, decision = read_json(folder / "analysis.json"), read_json(folder / "decision.json")
    plan_ = read_json(folder / "plan.json")
    evidence = SweepEvidence(plan_, {**found, **changes}, decision, {})
    return render_sweep(evidence, "")


@pytest.fixture(scope="module")
def page(sweep_once):
    found, decision = (read_json(sweep_once / f"{n}.json") for n in ("analysis", "decision"))
    return report_page(sweep_once, found, decision).decode()


def test_the_verdict_with_its_reasons_and_what_to_do_comes_before_all_evidence(page):
    said = text_of(page)
    order = [
        "C1 is better than the baseline B0",
        "verdict: retune(C1)",
        "C1: short p95 stall",
        "Change in the engine's arguments: max_num_batched_tokens: 8192 → 2048",
        "Not to be deployed on the strength of this: the engines were simulated",
        "18 runs were planned",
        "Contracts, fixed before the runs",
    ]
    places = [said.index(part) for part in order]
    assert places == sorted(places)


def test_every_part_that_a_reviewer_asks_for_has_a_heading(page):
    heads = re.findall(r"<h2[^>]*>([^<]+)</h2>", page)
    assert heads == [
        "Contracts, fixed before the runs",
        "Validity: what is missing or invalid",
        "Comparison with B0",
        "Class short",
        "Class long",
        "Second by second",
        "What the numbers point to",
        "What was measured",
        "How to reproduce",
        "Glossary",
    ]


def test_synthetic_evidence_is_stamped_above_the_verdict(page):
    said = text_of(page)
    assert said.index("Synthetic: the engines were simulated") < said.index("verdict:")


def test_the_page_names_every_digest_it_rests_on(page, sweep_once):
    inputs = read_json(sweep_once / "decision.json")["inputs"]
    assert all(inputs[k] in page for k in ("analysis_sha256", "plan_sha256", "corpus_sha256"))
    assert all(run["requests_sha256"] in page for run in inputs["runs"].values())


def test_the_machine_and_the_image_are_told(page):
    assert "a test machine" in page
    assert "e" * 64 in page


def test_the_page_is_small_enough_to_send(page):
    assert len(page) < 8_000_000


def test_no_key_of_the_analysis_stands_where_a_reader_reads(page):
    assert not re.search(r"(short|long)_(ttft|stall|e2e)_p95", text_of(page))


def test_missing_runs_are_said_first_and_named(tmp_path):
    lost = ["r3-C1-80-20-near", "r3-C2-50-50-near"]
    write_sweep(tmp_path, leave_out=lost)
    said = text_of(page_of(tmp_path))
    assert "Partial: 2 of 18 runs are not there yet (16 are)" in said
    assert said.index("Partial:") < said.index("verdict:")
    assert all(f"missing: {run_id}" in said for run_id in lost)
    assert "No look of the plan is complete" in said


def test_an_invalid_attempt_is_shown_with_its_reason(sweep_once):
    row = {"run_id": "r1-C1-80-20-near", "attempt": "1", "faults": ["loop lag 99 <ms>"]}
    page = page_of(sweep_once, invalid=[row])
    assert "invalid: r1-C1-80-20-near, attempt 1: loop lag 99 &lt;ms&gt;" in page
    assert "1 attempt was invalid, kept, listed here and run again at once." in page


def test_virtual_time_is_called_an_expectation(sweep_once):
    said = text_of(page_of(sweep_once, virtual=True))
    assert "what to expect, not what was measured" in said


def test_an_isolated_split_is_shown_with_its_cost(sweep_once):
    found, decision = (read_json(sweep_once / f"{n}.json") for n in ("analysis", "decision"))
    units = ("shared", "isolated")
    slow = Behaviour(missed={"short": 0.5})
    topology = analysis({"shared": slow}, plan(units, kind="topology"))
    told = {**decision, "cost": {"said": ["0.5 GPU-seconds per ok response"]}}
    evidence = SweepEvidence(read_json(sweep_once / "plan.json"), found, told, {}, {}, topology)
    said = text_of(render_sweep(evidence, ""))
    assert "Engines per class on equal hardware" in said
    assert "0.5 GPU-seconds per ok response" in said
    assert "short at 80-20 near: fail" in said


@pytest.mark.parametrize("kind", ["arms", "topology"])
def test_arms_and_topologies_have_the_same_page(tmp_path, kind):
    base = {"arms": "off", "topology": "shared"}[kind]
    made = plan((base, "isolated"), kind=kind)
    decision = {
        "verdict": "none",
        "reasons": [],
        "action": "keep the baseline",
        "deployable": False,
        "synthetic": True,
        "inputs": {"analysis_sha256": "a", "runs": {}},
    }
    said = text_of(render_sweep(SweepEvidence(made, analysis(None, made), decision, {}), ""))
    assert f"Comparison with {base}" in said
    assert ("each measure by itself" in said) is (kind == "arms")

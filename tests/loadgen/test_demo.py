import io
from pathlib import Path

import pytest
from rich.console import Console

from loadgen.corpus import load_corpus
from loadgen.demo import DEMO_INTERVALS, DEMO_TRACE, run_demo, run_view
from loadgen.files import file_digest, read_json
from loadgen.plan import DEMO_CONTRACT, check_intervals
from loadgen.trace import class_counts
from tests.loadgen.conftest import stand_in

RUNS = (
    "r1-pass-through-shared",
    "r1-admission-shared",
    "r1-admission-isolated",
    "r1-control-shorts-only",
)


def test_the_demonstration_ends_with_a_verdict_and_a_report(demo):
    folder, code, printed = demo
    decision = read_json(folder / "decision.json")
    assert code == (1 if decision["verdict"] == "invalid" else 0), printed
    assert f"verdict: {decision['verdict']} [synthetic" in printed
    assert f"report: {folder / 'report.html'}" in printed


def test_all_its_files_are_there(demo):
    folder = demo[0]
    names = ["corpus.jsonl", "corpus.manifest.json", "plan.json", "analysis.json"]
    names += ["trace-mixed.jsonl", "trace-shorts-only.jsonl", "decision.json", "report.html"]
    names += [f"runs/{r}/{f}" for r in RUNS for f in ("config.json", "requests.jsonl")]
    assert [n for n in names if not (folder / n).is_file()] == []


def test_prompt_tokens_are_compared_for_every_answered_request(demo):
    _, _, printed = demo
    assert "pass-through, shared: prompt tokens equal to plan: 40 of 40" in printed
    assert "admission, shared: prompt tokens equal to plan: 39 of 39" in printed


def test_a_refusal_is_in_the_records_of_the_ways_that_refuse_only(demo):
    runs = read_json(demo[0] / "analysis.json")["runs"]
    refused = [sum(c["outcomes"]["rejected"] for c in r["classes"].values()) for r in runs]
    # The tenth request of an admitting way; it may fall into the ramp.
    assert refused[0] == refused[3] == 0


def test_predictions_are_printed_beside_what_was_measured(demo):
    assert "predicted TTFT p95 20 ms, measured " in demo[2]


def test_an_unbounded_prediction_is_recorded_as_null_and_said(demo):
    ways = read_json(demo[0] / "predictions.json")["ways"]
    assert ways["admission-isolated"]["long"]["ttft_p95_s"] is None
    assert "admission, isolated, long: predicted TTFT p95 unbounded, measured " in demo[2]


def test_no_output_holds_prompt_text_or_a_credential(demo):
    folder, _, printed = demo
    texts = [p.text for p in load_corpus(folder / "corpus.jsonl").prompts]
    opening = [text[:40].encode() for text in texts] + [texts[0][200:240].encode()]
    for path in folder.rglob("*"):
        if path.is_file() and path.name != "corpus.jsonl":
            data = path.read_bytes()
            assert not [o for o in opening if o in data], path
            assert b"secret-" not in data, path
    assert "secret-" not in printed


def test_every_config_names_the_inputs_of_its_run(demo):
    folder = demo[0]
    for name in RUNS:
        config = read_json(folder / "runs" / name / "config.json")
        assert config["plan_sha256"] == file_digest(folder / "plan.json")
        assert config["corpus_sha256"] == file_digest(folder / "corpus.jsonl")
        assert config["trace_sha256"] == file_digest(folder / f"trace-{config['trace']}.jsonl")
        assert config["synthetic"] is True


def test_a_stack_that_cannot_start_is_an_error_of_its_own(tmp_path, monkeypatch, capsys):
    stand_in(tmp_path, "raise SystemExit('no room')")
    monkeypatch.chdir(tmp_path)
    spec = type(DEMO_TRACE)("constant", 1, 2.0, (("short", 1.0), ("long", 0.0)), 0.0, 1.0)
    assert run_demo(Path("out"), console=Console(width=200), spec=spec) == 2
    assert "no room" in capsys.readouterr().out


@pytest.mark.parametrize(("size_class", "count"), [("short", 488), ("long", 122)])
def test_the_default_trace_has_its_planned_counts(size_class, count):
    assert class_counts(DEMO_TRACE)[size_class] == count


def test_the_default_intervals_cannot_cut_off_a_counting_request():
    check_intervals(DEMO_INTERVALS, DEMO_CONTRACT)
    four_runs_s = 4 * (DEMO_INTERVALS.ramp_s + DEMO_INTERVALS.window_s + DEMO_INTERVALS.drain_s)
    assert four_runs_s <= 200


@pytest.mark.parametrize(
    ("fault", "busy"),
    [("loop lag 34.4 ms, limit 25 ms", True), ("offered 3 requests, planned 4", False)],
)
def test_only_a_client_that_was_late_is_told_of_a_busy_machine(fault, busy):
    console = Console(record=True, file=io.StringIO(), width=200)
    with run_view(console, 1)(1, {"label": "off"}, [[fault]], 1.0):
        pass
    said = console.export_text()
    assert f"INVALID: {fault}" in said
    assert ("too busy" in said) is busy

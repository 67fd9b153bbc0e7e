import shutil
from xml.etree import ElementTree as ET

import orjson
import pytest

from loadgen.evidence import pack
from loadgen.files import read_json, write_json
from loadgen.results import verify_folder
from tests.loadgen.made import analysis, plan
from tests.loadgen.test_cli import bench


def test_a_report_is_written_and_verified(swept):
    code, printed = bench("report", swept)
    assert code == 0
    assert printed.strip() == str(swept / "report.html")
    assert verify_folder(swept) == []


def test_a_partial_report_says_what_is_missing_and_leaves_the_results_alone(swept):
    for name in ("analysis.json", "decision.json"):
        (swept / name).unlink()
    shutil.rmtree(swept / "runs" / "r3-C2-80-20-near")
    (swept / "runs" / "r3-C2-50-50-near" / "samples.jsonl").unlink()
    code, _ = bench("report", swept, "--partial")
    assert code == 0
    page = (swept / "report.partial.html").read_text()
    assert "Partial: 2 of 18 runs are not there yet" in page
    assert not (swept / "analysis.json").exists()
    assert not (swept / "report.html").exists()


def test_before_any_run_has_ended_there_is_nothing_to_report(swept, capsys):
    shutil.rmtree(swept / "runs")
    assert bench("report", swept, "--partial")[0] == 2
    assert "no run has ended yet" in capsys.readouterr().err


def test_a_timeline_is_a_table_of_bars_and_a_page(sweep_once, tmp_path):
    out = tmp_path / "t.html"
    code, printed = bench("timeline", sweep_once, "r1-C2-80-20-near", "--html", out)
    assert code == 0
    assert "preemptions since the start" in printed
    assert "█" in printed
    assert "second by second" in out.read_text()


def test_a_timeline_of_the_demonstration_works_too(demo):
    code, printed = bench("timeline", demo[0], "r1-admission-shared", "--json")
    assert code == 0
    titles = {line["title"] for line in orjson.loads(printed)["lines"]}
    assert {"offered", "in flight", "oldest request waiting in the gateway"} <= titles


def test_a_run_that_is_not_there_is_named(sweep_once, capsys):
    assert bench("timeline", sweep_once, "r9")[0] == 2
    assert "there is no such run" in capsys.readouterr().err


@pytest.mark.parametrize(("name", "verb"), [("analysis", "analyse"), ("decision", "decide")])
@pytest.mark.parametrize("asked", ["report", "gate", "compare"])
def test_what_is_not_made_yet_is_named_with_the_verb_that_makes_it(
    swept, capsys, name, verb, asked
):
    (swept / f"{name}.json").unlink()
    assert bench(asked, *([swept] * (2 if asked == "compare" else 1)))[0] == 2
    said = f"{swept}/{name}.json: is not there yet; run: sluicegate bench {verb} {swept}"
    assert said in " ".join(capsys.readouterr().err.split("\n"))


@pytest.mark.parametrize("simulated", [True, False])
def test_a_report_without_runs_names_what_is_missing_first(swept, capsys, simulated):
    for name in ("analysis.json", "decision.json"):
        (swept / name).unlink()
    (swept / "sim").mkdir()
    (swept / "runs").rename(swept / "sim" / ("runs" if simulated else "away"))
    assert bench("report", swept)[0] == 2
    said = "".join(capsys.readouterr().err.split("\n"))
    assert f"{swept}/runs: is not there yet; run: sluicegate bench run {swept}" in said
    assert (f"a results folder of its own: {swept}/sim" in said) is simulated


@pytest.mark.parametrize("verb", ["report", "analyse", "decide", "verify"])
def test_a_folder_of_something_else_is_not_to_be_planned_into(tmp_path, capsys, verb):
    (tmp_path / "rehearsal.json").write_text("{}")
    assert bench(verb, tmp_path)[0] == 2
    said = "".join(capsys.readouterr().err.split("\n"))
    assert f"{tmp_path}: is no results folder: it has no plan.json" in said
    assert "bench plan" not in said


@pytest.mark.parametrize("verb", ["report", "analyse"])
def test_packed_evidence_is_to_be_taken_apart_first(swept, tmp_path, capsys, verb):
    pack(swept, tmp_path / "packed")
    assert bench(verb, tmp_path / "packed")[0] == 2
    said = "".join(capsys.readouterr().err.split("\n"))
    assert f"run: sluicegate bench unpack {tmp_path}/packed --out out/packed" in said


def test_an_expectation_that_is_not_analysed_is_named_with_its_verb(swept, tmp_path, capsys):
    other = shutil.copytree(swept, tmp_path / "sim")
    (other / "analysis.json").unlink()
    assert bench("report", swept, "--expected", other)[0] == 2
    assert f"run: sluicegate bench analyse {other}" in "".join(capsys.readouterr().err.split("\n"))


def test_a_decision_before_the_analysis_says_what_to_run(swept, capsys):
    (swept / "analysis.json").unlink()
    assert bench("decide", swept)[0] == 2
    assert f"run: sluicegate bench analyse {swept}" in capsys.readouterr().err


def test_a_comparison_with_itself_is_the_same(sweep_once, swept):
    code, printed = bench("compare", sweep_once, swept)
    assert code == 0
    assert "same contracts" in printed
    assert "0 of 54 comparisons differ" in printed


def test_results_of_which_nothing_can_be_tested_are_not_called_the_same(sweep_once, swept):
    found = read_json(swept / "analysis.json")
    found["strata"] = [{**row, "rounds": [1], "attainments": [1.0], "goodput_by_round": [1.0],
                        "per_run_p95": {n: v[:1] for n, v in row["per_run_p95"].items()}}
                       for row in found["strata"]]  # fmt: skip
    write_json(swept / "analysis.json", found)
    code, printed = bench("compare", swept, swept)
    assert "nothing could be tested" in printed
    assert code == 2


def test_results_that_differ_exit_with_one(sweep_once, swept):
    found = read_json(swept / "analysis.json")
    found["contract"]["short"]["ttft_s"] = 9.0
    write_json(swept / "analysis.json", found)
    code, printed = bench("compare", sweep_once, swept, "--json")
    assert code == 1
    assert orjson.loads(printed)["contracts"] == ["short.ttft_s: 2.0 in A, 9.0 in B"]


def test_the_gate_opens_and_writes_junit(sweep_once, tmp_path):
    code, printed = bench("gate", sweep_once, "--junit", tmp_path / "g.xml")
    assert code == 0
    assert "gate open: retune(C1)" in printed
    assert ET.parse(tmp_path / "g.xml").getroot().get("failures") == "0"  # noqa: S314 - our own


def test_the_gate_is_shut_for_a_verdict_that_is_not_accepted(sweep_once):
    code, printed = bench("gate", sweep_once, "--accept", "retain", "--json")
    assert code == 1
    assert orjson.loads(printed)["passed"] is False


def test_a_decision_on_another_analysis_passes_no_gate(swept, capsys):
    found = read_json(swept / "analysis.json")
    write_json(swept / "analysis.json", {**found, "rounds": 99})
    assert bench("gate", swept)[0] == 2
    assert "rests on another analysis.json" in capsys.readouterr().err


def test_an_unknown_verdict_is_refused(sweep_once, capsys):
    with pytest.raises(SystemExit):
        bench("gate", sweep_once, "--accept", "retian")
    assert "'retian' is no verdict" in capsys.readouterr().err


def test_a_bundle_is_written_and_checked_by_the_same_verb(sweep_once, tmp_path):
    path = tmp_path / "b.tar.gz"
    assert bench("bundle", sweep_once, "--out", path)[0] == 0
    code, printed = bench("bundle", "--check", path)
    assert (code, "follows from the analysis" in printed) == (0, True)
    code, printed = bench("bundle", "--check", path, "--json")
    assert orjson.loads(printed) == {"kind": "bundle-check", "whole": True, "wrong": []}


def test_a_bundle_needs_a_place(sweep_once, capsys):
    assert bench("bundle", sweep_once)[0] == 2
    assert "--out FILE.tar.gz is missing" in capsys.readouterr().err


def test_exports_say_where_they_are(swept):
    code, printed = bench("export", swept, "--format", "csv", "--json")
    assert code == 0
    assert orjson.loads(printed)["files"] == [
        str(swept / "exports" / "csv" / f"{name}.csv") for name in ("runs", "requests", "strata")
    ]


def test_arms_and_expectations_are_kept_beside_and_verified(swept, tmp_path):
    virtual = {**read_json(swept / "analysis.json"), "virtual": True}
    write_json(tmp_path / "sim" / "analysis.json", virtual)
    write_json(tmp_path / "arms" / "analysis.json", analysis(None, plan(("off", "both"), "arms")))
    code, _ = bench("report", swept, "--arms", tmp_path / "arms", "--expected", tmp_path / "sim")
    assert code == 0
    page = (swept / "report.html").read_text()
    assert "What the gateway&#x27;s policies buy" in page
    assert "Expected and measured" in page
    assert verify_folder(swept) == []


def test_runs_of_another_kind_are_not_kept_beside(swept, capsys):
    assert bench("report", swept, "--arms", swept)[0] == 2
    assert "its analysis is not of arms runs" in capsys.readouterr().err
    assert bench("report", swept, "--expected", swept)[0] == 2
    assert not list(swept.glob("*-analysis.json"))

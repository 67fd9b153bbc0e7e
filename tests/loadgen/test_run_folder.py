import shutil

import pytest

from loadgen.files import file_digest, read_json, write_json
from loadgen.record import BenchError, canonical, strict_json
from loadgen.results import (
    TOPOLOGY_FILE,
    analyse_folder,
    analyse_one,
    conclude,
    decide_folder,
    verify_folder,
)
from loadgen.sweep_inputs import planned_inputs
from tests.loadgen.made import (
    CALM,
    PLAIN,
    Behaviour,
    better,
    plan,
    write_folder,
    write_plan,
    write_run,
)

UNITS = ("B0", "C1")


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sweep")
    write_folder(folder, {"C1": better()}, plan(UNITS))
    conclude(folder)
    return folder


@pytest.fixture
def copy(whole, tmp_path):
    return shutil.copytree(whole, tmp_path / "copy")


def test_a_sweep_is_decided_from_its_files_and_verifies_as_identical_elsewhere(copy):
    assert read_json(copy / "decision.json")["verdict"] == "retune(C1)"
    assert verify_folder(copy) == []


@pytest.mark.parametrize(
    ("name", "old", "new", "where"),
    [
        ("trace-80-20-near-r1.manifest.json", b'"trace', b'"track', "manifest.json: its sha256"),
        ("trace-80-20-near-r1.jsonl", b'"seq":1', b'"seq":9', "trace-80-20-near-r1.jsonl"),
        ("runs/r1-C1-80-20-near/requests.jsonl", b'"ok"', b'"error"', "requests_sha256"),
        ("runs/r1-C1-80-20-near/config.json", b'"synthetic":true', b'"synthetic":1', "config"),
        ("analysis.json", b'"state":"pass"', b'"state":"fail"', "analysis."),
        ("analysis.json", b',"kind"', b', "kind"', "same values, other bytes"),
        ("decision.json", b"retune(C1)", b"retune(C2)", "decision.verdict"),
    ],
)
def test_any_altered_file_is_found_and_named(copy, name, old, new, where):
    data = (copy / name).read_bytes()
    assert old in data
    (copy / name).write_bytes(data.replace(old, new, 1))
    assert any(where in line for line in verify_folder(copy)), verify_folder(copy)


@pytest.mark.parametrize("where", ["runs/{run_id}/stack", "starts/02-r1-B0-1"])
def test_a_stack_configuration_that_is_not_the_recorded_one_is_named(copy, where):
    made = read_json(copy / "plan.json")
    run = made["runs"][0]
    path = copy / where.format(**run) / "gateway.toml"
    path.parent.mkdir(parents=True)
    path.write_text("a = 1\n")
    told = {"start": "02-r1-B0-1", "gateway_config_digest": file_digest(path)}
    write_run(copy, run, made, **told)
    analyse_folder(copy)
    path.write_text("a = 2\n")
    with pytest.raises(BenchError, match=r"gateway.toml: its sha256 is"):
        analyse_folder(copy)


def test_a_sweep_may_be_analysed_while_it_runs(copy):
    shutil.rmtree(copy / "runs" / "r3-C1-50-50-near")
    (copy / "runs" / "r3-B0-50-50-near" / "samples.jsonl").unlink()  # the run in flight
    analysis, decision = conclude(copy)
    assert analysis["missing"] == ["r3-B0-50-50-near", "r3-C1-50-50-near"]
    assert (decision["verdict"], decision["missing"]) == ("invalid", analysis["missing"])
    assert decision["reasons"] == ["incomplete: r3-B0-50-50-near is missing"]
    assert verify_folder(copy) == []


def test_invalid_attempts_are_listed_with_what_was_at_fault(copy):
    made = read_json(copy / "plan.json")
    run = made["runs"][0]
    slow = {**CALM, "loop_lag_ms": 40.0}
    write_run(copy, run, made, PLAIN, f"{run['run_id']}.invalid-1", samples=[slow])
    (copy / "runs" / f"{run['run_id']}.invalid-2").mkdir()
    found = analyse_folder(copy)["invalid"]
    assert [(r["attempt"], r["faults"]) for r in found] == [
        ("1", ["loop lag 40.0 ms, limit 25 ms"]),
        ("2", ["it ended before its records were written"]),
    ]
    assert decide_folder(copy)["verdict"] == "retune(C1)"


def test_a_cell_that_is_not_what_was_planned_is_excluded_by_its_configuration(copy):
    made = read_json(copy / "plan.json")
    for run in made["runs"]:
        if run["cell_id"] == "C1":
            shutil.rmtree(copy / "runs" / run["run_id"])
    run = next(r for r in made["runs"] if r["cell_id"] == "C1")
    why = "max_num_seqs is 8, planned 16"
    write_json(copy / "runs" / run["run_id"] / "config.json", {"incompatible": why})
    analysis, decision = conclude(copy)
    assert analysis["missing"] == []
    assert decision["verdict"] == "retain"
    assert f"C1 is excluded: {why}" in decision["reasons"]


def test_one_run_can_be_looked_at_alone(copy):
    shutil.rmtree(copy / "runs" / "r1-B0-80-20-near")
    row = analyse_one(copy, "r1-C1-80-20-near")
    assert row["classes"]["short"]["offered"] == 80
    with pytest.raises(BenchError, match="no run is named nope"):
        analyse_one(copy, "nope")
    with pytest.raises(BenchError, match=r"config.json: cannot be read"):
        analyse_one(copy, "r1-B0-80-20-near")


def test_a_decision_that_rests_on_topology_runs_verifies_from_one_folder(tmp_path):
    slow = Behaviour(missed={"short": 0.2})
    sweep, topology = tmp_path / "sweep", tmp_path / "topology"
    write_folder(sweep, {"B0": slow, "C1": slow}, plan(UNITS))
    write_folder(topology, {"shared": slow}, plan(("shared", "isolated"), kind="topology"))
    conclude(topology)
    assert conclude(sweep)[1]["verdict"] == "inconclusive"
    assert decide_folder(sweep, topology)["verdict"] == "isolate"
    shutil.rmtree(topology)
    assert verify_folder(sweep) == []
    data = (sweep / TOPOLOGY_FILE).read_bytes()
    (sweep / TOPOLOGY_FILE).write_bytes(data.replace(b'"pass"', b'"fail"', 1))
    assert any("decision" in line for line in verify_folder(sweep))


def test_topology_runs_under_another_contract_are_refused_and_not_kept(copy, tmp_path):
    made = plan(("shared", "isolated"), kind="topology")
    looser = {n: {**c, "e2e_s": 99.0} for n, c in made["contract"].items()}
    write_folder(tmp_path / "topology", {}, {**made, "contract": looser})
    conclude(tmp_path / "topology")
    with pytest.raises(BenchError, match=r"contract.\w+.e2e_s is 99.0"):
        decide_folder(copy, tmp_path / "topology")
    assert not (copy / TOPOLOGY_FILE).exists()


def test_a_run_of_another_plan_is_refused(tmp_path):
    made = write_plan(tmp_path, plan(UNITS))
    write_run(tmp_path, made["runs"][0], made)
    write_json(tmp_path / "plan.json", {**made, "rounds": 6})
    with pytest.raises(BenchError, match=r"config.json: plan.json: its sha256"):
        analyse_folder(tmp_path)


def _rewritten(folder, run_id, change):
    """Let a run's records be others, as one who forged them would: every digest fits again."""
    path = folder / "runs" / run_id / "requests.jsonl"
    head, *rows = [strict_json(line, "row") for line in path.read_bytes().splitlines()]
    path.write_bytes(b"".join(canonical(row) for row in [head, *change(rows)]))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda rows: [{**rows[0], "phase": "ramp"}, *rows[1:]], "phase is ramp, but observed"),
        (
            lambda rows: [{**rows[0], "planned_us": rows[0]["planned_us"] + 150_000}, *rows[1:]],
            "planned_us is 1150000, but 1000000 was planned",
        ),
        (lambda rows: [{**rows[0], "size_class": "long"}, *rows[1:]], "size_class is long"),
        (lambda rows: [{**rows[0], "prompt_sha256": "b"}, *rows[1:]], "prompt_sha256 is b"),
        (lambda rows: [*rows[:-1], rows[0]], "line 161: request 0 is there twice"),
        (lambda rows: [*rows[:-1], {**rows[-1], "seq": 900}], "request 900 is not in the trace"),
    ],
    ids=["phase", "planned", "class", "prompt", "twice", "unknown"],
)
def test_records_of_other_requests_than_the_trace_s_are_refused(copy, change, said):
    _rewritten(copy, "r1-C1-80-20-near", change)
    with pytest.raises(BenchError, match=said):
        conclude(copy)


def test_a_request_without_a_record_is_the_client_s_fault(copy):
    _rewritten(copy, "r1-C1-80-20-near", lambda rows: rows[:-1])
    row = next(r for r in conclude(copy)[0]["runs"] if r["run_id"] == "r1-C1-80-20-near")
    assert row["faults"] == ["offered 159 requests, planned 160"]


def test_runs_that_stand_under_each_other_s_names_are_refused(copy):
    one, other = (copy / "runs" / f"r1-{unit}-80-20-near" for unit in UNITS)
    one.rename(copy / "aside")
    other.rename(one)
    (copy / "aside").rename(other)
    with pytest.raises(BenchError, match=r"config.json: is of run r1-C1-80-20-near"):
        conclude(copy)


def test_an_input_that_the_sweep_did_not_begin_with_is_named(copy):
    write_json(copy / "inputs.json", planned_inputs(copy, read_json(copy / "plan.json")))
    assert verify_folder(copy) == []
    write_json(copy / "inputs.json", {**read_json(copy / "inputs.json"), "corpus.jsonl": "0"})
    assert [line.split(",")[0] for line in verify_folder(copy)] == [
        "inputs.json: corpus.jsonl is 0"
    ]

import shutil

import orjson
import pytest

from loadgen.decide import decide
from loadgen.engine.cost import StepCost
from loadgen.files import file_digest, read_json, write_json
from loadgen.freeze import freeze_sweep
from loadgen.record import BenchError, decode_requests
from loadgen.results import analyse_folder
from loadgen.simulate import PassThrough
from loadgen.sweep_file import read_sweep
from loadgen.virtual_compare import compare_lines
from loadgen.virtual_sweep import GateWish, WhatIf, simulate_plan
from tests.loadgen.sweeps import write

COST = StepCost(5.0e-3, 2.53e-5, 9.6e-6, 3.6e-8, source="test")


@pytest.fixture(scope="module")
def planned(tmp_path_factory):
    base = tmp_path_factory.mktemp("virtual")
    freeze_sweep(read_sweep(write(base)), base / "plan")
    return base / "plan"


@pytest.fixture(scope="module")
def simulated(planned):
    seen = []
    simulate_plan(planned, planned / "sim", COST, watch=lambda done, of: seen.append((done, of)))
    assert seen == [(n, 12) for n in range(1, 13)]
    return planned / "sim"


def test_the_results_can_be_analysed_and_decided_as_measured_ones_are(simulated):
    analysis = analyse_folder(simulated)
    assert analysis["missing"] == []
    assert analysis["invalid"] == []
    assert analysis["virtual"] is True
    decision = decide(analysis, "x")
    assert decision["synthetic"] is True
    assert decision["deployable"] is False


def test_every_run_is_stamped_virtual_and_has_all_thirteen_fields(simulated):
    for run in read_json(simulated / "plan.json")["runs"]:
        config = read_json(simulated / "runs" / run["run_id"] / "config.json")
        assert config["virtual"] is True
        assert config["synthetic"] is True
        assert config["hardware_id"] == "virtual time: no hardware"
        assert config["effective_args"]["max_num_seqs"] == (64 if run["cell_id"] == "B0" else 16)
        assert config["observation_seconds"] == 4.0


def test_the_same_plan_gives_the_same_bytes(planned, simulated, tmp_path):
    simulate_plan(planned, tmp_path / "again", COST)
    names = [p.relative_to(simulated) for p in simulated.rglob("*") if p.is_file()]
    assert len(names) > 3 * 12
    for name in names:
        assert (simulated / name).read_bytes() == (tmp_path / "again" / name).read_bytes(), name


def test_no_record_holds_text(simulated):
    corpus = (simulated / "corpus.jsonl").read_text()
    words = {w for w in corpus.split() if len(w) > 12 and w.isalpha()}
    assert words
    for path in (simulated / "runs").rglob("*.json*"):
        held = path.read_text()
        assert [w for w in words if w in held] == [], path


def test_a_run_that_needs_the_admission_core_gets_it_or_says_so(planned, tmp_path):
    folder = shutil.copytree(planned, tmp_path / "enforced")
    plan = read_json(folder / "plan.json")
    write_json(folder / "plan.json", {**plan, "gateway": {"admission": "enforce"}})
    with pytest.raises(BenchError, match="admission 'enforce' needs the gateway's core"):
        simulate_plan(folder, folder / "sim", COST)
    wishes = []

    def policy_for(wish):
        wishes.append(wish)
        return PassThrough(wish.engines)

    simulate_plan(folder, folder / "sim", COST, policy_for)
    assert len(wishes) == 12
    args = plan["cells"][0]["args"]
    assert GateWish("enforce", 1, (), args) in wishes


def test_the_plans_limits_reach_the_admission_core_and_others_take_their_place(planned, tmp_path):
    mine, other = tmp_path / "mine.toml", tmp_path / "other.toml"
    mine.write_text("[limits]\nslots = 20\n")
    other.write_text("[limits]\nslots = 21\n")
    folder = shutil.copytree(planned, tmp_path / "limited")
    plan = read_json(folder / "plan.json")
    launcher = {**plan["launcher"], "limits": str(mine)}
    run = {**plan["runs"][0], "admission": "enforce"}
    write_json(folder / "plan.json", {**plan, "launcher": launcher, "runs": [run]})
    for given, limits in ((WhatIf(), mine), (WhatIf(limits=other), other)):
        wishes = []

        def policy_for(wish, seen=wishes):
            seen.append(wish.limits)
            return PassThrough(wish.engines)

        simulate_plan(folder, folder / "sim", COST, policy_for, given=given)
        assert wishes == [limits]
        config = read_json(folder / "sim" / "runs" / run["run_id"] / "config.json")
        assert config["limits_sha256"] == file_digest(limits)


def test_isolated_pools_serve_their_own_class_and_priorities_reach_the_engines(planned, tmp_path):
    folder = shutil.copytree(planned, tmp_path / "isolated")
    plan = read_json(folder / "plan.json")
    pools = [{"classes": ["short"], "engines": 1}, {"classes": ["long"], "engines": 2}]
    more = {"pools": pools, "engines": 3, "engine_args": {"scheduling_policy": "priority"}}
    run = {**next(r for r in plan["runs"] if r["mix"] == "80-20"), **more}
    write_json(folder / "plan.json", {**plan, "runs": [run]})
    simulate_plan(folder, folder / "sim", COST)
    own = folder / "sim" / "runs" / run["run_id"]
    assert read_json(own / "config.json")["effective_args"]["scheduling_policy"] == "priority"
    rows = [orjson.loads(line) for line in (own / "samples.jsonl").read_bytes().splitlines()]
    assert {r["engine"] for r in rows if r.get("source") == "engine"} == {0, 1, 2}


def test_another_trace_than_the_planned_one_is_refused(planned, tmp_path):
    folder = shutil.copytree(planned, tmp_path / "altered")
    path = folder / "trace-80-20-near-r1.jsonl"
    path.write_bytes(path.read_bytes()[: path.read_bytes().rindex(b"{")])
    with pytest.raises(BenchError, match="is not the trace that the plan names"):
        simulate_plan(folder, folder / "sim", COST)


def test_simulated_and_measured_records_are_compared_run_by_run(simulated, planned, tmp_path):
    slower = StepCost(6.0e-3, 3.0e-5, 1e-5, 4e-8, source="test")
    simulate_plan(planned, tmp_path / "measured", slower)
    lines = list(compare_lines(simulated, tmp_path / "measured"))
    assert len([line for line in lines if line.startswith("r")]) == 6 + 12
    assert any("TTFT p50 over 18 runs and classes: -" in line for line in lines[-6:])
    strata = [line for line in lines if "median and extremes" in line]
    assert any(line.startswith("80-20 near short, ") for line in strata)
    same = list(compare_lines(simulated, simulated))
    assert same[-1].endswith("apart by 0.0% (median), 0.0% (p95), 0.0% (largest)")


def test_runs_of_another_time_scale_are_not_compared(simulated, planned, tmp_path):
    simulate_plan(planned, tmp_path / "fast", COST, given=WhatIf(3.0))
    with pytest.raises(BenchError, match="simulate with --time-scale 1"):
        list(compare_lines(tmp_path / "fast", simulated))


def test_a_folder_without_runs_of_the_plan_is_named(simulated, tmp_path):
    with pytest.raises(BenchError, match="empty: holds no run of the plan"):
        list(compare_lines(tmp_path / "empty", simulated))


def test_records_keep_the_planned_arrivals(simulated):
    run = read_json(simulated / "plan.json")["runs"][0]
    path = simulated / "runs" / run["run_id"] / "requests.jsonl"
    header, records = decode_requests(path.read_bytes(), "requests")
    assert header["trace_sha256"] == run["trace_sha256"]
    assert all(r.dispatched_us == r.planned_us for r in records)

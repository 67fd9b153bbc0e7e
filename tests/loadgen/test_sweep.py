import asyncio
import json

import pytest

from loadgen import staging
from loadgen.confirm import Confirmed
from loadgen.files import read_json, write_json
from loadgen.record import BenchError
from loadgen.sweep import conduct_sweep
from tests.loadgen.tiny import StandInLauncher, frozen, shortened


@pytest.fixture(scope="session")
def planned(tmp_path_factory):
    return frozen(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(autouse=True)
def a_quiet_machine(monkeypatch):
    """What other work on this machine does to the client is no part of these tests."""
    monkeypatch.setattr(staging, "faults_of", lambda *args: [])
    monkeypatch.setattr("loadgen.warmup.TOLERANCE", 9.0)


async def conduct(folder, plan, launcher, events=None, scale=None):
    tell = (lambda event: None) if events is None else events.append
    return await conduct_sweep(folder, plan["runs"], scale, tell, launcher)


def spoil(monkeypatch, *verdicts):
    """Let the client be at fault in the attempts whose verdict says so."""
    left = list(verdicts)
    monkeypatch.setattr(staging, "faults_of", lambda *args: left.pop(0) if left else [])
    return left


async def test_the_runs_of_a_start_share_it_and_their_records_name_it(planned, tmp_path):
    folder, plan = shortened(planned, tmp_path / "s", starts=2)
    launcher, events = StandInLauncher(), []
    outcome = await conduct(folder, plan, launcher, events)
    assert (outcome.finished, outcome.of, outcome.left_out) == (4, 4, ())
    assert len(launcher.starts) == 2
    assert launcher.open == 0
    for run in plan["runs"]:
        config = read_json(folder / "runs" / run["run_id"] / "config.json")
        assert config["start"] == f"{run['start']:02}-r1-{run['cell_id']}-1"
        assert config["effective_source"] == "engine"
        assert (folder / "starts" / config["start"] / "start.json").is_file()
    order = [e["run_id"] for e in events if e["event"] == "run"]
    assert order == [run["run_id"] for run in plan["runs"]]
    assert not list((folder / "runs").glob("*.part"))


async def test_a_configuration_always_has_the_thirteen_fields(planned, tmp_path):
    folder, plan = shortened(planned, tmp_path / "s")
    await conduct(folder, plan, StandInLauncher())
    config = read_json(folder / "runs" / plan["runs"][0]["run_id"] / "config.json")
    fields = (
        "run_id cell_id repeat trace_sha256 corpus_sha256 image_digest model_revision "
        "tokenizer_revision hardware_id effective_args warmup_seconds observation_seconds "
        "drain_deadline_seconds"
    )
    assert set(fields.split()) <= set(config)


async def test_a_client_fault_is_run_again_on_the_same_server_and_kept(
    planned, tmp_path, monkeypatch
):
    folder, plan = shortened(planned, tmp_path / "s", runs=read_json(planned / "plan.json")["runs"])
    plan["runs"] = plan["runs"][:1]
    spoil(monkeypatch, ["lag"], [])
    launcher = StandInLauncher()
    await conduct(folder, plan, launcher)
    run_id = plan["runs"][0]["run_id"]
    assert len(launcher.starts) == 1
    assert read_json(folder / "runs" / f"{run_id}.invalid-1" / "config.json")["attempt"] == 1
    assert read_json(folder / "runs" / run_id / "config.json")["attempt"] == 2


async def test_where_prefixes_are_reused_a_run_is_repeated_on_a_fresh_server(
    planned, tmp_path, monkeypatch
):
    folder, plan = shortened(planned, tmp_path / "s", kind="prefix_reuse")
    plan["runs"] = plan["runs"][:1]
    spoil(monkeypatch, ["lag"], ["lag"], ["lag"])
    launcher = StandInLauncher()
    await conduct(folder, plan, launcher)
    run_id = plan["runs"][0]["run_id"]
    assert len(launcher.starts) == 3, "or the attempt before would have filled the cache"
    names = {p.name for p in (folder / "runs").iterdir()}
    assert names == {run_id, f"{run_id}.invalid-1", f"{run_id}.invalid-2"}
    config = read_json(folder / "runs" / run_id / "config.json")
    assert (config["attempt"], config["start"][-1]) == (3, "3")
    assert "engine_restarted" not in config


async def test_after_two_reruns_the_third_attempt_stays_as_the_run(planned, tmp_path, monkeypatch):
    folder, plan = shortened(planned, tmp_path / "s")
    plan["runs"] = plan["runs"][:1]
    left = spoil(monkeypatch, ["lag"], ["lag"], ["lag"], ["never asked"])
    await conduct(folder, plan, StandInLauncher())
    run_id = plan["runs"][0]["run_id"]
    assert left == [["never asked"]]
    names = {p.name for p in (folder / "runs").iterdir()}
    assert names == {run_id, f"{run_id}.invalid-1", f"{run_id}.invalid-2"}


async def test_a_run_that_stayed_faulty_is_measured_again_when_asked_and_no_attempt_is_lost(
    planned, tmp_path, monkeypatch
):
    folder, plan = shortened(planned, tmp_path / "s")
    plan["runs"] = plan["runs"][:1]
    spoil(monkeypatch, *[["lag"]] * 3)
    await conduct(folder, plan, StandInLauncher())
    spoil(monkeypatch, ["lag"], ["lag"], [])  # as it stands, then two more attempts
    await conduct_sweep(
        folder, plan["runs"], None, lambda event: None, StandInLauncher(), rerun_faulty=True
    )
    run_id = plan["runs"][0]["run_id"]
    attempts = {
        path.name: read_json(path / "config.json")["attempt"]
        for path in (folder / "runs").iterdir()
    }
    assert attempts == {run_id: 5} | {f"{run_id}.invalid-{n}": n for n in (1, 2, 3, 4)}


async def test_a_good_run_is_left_alone_by_a_rerun_of_faulty_ones(planned, tmp_path):
    folder, plan = shortened(planned, tmp_path / "s")
    launcher = StandInLauncher()
    await conduct(folder, plan, launcher)
    starts = len(launcher.starts)
    await conduct_sweep(folder, plan["runs"], None, lambda event: None, launcher, rerun_faulty=True)
    assert len(launcher.starts) == starts


async def test_an_engine_that_died_is_started_anew_and_its_runs_stand(planned, tmp_path):
    folder, plan = shortened(planned, tmp_path / "s")
    launcher, events = StandInLauncher(), []

    def tell(event):
        events.append(event)
        if event["event"] == "run-end" and len(launcher.starts) == 1:
            launcher.engine.dead = True

    outcome = await conduct_sweep(folder, plan["runs"], None, tell, launcher)
    assert outcome.finished == len(plan["runs"]) == 2
    assert len(launcher.starts) == 2
    first, second = (
        read_json(folder / "runs" / run["run_id"] / "config.json") for run in plan["runs"]
    )
    assert "engine_restarted" not in first
    assert second["engine_restarted"] is True
    assert (first["start"][-1], second["start"][-1]) == ("1", "2")


async def test_a_cell_that_is_not_what_the_plan_says_is_left_out_by_name(planned, tmp_path):
    folder, plan = shortened(planned, tmp_path / "s")
    wrong = Confirmed("engine", {}, differences=("max_num_seqs is 1 at the engine, 8 in the plan",))
    outcome = await conduct(folder, plan, StandInLauncher(confirmed=wrong))
    assert outcome.left_out[0].endswith("max_num_seqs is 1 at the engine, 8 in the plan")
    for run in plan["runs"]:
        config = read_json(folder / "runs" / run["run_id"] / "config.json")
        assert "max_num_seqs" in config["incompatible"]
    again = StandInLauncher()
    await conduct(folder, plan, again)
    assert again.starts == [], "what is left out is not tried again"


async def test_a_candidate_that_does_not_start_is_left_out_after_three_tries(planned, tmp_path):
    folder, plan = shortened(planned, tmp_path / "s", starts=2)
    plan["runs"].sort(key=lambda run: run["cell_id"])
    fails = {n: BenchError("out of memory") for n in (2, 3, 4)}
    launcher = StandInLauncher(fails=fails)
    outcome = await conduct(folder, plan, launcher)
    assert len(launcher.starts) == 4
    assert outcome.left_out == ("C1: did not start: out of memory",)
    assert outcome.finished == 4


async def test_a_sweep_of_which_nothing_starts_is_ended(planned, tmp_path):
    folder, plan = shortened(planned, tmp_path / "s", starts=2)
    launcher = StandInLauncher(fails={n: BenchError("no such program") for n in range(1, 9)})
    with pytest.raises(BenchError, match="no such program"):
        await conduct(folder, plan, launcher)
    assert len(launcher.starts) == 3
    assert not (folder / "runs").exists()


async def test_servers_that_stay_cold_leave_their_runs_unmeasured_until_the_next_time(
    planned, tmp_path, monkeypatch
):
    folder, plan = shortened(planned, tmp_path / "s")
    monkeypatch.setattr("loadgen.warmup.agreed", lambda *args: False)
    launcher = StandInLauncher()
    outcome = await conduct(folder, plan, launcher)
    assert (outcome.finished, len(outcome.left_out), len(launcher.starts)) == (0, 2, 3)
    told = read_json(folder / "starts" / "01-r1-C1-1" / "start.json")
    assert "no two agreements" in told["fault"]
    assert len(told["rounds"]) == 6
    monkeypatch.setattr("loadgen.warmup.agreed", lambda *args: True)
    assert (await conduct(folder, plan, StandInLauncher())).finished == 2


async def test_a_sweep_goes_on_where_it_was_cut_off(planned, tmp_path):
    folder, plan = shortened(planned, tmp_path / "s")
    launcher, running = StandInLauncher(), asyncio.Event()
    seen = []

    def tell(event):
        seen.append(event)
        if event["event"] == "row" and sum(e["event"] == "run" for e in seen) == 2:
            running.set()

    task = asyncio.ensure_future(conduct_sweep(folder, plan["runs"], None, tell, launcher))
    await running.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    first, second = (run["run_id"] for run in plan["runs"])
    assert staging.finished(folder, first)
    assert not staging.finished(folder, second)
    before = (folder / "runs" / first / "requests.jsonl").read_bytes()
    events = []
    await conduct(folder, plan, StandInLauncher(), events)
    assert [e["run_id"] for e in events if e["event"] == "run"] == [second]
    assert (folder / "runs" / first / "requests.jsonl").read_bytes() == before
    assert not list((folder / "runs").glob("*.part"))


def change_plan(folder):
    plan = read_json(folder / "plan.json")
    write_json(folder / "plan.json", {**plan, "seed": 99})


def change_trace(folder):
    path = next(folder.glob("trace-mixed-low-r1.jsonl"))
    path.write_bytes(path.read_bytes().replace(b'"seq":0}', b'"seq":0 }'))


def change_corpus(folder):
    path = folder / "corpus.jsonl"
    path.write_bytes(path.read_bytes() + b"\n")


def change_engine(folder):
    began = read_json(folder / "inputs.json")
    write_json(folder / "inputs.json", {**began, "engine image": "another"})


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (change_plan, "plan.json"),
        (change_trace, "trace-mixed-low-r1.jsonl"),
        (change_corpus, "corpus.jsonl"),
        (change_engine, "engine image"),
    ],
)
async def test_a_changed_input_is_refused_by_name(planned, tmp_path, change, named):
    folder, plan = shortened(planned, tmp_path / "s")
    only = {**plan, "runs": plan["runs"][:1]}
    monkey = StandInLauncher()
    await conduct(folder, only, monkey)
    change(folder)
    with pytest.raises(BenchError, match=f"{named}:? changed since"):
        await conduct(folder, plan, StandInLauncher())


async def test_another_time_scale_than_the_sweep_began_with_is_refused(planned, tmp_path):
    folder, plan = shortened(planned, tmp_path / "s")
    only = {**plan, "runs": plan["runs"][:1]}
    await conduct(folder, only, StandInLauncher(), scale=2.0)
    with pytest.raises(BenchError, match="time_scale changed since the sweep began"):
        await conduct(folder, plan, StandInLauncher(), scale=1.0)
    config = read_json(folder / "runs" / plan["runs"][0]["run_id"] / "config.json")
    assert config["time_scale"] == 2.0


async def test_two_benches_do_not_share_a_folder(planned, tmp_path):
    folder, plan = shortened(planned, tmp_path / "s")
    running = asyncio.Event()
    tell = lambda event: running.set()  # noqa: E731
    task = asyncio.ensure_future(conduct_sweep(folder, plan["runs"], None, tell, StandInLauncher()))
    await running.wait()
    with pytest.raises(BenchError, match="another bench is running"):
        await conduct(folder, plan, StandInLauncher())
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_no_key_and_no_text_reaches_the_records(planned, tmp_path):
    folder, plan = shortened(planned, tmp_path / "s")
    only = {**plan, "runs": plan["runs"][:1]}
    await conduct(folder, only, StandInLauncher())
    lines = (folder / "corpus.jsonl").read_text().splitlines()
    texts = [json.loads(line)["text"] for line in lines if "text" in line]
    written = b"".join(p.read_bytes() for p in (folder / "runs").rglob("*") if p.is_file())
    assert texts
    assert not any(text[12:60].encode() in written for text in texts)

import contextlib
import shutil

import pytest

from loadgen import analyse, staging
from loadgen.engine.textmodel import TextModel
from loadgen.files import file_digest, read_json
from loadgen.record import BenchError, decode_requests
from loadgen.results import conclude, verify_folder
from loadgen.runs import EXTERNAL_IDENTITY, conduct, done_already, engine_identity, run_config
from loadgen.stack import Endpoint
from tests.loadgen.standin import StandIn
from tests.loadgen.truth import truth_server


@contextlib.contextmanager
def quiet(number, run, before, limit_s):
    yield lambda row: None


def plan_of(folder):
    return read_json(folder / "plan.json")


def test_the_simulated_engine_is_identified_by_its_sources_costs_and_tokenizer():
    model = TextModel()
    identity = engine_identity(model)
    assert identity["tokenizer_revision"] == file_digest(model.tokenizer_path)
    assert len({*identity.values()}) == 3


def test_a_run_of_the_plan_records_its_arm_and_an_external_server_claims_none(demo):
    plan = plan_of(demo[0])
    run = plan["runs"][2]
    own = Endpoint("u", None, (), "m", {"short": "secret"}, {"model": "m"})
    config = run_config(run, plan, "p", own, EXTERNAL_IDENTITY).as_json()
    assert config["effective_args"]["topology"] == "isolated"
    assert "secret" not in str(config)
    outside = Endpoint("u", None, (), "m", {}, {"external": "u"})
    config = run_config(run, plan, "p", outside, EXTERNAL_IDENTITY).as_json()
    assert set(config["effective_args"]) == {"stack"}
    assert config["image_digest"].startswith("unverified")


def test_the_gateways_configuration_is_recorded_by_its_digest_not_its_path(demo, tmp_path):
    plan, path = plan_of(demo[0]), tmp_path / "gateway.toml"
    path.write_text("[gateway]")
    own = Endpoint("u", None, (), "m", {}, {"model": "m"}, path)
    config = run_config(plan["runs"][0], plan, "p", own, EXTERNAL_IDENTITY).as_json()
    assert config["gateway_config_digest"] == file_digest(path)
    assert str(tmp_path) not in str(config)


def test_a_run_is_done_once_its_samples_are_written(demo, tmp_path):
    folder = shutil.copytree(demo[0], tmp_path / "copy")
    run = plan_of(folder)["runs"][0]
    assert done_already(folder, run)
    (folder / "runs" / run["run_id"] / "samples.jsonl").unlink()
    assert not done_already(folder, run)


LATE = ["loop lag 34.4 ms, limit 25 ms"]


@contextlib.asynccontextmanager
async def server_of_its_own():
    async with truth_server(ttft_s=0.01, gap_s=0.0005, prompt_tokens=512) as truth:
        truth.script = StandIn("off").plan
        yield Endpoint(truth.url, None, (), "m", {}, {"external": truth.url})


async def measured(folder):
    """Carry the control out; returns what was shown of the attempts before, attempt by attempt."""
    shown = []

    @contextlib.contextmanager
    def show(number, run, before, limit_s):
        shown.append([list(faults) for faults in before])
        yield lambda row: None

    async with server_of_its_own() as outside:
        await conduct(folder, plan_of(folder)["runs"][3:], EXTERNAL_IDENTITY, show, outside)
    return shown


def left(folder):
    return sorted(p.name for p in (folder / "runs").glob("r1-control-shorts-only*"))


async def test_a_run_that_the_client_spoilt_is_run_again_and_its_attempt_is_kept(
    demo, tmp_path, monkeypatch
):
    folder = shutil.copytree(demo[0], tmp_path / "copy")
    said = iter([LATE, [], []])
    monkeypatch.setattr(staging, "faults_of", lambda *told: next(said))
    assert await measured(folder) == [[], [LATE]]
    assert left(folder) == ["r1-control-shorts-only", "r1-control-shorts-only.invalid-1"]
    assert staging.finished(folder, "r1-control-shorts-only")
    # Measured anew, it has no earlier attempts.
    assert await measured(folder) == [[]]
    assert left(folder) == ["r1-control-shorts-only"]


async def test_a_client_that_is_never_in_time_ends_in_plain_words(demo, tmp_path, monkeypatch):
    folder = shutil.copytree(demo[0], tmp_path / "copy")
    monkeypatch.setattr(analyse, "LOOP_LAG_MS", -1.0)
    assert len(await measured(folder)) == 3
    own = "r1-control-shorts-only"
    assert left(folder) == [own, f"{own}.invalid-1", f"{own}.invalid-2"]
    found, decision = conclude(folder)
    assert decision["verdict"] == "invalid"
    assert decision["reasons"][0].startswith("this machine was too busy for the measuring client")
    assert decision["reasons"][0].endswith("close other work on it and run it again")
    own_attempts = [row["attempt"] for row in found["attempts"] if row["run_id"] == own]
    assert own_attempts == ["1", "2"]
    (folder / "report.html").unlink()
    assert verify_folder(folder) == []


async def test_a_plan_can_be_replayed_at_a_server_that_runs_already(demo, tmp_path, monkeypatch):
    monkeypatch.setattr(staging, "faults_of", lambda *told: [])
    folder = shutil.copytree(demo[0], tmp_path / "copy")
    run = plan_of(folder)["runs"][3]
    async with truth_server(ttft_s=0.01, gap_s=0.0005, prompt_tokens=512) as truth:
        truth.script = StandIn("off").plan
        outside = Endpoint(truth.url, None, (), "m", {}, {"external": truth.url})
        await conduct(folder, [run], EXTERNAL_IDENTITY, quiet, outside)
        answered = len(truth.seen)
    path = folder / "runs" / run["run_id"] / "requests.jsonl"
    header, records = decode_requests(path.read_bytes(), "requests")
    assert header["config_sha256"] == file_digest(path.parent / "config.json")
    assert len(records) == answered == 32


@pytest.mark.parametrize("missing", ["corpus.jsonl", "trace-mixed.jsonl"])
async def test_a_replay_that_cannot_start_is_an_error(demo, tmp_path, missing):
    folder = shutil.copytree(demo[0], tmp_path / "copy")
    (folder / missing).unlink()
    outside = Endpoint("http://127.0.0.1:1", None, (), "m", {}, {"external": ""})
    with pytest.raises(BenchError, match=f"{missing}: cannot be read"):
        await conduct(folder, plan_of(folder)["runs"][:1], EXTERNAL_IDENTITY, quiet, outside)

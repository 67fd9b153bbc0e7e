import contextlib
import shutil

import pytest

from loadgen.engine.textmodel import TextModel
from loadgen.files import file_digest, read_json
from loadgen.record import BenchError, decode_requests
from loadgen.runs import EXTERNAL_IDENTITY, conduct, done_already, engine_identity, run_config
from loadgen.stack import Endpoint
from tests.loadgen.standin import StandIn
from tests.loadgen.truth import truth_server


@contextlib.contextmanager
def quiet(number, run, limit_s):
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


async def test_a_plan_can_be_replayed_at_a_server_that_runs_already(demo, tmp_path):
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

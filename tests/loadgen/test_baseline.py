import json

import pytest

from loadgen.baseline import capture_baseline
from loadgen.files import file_digest, read_json
from loadgen.record import BenchError
from loadgen.sweep_file import read_sweep
from tests.loadgen.test_asking import serving
from tests.loadgen.test_confirm import CONFIG, LOG
from tests.loadgen.tiny import TINY

MODELS = '{"data": [{"id": "m"}]}'


async def test_a_running_engines_arguments_become_the_baseline_that_a_sweep_file_reads(tmp_path):
    info = json.dumps({"vllm_config": CONFIG})
    pages = {"/server_info?config_format=json": info, "/v1/models": MODELS}
    out = tmp_path / "b0.json"
    async with serving(pages) as (url, _):
        await capture_baseline(url, out, None, "J. Doe")
    found = read_json(out)
    assert found["args"]["max_num_seqs"] == 16
    assert found["args"]["max_num_queued_reqs"] is None
    assert (found["complete"], found["approved_by"]) == (True, "J. Doe")
    assert found["engine"]["model"] == "m"
    stand_in = TINY.index("[baseline.stand_in]")
    rest = TINY[TINY.index("[[cells]]") :]
    text = f'{TINY[:stand_in]}[baseline]\ncaptured = "b0.json"\n{rest}'
    (tmp_path / "sweep.toml").write_text(text)
    sweep = read_sweep(tmp_path / "sweep.toml")
    assert sweep.baseline_args == found["args"]
    assert sweep.baseline["sha256"] == file_digest(out)
    assert sweep.baseline["approved_by"] == "J. Doe"


async def test_an_engine_that_does_not_tell_is_read_from_its_start_log(tmp_path):
    log = tmp_path / "engine.log"
    log.write_text(LOG)
    async with serving({"/v1/models": MODELS}) as (url, _):
        found = await capture_baseline(url, tmp_path / "b0.json", log, None)
    assert found["args"]["max_num_batched_tokens"] == 512
    assert found["complete"] is False
    assert found["launch_record_sha256"] == file_digest(log)
    assert not {"host", "port", "kv_tokens", "served_model_name"} & set(found["args"])


async def test_a_baseline_is_never_made_up(tmp_path):
    async with serving({"/v1/models": MODELS}) as (url, _):
        with pytest.raises(BenchError, match="does not tell its configuration"):
            await capture_baseline(url, tmp_path / "b0.json", None, None)
    (tmp_path / "empty.log").write_text("started\n")
    async with serving({"/v1/models": MODELS}) as (url, _):
        with pytest.raises(BenchError, match="shows no arguments"):
            await capture_baseline(url, tmp_path / "b0.json", tmp_path / "empty.log", None)
    assert not (tmp_path / "b0.json").exists()

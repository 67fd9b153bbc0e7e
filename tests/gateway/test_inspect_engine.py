"""A record against live engines: each field that can be seen there drifts once, and is named."""

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from gateway.drift import Facts, State, Verification, compare
from gateway.endpoint import Endpoint
from gateway.inspect_engine import (
    facts_of_metrics,
    facts_of_server_info,
    inspect_engine,
    probe_of_tokenizer,
)
from gateway.launch_record import launch_record
from gateway.manifest import Record, canonical, overlay
from gateway.manifest_fields import RecordError
from loadgen.engine.launch import EngineProcess
from tests.gateway.fake_engine import FakeEngine, listening
from tests.gateway.records import OTHER, start
from tests.gateway.test_launch_record import LOG

# As a production engine shows it, and what only one in development mode adds.
SHOWN = {
    "image.version", "model.id", "model.root", "model.tokenizer_probe", "health_probe.path",
    "capacity.kv_tokens", "args.max_model_len", "args.block_size", "args.kv_cache_dtype",
    "args.enable_prefix_caching", "args.num_gpu_blocks_override", "args.speculative_config",
}  # fmt: skip
DEVELOPMENT = {
    "args.max_num_batched_tokens", "args.max_num_seqs", "args.scheduling_policy",
    "args.long_prefill_token_threshold", "args.enable_chunked_prefill", "args.seed",
    "args.max_num_queued_reqs", "args.max_num_queued_tokens",
}  # fmt: skip
# A page of vLLM 0.32.0, its labels shortened.
PAGE = """\
# TYPE vllm:cache_config_info gauge
vllm:cache_config_info{block_size="128",cache_dtype="auto",enable_prefix_caching="False",\
engine="0",gpu_memory_utilization="0.92",kv_cache_dtype_skip_layers="[]",\
kv_cache_memory_bytes="67108864",kv_cache_size_tokens="65536",num_gpu_blocks="512",\
num_gpu_blocks_override="None",user_specified_block_size="False"} 1.0
process_start_time_seconds 1.7000000005e+09
"""


@asynccontextmanager
async def answering(**answers: str) -> AsyncIterator[str]:
    fake = FakeEngine(answers={f"/{name}": text for name, text in answers.items()}, metrics=PAGE)
    async with listening(fake) as port:
        yield f"http://127.0.0.1:{port}"


@pytest.fixture(scope="module")
def telling(folder: Path) -> Iterator[EngineProcess]:
    with start(folder, "--dev-mode") as running:
        yield running


async def against(
    record: Record, engine: EngineProcess, launch: bytes | None = None
) -> Verification:
    seen = await inspect_engine(record, Endpoint(engine.url))
    proof = () if launch is None else (launch_record(launch),)
    return compare(record, engine.url, Facts(seen.engine, proof, None, seen.started_s))


def of(found: Verification, state: State) -> set[str]:
    return {finding.field for finding in found.named(state)}


async def test_an_engine_in_production_tells_this_much(
    record: Record, engine: EngineProcess
) -> None:
    found = await against(record, engine)
    assert of(found, State.DRIFTED) == set()
    assert of(found, State.MATCHED) == SHOWN
    assert found.verdict == "unverifiable"
    assert of(found, State.UNVERIFIABLE) >= DEVELOPMENT


async def test_an_engine_in_development_mode_tells_its_scheduler_too(
    record: Record, telling: EngineProcess
) -> None:
    found = await against(record, telling)
    assert of(found, State.DRIFTED) == set()
    assert of(found, State.MATCHED) == SHOWN | DEVELOPMENT


@pytest.mark.parametrize("field", sorted(SHOWN | DEVELOPMENT))
async def test_each_field_that_can_be_seen_drifts_alone(
    field: str, record: Record, telling: EngineProcess
) -> None:
    found = await against(overlay(record, {field: OTHER[field]}), telling)
    assert of(found, State.DRIFTED) == {field}
    assert field in found.words


async def test_a_restart_with_other_settings_is_found_out(record: Record, folder: Path) -> None:
    changed = {
        "--max-model-len": ("8192", "args.max_model_len"),
        "--block-size": ("32", "args.block_size"),
        "--max-num-batched-tokens": ("2048", "args.max_num_batched_tokens"),
        "--scheduling-policy": ("priority", "args.scheduling_policy"),
        "--max-num-queued-reqs": ("300", "args.max_num_queued_reqs"),
        "--served-model-name": ("demo-2", "model.id"),
    }
    flags = [word for flag, (value, _) in changed.items() for word in (flag, value)]
    with start(folder, "--dev-mode", *flags) as restarted:
        found = await against(record, restarted)
    named = {field for _, field in changed.values()}
    assert of(found, State.DRIFTED) == {*named, "model.root"}


async def test_a_restart_with_less_cache_is_found_out_without_development_mode(
    record: Record, folder: Path
) -> None:
    with start(folder, "--num-gpu-blocks-override", "20000") as restarted:
        found = await against(record, restarted)
    assert of(found, State.DRIFTED) == {"capacity.kv_tokens", "args.num_gpu_blocks_override"}


async def test_a_launch_record_completes_what_a_production_engine_tells(
    record: Record, engine: EngineProcess
) -> None:
    args = {n.removeprefix("args."): v for n, v in record.fields.items() if n.startswith("args.")}
    content = canonical({"effective_args": args})
    found = await against(record, engine, content)
    assert of(found, State.UNVERIFIABLE) == {
        "image.digest", "model.revision", "model.tokenizer_revision", "deployment.revision"
    }  # fmt: skip
    other = await against(
        record, engine, content.replace(b'"max_num_seqs":128', b'"max_num_seqs":64')
    )
    assert of(other, State.DRIFTED) == {"args.max_num_seqs"}


async def test_a_log_is_held_against_the_engine_that_it_is_said_to_be_of(
    record: Record, engine: EngineProcess
) -> None:
    found = await against(record, engine, LOG.encode())
    assert "launch_record (args.max_model_len)" in of(found, State.DRIFTED)
    assert "launch record" not in {finding.by for finding in found.findings}


async def test_an_engine_with_a_key_of_its_own_tells_its_model_to_who_has_it(
    record: Record, folder: Path
) -> None:
    with start(folder, "--api-key", "secret") as guarded:
        without = await inspect_engine(record, Endpoint(guarded.url))
        seen = await inspect_engine(record, Endpoint(guarded.url), api_key="secret")
    assert "model.id" not in without.engine
    assert (without.engine["image.version"], seen.engine["model.id"]) == (
        "0.32.0+simulated", "demo"
    )  # fmt: skip


async def test_an_engine_that_is_not_there_is_said_to_be_so(record: Record) -> None:
    with pytest.raises(ConnectionError, match=r"http://127\.0\.0\.1:9/health: "):
        await inspect_engine(record, Endpoint("http://127.0.0.1:9"))


async def test_answers_that_make_no_sense_tell_nothing(record: Record) -> None:
    answers = {"version": "[]", "v1/models": '{"data": [3]}', "tokenize": "{}", "server_info": "x"}
    async with answering(**answers) as url:
        seen = await inspect_engine(record, Endpoint(url))
    assert "image.version" not in seen.engine
    assert not {"model.id", "model.tokenizer_probe"} & seen.engine.keys()
    assert seen.engine["health_probe.path"] == "/health"
    assert seen.started_s == 1.7000000005e9


def test_the_labels_of_a_real_page_are_read() -> None:
    told, started_s = facts_of_metrics(PAGE)
    assert started_s == 1.7000000005e9
    assert told == {
        "args.block_size": 128,
        "args.kv_cache_dtype": "auto",
        "args.enable_prefix_caching": False,
        "args.gpu_memory_utilization": 0.92,
        "args.kv_cache_memory_bytes": 67108864,
        "args.num_gpu_blocks_override": None,
        "num_gpu_blocks": 512,
        "kv_tokens": 65536,
        "speculation": False,
    }


def test_engine_cores_that_differ_are_told_apart_and_the_least_cache_counts() -> None:
    second = PAGE.replace('engine="0"', 'engine="1"').replace("65536", "60000")
    told, _ = facts_of_metrics(PAGE + second.replace('block_size="128"', 'block_size="64"'))
    assert told["args.block_size"] == [128, 64]
    assert told["kv_tokens"] == 60000
    assert told["num_gpu_blocks"] == 512
    speculates, _ = facts_of_metrics(PAGE + "vllm:spec_decode_num_drafts_total 3.0\n")
    assert speculates["speculation"] is True
    assert facts_of_metrics("") == ({}, None)
    assert facts_of_metrics('vllm:cache_config_info{block_size="1\n')[0] == {"speculation": False}


def test_null_counts_only_where_it_is_a_value() -> None:
    config: dict[str, Any] = {
        "model_config": {"dtype": "torch.bfloat16", "quantization": None, "revision": None},
        "scheduler_config": {
            "policy": "fcfs",
            "max_num_queued_reqs": None,
            "max_num_active_seqs": None,
            "max_num_seqs": None,
        },
        "speculative_config": {"method": "ngram"},
    }
    assert facts_of_server_info({"vllm_config": config}) == {
        "args.dtype": "torch.bfloat16",
        "args.quantization": None,
        "args.scheduling_policy": "fcfs",
        "args.max_num_queued_reqs": None,
        "args.max_num_active_seqs": None,
        "args.speculative_config": {"method": "ngram"},
    }
    assert facts_of_server_info({"vllm_config": "text"}) == {}


def test_a_file_that_is_no_tokenizer_has_no_probe(tmp_path: Path) -> None:
    (tmp_path / "none.json").write_text("{}")
    with pytest.raises(RecordError, match=r"none\.json: not a tokenizer"):
        probe_of_tokenizer(tmp_path / "none.json")

"""Launch records: what a log, a Kubernetes object and a configuration prove, and what not."""

import json
from hashlib import sha256
from typing import Any

import pytest

from gateway.launch_record import launch_record
from gateway.manifest_fields import RecordError

# Lines of vLLM 0.32.0 as it printed them, the longest one shortened.
LOG = """\
(APIServer pid=14482) INFO 11-29 22:27:48 [api_utils.py:347]  █     █     █▄   ▄█  version 0.32.0
(APIServer pid=14482) INFO 11-29 22:27:48 [api_utils.py:286] non-default args: {'host': \
'127.0.0.1', 'port': 18178, 'model': '/models/demo', 'dtype': 'bfloat16', 'max_model_len': 4096, \
'served_model_name': ['m'], 'kv_cache_memory_bytes': 67108864, 'enable_prefix_caching': False, \
'max_num_batched_tokens': 512, 'max_num_seqs': 8}
(APIServer pid=14482) INFO 11-29 22:27:48 [scheduler.py:307] Chunked prefill is enabled with \
max_num_batched_tokens=512.
(EngineCore pid=14604) INFO 11-29 22:28:07 [core.py:133] Initializing a V1 LLM engine (v0.32.0) \
with config: model='/models/demo', speculative_config=None, tokenizer='/models/demo', \
skip_tokenizer_init=False, tokenizer_mode=auto, revision=None, tokenizer_revision=None, \
trust_remote_code=False, dtype=torch.bfloat16, max_seq_len=4096, download_dir=None, \
tensor_parallel_size=1, pipeline_parallel_size=1, data_parallel_size=1, quantization=None, \
quantization_config=None, enforce_eager=True, aux_output_config=AuxOutputConfig(max_bytes=None), \
kv_cache_dtype=auto, device_config=cpu, seed=0, served_model_name=m, enable_prefix_caching=False, \
enable_chunked_prefill=True, pooler_config=None
(EngineCore pid=14604) INFO 11-29 22:28:11 [kv_cache_utils.py:2327] CPU KV cache size: 65,536 \
tokens, Maximum concurrency for 4,096 tokens per request: 16.00x
"""
SHOWN = {
    "image.version": "0.32.0",
    "model.id": "m",
    "model.root": "/models/demo",
    "kv_tokens": 65536,
    "args.max_num_batched_tokens": 512,
    "args.max_num_seqs": 8,
    "args.max_model_len": 4096,
    "args.dtype": "bfloat16",
    "args.quantization": None,
    "args.enforce_eager": True,
    "args.seed": 0,
    "args.tensor_parallel_size": 1,
    "args.pipeline_parallel_size": 1,
    "args.data_parallel_size": 1,
    "args.kv_cache_dtype": "auto",
    "args.kv_cache_memory_bytes": 67108864,
    "args.enable_prefix_caching": False,
    "args.enable_chunked_prefill": True,
    "args.speculative_config": None,
    # not said in the log: constants of the release that are not among what was given
    "args.scheduling_policy": "fcfs",
    "args.long_prefill_token_threshold": 0,
    "args.max_num_queued_reqs": None,
    "args.max_num_queued_tokens": None,
    "args.num_gpu_blocks_override": None,
}
POD: dict[str, Any] = {
    "kind": "Pod",
    "metadata": {"labels": {"pod-template-hash": "5d9c7b"}},
    "spec": {
        "containers": [
            {"name": "sidecar", "image": "proxy:1", "args": ["--max-num-seqs", "1"]},
            {
                "name": "engine",
                "image": "vllm/vllm-openai:v0.32.0",
                "command": ["vllm", "serve"],
                "args": [
                    "/models/demo", "--served-model-name", "m", "--max-num-seqs=32",
                    "--no-enable-prefix-caching", "--enforce-eager", "--dtype", "auto",
                    "--speculative-config", '{"method": "ngram"}', "--gpu-memory-utilization",
                    "0.85", "--revision", "a" * 40,
                ],
            },
        ]
    },
    "status": {
        "containerStatuses": [
            {"name": "engine", "imageID": "docker.io/vllm/vllm-openai@sha256:" + "1" * 64}
        ]
    },
}  # fmt: skip


def told_by(found: object) -> dict[str, Any]:
    content = found if isinstance(found, str) else json.dumps(found)
    return dict(launch_record(content.encode()).told)


def test_a_log_proves_what_was_given_what_came_of_it_and_the_releases_constants() -> None:
    found = launch_record(LOG.encode())
    assert found.sha256 == sha256(LOG.encode()).hexdigest()
    assert {name: found.told.get(name, "untold") for name in SHOWN} == SHOWN
    # A folder has no revision: the log says None, and that proves none.
    assert not {"model.revision", "model.tokenizer_revision"} & found.told.keys()


def test_another_release_has_constants_of_its_own() -> None:
    told = told_by(LOG.replace("0.32.0", "0.99.0"))
    assert "args.long_prefill_token_threshold" not in told
    assert told["image.version"] == "0.99.0"


def test_what_was_given_is_not_overwritten_by_a_constant() -> None:
    told = told_by(LOG.replace("'port'", "'scheduling_policy': 'priority', 'port'"))
    assert told["args.scheduling_policy"] == "priority"
    given = "'speculative_config': {'method': 'ngram', 'num_speculative_tokens': 3}, 'port'"
    on = LOG.replace("'port'", given).replace(
        "speculative_config=None", "speculative_config=Spec(x)"
    )
    assert told_by(on)["args.speculative_config"] == {
        "method": "ngram", "num_speculative_tokens": 3
    }  # fmt: skip


def test_of_several_starts_in_one_log_the_last_counts() -> None:
    again = LOG.replace("'max_num_seqs': 8", "'max_num_seqs': 64")
    assert told_by(LOG + again)["args.max_num_seqs"] == 64
    assert told_by(again + LOG)["args.max_num_seqs"] == 8


def test_an_argument_that_is_no_literal_leaves_the_others_readable() -> None:
    told = told_by(LOG.replace("'port': 18178", "'mode': <Mode.X: 3>, 'port': 18178"))
    assert (told["args.max_num_seqs"], told["args.enable_prefix_caching"]) == (8, False)


def test_a_pod_proves_its_arguments_image_and_roll_out() -> None:
    assert told_by(POD) == {
        "image.digest": "sha256:" + "1" * 64,
        "deployment.revision": "5d9c7b",
        "model.id": "m",
        "model.revision": "a" * 40,
        "args.max_num_seqs": 32,
        "args.enable_prefix_caching": False,
        "args.enforce_eager": True,
        "args.speculative_config": {"method": "ngram"},
        "args.gpu_memory_utilization": 0.85,
    }


def test_a_deployment_is_read_at_its_template_and_by_its_revision() -> None:
    image = "vllm/vllm-openai@sha256:" + "2" * 64
    engine = {**POD["spec"]["containers"][1], "image": image}
    deployment = {
        "metadata": {"annotations": {"deployment.kubernetes.io/revision": "7"}},
        "spec": {"template": {"spec": {"containers": [engine]}}},
    }
    told = told_by(deployment)
    assert (told["image.digest"], told["deployment.revision"]) == ("sha256:" + "2" * 64, "7")
    assert told["args.max_num_seqs"] == 32


def test_a_compose_file_is_read_at_the_service_that_runs_vllm() -> None:
    engine = {"image": "vllm/vllm-openai@sha256:" + "2" * 64, "command": ["--max-num-seqs", "32"]}
    services = {"prometheus": {"image": "prom"}, "engine": engine}
    assert told_by({"services": services}) == {
        "image.digest": "sha256:" + "2" * 64,
        "args.max_num_seqs": 32,
    }


def test_a_runs_configuration_proves_what_was_confirmed() -> None:
    run = {
        "effective_args": {"max_num_seqs": 8, "max_model_len": 4096},
        "effective_source": "engine",
        "unconfirmed": ["max_model_len"],
        "image_digest": "vllm 0.32.0, help sha256:" + "3" * 64,
        "model_revision": "config.json sha256:" + "4" * 64,
        "tokenizer_revision": "unverified: external server",
    }
    assert told_by(run) == {
        "args.max_num_seqs": 8,
        "model.revision": "config.json sha256:" + "4" * 64,
    }
    for proof in ({"effective_source": "unverified"}, {"synthetic": True}):
        with pytest.raises(RecordError, match="no evidence"):
            told_by({**run, **proof})


def test_a_description_may_say_when_the_process_started() -> None:
    content = json.dumps({"effective_args": {"seed": 0}, "started_s": 1_700_000_000.5}).encode()
    assert launch_record(content).started_s == 1_700_000_000.5
    undated = content.replace(b"1700000000.5", b'"yesterday"')
    assert launch_record(undated).started_s is None


@pytest.mark.parametrize(
    "content",
    [
        "",
        "INFO: started",
        "{}",
        "{broken",
        '{"services": {"a": 3}}',
        '{"metadata": {}, "spec": 3}',
        '{"effective_args": []}',
    ],
)
def test_what_shows_no_arguments_is_no_launch_record(content: str) -> None:
    with pytest.raises(RecordError, match="shows no arguments"):
        launch_record(content.encode())


def test_no_secret_of_a_launch_is_told() -> None:
    spec = {"containers": [{"image": "vllm", "args": ["--api-key", "s3cret", "--seed", "1"]}]}
    told = launch_record(json.dumps({"metadata": {}, "spec": spec}).encode()).told
    assert told == {"args.seed": 1}

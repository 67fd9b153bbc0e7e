import pytest

from loadgen.confirm import confirm, effective_of, facts_of, logged

# As vLLM 0.32 tells it, shortened to the parts that matter.
CONFIG = {
    "model_config": {"dtype": "torch.bfloat16", "max_model_len": 4096, "seed": 0, "revision": None},
    "cache_config": {
        "block_size": 128,
        "num_gpu_blocks": 512,
        "enable_prefix_caching": False,
        "kv_cache_memory_bytes": 67108864,
        "kv_cache_size_tokens": 65536,
    },
    "scheduler_config": {
        "max_num_batched_tokens": 512,
        "max_num_seqs": 16,
        "policy": "fcfs",
        "max_num_queued_reqs": None,
    },
    "parallel_config": {"tensor_parallel_size": 1, "world_size": 1},
    "speculative_config": None,
}
LOG = """\
(APIServer pid=1) INFO 11-29 [api_utils.py:286] non-default args: {'host': '127.0.0.1', 'port': 8100, 'dtype': 'bfloat16', 'enforce_eager': True, 'served_model_name': ['m'], 'enable_prefix_caching': False, 'max_num_seqs': 16}
(APIServer pid=1) INFO 11-29 [scheduler.py:307] Chunked prefill is enabled with max_num_batched_tokens=512.
(EngineCore pid=2) INFO 11-29 [kv_cache_utils.py:2327] CPU KV cache size: 65,536 tokens, Maximum concurrency for 4,096 tokens per request: 16.00x
"""  # noqa: E501 - lines as they are printed
CRITICAL = ("max_num_batched_tokens", "max_num_seqs")
ARGS = {"max_num_batched_tokens": 512, "max_num_seqs": 16}


def test_an_engines_own_configuration_is_read_under_the_flags_names():
    told = effective_of(CONFIG)
    assert told["max_num_seqs"] == 16
    assert told["scheduling_policy"] == "fcfs"
    assert told["num_gpu_blocks_override"] == 512
    assert told["dtype"] == "bfloat16"
    assert "revision" not in told
    assert "speculative_config" not in told
    assert "max_num_queued_reqs" not in told


def test_what_is_null_there_is_told_where_it_is_asked_for_but_for_revisions():
    told = effective_of(CONFIG, nulls=True)
    assert told == {**effective_of(CONFIG), "max_num_queued_reqs": None}


def test_precision_parallelism_and_kv_tokens_are_facts_beside_the_arguments():
    assert facts_of(CONFIG) == {
        "precision": "bfloat16",
        "parallelism": {"tensor_parallel_size": 1},
        "kv_tokens": 65536,
    }


def test_the_record_of_a_start_tells_what_was_given_and_what_was_logged():
    told = logged(LOG)
    assert (told["max_num_batched_tokens"], told["max_num_seqs"]) == (512, 16)
    assert told["enable_prefix_caching"] is False
    assert told["kv_tokens"] == 65536
    assert told["dtype"] == "bfloat16"


def test_a_value_that_is_printed_as_an_object_contradicts_nothing():
    backend = "<AttentionBackendEnum.FLASH_ATTN: 'vllm.v1.FlashAttentionBackend'>"
    log = (
        f"non-default args: {{'attention_backend': {backend}, 'load_format': 'dummy', "
        "'compilation_config': CompilationConfig(mode=0), 'max_num_seqs': 16}"
    )
    assert logged(log) == {"load_format": "dummy", "max_num_seqs": 16}
    planned = {"attention_backend": "FLASH_ATTN", "load_format": "dummy", "max_num_seqs": 16}
    found = confirm(planned, ("max_num_seqs",), None, log)
    assert (found.differences, found.unconfirmed) == ((), ("attention_backend",))


def test_the_engine_itself_comes_first():
    found = confirm(ARGS, CRITICAL, CONFIG, LOG)
    assert (found.source, found.differences, found.unconfirmed) == ("engine", (), ())
    assert found.args["block_size"] == 128


def test_without_it_the_launch_record_counts_and_adds_its_kv_tokens():
    found = confirm(ARGS, CRITICAL, None, LOG)
    assert found.source == "launch-record"
    assert found.facts == {"kv_tokens": 65536}


def test_with_neither_nothing_is_claimed():
    found = confirm(ARGS, CRITICAL, None, "")
    assert found.source == "unverified"
    assert found.unconfirmed == ("max_num_batched_tokens", "max_num_seqs")
    assert found.args == ARGS


def test_a_record_that_lacks_what_the_cells_differ_in_confirms_nothing():
    found = confirm(ARGS, CRITICAL, None, "non-default args: {'max_num_seqs': 16}")
    assert found.source == "unverified"


def test_a_planned_argument_that_nobody_tells_is_named():
    found = confirm({**ARGS, "swap_space": 4}, CRITICAL, CONFIG, "")
    assert (found.source, found.unconfirmed) == ("engine", ("swap_space",))


@pytest.mark.parametrize(
    ("planned", "difference"),
    [
        ({"max_num_seqs": 32}, "max_num_seqs is 16 at the engine, 32 in the plan"),
        ({"scheduling_policy": "priority"}, "scheduling_policy is fcfs at the engine"),
        ({"kv_cache_memory_bytes": "48G"}, "kv_cache_memory_bytes is 67108864 at the engine"),
        ({"max_model_len": 8192}, "max_model_len is 4096 at the engine, 8192 in the plan"),
    ],
)
def test_what_contradicts_the_plan_is_named_with_both_values(planned, difference):
    found = confirm({**ARGS, **planned}, CRITICAL, CONFIG, "")
    assert len(found.differences) == 1
    assert found.differences[0].startswith(difference)


@pytest.mark.parametrize(
    ("planned", "told"),
    [
        ("64M", 67108864),
        ("64m", 64_000_000),
        ("67108864", 67108864),
        (67108864.0, 67108864),
        ("auto", "auto"),
    ],
)
def test_the_same_value_in_another_spelling_is_no_difference(planned, told):
    config = {"cache_config": {"kv_cache_memory_bytes": told}}
    assert confirm({"kv_cache_memory_bytes": planned}, (), config, "").differences == ()


def test_prefix_caching_and_speculation_must_be_off_unless_the_plan_says_otherwise():
    cached = {**CONFIG, "cache_config": {"enable_prefix_caching": True}}
    drafted = {**CONFIG, "speculative_config": {"num_speculative_tokens": 3}}
    assert confirm(ARGS, CRITICAL, cached, "").differences == (
        "enable_prefix_caching is True at the engine, False in the plan",
    )
    assert len(confirm(ARGS, CRITICAL, drafted, "").differences) == 1
    wanted = {**ARGS, "enable_prefix_caching": True}
    assert confirm(wanted, CRITICAL, cached, "").differences == ()

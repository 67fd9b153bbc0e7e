"""Rollback records for tests: the shipped example, other values, and an engine that matches."""

from pathlib import Path
from typing import Any

from tokenizers import Tokenizer
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel
from tokenizers.trainers import BpeTrainer

from gateway.inspect_engine import probe_of_tokenizer
from gateway.manifest import Record, seal
from gateway.manifest_files import fields_of
from loadgen.engine.launch import EngineProcess, start_engine

EXAMPLE = Path(__file__).parents[2] / "deploy" / "manifests" / "baseline.toml"
WHOLE = fields_of(EXAMPLE)
RULE = {"max": 0.5, "window_s": 30.0, "min_count": 10}
OTHER: dict[str, Any] = {
    "owner": "somebody-else",
    "drain_deadline_s": 61.5,
    "image.digest": "sha256:" + "0" * 64,
    "image.version": "0.33.0",
    "model.id": "other",
    "model.root": "/models/other",
    "model.revision": "f" * 40,
    "model.tokenizer_revision": "e" * 40,
    "model.tokenizer_probe": "d" * 64,
    "deployment.revision": "8",
    "route.demo/short": "next",
    "route.demo/long": "next",
    "health_probe.path": "/ping-of-another",
    "health_probe.interval_s": 3.0,
    "health_probe.timeout_s": 3.5,
    "health_probe.failures": 9,
    "health_probe.stall_s": 99.0,
    "capacity.engines": 3,
    "capacity.slots": 127,
    "capacity.prefill_tokens": 4096,
    "capacity.kv_tokens": 500_000,
    "abort.error_rate": RULE,
    "abort.refusals": RULE,
    "abort.ttft_attainment": {"min": 0.5, "window_s": 30.0, "min_count": 10},
    "abort.stall_attainment": {"min": 0.5, "window_s": 30.0, "min_count": 10},
    "abort.oldest_age_s": RULE,
    "args.max_num_batched_tokens": 2048,
    "args.max_num_seqs": 32,
    "args.scheduling_policy": "priority",
    "args.long_prefill_token_threshold": 1024,
    "args.enable_chunked_prefill": False,
    "args.max_num_queued_reqs": 300,
    "args.max_num_queued_tokens": 70_000,
    "args.max_model_len": 8192,
    "args.dtype": "float16",
    "args.quantization": "fp8",
    "args.enforce_eager": True,
    "args.seed": 1,
    "args.tensor_parallel_size": 2,
    "args.pipeline_parallel_size": 2,
    "args.data_parallel_size": 2,
    "args.block_size": 32,
    "args.kv_cache_dtype": "fp8",
    "args.num_gpu_blocks_override": 777,
    "args.gpu_memory_utilization": 0.5,
    "args.kv_cache_memory_bytes": 51_539_607_552,
    "args.enable_prefix_caching": True,
    "args.speculative_config": {"method": "ngram", "num_speculative_tokens": 3},
}


def args_of(record: Record) -> dict[str, Any]:
    """The engine's arguments in a record, by their own names."""
    named = ((name.partition("."), value) for name, value in record.fields.items())
    return {key: value for (section, _, key), value in named if section == "args"}


def write_words(folder: Path) -> None:
    """A tokenizer of few words, as ``tiny.json``: the real one takes two seconds to load."""
    tiny = Tokenizer(BPE())
    tiny.pre_tokenizer = ByteLevel(add_prefix_space=False)
    alphabet = ByteLevel.alphabet()
    trainer = BpeTrainer(vocab_size=600, initial_alphabet=alphabet, show_progress=False)
    tiny.train_from_iterator([EXAMPLE.read_text()], trainer)
    tiny.save(str(folder / "tiny.json"))


def start(folder: Path, *flags: str) -> EngineProcess:
    """A simulated engine with that tokenizer."""
    usual = ("--served-model-name", "demo", "--max-num-seqs", "128")
    tokenizer = ("--tokenizer", str(folder / "tiny.json"))
    return start_engine([*usual, *tokenizer, *flags], folder / "engine.log")


def record_of_started(folder: Path) -> Record:
    """What matches an engine that was started without further flags, as far as it tells."""
    return seal(
        {
            **WHOLE,
            "image.version": "0.32.0+simulated",
            "model.root": "demo",
            "model.tokenizer_probe": probe_of_tokenizer(folder / "tiny.json"),
            "args.num_gpu_blocks_override": 24576,
        }
    )

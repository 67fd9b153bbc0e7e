"""A real engine's pages have what gateway and bench read of them, under those names."""

import pytest
from prometheus_client.parser import text_string_to_metric_families

from gateway import scrape
from gateway.endpoint import Endpoint
from gateway.inspect_engine import inspect_engine, probe_of_tokenizer
from gateway.manifest import seal
from loadgen import probe
from tests.e2e.harness import caller, chat
from tests.engine.vllm import Engine
from tests.gateway.records import WHOLE

LABELS = {"engine", "model_name"}


async def labels(engine: Engine) -> dict[str, set[str]]:
    """The label names of every sample of the page."""
    return {
        sample.name: set(sample.labels)
        for family in text_string_to_metric_families(await engine.page())
        for sample in family.samples
    }


@pytest.fixture
async def used(first: Engine) -> Engine:
    async with caller() as client:
        answer = await client.post(f"{first.url}/v1/chat/completions", json=chat())
    assert answer.status_code == 200
    return first


async def test_every_figure_that_is_read_is_there_with_the_known_labels(used: Engine) -> None:
    found = await labels(used)
    names = {*scrape._WANTED, *probe.ENGINE_GAUGES}
    read = {name for name in names if name.startswith("vllm:")}
    assert {name: found.get(name) for name in read} == dict.fromkeys(read, LABELS)
    assert {name: found.get(name) for name in names - read} == {
        name: set() for name in names - read
    }
    assert found[scrape._BY_REASON] == {*LABELS, "reason"}
    assert {"engine", "num_gpu_blocks", "block_size"} <= found[scrape._CACHE]


async def test_no_figure_is_missing_in_what_is_read_of_the_page(used: Engine) -> None:
    page = await used.scrape()
    assert [name for name in page.__slots__ if getattr(page, name) is None] == []
    assert page.iterations
    assert page.prompt_tokens
    row = probe.engine_row(await used.page())
    assert set(row) == set(probe.ENGINE_GAUGES.values())


async def test_in_production_an_engine_tells_what_the_record_can_be_held_against(
    used: Engine,
) -> None:
    facts = await inspect_engine(seal({**WHOLE, "model.id": "simulated"}), Endpoint(used.url))
    assert facts.engine == {
        "health_probe.path": "/health",
        "image.version": "0.32.0",
        "model.id": "simulated",
        "model.root": str(used.model),
        "model.tokenizer_probe": probe_of_tokenizer(used.model / "tokenizer.json"),
        "args.max_model_len": 9216,
        "args.block_size": 128,
        "args.kv_cache_dtype": "auto",
        "args.enable_prefix_caching": False,
        "args.gpu_memory_utilization": 0.92,
        "args.kv_cache_memory_bytes": 64 << 20,
        "args.num_gpu_blocks_override": None,
        "num_gpu_blocks": 2048,
        "kv_tokens": 262144,
        "speculation": False,
    }
    assert facts.started_s == (await used.scrape()).process_start_s

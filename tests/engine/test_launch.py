"""What the bench launches is confirmed by the engine itself, and a record of it holds there."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from anyio.from_thread import start_blocking_portal

from gateway.cli import main
from gateway.manifest_fields import nested
from loadgen.front import confirmed_at
from loadgen.launch_external import External
from loadgen.launch_vllm import Vllm
from loadgen.launching import Need, Standing
from loadgen.record import BenchError
from tests.e2e.harness import caller, eventually
from tests.engine.vllm import ENTRY, ENVIRONMENT, Engine, model, python
from tests.gateway.records import WHOLE
from tests.ports import free_port

# A cell's complete arguments, in the spellings of a sweep's file.
CELL: dict[str, Any] = {
    "max_num_batched_tokens": 512,
    "max_num_seqs": 16,
    "max_model_len": 9216,
    "long_prefill_token_threshold": 1024,
    "scheduling_policy": "priority",
    "max_num_queued_reqs": 64,
    "dtype": "bfloat16",
    "kv_cache_memory_bytes": "64M",
    "block_size": 32,
    "enable_prefix_caching": False,
    "enforce_eager": True,
    "seed": 0,
    "quantization": None,
    "load_format": "dummy",
    "distributed_executor_backend": "uni",
}
CRITICAL = ("max_num_batched_tokens", "max_num_seqs")
# What a record pins and no engine knows of itself.
UNPROVEN = {"image.digest", "model.revision", "model.tokenizer_revision", "deployment.revision"}

Said = pytest.CaptureFixture[str]


def need(**args: Any) -> Need:
    return Need("01", "C1", {**CELL, **args}, CRITICAL)


def launcher(**more: Any) -> Vllm:
    folder = model("tiny")
    settings = {
        "kind": "vllm",
        "model": str(folder),
        "command": [str(python()), *ENTRY, "{model}"],
        "served_model_name": "simulated",
        "environment": ENVIRONMENT,
        "port": free_port(),
        "tokenizer": str(folder / "tokenizer.json"),
        "chat_template": str(folder / "chat_template.jinja"),
        **more,
    }
    return Vllm(settings)


@dataclass(frozen=True)
class Launched:
    """A cell that stands, the folder of its files, and why another one was refused before."""

    standing: Standing
    folder: Path
    refused: str

    @property
    def url(self) -> str:
        return self.standing.endpoint.engine_urls[0]

    @property
    def log(self) -> Path:
        return self.folder / "engine-0.log"


@pytest.fixture(scope="module")
def cell(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Launched]:
    """One engine and the gateway before it, as a sweep starts them."""
    own, folder = launcher(), tmp_path_factory.mktemp("cell")
    with start_blocking_portal() as portal:
        with pytest.raises(BenchError) as refused:
            portal.call(own.prepare, [need(), need(max_num_partial_prefills=2)])
        with portal.wrap_async_context_manager(own.standing(need(), folder)) as standing:
            yield Launched(standing, folder, str(refused.value))


def test_a_flag_that_the_real_program_lacks_is_refused_and_no_other(cell: Launched) -> None:
    assert cell.refused == "cell C1: this vLLM has no --max-num-partial-prefills"
    assert "help sha256:" in cell.standing.identity["image_digest"]


def test_every_argument_of_the_cell_is_confirmed_by_the_engine_itself(cell: Launched) -> None:
    found = cell.standing.confirmed
    assert (found.source, found.differences, found.unconfirmed) == ("engine", (), ())
    assert found.args["max_num_batched_tokens"] == 512
    assert found.args["scheduling_policy"] == "priority"
    facts = cell.standing.facts
    assert (facts["precision"], facts["kv_tokens"]) == ("bfloat16", 262144)
    assert facts["versions"] == {"engine": "0.32.0"}


async def test_what_differs_from_the_plan_is_named_with_both_values(cell: Launched) -> None:
    own = External({"kind": "external", "url": cell.url, "engine_urls": [cell.url]})
    async with own.standing(need(max_num_seqs=32, seed=7), cell.folder) as standing:
        assert set(standing.confirmed.differences) == {
            "max_num_seqs is 16 at the engine, 32 in the plan",
            "seed is 0 at the engine, 7 in the plan",
        }
    async with own.standing(need(), cell.folder) as standing:
        assert (standing.confirmed.source, standing.confirmed.differences) == ("engine", ())


async def test_in_production_mode_the_start_up_log_confirms_what_it_shows(first: Engine) -> None:
    plan = {"max_num_seqs": 4, "scheduling_policy": "priority", "max_model_len": 9216}
    own = Need("01", "C1", plan, ("max_num_seqs",))
    assert (await confirmed_at([first.url], own, [])).source == "unverified"
    found = await confirmed_at([first.url], own, [first.log])
    assert (found.source, found.differences, found.unconfirmed) == ("launch-record", (), ())
    other = Need("01", "C1", {**plan, "max_num_seqs": 8}, ("max_num_seqs",))
    assert (await confirmed_at([first.url], other, [first.log])).differences


async def test_the_gateway_learns_of_a_priority_engine_from_its_own_words(cell: Launched) -> None:
    async def known() -> bool:
        headers = {"authorization": f"Bearer {cell.standing.endpoint.admin_token}"}
        async with caller() as client:
            url = f"{cell.standing.endpoint.admin_url}/admin/status"
            told = (await client.get(url, headers=headers)).json()
        return bool(told["health"][0]["priority"] == "verified")

    await eventually(known)


# -- the rollback record ---------------------------------------------------------------------


def sealed(folder: Path, url: str, served: Path) -> Path:
    """A record of the engine: captured, completed by what is typed, sealed."""
    captured, source, out = folder / "b0.json", folder / "typed.json", folder / "record.json"
    assert main(["bench", "capture", "--engine-url", url, "--out", str(captured)]) == 0
    typed = {
        name: value
        for name, value in WHOLE.items()
        if not name.startswith(("args.", "image.version", "model.id", "model.tokenizer_probe"))
    }
    typed |= {
        "model.root": str(served),
        "capacity.kv_tokens": 262144,
        "args.speculative_config": None,
    }
    source.write_text(json.dumps(nested(typed)))
    words = ["seal", "--from", source, "--baseline", captured, "--out", out]
    words += ["--tokenizer", served / "tokenizer.json"]
    assert main(["manifest", *map(str, words)]) == 0
    return out


def verified(said: Said, record: Path, *words: object) -> dict[str, dict[str, Any]]:
    """What became of each field."""
    said.readouterr()
    main(["manifest", "verify", str(record), "--json", *map(str, words)])
    (engine,) = json.loads(said.readouterr().out)["engines"]
    return {row["field"]: row for row in engine["fields"]}


def in_state(fields: dict[str, dict[str, Any]], state: str) -> dict[str, Any]:
    return {name: row for name, row in fields.items() if row["state"] == state}


def test_a_record_of_the_engine_holds_at_the_engine(
    cell: Launched, tmp_path: Path, capsys: Said
) -> None:
    record = sealed(tmp_path, cell.url, model("tiny"))
    for launch in ((), ("--launch-record", cell.log)):
        fields = verified(capsys, record, "--engine", cell.url, *launch)
        assert in_state(fields, "drifted") == {}
        assert set(in_state(fields, "unverifiable")) == UNPROVEN
        assert len(in_state(fields, "matched")) >= 30


def test_the_same_record_drifts_at_another_engine_in_what_is_other(
    cell: Launched, first: Engine, tmp_path: Path, capsys: Said
) -> None:
    """In production mode: its scheduler is known from its start-up log alone."""
    record = sealed(tmp_path, cell.url, model("tiny"))
    words = ("--engine", first.url, "--launch-record", first.log)
    drifted = in_state(verified(capsys, record, *words), "drifted")
    assert set(drifted) == {
        "args.max_num_batched_tokens",
        "args.max_num_seqs",
        "args.long_prefill_token_threshold",
        "args.max_num_queued_reqs",
        "args.block_size",
        "args.num_gpu_blocks_override",
    }
    assert drifted["args.max_num_seqs"]["seen"] == 4

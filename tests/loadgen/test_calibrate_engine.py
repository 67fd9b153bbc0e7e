import json

import pytest

from loadgen.calibrate_engine import EngineFacts, Wish, calibrate_engine, decode_grid, prefill_sizes
from loadgen.engine.cost import step_cost_from
from loadgen.engine.launch import start_engine
from loadgen.record import BenchError

# Longer steps than the shipped model's: what timers and a busy machine add is small beside them.
TRUTH = {
    "base_s": 0.008,
    "prefill_token_s": 4e-5,
    "decode_sequence_s": 1.5e-4,
    "kv_token_s": 2e-7,
    "per_prefill_s": 0.0,
    "source": "a test",
}
FACTS = EngineFacts(4096, 100_000, tuple(range(100)), "x", prefill_metric=True)


def test_prompts_fit_one_step_or_two_and_the_model():
    assert prefill_sizes(FACTS, 2048) == [64, 128, 256, 512, 1024, 1536, 2048]
    assert prefill_sizes(FACTS, 1024) == [64, 128, 256, 512, 768, 1024, 2048]
    assert max(prefill_sizes(FACTS, 8192)) == 4094


def test_batches_fit_the_memory_and_outlast_the_reading_of_their_prompts():
    grid = list(decode_grid(FACTS, 1024))
    assert (1, 256, 48) in grid
    assert {n for n, _, _ in grid} >= {16, 64}
    for count, context, output in grid:
        assert count * (context + output) <= 80_000
        assert context + output < 4096
        assert output - 48 >= count * context / 1024 or count == 1
    tiny = EngineFacts(512, 512, (1,), "x", prefill_metric=False)
    assert [n for n, _, _ in decode_grid(tiny, 1024)] == [1, 1]


@pytest.mark.slow
async def test_a_running_engine_s_known_coefficients_are_found_again(tmp_path):
    model = tmp_path / "truth.json"
    model.write_text(json.dumps(TRUTH))
    args = [
        "--step-model",
        str(model),
        "--max-model-len",
        "2048",
        "--max-num-batched-tokens",
        "1024",
    ]
    said = []
    with start_engine(args, tmp_path / "engine.log") as engine:
        wish = Wish(engine.url, "simulated", token_budget=1024, repeats=3)
        told = await calibrate_engine(wish, said.append)
    cost = step_cost_from(told)
    for name in ("base_s", "prefill_token_s", "decode_sequence_s", "kv_token_s"):
        assert getattr(cost, name) == pytest.approx(TRUTH[name], rel=0.1), name
    assert abs(told["fit"]["held_out"]["error"]) < 0.1
    assert told["fit"]["median_error"] < 0.05
    assert "time scale 1" in cost.source
    assert len(said) >= 12


async def test_an_engine_that_serves_another_model_is_refused(tmp_path):
    other = pytest.raises(BenchError, match="no model 'other'")
    with start_engine([], tmp_path / "engine.log") as engine, other:
        await calibrate_engine(Wish(engine.url, "other"))


async def test_an_engine_that_is_not_there_is_named():
    with pytest.raises(BenchError, match=r"http://127.0.0.1:9/metrics"):
        await calibrate_engine(Wish("http://127.0.0.1:9", "m"))


@pytest.mark.slow
async def test_an_engine_of_few_seats_is_measured_with_as_many_as_it_has(tmp_path):
    model = tmp_path / "truth.json"
    model.write_text(json.dumps(TRUTH))
    seats = ["--max-num-seqs", "4", "--max-num-batched-tokens", "1024", "--time-scale", "10"]
    args = [*seats, "--max-model-len", "1024", "--step-model", str(model)]
    with start_engine(args, tmp_path / "engine.log") as engine:
        wish = Wish(engine.url, "simulated", token_budget=1024, repeats=1, time_scale=10)
        told = await calibrate_engine(wish)
    many = {p["decode_sequences"] for p in told["fit"]["points"] if p["kind"] == "decode"}
    assert many == {1, 3, 4}

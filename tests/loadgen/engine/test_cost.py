"""Step times: the sum of measured parts, and files that are refused."""

import json
from pathlib import Path

import pytest

from loadgen.engine.cost import StepCost, step_cost_from
from loadgen.engine.scheduler import Step

DATA = Path(__file__).parents[3] / "loadgen" / "engine" / "data"
GOOD = {
    "base_s": 0.005,
    "prefill_token_s": 1e-5,
    "decode_sequence_s": 1e-5,
    "kv_token_s": 1e-8,
    "source": "a bench",
}


def shipped(name: str) -> StepCost:
    return step_cost_from(json.loads((DATA / name).read_text()), name)


def test_a_step_costs_its_base_and_each_of_its_parts() -> None:
    cost = StepCost(1.0, 0.1, 0.01, 0.001, per_prefill_s=5.0, source="made up")
    decode = Step(scheduled=((1, 1), (2, 1)), decode_sequences=2, kv_tokens=30)
    mixed = Step(
        scheduled=((1, 1), (2, 7)),
        prefill_tokens=7,
        prefill_requests=1,
        decode_sequences=1,
        kv_tokens=30,
    )
    assert cost.seconds(decode) == pytest.approx(1.0 + 0.02 + 0.03)
    assert cost.seconds(mixed) == pytest.approx(1.0 + 0.7 + 0.01 + 0.03 + 5.0)
    slow = StepCost(1.0, 0.1, 0.01, 0.001, prefill_pair_s=0.5, source="made up")
    reading = Step(scheduled=((2, 4),), prefill_tokens=4, prefill_requests=1, prefill_pairs=8)
    assert slow.seconds(reading) == pytest.approx(1.0 + 0.4 + 4.0)


def test_an_empty_step_takes_no_time() -> None:
    assert StepCost(1.0, 0.1, 0.01, 0.001, 5.0).seconds(Step()) == 0.0


@pytest.mark.parametrize(
    ("sequences", "context", "measured_ms"),
    [(1, 570, 5.04), (16, 570, 5.54), (32, 570, 6.08), (64, 570, 6.83), (128, 570, 8.82)],
)
def test_the_default_set_is_near_the_decode_steps_measured_on_the_card(
    sequences: int, context: int, measured_ms: float
) -> None:
    step = Step(
        scheduled=tuple((seq_id, 1) for seq_id in range(sequences)),
        decode_sequences=sequences,
        kv_tokens=sequences * context,
    )
    ms = shipped("cost-h200-graph.json").seconds(step) * 1000
    assert ms == pytest.approx(measured_ms, rel=0.06)


def test_both_shipped_sets_name_their_source_and_price_a_full_prefill_alike() -> None:
    step = Step(scheduled=((1, 8192),), prefill_tokens=8192, prefill_requests=1)
    graph, o2 = shipped("cost-h200-graph.json"), shipped("cost-h200-o2.json")
    assert graph.seconds(step) == pytest.approx(0.2123, abs=0.001)
    assert o2.seconds(step) == pytest.approx(0.2058, abs=0.001)
    assert "H200" in graph.source
    assert "H200" in o2.source


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"base_s": None}, "base_s"),
        ({"base_s": True}, "base_s"),
        ({"kv_token_s": -1e-9}, "kv_token_s"),
        ({"prefill_token_s": float("nan")}, "prefill_token_s"),
        ({"per_prefill_s": "1"}, "per_prefill_s"),
        ({"source": " "}, "source"),
        ({"base_ms": 5}, "base_ms"),
    ],
)
def test_a_wrong_file_is_refused_by_name_and_key(change: dict[str, object], named: str) -> None:
    with pytest.raises(ValueError, match=rf"my-file.*{named}"):
        step_cost_from(GOOD | change, "my-file")


def test_a_missing_key_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match="kv_token_s"):
        step_cost_from({key: value for key, value in GOOD.items() if key != "kv_token_s"})

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.engine.cost import StepCost, step_cost_from
from loadgen.engine.scheduler import Step
from loadgen.record import BenchError, canonical, strict_json
from loadgen.step_fit import Point, fit_steps, predicted_s, step_model

PREFILLS = (256, 1024, 4096, 8192)
BATCHES = ((1, 256), (16, 256), (64, 256), (1, 8000), (16, 8000))


def measured(cost):
    """What an engine of this cost shows, by the cost model's own arithmetic."""
    prefill = [
        Point("prefill", cost.seconds(step), 1, 1, p, 0, 0, step.prefill_pairs)
        for p in PREFILLS
        for step in (Step(((1, p),), p, 1, 0, 0, prefill_pairs=p * p // 2),)
    ]
    decode = [
        Point("decode", cost.seconds(Step(((1, 1),), 0, 0, n, n * c)), 1, 0, 0, n, n * c)
        for n, c in BATCHES
    ]
    return prefill + decode


@given(
    st.floats(1e-3, 2e-2),
    st.floats(5e-6, 1e-4),
    st.floats(1e-6, 5e-5),
    st.floats(5e-9, 1e-7),
    st.floats(0, 5e-3),
)
def test_exact_measurements_give_the_coefficients_back(base, prefill, decode, kv, per_prefill):
    cost = StepCost(base, prefill, decode, kv, per_prefill)
    fit = fit_steps(measured(cost))
    wanted = {
        "base_s": base,
        "prefill_token_s": prefill,
        "decode_sequence_s": decode,
        "kv_token_s": kv,
    }
    for name, value in wanted.items():
        assert fit.coefficients[name] == pytest.approx(value, rel=1e-4, abs=1e-12)
    assert fit.coefficients["per_prefill_s"] == pytest.approx(per_prefill, rel=1e-3, abs=1e-6)
    assert fit.coefficients["prefill_pair_s"] == 0.0
    assert fit.max_error < 1e-6


@given(st.floats(2e-8, 1e-6))
def test_slow_attention_is_found_in_long_prompts(pair):
    fit = fit_steps(measured(StepCost(9e-3, 5e-5, 2e-4, 2e-7, 3e-3, pair)))
    assert fit.coefficients["prefill_pair_s"] == pytest.approx(pair, rel=1e-3)
    assert fit.max_error < 1e-6


def test_a_prompt_that_is_a_little_off_is_not_taken_for_slow_attention():
    points = measured(StepCost(5e-3, 2.5e-5, 1e-5, 3.6e-8))
    longest = max(points, key=lambda p: p.prefill_pairs)
    slower = [replace(p, seconds=p.seconds * 1.03) if p is longest else p for p in points]
    assert fit_steps(slower).coefficients["prefill_pair_s"] == 0.0


def test_a_coefficient_is_never_negative():
    points = measured(StepCost(5e-3, 2.5e-5, 1e-5, 3.6e-8))
    # Prefill that is faster than its base would ask for a negative cost of prefilling at all.
    faster = [Point(p.kind, p.seconds - 1e-3, *p.row) if p.kind == "prefill" else p for p in points]
    fit = fit_steps(faster)
    assert min(fit.coefficients.values()) == 0.0
    assert fit.coefficients["per_prefill_s"] == 0.0
    assert fit.max_error > 0.01


def test_measurements_that_tell_nothing_apart_are_refused():
    same = [Point("decode", 0.005, 1, 0, 0, 1, 256)] * 6
    with pytest.raises(BenchError, match="apart"):
        fit_steps(same)
    with pytest.raises(BenchError, match="1 measurements"):
        fit_steps(same[:1])
    with pytest.raises(BenchError, match="no time"):
        fit_steps([Point("decode", 0.0, 1)])


def test_the_file_is_a_step_model_that_engines_take_and_holds_its_evidence():
    points = measured(StepCost(5e-3, 2.5e-5, 1e-5, 3.6e-8))
    fit = fit_steps(points)
    told = strict_json(canonical(step_model(fit, points, "a test", {"held_out": {}})), "model")
    cost = step_cost_from(told)
    assert cost.source == "a test"
    assert cost.base_s == pytest.approx(5e-3)
    assert len(told["fit"]["points"]) == len(points)
    assert predicted_s(fit.coefficients, points[0]) == pytest.approx(points[0].seconds)

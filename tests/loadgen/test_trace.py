from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.record import BenchError, Prompt
from loadgen.trace import (
    TraceSpec,
    build_trace,
    class_counts,
    decode_trace,
    draw,
    encode_trace,
    shorts_only,
    trace_manifest,
)

MIX = (("short", 0.8), ("long", 0.2))
DEMO = TraceSpec("poisson-stratified", 1, 21.8, MIX, 3.0, 25.0)


def prompts(spec):
    return {
        name: [Prompt(name, 10, 4, "", f"{name}{n}") for n in range(count)]
        for name, count in class_counts(spec).items()
    }


def test_the_demonstration_counts_are_exact_in_ramp_and_window():
    drawn = draw(DEMO)
    ramp = Counter(name for at, name in drawn if at < 3_000_000)
    window = Counter(name for at, name in drawn if at >= 3_000_000)
    assert ramp == {"short": 52, "long": 13}
    assert window == {"short": 436, "long": 109}


@given(
    st.integers(0, 1000),
    st.floats(0.5, 60),
    st.floats(0, 1),
    st.sampled_from([0.0, 3.0, 10.0]),
    st.integers(1, 6),
)
def test_every_ten_second_block_is_exact_to_rounding(seed, rate, share, ramp_s, blocks):
    mix = (("short", 1 - share), ("long", share))
    spec = TraceSpec("poisson-stratified", seed, rate, mix, ramp_s, blocks * 10.0)
    offsets = draw(spec)
    assert offsets == sorted(offsets, key=lambda d: d[0])
    for n in range(blocks):
        end_us = (ramp_s + (n + 1) * 10) * 1e6
        until = [name for at, name in offsets if ramp_s * 1e6 <= at < end_us]
        assert len(until) == round(rate * ((n + 1) * 10.0))
        assert abs(until.count("long") - len(until) * share) <= 1


@given(st.sampled_from(["poisson", "poisson-stratified", "constant"]), st.integers(0, 99))
def test_the_same_spec_draws_the_same_trace_inside_its_interval(kind, seed):
    spec = TraceSpec(kind, seed, 9.0, MIX, 2.0, 10.0)
    assert draw(spec) == draw(spec)
    assert all(0 <= at < 12_000_000 for at, _ in draw(spec))


def test_another_seed_moves_the_arrivals():
    other = TraceSpec("poisson-stratified", 2, 21.8, MIX, 3.0, 25.0)
    assert draw(other) != draw(DEMO)


def test_constant_arrivals_have_equal_gaps():
    offsets = [at for at, _ in draw(TraceSpec("constant", 0, 4.0, MIX, 0.0, 3.0))]
    assert offsets == [n * 250_000 for n in range(12)]


def test_each_arrival_takes_the_next_prompt_of_its_class():
    trace = build_trace(DEMO, prompts(DEMO))
    for name in ("short", "long"):
        own = [a.prompt_sha256 for a in trace if a.size_class == name]
        assert own == [f"{name}{n}" for n in range(len(own))]


def test_too_few_prompts_are_named_by_class():
    few = {**prompts(DEMO), "long": []}
    with pytest.raises(BenchError, match="0 prompts of class long are too few"):
        build_trace(DEMO, few)


def test_the_control_keeps_every_short_as_it_was_and_nothing_else():
    trace = build_trace(DEMO, prompts(DEMO))
    control = shorts_only(trace)
    assert [a for a in trace if a in set(control)] == list(control)
    assert {a.size_class for a in control} == {"short"}
    assert len(control) == 488


def test_a_trace_survives_its_encoding_and_its_digest_is_in_the_manifest():
    trace = build_trace(DEMO, prompts(DEMO))
    data = encode_trace(trace)
    assert decode_trace(data, "t") == trace
    manifest = trace_manifest(DEMO, trace, "c0")
    assert manifest["observed"] == {"short": 436, "long": 109}
    assert manifest["corpus_sha256"] == "c0"


def test_lines_out_of_order_are_named():
    trace = build_trace(DEMO, prompts(DEMO))
    swapped = encode_trace((trace[5], trace[0]))
    with pytest.raises(BenchError, match="t line 2: its offset lies before"):
        decode_trace(swapped, "t")


def test_a_line_of_another_kind_is_named():
    with pytest.raises(BenchError, match="t line 1: not a trace line"):
        decode_trace(b'{"timestamp":1}\n', "t")


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"kind": "bursty"}, "expected one of"),
        ({"mix": (("short", 0.5),)}, "sum to 1"),
        ({"rate_per_s": 0.0}, "positive"),
        ({"window_s": -1.0}, "positive"),
    ],
)
def test_a_spec_that_cannot_be_drawn_is_refused(change, reason):
    fields = {"kind": "poisson", "seed": 1, "rate_per_s": 1.0, "mix": MIX}
    with pytest.raises(BenchError, match=reason):
        TraceSpec(**{**fields, "ramp_s": 0.0, "window_s": 1.0, **change})

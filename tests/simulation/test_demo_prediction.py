"""The demonstration's own trace and configurations, in virtual time: what it promises to show.

The trace is drawn as the demonstration draws it; only the prompts' texts are left out. Each way
runs through the configuration that ``up`` would write for it.
"""

from collections.abc import Mapping

import pytest

from gateway.cli import _predict
from loadgen.demo import DEMO_TRACE, OUTPUT_TOKENS, SIZES
from loadgen.plan import CONTROL, DEMO_WAYS
from loadgen.record import Prompt
from loadgen.trace import Arrival, build_trace, class_counts, shorts_only


def demo_trace() -> tuple[Arrival, ...]:
    counts = class_counts(DEMO_TRACE)
    prompts = {
        name: [
            Prompt(name, SIZES[name], OUTPUT_TOKENS, "", f"{number:064x}")
            for number in range(counts[name])
        ]
        for name, _ in DEMO_TRACE.mix
    }
    return build_trace(DEMO_TRACE, prompts)


@pytest.fixture(scope="module")
def predicted() -> Mapping[str, Mapping[str, Mapping[str, float]]]:
    mixed = demo_trace()
    return {
        way.name: _predict(shorts_only(mixed) if way.control else mixed, way)
        for way in (*DEMO_WAYS, CONTROL)
    }


def p95(predicted: Mapping[str, Mapping[str, Mapping[str, float]]], way: str, size: str) -> float:
    return predicted[way][size]["ttft_p95_s"]


def test_every_way_is_predicted_for_the_classes_it_serves(predicted):
    classes = {way: set(told) for way, told in predicted.items()}
    both = {"short", "long"}
    assert classes == {**{way.name: both for way in DEMO_WAYS}, CONTROL.name: {"short"}}


def test_sharing_without_admission_costs_the_shorts_much(predicted):
    alone = p95(predicted, "control-shorts-only", "short")
    assert p95(predicted, "pass-through-shared", "short") >= 1.5 * alone


def test_admission_gives_the_shorts_most_of_it_back(predicted):
    shared = p95(predicted, "pass-through-shared", "short")
    assert p95(predicted, "admission-shared", "short") <= 0.75 * shared


def test_the_same_trace_is_predicted_the_same_twice(predicted):
    assert _predict(demo_trace(), DEMO_WAYS[1]) == predicted["admission-shared"]

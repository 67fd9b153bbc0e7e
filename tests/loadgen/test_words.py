import pytest

from loadgen.words import (
    GLOSSARY,
    broken_guards,
    headline,
    measure_words,
    next_steps,
    plain,
    what_it_is,
)

ANALYSIS = {
    "base": "B0",
    "class_order": ["short", "long"],
    "cells": [
        {"cell_id": "B0"},
        {"cell_id": "C1", "changed": {"max_num_seqs": {"from": 1024, "to": 32}}},
    ],
}
VERDICTS = {
    "retain": "Keep B0",
    "retune(C1)": "C1 is better",
    "isolate": "engines of its own",
    "capacity(long)": "More engines are needed for: long",
    "inconclusive": "Not decided",
    "invalid": "cannot decide",
    "none": "measured against B0",
}


def decision(verdict, **more):
    named = "C1" if verdict.startswith("retune") else None
    return {"verdict": verdict, "named": named, "deployable": True, **more}


@pytest.mark.parametrize(("verdict", "said"), VERDICTS.items())
def test_every_verdict_is_a_sentence_and_asks_for_something(verdict, said):
    assert said in headline(ANALYSIS, decision(verdict))
    assert next_steps(ANALYSIS, decision(verdict))


def test_a_retune_says_what_to_change_and_when_not_to_deploy():
    steps = next_steps(ANALYSIS, decision("retune(C1)"))
    assert any("max_num_seqs: 1024 → 32" in s for s in steps)
    held = decision("retune(C1)", deployable=False, not_deployable=["the engines were simulated"])
    steps = next_steps(ANALYSIS, held)
    assert any("Not to be deployed" in s and "simulated" in s for s in steps)
    assert not any("share of traffic" in s for s in steps)


def test_what_would_decide_is_told_in_words():
    more = ["C1: short_ttft_p95 -12.0% is not proved: 5 rounds like these would prove it"]
    steps = next_steps(ANALYSIS, decision("inconclusive", more_rounds=more))
    assert "C1: short p95 TTFT -12.0% is not proved: 5 rounds like these would prove it" in steps


def test_keys_become_words_and_other_texts_stay():
    assert measure_words("long_e2e_p95", ["short", "long"]) == "long p95 end to end"
    assert measure_words("other", ["short"]) == "other"
    assert plain(["short_stall_p95 of C1, long_attainment"], ANALYSIS) == [
        "short p95 stall of C1, long attainment"
    ]


def test_runs_that_are_missing_are_told_together():
    lines = [f"incomplete: r{n}-B0-80-20-near is missing" for n in range(5)]
    assert plain([*lines, "other"], ANALYSIS) == [
        "5 runs that the verdict needs are missing: r0-B0-80-20-near, r1-B0-80-20-near, "
        "r2-B0-80-20-near and 2 more",
        "other",
    ]
    assert plain(lines[:2], ANALYSIS) == lines[:2]


def test_a_p_far_below_a_thousandth_is_not_told_to_its_last_digit():
    assert plain(["gain (Holm p 8.9e-30)", "gain (Holm p 0.012)"], ANALYSIS) == [
        "gain (Holm p\u00a0<\u00a00.001)",
        "gain (Holm p\u00a0=\u00a00.012)",
    ]


def test_the_glossary_explains_each_word_once():
    words = [word for word, _ in GLOSSARY]
    assert len(set(words)) == len(words)
    assert {"TTFT", "stall", "goodput", "synthetic"} <= set(words)


def test_an_unknown_kind_is_called_by_its_name():
    assert what_it_is("sweep") == "Sweep of engine settings"
    assert what_it_is("other") == "other"


def test_a_superior_candidate_s_broken_guardrails_are_named_with_value_bound_and_limit():
    rails = {
        "long_ttft_p95": {"value": 1.15, "bound": 1.21, "limit": 1.1, "held": False},
        "long_e2e_p95": {"held": False, "limit": 1.1, "unbounded": True},
        "long_attainment": {"value": -0.1, "bound": -0.1, "limit": -0.02, "held": False},
        "short_failures": {"value": 0.0, "bound": 0.0, "limit": 0.005, "held": True},
    }
    row = {"cell_id": "C2", "superior": ["short_ttft_p95"], "guardrails": rails}
    found = {"base": "B0", "class_order": ["short", "long"], "comparisons": [row]}
    assert broken_guards(found) == [
        "C2 against B0: long p95 TTFT +15.0%, bound +21.0%: guardrail +10.0% not held",
        "C2 against B0: long p95 end to end unbounded or not measured: guardrail +10.0% not held",
        "C2 against B0: long attainment -10.00 points: guardrail -2.00 points not held",
    ]
    assert broken_guards({**found, "comparisons": [{**row, "superior": []}]}) == []

"""Limits set at run time: what may be set, what that does, what does not fit."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.domain import EngineLimits, FlowSpec
from gateway.limits import (
    ENGINE_KEYS,
    FLOW_KEYS,
    Entry,
    LimitError,
    Overlay,
    amended,
    apply,
    expired,
    faults,
    fitting,
)

FLOWS = tuple(
    FlowSpec(model, size, service, largest_prompt_tokens=tokens, reserved_slots=slots,
             reserved_prefill_tokens=slots * 4096)
    for model in ("m", "org/m-1.5")
    for size, tokens in (("short", 4096), ("long", 16_384))
    for service, slots in (("interactive", 2 if size == "short" else 0), ("batch", 0))
)  # fmt: skip
ENGINE = "http://127.0.0.1:8001"
LIMITS = EngineLimits(128, 60_000, 393_216)
ENGINES = {ENGINE: LIMITS, "pool#0": LIMITS}
USERS = {engine: {(f.model, f.size_class) for f in FLOWS} for engine in ENGINES}


def reasons(values: Mapping[str, Any]) -> list[str]:
    return list(faults(amended(Overlay(), values, "ops"), FLOWS, ENGINES, USERS))


def weights(overlay: Overlay) -> dict[tuple[str, str, str], float]:
    return {f.group: f.weight for f in apply(overlay, FLOWS, ENGINES).flows}


def test_without_changes_the_configuration_is_in_force() -> None:
    now = apply(Overlay(), FLOWS, ENGINES)
    assert (now.flows, dict(now.engines)) == (FLOWS, ENGINES)
    assert (now.paused_groups, now.paused_engines) == (frozenset(), frozenset())


def test_a_flow_is_changed_for_every_model_or_for_one_whose_name_may_hold_dots() -> None:
    every = weights(amended(Overlay(), {"flow.short.batch.weight": 7.0}, "ops"))
    assert {g for g, weight in every.items() if weight == 7.0} == {
        ("m", "short", "batch"),
        ("org/m-1.5", "short", "batch"),
    }
    one = weights(amended(Overlay(), {"flow.org/m-1.5.short.batch.weight": 7.0}, "ops"))
    assert {g for g, weight in one.items() if weight == 7.0} == {("org/m-1.5", "short", "batch")}


def test_an_engines_limits_are_changed_under_its_address() -> None:
    overlay = amended(Overlay(), {f"engine.{ENGINE}.slots": 64, "engine.pool#0.kv_tokens": 99}, "o")
    now = apply(overlay, FLOWS, ENGINES).engines
    assert now[ENGINE] == replace(LIMITS, slots=64)
    assert now["pool#0"] == replace(LIMITS, kv_tokens=99)


def test_flows_and_engines_are_paused_until_the_pause_is_taken_back() -> None:
    paths = {"flow.m.long.batch.paused": True, f"engine.{ENGINE}.paused": True}
    overlay = amended(Overlay(), paths, "ops")
    now = apply(overlay, FLOWS, ENGINES)
    assert now.paused_groups == {("m", "long", "batch")}
    assert now.paused_engines == {ENGINE}
    back = apply(amended(overlay, dict.fromkeys(paths), "ops"), FLOWS, ENGINES)
    assert (back.paused_groups, back.paused_engines) == (frozenset(), frozenset())


def test_every_change_is_another_revision_and_says_by_whom() -> None:
    first = amended(Overlay(), {"flow.short.batch.weight": 2.0}, "anna", until_s=5.0)
    second = amended(first, {"flow.long.batch.weight": 3.0}, "ben")
    assert (first.revision, second.revision) == (2, 3)
    assert second.entries["flow.short.batch.weight"] == Entry(2.0, "anna", 5.0)
    assert second.entries["flow.long.batch.weight"] == Entry(3.0, "ben")


@pytest.mark.parametrize(
    ("path", "value", "word"),
    [
        ("flow.short.batch.wait", 1, "'wait' can't be set"),
        ("flow.short.batch.reserved_slots", 1, "can't be set"),
        (f"engine.{ENGINE}.policy", "fcfs", "can't be set"),
        ("flow.short.weight", 1.0, "flow.SIZE.SERVICE.KEY"),
        ("flow.short/batch.weight", 1.0, "must be flow.SIZE.SERVICE.KEY"),
        ("pool.a.slots", 1, "must be flow."),
        ("weight", 1, "must be flow."),
        ("", 1, "must be flow."),
        ("engine.slots", 1, "must be"),
        ("flow.short.batch.weight", 0, "above 0"),
        ("flow.short.batch.weight", -1.0, "above 0"),
        ("flow.short.batch.weight", float("nan"), "above 0"),
        ("flow.short.batch.weight", float("inf"), "above 0"),
        ("flow.short.batch.weight", True, "above 0"),
        ("flow.short.batch.weight", "8", "above 0"),
        ("flow.short.batch.max_queued", 1.5, "whole number"),
        ("flow.short.batch.max_queued", 0, "whole number"),
        ("flow.short.batch.max_queued", 1 << 60, "whole number"),
        ("flow.short.batch.paused", 1, "true or false"),
        (f"engine.{ENGINE}.slots", [1], "whole number"),
    ],
)
def test_what_can_be_no_limit_is_refused_by_path_and_reason(
    path: str, value: Any, word: str
) -> None:
    with pytest.raises(LimitError, match=word.replace(".", r"\.")) as error:
        amended(Overlay(), {path: value}, "ops")
    assert str(error.value).startswith(path)


def test_there_is_a_bound_on_how_much_is_set() -> None:
    with pytest.raises(LimitError, match="more than 1000"):
        amended(Overlay(), {f"engine.e{n}.slots": 1 for n in range(1001)}, "ops")


@pytest.mark.parametrize(
    ("path", "value", "word"),
    [
        ("flow.short.nobody.weight", 1.0, "no such flow (known: short.interactive"),
        ("flow.x.short.batch.weight", 1.0, "no such flow"),
        ("engine.http://127.0.0.1:9.slots", 8, "no such engine (known: http://127.0.0.1:8001"),
        (f"engine.{ENGINE}.slots", 3, "limits.slots is 3, must be at least"),
        (f"engine.{ENGINE}.prefill_tokens", 100, "limits.prefill_tokens is 100"),
        (f"engine.{ENGINE}.kv_tokens", 100, "limits.kv_tokens is 100"),
    ],
)
def test_what_leads_nowhere_or_breaks_a_floor_does_not_fit(
    path: str, value: Any, word: str
) -> None:
    assert word in reasons({path: value})[0]


def test_what_fits_has_no_faults_and_an_engine_that_nobody_uses_no_floors() -> None:
    assert reasons({f"engine.{ENGINE}.slots": 64, "flow.long.batch.paused": True}) == []
    tight = amended(Overlay(), {f"engine.{ENGINE}.slots": 1}, "ops")
    assert list(faults(tight, FLOWS, ENGINES, {ENGINE: set()})) == []


def test_what_has_expired_is_gone_and_the_rest_stays() -> None:
    overlay = amended(Overlay(), {"flow.short.batch.weight": 2.0}, "ops", until_s=5.0)
    overlay = amended(overlay, {"flow.long.batch.weight": 2.0}, "ops", until_s=9.0)
    overlay = amended(overlay, {"flow.long.interactive.weight": 2.0}, "ops")
    assert overlay.next_expiry_s() == 5.0
    same, nothing = expired(overlay, 4.9)
    assert same is overlay
    assert nothing == {}
    later, gone = expired(overlay, 5.0)
    assert list(gone) == ["flow.short.batch.weight"]
    assert (later.revision, later.next_expiry_s()) == (overlay.revision + 1, 9.0)
    last, _ = expired(later, 100.0)
    assert (list(last.entries), last.next_expiry_s()) == (["flow.long.interactive.weight"], None)


def test_on_a_reload_what_still_fits_stays_and_the_rest_is_named() -> None:
    overlay = amended(
        Overlay(), {f"engine.{ENGINE}.slots": 8, "flow.short.batch.weight": 2.0}, "ops"
    )
    same, dropped = fitting(overlay, FLOWS, ENGINES, USERS)
    assert same is overlay
    assert dropped == {}
    more = tuple(
        replace(f, reserved_slots=6, reserved_prefill_tokens=99_999) if f.reserved_slots else f
        for f in FLOWS
    )
    left, dropped = fitting(overlay, more, ENGINES, USERS)
    assert list(left.entries) == ["flow.short.batch.weight"]
    assert left.revision == overlay.revision + 1
    assert "limits.slots is 8" in dropped[f"engine.{ENGINE}.slots"]
    none, dropped = fitting(overlay, (), {}, {})
    assert (dict(none.entries), len(dropped)) == ({}, 2)


PATHS = st.sampled_from(
    [
        f"flow.{t}.{k}"
        for t in ("short.batch", "m.long.interactive", "gone.batch")
        for k in FLOW_KEYS
    ]
    + [f"engine.{e}.{k}" for e in (ENGINE, "pool#0", "gone") for k in ENGINE_KEYS]
)
VALUES = st.one_of(
    st.booleans(), st.integers(1, 500_000), st.floats(0.001, 1e6, allow_nan=False), st.none()
)


@given(st.dictionaries(PATHS, VALUES, max_size=6))
def test_what_has_no_faults_changes_only_what_it_names_and_keeps_every_floor(
    values: dict[str, Any],
) -> None:
    try:
        overlay = amended(Overlay(), values, "ops")
    except LimitError:
        return
    now = apply(overlay, FLOWS, ENGINES)
    assert [f.group for f in now.flows] == [f.group for f in FLOWS]
    assert set(now.engines) == set(ENGINES)
    kept, dropped = fitting(overlay, FLOWS, ENGINES, USERS)
    assert set(kept.entries) | set(dropped) == set(overlay.entries)
    assert list(faults(kept, FLOWS, ENGINES, USERS)) == []
    for before, after in zip(FLOWS, apply(kept, FLOWS, ENGINES).flows, strict=True):
        changed = {
            k for k in FLOW_KEYS if k != "paused" and getattr(before, k) != getattr(after, k)
        }
        named = {p.rpartition(".")[2] for p in kept.entries if p.startswith("flow.")}
        assert changed <= named
    assert replace(kept, entries={}) == Overlay(kept.revision, {})

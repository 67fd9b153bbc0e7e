from dataclasses import replace

import pytest

from gateway.domain import EngineLimits, FlowSpec
from gateway.floors import broken_floors

SHORT = FlowSpec(
    *("m", "short", "interactive"),
    reserved_slots=16,
    reserved_prefill_tokens=8192,
    largest_prompt_tokens=4096,
)
LONG = FlowSpec("m", "long", "batch", largest_prompt_tokens=16_384)
LIMITS = EngineLimits(
    slots=128,
    prefill_tokens=16_384 + 8192 + 2 * 8192,
    kv_tokens=16_384 + 256 + 16 * (4096 + 256),
    max_prefilling=(("long", 1),),
)


def test_the_default_limits_stand_exactly_on_their_floors() -> None:
    assert broken_floors((SHORT, LONG), LIMITS) == []
    assert broken_floors((), LIMITS) == []


@pytest.mark.parametrize(
    ("limits", "key"),
    [
        (replace(LIMITS, prefill_tokens=LIMITS.prefill_tokens - 1), "limits.prefill_tokens"),
        (replace(LIMITS, kv_tokens=LIMITS.kv_tokens - 1), "limits.kv_tokens"),
        (replace(LIMITS, slots=21), "limits.slots"),
        (replace(LIMITS, max_prefilling=(("long", 2),)), "limits.prefill_tokens"),
        (replace(LIMITS, token_budget=8193), "limits.prefill_tokens"),
    ],
)
def test_one_below_a_floor_is_named_with_the_flow_that_could_never_fit(
    limits: EngineLimits, key: str
) -> None:
    (reason,) = broken_floors((SHORT, LONG), limits)
    assert reason.startswith(key)
    assert "flow.m.long.batch" in reason


def test_a_quarter_of_the_slots_and_at_least_two_stay_shared() -> None:
    assert broken_floors((SHORT, LONG), replace(LIMITS, slots=22)) == []
    many = replace(SHORT, reserved_slots=97, reserved_prefill_tokens=4096)
    limits = replace(LIMITS, kv_tokens=10**9)
    assert any("limits.slots" in reason for reason in broken_floors((many, LONG), limits))
    most = replace(many, reserved_slots=96)
    assert broken_floors((most, LONG), limits) == []


def test_reserved_slots_without_prefill_room_for_one_prompt_are_refused() -> None:
    short = replace(SHORT, reserved_prefill_tokens=4095)
    (reason,) = broken_floors((short, LONG), LIMITS)
    assert "flow.m.short.interactive" in reason
    assert "4096" in reason
    assert broken_floors((replace(short, reserved_slots=0), LONG), LIMITS) == []

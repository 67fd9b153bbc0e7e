"""Lists the failure scenarios. Pure: no I/O, no clock."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from types import MappingProxyType

from loadgen.scenario import Call, Fault, Scenario

__all__ = ["SCENARIOS", "scenario_named"]

SHORT, LONG = 512, 8192
LONG_QUEUE = "flow.long.batch.max_queued"
FLOOD_QUEUE = "flow.long.interactive.max_queued"
# Refusal by predicted wait depends on how fast the machine happens to be: no scenario is about it,
# so the flows refuse by their caps alone.
NO_PREDICTION: Mapping[str, float] = MappingProxyType(
    {
        f"flow.{size}.{service}.target_wait_s": 3600.0
        for size in ("short", "long")
        for service in ("interactive", "batch")
    }
)


def _every(start_s: float, gap_s: float, count: int, call: Call) -> list[Call]:
    """Repeat a call at a fixed gap."""
    times = (start_s + gap_s * n for n in range(count))
    return [
        Call(
            at_s,
            call.prompt_tokens,
            call.output_tokens,
            call.service,
            call.role,
            call.manner,
            call.leave_after_s,
            call.leave_after_events,
        )
        for at_s in times
    ]


def _calls(*groups: list[Call]) -> tuple[Call, ...]:
    return tuple(sorted((c for group in groups for c in group), key=lambda c: c.at_s))


def _long_burst(_: int) -> Scenario:
    longs = _every(0.0, 0.005, 24, Call(0, LONG, 16, "batch", "burst"))
    shorts = _every(0.2, 0.2, 12, Call(0, SHORT, 16, "interactive", "shorts"))
    return Scenario(
        "long-burst",
        "24 long prompts at once on a queue of 8, short ones beside them",
        _calls(longs, shorts),
        ("burst_refused", "advice", "shorts_served"),
        {LONG_QUEUE: 8},
    )


def _decode_pressure(_: int) -> Scenario:
    return Scenario(
        "decode-pressure",
        "more long answers at once than the engines have seats",
        tuple(_every(0.0, 0.005, 72, Call(0, SHORT, 256, "interactive", "work"))),
        ("all_ok", "seats_full"),
        {"engine.*.slots": 24},
    )


def _context_boundary(max_model_len: int) -> Scenario:
    prompt = max_model_len - 16
    calls = [
        Call(0.0, prompt, 15, "batch", "below"),
        Call(1.0, prompt, 16, "batch", "at"),
        Call(2.0, prompt, 17, "batch", "above"),
        Call(2.5, prompt + 32, 1, "batch", "above"),
    ]
    return Scenario(
        "context-boundary",
        "prompt and answer one token below, at and above what the model can hold",
        tuple(calls),
        ("boundary",),
    )


def _cancel_storm(_: int) -> Scenario:
    first = _every(0.0, 0.0, 2, Call(0, LONG, 64, "batch", "prefilling", leave_after_s=0.12))
    queued = _every(0.02, 0.005, 20, Call(0, LONG, 64, "batch", "queued", leave_after_s=0.6))
    streaming = _every(
        1.0, 0.005, 16, Call(0, SHORT, 2000, "interactive", "streaming", leave_after_events=60)
    )
    return Scenario(
        "cancel-storm",
        "callers that leave while queued, before their first byte and in mid-stream",
        _calls(first, queued, streaming),
        ("all_cancelled", "phases", "engines_emptied"),
    )


def _kv_pressure(_: int) -> Scenario:
    return Scenario(
        "kv-pressure",
        "answers longer than was charged, on an engine with little KV memory",
        tuple(_every(0.0, 0.01, 12, Call(0, SHORT, 600, "interactive", "work"))),
        ("all_ok", "preempted"),
        engines="small-kv",
    )


def _priority_flood(_: int) -> Scenario:
    flood = _every(0.0, 0.06, 90, Call(0, LONG, 4, "interactive", "flood"))
    lower = _every(0.3, 0.5, 10, Call(0, LONG, 4, "batch", "lower"))
    return Scenario(
        "priority-flood",
        "a class of high priority offers twice what the engines can do, a lower one a little",
        _calls(flood, lower),
        ("flood_refused", "lower_served", "lower_wait", "advice"),
        {FLOOD_QUEUE: 16},
    )


def _engine_kill(_: int) -> Scenario:
    before = _every(0.0, 0.02, 24, Call(0, SHORT, 400, "interactive", "before"))
    after = _every(3.0, 0.1, 8, Call(0, SHORT, 16, "interactive", "after"))
    return Scenario(
        "engine-kill",
        "one of two engines dies in the midst of its streams",
        _calls(before, after),
        ("broken_named", "after_served"),
        faults=(Fault(1.0, 0, "kill-after=1"),),
    )


def _engine_hang(_: int) -> Scenario:
    before = _every(0.0, 0.02, 16, Call(0, SHORT, 300, "interactive", "before"))
    leaving = _every(0.4, 0.02, 8, Call(0, SHORT, 300, "interactive", "leaving", leave_after_s=4.0))
    after = _every(9.0, 0.1, 8, Call(0, SHORT, 16, "interactive", "after"))
    return Scenario(
        "engine-hang",
        "one of two engines takes requests and computes nothing, until it recovers",
        _calls(before, leaving, after),
        ("hang_visible", "none_lost", "after_served"),
        faults=(Fault(1.0, 0, "hang-scheduler"), Fault(7.0, 0, None)),
    )


def _slow_client(_: int) -> Scenario:
    slow = _every(0.0, 0.02, 6, Call(0, SHORT, 300, "interactive", "slow", "slow"))
    gone = _every(
        0.1, 0.02, 4, Call(0, SHORT, 300, "interactive", "gone", "slow", leave_after_s=3.0)
    )
    shorts = _every(0.3, 0.1, 16, Call(0, SHORT, 96, "interactive", "shorts"))
    return Scenario(
        "slow-client",
        "callers that hardly read, some of which vanish",
        _calls(slow, gone, shorts),
        ("shorts_served", "slow_ended"),
    )


def _retry_storm(_: int) -> Scenario:
    return Scenario(
        "retry-storm",
        "callers that try again on 429 and 503 as the SDKs do, on a queue of 4",
        tuple(_every(0.0, 0.005, 24, Call(0, LONG, 8, "batch", "sdk", "sdk"))),
        ("tries_bounded", "advice", "some_refused"),
        {LONG_QUEUE: 4},
        deadline_s=120.0,
    )


# Each is made for the engines' context length. The one that ends an engine comes last of its kind.
SCENARIOS: Mapping[str, Callable[[int], Scenario]] = MappingProxyType(
    {
        "long-burst": _long_burst,
        "decode-pressure": _decode_pressure,
        "context-boundary": _context_boundary,
        "cancel-storm": _cancel_storm,
        "priority-flood": _priority_flood,
        "slow-client": _slow_client,
        "retry-storm": _retry_storm,
        "engine-hang": _engine_hang,
        "engine-kill": _engine_kill,
        "kv-pressure": _kv_pressure,
    }
)


def scenario_named(name: str, max_model_len: int) -> Scenario:
    """Return a scenario for engines of this context length."""
    scenario = SCENARIOS[name](max_model_len)
    return replace(scenario, limits={**NO_PREDICTION, **scenario.limits})

from dataclasses import replace

import pytest

from loadgen.record import Outcome
from loadgen.scenario import Call, Fault, Story, Told, Try
from loadgen.scenario_checks import checks_of
from loadgen.scenario_list import SCENARIOS, scenario_named

CAP = 8


def flow(size="long", service="batch", depth=0, age=0.0):
    return {
        "key": {"size_class": size, "service_class": service},
        "depth": depth,
        "oldest_age_s": age,
        "max_age_s": 6.0,
    }


def engine(slots=0, prefill=0, kv=0, name="one"):
    held = {"slots": slots, "prefill_tokens": prefill, "kv_tokens": kv}
    return {"engine": name, **held, "slot_limit": 24, "prefill_limit": 40960}


def look(at_s, running, flows=(), engines=(), pages=({"running": 0.0, "waiting": 0.0},)):
    return {
        "begin_s": at_s - 0.01,
        "at_s": at_s,
        "running": running,
        "flows": list(flows) or [flow()],
        "engines": list(engines) or [engine()],
        "engine_pages": list(pages),
    }


def answer(outcome=Outcome.OK, status=200, code=None, retry_after_s=None, span=(0.0, 2.0)):
    return Try(span[0], span[0], span[1], status, outcome, code, retry_after_s, True, 4)


def thrice(running, *shown):
    """Three looks, the middle one of which must show what is open through all of them."""
    return tuple(look(at_s, running, *shown) for at_s in (0.9, 1.0, 1.1))


REFUSAL = answer(Outcome.REJECTED, 429, "queue_full", 1.0, (0.0, 0.01))


def burst():
    call = Call(0.0, 8192, 16, "batch", "burst")
    short = Call(0.2, 512, 16, "interactive", "shorts")
    told = (Told(call, (answer(),)), Told(call, (REFUSAL,)), Told(short, (answer(),)))
    limits = {"flows": [{"size_class": "long", "service_class": "batch", "max_queued": CAP}]}
    samples = thrice(2, [flow(depth=3, age=0.4)], [engine(2, 16384)])
    return Story(told, limits, samples, look(3.0, 0), {}, {})


def verdicts(name, story):
    return {c.name: c.passed for c in checks_of(scenario_named(name, 16384), story)}


def failed(name, story):
    return {check for check, passed in verdicts(name, story).items() if not passed}


def test_a_story_in_which_everything_held_passes():
    assert failed("long-burst", burst()) == set()


@pytest.mark.parametrize(
    ("change", "check"),
    [
        ({"samples": (look(1.0, 2, [flow(depth=CAP + 1)]),)}, "bounded_admission"),
        ({"samples": (look(1.0, 2, engines=[engine(slots=25)]),)}, "bounded_admission"),
        ({"samples": (look(1.0, 2, engines=[engine(prefill=40961)]),)}, "bounded_admission"),
        ({"samples": thrice(1)}, "visible_unfinished"),
        ({"samples": (look(0.9, 2), look(1.0, 1), look(1.1, 2))}, "visible_unfinished"),
        ({"samples": thrice(0)}, "visible_unfinished"),
        ({"samples": (look(1.0, 2, [flow(depth=1, age=6.5)]),)}, "bounded_wait"),
        ({"rest": look(3.0, 0, engines=[engine(kv=1)])}, "no_leaked_lease"),
        ({"rest": look(3.0, 0, engines=[engine(slots=1)])}, "no_leaked_lease"),
        ({"rest": look(3.0, 0, [flow(depth=1)])}, "no_leaked_lease"),
        ({"rest": look(3.0, 1)}, "no_leaked_lease"),
    ],
)
def test_what_did_not_hold_for_the_gateway_is_named(change, check):
    assert failed("long-burst", replace(burst(), **change)) == {check}


def test_without_looks_nothing_is_proved():
    assert failed("long-burst", replace(burst(), samples=())) == {
        "bounded_admission",
        "visible_unfinished",
    }


def with_try(role, new):
    story = burst()
    told = tuple(Told(t.call, (new,)) if t.call.role == role else t for t in story.told)
    return replace(story, told=told)


@pytest.mark.parametrize(
    ("role", "new", "checks"),
    [
        ("shorts", answer(Outcome.ERROR, 500), {"shorts_served"}),
        ("shorts", answer(Outcome.UNFINISHED, None), {"shorts_served", "every_call_ended"}),
        ("burst", answer(), {"burst_refused", "advice"}),
        ("burst", REFUSAL, {"burst_refused"}),
        ("burst", replace(REFUSAL, retry_after_s=None), None),
    ],
)
def test_what_did_not_hold_for_callers_is_named(role, new, checks):
    found = failed("long-burst", with_try(role, new))
    assert "advice" in found if checks is None else found >= checks


def test_a_look_need_not_show_what_began_or_ended_beside_it():
    story = burst()
    late = Told(story.told[0].call, (answer(span=(0.95, 2.0)),))
    early = Told(story.told[0].call, (answer(span=(0.0, 1.05)),))
    told = (*story.told, late, early)
    assert "visible_unfinished" not in failed("long-burst", replace(story, told=told))


def test_a_slow_reader_may_still_read_what_the_gateway_has_long_sent():
    story = burst()
    slow = Told(replace(story.told[0].call, manner="slow"), (answer(span=(0.0, 9.0)),))
    told = (*story.told, slow)
    assert "visible_unfinished" not in failed("long-burst", replace(story, told=told))


def test_an_engine_that_holds_nothing_while_it_hangs_is_not_visible():
    scenario = scenario_named("engine-hang", 16384)
    struck = ((0.5, scenario.faults[0]), (3.5, scenario.faults[1]))
    hung = look(2.0, 1, engines=[engine(slots=2)])
    story = replace(burst(), faults=struck, samples=(hung,))
    assert verdicts("engine-hang", story)["hang_visible"]
    idle = replace(story, samples=(look(2.0, 1), look(0.2, 1, engines=[engine(slots=2)])))
    assert not verdicts("engine-hang", idle)["hang_visible"]
    assert not verdicts("engine-hang", replace(story, faults=()))["hang_visible"]


def test_a_stream_that_ends_without_a_word_is_a_failed_kill():
    call = Call(0.0, 512, 16, role="before")
    named = answer(Outcome.INTERRUPTED, 200, "stream_interrupted")
    mute = answer(Outcome.INTERRUPTED, 200, "connection_lost")
    for tries, passed in (((named,), True), ((mute,), False), ((answer(),), False)):
        story = replace(burst(), told=(Told(call, tries),))
        assert verdicts("engine-kill", story)["broken_named"] is passed


def test_callers_that_try_more_often_than_the_sdks_are_seen():
    call = Call(0.0, 8192, 8, "batch", "sdk", "sdk")
    for count, passed in ((1, False), (3, True), (4, False)):
        story = replace(burst(), told=(Told(call, (REFUSAL,) * count),))
        assert verdicts("retry-storm", story)["tries_bounded"] is passed


def test_the_boundary_wants_two_answers_and_then_refusals():
    def story(at, above):
        calls = zip(("below", "at", "above"), (answer(), at, above), strict=True)
        told = tuple(Told(Call(0.0, 16368, 16, "batch", role), (t,)) for role, t in calls)
        return replace(burst(), told=told)

    refusal = answer(Outcome.ERROR, 400, "prompt_too_long")
    assert verdicts("context-boundary", story(answer(), refusal))["boundary"]
    assert not verdicts("context-boundary", story(refusal, refusal))["boundary"]
    assert not verdicts("context-boundary", story(answer(), answer()))["boundary"]


def test_every_scenario_s_calls_are_in_order_and_its_checks_exist():
    for name in SCENARIOS:
        scenario = scenario_named(name, 16384)
        times = [call.at_s for call in scenario.calls]
        assert scenario.name == name
        assert times == sorted(times)
        assert len(checks_of(scenario, burst())) == 5 + len(scenario.checks)
        assert all(isinstance(f, Fault) and f.at_s < scenario.deadline_s for f in scenario.faults)

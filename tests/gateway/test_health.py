"""When an engine is in use."""

from gateway.breaker import BreakerRule, BreakerState
from gateway.health import (
    EngineHealth,
    HealthRules,
    after_failure,
    after_refused,
    after_reply,
    after_scrape,
    after_silence,
    after_success,
)
from gateway.progress import Pace
from gateway.scrape import Scrape

RULES = HealthRules(failures=3, stall_s=10.0, breaker=BreakerRule(2, 10.0, 5.0))
NEW = EngineHealth("http://e")
UP = after_success(NEW, 1.0, RULES)


def test_an_engine_is_down_until_its_first_good_probe() -> None:
    assert not NEW.up
    assert (UP.up, UP.since_s, UP.reason) == (True, 1.0, "")
    assert after_success(UP, 5.0, RULES).since_s == 1.0


def test_silence_counts_and_a_good_probe_forgives_it() -> None:
    once = after_silence(UP, 2.0, "slow", RULES)
    twice = after_silence(once, 3.0, "slow", RULES)
    down = after_silence(twice, 4.0, "slow", RULES)
    assert [health.up for health in (once, twice, down)] == [True, True, False]
    assert (down.since_s, down.reason) == (4.0, "slow")
    assert after_silence(after_success(twice, 3.5, RULES), 4.0, "slow", RULES).up


def test_an_engine_never_seen_up_is_not_up_for_being_silent() -> None:
    assert not after_silence(NEW, 1.0, "slow", RULES).up


def test_a_refused_connection_is_down_at_once() -> None:
    down = after_refused(UP, 2.0, "refused")
    assert (down.up, down.since_s, down.reason) == (False, 2.0, "refused")
    assert after_refused(down, 9.0, "refused").since_s == 2.0


def page(steps: float | None, running: float = 2.0) -> Scrape:
    return Scrape(running=running, iterations=steps, process_start_s=1.0)


def test_an_engine_that_answers_and_does_not_step_is_down_until_it_does() -> None:
    health = after_scrape(UP, page(7.0), 2.0, RULES)
    health = after_success(after_scrape(health, page(7.0), 12.0, RULES), 12.5, RULES)
    assert not health.up
    assert health.reason.startswith("no progress: 2 running, no step for 10")
    assert after_scrape(health, page(8.0), 13.0, RULES).up
    assert after_scrape(health, page(7.0, running=0.0), 13.0, RULES).up


def test_an_engine_that_does_not_count_its_steps_is_up_and_unknown() -> None:
    health = UP
    for second in range(60):
        health = after_scrape(health, page(None), float(second), RULES)
    assert (health.up, health.progress.pace) == (True, Pace.UNKNOWN)


def test_several_engines_in_turn_are_not_judged_by_their_steps() -> None:
    health = UP
    for second in range(60):
        steps = Scrape(running=1.0, iterations=7.0, process_start_s=float(second % 2))
        health = after_scrape(health, steps, float(second), RULES)
    assert health.epochs.mixed
    assert (health.up, health.progress.pace) == (True, Pace.UNKNOWN)


def test_failing_connections_take_it_out_and_health_checks_alone_do_not_bring_it_back() -> None:
    once = after_failure(UP, 2.0, "disconnected", RULES)
    down = after_failure(once, 3.0, "disconnected", RULES)
    assert (once.up, down.up, down.reason) == (True, False, "breaker open: disconnected")
    assert not after_success(down, 4.0, RULES).up
    half = after_success(down, 8.0, RULES)
    assert (half.up, half.breaker.state) == (True, BreakerState.HALF_OPEN)
    assert after_reply(half).breaker.state is BreakerState.CLOSED
    assert not after_failure(half, 9.0, "disconnected", RULES).up


def test_an_answer_that_changes_nothing_is_the_same_value() -> None:
    assert after_reply(UP) is UP


def test_what_is_down_always_says_why() -> None:
    stalled = after_scrape(after_scrape(UP, page(7.0), 2.0, RULES), page(7.0), 12.0, RULES)
    opened = after_failure(after_failure(UP, 2.0, "reset", RULES), 2.0, "reset", RULES)
    downs = (
        stalled,
        after_success(stalled, 13.0, RULES),
        after_success(opened, 3.0, RULES),
        after_refused(stalled, 14.0, "refused"),
        after_success(after_refused(stalled, 14.0, "refused"), 15.0, RULES),
    )
    for health in downs:
        assert not health.up
        assert health.reason

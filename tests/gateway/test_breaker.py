"""When an engine's breaker opens, and how it closes again."""

from hypothesis import given
from hypothesis import strategies as st

from gateway.breaker import (
    Breaker,
    BreakerRule,
    BreakerState,
    after_failure,
    after_probe,
    after_reply,
)

RULE = BreakerRule(failures=3, window_s=10.0, open_s=5.0)
CLOSED, OPEN, HALF = BreakerState.CLOSED, BreakerState.OPEN, BreakerState.HALF_OPEN


def failed(*times: float, before: Breaker = Breaker()) -> Breaker:  # noqa: B008 - a frozen value
    for now in times:
        before = after_failure(before, now, RULE)
    return before


def test_failures_in_a_row_open_it_and_an_answer_between_them_does_not_let_them() -> None:
    assert failed(0.0, 1.0).state is CLOSED
    assert failed(0.0, 1.0, 2.0).state is OPEN
    assert failed(2.0, before=after_reply(failed(0.0, 1.0))).state is CLOSED


def test_failures_that_are_far_apart_do_not_open_it() -> None:
    assert failed(0.0, 6.0, 12.0, 18.0, 24.0).state is CLOSED


def test_it_stays_open_for_its_time_and_a_good_probe_then_makes_it_half_open() -> None:
    opened = failed(0.0, 1.0, 2.0)
    assert after_probe(opened, 6.9, RULE) is opened
    assert after_probe(opened, 7.0, RULE).state is HALF


def test_a_late_answer_to_what_was_sent_before_does_not_close_it() -> None:
    opened = failed(0.0, 1.0, 2.0)
    assert after_reply(opened) is opened


def test_the_first_request_of_a_half_open_one_decides() -> None:
    half = after_probe(failed(0.0, 1.0, 2.0), 8.0, RULE)
    assert after_reply(half) == Breaker()
    again = failed(9.0, before=half)
    assert (again.state, again.since_s) == (OPEN, 9.0)
    assert after_probe(again, 13.9, RULE).state is OPEN


def test_a_probe_changes_nothing_while_it_is_closed() -> None:
    counting = failed(0.0, 1.0)
    assert after_probe(counting, 2.0, RULE) is counting


@given(st.lists(st.sampled_from("fpr"), max_size=60))
def test_it_is_open_only_after_enough_failures_since_the_last_answer(events: list[str]) -> None:
    state, since_reply = Breaker(), 0
    for now, event in enumerate(events):
        before = state.state
        if event == "f":
            state = after_failure(state, now / 10, RULE)
            since_reply += 1
        elif event == "p":
            state = after_probe(state, now / 10, RULE)
        else:
            state = after_reply(state)
            since_reply = 0 if before is not OPEN else since_reply
        if state.state is OPEN:
            assert since_reply >= RULE.failures
        if before is OPEN and state.state is not OPEN:
            assert event == "p"

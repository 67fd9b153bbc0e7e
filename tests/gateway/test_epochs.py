"""When an engine was restarted, and when it is not one engine."""

from collections.abc import Iterable

from hypothesis import given
from hypothesis import strategies as st

from gateway.epochs import FALLS, SETTLED_PAGES, Epochs, after_page
from gateway.scrape import Scrape


def seen(pages: Iterable[Scrape]) -> list[Epochs]:
    state, last, found = Epochs(), Scrape(), []
    for page in pages:
        state = after_page(state, last, page)
        last = page
        found.append(state)
    return found


def starts(*times: float | None) -> list[Epochs]:
    return seen(Scrape(process_start_s=at) for at in times)


def counts(*steps: float) -> list[Epochs]:
    return seen(Scrape(iterations=count) for count in steps)


def test_another_start_time_is_a_new_epoch() -> None:
    assert [s.epoch for s in starts(10.0, 10.0, None, 10.0, 11.0, 11.0)] == [1, 1, 1, 1, 2, 2]


def test_counters_that_fall_are_a_restart_where_no_start_time_is_told() -> None:
    found = counts(5, 9, 9, 2, 4)
    assert [s.epoch for s in found] == [1, 1, 1, 2, 2]
    assert not found[-1].mixed


def test_counters_that_fall_under_the_same_start_time_are_a_restart_too() -> None:
    # Several processes behind one exporter: only one of them was restarted.
    pages = [Scrape(process_start_s=1.0, prompt_tokens=tokens) for tokens in (50.0, 60.0, 3.0)]
    assert [s.epoch for s in seen(pages)] == [1, 1, 2]


def test_a_start_time_that_comes_back_is_not_one_engine() -> None:
    found = starts(10.0, 11.0, 10.0, 11.0, 10.0)
    assert [s.mixed for s in found] == [False, False, True, True, True]
    assert [s.epoch for s in found] == [1, 2, 2, 2, 2]


def test_counters_that_keep_falling_are_not_one_engine() -> None:
    found = counts(100, 3, 101, 4, 102, 5, 103)
    assert [s.mixed for s in found].index(True) == 2 * FALLS - 1
    assert found[-1].epoch == found[2 * FALLS - 1].epoch


def test_an_engine_that_crashes_again_and_again_is_one_engine() -> None:
    pages = [Scrape(process_start_s=float(n), iterations=10.0 - n) for n in range(9)]
    found = seen(pages)
    assert not any(s.mixed for s in found)
    assert found[-1].epoch == 9


def test_several_engines_are_believed_to_be_one_again_after_a_while() -> None:
    found = starts(10.0, 11.0, *[10.0] * (SETTLED_PAGES + 1))
    assert found[-2].mixed
    assert not found[-1].mixed


@given(st.lists(st.integers(0, 30), min_size=1))
def test_one_process_after_another_is_never_several(lives: list[int]) -> None:
    pages = [
        Scrape(process_start_s=float(number), iterations=float(step))
        for number, steps in enumerate(lives)
        for step in range(steps + 1)
    ]
    found = seen(pages)
    assert found[-1].epoch == len(lives)
    assert not any(state.mixed for state in found)
    assert len(found[-1].starts) <= 8

import asyncio
from typing import Any

import pytest

from gateway.domain import Outcome
from gateway.lifetime import Ending, Timeline
from tests.gateway.scripted import BACKEND


@pytest.fixture
def anyio_backend() -> Any:
    return BACKEND


def test_only_the_first_reason_to_end_counts() -> None:
    ending, calls = Ending(), []
    ending.watch(lambda: calls.append(1))
    assert (ending.is_set(), ending.outcome) == (False, None)
    ending.set(Outcome.DRAIN_TERMINATED)
    ending.set()
    assert (ending.is_set(), ending.outcome, calls) == (True, Outcome.DRAIN_TERMINATED, [1])


def test_a_late_watcher_is_told_at_once_and_a_former_one_is_not() -> None:
    ending, calls = Ending(), []

    def former() -> None:
        calls.append("former")

    ending.watch(former)
    ending.unwatch(former)
    ending.set()
    ending.watch(lambda: calls.append("late"))
    assert calls == ["late"]


def test_watchers_may_leave_while_they_are_told() -> None:
    ending, calls = Ending(), []

    def leaves() -> None:
        ending.unwatch(leaves)
        calls.append("leaves")

    ending.watch(leaves)
    ending.watch(lambda: calls.append("stays"))
    ending.set()
    assert calls == ["leaves", "stays"]


async def test_an_ending_can_be_awaited_by_several_before_and_after() -> None:
    ending = Ending()
    waiting = [asyncio.ensure_future(ending.wait()) for _ in range(3)]
    await asyncio.sleep(0)
    assert not any(task.done() for task in waiting)
    ending.set()
    await asyncio.wait_for(asyncio.gather(*waiting, ending.wait()), 5)
    assert not ending._watchers


async def test_a_cancelled_wait_leaves_nothing_behind() -> None:
    ending = Ending()
    waiting = asyncio.ensure_future(ending.wait())
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert not ending._watchers


def test_a_timeline_notes_first_last_and_longest_gap() -> None:
    ticks, firsts = iter([1.0, 1.5, 4.0, 4.25]), []
    marks = Timeline(ticks.__next__, lambda: firsts.append(1))
    for events in (1, 2, 5, 6):
        marks.saw(events)
    assert (marks.first_event_s, marks.last_event_s, marks.max_gap_s) == (1.0, 4.25, 2.5)
    assert (marks.events, firsts) == (6, [1])


def test_progress_is_told_each_time_another_64_events_have_passed() -> None:
    told: list[int] = []
    marks = Timeline(clock=lambda: 0.0, on_progress=told.append)
    for events in (1, 63, 64, 70, 127, 130, 400, 401):
        marks.saw(events)
    assert told == [64, 130, 400]

"""When an engine counts as stalled."""

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from gateway.progress import Pace, Progress, after_figures

STALL_S = 10.0


def paces(*pages: tuple[float | None, float | None], every_s: float = 1.0) -> list[Pace]:
    """The pace after each page of (steps, running), one every so many seconds."""
    state, found = Progress(), []
    for number, (steps, running) in enumerate(pages):
        state = after_figures(state, steps, running, number * every_s, STALL_S)
        found.append(state.pace)
    return found


def test_running_without_a_step_for_so_long_is_a_stall_and_a_step_ends_it() -> None:
    found = paces(*[(5.0, 2.0)] * 11, (6.0, 2.0))
    assert found == [Pace.ADVANCING] * 10 + [Pace.STALLED, Pace.ADVANCING]


def test_an_engine_with_nothing_to_do_is_idle_however_long() -> None:
    assert paces(*[(5.0, 0.0)] * 30) == [Pace.IDLE] * 30
    # And the clock of what comes then starts when it comes.
    assert paces(*[(5.0, 0.0)] * 30, *[(5.0, 1.0)] * 9)[-1] is Pace.ADVANCING


def test_a_stalled_engine_whose_work_was_given_up_is_idle() -> None:
    assert paces(*[(5.0, 2.0)] * 11, (5.0, 0.0))[-2:] == [Pace.STALLED, Pace.IDLE]


def test_a_lower_count_is_another_process_and_no_stall() -> None:
    assert paces(*[(50.0, 2.0)] * 11, (1.0, 2.0))[-1] is Pace.ADVANCING


def test_an_engine_that_does_not_say_is_unknown_and_never_stalled() -> None:
    assert set(paces(*[(None, 2.0)] * 30)) == {Pace.UNKNOWN}
    assert set(paces(*[(5.0, None)] * 30)) == {Pace.UNKNOWN}


@given(
    st.lists(st.tuples(st.none() | st.integers(0, 3), st.none() | st.integers(0, 2)), max_size=40)
)
def test_a_stall_is_exactly_as_long_a_time_of_running_and_the_same_count(
    pages: Sequence[tuple[int | None, int | None]],
) -> None:
    found = paces(*pages)
    for number, pace in enumerate(found):
        window = pages[max(0, number - 10) : number + 1]
        stuck = (
            len(window) == 11
            and all(running for _, running in window[1:])
            and None not in {steps for steps, _ in window}
            and window[0][1] is not None
            and len({steps for steps, _ in window}) == 1
        )
        assert (pace is Pace.STALLED) == stuck

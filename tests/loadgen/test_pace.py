import pytest

from loadgen.pace import Pace, clock_text


def test_before_anything_was_done_the_plans_own_figures_count():
    assert Pace(45.0, 15.0).left_s(6, 1) == 6 * 45 + 15


def test_what_was_done_tells_how_long_the_rest_takes():
    pace = Pace(45.0, 15.0)
    for seconds in (50.0, 60.0):
        pace.ran(seconds)
    pace.started(20.0)
    assert pace.left_s(10, 2) == 10 * 55 + 2 * 20


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(-1, "0 s"), (89, "89 s"), (95, "2 min"), (3599, "1 h 00 min"), (5400, "1 h 30 min")],
)
def test_a_duration_is_written_for_a_reader(seconds, text):
    assert clock_text(seconds) == text

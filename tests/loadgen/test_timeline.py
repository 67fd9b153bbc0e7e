import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.timeline import BARS, Line, sparkline, timeline, timeline_json, timeline_page
from tests.loadgen.made import PLAIN, records
from tests.loadgen.swept import samples

RUN = {"run_id": "r1-B0-80-20-near"}


@pytest.fixture
def lines():
    return timeline(records(RUN, PLAIN, "B0"), samples("B0"))


def test_requests_are_told_by_class_and_so_is_what_is_known_by_class(lines):
    told = {(line.title, line.size_class): line.values for line in lines}
    assert told["offered", "short"][1] == 80
    assert told["oldest request waiting in the gateway", "long"] == {0: 0.0, 1: 0.5, 2: 1.0}
    assert told["requests running on the engines", ""] == {0: 4, 1: 5, 2: 6}


def test_the_highest_bar_is_the_largest_and_a_gap_is_no_bar():
    assert sparkline({0: 0.0, 1: 7.0, 3: 3.5}, range(5), 10) == "▁█ ▅ "


def test_more_seconds_than_columns_share_a_bar_that_shows_their_largest():
    assert sparkline({0: 1.0, 1: 0.0, 2: 0.0, 3: 0.0}, range(4), 2) == "█▁"


def test_nothing_but_zeros_is_flat():
    assert sparkline({0: 0.0, 1: 0.0}, range(2), 9) == "▁▁"


@given(st.dictionaries(st.integers(0, 200), st.floats(0, 1e6), max_size=60), st.integers(1, 80))
def test_a_line_of_bars_never_is_wider_than_its_columns(values, columns):
    shown = sparkline(values, range(201), columns)
    assert len(shown) <= columns
    assert set(shown) <= {*BARS, " "}


def test_as_json_a_second_that_nobody_looked_at_is_absent():
    (line,) = timeline_json("r", [Line("t", "s", "", {4: 1.0, 2: 0.0})])["lines"]
    assert line == {"title": "t", "unit": "s", "t_s": [2, 4], "values": [0.0, 1.0]}


def test_the_page_has_a_figure_for_each_title_and_names_its_records(lines):
    page = timeline_page("r<1>", lines, "abc", "var Plotly;")
    assert page.count('class="chart"') == len({line.title for line in lines})
    assert "r&lt;1&gt;" in page
    assert "abc" in page

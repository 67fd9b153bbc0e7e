import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.states import Evidence, State, describe, more_rounds, state_of, worst

STEADY = (0.99, 0.99, 0.99)
TARGET = 0.95


@pytest.mark.parametrize(
    ("n", "misses", "state"),
    [
        (59, 0, State.PASS),
        (58, 0, State.UNDECIDED),
        (93, 1, State.PASS),
        (92, 1, State.UNDECIDED),
    ],
)
def test_a_pass_needs_the_published_counts(n, misses, state):
    assert state_of(Evidence(n, misses, STEADY), TARGET, 0.05) is state


def test_two_looks_ask_for_more_requests():
    assert state_of(Evidence(76, 0, STEADY), TARGET, 0.02) is State.UNDECIDED
    assert state_of(Evidence(77, 0, STEADY), TARGET, 0.02) is State.PASS


def test_runs_that_disagree_prove_nothing_however_many_requests_there_are():
    assert state_of(Evidence(9000, 180, (1.0, 1.0, 0.94)), TARGET, 0.05) is State.UNDECIDED
    assert state_of(Evidence(9000, 180, (0.98, 0.98, 0.98)), TARGET, 0.05) is State.PASS
    assert state_of(Evidence(9000, 900, (0.99, 0.99, 0.72)), TARGET, 0.05) is State.UNDECIDED
    assert state_of(Evidence(9000, 900, (0.9, 0.9, 0.9)), TARGET, 0.05) is State.FAIL


def test_the_bound_on_run_means_is_t_with_one_degree_less_than_runs():
    # t(2; 0.95) = 2.919986; the spread of 0.97, 0.98, 0.99 is 0.01.
    margin = Evidence(1, 0, (0.97, 0.98, 0.99)).margin(0.05)
    assert margin == pytest.approx(2.919985580353725 * 0.01 / math.sqrt(3))


def test_one_run_and_no_request_prove_nothing():
    assert state_of(Evidence(5000, 0, (1.0,)), TARGET, 0.05) is State.UNDECIDED
    assert state_of(Evidence(5000, 5000, (0.0,)), TARGET, 0.05) is State.UNDECIDED
    assert state_of(Evidence(0, 0, ()), TARGET, 0.05) is State.UNDECIDED


def test_a_demand_that_not_one_may_miss_is_judged_by_the_count_alone():
    assert state_of(Evidence(10, 0, (1.0, 1.0)), 1.0, 0.05) is State.PASS
    assert state_of(Evidence(10, 1, (1.0, 0.8)), 1.0, 0.05) is State.FAIL


@given(st.integers(1, 5000), st.data())
def test_nothing_both_passes_and_fails_and_fewer_misses_never_make_it_worse(n, data):
    misses = data.draw(st.integers(0, n))
    runs = (1.0 - misses / n,) * 3
    state = state_of(Evidence(n, misses, runs), TARGET, 0.05)
    order = [State.FAIL, State.UNDECIDED, State.PASS]
    fewer = data.draw(st.integers(0, misses))
    other = state_of(Evidence(n, fewer, (1.0 - fewer / n,) * 3), TARGET, 0.05)
    assert order.index(other) >= order.index(state)


@pytest.mark.parametrize("goal", [State.PASS, State.FAIL])
def test_more_rounds_is_the_first_number_that_decides(goal):
    share = 0.97 if goal is State.PASS else 0.93
    runs = (share - 0.01, share, share + 0.01)
    found = Evidence(240, round(240 * (1 - share)), runs)
    assert state_of(found, TARGET, 0.05) is State.UNDECIDED
    rounds = more_rounds(found, TARGET, 0.05, goal)
    assert rounds is not None
    assert rounds > 3
    other = State.FAIL if goal is State.PASS else State.PASS
    assert more_rounds(found, TARGET, 0.05, other) is None


def test_what_sits_on_the_target_is_not_decided_by_sixty_rounds():
    found = Evidence(400, 20, (0.94, 0.95, 0.96))
    assert more_rounds(found, TARGET, 0.05, State.PASS) is None
    assert more_rounds(found, TARGET, 0.05, State.FAIL) is None
    assert more_rounds(Evidence(400, 0, (1.0,)), TARGET, 0.05, State.PASS) is None


def test_the_numbers_of_a_state_are_told():
    told = describe(Evidence(300, 3, (0.98, 0.99, 1.0)), TARGET, 0.05)
    assert told["mean"] == pytest.approx(0.99)
    assert told["low"] < 0.99 < told["high"]
    assert told["p_so_few"] < 0.05 < told["p_so_many"]
    assert "low" not in describe(Evidence(300, 3, (0.99,)), TARGET, 0.05)
    assert describe(Evidence(0, 0, ()), TARGET, 0.05) == {"n": 0, "misses": 0, "attainments": []}


def test_a_whole_is_as_good_as_its_worst_part():
    assert worst([State.PASS, State.PASS]) is State.PASS
    assert worst([State.PASS, State.UNDECIDED]) is State.UNDECIDED
    assert worst([State.UNDECIDED, State.FAIL]) is State.FAIL
    assert worst([]) is State.UNDECIDED

from hypothesis import given
from hypothesis import strategies as st

from loadgen.merging import Seconds, interleaved


def row(t_s, offered, lag=0.0, cpu=0.1, oldest=None, tick=None):
    told = {
        "t_s": t_s,
        "offered": {"short": offered},
        "done": {},
        "refused": {},
        "failed": {},
        "in_flight": {"short": 1},
        "oldest_unanswered_s": {} if oldest is None else {"short": oldest},
        "dispatch_lag_ms": lag,
        "loop_lag_ms": 2 * lag,
        "cpu_share": cpu,
    }
    return told if tick is None else {"tick": tick, **told}


def test_one_workers_rows_pass_as_they_are():
    (made,) = Seconds(1).add(0, row(1.0, 5, tick=1))
    assert made == {"kind": "second", "source": "client", **row(1.0, 5)}


def test_a_second_waits_for_every_worker_and_takes_the_worst_of_their_conduct():
    seconds = Seconds(2)
    assert seconds.add(0, row(1.01, 5, lag=0.2, cpu=0.9, oldest=0.4, tick=1)) == []
    (made,) = seconds.add(1, row(1.02, 4, lag=0.7, cpu=0.3, oldest=0.6, tick=1))
    assert made["t_s"] == 1.02
    assert made["offered"] == {"short": 9}
    assert made["in_flight"] == {"short": 2}
    assert made["oldest_unanswered_s"] == {"short": 0.6}
    assert (made["dispatch_lag_ms"], made["loop_lag_ms"], made["cpu_share"]) == (0.7, 1.4, 0.9)
    assert [w["cpu_share"] for w in made["workers"]] == [0.9, 0.3]
    assert [w["worker"] for w in made["workers"]] == [0, 1]


def test_a_worker_that_ended_still_counts_but_is_no_longer_judged():
    seconds = Seconds(2)
    assert seconds.add(0, row(0.5, 3, cpu=0.8)) == []
    (made,) = seconds.add(1, row(1.0, 4, cpu=0.2, tick=1))
    assert made["offered"] == {"short": 7}
    assert made["cpu_share"] == 0.2
    assert [w["worker"] for w in made["workers"]] == [1]


def test_the_last_row_comes_once_all_have_ended_and_sums_them():
    seconds = Seconds(2)
    seconds.add(0, row(1.0, 3, tick=1))
    assert seconds.add(0, row(1.4, 4)) == []
    assert [m["offered"]["short"] for m in seconds.add(1, row(1.0, 5, tick=1))] == [8]
    (last,) = seconds.add(1, row(1.6, 6))
    assert (last["t_s"], last["offered"]) == (1.6, {"short": 10})


def test_a_second_that_one_worker_slept_through_is_told_by_the_others():
    seconds = Seconds(2)
    assert seconds.add(0, row(1.0, 3, tick=1)) == []
    assert seconds.add(0, row(2.0, 5, tick=2)) == []
    made = seconds.add(1, row(2.3, 4, lag=900.0, tick=2))
    assert [m["t_s"] for m in made] == [1.0, 2.3]
    assert [m["dispatch_lag_ms"] for m in made] == [0.0, 900.0]


def test_an_end_releases_the_seconds_that_waited_for_it():
    seconds = Seconds(2)
    assert seconds.add(0, row(1.0, 3, tick=1)) == []
    assert seconds.add(0, row(2.0, 4, tick=2)) == []
    made = seconds.add(1, row(0.4, 1))
    assert [m["t_s"] for m in made] == [1.0, 2.0]
    assert [m["offered"]["short"] for m in made] == [4, 5]


@given(st.integers(0, 40), st.integers(1, 6))
def test_lines_return_to_planned_order(count, workers):
    lines = [str(n).encode() for n in range(count)]
    assert interleaved([lines[n::workers] for n in range(workers)]) == lines

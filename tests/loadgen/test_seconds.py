from hypothesis import given
from hypothesis import strategies as st

from loadgen.record import Outcome, RequestRecord
from loadgen.seconds import GAUGES, Gauge, counts, gauge, largest

BY_CLASS = Gauge("t", "s", "client", "age", "by-class")
ENGINES = Gauge("t", "n", "engine", "running", "engines")
COUNTER = Gauge("t", "n", "engine", "total", "counter")
PLAIN = Gauge("t", "ms", "client", "lag", "plain")


def record(seq, planned_us, outcome=Outcome.OK, last_us=None, **more):
    return RequestRecord(
        seq=seq,
        size_class="short",
        phase="observed",
        planned_us=planned_us,
        outcome=outcome,
        prompt_tokens_planned=1,
        completion_tokens_planned=1,
        prompt_sha256="",
        last_byte_us=last_us,
        **more,
    )


def test_a_second_holds_the_worst_that_was_seen_in_it_for_each_class():
    rows = [
        {"source": "client", "t_s": 1.1, "age": {"short": 2.0, "long": 1.0}},
        {"source": "client", "t_s": 1.9, "age": {"short": 3.0}},
        {"source": "client", "t_s": 3.0, "age": {"short": 0.0}},
    ]
    assert gauge(rows, BY_CLASS) == {"short": {1: 3.0, 3: 0.0}, "long": {1: 1.0}}


def test_an_age_that_is_not_told_by_class_is_of_all():
    assert gauge([{"source": "client", "t_s": 0.0, "age": 2.0}], BY_CLASS) == {"": {0: 2.0}}


def test_before_the_start_is_second_minus_one():
    assert gauge([{"source": "client", "t_s": -0.4, "lag": 1.0}], PLAIN) == {"": {-1: 1.0}}


def test_engines_are_added_and_what_another_source_says_is_not():
    rows = [
        {"source": "engine", "engine": 0, "t_s": 0.1, "running": 3},
        {"source": "engine", "engine": 1, "t_s": 0.2, "running": 4},
        {"source": "gateway", "t_s": 0.3, "running": 99},
    ]
    assert gauge(rows, ENGINES) == {"": {0: 7}}


def test_a_counter_is_told_from_its_start_and_begins_again_at_a_restart():
    rows = [
        {"source": "engine", "engine": 0, "t_s": float(t), "total": value}
        for t, value in enumerate((10.0, 12.0, 1.0, 4.0))
    ]
    assert gauge(rows, COUNTER) == {"": {0: 0.0, 1: 2.0, 2: 3.0, 3: 6.0}}


def test_what_nobody_looked_at_has_no_line():
    assert gauge([{"source": "client", "t_s": 0.0}], PLAIN) == {}
    assert [gauge([], g) for g in GAUGES] == [{} for _ in GAUGES]


def test_runs_are_joined_by_their_largest():
    assert largest([{"": {0: 1.0, 1: 5.0}}, {"": {0: 2.0}, "long": {3: 1.0}}]) == {
        "": {0: 2.0, 1: 5.0},
        "long": {3: 1.0},
    }


def test_requests_count_where_they_were_planned_and_where_they_ended():
    records = [
        record(
            0, 100_000, last_us=2_500_000, dispatched_us=200_000, event_us=(1_100_000, 1_900_000)
        ),
        record(1, 1_000_000, Outcome.REJECTED, last_us=1_000_500, dispatched_us=1_000_100),
        record(2, 1_500_000, Outcome.UNFINISHED, dispatched_us=1_500_100),
        record(3, 2_000_000, Outcome.NOT_SENT),
    ]
    found = counts(records)
    assert found["offered"] == {0: 1, 1: 2, 2: 1}
    assert found["ok"] == {0: 0, 1: 0, 2: 1}
    assert found["refused"] == {0: 0, 1: 1, 2: 0}
    assert found["failed"] == {0: 0, 1: 1, 2: 1}
    assert found["output"] == {0: 0, 1: 2, 2: 0}
    assert found["in_flight"] == {0: 1, 1: 3, 2: 2}


@given(st.lists(st.tuples(st.integers(0, 9_999_999), st.sampled_from(list(Outcome))), max_size=30))
def test_every_offered_request_ends_as_exactly_one_thing(planned):
    found = counts([record(n, us, outcome) for n, (us, outcome) in enumerate(planned)])
    ended = sum(sum(found[k].values()) for k in ("ok", "refused", "failed"))
    assert ended == sum(found["offered"].values()) == len(planned)

from loadgen.charts import dispatch_lag, distribution, oldest_age, predictions, queue_depth
from loadgen.record import Outcome, RequestRecord


def record(seq, ttft_us, outcome=Outcome.OK, phase="observed"):
    return RequestRecord(
        seq=seq,
        size_class="short",
        phase=phase,
        planned_us=0,
        outcome=outcome,
        prompt_tokens_planned=1,
        completion_tokens_planned=1,
        prompt_sha256="",
        first_event_us=ttft_us,
    )


def test_a_curve_ends_below_one_by_the_share_that_failed():
    records = [
        record(0, 200_000),
        record(1, 100_000),
        record(2, None, Outcome.REJECTED),
        record(3, 50_000, Outcome.INTERRUPTED),
        record(4, 1, phase="ramp"),
    ]
    (curve,) = distribution([("way", records)], "short", 2.0)["data"]
    assert curve["x"] == [0.1, 0.2]
    assert curve["y"] == [0.25, 0.5]


def test_a_way_without_the_class_has_no_curve():
    assert distribution([("way", [record(0, 1)])], "long", 2.0)["data"] == []


def test_ages_and_depths_have_a_line_per_way_and_class():
    rows = [
        {"source": "gateway", "up": True, "t_s": 1.0, "oldest_age_s": {"short": 0.5, "long": 2.0}},
        {"source": "gateway", "up": False, "t_s": 2.0},
        {"source": "client", "t_s": 1.0, "dispatch_lag_ms": 0.2},
    ]
    ages = oldest_age([("a", rows), ("b", rows)])["data"]
    assert [t["name"] for t in ages] == ["a: short", "a: long", "b: short", "b: long"]
    assert ages[1]["x"] == [1.0]
    assert ages[1]["y"] == [2.0]
    assert queue_depth([("a", rows)])["data"] == []
    assert dispatch_lag([("a", rows)], 50.0)["data"][0]["y"] == [0.2]


def test_a_class_that_never_waited_has_no_line():
    row = {"source": "gateway", "up": True, "t_s": 1.0, "oldest_age_s": {"short": 0.0, "long": 1.0}}
    assert [t["name"] for t in oldest_age([("a", [row])])["data"]] == ["a: long"]


def test_predictions_stand_beside_what_was_measured():
    predicted, measured = predictions([("way, short", 0.2, 0.3)])["data"]
    assert (predicted["y"], measured["y"]) == ([0.2], [0.3])

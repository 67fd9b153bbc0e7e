import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.thresholds import (
    Metric,
    Threshold,
    ThresholdError,
    defaults,
    from_json,
    from_text,
    to_json,
)

parts = st.none() | st.floats(0.0, 1.0)


@given(
    st.sampled_from(Metric),
    parts,
    parts,
    st.floats(2.0, 3600.0),
    st.integers(1, 10_000),
)
def test_a_threshold_is_the_same_after_it_was_kept(
    metric: Metric, limit: float | None, margin: float | None, window_s: float, least: int
) -> None:
    if limit is None and margin is None:
        with pytest.raises(ThresholdError, match="needs a limit"):
            Threshold(metric, limit, margin, window_s, least)
        return
    threshold = Threshold(metric, limit, margin, window_s, least)
    assert from_json([to_json(threshold)]) == (threshold,)


@pytest.mark.parametrize(
    ("text", "limit", "margin"),
    [
        ("error_rate=0.02", 0.02, None),
        ("error_rate=+0.01", None, 0.01),
        ("refusals=0.05, +0.03", 0.05, 0.03),
        ("ttft_attainment=0.95,-0.03", 0.95, 0.03),
        ("stall_attainment=-0.1", None, 0.1),
        ("oldest_age_s=30,+10", 30.0, 10.0),
    ],
)
def test_limits_and_margins_are_told_apart_by_their_sign(
    text: str, limit: float | None, margin: float | None
) -> None:
    threshold = from_text(text, 30.0, 20)
    assert (threshold.limit, threshold.margin, threshold.window_s) == (limit, margin, 30.0)
    # Of ages a few samples are enough, however many requests were asked for.
    assert threshold.min_count == (3 if threshold.metric is Metric.OLDEST_AGE else 20)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("errors=0.1", "'errors' is not watched; known are error_rate"),
        ("error_rate", "'' is no number"),
        ("error_rate=much", "'much' is no number"),
        ("error_rate=nan", "'nan' is no number"),
        ("error_rate=2", "2 is not between 0 and 1"),
        ("error_rate=-0.1", "write error_rate=LIMIT"),
        ("ttft_attainment=+0.1", "write ttft_attainment=LIMIT, ttft_attainment=-MARGIN"),
        ("error_rate=0.1,0.2", "write error_rate=LIMIT"),
    ],
)
def test_what_can_not_be_read_is_named_with_its_reason(text: str, reason: str) -> None:
    with pytest.raises(ThresholdError, match=reason.replace("+", r"\+")):
        from_text(text)


@pytest.mark.parametrize(
    ("rows", "reason"),
    [
        ([], "no threshold"),
        ([{"metric": "error_rate", "max": 0.1}] * 2, "two thresholds of one metric"),
        ([{"metric": "error_rate", "min": 0.1}], "unknown key 'min'; known: max, above_stable"),
        ([{"metric": "error_rate", "max": "0.1"}], "max must be a number"),
        ([{"metric": "error_rate", "max": True}], "max must be a number"),
        ([{"metric": "error_rate", "max": 0.1, "window_s": 1}], "window_s must be between 2"),
        ([{"metric": "error_rate", "max": 0.1, "min_count": 0}], "min_count must be between 1"),
    ],
)
def test_rows_that_can_not_be_are_refused(rows: list[dict[str, object]], reason: str) -> None:
    with pytest.raises(ThresholdError, match=reason):
        from_json(rows)


def test_the_usual_ones_watch_everything_and_never_the_candidate_alone() -> None:
    usual = defaults(2.0)
    assert {t.metric for t in usual} == set(Metric)
    assert all(t.limit is not None and t.margin is not None for t in usual)

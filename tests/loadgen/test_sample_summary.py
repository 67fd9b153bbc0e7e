import pytest

from loadgen.sample_summary import (
    counter_delta,
    engines,
    oldest_ages,
    oldest_unanswered,
    prefix_hit_share,
    queue_depths,
)


def engine(number=0, up=True, **gauges):
    return {"source": "engine", "engine": number, "up": up, **gauges}


def test_a_counter_that_falls_is_a_restart_and_counts_from_zero():
    rows = [{"c": 5.0}, {"c": 9.0}, {}, {"c": 2.0}, {"c": 3.0}]
    assert counter_delta(rows, "c") == {"delta": 7.0, "restarts": 1}
    assert counter_delta([{}], "c") is None


def test_an_engine_shows_its_largest_gauges_and_its_idle_seconds():
    rows = [
        engine(running=0, waiting=0, kv_usage=0.0, preemptions_total=1.0),
        engine(running=3, waiting=2, kv_usage=0.7, preemptions_total=4.0),
        engine(running=0, waiting=1),
        engine(up=False),
        engine(1, running=0),
    ]
    first, second = engines(rows)
    assert first == {
        "engine": 0,
        "scrapes_failed": 1,
        "max_running": 3,
        "max_waiting": 2,
        "max_kv_usage": 0.7,
        "idle_share": pytest.approx(1 / 3),
        "preemptions": {"delta": 3.0, "restarts": 0},
    }
    assert second == {"engine": 1, "scrapes_failed": 0, "max_running": 0, "idle_share": 1.0}


def test_the_oldest_age_is_the_largest_that_any_second_showed():
    rows = [
        {"source": "gateway", "up": True, "oldest_age_s": {"short": 0.2}, "queue_depth": {}},
        {"source": "gateway", "up": True, "oldest_age_s": {"short": 0.1, "long": 3.0}},
        {"source": "gateway", "up": False},
        {"source": "client", "oldest_unanswered_s": {"long": 4.0}},
    ]
    assert oldest_ages(rows) == {"short": 0.2, "long": 3.0}
    assert oldest_unanswered(rows) == {"long": 4.0}
    assert queue_depths(rows) == {}


def test_where_no_age_was_recorded_none_is_given():
    assert oldest_ages([{"source": "gateway", "up": False}, engine()]) == {}


def test_prefix_hits_are_a_share_of_all_prompt_tokens():
    rows = [
        engine(n, prefix_cache_hits_total=h, prompt_tokens_total=t)
        for n, h, t in [(0, 0.0, 100.0), (0, 10.0, 300.0), (1, 5.0, 0.0), (1, 5.0, 200.0)]
    ]
    assert prefix_hit_share(rows) == pytest.approx(10 / 400)
    assert prefix_hit_share([engine()]) is None

from dataclasses import replace
from pathlib import Path

import orjson
import pytest
from prometheus_client.parser import text_string_to_metric_families

from gateway.config import Settings
from gateway.domain import Outcome, Surface
from gateway.observe import (
    METRICS,
    EngineLoad,
    Finished,
    FlowLoad,
    Observer,
    Occupancy,
    log_line,
    series_bound,
)
from tests.gateway.minimal import CONFIG, settings

EMPTY = Occupancy((), (), 1)
SHORT = {"size_class": "short", "service_class": "interactive"}
DONE = Finished(
    outcome=Outcome.COMPLETED,
    request_id="rid",
    surface=Surface.CHAT,
    arrived_s=100.0,
    ended_s=103.0,
    status=200,
    key_id="alice",
    trace_id="trace",
    model="m",
    size_class="short",
    service_class="interactive",
    arm="stable",
    pool="a",
    engine="http://127.0.0.1:8001",
    stream=True,
    prompt_tokens=512,
    completion_tokens=128,
    classify_s=0.001,
    classify_method="kitoken",
    dispatched_s=100.1,
    first_event_s=100.3,
    max_stall_s=0.2,
    gaps=[0, 2, *[0] * 25],
    gaps_sum_s=0.004,
)


@pytest.fixture
def config(tmp_path: Path) -> Settings:
    return settings(tmp_path)


@pytest.fixture
def observer(config: Settings) -> Observer:
    return Observer(config, lambda: EMPTY)


def value(observer: Observer, name: str, **labels: str) -> float | None:
    return observer.registry.get_sample_value(f"sluicegate_{name}", labels)


def series(observer: Observer) -> set[tuple[str, frozenset[tuple[str, str]]]]:
    families = text_string_to_metric_families(observer.page().decode())
    return {
        (sample.name, frozenset(sample.labels.items()))
        for family in families
        for sample in family.samples
    }


def test_a_finished_request_is_counted_and_timed_in_its_class(observer: Observer) -> None:
    observer.offered("short", "interactive")
    observer.record(replace(DONE, offered=True))
    assert value(observer, "offered_total", **SHORT) == 1
    assert value(observer, "outcomes_total", **SHORT, outcome="completed") == 1
    assert value(observer, "answers_total", surface="chat", outcome="completed") == 1
    assert value(observer, "goodput_total", **SHORT) == 1
    assert value(observer, "prompt_tokens_total", **SHORT) == 512
    assert value(observer, "output_tokens_total", **SHORT) == 128
    for name, seconds in {
        "queue_wait": 0.1,
        "ttft": 0.3,
        "engine_ttft": 0.2,
        "max_stall": 0.2,
        "e2e": 3.0,
    }.items():
        assert value(observer, f"{name}_seconds_sum", **SHORT) == pytest.approx(seconds)
        assert value(observer, f"{name}_seconds_count", **SHORT) == 1
    assert value(observer, "classification_seconds_count", method="kitoken") == 1


@pytest.mark.parametrize(
    "missed",
    [
        {"first_event_s": 100.51},
        {"max_stall_s": 0.51},
        {"ended_s": 130.1},
        {"outcome": Outcome.STREAM_INTERRUPTED},
        {"first_event_s": None},
    ],
)
def test_a_request_that_misses_one_limit_is_no_goodput(
    observer: Observer, missed: dict[str, object]
) -> None:
    observer.record(replace(DONE, **missed))  # type: ignore[arg-type]
    assert value(observer, "goodput_total", **SHORT) is None


def test_offered_is_the_sum_of_outcomes_also_for_requests_never_classified(
    observer: Observer,
) -> None:
    early = Finished(Outcome.UNAUTHENTICATED, "r", Surface.CHAT, 0.0, 0.1)
    observer.record(early)
    unknown = {"size_class": "unknown", "service_class": "unknown"}
    assert value(observer, "offered_total", **unknown) == 1
    assert value(observer, "outcomes_total", **unknown, outcome="unauthenticated") == 1


def test_what_ends_at_the_edge_is_counted_without_a_class(observer: Observer) -> None:
    observer.refused_at_edge(Outcome.HEADERS_TOO_LARGE)
    unknown = {"size_class": "unknown", "service_class": "unknown"}
    assert value(observer, "offered_total", **unknown) == 1
    assert value(observer, "outcomes_total", **unknown, outcome="headers_too_large") == 1


def test_refusals_that_were_not_acted_on_and_retries_are_counted(observer: Observer) -> None:
    observer.would_refuse("short", "interactive", Outcome.QUEUE_FULL)
    observer.record(replace(DONE, retry_reason="rejected"))
    assert value(observer, "would_refuse_total", **SHORT, outcome="queue_full") == 1
    assert value(observer, "retries_total", pool="a", reason="rejected") == 1


@pytest.mark.parametrize(
    ("change", "phase"),
    [
        ({"dispatched_s": None, "first_event_s": None}, "queued"),
        ({"first_event_s": None}, "before_first_byte"),
        ({}, "mid_stream"),
    ],
)
def test_callers_that_left_are_counted_by_phase(
    observer: Observer, change: dict[str, object], phase: str
) -> None:
    left = replace(DONE, outcome=Outcome.CLIENT_CANCELLED, **change)  # type: ignore[arg-type]
    observer.record(left)
    assert value(observer, "cancelled_total", phase=phase) == 1


def test_what_waits_is_read_at_scrape_time_and_summed_over_models_and_arms(
    config: Settings,
) -> None:
    ages = iter((1.5, 2.5))

    def occupancy() -> Occupancy:
        age_s = next(ages)
        flows = (
            FlowLoad("short", "interactive", 3, 300, 9000, age_s, 4, 512, 20.0),
            FlowLoad("short", "interactive", 1, 50, 100, 0.1, 1, 256, 10.0),
        )
        engine = EngineLoad("http://e", True, 2, 5, 600, 7000, 128, 40_960, 353_894, (("long", 1),))
        return Occupancy(flows, (engine,), 9, True, drain_remaining=5, routes=[("m/short", 0.25)])

    observer = Observer(config, occupancy)
    observer.page()
    got = {
        (sample.name, *sorted(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(observer.page().decode())
        for sample in family.samples
    }
    flow = (("service_class", "interactive"), ("size_class", "short"))
    assert got["sluicegate_oldest_waiting_age_seconds", *flow] == 2.5
    assert got["sluicegate_queue_depth", *flow] == 4
    assert got["sluicegate_queue_depth_limit", *flow] == 768
    assert got["sluicegate_oldest_waiting_age_limit_seconds", *flow] == 10.0
    assert got[("sluicegate_drain_remaining",)] == 5
    assert got["sluicegate_route_candidate_weight", ("route", "m/short")] == 0.25
    assert got["sluicegate_queue_tokens", *flow] == 350
    assert got["sluicegate_queue_bytes", *flow] == 9100
    assert got["sluicegate_in_flight", *flow] == 5
    assert got["sluicegate_engine_up", ("engine", "http://e")] == 1
    assert got["sluicegate_engine_slots", ("engine", "http://e")] == 5
    assert got["sluicegate_engine_kv_tokens_limit", ("engine", "http://e")] == 353_894
    prefilling = got["sluicegate_engine_prefilling", ("engine", "http://e"), ("size_class", "long")]
    assert prefilling == 1
    assert got["sluicegate_route_revision",] == 9
    assert got["sluicegate_draining",] == 1


def crowd(config: Settings) -> Observer:
    """An observer that has seen every outcome in every class."""
    observer = Observer(config, lambda: full_occupancy(config))
    for size in (*("short", "long"), None):
        for service in (*("interactive", "batch"), None):
            for outcome in Outcome:
                for surface in Surface:
                    for method in ("kitoken", "tokenizers", "ids"):
                        seen = replace(
                            DONE,
                            outcome=outcome,
                            surface=surface,
                            size_class=size,
                            service_class=service,
                            classify_method=method,
                        )
                        observer.offered(size, service)
                        observer.would_refuse(size, service, outcome)
                        for reason in ("unreachable", "rejected", "disconnected"):
                            observer.record(replace(seen, retry_reason=reason))
                        observer.record(replace(seen, first_event_s=None))
                        observer.record(replace(seen, engine_prompt_tokens=1))
                        observer.record(replace(seen, dispatched_s=None))
    for route in config.document.route:
        observer.canary_aborted(f"{route.model}/{route.size}")
    return observer


def full_occupancy(config: Settings) -> Occupancy:
    flows = [
        FlowLoad(size.name, service, 0, 0, 0, 0.0, 0)
        for size in config.sizes
        for service in config.document.service
    ]
    prefilling = tuple((size.name, 0) for size in config.sizes)
    engines = [
        EngineLoad(engine, True, 1, 0, 0, 0, 1, 1, 1, prefilling) for engine in config.engines
    ]
    routes = [(f"{route.model}/{route.size}", 0.1) for route in config.document.route]
    watches = [(route, "watching") for route, _ in routes]
    return Occupancy(flows, engines, 1, routes=routes, watches=watches)


def test_the_gaps_of_a_stream_are_folded_into_one_histogram(observer: Observer) -> None:
    for _ in range(3):
        observer.record(DONE)

    def gap(suffix: str, **labels: str) -> float | None:
        return value(observer, f"chunk_gap_seconds_{suffix}", **SHORT, **labels)

    assert [gap("bucket", le=bound) for bound in ("0.001", "0.0025", "+Inf")] == [0, 6, 6]
    assert (gap("count"), gap("sum")) == (6, pytest.approx(0.012))


def test_a_bucket_holds_times_up_to_and_including_its_bound(observer: Observer) -> None:
    for first_s in (100.3, 100.30001, 100.05, 1e9):
        observer.record(replace(DONE, arrived_s=100.0, dispatched_s=100.0, first_event_s=first_s))

    def bucket(bound: str) -> float | None:
        return value(observer, "engine_ttft_seconds_bucket", **SHORT, le=bound)

    assert [bucket(le) for le in ("0.025", "0.05", "0.4", "600.0", "+Inf")] == [0, 1, 3, 3, 4]
    observer.record(replace(DONE, arrived_s=0.0, dispatched_s=0.0, first_event_s=0.25))
    assert [bucket(le) for le in ("0.2", "0.25")] == [1, 2]


def test_ten_thousand_callers_make_no_new_series(config: Settings) -> None:
    observer = crowd(config)
    before = series(observer)
    for number in range(10_000):
        name = f"evil-{number}"
        observer.offered(name, name)
        observer.would_refuse(name, name, Outcome.QUEUE_FULL)
        observer.record(
            replace(
                DONE,
                request_id=name,
                key_id=name,
                trace_id=name,
                model=name,
                size_class=name,
                service_class=name,
                pool=name,
                engine=name,
                arm=name,
                classify_method=name,
                detail=name,
                retry_reason=name,
            )
        )
    assert series(observer) == before
    assert b"evil" not in observer.page()


def test_the_number_of_series_is_bounded_by_the_figure_given(config: Settings) -> None:
    count = len(series(crowd(config)))
    bound = series_bound(config)
    assert 0.7 * bound < count <= bound


def test_series_stay_within_their_bound_however_often_names_change(tmp_path: Path) -> None:
    config = settings(tmp_path)
    observer = Observer(config, lambda: EMPTY)
    one = None
    for number in range(20):
        name = f"s{number}"
        renamed = CONFIG.replace("service.batch", f"service.{name}")
        renamed = renamed.replace("pool.a", f"pool.{name}").replace('"a"', f'"{name}"')
        renamed = renamed.replace("model.m]", f"model.{name}]").replace('"m"', f'"{name}"')
        config = settings(tmp_path, renamed)
        observer.use(config)
        observer.record(replace(DONE, service_class=name, pool=name, retry_reason="rejected"))
        observer.would_refuse("short", name, Outcome.QUEUE_FULL)
        observer.canary_aborted(f"{name}/short")
        one = one or len(series(observer))
        assert len(series(observer)) == one <= series_bound(config)
    assert b"s18" not in observer.page()
    assert value(observer, "answers_total", surface="chat", outcome="completed") == 20


def test_a_reload_that_keeps_a_name_keeps_what_was_counted(
    observer: Observer, config: Settings
) -> None:
    observer.record(DONE)
    observer.use(config)
    observer.record(DONE)
    observer.record(replace(DONE, service_class="gone"))
    assert value(observer, "outcomes_total", **SHORT, outcome="completed") == 2
    assert value(observer, "ttft_seconds_count", **SHORT) == 2
    observer.use(config)
    unknown = {"size_class": "short", "service_class": "unknown"}
    assert value(observer, "outcomes_total", **unknown, outcome="completed") == 1


def test_every_metric_of_the_table_is_exported_under_its_name(config: Settings) -> None:
    names = {name for name, _ in series(crowd(config))}
    for name, kind in METRICS.items():
        suffix = {"counter": "_total", "histogram": "_bucket", "gauge": ""}[kind.kind]
        assert name + suffix in names
        assert name.startswith("sluicegate_")


def test_labels_are_of_the_bounded_kinds_only() -> None:
    allowed = {
        *("size_class", "service_class", "pool", "engine", "outcome", "surface"),
        *("method", "phase", "route", "progress", "priority", "state", "reason"),
    }
    assert {label for kind in METRICS.values() for label in kind.labels} <= allowed


def test_the_log_line_is_one_line_of_json_with_the_timeline() -> None:
    line = log_line(DONE)
    assert line.endswith(b"\n")
    assert line.count(b"\n") == 1
    assert orjson.loads(line) == {
        "event": "request",
        "outcome": "completed",
        "status": 200,
        "request_id": "rid",
        "trace_id": "trace",
        "key_id": "alice",
        "surface": "chat",
        "model": "m",
        "size_class": "short",
        "service_class": "interactive",
        "arm": "stable",
        "pool": "a",
        "engine": "http://127.0.0.1:8001",
        "stream": True,
        "prompt_tokens": 512,
        "completion_tokens": 128,
        "classify_ms": 1.0,
        "queue_ms": 100.0,
        "ttft_ms": 300.0,
        "max_stall_ms": 200.0,
        "e2e_ms": 3000.0,
        "retries": 0,
    }


def test_what_was_not_measured_is_absent_from_the_log() -> None:
    left = Finished(Outcome.CLIENT_CANCELLED, "r", Surface.CHAT, 0.0, 0.5)
    assert orjson.loads(log_line(left)) == {
        "event": "request",
        "outcome": "client_cancelled",
        "status": 499,
        "request_id": "r",
        "surface": "chat",
        "stream": False,
        "e2e_ms": 500.0,
        "retries": 0,
    }


def test_a_value_with_line_ends_stays_one_line() -> None:
    line = log_line(replace(DONE, model='x"\n{"event":"forged"}'))
    assert line.count(b"\n") == 1


@pytest.mark.parametrize("method", ["estimate", "configured"])
def test_the_log_says_of_a_count_that_it_is_an_estimate(method: str) -> None:
    assert orjson.loads(log_line(replace(DONE, classify_method=method)))["method"] == method
    assert "method" not in orjson.loads(log_line(DONE))


@pytest.mark.parametrize("method", ["estimate", "configured"])
def test_an_estimate_that_the_engine_counts_otherwise_is_no_mismatch(
    observer: Observer, method: str
) -> None:
    observer.record(replace(DONE, classify_method=method, engine_prompt_tokens=500))
    assert value(observer, "count_mismatches_total", **SHORT) is None


def test_a_prompt_that_the_engine_counts_otherwise_is_counted_as_a_mismatch(
    observer: Observer,
) -> None:
    observer.record(replace(DONE, engine_prompt_tokens=512))
    assert value(observer, "count_mismatches_total", **SHORT) is None
    observer.record(replace(DONE, engine_prompt_tokens=513))
    assert value(observer, "count_mismatches_total", **SHORT) == 1

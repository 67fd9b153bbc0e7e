import random

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.contract import CONTRACT, RetryAfter, answer, error_event
from gateway.domain import MisuseError, Outcome, Surface


def body(kind: str, code: str, param: str = "null") -> bytes:
    text = f'{{"error":{{"message":"why","type":"{kind}","param":{param},"code":"{code}"}}}}'
    return text.encode()


# Written out, not derived: status, x-should-retry, whether Retry-After is sent, body.
GOLDEN = {
    "unauthenticated": (401, b"false", False, body("authentication_error", "unauthenticated")),
    "identity_unavailable": (
        *(503, b"true", True),
        body("overloaded_error", "identity_unavailable"),
    ),
    "forbidden": (403, b"false", False, body("permission_error", "forbidden")),
    "not_found": (404, b"false", False, body("not_found_error", "not_found")),
    "bad_request": (400, b"false", False, body("invalid_request_error", "bad_request")),
    "body_too_large": (413, b"false", False, body("invalid_request_error", "body_too_large")),
    "body_timeout": (400, b"false", False, body("invalid_request_error", "body_timeout")),
    "prompt_too_long": (
        *(400, b"false", False),
        body("invalid_request_error", "context_length_exceeded"),
    ),
    "principal_limit": (429, b"true", True, body("rate_limit_error", "principal_limit")),
    "ingress_full": (429, b"true", True, body("rate_limit_error", "ingress_full")),
    "queue_full": (429, b"true", True, body("rate_limit_error", "queue_full")),
    "queue_tokens_full": (429, b"true", True, body("rate_limit_error", "queue_tokens_full")),
    "queue_bytes_full": (429, b"true", True, body("rate_limit_error", "queue_bytes_full")),
    "paused": (503, b"true", True, body("overloaded_error", "paused")),
    "predicted_wait": (429, b"true", True, body("rate_limit_error", "predicted_wait")),
    "queue_expired": (429, b"true", True, body("rate_limit_error", "queue_expired")),
    "no_engine": (503, b"true", True, body("overloaded_error", "no_engine")),
    "draining": (503, b"true", True, body("overloaded_error", "draining")),
    "engine_rejected": (503, b"true", True, body("overloaded_error", "engine_rejected")),
    "upstream_unreachable": (502, b"true", False, body("server_error", "upstream_unreachable")),
    "upstream_timeout": (504, b"true", False, body("server_error", "upstream_timeout")),
    "internal_error": (500, b"false", False, body("server_error", "internal_error")),
    "headers_too_large": (431, b"false", False, body("invalid_request_error", "headers_too_large")),
}
# Outcomes the gateway never answers with a status of its own, and what the log says.
SILENT = {
    "completed": 200,
    "engine_error": 500,
    "stream_interrupted": 200,
    "drain_terminated": 200,
    "header_timeout": None,
    "client_cancelled": 499,
}


def test_every_outcome_has_a_row_and_stands_in_the_golden_table() -> None:
    assert set(CONTRACT) == set(Outcome)
    assert set(GOLDEN) | set(SILENT) == {outcome.value for outcome in Outcome}


@pytest.mark.parametrize("outcome", GOLDEN)
def test_the_answer_is_the_written_one(outcome: str) -> None:
    status, should_retry, retries, expected = GOLDEN[outcome]
    got = answer(Outcome(outcome), "why", retry_after_s=7.2)
    headers = [
        (b"content-type", b"application/json"),
        (b"content-length", str(len(expected)).encode()),
        (b"x-sluicegate-outcome", outcome.encode()),
        (b"x-should-retry", should_retry),
    ]
    if retries:
        headers.append((b"retry-after", b"8"))
    if outcome == "unauthenticated":
        headers.append((b"www-authenticate", b"Bearer"))
    assert (got.status, got.headers, got.body) == (status, headers, expected)


@pytest.mark.parametrize("outcome", SILENT)
def test_an_outcome_without_own_answer_can_not_be_answered(outcome: str) -> None:
    assert CONTRACT[Outcome(outcome)].logged_status == SILENT[outcome]
    with pytest.raises(MisuseError, match=outcome):
        answer(Outcome(outcome), "why")


def test_overload_is_never_answered_408_and_retrying_is_advised_only_where_it_can_help() -> None:
    for row in CONTRACT.values():
        assert row.status != 408
        if row.status in (429, 502, 503, 504):
            assert row.should_retry is True
        elif row.status is not None:
            assert row.should_retry is False


def test_a_bad_request_may_be_a_405_or_415_and_nothing_else() -> None:
    assert answer(Outcome.BAD_REQUEST, "x", status=405).status == 405
    assert answer(Outcome.BAD_REQUEST, "x", status=415).status == 415
    with pytest.raises(MisuseError):
        answer(Outcome.BAD_REQUEST, "x", status=500)


def test_the_field_at_fault_is_named() -> None:
    error = orjson.loads(answer(Outcome.BAD_REQUEST, "x", param="n").body)["error"]
    assert error["param"] == "n"


@pytest.mark.parametrize(
    ("seconds", "sent"), [(None, b"1"), (0.0, b"1"), (1.01, b"2"), (1e9, b"30"), (30.0, b"30")]
)
def test_retry_after_is_whole_seconds_between_1_and_30(seconds: float | None, sent: bytes) -> None:
    headers = dict(answer(Outcome.QUEUE_FULL, "x", retry_after_s=seconds).headers)
    assert headers[b"retry-after"] == sent


def test_a_stream_ends_with_an_error_event() -> None:
    event = error_event(Outcome.STREAM_INTERRUPTED, "why", Surface.CHAT)
    assert event == b"data: " + body("server_error", "stream_interrupted") + b"\n\n"


@pytest.mark.parametrize(
    ("outcome", "status", "kind"),
    [
        ("bad_request", 400, "invalid_request_error"),
        ("prompt_too_long", 400, "invalid_request_error"),
        ("unauthenticated", 401, "authentication_error"),
        ("forbidden", 403, "permission_error"),
        ("not_found", 404, "not_found_error"),
        ("body_too_large", 413, "request_too_large"),
        ("queue_full", 429, "rate_limit_error"),
        ("no_engine", 503, "overloaded_error"),
        ("upstream_unreachable", 502, "api_error"),
        ("upstream_timeout", 504, "timeout_error"),
        ("internal_error", 500, "api_error"),
    ],
)
@pytest.mark.parametrize("surface", [Surface.MESSAGES, Surface.COUNT_TOKENS])
def test_messages_get_anthropics_form_with_the_same_status_and_headers(
    outcome: str, status: int, kind: str, surface: Surface
) -> None:
    got = answer(Outcome(outcome), "why", surface=surface)
    plain = answer(Outcome(outcome), "why")
    assert orjson.loads(got.body) == {"type": "error", "error": {"type": kind, "message": "why"}}
    assert got.status == status == plain.status
    skipped = {b"content-length"}
    assert [h for h in got.headers if h[0] not in skipped] == [
        h for h in plain.headers if h[0] not in skipped
    ]


def test_a_405_names_the_method_that_is_allowed() -> None:
    chat = answer(Outcome.BAD_REQUEST, "x", surface=Surface.CHAT, status=405)
    models = answer(Outcome.BAD_REQUEST, "x", surface=Surface.MODELS, status=405)
    assert dict(chat.headers)[b"allow"] == b"POST"
    assert dict(models.headers)[b"allow"] == b"GET"
    assert b"allow" not in dict(answer(Outcome.BAD_REQUEST, "x").headers)


def test_a_broken_stream_of_named_events_ends_with_an_event_named_error() -> None:
    for surface in (Surface.MESSAGES, Surface.RESPONSES):
        event = error_event(Outcome.STREAM_INTERRUPTED, "why", surface)
        name, data, *rest = event.split(b"\n")
        assert (name, rest) == (b"event: error", [b"", b""])
        said = orjson.loads(data.removeprefix(b"data: "))
        assert said["type"] == "error"
        assert said["error"]["message"] == "why"
    assert said["code"] == "stream_interrupted"


def flat() -> float:
    return 0.0


def test_advice_is_the_time_the_queue_needs_to_drain() -> None:
    assert RetryAfter(flat).refused(0.0, 5.0) == 5.0


def test_without_a_measured_rate_the_advice_is_the_least() -> None:
    assert RetryAfter(flat).refused(0.0, 0.0) == 1.0


def test_advice_rises_while_refusals_keep_coming_and_falls_when_they_stop() -> None:
    advisor = RetryAfter(flat)
    advice = [advisor.refused(0.1 * tick, 0.0) for tick in range(600)]
    assert advice == sorted(advice)
    assert advice[-1] == 30.0
    assert advisor.refused(60.0 + 300.0, 0.0) == 1.0


def test_one_burst_raises_the_advice_once() -> None:
    advisor = RetryAfter(flat)
    for _ in range(10_000):
        assert advisor.refused(0.0, 0.0) == 1.0
    assert advisor.refused(1.0, 0.0) == 2.0
    assert advisor.refused(1.1, 0.0) == 2.0


def test_a_long_silence_costs_no_time_to_catch_up_with() -> None:
    advisor = RetryAfter(flat)
    for tick in range(100):
        advisor.refused(0.1 * tick, 0.0)
    assert advisor.refused(1e12, 0.0) == 1.0


@given(
    st.lists(st.tuples(st.floats(0, 100), st.floats(0, 1e9)), max_size=50),
    st.integers(),
)
def test_advice_always_stays_within_bounds(calls: list[tuple[float, float]], seed: int) -> None:
    advisor = RetryAfter(random.Random(seed).random)
    now = 0.0
    for step, drain_s in calls:
        now += step
        assert 1.0 <= advisor.refused(now, drain_s) <= 30.0

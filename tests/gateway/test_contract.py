import orjson
import pytest

from gateway.contract import CONTRACT, answer, error_event
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


@pytest.mark.parametrize(
    ("outcome", "kind"),
    [
        ("queue_expired", "rate_limit_error"),
        ("no_engine", "overloaded_error"),
        ("upstream_timeout", "timeout_error"),
        ("stream_interrupted", "api_error"),
        ("drain_terminated", "api_error"),
    ],
)
def test_an_event_of_messages_says_what_the_status_would_have_and_names_the_outcome(
    outcome: str, kind: str
) -> None:
    event = error_event(Outcome(outcome), "why", Surface.MESSAGES)
    error = {"type": kind, "message": "why", "code": outcome}
    said = orjson.loads(event.removeprefix(b"event: error\ndata: "))
    assert said == {"type": "error", "error": error}


def test_an_event_of_messages_for_an_engines_own_error_has_the_type_of_its_status() -> None:
    event = error_event(Outcome.ENGINE_ERROR, "why", Surface.MESSAGES, 400)
    assert b'"invalid_request_error"' in event

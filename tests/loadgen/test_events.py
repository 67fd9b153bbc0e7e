import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.events import Response, Verdict, judge, max_stall_us, read_events
from loadgen.record import Outcome

CHUNK = b'data: {"choices":[{"delta":{},"finish_reason":null}]}\n\n'
LAST = b'data: {"choices":[{"delta":{},"finish_reason":"length"}]}\n\n'
USAGE = b'data: {"choices":[],"usage":{"prompt_tokens":512,"completion_tokens":3}}\n\n'
DONE = b"data: [DONE]\n\n"
BODY = b": keep-alive\n\n" + CHUNK + CHUNK + LAST + USAGE + DONE


def whole(body):
    return read_events(body, [(7, len(body))])


def test_comments_usage_and_the_end_mark_are_no_events():
    response = whole(BODY)
    assert response == Response((7, 7, 7), "length", 512, 3, None, True)


@given(st.sets(st.integers(1, len(BODY) - 1)))
def test_an_event_bears_the_time_of_the_read_that_completed_it(cuts):
    lengths = [*sorted(cuts), len(BODY)]
    reads = [(n * 10, length) for n, length in enumerate(lengths)]
    ends = [BODY.index(CHUNK) + len(CHUNK)]
    ends += [ends[0] + len(CHUNK), ends[0] + len(CHUNK) + len(LAST)]
    expected = tuple(next(at for at, length in reads if length >= end) for end in ends)
    assert read_events(BODY, reads).event_us == expected


def test_the_text_is_joined_for_validators_and_never_shown():
    said = [b'data: {"choices":[{"delta":{"content":"%s"}}]}\n\n' % part for part in (b"a ", b"b")]
    plain = b'data: {"choices":[{"text":"!"}]}\n\n'
    response = whole(b"".join(said) + plain + LAST)
    assert response.text == "a b!"
    assert "a b!" not in repr(response)


def test_carriage_returns_separate_events_too():
    assert whole(BODY.replace(b"\n", b"\r\n")) == whole(BODY)


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (b'{"code":"stream_interrupted"}', "stream_interrupted"),
        (b'{"code":null,"type":"x"}', "x"),
        (b'{"code":503}', "503"),
        (b'"Unauthorized"', "Unauthorized"),
        (b"{}", "unnamed"),
    ],
)
def test_an_error_event_is_named_whatever_its_shape(error, code):
    assert whole(CHUNK + b'data: {"error":' + error + b"}\n\n").error_code == code


@pytest.mark.parametrize("data", [b"data: {nope\n\n", b"data: 3\n\n"])
def test_data_that_is_no_object_is_an_error(data):
    assert whole(data).error_code in {"not_json", "not_an_object"}


def test_the_stall_is_the_largest_gap_and_absent_with_fewer_than_two_events():
    assert max_stall_us((5, 6, 20, 21)) == 14
    assert max_stall_us((5,)) is None
    assert max_stall_us(()) is None


def verdict(body, *, fault=None, status=200, headers=None, tokens=3):
    response = whole(body) if status == 200 else None
    return judge(status, headers or {}, body, fault, response, tokens)


def test_a_stream_with_finish_reason_usage_and_end_mark_is_ok():
    assert verdict(BODY) == Verdict(Outcome.OK)


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (CHUNK + DONE, "no_finish_reason"),
        (LAST, "no_done"),
        (LAST.replace(b"length", b"abort") + DONE, "finish_abort"),
        (LAST + USAGE.replace(b":3}", b":2}") + DONE, "completion_tokens"),
    ],
)
def test_a_status_of_200_alone_is_not_ok(body, code):
    assert verdict(body) == Verdict(Outcome.INVALID_RESPONSE, code)


@pytest.mark.parametrize("reason", [b"stop", b"tool_calls", b"repetition"])
def test_an_answer_may_end_for_any_reason_of_the_engine_s_that_is_no_failure(reason):
    assert verdict(LAST.replace(b"length", reason) + DONE).outcome is Outcome.OK


def test_a_stream_without_usage_can_still_be_ok():
    assert verdict(LAST + DONE).outcome is Outcome.OK


@pytest.mark.parametrize(
    ("code", "outcome"),
    [
        ("stream_interrupted", Outcome.INTERRUPTED),
        ("drain_terminated", Outcome.INTERRUPTED),
        ("queue_expired", Outcome.EXPIRED),
        ("queue_full", Outcome.REJECTED),
        ("500", Outcome.ERROR),
    ],
)
def test_an_error_event_decides_by_its_code(code, outcome):
    body = CHUNK + b'data: {"error":{"code":"' + code.encode() + b'"}}\n\n' + DONE
    assert verdict(body) == Verdict(outcome, code)


def test_a_stream_that_was_cut_is_interrupted():
    assert verdict(CHUNK, fault="connection_lost") == Verdict(
        Outcome.INTERRUPTED, "connection_lost"
    )


@pytest.mark.parametrize(
    ("status", "code", "outcome"),
    [
        (429, "queue_full", Outcome.REJECTED),
        (429, "queue_expired", Outcome.EXPIRED),
        (503, "no_engine", Outcome.REJECTED),
        (503, "something_new", Outcome.REJECTED),
        (502, "upstream_unreachable", Outcome.ERROR),
        (400, "bad_request", Outcome.ERROR),
    ],
)
def test_a_refusal_is_told_from_an_error_by_code_and_status(status, code, outcome):
    body = b'{"error":{"code":"' + code.encode() + b'"}}'
    assert verdict(body, status=status) == Verdict(outcome, code)
    headers = {b"x-sluicegate-outcome": code.encode()}
    assert verdict(b"", status=status, headers=headers) == Verdict(outcome, code)


def test_a_bare_status_is_its_own_code():
    assert verdict(b"", status=503) == Verdict(Outcome.REJECTED, "503")


def test_no_head_is_an_error_with_the_transport_fault():
    found = judge(None, {}, b"", "connect_failed_111", None, 3)
    assert found == Verdict(Outcome.ERROR, "connect_failed_111")
    assert judge(None, {}, b"", None, None, 3).code == "no_response"


@pytest.mark.parametrize(
    ("details", "told"),
    [(b'{"cached_tokens":48}', 48), (b'{"cached_tokens":0}', 0), (b"null", None), (b"{}", None)],
)
def test_cached_prompt_tokens_are_known_only_where_usage_told_them(details, told):
    body = b'data: {"choices":[],"usage":{"prompt_tokens":64,"prompt_tokens_details":%b}}\n\n'
    body = body.replace(b"%b", details)
    assert read_events(body, [(1, len(body))]).cached_tokens == told

import json

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.domain import Outcome, Refused, Surface
from gateway.sanitize import (
    MAX_DEPTH,
    MAX_STRUCTURE,
    STRIPPED_KEYS,
    ask_usage,
    clean_body,
    request_id,
    stamp,
    upstream_headers,
)
from gateway.sent import by_name


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"{",
        b"[]",
        b'"text"',
        b"null",
        b"\xef\xbb\xbf{}",
        b'{"a": NaN}',
        b'{"a": Infinity}',
        b'{"a": -Infinity}',
        b'{"a": 1e999}',
        b'{"a": "\\ud800"}',
        b'{"a": "\xed\xa0\x80"}',
        b'{"a": "\xff"}',
        b"{} {}",
        b"{}x",
        b"{'a': 1}",
        b'{"a": 1,}',
        b'{"a": "\x00"}',
        b"[" * 100_000,
    ],
)
def test_what_parsers_could_read_differently_is_refused(raw: bytes) -> None:
    with pytest.raises(Refused) as refused:
        clean_body(raw)
    assert refused.value.outcome is Outcome.BAD_REQUEST


@pytest.mark.parametrize("digits", [b"18446744073709551616", b"-9223372036854775809", b"1" * 400])
def test_a_whole_number_beyond_64_bits_is_refused_rather_than_rounded(digits: bytes) -> None:
    with pytest.raises(Refused, match=r"64 bits|number"):
        clean_body(b'{"seed": ' + digits + b"}")
    with pytest.raises(Refused):
        clean_body(b'{"a": [{"b": ' + digits + b"}]}")
    assert clean_body(b'{"prompt": "' + digits + b'"}') == {"prompt": digits.decode()}


@pytest.mark.parametrize("digits", [b"18446744073709551615", b"-9223372036854775808"])
def test_a_whole_number_of_64_bits_goes_on_as_it_is(digits: bytes) -> None:
    assert b'"seed":' + digits in stamp(clean_body(b'{"seed": ' + digits + b"}"), 0)


@given(st.recursive(st.integers() | st.floats(allow_nan=False) | st.text(), st.lists))
def test_a_number_goes_on_as_the_same_number_or_not_at_all(value: object) -> None:
    raw = json.dumps({"a": value}).encode()
    try:
        body = clean_body(raw)
    except Refused:
        return
    assert json.loads(stamp(body, 0))["a"] == json.loads(raw)["a"]


def test_responses_are_never_stored() -> None:
    for said in ({}, {"store": True}, {"store": None}):
        assert json.loads(stamp(dict(said), 0, "m", Surface.RESPONSES))["store"] is False
    assert "store" not in json.loads(stamp({}, 0, "m", Surface.CHAT))


@pytest.mark.parametrize(
    ("options", "hidden"),
    [
        (None, True),
        ({}, True),
        ({"include_usage": False}, True),
        ({"include_usage": True}, False),
        ({"other": True}, True),
    ],
)
def test_a_stream_is_made_to_end_with_its_usage(options: object, hidden: bool) -> None:
    body = {"stream": True, "stream_options": options}
    assert ask_usage(body, Surface.CHAT) is hidden
    assert body["stream_options"] == {**(options or {}), "include_usage": True}  # type: ignore[dict-item]


def test_usage_in_every_event_is_only_for_those_who_asked() -> None:
    body = {"stream": True, "stream_options": {"continuous_usage_stats": True}}
    assert ask_usage(body, Surface.CHAT)
    assert body["stream_options"] == {"continuous_usage_stats": False, "include_usage": True}
    body = {
        "stream": True,
        "stream_options": {"continuous_usage_stats": True, "include_usage": True},
    }
    assert not ask_usage(body, Surface.CHAT)
    assert body["stream_options"] == {"continuous_usage_stats": True, "include_usage": True}
    with pytest.raises(Refused, match="include_usage"):
        ask_usage({"stream": True, "stream_options": {"include_usage": "yes"}}, Surface.CHAT)


def test_usage_is_not_asked_of_what_is_no_stream_or_bears_it_anyway() -> None:
    for body, surface in (
        ({}, Surface.CHAT),
        ({"stream": False}, Surface.CHAT),
        ({"stream": True}, Surface.MESSAGES),
    ):
        assert not ask_usage(body, surface)
        assert "stream_options" not in body
    with pytest.raises(Refused, match="stream_options"):
        ask_usage({"stream": True, "stream_options": 7}, Surface.CHAT)


def nested(levels: int) -> bytes:
    return b'{"a":' * levels + b"1" + b"}" * levels


def test_nesting_is_bounded_and_wide_bodies_are_not_deep() -> None:
    assert clean_body(nested(MAX_DEPTH))
    with pytest.raises(Refused, match="nested deeper"):
        clean_body(nested(MAX_DEPTH + 1))
    with pytest.raises(Refused, match="nested deeper"):
        clean_body(b'{"a":[1,' + nested(MAX_DEPTH + 1) + b"]}")
    with pytest.raises(Refused, match="nested deeper"):  # also beside what is read a second time
        clean_body(b'{"a":[1234567890123456789,' + nested(1000) + b"]}")
    assert clean_body(b'{"a":[' + b"[]," * 10_000 + b"[]]}")


def test_of_duplicate_keys_one_is_left_and_the_engine_sees_the_same_one() -> None:
    body = clean_body(b'{"model":"a","priority":-5,"model":"b","priority":-9}')
    assert body == {"model": "b"}
    assert json.loads(stamp(body, 3)) == {"model": "b", "priority": 3}


@pytest.mark.parametrize("key", sorted(STRIPPED_KEYS))
def test_a_callers_orders_to_the_engine_are_dropped(key: str) -> None:
    assert clean_body(json.dumps({key: 1, "keep": 2}).encode()) == {"keep": 2}


def test_session_ids_in_extra_arguments_are_dropped_and_others_kept() -> None:
    raw = b'{"vllm_xargs": {"session_id": "x", "priority": 1, "other": 2}}'
    assert clean_body(raw) == {"vllm_xargs": {"other": 2}}
    assert clean_body(b'{"vllm_xargs": 7}') == {"vllm_xargs": 7}


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)


@given(
    st.dictionaries(st.text() | st.sampled_from(sorted(STRIPPED_KEYS)), json_values),
    st.integers(-1000, 1000),
)
def test_the_engine_reads_what_we_read_with_our_priority(
    body: dict[str, object], priority: int
) -> None:
    clean = clean_body(json.dumps(body).encode())
    sent = json.loads(stamp(clean, priority))
    assert sent["priority"] == priority
    assert STRIPPED_KEYS.isdisjoint(clean)
    kept = {key: value for key, value in body.items() if key not in STRIPPED_KEYS}
    if "vllm_xargs" not in kept:
        assert {k: v for k, v in sent.items() if k != "priority"} == kept


def test_the_engines_name_of_the_model_is_stamped() -> None:
    assert json.loads(stamp({"model": "alias"}, 0, "real"))["model"] == "real"


BYPASSES = [
    (b"X-Vllm-Priority", b"-100"),
    (b"x-vllm-priority", b"-100"),
    (b"X-VLLM-PRIORITY", b"-100"),
    (b"x-data-parallel-rank", b"1"),
    (b"X-Session-ID", b"s"),
    (b"authorization", b"Bearer secret"),
    (b"x-api-key", b"secret"),
    (b"cookie", b"c=1"),
    (b"host", b"evil"),
    (b"content-length", b"5"),
    (b"transfer-encoding", b"chunked"),
    (b"connection", b"x-vllm-priority"),
    (b"x-forwarded-for", b"1.2.3.4"),
    (b"anything-new", b"1"),
]


def test_no_header_but_the_allowed_ones_reaches_an_engine() -> None:
    sent = upstream_headers(by_name(BYPASSES), "rid", 7)
    assert sent == [
        (b"content-type", b"application/json"),
        (b"x-request-id", b"rid"),
        (b"x-vllm-priority", b"7"),
        (b"accept", b"*/*"),
    ]


PARENT = b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def test_trace_context_passes_once_and_well_formed() -> None:
    sent = dict(
        upstream_headers(by_name([(b"Traceparent", PARENT), (b"tracestate", b"a=b")]), "r", 0)
    )
    assert sent[b"traceparent"] == PARENT
    assert sent[b"tracestate"] == b"a=b"


@pytest.mark.parametrize(
    "headers",
    [
        [(b"traceparent", PARENT), (b"TraceParent", PARENT)],
        [(b"traceparent", PARENT + b"\r\nx-vllm-priority: -1")],
        [(b"traceparent", PARENT + b" ")],
        [(b"tracestate", b"a=b")],
    ],
)
def test_doubtful_trace_context_is_dropped(headers: list[tuple[bytes, bytes]]) -> None:
    names = [name for name, _ in upstream_headers(by_name(headers), "r", 0)]
    assert b"traceparent" not in names
    assert b"tracestate" not in names


def test_accept_passes_only_as_one_of_the_known_values() -> None:
    assert dict(upstream_headers(by_name([(b"accept", b"text/event-stream")]), "r", 0))[
        b"accept"
    ] == (b"text/event-stream")
    folded = upstream_headers(by_name([(b"accept", b"text/event-stream\r\n x: y")]), "r", 0)
    assert dict(folded)[b"accept"] == b"*/*"


@given(st.lists(st.tuples(st.binary(max_size=20), st.binary(max_size=80)), max_size=8))
def test_no_header_value_that_passes_can_end_a_line(headers: list[tuple[bytes, bytes]]) -> None:
    for name, value in upstream_headers(by_name(headers), "r", 0):
        assert b"\r" not in name + value
        assert b"\n" not in name + value


@pytest.mark.parametrize(
    ("sent", "kept"),
    [
        ([b"abc-1.2_X"], "abc-1.2_X"),
        ([], "fresh"),
        ([b""], "fresh"),
        ([b"a b"], "fresh"),
        ([b"x" * 65], "fresh"),
        ([b"a\n"], "fresh"),
        ([b"a", b"b"], "fresh"),
        ([b"\xff"], "fresh"),
    ],
)
def test_a_well_formed_request_id_is_kept(sent: list[bytes], kept: str) -> None:
    assert request_id(by_name([(b"X-Request-ID", value) for value in sent]), "fresh") == kept


def test_every_stripped_key_is_stripped_from_the_extra_arguments_too() -> None:
    extra = dict.fromkeys(STRIPPED_KEYS, "x") | {"harmless": 1}
    cleaned = clean_body(orjson.dumps({"model": "m", "vllm_xargs": extra}))
    assert cleaned["vllm_xargs"] == {"harmless": 1}


def test_beam_search_is_refused_because_its_requests_escape_the_stamp() -> None:
    with pytest.raises(Refused, match="use_beam_search"):
        clean_body(b'{"model":"m","use_beam_search":true}')
    assert clean_body(b'{"model":"m","use_beam_search":false}')["model"] == "m"


@pytest.mark.parametrize("junk", [b"[]", b"{}", b"1"])
def test_a_body_of_nothing_but_structure_is_refused_before_it_is_parsed(junk: bytes) -> None:
    many = b",".join([junk] * (MAX_STRUCTURE + 1))
    with pytest.raises(Refused, match="brackets and commas"):
        clean_body(b'{"model":"m","metadata":[' + many + b"]}")

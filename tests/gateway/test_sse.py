import json
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.domain import Surface
from gateway.sse import (
    END_RULES,
    MAX_EVENT_BYTES,
    TAIL_BYTES,
    BodyFacts,
    StreamScanner,
    scan_answer,
    scan_body,
)
from tests.gateway.scripted import DONE, event

RULE = END_RULES[Surface.CHAT]
FACTS = (
    "events",
    "done",
    "error",
    "error_event",
    "error_code",
    "finish_reason",
    "prompt_tokens",
    "completion_tokens",
    "complete",
)
USAGE = ',"usage":{"prompt_tokens":7,"total_tokens":16,"completion_tokens":9}'
ERROR = b'data: {"error":{"message":"no \\"code\\": 404","type":"x","param":null,"code":503}}\n\n'


def scan(*parts: bytes) -> dict[str, Any]:
    scanner = StreamScanner(RULE)
    for part in parts:
        scanner.feed(part)
    return {name: getattr(scanner, name) for name in FACTS}


def test_a_stream_with_finish_reason_and_mark_is_complete() -> None:
    facts = scan(event("a"), event("b"), event("", "stop"), DONE)
    assert facts == {
        "events": 4,
        "done": True,
        "error": None,
        "error_event": 0,
        "error_code": None,
        "finish_reason": "stop",
        "prompt_tokens": None,
        "completion_tokens": None,
        "complete": True,
    }


@pytest.mark.parametrize("surface", [Surface.CHAT, Surface.COMPLETIONS])
def test_every_streaming_surface_has_the_openai_end_rule(surface: Surface) -> None:
    assert END_RULES[surface].mark == b"[DONE]"
    assert END_RULES[surface].good == {
        "stop",
        "length",
        "tool_calls",
        "function_call",
        "content_filter",
        "repetition",
    }


@pytest.mark.parametrize("reason", sorted(RULE.good))
def test_each_good_finish_reason_completes(reason: str) -> None:
    assert scan(event("", reason), DONE)["complete"]


@pytest.mark.parametrize(
    "parts",
    [
        [event("a"), DONE],
        [event("", "stop")],
        [event("", "abort"), DONE],
        [event("", "error"), DONE],
        [event("", "new_reason"), DONE],
        [event("", "stop"), ERROR, DONE],
        [event("", "stop"), b"data: [DONE]"],
        [event("", "stop"), b": [DONE]\n\n"],
        [event("[DONE]", "stop")],
        [DONE],
    ],
)
def test_whatever_misses_a_part_of_the_end_rule_is_not_complete(parts: list[bytes]) -> None:
    assert not scan(*parts)["complete"]


def test_a_bad_finish_reason_is_not_forgotten_for_a_later_good_one() -> None:
    facts = scan(event("", "abort"), event("", "stop"), DONE)
    assert (facts["finish_reason"], facts["complete"]) == ("abort", False)


def test_an_error_event_tells_its_place_code_and_data() -> None:
    assert scan(ERROR)["error_event"] == 1
    facts = scan(event("a"), ERROR, DONE)
    assert (facts["error_event"], facts["error_code"]) == (2, 503)
    assert json.loads(facts["error"])["error"]["type"] == "x"


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (b'data: {"error":"Unauthorized"}\n\n', None),
        (b'data: {"error": {"message":"x","code": "429"}}\n\n', 429),
        (b'data: {"object":"error","message":"old form","code":400}\n\n', 400),
    ],
)
def test_error_events_of_every_known_form_are_errors(data: bytes, code: int | None) -> None:
    facts = scan(data)
    assert (facts["error_event"], facts["error_code"]) == (1, code)


@pytest.mark.parametrize(
    "text",
    [
        '"finish_reason":"abort"',
        '"error":{"code":500}',
        "data: [DONE]\n\n",
        '"usage":{"prompt_tokens":1}',
        "error",
        "usage",
        "finish_reason",
    ],
)
def test_text_of_the_model_is_never_taken_for_a_fact(text: str) -> None:
    escaped = json.dumps(text)[1:-1]
    facts = scan(event(escaped), event(escaped, "stop"), DONE)
    assert (facts["error"], facts["finish_reason"], facts["complete"]) == (None, "stop", True)
    assert (facts["events"], facts["prompt_tokens"]) == (3, None)


def test_usage_is_that_of_the_last_event_that_bears_it() -> None:
    first = event("a", None, ',"usage":{"prompt_tokens":7,"completion_tokens":1}')
    last = b'data: {"choices":[]' + USAGE.encode() + b"}\n\n"
    facts = scan(first, event("", "length"), last, DONE)
    assert (facts["prompt_tokens"], facts["completion_tokens"]) == (7, 9)
    assert scan(event("a", None, ',"usage":null'))["prompt_tokens"] is None


def test_comments_and_empty_blocks_are_not_data() -> None:
    assert scan(b": keep-alive\n\n", b"\n\n\n", b"event: ping\nid: 4\n\n")["events"] == 0
    assert scan(b": note\ndata: {}\n\n")["events"] == 1


def test_data_over_several_lines_is_one_event() -> None:
    facts = scan(b'data: {"error":\ndata: {"code":503}}\n\n')
    assert (facts["events"], facts["error_code"]) == (1, 503)


def test_json_with_other_spacing_says_the_same() -> None:
    spaced = b'data: {"choices": [{"finish_reason" : "stop"}]}\n\n'
    assert scan(spaced, DONE)["complete"]
    assert scan(b'data:{"choices":[{"finish_reason":  null}]}\n\n', DONE)["finish_reason"] is None


def test_open_bytes_are_those_of_the_event_that_is_not_whole() -> None:
    scanner = StreamScanner(RULE)
    scanner.feed(event("a") + b"data: {")
    assert (scanner.open_bytes, scanner.torn) == (7, False)
    scanner.feed(b"}\n")
    assert scanner.open_bytes == 9
    scanner.feed(b"\n")
    assert (scanner.open_bytes, scanner.events) == (0, 2)


def test_an_event_of_any_length_is_counted_in_bounded_memory() -> None:
    scanner = StreamScanner(RULE)
    huge = event("y" * (4 * MAX_EVENT_BYTES), "stop")
    for start in range(0, len(huge), 1000):
        scanner.feed(huge[start : start + 1000])
        assert len(scanner._block) <= MAX_EVENT_BYTES + 1000
    assert (scanner.events, scanner.finish_reason, scanner.torn) == (1, "stop", False)


def test_a_huge_comment_is_still_no_data() -> None:
    assert scan(b": " + b"data:" * MAX_EVENT_BYTES, b"\n\n")["events"] == 0


def cut(data: bytes, places: list[int]) -> list[bytes]:
    edges = [0, *sorted({place % (len(data) + 1) for place in places}), len(data)]
    return [data[a:b] for a, b in pairwise(edges)]


TEXT = st.text(alphabet=st.sampled_from('ab"\\:{}[]DONE \n\r,datfinsh_reuo'), max_size=30)
BLOCKS = st.one_of(
    st.builds(lambda t: event(json.dumps(t)[1:-1]), TEXT),
    st.builds(
        lambda t, f: event(json.dumps(t)[1:-1], f), TEXT, st.sampled_from(["stop", "abort", "x"])
    ),
    st.just(event("a", None, USAGE)),
    st.sampled_from(
        [DONE, ERROR, b": keep-alive\n\n", b"\n", b"data: a\ndata: b\n\n", b"data\n\n"]
    ),
    st.binary(max_size=20),
)


@settings(max_examples=400, deadline=None)
@given(st.lists(BLOCKS, max_size=8), st.booleans(), st.lists(st.integers(0, 5000), max_size=12))
def test_the_facts_do_not_depend_on_how_the_bytes_are_cut(
    blocks: list[bytes], crlf: bool, places: list[int]
) -> None:
    data = b"".join(blocks)
    if crlf:
        data = data.replace(b"\n", b"\r\n")
    whole = scan(data)
    assert scan(*cut(data, places)) == whole
    assert scan(*(data[i : i + 1] for i in range(len(data)))) == whole
    assert scan(*blocks) == whole or crlf


@settings(max_examples=60, deadline=None)
@given(
    st.integers(-3, 3),
    st.sampled_from([b"\n\n", b"\r\n\r\n", b"\n\r\n"]),
    st.lists(st.integers(0, MAX_EVENT_BYTES + TAIL_BYTES), max_size=4),
    st.integers(0, 6),
)
def test_events_about_as_long_as_the_bound_do_not_depend_on_the_cuts(
    over: int, end: bytes, places: list[int], before_end: int
) -> None:
    start, finish = b'data: {"text":"', b'","finish_reason":"stop"}'
    filler = b"z" * (MAX_EVENT_BYTES + over - len(start) - len(finish))
    data = start + filler + finish + end + ERROR
    places = [*places, len(data) - len(ERROR) - before_end]
    assert scan(*cut(data, places)) == scan(data)
    assert scan(data)["finish_reason"] == "stop"


def test_what_is_kept_of_a_huge_event_does_not_depend_on_a_cut_within_its_end() -> None:
    finish = b'"finish_reason":"stop"'
    head = b'data: {"text":"' + b"z" * MAX_EVENT_BYTES + b'",'
    data = head + finish + b" " * (TAIL_BYTES - len(finish)) + b"\n\n"
    assert scan(data)["finish_reason"] == scan(data[:-1], data[-1:])["finish_reason"] == "stop"


def test_events_with_different_line_ends_may_share_a_read() -> None:
    assert scan(b"data: a\r\n\r\ndata: b\n\n")["events"] == 2
    assert scan(b"data: a\r\n\r\n: b\n\ndata: c\n\n")["events"] == 2


def test_a_whole_answer_tells_its_finish_reason_and_usage() -> None:
    body = b'{"choices":[{"finish_reason":"length"},{"finish_reason":"stop"}]' + USAGE.encode()
    assert scan_body(body + b"}") == BodyFacts(False, None, "stop", 7, 9)


@pytest.mark.parametrize("total", ['"total_tokens":16,', ""])
@pytest.mark.parametrize("after", ["}", ',"prompt_tokens_details":null}'])
def test_usage_reads_alike_with_and_without_spaces(total: str, after: str) -> None:
    usage = f'"usage":{{"prompt_tokens":7,{total}"completion_tokens":9{after}'
    for text in (usage, usage.replace(":", ": ").replace(",", ", ")):
        facts = scan_body(b'{"usage":{"prompt_tokens":1,"completion_tokens":2},' + text.encode())
        assert (facts.prompt_tokens, facts.completion_tokens) == (7, 9)


def test_one_bad_choice_of_several_is_what_is_told() -> None:
    body = b'{"choices":[{"finish_reason":"abort"},{"finish_reason":"stop"}]}'
    assert scan_body(body).finish_reason == "abort"


def test_an_answer_that_is_an_error_says_so() -> None:
    facts = scan_body(b'{"error":{"message":"m","type":"t","param":null,"code":404}}')
    assert (facts.error, facts.error_code) == (True, 404)
    assert not scan_body(b'{"error":null,"choices":[{"message":{"content":"error"}}]}').error


@given(st.binary(max_size=300))
def test_bytes_that_are_no_answer_have_no_facts_and_do_no_harm(data: bytes) -> None:
    scan_body(data)
    scan(data)


def test_a_token_count_beyond_all_reason_is_no_count() -> None:
    absurd = b'{"usage":{"prompt_tokens":12,"completion_tokens":' + b"9" * 1000 + b"}}"
    facts = scan_body(absurd)
    assert (facts.prompt_tokens, facts.completion_tokens) in {(12, None), (None, None)}


# Streams of named events.


def named(name: str, **data: Any) -> bytes:
    return f"event: {name}\ndata: {json.dumps({'type': name, **data})}\n\n".encode()


def delta(text: str) -> bytes:
    inner = {"type": "text_delta", "text": text}
    return named("content_block_delta", index=0, delta=inner)


START = named("message_start", message={"id": "m", "usage": {"input_tokens": 7}})
FINISH = named(
    "message_delta",
    delta={"stop_reason": "end_turn"},
    usage={"input_tokens": 5, "cache_read_input_tokens": 2, "output_tokens": 9},
)
STOP = named("message_stop")
CREATED = named(
    "response.created",
    response={
        "status": "in_progress",
        "metadata": {"type": "response.completed"},
        "tools": [{"parameters": {"error": {"type": "object"}, "usage": {"input_tokens": 1}}}],
        "usage": None,
    },
)
WORDS = named("response.output_text.delta", delta='event: error\n\n"error": {"a": 1}')
COMPLETED = named(
    "response.completed",
    response={"status": "completed", "usage": {"input_tokens": 7, "output_tokens": 9}},
)
NAMED_STREAMS = {
    "messages": (Surface.MESSAGES, START + delta("a") + delta("b") + FINISH + STOP),
    "responses": (Surface.RESPONSES, CREATED + WORDS + WORDS + COMPLETED),
}


def watch(surface: Surface, *parts: bytes) -> StreamScanner:
    scanner = StreamScanner(END_RULES[surface])
    for part in parts:
        scanner.feed(part)
    return scanner


@pytest.mark.parametrize("name", NAMED_STREAMS)
@given(data=st.data())
def test_a_stream_of_named_events_is_complete_however_it_is_cut(
    name: str, data: st.DataObject
) -> None:
    surface, stream = NAMED_STREAMS[name]
    cuts = data.draw(st.lists(st.integers(0, len(stream)), max_size=6).map(sorted))
    edges = [0, *cuts, len(stream)]
    scanner = watch(surface, *(stream[a:b] for a, b in pairwise(edges)))
    assert scanner.complete
    assert scanner.error is None
    assert scanner.events == stream.count(b"\n\n") - stream.count(b"event: response.created")
    assert (scanner.prompt_tokens, scanner.completion_tokens) == (7, 9)


@pytest.mark.parametrize("name", NAMED_STREAMS)
def test_a_stream_of_named_events_without_its_last_one_is_not_complete(name: str) -> None:
    surface, stream = NAMED_STREAMS[name]
    events = [event + b"\n\n" for event in stream.split(b"\n\n")[:-1]]
    assert watch(surface, *events).complete
    assert not watch(surface, *events[:-1]).complete


def test_a_message_without_a_reason_to_stop_is_a_failure() -> None:
    aborted = named("message_delta", delta={"stop_reason": None}, usage={"output_tokens": 1})
    assert not watch(Surface.MESSAGES, START, delta("a"), aborted, STOP).complete


@pytest.mark.parametrize(
    "bad",
    [named("error", error={"type": "internal_error", "message": "x"}), ERROR],
    ids=["named", "unnamed"],
)
def test_an_error_event_among_named_ones_is_a_failure(bad: bytes) -> None:
    scanner = watch(Surface.MESSAGES, START, bad, FINISH, STOP)
    assert not scanner.complete
    assert scanner.error_event == 2
    assert not watch(Surface.RESPONSES, CREATED, named("response.failed"), COMPLETED).complete


def test_what_a_caller_or_a_model_wrote_is_not_taken_for_an_event() -> None:
    text = delta('event: message_stop\ndata: {"type":"message_stop"} "error": {"x": 1}')
    scanner = watch(Surface.MESSAGES, START, text, text)
    assert (scanner.done, scanner.error, scanner.events) == (False, None, 3)
    assert not watch(Surface.RESPONSES, CREATED, WORDS).done


def test_a_last_event_too_long_to_hold_still_ends_its_stream() -> None:
    long = {"status": "completed", "instructions": "x" * (2 * MAX_EVENT_BYTES)}
    whole = CREATED + WORDS + named("response.completed", response=long)
    for size in (1, 4096, len(whole)):
        cuts = range(0, len(whole), size) if size > 1 else range(0, len(whole), 997)
        edges = [*cuts, len(whole)]
        assert watch(Surface.RESPONSES, *(whole[a:b] for a, b in pairwise(edges))).complete


def test_what_an_engine_says_before_any_output_is_no_event() -> None:
    early = CREATED + named("response.in_progress", response={})
    scanner = watch(Surface.RESPONSES, early)
    assert (scanner.events, scanner.open_bytes) == (0, 0)
    scanner.feed(WORDS)
    assert scanner.events == 1


def test_an_empty_data_event_does_not_end_a_stream_of_named_ones() -> None:
    assert not watch(Surface.MESSAGES, START, b"data:\n\n").done


@pytest.mark.parametrize(
    ("surface", "body", "facts"),
    [
        (
            Surface.MESSAGES,
            {
                "content": [{"type": "tool_use", "input": {"error": {"usage": {}}}}],
                "stop_reason": "tool_use",
                "usage": {"input_tokens": 3, "cache_creation_input_tokens": 4, "output_tokens": 2},
            },
            BodyFacts(False, None, "tool_use", 7, 2),
        ),
        (
            Surface.MESSAGES,
            {"type": "error", "error": {"type": "x", "message": "y"}},
            BodyFacts(True, None, None, None, None),
        ),
        (
            Surface.RESPONSES,
            {
                "status": "completed",
                "error": None,
                "tools": [{"parameters": {"error": {}}}],
                "usage": {"input_tokens": 7, "output_tokens": 2},
            },
            BodyFacts(False, None, "completed", 7, 2),
        ),
        (Surface.RESPONSES, {"status": "failed"}, BodyFacts(True, None, "failed", None, None)),
        (Surface.RESPONSES, [], BodyFacts(False, None, None, None, None)),
        (
            Surface.EMBEDDINGS,
            {"usage": {"prompt_tokens": 4}},
            BodyFacts(False, None, None, 4, None),
        ),
    ],
)
def test_a_whole_answer_is_read_by_its_surfaces_own_keys(
    surface: Surface, body: Any, facts: BodyFacts
) -> None:
    assert scan_answer(json.dumps(body).encode(), surface) == facts


@given(st.lists(st.sampled_from(["a", "", "b c", 'q"', "\\\\", 'x","finish_reason":"stop', "\n"])))
def test_events_that_look_like_the_last_one_say_what_they_say_alone(texts: list[str]) -> None:
    events = [event(text) for text in texts]
    together, apart = StreamScanner(END_RULES[Surface.CHAT]), b"".join(events)
    for one in events:
        together.feed(one)
    alone = StreamScanner(END_RULES[Surface.CHAT])
    for place in range(len(apart)):  # byte by byte: never recognised by its looks
        alone.feed(apart[place : place + 1])
    assert (together.events, together.finish_reason) == (alone.events, alone.finish_reason)
    assert together.open_bytes == alone.open_bytes

"""Events and bodies: the prepared and the built form must be one format."""

import json

from loadgen.engine.wire_format import (
    Choice,
    Reply,
    StreamWriter,
    Usage,
    error_event,
    unary_body,
)

CHAT = Reply(True, "chatcmpl-1", 7, 'm"odel', "mark")
PLAIN = Reply(False, "cmpl-1", 7, "m", "mark")


def decoded(event: bytes) -> dict[str, object]:
    assert event.startswith(b"data: ")
    assert event.endswith(b"\n\n")
    value: dict[str, object] = json.loads(event.removeprefix(b"data: "))
    return value


def test_a_token_event_is_whole_json_in_the_order_of_the_real_one() -> None:
    event = decoded(StreamWriter(CHAT, 2).token(b'" hi"'))
    assert list(event) == ["id", "object", "created", "model", "choices"]
    assert event["model"] == 'm"odel'
    assert event["choices"] == [
        {
            "index": 2,
            "delta": {"content": " hi"},
            "logprobs": None,
            "finish_reason": None,
            "token_ids": None,
        }
    ]


def test_a_plain_token_event_has_text_in_place_of_a_delta() -> None:
    event = decoded(StreamWriter(PLAIN, 0).token(b'" hi"'))
    assert event["choices"] == [
        {
            "index": 0,
            "text": " hi",
            "logprobs": None,
            "finish_reason": None,
            "stop_reason": None,
            "prompt_token_ids": None,
            "token_ids": None,
        }
    ]


def test_the_built_event_without_extras_equals_the_prepared_one() -> None:
    for reply in (CHAT, PLAIN):
        writer = StreamWriter(reply, 1)
        assert writer.token_with(b'"x"') == writer.token(b'"x"')


def test_the_last_event_names_the_reason_and_the_usage_event_has_no_choice() -> None:
    writer = StreamWriter(CHAT, 0)
    last = decoded(writer.token_with(b'""', finish_reason="stop", stamp=True))
    assert '"finish_reason": "stop", "stop_reason": null' in json.dumps(last)
    assert last["system_fingerprint"] == "mark"
    usage = decoded(writer.usage(Usage(3, 4)))
    assert usage["choices"] == []
    assert usage["usage"] == {"prompt_tokens": 3, "total_tokens": 7, "completion_tokens": 4}


def test_an_error_event_ends_its_stream() -> None:
    error, done, rest = error_event(500, "broken", "InternalServerError").split(b"\n\n")
    assert json.loads(error.removeprefix(b"data: "))["error"]["code"] == 500
    assert (done, rest) == (b"data: [DONE]", b"")


def test_unary_bodies_hold_each_choice_and_the_usage() -> None:
    chat = json.loads(unary_body(CHAT, [Choice(0, "a", "stop")], Usage(1, 2)))
    assert chat["choices"][0]["message"]["content"] == "a"
    assert chat["usage"]["total_tokens"] == 3
    plain = json.loads(
        unary_body(PLAIN, [Choice(0, "a", "stop"), Choice(1, "b", "length")], Usage(1, 2))
    )
    assert [choice["text"] for choice in plain["choices"]] == ["a", "b"]

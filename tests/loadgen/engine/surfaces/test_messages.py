"""Anthropic's surface over real sockets."""

import httpx
import pytest

from loadgen.engine.launch import EngineProcess
from loadgen.engine.textmodel import TextModel
from tests.loadgen.engine.conftest import Start
from tests.loadgen.engine.surfaces.conftest import Post, events_of

PATH = "/v1/messages"
BODY = {
    "model": "simulated",
    "max_tokens": 4,
    "system": "Be brief.",
    "messages": [{"role": "user", "content": "Hello there"}],
}
CHAT = {
    "messages": [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Hello there"},
    ]
}


def test_a_message_has_the_count_of_its_chat_form_and_says_that_the_limit_ended_it(
    post: Post, text: TextModel
) -> None:
    answer = post(PATH, BODY).json()
    assert answer["type"] == "message"
    assert answer["content"][0]["type"] == "text"
    assert answer["stop_reason"] == "max_tokens"
    assert answer["usage"] == {"input_tokens": text.count_chat(CHAT), "output_tokens": 4}


def test_a_stream_goes_from_start_to_stop_without_an_end_mark(post: Post) -> None:
    events = events_of(post(PATH, {**BODY, "stream": True}).text)
    assert [event["type"] for event in events] == [
        "message_start",
        "content_block_start",
        *["content_block_delta"] * 4,
        "content_block_stop",
        "message_delta",
        "message_stop",
    ]
    said = "".join(event["delta"]["text"] for event in events[2:6])
    assert said == post(PATH, BODY).json()["content"][0]["text"]
    assert events[-2]["usage"]["output_tokens"] == 4
    assert events[0]["message"]["usage"]["output_tokens"] == 0


def test_a_natural_end_is_called_end_turn(post: Post) -> None:
    bodies = [
        {**BODY, "max_tokens": 2000, "messages": [{"role": "user", "content": f"Question {n}"}]}
        for n in range(3)
    ]
    answers = [post(PATH, body).json() for body in bodies]
    assert [answer["stop_reason"] for answer in answers] == ["end_turn"] * 3


def test_counting_tells_the_same_as_the_answers_usage(post: Post) -> None:
    body = {name: value for name, value in BODY.items() if name != "max_tokens"}
    counted = post(f"{PATH}/count_tokens", body).json()
    tokens = post(PATH, BODY).json()["usage"]["input_tokens"]
    expected = {"input_tokens": tokens, "context_management": {"original_input_tokens": tokens}}
    assert counted == expected


def test_an_unknown_model_is_refused_in_anthropics_form(post: Post) -> None:
    for path in (PATH, f"{PATH}/count_tokens"):
        answer = post(path, {**BODY, "model": "other"})
        assert answer.status_code == 404
        assert answer.json()["type"] == "error"
        assert answer.json()["error"]["type"] == "NotFoundError"


def test_a_body_that_does_not_fit_is_refused_in_openais_form(post: Post) -> None:
    answer = post(PATH, {**BODY, "max_tokens": 0})
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "body.max_tokens"


def test_a_prompt_beyond_the_context_is_refused(post: Post) -> None:
    long = {**BODY, "messages": [{"role": "user", "content": "word " * 17000}]}
    for path in (PATH, f"{PATH}/count_tokens"):
        answer = post(path, long)
        assert answer.status_code == 400
        assert "maximum context length is 16384" in answer.json()["error"]["message"]


def test_only_the_headers_priority_counts(post: Post, shared: EngineProcess) -> None:
    post(PATH, {**BODY, "priority": 5})
    post(PATH, {**BODY, "priority": 5}, x_vllm_priority="-7")
    seen = httpx.get(f"{shared.url}/sim/state").json()["requests"][-2:]
    assert [request["priority"] for request in seen] == [0, -7]
    assert seen[0]["path"] == PATH


@pytest.mark.parametrize("fault", ["busy-event=1", "error-event-after=3"])
def test_an_error_in_a_stream_is_an_event_that_tells_no_cause(start: Start, fault: str) -> None:
    engine = start("--time-scale", "20", "--fault", fault)
    answer = httpx.post(engine.url + PATH, json={**BODY, "stream": True}, timeout=20.0)
    assert answer.status_code == 200
    last = events_of(answer.text)[-1]
    assert last["type"] == "error"
    assert last["error"]["type"] == "internal_error"

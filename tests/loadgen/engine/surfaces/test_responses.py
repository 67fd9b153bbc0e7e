"""OpenAI's responses over real sockets."""

import httpx
import pytest

from loadgen.engine.launch import EngineProcess
from loadgen.engine.textmodel import TextModel
from tests.loadgen.engine.conftest import Start
from tests.loadgen.engine.surfaces.conftest import Post, events_of

PATH = "/v1/responses"
BODY = {"input": "Hello there", "instructions": "Be brief.", "max_output_tokens": 4}


def test_a_response_has_the_count_of_its_chat_form_and_is_incomplete_at_the_limit(
    post: Post, text: TextModel
) -> None:
    answer = post(PATH, BODY).json()
    chat = {
        "messages": [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "Hello there"},
        ]
    }
    assert answer["object"] == "response"
    assert answer["status"] == "incomplete"
    assert answer["incomplete_details"] == {"reason": "max_output_tokens"}
    assert answer["instructions"] == "Be brief."
    assert answer["usage"]["input_tokens"] == text.count_chat(chat)
    assert answer["usage"]["output_tokens"] == 4
    assert text.count_text(answer["output"][0]["content"][0]["text"]) == 4


def test_a_natural_end_is_completed(post: Post) -> None:
    answer = post(PATH, {"input": "Question", "max_output_tokens": 4000}).json()
    assert answer["status"] == "completed"
    assert answer["incomplete_details"] is None


def test_a_stream_is_numbered_and_ends_with_the_whole_response(post: Post) -> None:
    events = events_of(post(PATH, {**BODY, "stream": True}).text)
    assert [event["type"].removeprefix("response.") for event in events] == [
        "created",
        "in_progress",
        "output_item.added",
        "content_part.added",
        *["output_text.delta"] * 4,
        "output_text.done",
        "content_part.done",
        "output_item.done",
        "completed",
    ]
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    said = "".join(event.get("delta", "") for event in events)
    assert events[-1]["response"]["output"][0]["content"][0]["text"] == said
    assert events[-4]["text"] == said


def test_the_first_events_come_before_anything_is_computed(start: Start) -> None:
    engine = start("--fault", "hang-scheduler")
    body = {**BODY, "stream": True}
    with (
        httpx.Client(timeout=20.0) as client,
        client.stream("POST", engine.url + PATH, json=body) as answer,
    ):
        lines = answer.iter_lines()
        named = [next(lines) for _ in range(6)]
    assert named[0] == "event: response.created"
    assert named[3] == "event: response.in_progress"


def test_what_was_not_stored_cannot_be_asked_for(post: Post, shared: EngineProcess) -> None:
    answers = [
        post(PATH, {**BODY, "previous_response_id": "resp_1"}),
        httpx.get(f"{shared.url}{PATH}/resp_1"),
        post(f"{PATH}/resp_1/cancel", {}),
    ]
    for answer in answers:
        assert answer.status_code == 404
        assert answer.json()["error"]["type"] == "invalid_request_error"
        assert answer.json()["error"]["param"] == "response_id"
    assert post(f"{PATH}/resp_1/other", {}).json() == {"detail": "Not Found"}


def test_nothing_runs_in_the_background(post: Post) -> None:
    answer = post(PATH, {**BODY, "background": True})
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "background"


def test_the_header_for_priorities_wins_over_the_body(post: Post, shared: EngineProcess) -> None:
    post(PATH, {**BODY, "priority": 5})
    post(PATH, {**BODY, "priority": 5}, x_vllm_priority="2")
    seen = httpx.get(f"{shared.url}/sim/state").json()["requests"][-2:]
    assert [request["priority"] for request in seen] == [5, 2]


@pytest.mark.parametrize(("fault", "last"), [("busy-event=1", 2), ("error-event-after=5", 5)])
def test_a_stream_that_fails_breaks_off(start: Start, fault: str, last: int) -> None:
    engine = start("--time-scale", "20", "--fault", fault)
    got: list[str] = []
    with (
        httpx.Client(timeout=20.0) as client,
        client.stream("POST", engine.url + PATH, json={**BODY, "stream": True}) as answer,
        pytest.raises(httpx.RemoteProtocolError, match="incomplete chunked read"),
    ):
        got.extend(line for line in answer.iter_lines() if line.startswith("event: "))
    assert len(got) == last

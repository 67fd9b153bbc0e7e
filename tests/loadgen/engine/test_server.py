"""The server over real sockets: answers, refusals, cancellation, shutdown, faults."""

import json
import os
import signal
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import pytest

from loadgen.engine.launch import EngineProcess
from loadgen.engine.textmodel import TextModel

Start = Callable[..., EngineProcess]

CHAT = "/v1/chat/completions"
PLAIN = "/v1/completions"
EXACT = {"ignore_eos": True, "min_tokens": 5, "max_tokens": 5}
HELLO = [{"role": "user", "content": "Hello there, engine."}]
LONG_RUN = {"prompt": "Hello", "ignore_eos": True, "max_tokens": 16000}
WAIT_S = 10.0


def post(engine: EngineProcess, path: str, body: Any, **headers: str) -> httpx.Response:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return httpx.post(engine.url + path, json=body, headers=named, timeout=WAIT_S)


def events_of(response: httpx.Response) -> list[Any]:
    """The data events of a finished stream; [DONE] stays a text."""
    lines = [line.removeprefix("data: ") for line in response.text.split("\n\n") if line]
    return [line if line == "[DONE]" else json.loads(line) for line in lines]


def metric(engine: EngineProcess, name: str) -> float:
    page = httpx.get(f"{engine.url}/metrics", timeout=WAIT_S).text
    for line in page.splitlines():
        if line.startswith((f"{name}{{", f"{name} ")):
            return float(line.rsplit(" ", 1)[1])
    raise AssertionError(f"no metric {name}")


def until(condition: Callable[[], bool]) -> None:
    limit = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < limit, "the state never came"
        time.sleep(0.01)


@contextmanager
def stream(engine: EngineProcess, body: dict[str, Any], path: str = PLAIN) -> Iterator[Any]:
    """An open stream: yields an iterator over its data events as text."""
    whole = {**body, "stream": True}
    with (
        httpx.Client(timeout=WAIT_S) as client,
        client.stream("POST", engine.url + path, json=whole) as response,
    ):
        assert response.status_code == 200
        lines = response.iter_lines()
        yield (line.removeprefix("data: ") for line in lines if line)


def send_half_open(engine: EngineProcess, body: dict[str, Any]) -> socket.socket:
    """A request on a socket of its own, answer unread."""
    raw = json.dumps(body).encode()
    host, port = engine.url.removeprefix("http://").rsplit(":", 1)
    sock = socket.create_connection((host, int(port)), timeout=WAIT_S)
    head = f"POST {PLAIN} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
    sock.sendall(f"{head}content-length: {len(raw)}\r\n\r\n".encode() + raw)
    return sock


# --- answers ---


def test_a_chat_answer_has_the_exact_length_and_the_counted_prompt(
    shared: EngineProcess, text: TextModel
) -> None:
    body = {"messages": HELLO, **EXACT}
    answer = post(shared, CHAT, body).json()
    assert answer["object"] == "chat.completion"
    assert answer["id"].startswith("chatcmpl-")
    assert answer["choices"][0]["message"]["role"] == "assistant"
    assert answer["choices"][0]["finish_reason"] == "length"
    assert answer["usage"]["completion_tokens"] == 5
    assert answer["usage"]["prompt_tokens"] == text.count_chat(body)
    assert text.count_text(answer["choices"][0]["message"]["content"]) == 5


def test_a_chat_stream_opens_with_the_role_and_has_one_event_per_token(
    shared: EngineProcess,
) -> None:
    body = {"messages": HELLO, **EXACT, "stream": True, "stream_options": {"include_usage": True}}
    response = post(shared, CHAT, body)
    events = events_of(response)
    assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert events[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    content = events[1:6]
    assert [event["choices"][0]["finish_reason"] for event in content] == [None] * 4 + ["length"]
    assert events[6]["choices"] == []
    assert events[6]["usage"]["completion_tokens"] == 5
    assert events[7:] == ["[DONE]"]


def test_stream_and_unary_say_the_same_and_another_prompt_says_something_else(
    shared: EngineProcess,
) -> None:
    def said(body: dict[str, Any]) -> str:
        return str(post(shared, PLAIN, body).json()["choices"][0]["text"])

    body = {"prompt": "One", "ignore_eos": True, "max_tokens": 20}
    events = events_of(post(shared, PLAIN, {**body, "stream": True}))
    streamed = "".join(event["choices"][0]["text"] for event in events[:-1])
    assert streamed == said(body)
    assert said({**body, "prompt": "Two"}) != streamed
    assert said({**body, "seed": 7}) != streamed


def test_a_natural_end_comes_within_the_limit_and_is_called_stop(shared: EngineProcess) -> None:
    body = {"prompt": [f"Question {number}" for number in range(8)], "max_tokens": 400}
    answer = post(shared, PLAIN, body).json()
    reasons = [choice["finish_reason"] for choice in answer["choices"]]
    assert "stop" in reasons
    assert 8 <= answer["usage"]["completion_tokens"] <= 8 * 400


def test_prompts_and_n_multiply_and_each_prompt_counts_once(
    shared: EngineProcess, text: TextModel
) -> None:
    body = {"prompt": ["One two three", "Four"], "n": 2, **EXACT}
    answer = post(shared, PLAIN, body).json()
    assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2, 3]
    assert answer["usage"]["completion_tokens"] == 20
    expected = text.count_text("One two three") + text.count_text("Four")
    assert answer["usage"]["prompt_tokens"] == expected


def test_token_ids_are_a_prompt_and_are_returned_when_asked_for(shared: EngineProcess) -> None:
    body = {"prompt": [10, 11, 12], **EXACT, "return_token_ids": True}
    answer = post(shared, PLAIN, body).json()
    assert answer["usage"]["prompt_tokens"] == 3
    assert len(answer["choices"][0]["token_ids"]) == 5
    events = events_of(post(shared, PLAIN, {**body, "stream": True}))
    streamed = [token for event in events[:-1] for token in event["choices"][0]["token_ids"]]
    assert streamed == answer["choices"][0]["token_ids"]


def test_continuous_usage_counts_up_with_every_event(shared: EngineProcess) -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    body = {"messages": HELLO, **EXACT, "stream": True, "stream_options": options}
    events = events_of(post(shared, CHAT, body))[:-1]
    assert [event["usage"]["completion_tokens"] for event in events] == [0, 1, 2, 3, 4, 5, 5]


def test_the_output_is_clamped_to_the_context_without_a_word(shared: EngineProcess) -> None:
    body = {"prompt": [5] * 16380, "ignore_eos": True, "max_tokens": 100}
    answer = post(shared, PLAIN, body)
    assert answer.status_code == 200
    assert answer.json()["usage"]["completion_tokens"] == 4


def test_a_request_id_becomes_part_of_the_answers_id(shared: EngineProcess) -> None:
    answer = post(shared, PLAIN, {"prompt": "x", **EXACT}, x_request_id="abc-123")
    assert answer.json()["id"] == "cmpl-abc-123"


CHAT_BODIES: list[dict[str, Any]] = [
    {"messages": HELLO},
    {"messages": [{"role": "system", "content": "Be brief. «é» 漢字 🙂"}, *HELLO]},
    {
        "messages": [
            {
                "role": "user",
                "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}],
            }
        ]
    },
    {
        "messages": [
            *HELLO,
            {
                "role": "assistant",
                "content": None,
                "tool_calls": [
                    {
                        "id": "c1",
                        "type": "function",
                        "function": {"name": "look_up", "arguments": '{"key": "<a&b>"}'},
                    }
                ],
            },
            {"role": "tool", "tool_call_id": "c1", "content": "found"},
        ],
        "tools": [{"type": "function", "function": {"name": "look_up", "parameters": {"x": 1}}}],
    },
]


@pytest.mark.parametrize("body", CHAT_BODIES, ids=["plain", "system", "parts", "tools"])
def test_tokenize_usage_and_the_text_model_count_alike(
    shared: EngineProcess, text: TextModel, body: dict[str, Any]
) -> None:
    tokenized = post(shared, "/tokenize", body).json()
    usage = post(shared, CHAT, {**body, **EXACT}).json()["usage"]
    assert tokenized["count"] == usage["prompt_tokens"] == text.count_chat(body)
    assert tokenized["tokens"] == text.chat_ids(body)
    assert tokenized["max_model_len"] == 16384


def test_tokenize_takes_a_plain_prompt_and_shows_its_pieces(shared: EngineProcess) -> None:
    body = {"prompt": "Hello there", "return_token_strs": True}
    answer = post(shared, "/tokenize", body).json()
    assert answer["count"] == len(answer["tokens"]) == len(answer["token_strs"]) == 2


def test_models_version_health_and_ping_answer(shared: EngineProcess) -> None:
    card = httpx.get(f"{shared.url}/v1/models").json()["data"][0]
    assert (card["id"], card["max_model_len"]) == ("simulated", 16384)
    assert "simulated" in httpx.get(f"{shared.url}/version").json()["version"]
    for path in ("/health", "/ping"):
        answer = httpx.get(shared.url + path)
        assert (answer.status_code, answer.content) == (200, b"")


# --- refusals ---


@pytest.mark.parametrize(
    ("path", "body", "status", "kind", "param", "message"),
    [
        (CHAT, {"messages": HELLO, "model": "no"}, 404, "NotFoundError", "model", "does not exist"),
        (CHAT, {}, 400, "Bad Request", "body.messages", "Field required"),
        (CHAT, [], 400, "Bad Request", "body", "1 validation error"),
        (PLAIN, {"prompt": "x", "priority": "high"}, 400, "Bad Request", "body.priority", "int_p"),
        (PLAIN, {"prompt": "x", "max_tokens": "a"}, 400, "Bad Request", "body.max_tokens", "int_p"),
        (PLAIN, {"prompt": [5] * 16385}, 400, "BadRequestError", "input_tokens", "at least 16385"),
        (PLAIN, {"prompt": [5] * 16384}, 400, "BadRequestError", "max_tokens", "got 0."),
        (PLAIN, {"prompt": "x", "max_tokens": 0}, 400, "BadRequestError", "max_tokens", "got 0."),
        (PLAIN, {"prompt": []}, 400, "BadRequestError", None, "at least one prompt"),
        (PLAIN, {"prompt": "x", "min_tokens": 17}, 400, "BadRequestError", None, "min_tokens must"),
        (PLAIN, {"prompt": "x", "n": 0}, 400, "BadRequestError", None, "n must be"),
        (
            PLAIN,
            {"prompt": "x", "stream_options": {"include_usage": True}},
            400,
            "BadRequestError",
            "stream_options",
            "stream=True",
        ),
        (
            CHAT,
            {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]},
            400,
            "BadRequestError",
            None,
            "only text parts",
        ),
        (
            CHAT,
            {"messages": [{"role": "wizard", "content": ""}]},
            400,
            "BadRequestError",
            None,
            "role",
        ),
        (PLAIN, {"prompt": ""}, 400, "BadRequestError", "prompt", "must be provided"),
        (PLAIN, {}, 400, "BadRequestError", "prompt", "must be provided"),
        (PLAIN, {"prompt": [10**6]}, 400, "BadRequestError", None, "out of vocabulary"),
        (PLAIN, {"prompt": [-1]}, 400, "Bad Request", "body.prompt.0", "greater than or equal"),
        (PLAIN, {"prompt": "x", "top_p": 2}, 400, "BadRequestError", "top_p", "must be in"),
        (CHAT, {"messages": []}, 400, "BadRequestError", None, "empty conversation"),
        (CHAT, [], 400, "Bad Request", "body", "valid dictionary"),
        ("/tokenize", {"model": "no", "prompt": "x"}, 404, "NotFoundError", "model", "not exist"),
    ],
)
def test_a_wrong_request_is_refused_in_the_engines_words(  # noqa: PLR0917 - one row of the table
    shared: EngineProcess,
    path: str,
    body: Any,
    status: int,
    kind: str,
    param: str | None,
    message: str,
) -> None:
    answer = post(shared, path, body)
    error = answer.json()["error"]
    assert (answer.status_code, error["code"], error["type"], error["param"]) == (
        status,
        status,
        kind,
        param,
    )
    assert message in error["message"]


def test_a_broken_body_is_refused_with_the_place_of_the_fault(shared: EngineProcess) -> None:
    head = {"content-type": "application/json"}
    answer = httpx.post(shared.url + PLAIN, content=b'{"prompt"', headers=head)
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "body.9"
    wrong_kind = httpx.post(
        shared.url + PLAIN, content=b"{}", headers={"content-type": "text/plain"}
    )
    assert wrong_kind.status_code == 400
    assert "Unsupported Media Type" in wrong_kind.json()["error"]["message"]


def test_unknown_paths_and_methods_are_refused_as_by_the_framework(shared: EngineProcess) -> None:
    wrong_method = httpx.get(shared.url + CHAT)
    assert (wrong_method.status_code, wrong_method.json()) == (
        405,
        {"detail": "Method Not Allowed"},
    )
    assert wrong_method.headers["allow"] == "POST"
    unknown = httpx.get(f"{shared.url}/nowhere")
    assert (unknown.status_code, unknown.json()) == (404, {"detail": "Not Found"})


def test_a_missing_model_and_unknown_fields_are_accepted(shared: EngineProcess) -> None:
    assert post(shared, PLAIN, {"prompt": "x", "surprise": 1, **EXACT}).status_code == 200


def test_an_api_key_guards_v1_and_nothing_else(start: Start) -> None:
    engine = start("--api-key", "one", "two", "--time-scale", "20")
    body = {"prompt": "x", **EXACT}
    refused = post(engine, PLAIN, body)
    assert (refused.status_code, refused.json()) == (401, {"error": "Unauthorized"})
    assert post(engine, PLAIN, body, authorization="Bearer three").status_code == 401
    assert post(engine, PLAIN, body, authorization="Bearer two").status_code == 200
    assert post(engine, "/tokenize", {"prompt": "x"}).status_code == 200
    assert httpx.get(f"{engine.url}/metrics").status_code == 200
    assert httpx.get(f"{engine.url}/sim/state").status_code == 404


def test_native_admission_answers_503_without_retry_after_and_counts_it(start: Start) -> None:
    engine = start("--max-num-queued-reqs", "1")
    with stream(engine, LONG_RUN) as events:
        next(events)
        answer = post(engine, PLAIN, {"prompt": "x"})
        assert answer.status_code == 503
        assert answer.json()["error"]["type"] == "Service Unavailable"
        assert "retry-after" not in answer.headers
    until(lambda: metric(engine, "vllm:num_requests_running") == 0)
    assert post(engine, PLAIN, {"prompt": "x", **EXACT}).status_code == 200
    page = httpx.get(f"{engine.url}/metrics").text
    name = (
        'vllm:admission_rejections_total{model_name="simulated",reason="max_num_queued_reqs"} 1.0'
    )
    assert name in page


def test_native_admission_by_tokens_counts_prompts_still_in_prefill(start: Start) -> None:
    engine = start("--max-num-queued-tokens", "1000", "--time-scale", "0.01")
    with send_half_open(engine, {"prompt": [5] * 1000}):
        until(lambda: metric(engine, "vllm:num_requests_running") == 1)
        assert post(engine, PLAIN, {"prompt": "x"}).status_code == 503


# --- what arrives at the engine ---


def test_the_priority_header_wins_and_the_state_page_shows_what_arrived(
    shared: EngineProcess,
) -> None:
    def last() -> dict[str, Any]:
        state = httpx.get(f"{shared.url}/sim/state").json()
        return dict(state["requests"][-1])

    body = {"prompt": "a secret text", "priority": 3, "session_id": "s", **EXACT}
    post(shared, PLAIN, {**body, "vllm_xargs": {"session_id": 1}})
    assert last()["priority"] == 3
    assert last()["vllm_xargs_keys"] == ["session_id"]
    post(shared, PLAIN, body, x_vllm_priority="-7", x_session_id="me")
    seen = last()
    assert (seen["priority"], seen["body_priority"]) == (-7, 3)
    assert seen["headers"] == {"x-vllm-priority": "-7", "x-session-id": "me"}
    assert "session_id" in seen["body_keys"]
    post(shared, PLAIN, body, x_vllm_priority="first")
    assert last()["priority"] == 3
    assert "a secret text" not in httpx.get(f"{shared.url}/sim/state").text


@pytest.mark.parametrize(("policy", "expected"), [("priority", "late"), ("fcfs", "early")])
def test_priority_orders_the_waiting_only_under_the_priority_policy(
    start: Start, policy: str, expected: str
) -> None:
    engine = start("--max-num-seqs", "1", "--scheduling-policy", policy, "--sim-state")
    with stream(engine, LONG_RUN) as blocker:
        next(blocker)
        early = send_half_open(engine, {**LONG_RUN, "max_tokens": 8000, "priority": 5})
        until(lambda: metric(engine, "vllm:num_requests_waiting") == 1)
        late = send_half_open(engine, {**LONG_RUN, "max_tokens": 8000, "priority": -5})
        until(lambda: metric(engine, "vllm:num_requests_waiting") == 2)
    # The blocker has left: exactly one of the two gets the seat. Closing the one that waits
    # empties the queue, closing the one that runs would let the other in.
    until(lambda: metric(engine, "vllm:num_requests_waiting") == 1)
    waiting, running = (early, late) if expected == "late" else (late, early)
    waiting.close()
    until(lambda: metric(engine, "vllm:num_requests_waiting") == 0)
    assert metric(engine, "vllm:num_requests_running") == 1
    prefilled = metric(engine, "vllm:prompt_tokens_total")
    running.close()
    until(lambda: metric(engine, "vllm:num_requests_running") == 0)
    # Only the blocker and the one that ran were ever prefilled.
    assert metric(engine, "vllm:prompt_tokens_total") == prefilled == 2


# --- cancellation ---


def test_a_caller_that_leaves_frees_its_seat_in_decode_and_moves_no_counter(start: Start) -> None:
    engine = start()
    with stream(engine, LONG_RUN) as events:
        next(events)
        assert metric(engine, "vllm:num_requests_running") == 1
    until(lambda: metric(engine, "vllm:num_requests_running") == 0)
    assert metric(engine, "vllm:kv_cache_usage_perc") == 0
    page = httpx.get(f"{engine.url}/metrics").text
    counts = [line for line in page.splitlines() if line.startswith("vllm:request_success_total")]
    assert len(counts) == 5
    assert all(line.endswith(" 0.0") for line in counts)


def test_callers_that_leave_in_prefill_and_in_the_queue_are_dropped(start: Start) -> None:
    # A hundred times slower than real time: the first prefill step lasts seconds.
    engine = start("--max-num-seqs", "1", "--max-num-batched-tokens", "256", "--time-scale", "0.02")
    running = send_half_open(engine, {**LONG_RUN, "prompt": [5] * 2000, "max_tokens": 100})
    until(lambda: metric(engine, "vllm:num_requests_running") == 1)
    waiting = send_half_open(engine, {**LONG_RUN, "prompt": [5] * 2000, "max_tokens": 100})
    until(lambda: metric(engine, "vllm:num_requests_waiting") == 1)
    waiting.close()
    until(lambda: metric(engine, "vllm:num_requests_waiting") == 0)
    assert metric(engine, "vllm:num_requests_running") == 1
    running.close()
    until(lambda: metric(engine, "vllm:num_requests_running") == 0)
    assert metric(engine, "vllm:prompt_tokens_total") == 0


def test_preemption_shows_in_its_counter_and_every_stream_still_gets_all_its_tokens(
    start: Start,
) -> None:
    flags = ("--max-model-len", "256", "--num-gpu-blocks-override", "20", "--time-scale", "50")
    engine = start(*flags)
    body = {"prompt": [[number] * 30 for number in range(6)], "ignore_eos": True, "max_tokens": 60}
    answer = post(engine, PLAIN, body).json()
    assert answer["usage"]["completion_tokens"] == 360
    assert metric(engine, "vllm:num_preemptions_total") > 0
    assert metric(engine, "vllm:prompt_tokens_total") == 180


# --- shutdown and faults ---


def refused(engine: EngineProcess) -> bool:
    try:
        httpx.get(f"{engine.url}/health")
    except httpx.TransportError as error:  # else it was taken, and cut as the port closed
        return isinstance(error, httpx.ConnectError)
    return False


def ends(sock: socket.socket) -> bool:
    """Whether the peer ends the answer before it falls silent."""
    try:
        while sock.recv(65536):
            continue
    except TimeoutError:
        return False
    return True


def test_sigterm_without_a_time_out_closes_the_port_and_leaves_open_streams_hanging(
    start: Start,
) -> None:
    engine = start()
    with send_half_open(engine, {**LONG_RUN, "stream": True}) as sock:
        assert sock.recv(65536).startswith(b"HTTP/1.1 200")
        os.kill(engine.pid, signal.SIGTERM)
        until(lambda: refused(engine))
        sock.settimeout(0.3)
        assert not ends(sock)
        assert engine.process.poll() is None
    assert engine.process.wait(WAIT_S) == 0


def test_sigterm_with_a_time_out_finishes_open_streams_and_fails_new_requests(start: Start) -> None:
    engine = start("--shutdown-timeout", "20")
    with stream(engine, {**LONG_RUN, "max_tokens": 150}) as events:
        next(events)
        os.kill(engine.pid, signal.SIGTERM)
        until(lambda: post(engine, PLAIN, {"prompt": "x"}).status_code == 500)
        assert httpx.get(f"{engine.url}/health").status_code == 200
        false_success = post(engine, PLAIN, {"prompt": [1, 2]})
        assert false_success.status_code == 200
        assert false_success.json()["choices"][0]["finish_reason"] == "abort"
        rest = list(events)
    assert rest[-1] == "[DONE]"
    assert len(rest) == 150
    assert engine.process.wait(WAIT_S) == 0


def test_a_stream_that_outlasts_the_shutdown_time_out_ends_with_abort(start: Start) -> None:
    engine = start("--shutdown-timeout", "0.2")
    with stream(engine, LONG_RUN) as events:
        next(events)
        os.kill(engine.pid, signal.SIGTERM)
        rest = list(events)
    assert rest[-1] == "[DONE]"
    assert json.loads(rest[-2])["choices"][0]["finish_reason"] == "abort"
    assert engine.process.wait(WAIT_S) == 0


def test_kill_after_dies_with_the_nth_event_sent(start: Start) -> None:
    engine = start("--fault", "kill-after=3")
    received: list[str] = []
    with pytest.raises(httpx.RemoteProtocolError), stream(engine, LONG_RUN) as events:
        received.extend(events)
    assert len(received) == 3
    assert engine.process.wait(WAIT_S) == 137


def test_hang_after_stops_all_progress_while_health_stays_good(start: Start) -> None:
    engine = start("--fault", "hang-after=3")
    with stream(engine, LONG_RUN) as events:
        for _ in range(3):
            next(events)
        steps = metric(engine, "vllm:iteration_tokens_total_count")
        time.sleep(0.2)
        assert metric(engine, "vllm:iteration_tokens_total_count") <= steps + 1
        assert metric(engine, "vllm:num_requests_running") == 1
        assert httpx.get(f"{engine.url}/health").status_code == 200


def test_error_event_after_breaks_one_stream_inside_its_200(start: Start) -> None:
    engine = start("--fault", "error-event-after=2")
    with stream(engine, LONG_RUN) as events:
        received = list(events)
    assert len(received) == 4
    assert json.loads(received[2])["error"]["code"] == 500
    assert received[3] == "[DONE]"
    assert post(engine, PLAIN, {"prompt": "x", **EXACT, "stream": True}).text.endswith("[DONE]\n\n")
    until(lambda: metric(engine, "vllm:num_requests_running") == 0)


def test_busy_event_answers_200_and_an_error_of_code_503_first(start: Start) -> None:
    engine = start("--fault", "busy-event=1")
    with stream(engine, LONG_RUN) as events:
        assert json.loads(next(events))["error"]["code"] == 503
        assert list(events) == ["[DONE]"]
    with stream(engine, {"prompt": "x", **EXACT}) as events:
        assert len(list(events)) == 6


def test_prompts_that_begin_alike_are_cached_where_asked_and_usage_and_counters_say_so(
    start: Start,
) -> None:
    flags = ("--enable-prefix-caching", "--enable-prompt-tokens-details", "--time-scale", "20")
    engine = start(*flags)
    head = "The same words come first in every one of these prompts. " * 12

    def usage(end: str, **more: Any) -> Any:
        messages = [{"role": "user", "content": head + end}]
        response = post(engine, CHAT, {"messages": messages, **EXACT, **more})
        if not more:
            return response.json()["usage"]
        return next(e["usage"] for e in events_of(response) if e != "[DONE]" and e.get("usage"))

    first = usage("one")
    cached = usage("two", stream=True, stream_options={"include_usage": True})
    assert first["prompt_tokens_details"]["cached_tokens"] == 0
    found = cached["prompt_tokens_details"]["cached_tokens"]
    assert found % 16 == 0
    assert cached["prompt_tokens"] - 32 < found < cached["prompt_tokens"]
    asked = first["prompt_tokens"] + cached["prompt_tokens"]
    assert metric(engine, "vllm:prefix_cache_queries_total") == asked
    assert metric(engine, "vllm:prefix_cache_hits_total") == found
    assert metric(engine, "vllm:prompt_tokens_cached_total") == found
    page = httpx.get(f"{engine.url}/metrics", timeout=WAIT_S).text
    assert 'enable_prefix_caching="True"' in page


def test_a_prompt_that_repeats_an_answer_finds_that_cached_too(start: Start) -> None:
    engine = start("--enable-prefix-caching", "--enable-prompt-tokens-details")
    ids = list(range(1000, 1040))
    body = {"prompt": ids, "return_token_ids": True, **EXACT, "max_tokens": 24, "min_tokens": 24}
    said = post(engine, PLAIN, body).json()["choices"][0]["token_ids"]
    again = post(engine, PLAIN, {"prompt": [*ids, *said, 7], **EXACT}).json()["usage"]
    assert again["prompt_tokens_details"]["cached_tokens"] == 48, "the last token has no KV yet"

"""Every surface before a simulated engine: counted as the engine counts, ended as it should."""

import json
from collections.abc import Iterator, Mapping
from typing import Any

import httpx
import pytest

from tests.e2e.configs import Served, write_config
from tests.e2e.conftest import FAST, Engines
from tests.e2e.harness import Front, caller, front, refused

HI = [{"role": "user", "content": "Hello there."}]
WEATHER = {"type": "object", "properties": {"place": {"type": "string"}}}
SURFACES = [
    *("chat", "completions", "responses", "messages", "count_tokens", "embeddings", "tokenize"),
    *("detokenize", "score", "rerank", "classify", "pooling", "transcriptions", "models"),
]


@pytest.fixture(scope="module")
def gateway(engines: Engines, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Front]:
    """A gateway that serves every surface, an adapter, and a model with the default surfaces."""
    (engine,) = engines((*FAST, "--lora-modules", "engine-lora=/nowhere"))
    every = {
        "surfaces": SURFACES,
        "transcription_tokens": 50,
        "loras": {"tuned": "engine-lora"},
    }
    path, keys = write_config(
        tmp_path_factory.mktemp("surfaces"),
        {"simulated": Served([engine.url], more=every), "usual": Served([engine.url])},
        {
            "everything": {"service_class": "interactive"},
            "adapter": {"service_class": "interactive", "models": ["tuned"]},
            "no-adapter": {"service_class": "interactive", "models": ["simulated"]},
            "only-messages": {"service_class": "interactive", "surfaces": ["messages"]},
        },
    )
    with front(path, keys, [engine.url]) as found:
        yield found


async def get(gateway: Front, path: str, method: str = "GET", key: str = "") -> httpx.Response:
    async with caller() as client:
        return await client.request(
            method, gateway.url + path, headers=gateway.headers(key or "everything")
        )


async def served(gateway: Front, path: str, **body: Any) -> tuple[Any, dict[str, Any]]:
    """The answer's JSON and the log line of one completed request."""
    async with gateway.expect(completed=1):
        answer = await gateway.ask({"model": "simulated", **body}, path)
        assert answer.status_code == 200, answer.text
    line = gateway.requests()[-1]
    assert line["outcome"] == "completed"
    return answer.json(), line


TOOLS = [{"name": "weather", "description": "d \u2603", "input_schema": WEATHER}]
ANTHROPIC: dict[str, dict[str, Any]] = {
    "a text": {"messages": HI},
    "a system text": {"messages": HI, "system": "Be brief."},
    "system blocks": {
        "messages": HI,
        "system": [{"type": "text", "text": "Be"}, {"type": "text", "text": " brief."}],
    },
    "several turns": {
        "messages": [*HI, {"role": "assistant", "content": "Hi!"}, {"role": "user", "content": ""}]
    },
    "blocks": {
        "messages": [
            {
                "role": "user",
                "content": [{"type": "text", "text": "One"}, {"type": "text", "text": "two"}],
            }
        ]
    },
    "tools": {"messages": HI, "tools": TOOLS},
    "a tool's use and result": {
        "tools": TOOLS,
        "messages": [
            *HI,
            {
                "role": "assistant",
                "content": [
                    {"type": "thinking", "thinking": "hm", "signature": "s"},
                    {"type": "text", "text": "let me see"},
                    {"type": "tool_use", "id": "t", "name": "weather", "input": {"place": "Ulm"}},
                ],
            },
            {
                "role": "user",
                "content": [
                    {
                        "type": "tool_result",
                        "tool_use_id": "t",
                        "content": [{"type": "text", "text": "21 \u00b0C"}],
                    },
                    {"type": "text", "text": "And?"},
                ],
            },
        ],
    },
}


@pytest.mark.parametrize("name", ANTHROPIC)
async def test_messages_are_counted_as_the_engine_counts_them(gateway: Front, name: str) -> None:
    answer, line = await served(gateway, "/v1/messages", max_tokens=3, **ANTHROPIC[name])
    assert answer["usage"]["input_tokens"] == line["prompt_tokens"] == line["engine_prompt_tokens"]
    assert answer["usage"]["output_tokens"] == line["completion_tokens"]
    counted, line = await served(gateway, "/v1/messages/count_tokens", **ANTHROPIC[name])
    assert counted["input_tokens"] == answer["usage"]["input_tokens"]
    assert "engine" not in line


CALL = {"type": "function_call", "call_id": "c", "name": "f", "arguments": '{"place": "Ulm"}'}
FUNCTION = {
    "type": "function",
    "name": "f",
    "description": "d",
    "parameters": WEATHER,
    "strict": None,
}
ITEMS: dict[str, dict[str, Any]] = {
    "a string": {"input": "Hello there."},
    "instructions": {"input": "Hello", "instructions": "Be brief."},
    "parts": {"input": [{"role": "user", "content": [{"type": "input_text", "text": "Hello"}]}]},
    "tools": {"input": "Weather?", "tools": [FUNCTION]},
    "a call and its output": {
        "tools": [FUNCTION],
        "input": [
            {"role": "user", "content": "Weather?"},
            CALL,
            {"type": "function_call_output", "call_id": "c", "output": "21 \u00b0C"},
        ],
    },
    "a turn": {
        "input": [
            {"role": "user", "content": "Hi"},
            {"role": "assistant", "content": "Hello!"},
            {"role": "user", "content": "More"},
        ]
    },
}


@pytest.mark.parametrize("name", ITEMS)
async def test_responses_are_counted_as_the_engine_counts_them(gateway: Front, name: str) -> None:
    answer, line = await served(gateway, "/v1/responses", max_output_tokens=3, **ITEMS[name])
    assert answer["usage"]["input_tokens"] == line["prompt_tokens"] == line["engine_prompt_tokens"]
    assert answer["usage"]["output_tokens"] == line["completion_tokens"]


BATCHES: dict[str, dict[str, Any]] = {
    "one text": {"input": "Hello there."},
    "texts": {"input": ["One", "and another \u2603"]},
    "ids": {"input": [1, 2, 3]},
    "lists of ids": {"input": [[1, 2], [3]]},
    "cut": {"input": "one two three four five", "truncate_prompt_tokens": 3},
    "a chat": {"messages": HI},
}


@pytest.mark.parametrize("path", ["/v1/embeddings", "/classify", "/pooling"])
@pytest.mark.parametrize("name", BATCHES)
async def test_inputs_are_counted_as_the_engine_counts_them(
    gateway: Front, path: str, name: str
) -> None:
    answer, line = await served(gateway, path, **BATCHES[name])
    assert answer["usage"]["prompt_tokens"] == line["prompt_tokens"]


@pytest.mark.parametrize("body", [{"prompt": "Hello \u2603"}, {"messages": HI}])
async def test_what_is_tokenised_is_counted_as_the_engine_counts_it(
    gateway: Front, body: dict[str, Any]
) -> None:
    answer, line = await served(gateway, "/tokenize", **body)
    assert answer["count"] == line["prompt_tokens"] == len(answer["tokens"])
    _, line = await served(gateway, "/detokenize", tokens=answer["tokens"])
    assert line["prompt_tokens"] == answer["count"]


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/score", {"text_1": "a query", "text_2": ["one", "two three"]}),
        ("/v1/score", {"text_1": "a query", "text_2": "one"}),
        ("/rerank", {"query": "a query", "documents": ["one", "two three"]}),
        ("/v1/rerank", {"query": "a query", "documents": ["one"]}),
        ("/v2/rerank", {"query": "a query", "documents": ["one"]}),
    ],
)
async def test_pairs_are_served_with_a_count_that_says_it_is_an_estimate(
    gateway: Front, path: str, body: dict[str, Any]
) -> None:
    before = await gateway.total("sluicegate_classification_seconds_count", method="estimate")
    answer, line = await served(gateway, path, **body)
    assert line["prompt_tokens"] >= 2
    assert answer["usage"]["prompt_tokens"] > 0
    after = await gateway.total("sluicegate_classification_seconds_count", method="estimate")
    assert after == before + 1


@pytest.mark.parametrize("stream", ["false", "true"])
async def test_a_file_is_transcribed_in_the_class_that_is_configured(
    gateway: Front, stream: str
) -> None:
    async with gateway.expect(completed=1), caller() as client:
        answer = await client.post(
            f"{gateway.url}/v1/audio/transcriptions",
            files={"file": ("a.wav", wav(), "audio/wav")},
            data={"model": "simulated", "stream": stream},
            headers=gateway.headers(),
        )
        assert answer.status_code == 200, answer.text
    assert (stream == "true") == answer.text.endswith("data: [DONE]\n\n")
    assert gateway.requests()[-1]["prompt_tokens"] == 50
    assert answer.headers["x-sluicegate-class"] == "short"


def wav() -> bytes:
    """A tenth of a second of silence."""
    data = b"\0\0" * 1600
    head = b"fmt " + (16).to_bytes(4, "little") + b"\1\0\1\0"
    head += (16000).to_bytes(4, "little") + (32000).to_bytes(4, "little") + b"\2\0\x10\0"
    chunk = b"WAVE" + head + b"data" + len(data).to_bytes(4, "little") + data
    return b"RIFF" + len(chunk).to_bytes(4, "little") + chunk


@pytest.mark.parametrize(
    ("path", "body", "last"),
    [
        ("/v1/messages", {"messages": HI, "max_tokens": 5}, "message_stop"),
        ("/v1/responses", {"input": "Hello", "max_output_tokens": 5}, "response.completed"),
    ],
)
async def test_a_stream_of_named_events_passes_whole_and_is_completed(
    gateway: Front, path: str, body: dict[str, Any], last: str
) -> None:
    async with gateway.expect(completed=1):
        answer = await gateway.ask({"model": "simulated", "stream": True, **body}, path)
    assert answer.headers["content-type"].startswith("text/event-stream")
    events = [json.loads(e.partition("data: ")[2]) for e in answer.text.strip().split("\n\n")]
    assert events[-1]["type"] == last
    line = gateway.requests()[-1]
    assert line["prompt_tokens"] == line["engine_prompt_tokens"]
    assert line["completion_tokens"] == 5


# -- refusals --------------------------------------------------------------------------------


def anthropic_refusal(answer: httpx.Response, status: int, kind: str) -> None:
    assert answer.status_code == status, answer.text
    body = answer.json()
    assert (body["type"], body["error"]["type"]) == ("error", kind)
    assert body["error"]["message"]


async def test_messages_are_refused_in_anthropics_form(gateway: Front) -> None:
    path = "/v1/messages"
    anthropic_refusal(await gateway.ask({}, path), 400, "invalid_request_error")
    anthropic_refusal(await gateway.ask({"model": "none"}, path), 404, "not_found_error")
    async with caller() as client:
        answer = await client.post(gateway.url + path, json={})
    anthropic_refusal(answer, 401, "authentication_error")
    anthropic_refusal(await get(gateway, path), 405, "invalid_request_error")
    body = {"model": "simulated", "messages": HI, "max_tokens": 1}
    wrong = await gateway.ask(body, "/v1/messages/count_tokens", key="only-messages")
    anthropic_refusal(wrong, 403, "permission_error")


@pytest.mark.parametrize(
    ("path", "method", "allowed"),
    [
        ("/v1/chat/completions", "GET", "POST"),
        ("/v1/embeddings", "PUT", "POST"),
        ("/v1/models", "POST", "GET"),
        ("/v1/models/simulated", "DELETE", "GET"),
    ],
)
async def test_another_method_is_told_the_right_one(
    gateway: Front, path: str, method: str, allowed: str
) -> None:
    answer = await get(gateway, path, method)
    refused(answer, "bad_request", 405)
    assert answer.headers["allow"] == allowed


HALF = {"type": "function", "function": {"name": "f", "arguments": '{"a": "\\udfff"}'}}
CALLED = [*HI, {"role": "assistant", "tool_calls": [{"id": "c", **HALF}]}]
# A word that is none, and a text that is none, wherever one is looked for.
UNREADABLE: list[tuple[str, dict[str, Any]]] = [
    ("/v1/messages", {"max_tokens": 1, "messages": [{"role": {}, "content": "x"}]}),
    ("/v1/messages", {"max_tokens": 1, "messages": HI, "thinking": {"type": {}}}),
    ("/v1/messages/count_tokens", {"messages": [{"role": [], "content": "x"}]}),
    ("/v1/responses", {"input": [{"role": [], "content": "x"}]}),
    ("/v1/responses", {"input": [{**CALL, "arguments": HALF["function"]["arguments"]}]}),
    ("/v1/responses", {"input": "x", "truncation": []}),
    ("/v1/chat/completions", {"messages": CALLED}),
    ("/v1/chat/completions", {"messages": [*CALLED, {"role": "user", "content": "w " * 1200}]}),
    ("/tokenize", {"messages": CALLED}),
]


@pytest.mark.parametrize(("path", "body"), UNREADABLE)
async def test_what_is_no_word_or_no_text_is_a_bad_request(
    gateway: Front, path: str, body: dict[str, Any]
) -> None:
    async with gateway.expect(bad_request=1):
        answer = await gateway.ask({"model": "simulated", **body}, path)
    assert answer.status_code == 400, answer.text
    assert answer.headers["x-sluicegate-outcome"] == "bad_request"


STATEFUL: Mapping[str, dict[str, Any]] = {
    "previous_response_id": {"previous_response_id": "resp_1"},
    "conversation": {"conversation": "conv_1"},
    "background": {"background": True},
    "prompt": {"prompt": {"id": "pmpt_1"}},
}


@pytest.mark.parametrize("name", STATEFUL)
async def test_what_needs_stored_responses_is_refused_by_name(gateway: Front, name: str) -> None:
    body = {"model": "simulated", "input": "Hello", **STATEFUL[name]}
    error = refused(await gateway.ask(body, "/v1/responses"), "bad_request")
    assert error["param"] == name


@pytest.mark.parametrize("method", ["GET", "DELETE", "POST"])
async def test_a_stored_response_can_not_be_asked_for(gateway: Front, method: str) -> None:
    for path in ("/v1/responses/resp_1", "/v1/responses/resp_1/cancel"):
        error = refused(await get(gateway, path, method), "bad_request")
        assert "not stored" in error["message"]


async def test_a_model_serves_only_its_surfaces(gateway: Front) -> None:
    error = refused(
        await gateway.ask({"model": "usual", "input": "x"}, "/v1/embeddings"), "bad_request"
    )
    assert "does not serve embeddings" in error["message"]
    answer = await gateway.ask(
        {"model": "usual", "input": "Hi", "max_output_tokens": 1}, "/v1/responses"
    )
    assert answer.status_code == 200, answer.text


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/messages", "/v1/embeddings"])
async def test_another_content_type_is_a_415(gateway: Front, path: str) -> None:
    async with caller() as client:
        answer = await client.post(
            gateway.url + path,
            content=b"{}",
            headers={**gateway.headers(), "content-type": "text/plain"},
        )
    assert answer.status_code == 415


# -- models and adapters ---------------------------------------------------------------------


async def test_an_adapter_is_listed_granted_and_asked_for_by_its_own_name(gateway: Front) -> None:
    listed = (await get(gateway, "/v1/models")).json()["data"]
    assert [row["id"] for row in listed] == ["simulated", "tuned", "usual"]
    assert (await get(gateway, "/v1/models/tuned")).json()["parent"] == "simulated"
    refused(await get(gateway, "/v1/models/engine-lora"), "not_found")
    body = {"model": "tuned", "messages": HI, "max_tokens": 1}
    answer = await gateway.ask(body, key="adapter")
    assert answer.status_code == 200, answer.text
    assert answer.json()["model"] == "engine-lora"
    refused(await gateway.ask(body, key="no-adapter"), "forbidden")
    refused(await gateway.ask({**body, "model": "simulated"}, key="adapter"), "forbidden")


# -- usage that the caller did not ask for ---------------------------------------------------


@pytest.mark.parametrize("asks", [False, True])
async def test_a_stream_forced_to_report_its_usage_shows_it_only_to_who_asked(
    engines: Engines, tmp_path_factory: pytest.TempPathFactory, asks: bool
) -> None:
    (engine,) = engines(FAST)
    path, keys = write_config(
        tmp_path_factory.mktemp("usage"),
        {"simulated": Served([engine.url])},
        upstream={"force_usage": True},
    )
    body: dict[str, Any] = {"model": "simulated", "messages": HI, "max_tokens": 3, "stream": True}
    if asks:
        body["stream_options"] = {"include_usage": True}
    with front(path, keys, [engine.url]) as found:
        async with found.expect(completed=1):
            answer = await found.ask(body)
        assert answer.text.endswith("data: [DONE]\n\n")
        assert ('"usage":{' in answer.text.replace(" ", "")) is asks
        line = found.requests()[-1]
    assert (line["engine_prompt_tokens"], line["completion_tokens"]) == (line["prompt_tokens"], 3)

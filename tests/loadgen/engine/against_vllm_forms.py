"""Compares the simulated engine's other surfaces with the code of vLLM's own.

Not collected by the normal run: it needs an environment with vLLM 0.32 (the CPU build does), and a
simulated engine that runs. ``python -m tests.loadgen.engine.against_vllm_forms URL 300`` makes 300
random bodies of messages and responses and compares the chat bodies that both make of them; then it
reads the engine's answers with vLLM's models, which must give them back unchanged, and its messages
streams must be those that vLLM makes of the engine's own chat streams.
"""

import asyncio
import json
import random
import sys
import urllib.request
from collections.abc import AsyncIterator
from copy import deepcopy
from typing import Any

from vllm.entrypoints.anthropic import protocol as anthropic
from vllm.entrypoints.anthropic.serving import AnthropicServingMessages
from vllm.entrypoints.openai.responses import protocol as responses
from vllm.entrypoints.openai.responses.utils import construct_input_messages, construct_tool_dicts
from vllm.entrypoints.pooling.classify.protocol import ClassificationResponse
from vllm.entrypoints.pooling.embed.protocol import EmbeddingResponse
from vllm.entrypoints.pooling.pooling.protocol import PoolingResponse
from vllm.entrypoints.pooling.scoring.protocol import RerankResponse, ScoreResponse

from loadgen.engine.messages_body import read_messages
from loadgen.engine.responses_body import read_responses

# mypy: disable-error-code="import-not-found"

WORDS = ("", "Hello", " there\n", "naïve – ∆", "x-anthropic-billing-header: 1", '{"a": 1}')
EVENTS = {
    "response.created": responses.ResponseCreatedEvent,
    "response.in_progress": responses.ResponseInProgressEvent,
    "response.completed": responses.ResponseCompletedEvent,
    "response.output_item.added": responses.ResponseOutputItemAddedEvent,
    "response.output_item.done": responses.ResponseOutputItemDoneEvent,
    "response.content_part.added": responses.ResponseContentPartAddedEvent,
    "response.content_part.done": responses.ResponseContentPartDoneEvent,
}


class Bodies:
    """Random bodies of one seed."""

    def __init__(self, seed: int) -> None:
        self._rng = random.Random(seed)

    def messages(self) -> dict[str, Any]:
        """A /v1/messages body that both accept."""
        body: dict[str, Any] = {
            "model": "m",
            "max_tokens": 9,
            "messages": [self._turn() for _ in range(self._rng.randint(1, 5))],
        }
        if self._rng.random() < 0.5:
            body["system"] = self._either([{"type": "text", "text": self._word()}] * 2)
        if self._rng.random() < 0.5:
            schema = self._rng.choice([{}, {"type": "object", "properties": {}}])
            body["tools"] = [{"name": "f", "input_schema": schema, "strict": self._maybe(True)}]
        if self._rng.random() < 0.3:
            body["thinking"] = {"type": self._rng.choice(["disabled", "adaptive"])}
        if self._rng.random() < 0.3:
            body["output_config"] = {"effort": self._rng.choice(["low", "max"])}
        return body

    def responses(self) -> dict[str, Any]:
        """A /v1/responses body that both accept."""
        items = [self._item(at) for at in range(self._rng.randint(1, 6))]
        body: dict[str, Any] = {"input": self._either(items)}
        if self._rng.random() < 0.5:
            body["instructions"] = self._word()
        if self._rng.random() < 0.5:
            body["tools"] = [{"type": "function", "name": "f", "parameters": {"type": "object"}}]
        return body

    def _turn(self) -> dict[str, Any]:
        role = self._rng.choice(["user", "assistant", "user", "system"])
        kinds = {"user": self._user, "assistant": self._assistant, "system": self._text}
        blocks = [kinds[role]() for _ in range(self._rng.randint(1, 4))]
        return {"role": role, "content": self._either(blocks)}

    def _user(self) -> dict[str, Any]:
        results = [self._either([self._text(), self._text()]), None]
        result = {"type": "tool_result", "tool_use_id": "t", "content": self._rng.choice(results)}
        return self._rng.choice([self._text(), self._text(), result, self._image()])

    def _assistant(self) -> dict[str, Any]:
        call = {"type": "tool_use", "id": "t", "name": "f", "input": {"a": self._word()}}
        thought = {"type": "thinking", "thinking": self._word(), "signature": "s"}
        hidden = {"type": "redacted_thinking", "data": "d"}
        result = {"type": "tool_result", "tool_use_id": "t", "content": self._word()}
        return self._rng.choice([self._text(), call, thought, hidden, result])

    def _item(self, at: int) -> dict[str, Any]:
        text = {"type": "output_text", "text": self._word(), "annotations": []}
        said = {"type": "message", "role": "assistant", "content": self._either([text, text])}
        choices: list[dict[str, Any]] = [
            {"role": "user", "content": self._word()},
            {"role": "user", "content": [{"type": "input_text", "text": self._word()}]},
            {"role": "developer", "content": self._word()},
            said,
            {"role": "assistant", "content": self._word()},
            {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "c", "output": self._word()},
            {
                "type": "reasoning",
                "id": f"rs_{at}",
                "summary": [],
                "content": [{"type": "reasoning_text", "text": self._word()}],
            },
        ]
        return self._rng.choice(choices)

    def _text(self) -> dict[str, Any]:
        return {"type": "text", "text": self._word()}

    def _image(self) -> dict[str, Any]:
        return {"type": "image", "source": {"type": "base64", "media_type": "a/b", "data": "eA"}}

    def _word(self) -> str:
        return self._rng.choice(WORDS)

    def _either(self, items: list[Any]) -> Any:
        return self._word() if self._rng.random() < 0.3 else items

    def _maybe(self, value: object) -> object:
        return value if self._rng.random() < 0.5 else None


def compare_messages(body: dict[str, Any]) -> None:
    """Both make the same chat body of a messages body, for templates of either kind."""
    for system_first in (False, True):
        theirs = AnthropicServingMessages.to_chat_completion_request(
            anthropic.AnthropicMessagesRequest.model_validate(body),
            merge_inline_system=system_first,
        )
        ours = read_messages(body, system_first=system_first).chat_body or {}
        same("messages", body, plain(theirs.messages), plain(ours["messages"]))
        tools = None if theirs.tools is None else [tool.model_dump() for tool in theirs.tools]
        same("tools", body, functions(tools), functions(ours.get("tools")))
        same("effort", body, theirs.reasoning_effort, ours.get("reasoning_effort"))


def compare_responses(body: dict[str, Any]) -> None:
    """Both make the same chat body of a responses body."""
    request = responses.ResponsesRequest.model_validate(deepcopy(body))
    theirs = construct_input_messages(
        request_instructions=request.instructions, request_input=request.input
    )
    ours = read_responses(body).asked.chat_body or {}
    same("messages", body, plain(theirs), plain(ours["messages"]))
    tools = construct_tool_dicts(request.tools, request.tool_choice)
    same("tools", body, functions(tools), functions(ours.get("tools")))


def plain(messages: Any) -> list[dict[str, Any]]:
    """Messages without what no template sees: absent values, ids, the type of an item."""
    kept = ("role", "content", "tool_calls", "reasoning", "tool_call_id")
    seen: list[dict[str, Any]] = json.loads(json.dumps(messages, default=list))
    return [
        {name: message[name] for name in kept if message.get(name) is not None} for message in seen
    ]


def functions(tools: Any) -> Any:
    """Tools without absent values that vLLM leaves out."""
    optional = ("strict", "defer_loading")
    return tools and [
        {name: value for name, value in tool["function"].items() if value or name not in optional}
        for tool in tools
    ]


def same(what: str, body: object, real: object, simulated: object) -> None:
    """Stop at the first difference."""
    if real != simulated:
        raise AssertionError(f"{what} of {body} differ:\nvLLM {real}\nsimulated {simulated}")


def post(url: str, body: object) -> str:
    """The body of an answer."""
    data, kind = json.dumps(body).encode(), {"content-type": "application/json"}
    request = urllib.request.Request(url, data, kind)  # noqa: S310 - the caller's own engine
    with urllib.request.urlopen(request, timeout=30) as answer:  # noqa: S310
        return str(answer.read().decode())


def compare_answers(url: str) -> None:
    """vLLM's models read the engine's answers and give them back unchanged."""
    texts = ["One two", "three"]
    checks: list[tuple[str, Any, Any]] = [
        ("/v1/embeddings", {"input": texts}, EmbeddingResponse),
        ("/v1/embeddings", {"input": texts, "encoding_format": "base64"}, EmbeddingResponse),
        ("/pooling", {"input": texts}, PoolingResponse),
        ("/classify", {"input": texts}, ClassificationResponse),
        ("/score", {"text_1": "a", "text_2": texts}, ScoreResponse),
        ("/rerank", {"query": "a", "documents": texts}, RerankResponse),
        ("/v1/responses", {"input": "Hi", "max_output_tokens": 5}, responses.ResponsesResponse),
        (
            "/v1/messages/count_tokens",
            {"model": "simulated", "messages": [{"role": "user", "content": "Hi"}]},
            anthropic.AnthropicCountTokensResponse,
        ),
    ]
    for path, body, model in checks:
        answer = json.loads(post(url + path, body))
        read = model.model_validate(answer)
        same(path, body, json.loads(read.model_dump_json(by_alias=True)), answer)


def compare_response_stream(url: str) -> None:
    """Each event of a responses stream is one of vLLM's, numbered without a gap."""
    body = {"input": "Hi", "max_output_tokens": 5, "stream": True}
    text = post(f"{url}/v1/responses", body)
    events = [block.partition("\ndata: ")[2] for block in text.split("\n\n") if block]
    for number, event in enumerate(map(json.loads, events)):
        same("number", event, number, event["sequence_number"])
        model = EVENTS.get(event["type"])
        if model is not None:
            read = model.model_validate(event)
            same("event", event, json.loads(read.model_dump_json(by_alias=True)), event)


def compare_message_stream(url: str) -> None:
    """A messages stream is what vLLM makes of the chat stream of the same engine."""
    body = {"model": "simulated", "messages": [{"role": "user", "content": "Hi"}]}
    for tokens in (1, 5, 400):
        limited = {**body, "max_tokens": tokens, "stream": True}
        usage = {"include_usage": True, "continuous_usage_stats": True}
        chat = post(f"{url}/v1/chat/completions", {**limited, "stream_options": usage})
        real = asyncio.run(converted([f"{block}\n\n" for block in chat.split("\n\n") if block]))
        same("stream", limited, events_of(real), events_of(post(f"{url}/v1/messages", limited)))


async def converted(blocks: list[str]) -> str:
    """vLLM's messages stream of a chat stream."""

    async def source() -> AsyncIterator[str]:
        for block in blocks:
            yield block

    converter = object.__new__(AnthropicServingMessages)
    return "".join([event async for event in converter.message_stream_converter(source())])


def events_of(text: str) -> list[Any]:
    """Names and data of a stream, the answer's id left out."""
    events = [block.partition("\ndata: ") for block in text.split("\n\n") if block]
    read = [(name, json.loads(data)) for name, _, data in events]
    for _, data in read:
        if "message" in data:
            data["message"]["id"] = ""
    return read


def main(url: str, bodies: int) -> int:
    """Compare all; raises AssertionError at the first difference."""
    for seed in range(bodies):
        compare_messages(Bodies(seed).messages())
        compare_responses(Bodies(seed).responses())
    compare_answers(url)
    compare_response_stream(url)
    compare_message_stream(url)
    sys.stdout.write(f"{bodies} bodies of each form, their answers and streams: all equal\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 300))

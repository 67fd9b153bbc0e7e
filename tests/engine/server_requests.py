"""The requests that both servers are sent: good ones and bad ones, named by what they try."""

import json
from dataclasses import dataclass, field
from typing import Any

__all__ = ["KEY", "REQUESTS", "Ask"]

KEY = "engine-key"
CHAT = "/v1/chat/completions"
PLAIN = "/v1/completions"
MESSAGES = "/v1/messages"
HELLO = [{"role": "user", "content": "Hello there, engine."}]
EXACT = {"max_tokens": 12, "ignore_eos": True}
USAGE = {"stream": True, "stream_options": {"include_usage": True}}
EACH = {"stream": True, "stream_options": {"include_usage": True, "continuous_usage_stats": True}}
TOOL = {
    "type": "function",
    "function": {"name": "look", "parameters": {"type": "object", "properties": {}}},
}
CALLED = [
    *HELLO,
    {
        "role": "assistant",
        "tool_calls": [
            {"id": "c1", "type": "function", "function": {"name": "look", "arguments": "{}"}}
        ],
    },
    {"role": "tool", "tool_call_id": "c1", "content": "Nothing."},
]
IMAGE = [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:,x"}}]}]
PARTS = [
    {"role": "user", "content": [{"type": "text", "text": "One"}, {"type": "text", "text": "Two"}]}
]


@dataclass(frozen=True, slots=True)
class Ask:
    """One request; a body of None sends none."""

    method: str
    path: str
    body: bytes | None = None
    headers: dict[str, str] = field(default_factory=dict)
    key: str | None = KEY


def post(path: str, body: Any, key: str | None = KEY, **headers: str) -> Ask:
    """A JSON body as any client sends it."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    head = {"content-type": "application/json", **named}
    return Ask("POST", path, json.dumps(body).encode(), head, key)


def raw(path: str, body: bytes, kind: str = "application/json") -> Ask:
    """Any bytes under any name."""
    return Ask("POST", path, body, {"content-type": kind} if kind else {})


def chat(**fields: Any) -> Ask:
    return post(CHAT, {"model": "simulated", "messages": HELLO, **EXACT, **fields})


def plain(**fields: Any) -> Ask:
    return post(PLAIN, {"model": "simulated", "prompt": "Hello there", **EXACT, **fields})


def message(**fields: Any) -> Ask:
    body = {"model": "simulated", "messages": HELLO, "max_tokens": 12, **fields}
    return post(MESSAGES, {name: value for name, value in body.items() if value is not None})


def without(path: str, name: str) -> Ask:
    own: dict[str, Any] = {"messages": HELLO} if path == CHAT else {"prompt": "Hello there"}
    whole = {"model": "simulated", **own, **EXACT}
    return post(path, {key: value for key, value in whole.items() if key != name})


def get(path: str, key: str | None = KEY) -> Ask:
    return Ask("GET", path, key=key)


REQUESTS: dict[str, Ask] = {
    # answers
    "chat": chat(),
    "chat, streamed": chat(stream=True),
    "chat, streamed with usage": chat(**USAGE),
    "chat, streamed with usage in each event": chat(**EACH),
    "chat, usage options without include_usage": chat(
        stream=True, stream_options={"continuous_usage_stats": True}
    ),
    "chat, one token, streamed": chat(max_tokens=1, stream=True),
    "chat, max_completion_tokens": chat(max_tokens=None, max_completion_tokens=3),
    "chat, two choices": chat(n=2),
    "chat, two choices, streamed": chat(n=2, **USAGE),
    "chat, token ids": chat(return_token_ids=True),
    "chat, token ids, streamed": chat(return_token_ids=True, stream=True),
    "chat, tools": chat(tools=[TOOL]),
    "chat, tools, streamed": chat(tools=[TOOL], stream=True),
    "chat, tools not to be called": chat(tools=[TOOL], tool_choice="none"),
    "chat, called tools": chat(messages=CALLED),
    "chat, text parts": chat(messages=PARTS),
    "chat, a system and a developer": chat(
        messages=[{"role": "system", "content": "Be brief."}, {"role": "developer", "content": "x"}]
    ),
    "chat, logprobs": chat(logprobs=True, top_logprobs=2),
    "chat, logprobs, streamed": chat(logprobs=True, top_logprobs=2, stream=True),
    "chat, stop": chat(stop=["\u2603\u2603"]),
    "chat, echo": chat(echo=True),
    "chat, continued": chat(
        messages=[*HELLO, {"role": "assistant", "content": "Well"}],
        add_generation_prompt=False,
        continue_final_message=True,
    ),
    "chat, truncated": chat(truncate_prompt_tokens=5),
    "chat, unknown field": chat(no_such_field=1),
    "chat, no model": without(CHAT, "model"),
    "chat, own id": post(
        CHAT, {"model": "simulated", "messages": HELLO, **EXACT}, x_request_id="abc-1"
    ),
    "chat, priority": chat(priority=-5),
    "chat, temperature and seed": chat(temperature=0.0, seed=7, top_p=0.9, user="u"),
    "plain": plain(),
    "plain, streamed": plain(stream=True),
    "plain, streamed with usage": plain(**USAGE),
    "plain, streamed with usage in each event": plain(**EACH),
    "plain, token ids as prompt": plain(prompt=[1, 22557, 736]),
    "plain, two prompts": plain(prompt=["Hello", "Good day to you"]),
    "plain, two prompts, streamed": plain(prompt=["Hello", "Good day to you"], **USAGE),
    "plain, two prompts of ids": plain(prompt=[[1, 2], [3, 4, 5]]),
    "plain, two choices": plain(n=2),
    "plain, token ids": plain(return_token_ids=True),
    "plain, token ids, streamed": plain(return_token_ids=True, stream=True),
    "plain, logprobs": plain(logprobs=1),
    "plain, logprobs, streamed": plain(logprobs=1, stream=True),
    "plain, echo": plain(echo=True),
    "plain, echo, streamed": plain(echo=True, stream=True),
    "plain, echo of the prompt alone": plain(echo=True, max_tokens=0),
    "plain, stop": plain(stop="\u2603\u2603"),
    "plain, no max_tokens": plain(max_tokens=None),
    "plain, least tokens": plain(min_tokens=12),
    "plain, no model": without(PLAIN, "model"),
    "plain, beyond the context, clamped": plain(prompt=[5] * 9200, max_tokens=128),
    "plain, max_tokens of the whole context": plain(prompt=[5] * 9213, max_tokens=9216),
    "plain, truncated": plain(prompt=[5] * 9300, truncate_prompt_tokens=20),
    "plain, header priority": post(
        PLAIN, {"model": "simulated", "prompt": "Hello", **EXACT}, x_vllm_priority="3"
    ),
    "plain, a header priority that is none": post(
        PLAIN, {"model": "simulated", "prompt": "Hello", **EXACT}, x_vllm_priority="soon"
    ),
    "plain, an empty text": plain(prompt=""),
    "message": message(),
    "message, streamed": message(stream=True),
    "message, system and blocks": message(
        system=[{"type": "text", "text": "Be brief."}],
        messages=[{"role": "user", "content": [{"type": "text", "text": "Hello"}]}],
    ),
    "message, count": post("/v1/messages/count_tokens", {"model": "simulated", "messages": HELLO}),
    "tokenize a chat": post("/tokenize", {"model": "simulated", "messages": HELLO}),
    "tokenize a text": post("/tokenize", {"model": "simulated", "prompt": "Hello there"}),
    "tokenize, strings": post(
        "/tokenize", {"model": "simulated", "prompt": "Hello there", "return_token_strs": True}
    ),
    "detokenize": post("/detokenize", {"model": "simulated", "tokens": [22557, 736]}),
    "models": get("/v1/models"),
    "health": get("/health"),
    "ping": get("/ping"),
    "ping, posted": Ask("POST", "/ping"),
    "version": get("/version"),
    "load": get("/load"),
    "metrics": get("/metrics"),
    # refusals: the body
    "chat, not JSON": raw(CHAT, b"{"),
    "plain, not JSON": raw(PLAIN, b'{"model": "simulated", "prompt": }'),
    "chat, not UTF-8": raw(CHAT, b'{"a": "\xff"}'),
    "chat, empty": raw(CHAT, b""),
    "chat, a list": raw(CHAT, b"[]"),
    "chat, a number": raw(CHAT, b"7"),
    "chat, another content type": raw(CHAT, b"{}", "text/plain"),
    "chat, no content type": raw(CHAT, b"{}", ""),
    "chat, content type with a charset": raw(
        CHAT, json.dumps({"messages": HELLO, **EXACT}).encode(), "application/json; charset=utf-8"
    ),
    "chat, no messages": without(CHAT, "messages"),
    "chat, messages are a text": chat(messages="Hello"),
    "chat, no message at all": chat(messages=[]),
    "chat, a role that is none": chat(messages=[{"role": "nobody", "content": "x"}]),
    "chat, no role": chat(messages=[{"content": "x"}]),
    "chat, an image": chat(messages=IMAGE),
    "chat, texts as parts": chat(messages=[{"role": "user", "content": ["a", "b"]}]),
    "chat, a text after a part": chat(
        messages=[{"role": "user", "content": [{"type": "text", "text": "a"}, "b"]}]
    ),
    "chat, a part of responses": chat(
        messages=[{"role": "user", "content": [{"type": "input_text", "text": "a"}]}]
    ),
    "chat, a part of responses after one": chat(
        messages=[
            {
                "role": "user",
                "content": [{"type": "text", "text": "a"}, {"type": "input_text", "text": "b"}],
            }
        ]
    ),
    "chat, no parts": chat(messages=[{"role": "user", "content": []}]),
    "chat, no tools": chat(tools=[]),
    "plain, no prompt": without(PLAIN, "prompt"),
    "plain, prompt is a number": plain(prompt=7),
    "plain, prompt is an empty list": plain(prompt=[]),
    "plain, negative token id": plain(prompt=[-1]),
    "plain, unknown token id": plain(prompt=[999999]),
    # refusals: what is asked for
    "chat, unknown model": chat(model="nope"),
    "plain, unknown model": plain(model="nope"),
    "tokenize, unknown model": post("/tokenize", {"model": "nope", "prompt": "x"}),
    "chat, priority is a text": chat(priority="high"),
    "chat, priority is a fraction": chat(priority=1.5),
    "chat, priority is null": chat(priority=None),
    "chat, priority is true": chat(priority=True),
    "chat, priority is a numeral": chat(priority="3"),
    "chat, priority is huge": chat(priority=2**70),
    "chat, max_tokens is a text": chat(max_tokens="many"),
    "chat, max_tokens 0": chat(max_tokens=0),
    "chat, max_tokens negative": chat(max_tokens=-1),
    "chat, max_tokens above the context": chat(max_tokens=9217),
    "chat, max_completion_tokens above the context": chat(max_completion_tokens=9217),
    "plain, max_tokens 0": plain(max_tokens=0),
    "plain, min_tokens above max_tokens": plain(min_tokens=13),
    "plain, min_tokens negative": plain(min_tokens=-1),
    "plain, prompt of the whole context": plain(prompt=[5] * 9216),
    "plain, prompt beyond the context": plain(prompt=[5] * 9217),
    "plain, a text beyond the context": plain(prompt="one two three " * 4000),
    "chat, a text beyond the context": chat(
        messages=[{"role": "user", "content": "one two three " * 4000}]
    ),
    "chat, n 0": chat(n=0),
    "chat, n negative": chat(n=-1),
    "chat, temperature negative": chat(temperature=-1),
    "chat, top_p above 1": chat(top_p=1.5),
    "chat, stream options without stream": chat(stream_options={"include_usage": True}),
    "chat, stream is a text": chat(stream="perhaps"),
    "chat, own template": chat(chat_template="{{ messages }}"),
    "chat, both ends": chat(add_generation_prompt=True, continue_final_message=True),
    "chat, a tool without a function": chat(tools=[{"type": "function"}]),
    "chat, a choice of no tool": chat(tool_choice="auto"),
    "chat, an unknown choice": chat(tools=[TOOL], tool_choice="sometimes"),
    "plain, truncated beyond the context": plain(truncate_prompt_tokens=9300),
    "plain, truncated to -2": plain(truncate_prompt_tokens=-2),
    "message, no max_tokens": message(max_tokens=None),
    "message, no messages": message(messages=None),
    "message, unknown model": message(model="nope"),
    "tokenize nothing": post("/tokenize", {"model": "simulated"}),
    "detokenize a text": post("/detokenize", {"model": "simulated", "tokens": "x"}),
    # refusals: the way
    "GET on chat": get(CHAT),
    "PUT on chat": Ask("PUT", CHAT, b"{}"),
    "POST on models": post("/v1/models", {}),
    "HEAD on health": Ask("HEAD", "/health"),
    "unknown path": get("/v1/nothing"),
    "unknown path outside /v1": get("/nothing"),
    "chat with a slash": post(CHAT + "/", {"messages": HELLO, **EXACT}),
    "no key": get("/v1/models", key=None),
    "wrong key": get("/v1/models", key="other"),
    "no key, chat": post(CHAT, {"messages": HELLO, **EXACT}, key=None),
    "no key, unknown path": get("/v1/nothing", key=None),
    "no key, version": get("/version", key=None),
    "no key, tokenize": post("/tokenize", {"prompt": "Hello there"}, key=None),
    "no key, metrics": get("/metrics", key=None),
    "server_info outside development": get("/server_info"),
}

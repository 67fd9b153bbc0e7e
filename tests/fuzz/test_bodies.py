"""Any JSON in any field: the caller is told, or the engine gets one clear body; nothing breaks."""

import json
from collections.abc import AsyncIterator
from typing import Any

import orjson
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.faults.caller import ask
from tests.faults.stand import Stand, stand
from tests.fuzz.depth import fuzz

CHAT, PLAIN = "/v1/chat/completions", "/v1/completions"
ROOMY = {"upstream": {}, "flow": {"short": {"interactive": {"predict": False}}}}


@pytest.fixture(scope="module")
def anyio_backend() -> Any:
    return ("asyncio", {"use_uvloop": True})


@pytest.fixture(scope="module")
async def pair(
    anyio_backend: Any, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Stand]:
    async with stand(tmp_path_factory.mktemp("bodies"), ROOMY) as running:
        yield running


# -- values --------------------------------------------------------------------------------

STRINGS = st.one_of(
    st.text(max_size=12),
    st.sampled_from(["", "user", "assistant", "tool", "system", "text", "image_url", "auto", "\0",
                     "<｜User｜>", "{{ 1 }}", "simulated", "json_object", "\ufeff", "e\u0301"]),
)  # fmt: skip
SCALARS = st.one_of(
    st.none(), st.booleans(), STRINGS, st.integers(-3, 5), st.integers(-(2**70), 2**70),
    st.floats(allow_nan=False, allow_infinity=False),
)  # fmt: skip
KEYS = st.sampled_from(
    ["role", "content", "type", "text", "name", "function", "arguments", "parameters", "id", "x",
     "tool_calls", "tool_call_id", "image_url", "url", "description", "include_usage", "thinking",
     "reasoning_content", "properties", "$ref", "priority", "session_id"]
)  # fmt: skip
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(KEYS, inner, max_size=3)),
    max_leaves=10,
)
# fmt: off
COMMON = [
    "model", "n", "max_tokens", "max_completion_tokens", "min_tokens", "stream", "stream_options",
    "temperature", "top_p", "stop", "seed", "user", "logprobs", "top_logprobs", "logit_bias",
    "ignore_eos", "add_special_tokens", "priority", "request_id", "session_id", "service_tier",
    "kv_transfer_params", "vllm_xargs", "use_beam_search", "best_of", "truncate_prompt_tokens",
    "response_format", "guided_json", "structured_outputs", "cache_salt",
]
FIELDS = {
    CHAT: [
        *COMMON, "messages", "tools", "tool_choice", "documents", "chat_template",
        "chat_template_kwargs", "add_generation_prompt", "continue_final_message",
        "reasoning_effort", "mm_processor_kwargs", "parallel_tool_calls",
    ],
    PLAIN: [*COMMON, "prompt", "echo", "suffix", "prompt_embeds"],
}
# fmt: on
BASE: dict[str, dict[str, Any]] = {
    CHAT: {"model": "simulated", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 2},
    PLAIN: {"model": "simulated", "prompt": "hi", "max_tokens": 2},
}


@st.composite
def requests(draw: st.DrawFn) -> tuple[str, dict[str, Any]]:
    """A sound request in which a few fields hold anything."""
    path = draw(st.sampled_from([CHAT, PLAIN]))
    changed = draw(st.dictionaries(st.sampled_from(FIELDS[path]), VALUES, min_size=1, max_size=3))
    return path, {**BASE[path], **changed}


def request(path: str, body: bytes, key: str) -> bytes:
    return (
        f"POST {path} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
        f"authorization: {key}\r\ncontent-length: {len(body)}\r\n\r\n"
    ).encode() + body


async def played(pair: Stand, path: str, body: bytes) -> tuple[int, list[bytes]]:
    """The caller's status, and the bodies that reached the engine."""
    pair.engine.requests.clear()
    pair.requests.clear()
    reply = await ask(pair.url, request(path, body, pair.key))
    await pair.at_rest()
    assert reply.cut is None
    assert reply.status is not None
    assert pair.requests[-1]["outcome"] != "internal_error", pair.requests[-1]
    return reply.status, [r.partition(b"\r\n\r\n")[2] for r in pair.engine.requests]


REMOVED = {"request_id", "session_id", "service_tier", "kv_transfer_params"}


@given(sent=requests())
@fuzz(500)
@example(sent=(CHAT, {**BASE[CHAT], "messages": [{"role": "user", "content": "a" * 99_999}]}))
@example(sent=(PLAIN, {**BASE[PLAIN], "prompt": [[1], [2, 3]], "n": 2**63}))
async def test_any_value_in_any_field_is_refused_or_reaches_the_engine_with_one_meaning(
    pair: Stand, sent: tuple[str, dict[str, Any]]
) -> None:
    path, value = sent
    status, reached = await played(pair, path, json.dumps(value).encode())
    assert status in {200, 400, 404, 429}, status
    assert (status == 200) == (len(reached) == 1)
    for body in reached:
        parsed = orjson.loads(body)
        assert json.loads(body) == parsed
        assert parsed["priority"] == -10
        assert not REMOVED & set(parsed)
        for name in set(value) & set(parsed) - {"priority", "vllm_xargs", "model"}:
            assert parsed[name] == value[name], name


JUNK = st.one_of(
    st.binary(max_size=60),
    st.sampled_from(
        [
            b"", b"null", b"[]", b'"x"', b"1", b"{", b"{}", b'{"model":NaN}', b'{"model":1e999}',
            b'{"model":"\\ud800"}', b"\xef\xbb\xbf{}", b'{"a":1}{"b":2}', b'{"a":1} x', b"{'a':1}",
            b'{"a":01}', b'{"a":1,}', b'{"a":/*x*/1}', b'{"model":"simulated","model":"other"}',
            b"[" * 100_000, b'{"a":' * 5000, b'{"messages":[' + b"1," * 150_000 + b"1]}",
            b'{"model":"simulated","prompt":"\x00"}', b'{"model":"simulated","prompt":"\xff"}',
        ]
    ),
)  # fmt: skip


@given(body=JUNK, path=st.sampled_from([CHAT, PLAIN]))
@fuzz(200)
async def test_what_is_no_sound_body_is_refused_and_reaches_nobody(
    pair: Stand, body: bytes, path: str
) -> None:
    status, reached = await played(pair, path, body)
    assert 400 <= status < 500
    assert reached == []

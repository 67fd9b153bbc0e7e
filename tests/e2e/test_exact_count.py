"""The gateway's prompt count is the one the engine reports, for every form a prompt can take."""

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from gateway.app import Gateway
from gateway.prompt import Countable
from tests.e2e.harness import CHAT, PLAIN, Front, chat
from tests.e2e.inside import inside

CODE = "def f(x):\n\tif x > 1:\n\t\treturn {'a': [x, None]}\n    # \u00e9\n" * 3
WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "Weather of a place \u2603",
        "parameters": {"type": "object", "properties": {"place": {"type": "string"}}},
    },
}
CALL = {
    "id": "c1",
    "type": "function",
    "function": {"name": "weather", "arguments": '{"place": "Ulm"}'},
}


def said(role: str, content: Any, **more: Any) -> dict[str, Any]:
    return {"role": role, "content": content, **more}


def parts(*texts: str) -> list[dict[str, str]]:
    return [{"type": "text", "text": text} for text in texts]


TEXTS = {
    "one letter": "a",
    "empty": "",
    "a space": " ",
    "many spaces": "a" + " " * 200 + "b",
    "line ends": "a\n\n\n\r\n\tb\n",
    "digits": "1234567890 3.14159 1e-9 0x1F",
    "one long word": "x" * 700,
    "code": CODE,
    "json": json.dumps({"k": [1, {"a": None}], "s": '\\"q\\"'}),
    "german": "Übergrößenträger und Straßenbahnhaltestelle",
    "chinese": "水闸控制水流，先到者先行。",
    "arabic": "بوابة السد تتحكم في تدفق المياه",
    "hindi": "जल द्वार प्रवाह को नियंत्रित करता है",
    "emoji": "🙂👩‍👩‍👧‍👦🏳️‍🌈",
    "combining": "e\u0301 a\u0308 \u200d\ufeff\u00a0",
    "control signs": "\x00\x01\x1f\x7f",
    "astral": "\U0001f600\U00020000\U0010ffff",
    "special tokens": "<｜begin▁of▁sentence｜>x<｜end▁of▁sentence｜>",
    "template marks": "<|user|>\nhi<|end|>\n{{ bos_token }}{% if x %}",
    "a page": "The sluice holds the water back until the lock is ready. " * 25,
}
CHATS: dict[str, dict[str, Any]] = {
    **{f"chat, {name}": {"messages": [said("user", text)]} for name, text in TEXTS.items()},
    "a system message": {"messages": [said("system", "Be brief."), said("user", "Hi")]},
    "several turns": {
        "messages": [said("user", "Hi"), said("assistant", "Hello!"), said("user", "More  ")]
    },
    "one part": {"messages": [said("user", parts("One part"))]},
    "several parts": {"messages": [said("user", parts("One", "", "three\n"))]},
    "a plain string as a part": {"messages": [said("user", [*parts("a"), "b"])]},
    "no content": {"messages": [said("user", "x"), said("assistant", None, tool_calls=[CALL])]},
    "tools": {"messages": [said("user", "Weather?")], "tools": [WEATHER]},
    "bare tools": {
        "messages": [said("user", "Go")],
        "tools": [{"type": "function", "function": {"name": "f"}}],
    },
    "a tool's answer": {
        "messages": [
            said("user", "Weather?"),
            said("assistant", "", tool_calls=[CALL]),
            said("tool", "21 \u00b0C", tool_call_id="c1"),
        ],
        "tools": [WEATHER],
    },
    "no generation prompt": {"messages": [said("user", "Hi")], "add_generation_prompt": False},
    "two choices": {"messages": [said("user", "Hi")], "n": 2},
}
PROMPTS: dict[str, Any] = {
    **{f"prompt, {name}": text for name, text in TEXTS.items() if name != "empty"},
    "two texts": ["One text", "and another \u2603"],
    "token ids": [5, 6, 7, 8],
    "one token id": [1],
    "lists of token ids": [[5, 6], [7, 8, 9]],
}
BODIES = [(CHAT, name, body) for name, body in CHATS.items()] + [
    (PLAIN, name, {"prompt": prompt}) for name, prompt in PROMPTS.items()
]


def whole(body: Mapping[str, Any], *, stream: bool) -> dict[str, Any]:
    options = {"stream": True, "stream_options": {"include_usage": True}} if stream else {}
    return {"model": "simulated", "max_tokens": 1, **body, **options}


def reported(answer: httpx.Response, *, stream: bool) -> int:
    """``usage.prompt_tokens`` as the engine says it."""
    assert answer.status_code == 200, answer.text
    if not stream:
        return int(answer.json()["usage"]["prompt_tokens"])
    events = [line for line in answer.text.split("\n\n") if line.startswith("data: {")]
    return int(json.loads(events[-1].removeprefix("data: "))["usage"]["prompt_tokens"])


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
async def test_the_gateways_count_is_the_engines_for_every_body(plain: Front, stream: bool) -> None:
    assert len(BODIES) >= 50
    engine: dict[str, int] = {}
    async with plain.expect(completed=len(BODIES)):
        for path, name, body in BODIES:
            answer = await plain.ask(whole(body, stream=stream), path)
            engine[name] = reported(answer, stream=stream)
    lines = plain.requests()[-len(BODIES) :]
    gateway = {
        name: line["prompt_tokens"] for (_, name, _), line in zip(BODIES, lines, strict=True)
    }
    assert gateway == engine


@pytest.mark.parametrize("size", [399, 400, 401, 1999, 2000])
async def test_a_size_class_begins_and_ends_at_its_exact_bound(plain: Front, size: int) -> None:
    # Each of these words is one token of the tokenizer, which adds none of its own.
    async with plain.expect(completed=1):
        answer = await plain.ask(whole({"prompt": "a" + " a" * (size - 1)}, stream=False), PLAIN)
    assert reported(answer, stream=False) == size
    assert answer.headers["x-sluicegate-class"] == ("short" if size <= 400 else "long")


class OffByOne:
    """A counting stage that sees one token more than there is."""

    def __init__(self, real: Any) -> None:
        self._real = real
        self.pool = real.pool

    async def classify(self, visit: Any, *more: Any) -> Countable:
        asked: Countable = await self._real.classify(visit, *more)
        visit.prompt_tokens += 1
        return asked


def miscounting(gateway: Gateway) -> Gateway:
    return Gateway(gateway.parts, replace(gateway.setup, counting=OffByOne(gateway.setup.counting)))  # type: ignore[arg-type]


async def test_a_count_that_is_off_by_one_is_noticed(fast: str, tmp_path: Path) -> None:
    """The comparison above, on a gateway that miscounts: it must not pass."""
    async with inside(tmp_path, fast, change=miscounting) as (_, outside, lines):
        answer = await outside.ask(chat(max_tokens=1))
        engine = reported(answer, stream=False)
        assert lines()[-1]["prompt_tokens"] == engine + 1
        assert lines()[-1]["engine_prompt_tokens"] == engine

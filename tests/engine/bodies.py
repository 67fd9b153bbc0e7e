"""Bodies of many kinds for comparing counts; the same ones every time."""

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from random import Random
from typing import Any

from gateway.domain import Surface
from tests.e2e.harness import CHAT, PLAIN
from tests.e2e.test_exact_count import CALL, CHATS, PROMPTS, TEXTS, WEATHER, parts, said
from tests.oracle.bodies import BODIES as BY_CHANCE

__all__ = ["Body", "bodies"]

MESSAGES, RESPONSES = "/v1/messages", "/v1/responses"
# What the tokenizers of these tests take for single tokens, and what only looks like them.
SPECIALS = (
    *("<s>", "</s>", "<unk>", "<s></s><s>", " <s> a </s> ", "<S>", "< s>"),
    *("<|im_start|>system\nNo.<|im_end|>", "<|endoftext|>", "<|im_start|", "<|IM_END|>"),
    *("<think>\nhm\n</think>\n\nYes", "<tool_call>\n{}\n</tool_call>", "<tool_response>x"),
    *("[INST] hi [/INST]", "a<|endoftext|>b<|endoftext|>", "\u2581\u2581", "<0x0A>"),
)
TIME = {
    "type": "function",
    "function": {
        "name": "time_of_day",
        "description": "Says <b>when</b> & where, 'quoted'",
        "parameters": {
            "type": "object",
            "properties": {
                "zone": {"type": "string", "enum": ["UTC", "Europe/Z\u00fcrich"]},
                "precise": {"type": "boolean", "default": False},
                "nested": {"type": "array", "items": {"type": "number", "minimum": 0.5}},
            },
            "required": ["zone"],
        },
    },
}
HI = [said("user", "What time is it in Ulm?")]
DONE = [
    *HI,
    said("assistant", "Let me look.", tool_calls=[CALL]),
    said("tool", '{"c": 21.5}', tool_call_id="c1"),
    said("assistant", "It is warm."),
    said("user", "And tomorrow?"),
]
TWO_CALLS = [
    *HI,
    said("assistant", None, tool_calls=[CALL, {**CALL, "id": "c2"}]),
    said("tool", "one", tool_call_id="c1"),
    said("tool", parts("two", " and more"), tool_call_id="c2"),
]


@dataclass(frozen=True)
class Body:
    """One request. ``kind`` is the row of the table that it counts in."""

    kind: str
    path: str
    json: Mapping[str, Any]


def bodies() -> list[Body]:
    """All of them; each answer is one token."""
    found = [body for make in MAKERS for body in make()]
    return [Body(b.kind, b.path, {"model": "simulated", "max_tokens": 1, **b.json}) for b in found]


def _texts() -> Iterator[Body]:
    for name, chat in CHATS.items():
        if name != "plain strings as parts":  # vLLM 0.32 takes none
            yield Body("chat: messages and texts", CHAT, chat)
    for prompt in PROMPTS.values():
        ids = isinstance(prompt, list) and not isinstance(prompt[0], str)
        kind = "completions: token ids" if ids else "completions: texts"
        yield Body(kind, PLAIN, {"prompt": prompt})
    chance = Random(1)
    for size in (1, 2, 127, 128, 129, 1000, 4097):
        ids = [chance.randrange(3, 30000) for _ in range(size)]
        yield Body("completions: token ids", PLAIN, {"prompt": ids})
    yield Body("completions: token ids", PLAIN, {"prompt": [[7] * 5, [8] * 300], "n": 2})


def _specials() -> Iterator[Body]:
    for text in SPECIALS:
        kind = "special tokens in the text"
        yield Body(kind, CHAT, {"messages": [said("user", text)]})
        yield Body(kind, CHAT, {"messages": [said("system", text), said("user", parts(text, "x"))]})
        yield Body(kind, PLAIN, {"prompt": text})
        yield Body(kind, PLAIN, {"prompt": text, "add_special_tokens": False})


def _conversations() -> Iterator[Body]:
    kind = "chat: conversations"
    turns = [said("user", "One"), said("assistant", "Two"), said("user", "Three")]
    for system, more in itertools.product((None, "", "Be brief.", TEXTS["chinese"]), (0, 1, 5)):
        first = [] if system is None else [said("system", system)]
        yield Body(kind, CHAT, {"messages": [*first, *turns[:1], *turns[1:] * more]})
    yield Body(kind, CHAT, {"messages": DONE})
    yield Body(kind, CHAT, {"messages": TWO_CALLS})
    thought = said("assistant", "<think>\nhm\n</think>\n\nYes.")
    yield Body(kind, CHAT, {"messages": [*HI, thought, said("user", "Sure?")]})
    yield Body(kind, CHAT, {"messages": [*HI, said("assistant", "A", reasoning="B"), *HI]})
    yield Body("chat: content parts", CHAT, {"messages": [said("user", parts(*TEXTS.values()))]})
    for texts in (("a",), ("a", "b"), ("", "a", "\n"), ("x " * 50, "\u00fc")):
        both = [said("system", parts(*texts)), said("user", parts(*texts))]
        yield Body("chat: content parts", CHAT, {"messages": both})
        answer = [*HI, said("assistant", parts(*texts)), said("user", parts(*reversed(texts)))]
        yield Body("chat: content parts", CHAT, {"messages": answer})


def _tools() -> Iterator[Body]:
    named = {"type": "function", "function": {"name": "weather"}}
    choices: tuple[Any, ...] = (None, "auto", "none", "required", named)
    for choice, messages in itertools.product(choices, (HI, DONE, TWO_CALLS)):
        given = {} if choice is None else {"tool_choice": choice}
        body = {"messages": messages, "tools": [WEATHER, TIME], **given}
        yield Body("chat: tools and tool_choice", CHAT, body)
    for arguments in ("{}", "", "[1]", '{"a": {"b": [null, 1.5, "\u00fc"]}}'):
        call = {**CALL, "function": {"name": "weather", "arguments": arguments}}
        body = {"messages": [*HI, said("assistant", "", tool_calls=[call])], "tools": [TIME]}
        yield Body("chat: tools and tool_choice", CHAT, body)


def _options() -> Iterator[Body]:
    kind, on, off = (
        "chat: template arguments",
        {"enable_thinking": True},
        {"enable_thinking": False},
    )
    given: tuple[dict[str, Any], ...] = (
        *({"chat_template_kwargs": kwargs} for kwargs in ({}, on, off, {"thinking": True})),
        *({"reasoning_effort": effort} for effort in ("low", "medium", "high", "none")),
        {"documents": [{"title": "T", "text": "x"}]},
    )
    for options, messages in itertools.product(given, (HI, DONE)):
        yield Body(kind, CHAT, {"messages": messages, **options})
    kind = "chat: generation prompt, continued"
    ended = [*HI, said("assistant", "It is about ")]
    yield Body(kind, CHAT, {"messages": HI, "add_generation_prompt": False})
    yield Body(kind, CHAT, {"messages": ended, "add_generation_prompt": False})
    for last in ("It is about ", "It is", " x", "line\n"):
        messages = [*HI, said("assistant", last)]
        continued = {"add_generation_prompt": False, "continue_final_message": True}
        yield Body(kind, CHAT, {"messages": messages, **continued})
    for special in (True, False):
        yield Body(kind, CHAT, {"messages": HI, "add_special_tokens": special})
    for words, most in itertools.product((3, 40, 400), (1, 16, 4000, -1)):
        text, cut = "sluice gate " * words, {"truncate_prompt_tokens": most}
        yield Body("truncation", CHAT, {"messages": [said("user", text)], **cut})
        yield Body("truncation", PLAIN, {"prompt": text, **cut})
        yield Body("truncation", PLAIN, {"prompt": [9] * words, **cut})


def _others() -> Iterator[Body]:
    for number, text in enumerate(TEXTS.values()):
        tools = [{"name": "f", "input_schema": {"type": "object"}, "description": "\u00fc"}]
        body = {"messages": [said("user", text or "x")], **({"tools": tools} if number % 3 else {})}
        yield Body("messages", MESSAGES, body)
        output = {"max_tokens": None, "max_output_tokens": 1}
        yield Body("responses", RESPONSES, {"input": text or "x", **output})


def _by_chance() -> Iterator[Body]:
    surfaces = ((Surface.CHAT, CHAT, 120), (Surface.MESSAGES, MESSAGES, 40))
    for surface, path, number in surfaces:
        chance = Random(20)
        for _ in range(number):
            made = BY_CHANCE[surface](chance)
            yield Body(
                f"by chance: {surface}", path, {**made, "model": "simulated", "max_tokens": 1}
            )


MAKERS = (_texts, _specials, _conversations, _tools, _options, _others, _by_chance)

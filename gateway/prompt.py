"""Decides what text an engine would make of a chat or a plain prompt, and what else counts.

Follows vLLM 0.32: messages are normalised as its chat parser does (text parts joined by a
newline where the template takes strings, tool-call arguments as objects, tool definitions with
their defaults), then rendered as transformers renders them. What would change the prompt's
length in ways the gateway can't follow (a template of the caller's, embeddings as a prompt) is
refused; images and audio count by the model's configured estimate. Pure: no I/O, no clock.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from gateway.domain import Outcome, Refused
from gateway.fields import BILLING, bad, flag, objects, reject_present, text, whole_number
from gateway.template import ChatTemplate, TemplateError

__all__ = [
    "MAX_PROMPTS",
    "NO_MEDIA",
    "Countable",
    "Media",
    "chat",
    "completion",
    "prompts",
    "requested_model",
]

# More sequences than any engine runs at once by default.
MAX_PROMPTS = 1024
# A template may walk all messages for each of them.
MAX_MESSAGES = 8192
_TEXT_KEYS = {"text": "text", "input_text": "text", "output_text": "text"} | {
    "refusal": "refusal",
    "thinking": "thinking",
}
_IMAGES = frozenset(("image_url", "input_image"))
_AUDIO = frozenset(("audio_url", "input_audio"))
_CHANGE_LENGTH = frozenset(
    ("chat_template", "prompt_embeds", "media_io_kwargs", "mm_processor_kwargs")
)
# vLLM's own default for completions; chat has none.
_COMPLETION_MAX_TOKENS = 16


@dataclass(frozen=True, slots=True)
class Media:
    """What one image and one piece of audio count for; ``None``: the model does not take it."""

    image_tokens: int | None = None
    audio_tokens: int | None = None

    def tokens(self, kind: str, at: str) -> int:
        """The estimate for a part of ``kind``; refused where the model has none."""
        name = "image_tokens" if kind in _IMAGES else "audio_tokens" if kind in _AUDIO else ""
        found: int | None = getattr(self, name) if name else None
        if found is None:
            raise bad(at, "must be a text part; other kinds are not served")
        return found


NO_MEDIA = Media()


class Countable(NamedTuple):
    """What a request asks of an engine, before its tokens are counted.

    ``texts`` are to be tokenised, ``given_tokens`` are the sizes of prompts that came as token
    ids, ``shared`` stands before each of the texts, and ``media_tokens`` are estimated beside
    them. No prompt is longer than ``at_most`` tokens, because it is cut. ``max_tokens``
    ``None``: the caller set no bound on the output. ``method`` names how it is classified where
    that is not the exact count.
    """

    texts: tuple[str, ...]
    add_special_tokens: bool
    given_tokens: tuple[int, ...] = ()
    n: int = 1
    max_tokens: int | None = None
    stream: bool = False
    shared: str = ""
    media_tokens: int = 0
    at_most: int | None = None
    method: str | None = None

    @property
    def slots(self) -> int:
        """How many sequences the engine will run for it."""
        return self.n * (len(self.texts) + len(self.given_tokens))


def requested_model(body: Mapping[str, Any]) -> str:
    """The model name in ``body``; raises ``Refused`` (``bad_request``) where there is none."""
    name = body.get("model")
    if not isinstance(name, str) or not name:
        raise bad("model", "must be the name of a model")
    return name


def chat(
    body: Mapping[str, Any],
    template: ChatTemplate,
    media: Media = NO_MEDIA,
    *,
    generation_by_default: bool = True,
    calls_in_order: bool = True,
) -> Countable:
    """What a chat completion request asks.

    ``calls_in_order``: the engine reads the messages with a model of its own, which leaves the
    calls of tools with their known keys, in its order.

    Raises:
        Refused: ``bad_request`` naming the field at fault.
    """
    if not _CHANGE_LENGTH.isdisjoint(body):
        reject_present(body, *_CHANGE_LENGTH)
    generation = flag(body, "add_generation_prompt", default=generation_by_default)
    continues = flag(body, "continue_final_message", default=False)
    if generation and continues:
        raise bad("continue_final_message", "needs add_generation_prompt to be false")
    variables = {
        "tools": _tools(body.get("tools")),
        "documents": _documents(body.get("documents")),
        **_template_kwargs(body, template),
        "add_generation_prompt": generation,
    }
    parser = _Messages(template.takes_parts, calls_in_order, media)
    messages = parser.all(body.get("messages"))
    if not template.takes_developer:
        messages = _without_developer(messages)
    try:
        rendered = template.render(messages, variables, continue_final_message=continues)
    except TemplateError as error:
        raise bad("messages", f"the model's chat template refuses them: {error}") from error
    limit = whole_number(body, "max_completion_tokens", least=1)
    return Countable(
        (rendered,),
        flag(body, "add_special_tokens", default=False),
        (),
        whole_number(body, "n", least=1) or 1,
        whole_number(body, "max_tokens", least=1) if limit is None else limit,
        flag(body, "stream", default=False),
        "",
        parser.media_tokens,
        whole_number(body, "truncate_prompt_tokens", least=-1),
        "estimate" if parser.media_tokens else None,
    )


def completion(body: Mapping[str, Any]) -> Countable:
    """What a plain completion request asks; raises as ``chat`` does."""
    reject_present(body, "prompt_embeds")
    texts, given = prompts(body, "prompt")
    limit = whole_number(body, "max_tokens", least=0)
    wanted = [whole_number(body, key, least=1) or 1 for key in ("n", "best_of")]
    return Countable(
        texts=texts,
        given_tokens=given,
        add_special_tokens=flag(body, "add_special_tokens", default=True),
        n=max(wanted),
        max_tokens=_COMPLETION_MAX_TOKENS if limit is None else limit,
        stream=flag(body, "stream", default=False),
        at_most=whole_number(body, "truncate_prompt_tokens", least=-1),
    )


class _Messages:
    """Makes messages as the engine's template gets them; adds up what media in them count."""

    __slots__ = ("_as_parts", "_calls_in_order", "_media", "media_tokens")

    def __init__(self, as_parts: bool, calls_in_order: bool, media: Media) -> None:
        self._as_parts, self._calls_in_order, self._media = as_parts, calls_in_order, media
        self.media_tokens = 0

    def all(self, value: object) -> list[dict[str, Any]]:
        if not isinstance(value, list) or not value:
            raise bad("messages", "must be a list of at least one message")
        if len(value) > MAX_MESSAGES:
            raise bad("messages", f"at most {MAX_MESSAGES} messages may be sent")
        return [self._one(item, f"messages[{at}]") for at, item in enumerate(value)]

    def _one(self, value: object, at: str) -> dict[str, Any]:
        if not isinstance(value, dict) or not isinstance(value.get("role"), str):
            raise bad(at, "must be an object with a role")
        role = value["role"]
        content = value.get("content")
        # A text for a template of texts, which is the most common, is what it is.
        if not isinstance(content, str) or self._as_parts or content.startswith(BILLING):
            parts = list(self._parts(content, at, is_system=role == "system"))
            content = self._content(role, parts)
        message: dict[str, Any] = {"role": role, "content": content}
        if role == "assistant":
            message |= self._assistant_fields(value, at)
        if role == "tool" and "tool_call_id" in value:
            message["tool_call_id"] = value["tool_call_id"]
        for key in ("name", "task"):
            if isinstance(value.get(key), str):
                message[key] = value[key]
        if role == "developer":
            message["tools"] = value.get("tools")
        return message

    def _content(self, role: str, parts: list[dict[str, Any]]) -> str | list[dict[str, Any]]:
        if not self._as_parts:
            return "\n".join(part["text"] for part in parts if part.get("text"))
        if role == "tool" and all("text" in part for part in parts):
            return _plain(parts)  # one text for every template
        return parts

    def _parts(self, content: object, at: str, *, is_system: bool) -> Iterator[dict[str, Any]]:
        if content is None:
            return
        if not isinstance(content, str | list):
            raise bad(f"{at}.content", "must be a string or a list of parts")
        given = [content] if isinstance(content, str) else content
        for number, part in enumerate(given):
            found = self._part(part, f"{at}.content[{number}]")
            if is_system and found.get("text", "").startswith(BILLING):
                found["text"] = found["text"].partition("\n")[2]
                if not found["text"]:
                    continue
            yield found

    def _part(self, part: object, at: str) -> dict[str, Any]:
        if isinstance(part, str):
            return {"type": "text", "text": part}
        kind = part.get("type") if isinstance(part, dict) else None
        if not isinstance(part, dict) or not isinstance(kind, str):
            raise bad(at, "must be a string or an object with a type")
        if kind not in _TEXT_KEYS:
            self.media_tokens += self._media.tokens(kind, at)
            return {"type": "image" if kind in _IMAGES else "audio"}
        found = part.get(_TEXT_KEYS[kind])
        if not isinstance(found, str):
            raise bad(at, f"must have a {_TEXT_KEYS[kind]}")
        return {"type": "text", "text": found}

    def _assistant_fields(self, message: Mapping[str, Any], at: str) -> dict[str, Any]:
        found: dict[str, Any] = {}
        calls = objects(message.get("tool_calls"), f"{at}.tool_calls")
        if calls:
            found["tool_calls"] = [
                _tool_call(call, f"{at}.tool_calls[{number}]", in_order=self._calls_in_order)
                for number, call in enumerate(calls)
            ]
        reasoning = text(message, "reasoning", at)
        if reasoning is not None:
            found |= {"reasoning": reasoning, "reasoning_content": reasoning}
        return found


def _without_developer(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The messages for a template that does not know the developer: one system message, first."""
    if "developer" not in [message["role"] for message in messages]:
        return messages
    systems = [m for m in messages if m["role"] in {"developer", "system"}]
    if len(systems) == 1 and systems[0] is messages[0]:
        rest = {key: value for key, value in messages[0].items() if key != "tools"}
        return [{**rest, "role": "system"}, *messages[1:]]
    texts = [_plain(message["content"]) for message in systems]
    merged = {"role": "system", "content": "\n\n".join(filter(None, texts))}
    return [merged, *(m for m in messages if m["role"] not in {"developer", "system"})]


def _plain(content: str | list[dict[str, Any]]) -> str:
    if isinstance(content, str):
        return content
    return "\n".join(part["text"] for part in content if "text" in part)


def _tool_call(call: Mapping[str, Any], at: str, *, in_order: bool) -> dict[str, Any]:
    function = call.get("function")
    if not isinstance(function, dict) or call.get("type", "function") != "function":
        raise bad(at, "must be a call of a function")
    made = {**call, "function": {**function, "arguments": _arguments(function, at)}}
    if in_order:
        inner = made["function"]
        made["function"] = {key: inner[key] for key in ("arguments", "name") if key in inner}
        made = {key: made[key] for key in ("id", "function", "type") if key in made}
    return made


def _arguments(function: Mapping[str, Any], at: str) -> dict[str, Any]:
    """The arguments as an object: templates want one, and what is none becomes an empty one."""
    given = function.get("arguments")
    if isinstance(given, str):
        try:
            given = _read(given)
        except UnicodeEncodeError as error:
            raise bad(f"{at}.function.arguments", "holds half of a surrogate pair") from error
        except ValueError:
            given = None
        except RecursionError as error:
            raise bad(f"{at}.function.arguments", "is nested too deeply") from error
    return given if isinstance(given, dict) else {}


def _read(said: str) -> Any:
    """The JSON value in ``said``; UnicodeEncodeError where it holds what no tokenizer takes."""
    found = json.loads(said)
    if "\\ud" in said or "\\uD" in said:  # the body's own parser took these for text
        json.dumps(found, ensure_ascii=False).encode()
    return found


def _tools(value: object) -> list[dict[str, Any]] | None:
    if value is None:
        return None
    return [_tool(tool, f"tools[{number}]") for number, tool in enumerate(objects(value, "tools"))]


def _tool(tool: Mapping[str, Any], at: str) -> dict[str, Any]:
    """A definition as the engine's model writes it: known keys, in its order, first ones always."""
    function = tool.get("function")
    if not isinstance(function, dict) or tool.get("type", "function") != "function":
        raise bad(at, "must be an object with a function")
    if not isinstance(function.get("name"), str):
        raise bad(f"{at}.function.name", "must be a string")
    for name, kind in (("description", str), ("parameters", dict), ("strict", bool)):
        if not isinstance(function.get(name), kind | None):
            raise bad(f"{at}.function.{name}", "has a value of the wrong type")
    deferred = [part.get("defer_loading") for part in (function, tool)]
    if not all(isinstance(value, bool | None) for value in deferred):
        raise bad(f"{at}.defer_loading", "must be true or false")
    inner = {key: function.get(key) for key in ("name", "description", "parameters")}
    inner |= _present(strict=function.get("strict"))
    inner |= _present(defer_loading=deferred[1] if deferred[0] is None else deferred[0])
    return {"type": "function", "function": inner, **_present(defer_loading=deferred[1])}


def _present(**fields: object) -> dict[str, Any]:
    return {key: value for key, value in fields.items() if value is not None}


def _documents(value: object) -> list[dict[str, Any]] | None:
    return None if value is None else objects(value, "documents")


def _template_kwargs(body: Mapping[str, Any], template: ChatTemplate) -> dict[str, Any]:
    given = body.get("chat_template_kwargs")
    if given is not None and not isinstance(given, dict):
        raise bad("chat_template_kwargs", "must be an object")
    kwargs = dict(given or {})
    for key in kwargs:
        if key not in template.allowed_kwargs:
            raise bad("chat_template_kwargs", f"the key {key[:64]!r} is not allowed")
    effort = text(body, "reasoning_effort")
    if effort is None:
        return kwargs
    kwargs = {"enable_thinking": effort != "none", **kwargs}
    return kwargs if effort == "auto" else {**kwargs, "reasoning_effort": effort}


def prompts(body: Mapping[str, Any], key: str) -> tuple[tuple[str, ...], tuple[int, ...]]:
    """Prompts as texts, and the sizes of those that came as token ids; one kind is empty."""
    value = body.get(key)
    if isinstance(value, str):
        return (value,), ()
    shapes = bad(key, "must be a string, a list of strings, or lists of token ids")
    if not isinstance(value, list) or not value:
        raise shapes
    if len(value) > MAX_PROMPTS and not isinstance(value[0], int):
        raise Refused(
            Outcome.BAD_REQUEST, f"{key}: at most {MAX_PROMPTS} may be sent at once.", param=key
        )
    if all(isinstance(item, str) for item in value):
        return tuple(value), ()
    if _is_token_ids(value):
        return (), (len(value),)
    if all(isinstance(item, list) and item and _is_token_ids(item) for item in value):
        return (), tuple(len(item) for item in value)
    raise shapes


def _is_token_ids(value: Sequence[object]) -> bool:
    return all(type(item) is int and item >= 0 for item in value)

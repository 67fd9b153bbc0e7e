"""Decides, surface by surface, what of a body is to be counted and how many sequences it brings.

The rule of each surface in words stands in ``surfaces``; where a count can't be exact the result
names its method. Pure: no I/O, no clock.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from gateway import anthropic, responses
from gateway.domain import Outcome, Refused, Surface
from gateway.fields import bad, flag, reject_present, whole_number
from gateway.prompt import MAX_PROMPTS, NO_MEDIA, Countable, Media, chat, completion, prompts
from gateway.template import ChatTemplate

__all__ = ["ModelFacts", "countable"]

_PAIRS = (("text_1", "text_2"), ("queries", "documents"), ("queries", "items"))
_PAIRS_OF_DATA = (*_PAIRS, ("data_1", "data_2"))


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """What reading a body needs to know of its model."""

    template: ChatTemplate
    media: Media = NO_MEDIA
    transcription_tokens: int | None = None


def countable(surface: Surface, body: Mapping[str, Any], model: ModelFacts) -> Countable:
    """What ``body`` asks of an engine by way of ``surface``.

    Raises:
        Refused: ``bad_request`` naming the field at fault.
    """
    return _READERS[surface](body, model)


def _chat(body: Mapping[str, Any], model: ModelFacts) -> Countable:
    return chat(body, model.template, model.media)


def _completion(body: Mapping[str, Any], model: ModelFacts) -> Countable:
    return completion(body)


def _messages(body: Mapping[str, Any], model: ModelFacts) -> Countable:
    if whole_number(body, "max_tokens", least=1) is None:
        raise bad("max_tokens", "is required")
    return _count_tokens(body, model)


def _count_tokens(body: Mapping[str, Any], model: ModelFacts) -> Countable:
    return chat(anthropic.as_chat(body, model.template), model.template, model.media)


def _responses(body: Mapping[str, Any], model: ModelFacts) -> Countable:
    as_chat = responses.as_chat(body)
    return chat(as_chat, model.template, model.media, calls_in_order=False)


def _tokenize(body: Mapping[str, Any], model: ModelFacts) -> Countable:
    # The engine takes a request with either; what else a completion may say means nothing here.
    if (body.get("prompt") is None) == (body.get("messages") is None):
        raise bad("prompt", "either a prompt or messages are needed")
    silent = ("truncate_prompt_tokens", "n", "best_of", "stream", "reasoning_effort", "documents")
    said = {key: value for key, value in body.items() if key not in silent}
    if body.get("prompt") is None:
        return chat(said, model.template, model.media)._replace(max_tokens=0)
    if not isinstance(body["prompt"], str):
        raise bad("prompt", "must be a string")
    return completion(said)._replace(max_tokens=0)


def _detokenize(body: Mapping[str, Any], model: ModelFacts) -> Countable:
    tokens = body.get("tokens")
    if not isinstance(tokens, list) or not all(type(t) is int and t >= 0 for t in tokens):
        raise bad("tokens", "must be a list of token ids")
    return Countable((), add_special_tokens=False, given_tokens=(len(tokens),), max_tokens=0)


def _inputs(body: Mapping[str, Any], model: ModelFacts) -> Countable:
    reject_present(body, "padding", "data")
    if body.get("messages") is not None:
        reject_present(body, "input")
        asked = chat(
            {**body, "reasoning_effort": None, "n": None},
            model.template,
            model.media,
            generation_by_default=False,
        )
        return asked._replace(max_tokens=0, stream=False)
    texts, given = prompts(body, "input")
    return Countable(
        texts=texts,
        given_tokens=given,
        add_special_tokens=flag(body, "add_special_tokens", default=True),
        max_tokens=0,
        at_most=whole_number(body, "truncate_prompt_tokens", least=-1),
    )


def _rerank(body: Mapping[str, Any], model: ModelFacts) -> Countable:
    query = _texts(body.get("query"), "query")
    if len(query) != 1:
        raise bad("query", "must be a string")
    return _paired(body, query, _texts(body.get("documents"), "documents"))


def _score(body: Mapping[str, Any], model: ModelFacts) -> Countable:
    given = [pair for pair in _PAIRS_OF_DATA if all(body.get(key) is not None for key in pair)]
    if len(given) != 1:
        raise bad("text_1", "exactly one pair of texts is needed, such as text_1 and text_2")
    left, right = (_texts(body[key], key) for key in given[0])
    if len(left) > 1 and len(left) != len(right):
        raise bad(given[0][1], f"must hold as many texts as {given[0][0]}")
    return _paired(body, left, right)


def _paired(body: Mapping[str, Any], left: tuple[str, ...], right: tuple[str, ...]) -> Countable:
    """Pairs to compare. One text against many is counted once, not joined to each of them."""
    reject_present(body, "padding")
    alone = len(left) == 1
    shared = left[0] if alone else ""
    texts = right if alone else tuple(a + b for a, b in zip(left, right, strict=True))
    return Countable(
        texts=texts,
        shared=shared,
        add_special_tokens=True,
        max_tokens=0,
        at_most=whole_number(body, "truncate_prompt_tokens", least=-1),
        method="estimate",
    )


def _texts(value: object, at: str) -> tuple[str, ...]:
    given = [value] if isinstance(value, str) else value
    if not isinstance(given, list) or not given:
        raise bad(at, "must be a string or a list of strings")
    if len(given) > MAX_PROMPTS:
        raise bad(at, f"at most {MAX_PROMPTS} may be sent at once")
    found = tuple(item for item in given if isinstance(item, str))
    if len(found) < len(given):
        raise bad(at, "must hold texts; other kinds are not served")
    return found


def _transcription(body: Mapping[str, Any], model: ModelFacts) -> Countable:
    if model.transcription_tokens is None:
        raise Refused(Outcome.BAD_REQUEST, "This model does not transcribe.", param="model")
    return Countable(
        (),
        add_special_tokens=False,
        given_tokens=(model.transcription_tokens,),
        stream=body.get("stream") == "true",
        max_tokens=_form_number(body, "max_completion_tokens"),
        method="configured",
    )


def _form_number(fields: Mapping[str, Any], key: str) -> int | None:
    value = fields.get(key)
    if value is None:
        return None
    if not (isinstance(value, str) and value.isdecimal() and value.isascii() and len(value) < 10):
        raise bad(key, "must be a whole number")
    return int(value)


_READERS: Mapping[Surface, Callable[[Mapping[str, Any], ModelFacts], Countable]] = MappingProxyType(
    {
        Surface.CHAT: _chat,
        Surface.COMPLETIONS: _completion,
        Surface.RESPONSES: _responses,
        Surface.MESSAGES: _messages,
        Surface.COUNT_TOKENS: _count_tokens,
        Surface.TOKENIZE: _tokenize,
        Surface.DETOKENIZE: _detokenize,
        Surface.EMBEDDINGS: _inputs,
        Surface.CLASSIFY: _inputs,
        Surface.POOLING: _inputs,
        Surface.SCORE: _score,
        Surface.RERANK: _rerank,
        Surface.TRANSCRIPTIONS: _transcription,
    }
)

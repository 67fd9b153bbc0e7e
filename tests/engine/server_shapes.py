"""Reduces answers of a server to their shape, and tells where two shapes differ.

A shape is flat: a path into the answer and what is there, either a kind (text, number, …) or, where
callers act on it, the value itself. What is drawn at random or says who answered is a kind.
"""

import json
from collections.abc import Iterator, Mapping
from typing import Any

import httpx
from prometheus_client.parser import text_string_to_metric_families

from tests.engine.server_requests import Ask

__all__ = ["Shape", "apart", "families", "shape"]

Shape = Mapping[str, Any]
# What a caller may act on: compared by value.
TOLD = {
    *("object", "role", "type", "code", "param", "message", "detail", "error", "count"),
    *("finish_reason", "stop_reason", "index", "status", "owned_by", "max_model_len"),
    *("prompt_tokens", "completion_tokens", "total_tokens", "input_tokens", "output_tokens"),
    *("prompt_token_ids", "token_strs", "server_load", "cached_tokens"),
}
# By path, as the name has other meanings elsewhere: the answers of /tokenize and /detokenize.
TOLD_AT = {".tokens", ".prompt"}
# Maps by token; a token's bytes, of which a special one has none.
BY_TOKEN = {"prompt_logprobs", "top_logprobs"}
WHOLE = {"bytes"}
KINDS = {str: "text", bool: "flag", int: "number", float: "number", type(None): "null"}
STREAM = "text/event-stream"


def shape(client: httpx.Client, url: str, ask: Ask) -> Shape:
    """Send a request and return the shape of its answer."""
    headers = dict(ask.headers)
    if ask.key:
        headers["authorization"] = f"Bearer {ask.key}"
    answer = client.request(ask.method, url + ask.path, content=ask.body, headers=headers)
    found: dict[str, Any] = {"status": answer.status_code}
    kind = answer.headers.get("content-type", "")
    found["content-type"] = kind
    for name in ("allow", "retry-after", "www-authenticate"):
        if name in answer.headers:
            found[name] = answer.headers[name]
    if kind.startswith(STREAM):
        return found | dict(_stream(answer.text))
    if kind.startswith("application/json") and answer.content:
        return found | dict(_flat("", answer.json()))
    return found


def _stream(text: str) -> Iterator[tuple[str, Any]]:
    """The events of each choice, then those of none; of those that are alike the first.

    How many tokens come together, and whose come first, is a matter of time.
    """
    lines: dict[str, list[dict[str, Any]]] = {}
    for block in text.split("\n\n"):
        if block:
            line, event = _event(block)
            seen = lines.setdefault(line, [])
            if event not in seen:
                seen.append(event)
    for line, events in sorted(lines.items()):
        for at, event in enumerate(events):
            for path, value in event.items():
                yield f"{line} {at}{path}", value


def _event(block: str) -> tuple[str, dict[str, Any]]:
    name, _, data = block.rpartition("data: ")
    if data == "[DONE]":
        return "event", {"": data}
    told = json.loads(data)
    line = "event"
    if choices := told.get("choices"):
        line = f"choice {choices[0]['index']}, event"
        if usage := told.get("usage"):
            # The counts so far go with how many tokens came together.
            told["usage"] = {f"{key} so far": value for key, value in usage.items()}
    return line, ({" name": name.strip()} if name else {}) | dict(_flat("", told))


def _flat(path: str, value: Any) -> Iterator[tuple[str, Any]]:
    name = path.rpartition(".")[2].removesuffix("[]")
    if isinstance(value, dict) and (name not in TOLD or name in ("error", "message")):
        if name in BY_TOKEN and "token" not in value:
            value = {"token": [*value.values()]}
        yield path, "object"
        for key, each in value.items():
            yield from _flat(f"{path}.{key}", each)
    elif isinstance(value, list) and not (name in TOLD or path in TOLD_AT):
        yield path, "list"
        if name not in WHOLE:
            yield from _together(f"{path}[]", value)
    else:
        told = name in TOLD or path in TOLD_AT
        yield path, value if told else KINDS[type(value)]


def _together(path: str, values: list[Any]) -> Iterator[tuple[str, Any]]:
    """What the items of a list have between them."""
    found: dict[str, list[Any]] = {}
    for value in values:
        for below, each in _flat(path, value):
            seen = found.setdefault(below, [])
            if each not in seen:
                seen.append(each)
    for below, seen in found.items():
        yield below, seen[0] if len(seen) == 1 else sorted(seen, key=str)


def apart(real: Shape, simulated: Shape) -> dict[str, tuple[Any, Any]]:
    """Where two shapes differ: path -> what each has, None where it has nothing."""
    paths = {**real, **simulated}
    both = {path: (real.get(path, "-"), simulated.get(path, "-")) for path in paths}
    return {path: pair for path, pair in both.items() if pair[0] != pair[1]}


def families(page: str) -> dict[str, str]:
    """Every sample of a metrics page: its name -> its type, its labels, and their closed values."""
    found: dict[str, set[str]] = {}
    for family in text_string_to_metric_families(page):
        for sample in family.samples:
            labels = sorted(sample.labels)
            closed = [f"{name}={sample.labels[name]}" for name in labels if name in CLOSED]
            told = found.setdefault(f"{sample.name} ({family.type}) {{{', '.join(labels)}}}", set())
            told.update(closed)
    return {name: ", ".join(sorted(values)) for name, values in found.items()}


# Labels whose values are the engine's own words.
CLOSED = {"finished_reason", "reason", "source", "le", "mode"}

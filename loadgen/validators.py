"""Decides whether a response does its prompt's task, where the corpus names a validator.

A validator is any of: `tokens` (exact completion length), `finish_reason`, `regex` (somewhere in
the text), `json_schema` (of the whole text). Of JSON Schema it knows the keywords listed here and
refuses a schema with others before anything is measured: ignoring one would pass what it forbids.
Pure: no I/O, no clock.
"""

import re
from collections.abc import Callable, Mapping
from typing import Any

import orjson

from loadgen.events import Response
from loadgen.record import BenchError

__all__ = ["check_validator", "task_fault"]

Json = Any
TYPES: Mapping[str, tuple[type, ...]] = {
    "object": (dict,),
    "array": (list,),
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "null": (type(None),),
}
# What they say changes nothing about validity.
ANNOTATIONS = frozenset({"$schema", "$id", "title", "description", "default", "examples"})


def _is_a(value: Json, name: str) -> bool:
    if isinstance(value, bool):  # Python's bool is an int; JSON's is not
        return name == "boolean"
    return isinstance(value, TYPES[name])


def _typed(value: Json, names: Json) -> bool:
    return any(_is_a(value, n) for n in ([names] if isinstance(names, str) else names))


def _same(value: Json, other: Json) -> bool:
    return isinstance(value, bool) == isinstance(other, bool) and bool(value == other)


def _number(value: Json) -> float | None:
    return None if isinstance(value, bool) or not isinstance(value, int | float) else value


def _properties(value: Json, own: Mapping[str, Json]) -> bool:
    return not isinstance(value, dict) or all(
        _fits(value[k], schema) for k, schema in own.items() if k in value
    )


KEYWORDS: Mapping[str, Callable[[Json, Json], bool]] = {
    "type": _typed,
    "enum": lambda v, values: any(_same(v, one) for one in values),
    "const": _same,
    "properties": _properties,
    "required": lambda v, names: not isinstance(v, dict) or all(n in v for n in names),
    "items": lambda v, schema: not isinstance(v, list) or all(_fits(one, schema) for one in v),
    "minimum": lambda v, bound: (n := _number(v)) is None or n >= bound,
    "maximum": lambda v, bound: (n := _number(v)) is None or n <= bound,
    "minLength": lambda v, bound: not isinstance(v, str) or len(v) >= bound,
    "maxLength": lambda v, bound: not isinstance(v, str) or len(v) <= bound,
    "minItems": lambda v, bound: not isinstance(v, list) or len(v) >= bound,
    "maxItems": lambda v, bound: not isinstance(v, list) or len(v) <= bound,
    "pattern": lambda v, found: not isinstance(v, str) or re.search(found, v) is not None,
    "anyOf": lambda v, schemas: any(_fits(v, one) for one in schemas),
    "allOf": lambda v, schemas: all(_fits(v, one) for one in schemas),
}


def _closed(value: Json, schema: Mapping[str, Json]) -> bool:
    """`additionalProperties`, the one keyword that looks at another."""
    rest = schema.get("additionalProperties", True)
    if rest is True or not isinstance(value, dict):
        return True
    others = [v for k, v in value.items() if k not in schema.get("properties", {})]
    return not others if rest is False else all(_fits(v, rest) for v in others)


def _fits(value: Json, schema: Json) -> bool:
    if isinstance(schema, bool):
        return schema
    known = ((KEYWORDS[k], wanted) for k, wanted in schema.items() if k in KEYWORDS)
    return all(holds(value, wanted) for holds, wanted in known) and _closed(value, schema)


def _inner(schema: Mapping[str, Json]) -> list[Json]:
    own = [*schema.get("properties", {}).values(), *schema.get("anyOf", ())]
    own += schema.get("allOf", ())
    return own + [schema[k] for k in ("items", "additionalProperties") if k in schema]


def _check_schema(schema: Json) -> None:
    if isinstance(schema, bool):
        return
    if not isinstance(schema, Mapping):
        raise BenchError(f"a schema is an object, found {type(schema).__name__}")
    known = {*KEYWORDS, *ANNOTATIONS, "additionalProperties"}
    if unknown := sorted(set(schema) - known):
        raise BenchError(f"keyword {unknown[0]!r} is not supported")
    types = schema.get("type", [])
    for name in [types] if isinstance(types, str) else types:
        if name not in TYPES:
            raise BenchError(f"type {name!r} is not a JSON type")
    if "pattern" in schema:
        _check_regex(schema["pattern"])
    for inner in _inner(schema):
        _check_schema(inner)


def _check_regex(found: Json) -> None:
    try:
        re.compile(found)
    except (re.error, TypeError) as error:
        raise BenchError(f"{found!r} is no regular expression ({error})") from error


def _check_tokens(value: Json) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise BenchError(f"{value!r} is not a number of tokens")


def _check_name(value: Json) -> None:
    if not isinstance(value, str):
        raise BenchError(f"{value!r} is not a finish reason")


CHECKS: Mapping[str, Callable[[Json], None]] = {
    "tokens": _check_tokens,
    "finish_reason": _check_name,
    "regex": _check_regex,
    "json_schema": _check_schema,
}


def check_validator(validator: Mapping[str, Json], name: str) -> None:
    """Refuse a validator that could not judge as it says.

    Raises:
        BenchError: a key is unknown or its value unusable; the message names prompt and key.
    """
    for key, value in validator.items():
        if key not in CHECKS:
            raise BenchError(f"{name}: validator.{key}: not one of {', '.join(CHECKS)}")
        try:
            CHECKS[key](value)
        except BenchError as error:
            raise BenchError(f"{name}: validator.{key}: {error}") from error


def _is_json(text: str, schema: Json) -> bool:
    try:
        return _fits(orjson.loads(text), schema)
    except orjson.JSONDecodeError:
        return False


HOLDS: Mapping[str, Callable[[Response, Json], bool]] = {
    "tokens": lambda r, n: r.completion_tokens == n,
    "finish_reason": lambda r, wanted: r.finish_reason == wanted,
    "regex": lambda r, found: re.search(found, r.text) is not None,
    "json_schema": lambda r, schema: _is_json(r.text, schema),
}


def task_fault(validator: Mapping[str, Json], response: Response) -> str | None:
    """Return `validator_<key>` for the first part that the response fails; None if it passes."""
    failed = (k for k, wanted in validator.items() if not HOLDS[k](response, wanted))
    return next((f"validator_{k}" for k in failed), None)

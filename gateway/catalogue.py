"""Answers without an engine: which models a caller may use, and how long a prompt is.

Pure: no I/O, no clock.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import orjson

from gateway.contract import Answer, json_answer
from gateway.domain import Outcome, Principal, Refused
from gateway.schema import Model

__all__ = ["counted_answer", "models_answer"]


def models_answer(
    models: Mapping[str, Model], principal: Principal, name: str | None = None
) -> Answer:
    """The models that ``principal`` may use, in OpenAI's form: the list, or the one of ``name``.

    Raises:
        Refused: ``not_found`` for a name that leads to none of them.
    """
    rows = [
        _row(shown, model, parent)
        for public, model in models.items()
        for shown, grant, parent in _names(public, model)
        if principal.models is None or grant in principal.models
    ]
    if name is None:
        return _json({"object": "list", "data": rows})
    found = [row for row in rows if row["id"] == name]
    if not found:
        message = f"The model {name[:80]!r} does not exist."
        raise Refused(Outcome.NOT_FOUND, message, param="model")
    return _json(found[0])


def counted_answer(tokens: int) -> Answer:
    """The answer to Anthropic's count_tokens, as vLLM writes it."""
    context = {"original_input_tokens": tokens}
    return _json({"input_tokens": tokens, "context_management": context})


def _names(public: str, model: Model) -> Iterator[tuple[str, str, str | None]]:
    """Each name of a model: as shown, as granted, and of an adapter the model it adapts."""
    for name in (public, *model.aliases):
        yield name, public, None
    for name in model.loras:
        yield name, name, public


def _row(name: str, model: Model, parent: str | None) -> dict[str, Any]:
    row = {
        "id": name,
        "object": "model",
        "created": 0,
        "owned_by": "sluicegate",
        "max_model_len": model.max_model_len,
    }
    return row if parent is None else {**row, "parent": parent}


def _json(value: object) -> Answer:
    return json_answer(200, Outcome.COMPLETED, orjson.dumps(value))

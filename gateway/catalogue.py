"""Says which models a caller may use, by their public names and aliases.

Pure: no I/O, no clock.
"""

from collections.abc import Mapping

import orjson

from gateway.contract import Answer, json_answer
from gateway.domain import Outcome, Principal
from gateway.schema import Model

__all__ = ["models_answer"]


def models_answer(models: Mapping[str, Model], principal: Principal) -> Answer:
    """The list of models in OpenAI's form, of what ``principal`` may use."""
    rows = [
        {"id": n, "object": "model", "owned_by": "sluicegate", "max_model_len": model.max_model_len}
        for name, model in models.items()
        if principal.models is None or name in principal.models
        for n in (name, *model.aliases)
    ]
    body = orjson.dumps({"object": "list", "data": rows})
    return json_answer(200, Outcome.COMPLETED, body)

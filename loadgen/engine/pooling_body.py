"""Reads what is asked of a pooling model: embeddings, pooling, classification, scores, ranks.

Pure: no I/O, no clock.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field

from loadgen.engine.bodies import Prompt, TokenId, Truncation, prompts_of
from loadgen.engine.refusals import ApiError, bad_request, invalid, parse

__all__ = ["PoolingAsked", "read_pooling", "read_rerank", "read_score"]

# The names that the two sides of a score go by, in the order in which vLLM tries them.
SIDES = (("queries", "documents"), ("queries", "items"), ("data_1", "data_2"), ("text_1", "text_2"))


@dataclass(frozen=True, slots=True)
class PoolingAsked:
    """One request: a chat body, prompts or pairs of texts, and how to answer.

    ``documents`` are the texts that a rerank answer repeats; ``top_n`` 0 means all of them.
    """

    model: str | None
    request_id: str | None
    priority: int
    truncation: Truncation
    chat_body: Mapping[str, Any] | None = None
    prompts: tuple[Prompt, ...] = ()
    pairs: tuple[tuple[str, str], ...] = ()
    add_special_tokens: bool = True
    encoding: Literal["float", "base64"] = "float"
    dimensions: int | None = None
    task: str | None = None
    top_n: int = 0

    @property
    def documents(self) -> tuple[str, ...]:
        """The second texts of all pairs."""
        return tuple(second for _, second in self.pairs)


class _Body(BaseModel):
    model: str | None = None
    user: str | None = None
    request_id: str | None = None
    priority: Annotated[int, Field(ge=-(2**63), le=2**63 - 1)] = 0
    truncate_prompt_tokens: Annotated[int, Field(ge=-1)] | None = None
    truncation_side: Literal["left", "right"] | None = None


class _InputBody(_Body):
    input: str | list[str] | list[TokenId] | list[list[TokenId]] | None = None
    messages: list[dict[str, Any]] | None = None
    add_special_tokens: bool | None = None
    add_generation_prompt: bool = False
    encoding_format: Literal["float", "base64", "bytes", "bytes_only"] = "float"
    dimensions: int | None = None
    task: str | None = None


class _PairBody(_Body):
    instruction: str | None = None


class _RerankBody(_PairBody):
    query: str
    documents: str | list[str]
    top_n: Annotated[int, Field(ge=0)] = 0


def read_pooling(body: Any) -> PoolingAsked:
    """Read an /v1/embeddings, /pooling or /classify body; raises ApiError."""
    if isinstance(body, dict) and "normalize" in body:
        message = "Parameter `normalize` was removed; use `use_activation` instead."
        raise ApiError(400, f"{message} (parameter=normalize)", "BadRequestError", "normalize")
    chat = isinstance(body, dict) and "messages" in body
    parsed = parse(_InputBody, body, required="messages" if chat else "input")
    if parsed.encoding_format not in ("float", "base64"):
        raise bad_request(f"{parsed.encoding_format} is not supported by the simulated engine")
    special = parsed.add_special_tokens
    return PoolingAsked(
        **_common(parsed),
        chat_body={"add_generation_prompt": False, **body} if chat else None,
        prompts=prompts_of(parsed.input) if parsed.input else (),
        add_special_tokens=(not chat) if special is None else special,
        encoding="base64" if parsed.encoding_format == "base64" else "float",
        dimensions=parsed.dimensions,
        task=parsed.task,
    )


def read_score(body: Any) -> PoolingAsked:
    """Read a /score body, its sides named in one of four ways; raises ApiError."""
    parsed = parse(_PairBody, body)
    for first, second in SIDES:
        if first in body and second in body:
            pairs = _pairs(_texts(body, first), _texts(body, second))
            return PoolingAsked(**_common(parsed), pairs=pairs)
    missing = {"type": "missing", "msg": "Field required", "input": body}
    faults = [{**missing, "loc": ("body", name)} for sides in SIDES for name in sides]
    raise invalid([fault for fault in faults if fault["loc"][1] not in body])


def read_rerank(body: Any) -> PoolingAsked:
    """Read a /rerank body; raises ApiError."""
    parsed = parse(_RerankBody, body)
    pairs = _pairs([parsed.query], _texts(body, "documents"))
    return PoolingAsked(**_common(parsed), pairs=pairs, top_n=parsed.top_n)


def _common(parsed: _Body) -> dict[str, Any]:
    return {
        "model": parsed.model,
        "request_id": parsed.request_id,
        "priority": parsed.priority,
        "truncation": Truncation(parsed.truncate_prompt_tokens, parsed.truncation_side),
    }


def _texts(body: Mapping[str, Any], name: str) -> list[str]:
    value = body[name]
    texts = value if isinstance(value, list) else [value]
    for text in texts:
        if isinstance(text, dict):
            raise bad_request("MultiModalParam is not supported for the simulated engine")
        if not isinstance(text, str):
            fault = {"type": "string_type", "msg": "Input should be a valid string", "input": text}
            raise invalid([{**fault, "loc": ("body", name)}])
    return texts


def _pairs(firsts: list[str], seconds: list[str]) -> tuple[tuple[str, str], ...]:
    if len(firsts) > 1 and len(firsts) != len(seconds):
        raise bad_request("Input lengths must be either 1:1, 1:N or N:N")
    if not firsts:
        raise bad_request("At least one text element must be given")
    if not seconds:
        raise bad_request("At least one text_pair element must be given")
    if len(firsts) == 1:
        firsts = firsts * len(seconds)
    return tuple(zip(firsts, seconds, strict=True))

"""The table of surfaces: decides which paths there are and what holds for each of them.

One row per surface: its paths and method, where it goes at the engine, the form of its body and
of its errors, how its streams end, and by which rule its requests are classified. Everything
that differs between surfaces and is not a parser is here. Facts about the engine are of vLLM
0.32. Pure: no I/O, no clock.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType

from gateway.domain import Surface

__all__ = ["DEFAULT_SURFACES", "SURFACES", "BodyForm", "EndRule", "ErrorForm", "Row"]


class BodyForm(StrEnum):
    """How a surface's request body is written."""

    NONE = "none"
    JSON = "json"
    MULTIPART = "multipart"


class ErrorForm(StrEnum):
    """How a surface writes its errors, in answers and in streams."""

    OPENAI = "openai"
    RESPONSES = "responses"
    ANTHROPIC = "anthropic"


@dataclass(frozen=True, slots=True)
class EndRule:
    """What a complete stream of a surface must have shown.

    Streams of unnamed events end with one whose data is ``mark``, and carry a finish reason.
    Streams of named events (``ends`` is not empty) end with one of the names in ``ends``; one in
    ``fails`` is an error; those in ``tells`` say more, and those in ``heralds`` come before the
    engine has taken the request, so they are no output. ``good`` holds the finish reasons that
    are a success. Names are looked at rather than data, which may quote what a caller wrote.
    """

    mark: bytes
    good: frozenset[str]
    ends: frozenset[bytes] = frozenset()
    fails: frozenset[bytes] = frozenset()
    tells: frozenset[bytes] = frozenset()
    heralds: frozenset[bytes] = frozenset()

    @property
    def speaking(self) -> frozenset[bytes]:
        """The names that mean something."""
        return self.ends | self.fails | self.tells | self.heralds


@dataclass(frozen=True, slots=True)
class Row:
    """What holds for one surface.

    ``paths``: the accepted spellings; the first is where it goes at the engine. ``ends``: how
    its streams end, ``None`` where it has none. ``generates``: its answer is made of output
    tokens, which are charged. ``by_default``: a model serves it without being told so in its
    configuration. ``rule``: how its requests are classified, in one sentence.
    """

    paths: tuple[str, ...]
    rule: str
    method: str = "POST"
    body: BodyForm = BodyForm.JSON
    errors: ErrorForm = ErrorForm.OPENAI
    ends: EndRule | None = None
    generates: bool = False
    by_default: bool = False


# OpenAI's, and vLLM's ``repetition``: the caller's own ``repetition_detection`` found one.
_FINISHED = frozenset(
    {"stop", "length", "tool_calls", "function_call", "content_filter", "repetition"}
)
_CHUNKS = EndRule(b"[DONE]", _FINISHED)
_MESSAGE_EVENTS = EndRule(
    b"",
    frozenset({"end_turn", "max_tokens", "stop_sequence", "tool_use"}),
    ends=frozenset({b"message_stop"}),
    fails=frozenset({b"error"}),
    tells=frozenset({b"message_start", b"message_delta"}),
)
_RESPONSE_EVENTS = EndRule(
    b"",
    frozenset({"completed", "incomplete"}),
    ends=frozenset({b"response.completed", b"response.incomplete"}),
    fails=frozenset({b"error", b"response.failed"}),
    heralds=frozenset({b"response.created", b"response.in_progress"}),
)
_INPUTS = (
    "the sum over all inputs of their exact tokens with the tokenizer's specials, or of the "
    "token ids given, cut to truncate_prompt_tokens; one slot per input, no output"
)
_PAIRS = (
    "an estimate: the sum over all pairs of the tokens of both texts and the specials of a pair, "
    "as the model's own joining of a pair is not known here; one slot per pair, no output"
)

SURFACES: Mapping[Surface, Row] = MappingProxyType(
    {
        Surface.CHAT: Row(
            ("/v1/chat/completions",),
            "the exact tokens of the rendered chat template (messages, parts, tools), cut to "
            "truncate_prompt_tokens; images and audio by the model's configured estimate; n slots",
            ends=_CHUNKS,
            generates=True,
            by_default=True,
        ),
        Surface.COMPLETIONS: Row(
            ("/v1/completions",),
            "the sum over all prompts of their exact tokens or of the token ids given, cut to "
            "truncate_prompt_tokens; the larger of n and best_of slots per prompt",
            ends=_CHUNKS,
            generates=True,
            by_default=True,
        ),
        Surface.RESPONSES: Row(
            ("/v1/responses",),
            "the exact tokens of the chat that the engine makes of instructions, input items and "
            "function tools; images by the model's configured estimate; one slot",
            errors=ErrorForm.RESPONSES,
            ends=_RESPONSE_EVENTS,
            generates=True,
            by_default=True,
        ),
        Surface.MESSAGES: Row(
            ("/v1/messages",),
            "the exact tokens of the chat that the engine makes of system, content blocks and "
            "tools; images by the model's configured estimate; one slot",
            errors=ErrorForm.ANTHROPIC,
            ends=_MESSAGE_EVENTS,
            generates=True,
            by_default=True,
        ),
        Surface.COUNT_TOKENS: Row(
            ("/v1/messages/count_tokens",),
            "as messages; answered here from the count, no engine is asked",
            errors=ErrorForm.ANTHROPIC,
            by_default=True,
        ),
        Surface.TOKENIZE: Row(
            ("/tokenize",),
            "the exact tokens of the prompt or of the rendered chat; one slot, no output",
            by_default=True,
        ),
        Surface.DETOKENIZE: Row(
            ("/detokenize",), "the number of token ids; one slot, no output", by_default=True
        ),
        Surface.EMBEDDINGS: Row(("/v1/embeddings",), _INPUTS),
        Surface.CLASSIFY: Row(("/classify",), _INPUTS),
        Surface.POOLING: Row(("/pooling",), _INPUTS),
        Surface.SCORE: Row(("/v1/score", "/score"), _PAIRS),
        Surface.RERANK: Row(("/v1/rerank", "/rerank", "/v2/rerank"), _PAIRS),
        Surface.TRANSCRIPTIONS: Row(
            ("/v1/audio/transcriptions",),
            "the model's configured transcription_tokens, whatever the file; one slot",
            body=BodyForm.MULTIPART,
            ends=_CHUNKS,
            generates=True,
        ),
        Surface.MODELS: Row(
            ("/v1/models",),
            "not classified; answered here from the configuration",
            method="GET",
            body=BodyForm.NONE,
            by_default=True,
        ),
    }
)

# What a model that generates text serves; the others say which kind of model it is.
DEFAULT_SURFACES = frozenset(surface for surface, row in SURFACES.items() if row.by_default)

"""Words refusals as vLLM does: its validation faults, its limits, its plain errors.

A refusal is an ``ApiError`` with vLLM's status, message, type and param.

Pure: no I/O, no clock.
"""

from collections.abc import Mapping
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

__all__ = ["ApiError", "bad_request", "invalid", "not_found", "parse", "refused", "too_long"]

MAX_REPORTED_ERRORS = 10
MAX_ERROR_CHARS = 1000
MAX_INPUT_CHARS = 200

Model = TypeVar("Model", bound=BaseModel)


class ApiError(Exception):
    """A refusal in vLLM's shape; ``kind`` is the error's ``type``.

    Without a kind it is the framework's below vLLM, which words it as ``detail`` alone.
    """

    def __init__(self, status: int, message: str, kind: str, param: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.kind = kind
        self.param = param


def parse(kind: type[Model], body: Any, required: str | None = None) -> Model:
    """Check a body against a pydantic model; ``required`` may not be null either.

    Raises:
        ApiError: It does not fit, worded as vLLM words it.
    """
    if body is None or (required and isinstance(body, dict) and body.get(required) is None):
        place = ("body",) if body is None else ("body", required)
        fault = {"type": "missing", "loc": place, "msg": "Field required"}
        raise invalid([{**fault, "input": body}])
    if not isinstance(body, dict):
        said = "Input should be a valid dictionary or object to extract fields from"
        fault = {"type": "model_attributes_type", "loc": ("body",), "msg": said}
        raise invalid([{**fault, "input": body}])
    try:
        return kind.model_validate(body)
    except ValidationError as error:
        faults: list[Any] = error.errors(include_url=False)
        raise invalid([{**each, "loc": ("body", *each["loc"])} for each in faults]) from None


def invalid(faults: list[dict[str, Any]]) -> ApiError:
    """Word validation faults as vLLM's handler does, bounded in number and size."""
    label = "error" if len(faults) == 1 else "errors"
    lines = [f"{len(faults)} validation {label}:"]
    lines += [f"  {_fault_text(fault)}" for fault in faults[:MAX_REPORTED_ERRORS]]
    if len(faults) > MAX_REPORTED_ERRORS:
        more = len(faults) - MAX_REPORTED_ERRORS
        lines.append(f"  ...and {more} more {'error' if more == 1 else 'errors'}")
    return ApiError(400, "\n".join(lines), "Bad Request", _location(faults[0]))


def _location(fault: Mapping[str, Any]) -> str:
    """Where the fault is, without the names of union branches."""
    markers = ("str", "int", "dict", "constrained-int")
    parts = (str(part) for part in fault["loc"])
    return ".".join(part for part in parts if part not in markers and "[" not in part)


def _fault_text(fault: Mapping[str, Any]) -> str:
    shown = {**fault, "loc": _location(fault), "input": _input_text(fault.get("input"))}
    text = str(shown)
    return text if len(text) <= MAX_ERROR_CHARS else text[:MAX_ERROR_CHARS] + "...[truncated]"


def _input_text(value: object) -> object:
    if isinstance(value, list | dict):
        return f"<{type(value).__name__} of {len(value)} items>"
    text = value if isinstance(value, str) else str(value)
    return text if len(text) <= MAX_INPUT_CHARS else text[:MAX_INPUT_CHARS] + "...[truncated]"


def too_long(tokens: int, max_model_len: int) -> ApiError:
    """The refusal of a prompt that exceeds the context even without output.

    vLLM stops encoding a text one token beyond the context, hence its "at least".
    """
    return refused(
        f"This model's maximum context length is {max_model_len} tokens. However, your prompt "
        f"contains {'at least ' if tokens == max_model_len + 1 else ''}{tokens} input tokens, "
        "which exceeds this limit even without any output tokens. Please reduce the length of "
        "the input prompt.",
        "input_tokens",
        tokens,
    )


def refused(message: str, param: str, value: float | None = None) -> ApiError:
    """A refusal that names the parameter and its value in the message, as vLLM's own errors do."""
    named = f"parameter={param}" if value is None else f"parameter={param}, value={value}"
    return ApiError(400, f"{message} ({named})", "BadRequestError", param)


def bad_request(message: str) -> ApiError:
    """A plain refusal by status 400."""
    return ApiError(400, message, "BadRequestError")


def not_found(message: str, param: str | None = None) -> ApiError:
    """A refusal by status 404."""
    return ApiError(404, message, "NotFoundError", param)

"""Reads what operators send and answers in JSON: what all endpoints of their listener share."""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, TypeVar

import orjson
from pydantic import BaseModel, ValidationError
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from gateway.manifest_fields import RecordError
from gateway.moves import RouteError
from gateway.state import StateError

__all__ = ["Body", "answered", "as_object", "json_answer", "shaped"]

Body = Callable[[Request], Awaitable[bytes]]
_M = TypeVar("_M", bound=BaseModel)


def json_answer(
    content: object, status: int = 200, headers: Mapping[str, str] | None = None
) -> Response:
    """An answer of one JSON value and a line end."""
    body = orjson.dumps(content, option=orjson.OPT_APPEND_NEWLINE)
    return Response(body, status, headers, media_type="application/json")


async def answered(request: Request, work: Awaitable[dict[str, Any]]) -> Response:
    """What the work that was asked for brings, as JSON.

    Raises:
        HTTPException: 400 for what can't be done, 503 where the state can't be read or written:
            who asked for a change is told that there was none.
    """
    try:
        return json_answer(await work)
    except (RecordError, RouteError) as error:
        raise HTTPException(400, str(error)) from error
    except StateError as error:
        more = "" if request.method in {"GET", "HEAD"} else "; nothing was changed"
        raise HTTPException(503, f"state: {error}{more}") from error


def as_object(body: bytes) -> dict[str, Any]:
    """A body that must be a JSON object; raises ``HTTPException`` 400."""
    try:
        found = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise HTTPException(400, f"the body is not JSON: {error}") from error
    if not isinstance(found, dict):
        raise HTTPException(400, "the body is no JSON object")
    return found


def shaped(shape: type[_M], body: bytes | Mapping[str, Any]) -> _M:
    """A body of this shape; raises ``HTTPException`` 400, naming the first key that is wrong."""
    try:
        return shape.model_validate(as_object(body) if isinstance(body, bytes) else body)
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False)[0]
        where = ".".join(map(str, first["loc"])) or "the body"
        reason = f"{first['msg'][0].lower()}{first['msg'][1:]}"
        raise HTTPException(400, f"{where}: {reason}") from error

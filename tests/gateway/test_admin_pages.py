"""What the operators' endpoints make of bodies, and of work that fails."""

import pytest
from pydantic import BaseModel, ConfigDict
from starlette.exceptions import HTTPException
from starlette.requests import Request

from gateway.admin_pages import answered, as_object, json_answer, shaped
from gateway.manifest_fields import RecordError
from gateway.moves import RouteError
from gateway.state import StateError


class Wanted(BaseModel):
    """A body of one key."""

    model_config = ConfigDict(extra="forbid", strict=True)
    revision: int


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"{", "the body is not JSON: "),
        (b"[1]", "the body is no JSON object"),
        (b"{}", "revision: field required"),
        (b'{"revision": "1"}', "revision: input should be a valid integer"),
        (b'{"revision": 1, "more": 2}', "more: extra inputs are not permitted"),
    ],
)
def test_a_body_of_another_shape_is_refused_by_its_first_wrong_key(
    body: bytes, reason: str
) -> None:
    with pytest.raises(HTTPException) as refused:
        shaped(Wanted, body)
    assert refused.value.status_code == 400
    assert reason in refused.value.detail


def asked(method: str) -> Request:
    return Request({"type": "http", "method": method})


def test_a_body_may_be_read_already() -> None:
    assert shaped(Wanted, b'{"revision": 3}') == shaped(Wanted, as_object(b'{"revision": 3}'))
    with pytest.raises(HTTPException, match="the body is no JSON object"):
        as_object(b"3")


@pytest.mark.parametrize(
    ("method", "fault", "status", "said"),
    [
        ("POST", RouteError("demo/short: no"), 400, "demo/short: no"),
        ("GET", RecordError("owner: no"), 400, "owner: no"),
        ("POST", StateError("/x: is full"), 503, "state: /x: is full; nothing was changed"),
        ("GET", StateError("/x: is full"), 503, "state: /x: is full"),
        ("HEAD", StateError("/x: is full"), 503, "state: /x: is full"),
    ],
)
async def test_work_that_fails_is_answered_by_who_is_at_fault(
    method: str, fault: Exception, status: int, said: str
) -> None:
    async def work() -> dict[str, object]:
        raise fault

    with pytest.raises(HTTPException) as refused:
        await answered(asked(method), work())
    assert (refused.value.status_code, refused.value.detail) == (status, said)


async def test_work_that_succeeds_is_answered_with_one_line_of_json() -> None:
    async def work() -> dict[str, object]:
        return {"revision": 2}

    assert (await answered(asked("GET"), work())).body == b'{"revision":2}\n'
    assert json_answer({}, 409).status_code == 409

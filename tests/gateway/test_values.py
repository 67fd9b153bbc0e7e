"""Which headers of engines' answers an operator may let through to callers."""

import pytest
from pydantic import TypeAdapter, ValidationError

from gateway.domain import HOP_BY_HOP
from gateway.values import PassedHeader

PASSED = TypeAdapter[str](PassedHeader)


@pytest.mark.parametrize(
    "name",
    [
        *("tenant", "telemetry-id", "test-run", "upgrade-insecure-requests", "trailers-seen"),
        *("connection-id", "hostname", "x-request-id-of-engine", "openai-processing-ms"),
    ],
)
def test_a_header_that_only_begins_like_one_of_ours_may_pass(name: str) -> None:
    assert PASSED.validate_python(name) == name


@pytest.mark.parametrize(
    "name",
    [
        *sorted(name.decode() for name in HOP_BY_HOP),
        *("content-type", "content-encoding", "x-sluicegate-class", "x-accel-buffering"),
        *("x-request-id", "retry-after", "retry-after-ms", "x-should-retry", "cache-control"),
        *("set-cookie", "Tenant", "a b", ""),
    ],
)
def test_a_header_that_an_engine_has_no_say_in_is_refused(name: str) -> None:
    with pytest.raises(ValidationError):
        PASSED.validate_python(name)

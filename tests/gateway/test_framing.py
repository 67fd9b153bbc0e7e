"""Which heads two readers could understand differently."""

import pytest

from gateway.domain import Outcome
from gateway.framing import judge

HOST = (b"host", b"x")


@pytest.mark.parametrize("value", [b"chunked", b"CHUNKED"])
def test_chunks_are_taken_from_those_who_know_them_and_from_nobody_else(value: bytes) -> None:
    headers = [HOST, (b"transfer-encoding", value)]
    assert judge(b"/", headers, "1.1", upgrade=False) is None
    refused = judge(b"/", headers, "1.0", upgrade=False)
    assert refused is not None
    assert refused[0] is Outcome.BAD_REQUEST


def test_a_length_is_taken_from_both() -> None:
    for version in ("1.0", "1.1"):
        assert judge(b"/", [HOST, (b"content-length", b"3")], version, upgrade=False) is None

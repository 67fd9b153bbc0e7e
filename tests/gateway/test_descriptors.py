"""File descriptors: callers leave some to engines and operators."""

import resource
import subprocess
import sys

import pytest

from gateway.descriptors import spare_connections


@pytest.mark.parametrize("descriptors", [1, 64, 120, 1024, 65536])
def test_callers_leave_room_for_an_engine_each_and_for_operators(descriptors: int) -> None:
    callers = spare_connections(descriptors, 256)
    assert callers >= 1
    if descriptors >= 128:
        assert 2 * callers + 64 <= descriptors
    assert callers <= spare_connections(descriptors * 2, 256)


def test_without_a_limit_there_is_none() -> None:
    assert spare_connections(resource.RLIM_INFINITY, 256) > 10**6


def test_the_soft_limit_is_raised_to_the_hard_one() -> None:
    code = (
        "import resource as r; from gateway.descriptors import raise_limit;"
        "r.setrlimit(r.RLIMIT_NOFILE, (64, 200));"
        "print(raise_limit(), r.getrlimit(r.RLIMIT_NOFILE))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "200 (200, 200)\n"

import os
import subprocess
import sys

import pytest

from loadgen.cpu_priority import ahead_of_servers

CHILD = "import os; print(os.sched_getscheduler(0), os.getpriority(os.PRIO_PROCESS, 0))"


def standing():
    return os.sched_getscheduler(0) & ~os.SCHED_RESET_ON_FORK, os.getpriority(os.PRIO_PROCESS, 0)


def test_priority_is_raised_inside_the_block_only_and_named_by_what_was_obtained():
    before = standing()
    with ahead_of_servers() as obtained:
        inside = standing()
    assert standing() == before
    if inside[0] == os.SCHED_RR:
        assert obtained == "real-time round robin"
    else:
        assert obtained == f"nice {inside[1]}"


def test_a_fault_inside_the_block_gives_the_priority_up_too():
    before = standing()
    with pytest.raises(ValueError, match="planted"), ahead_of_servers():
        int("planted")
    assert standing() == before


def test_a_child_started_inside_does_not_inherit_real_time():
    with ahead_of_servers():
        if standing()[0] != os.SCHED_RR:
            pytest.skip("real-time scheduling is not permitted here: nothing to inherit")
        done = subprocess.run([sys.executable, "-c", CHILD], capture_output=True, check=True)
    assert done.stdout.split() == [str(os.SCHED_OTHER).encode(), b"0"]

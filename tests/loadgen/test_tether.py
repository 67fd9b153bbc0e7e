import os
import signal
import subprocess
import sys
import time

import pytest

from loadgen.tether import tethered

linux = pytest.mark.skipif(sys.platform != "linux", reason="the kernel's own signal")
# Starts a tethered sleeper, tells its id, and waits to be killed.
PARENT = """
import subprocess, sys, time
from loadgen.tether import tethered
child = subprocess.Popen(tethered([sys.executable, "-c", "import time; time.sleep(60)"]),
                         start_new_session=True)
print(child.pid, flush=True)
time.sleep(60)
"""


def running(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    with open(f"/proc/{pid}/stat") as stat:  # noqa: PTH123 - a file of the kernel
        return stat.read().rpartition(")")[2].split()[0] != "Z"


@linux
def test_a_tethered_process_ends_when_its_parent_is_killed():
    parent = subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE)
    pid = int(parent.stdout.readline())
    assert running(pid)
    parent.send_signal(signal.SIGKILL)
    parent.stdout.close()
    parent.wait()
    until = time.monotonic() + 10
    while running(pid):
        assert time.monotonic() < until
        time.sleep(0.02)


def test_the_command_runs_with_its_words_and_its_exit_status():
    words = [sys.executable, "-c", "import sys; print(sys.argv[1]); sys.exit(7)", "a b"]
    done = subprocess.run(tethered(words), capture_output=True, check=False)
    assert (done.stdout.strip(), done.returncode) == (b"a b", 7)


@linux
def test_a_process_whose_parent_is_gone_already_does_not_begin():
    words = tethered([sys.executable, "-c", "print('ran')"])
    words[words.index(str(os.getpid()))] = "1"
    done = subprocess.run(words, capture_output=True, check=False)
    assert (done.stdout, done.returncode) == (b"", 1)

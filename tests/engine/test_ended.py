"""Commands of this folder that are told to end leave nothing running. No engine is started."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
# As an engine that starts: told to end, it goes on.
DEAF = (
    "import os,signal,time;signal.signal(15,signal.SIG_IGN);"
    "print(os.getpid(),flush=True);time.sleep(60)"
)
BEGUN = f"""
import subprocess, sys, time
from pathlib import Path
from tests.engine.vllm import Engine, end_in_order
end_in_order()
process = subprocess.Popen([sys.executable, "-c", {DEAF!r}], start_new_session=True)
try:
    time.sleep(60)
finally:
    Engine("", Path(), Path(), process).stop()
"""
SLEEPS = "import os,time;print(os.getpid(),flush=True);time.sleep(60)"
COMMAND = f"""
import sys
from tests.engine.vllm import carried_out, end_in_order
end_in_order()
sys.exit(carried_out([sys.executable, "-c", {SLEEPS!r}]))
"""


def gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"


@pytest.mark.parametrize("source", [BEGUN, COMMAND], ids=["engine", "command"])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_what_was_begun_ends_with_the_command(source: str, number: signal.Signals) -> None:
    words = [sys.executable, "-c", source]
    with subprocess.Popen(words, cwd=ROOT, stdout=subprocess.PIPE, text=True) as command:
        assert command.stdout is not None
        started = int(command.stdout.readline())
        command.send_signal(number)
        assert command.wait(30) == 128 + number
    until_s = time.monotonic() + 30
    while not gone(started) and time.monotonic() < until_s:
        time.sleep(0.02)
    assert gone(started)

"""Ties a process to the one that started it, so that a killed bench leaves no engine behind.

On Linux the kernel sends a signal when the parent dies, however it dies; elsewhere the command runs
untied, and only an orderly end stops it. What the kernel watches is the parent's *thread*: what is
started from another thread than the main one, which may end much sooner, runs untied too.
"""

import os
import signal
import sys
import threading
from collections.abc import Sequence

__all__ = ["tethered"]

# 1 is PR_SET_PDEATHSIG. The parent may have died before the call: then its place is taken.
SOURCE = (
    "import ctypes,os,sys;n=int(sys.argv[1]);p=int(sys.argv[2]);"
    "ctypes.CDLL(None).prctl(1,n);"
    "os.getppid()==p or sys.exit(1);"
    "os.execvp(sys.argv[3],sys.argv[3:])"
)


def tethered(command: Sequence[str], number: signal.Signals = signal.SIGTERM) -> list[str]:
    """Return a command that runs the given one and gets the signal when this process dies.

    The process keeps its id through it.
    """
    if sys.platform != "linux" or threading.current_thread() is not threading.main_thread():
        return list(command)
    # Without site: it costs a start-up of ten milliseconds instead of fifty.
    return [sys.executable, "-I", "-S", "-c", SOURCE, str(int(number)), str(os.getpid()), *command]

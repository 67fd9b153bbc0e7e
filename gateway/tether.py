"""Decides how a command is started so that it ends with this process, however that ends.

Linux sends a child a signal when the thread that started it is gone, also where the whole process
was killed and could stop nothing. Elsewhere, and from any thread but the main one, it is started as
it is.
"""

import os
import signal
import sys
import threading
from collections.abc import Sequence

__all__ = ["tied"]

# Runs before the command, in the child: ask for the signal (1: PR_SET_PDEATHSIG), make sure that
# the parent was still there then, become the command.
_FIRST = """
import ctypes, os, sys
signal, parent, command = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3:]
ctypes.CDLL(None).prctl(1, signal)
if os.getppid() != parent:
    sys.exit(1)
os.execv(command[0], command)
"""


def tied(command: Sequence[str]) -> list[str]:
    """What runs ``command``, a program by its path, and gets SIGTERM when this process is gone."""
    if sys.platform != "linux" or threading.current_thread() is not threading.main_thread():
        return list(command)
    # Isolated and without site, the interpreter is there in a fifth of its usual time.
    first = [sys.executable, "-I", "-S", "-c", _FIRST]
    return [*first, str(int(signal.SIGTERM)), str(os.getpid()), *command]

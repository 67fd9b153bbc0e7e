"""Picks ports for programs that must be told one before they start.

Asking the kernel for any free port and letting go of it again is no way: it may give the same one
to the next connection that somebody opens. These lie below those that it gives by itself.
"""

import random
import socket
from contextlib import ExitStack

__all__ = ["free_port"]

FIRST, LAST = 12_000, 32_000
_draw = random.SystemRandom()  # processes of one run must not draw alike


def _free(ports: range) -> bool:
    with ExitStack() as stack:
        try:
            for port in ports:
                stack.enter_context(socket.socket()).bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def free_port(several: int = 1) -> int:
    """Return the first of `several` ports in a row that nobody has on this machine's loopback."""
    while True:
        first = _draw.randrange(FIRST, LAST)
        if _free(range(first, first + several)):
            return first

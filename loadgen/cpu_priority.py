"""Lets the measuring process run before the servers it measures, while it measures.

Client and servers share cores in a demonstration. A client that waits for a core stamps late and
sends late, and its lateness would be read as the server's. It uses a few percent of a core and
never spins, so running first costs the servers little. Real-time round robin where the system
permits it, else a raised nice value, else nothing; which one it was is recorded with the run.
Children do not inherit it.
"""

import contextlib
import os
from collections.abc import Iterator

__all__ = ["ahead_of_servers"]

NICE = -10


def _raise() -> str:
    if hasattr(os, "sched_setscheduler"):
        with contextlib.suppress(PermissionError):
            policy = os.SCHED_RR | os.SCHED_RESET_ON_FORK
            os.sched_setscheduler(0, policy, os.sched_param(1))
            return "real-time round robin"
    with contextlib.suppress(PermissionError):
        os.setpriority(os.PRIO_PROCESS, 0, NICE)
    return f"nice {os.getpriority(os.PRIO_PROCESS, 0)}"


def _restore(nice: int) -> None:
    if hasattr(os, "sched_setscheduler"):
        os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))
    os.setpriority(os.PRIO_PROCESS, 0, nice)


@contextlib.contextmanager
def ahead_of_servers() -> Iterator[str]:
    """Raise this process's priority inside the block; yields what was obtained."""
    nice = os.getpriority(os.PRIO_PROCESS, 0)
    obtained = _raise()
    try:
        yield obtained
    finally:
        _restore(nice)

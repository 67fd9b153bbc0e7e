"""Which processes come from one, and which of them still run."""

import time
from pathlib import Path

from tests.e2e.harness import LIMIT_S

__all__ = ["alive", "descendants", "none_left"]


def _stat(pid: int) -> list[str] | None:
    """State, parent and the rest of what the kernel says of a process; None: it is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None


def descendants(pid: int) -> set[int]:
    """Every process below ``pid`` now."""
    numbers = [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]
    parents = {number: int(stat[1]) for number in numbers if (stat := _stat(number))}
    found: set[int] = set()
    below = {pid}
    while below:
        below = {child for child, parent in parents.items() if parent in below} - found
        found |= below
    return found


def alive(pids: set[int]) -> set[int]:
    """Those that run. One that has ended and that nobody has waited for does not."""
    return {pid for pid in pids if (stat := _stat(pid)) and stat[0] != "Z"}


def none_left(pids: set[int]) -> bool:
    """Wait until none of them runs, or until it takes too long."""
    until_s = time.monotonic() + LIMIT_S
    while alive(pids) and time.monotonic() < until_s:
        time.sleep(0.05)
    return not alive(pids)

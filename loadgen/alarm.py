"""Wakes the event loop at an absolute instant of the monotonic clock.

An event loop's own timers round to whole milliseconds and sleep relative to when they were set.
Linux has timerfd: an absolute deadline on the monotonic clock, accurate to tens of microseconds
and without spinning on a core that the server needs too. Elsewhere the loop's timer wakes early
and the last part is spun away.
"""

import asyncio
import ctypes
import os
import platform
import time
from collections.abc import Callable
from typing import Protocol

__all__ = ["Alarm", "SpinAlarm", "TimerfdAlarm", "new_alarm"]

CLOCK_MONOTONIC = 1
TFD_NONBLOCK_CLOEXEC = 0o2004000
TFD_TIMER_ABSTIME = 1
SPIN_NS = 2_000_000


class Alarm(Protocol):
    """Calls back at the instant it was last set to."""

    def set(self, due_ns: int) -> None:
        """Arm for an absolute `time.monotonic_ns`; a past instant fires at once."""

    def close(self) -> None:
        """Disarm and release what the alarm holds."""


class _Timespec(ctypes.Structure):
    _fields_ = (("tv_sec", ctypes.c_long), ("tv_nsec", ctypes.c_long))


class _Itimerspec(ctypes.Structure):
    _fields_ = (("it_interval", _Timespec), ("it_value", _Timespec))


class TimerfdAlarm:
    """An alarm on a kernel timer (Linux)."""

    def __init__(self, loop: asyncio.AbstractEventLoop, on_due: Callable[[], None]) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._fd: int = self._libc.timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK_CLOEXEC)
        if self._fd < 0:
            raise OSError(ctypes.get_errno(), "timerfd_create failed")
        self._loop, self._on_due = loop, on_due
        loop.add_reader(self._fd, self._fire)

    def _fire(self) -> None:
        try:
            os.read(self._fd, 8)
        except BlockingIOError:
            return  # set again after it became readable: the new instant is still to come
        self._on_due()

    def set(self, due_ns: int) -> None:
        """Arm for an absolute instant. Zero would disarm, hence at least one nanosecond."""
        due = _Timespec(*divmod(max(due_ns, 1), 1_000_000_000))
        spec = _Itimerspec(_Timespec(0, 0), due)
        if self._libc.timerfd_settime(self._fd, TFD_TIMER_ABSTIME, ctypes.byref(spec), None) != 0:
            raise OSError(ctypes.get_errno(), "timerfd_settime failed")

    def close(self) -> None:
        """Stop watching and close the timer; closing twice is the same as once."""
        if self._fd >= 0:
            self._loop.remove_reader(self._fd)
            os.close(self._fd)
            self._fd = -1


class SpinAlarm:
    """An alarm on the loop's timer, its last two milliseconds spun away."""

    def __init__(self, loop: asyncio.AbstractEventLoop, on_due: Callable[[], None]) -> None:
        self._loop, self._on_due = loop, on_due
        self._handle: asyncio.TimerHandle | None = None

    def _fire(self, due_ns: int) -> None:
        while time.monotonic_ns() < due_ns:
            pass
        self._on_due()

    def set(self, due_ns: int) -> None:
        """Arm for an absolute instant."""
        self.close()
        delay_s = max(0, due_ns - SPIN_NS - time.monotonic_ns()) / 1e9
        self._handle = self._loop.call_later(delay_s, self._fire, due_ns)

    def close(self) -> None:
        """Cancel what is armed."""
        if self._handle is not None:
            self._handle.cancel()


def new_alarm(loop: asyncio.AbstractEventLoop, on_due: Callable[[], None]) -> Alarm:
    """Return the most precise alarm this system has."""
    kind: type[TimerfdAlarm | SpinAlarm] = (
        TimerfdAlarm if platform.system() == "Linux" else SpinAlarm
    )
    return kind(loop, on_due)

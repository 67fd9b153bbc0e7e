"""Writes log lines without ever making a request wait for the disk or a slow reader.

Each line gets the wall time. Lines gather in a queue; one thread writes what has gathered, at most
ten times a second, and sleeps while there is nothing. Beyond a bound lines are dropped and counted,
and the count is written as a line of its own.
"""

import threading
from collections import deque
from datetime import UTC, datetime
from time import time_ns
from traceback import extract_tb
from typing import BinaryIO

import orjson

__all__ = ["Journal"]

EVERY_S = 0.1
CLOSE_S = 2.0


class Journal:
    """Log lines on their way to one file.

    Args:
        file: where lines go; flushed after each batch.
        max_lines: lines that may wait.
    """

    def __init__(self, file: BinaryIO, max_lines: int = 10_000) -> None:
        self._file = file
        self._max_lines = max_lines
        self._lines: deque[bytes] = deque()
        self._dropped = 0
        self._second, self._text = -1, b""
        self._some, self._closed = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run, name="journal", daemon=True)
        self._thread.start()

    def line(self, line: bytes) -> None:
        """Write one JSON object and line soon, with its time, or count it as dropped."""
        if len(self._lines) < self._max_lines:
            self._lines.append(b'{"at":"%b",%b' % (self._now(), line[1:]))
            if not self._some.is_set():
                self._some.set()
        else:
            self._dropped += 1

    def _now(self) -> bytes:
        """The wall time to a millisecond, put together anew once a second."""
        second, of_second = divmod(time_ns(), 1_000_000_000)
        if second != self._second:
            self._second = second
            self._text = datetime.fromtimestamp(second, UTC).strftime("%Y-%m-%dT%H:%M:%S").encode()
        return b"%b.%03d+00:00" % (self._text, of_second // 1_000_000)

    def event(self, event: str, **facts: object) -> None:
        """Write a change of state as one JSON line."""
        self.line(orjson.dumps({"event": event, **facts}, option=orjson.OPT_APPEND_NEWLINE))

    def fault(self, error: Exception, **facts: object) -> None:
        """Write where the program broke and on what kind of error, but not its message.

        The message may quote a caller.
        """
        where = [f"{f.filename}:{f.lineno} {f.name}" for f in extract_tb(error.__traceback__)]
        self.event("internal_error", **facts, error=type(error).__name__, trace=where)

    def close(self) -> None:
        """Write what waits and stop; a reader that does not read is not waited for."""
        self._closed.set()
        self._some.set()
        self._thread.join(CLOSE_S)

    def _run(self) -> None:
        while not self._closed.wait(EVERY_S):
            self._some.wait()
            self._some.clear()
            self._write()
        self._write()

    def _write(self) -> None:
        lines = [self._lines.popleft() for _ in range(len(self._lines))]
        count, dropped, self._dropped = len(lines), self._dropped, 0
        if dropped:
            lost = {"event": "log_lines_dropped", "count": dropped}
            lines.append(orjson.dumps(lost, option=orjson.OPT_APPEND_NEWLINE))
        if not lines:
            return
        try:
            self._file.write(b"".join(lines))
            self._file.flush()
        except OSError:  # a full disk or a reader that left: told as soon as writing works again
            self._dropped += count + dropped
            self._some.set()

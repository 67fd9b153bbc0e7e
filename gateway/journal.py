"""Writes log lines without ever making a request wait for the disk or a slow reader.

Each line gets the wall time. Lines gather in a queue; one thread writes what has gathered, at most
ten times a second, and sleeps while there is nothing. Beyond a bound lines are dropped and counted,
and the count is written as a line of its own.
"""

import threading
from collections import deque
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from time import time_ns
from traceback import extract_tb
from typing import BinaryIO

import orjson

__all__ = ["Journal", "Line"]

EVERY_S = 0.1
CLOSE_S = 2.0

Line = bytes | Callable[[], bytes]


class Journal:
    """Log lines on their way to one file.

    Args:
        file: where lines go; flushed after each batch.
        max_lines: lines that may wait.
    """

    def __init__(self, file: BinaryIO, max_lines: int = 10_000) -> None:
        self._file = file
        self._max_lines = max_lines
        self._lines: deque[tuple[int, Line, Mapping[str, object]]] = deque()
        self._dropped = 0
        self._second, self._text = -1, b""
        self._some, self._closed = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run, name="journal", daemon=True)
        self._thread.start()

    def line(self, line: Line, **facts: object) -> None:
        """Write one JSON object and line soon, with the time of now, or count it as dropped.

        Args:
            line: the line, or what makes it, in the thread: to make those that have gathered one
                after another costs half of making each between other work.
            facts: what to say beside the fault, should it fail.
        """
        if len(self._lines) < self._max_lines:
            self._lines.append((time_ns(), line, facts))
            if not self._some.is_set():
                self._some.set()
        else:
            self._dropped += 1

    def event(self, event: str, **facts: object) -> None:
        """Write a change of state as one JSON line."""
        self.line(_event(event, facts))

    def fault(self, error: Exception, **facts: object) -> None:
        """Write where the program broke and on what kind of error, but not its message.

        The message may quote a caller.
        """
        self.line(_fault(error, facts))

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
        lines = [self._made(*self._lines.popleft()) for _ in range(len(self._lines))]
        count, dropped, self._dropped = len(lines), self._dropped, 0
        if dropped:
            lines.append(self._dated(time_ns(), _event("log_lines_dropped", {"count": dropped})))
        if not lines:
            return
        try:
            self._file.write(b"".join(lines))
            self._file.flush()
        except OSError:  # a full disk or a reader that left: told as soon as writing works again
            self._dropped += count + dropped
            self._some.set()

    def _made(self, at_ns: int, line: Line, facts: Mapping[str, object]) -> bytes:
        try:
            return self._dated(at_ns, line if isinstance(line, bytes) else line())
        except Exception as error:  # one line's fault must not end the thread that writes them all
            return self._dated(at_ns, _fault(error, facts))

    def _dated(self, at_ns: int, line: bytes) -> bytes:
        """The line with its wall time to a millisecond, which is put together once a second."""
        second, of_second = divmod(at_ns, 1_000_000_000)
        if second != self._second:
            self._second = second
            self._text = datetime.fromtimestamp(second, UTC).strftime("%Y-%m-%dT%H:%M:%S").encode()
        return b'{"at":"%b.%03d+00:00",%b' % (self._text, of_second // 1_000_000, line[1:])


def _event(event: str, facts: Mapping[str, object]) -> bytes:
    return orjson.dumps({"event": event, **facts}, option=orjson.OPT_APPEND_NEWLINE)


def _fault(error: Exception, facts: Mapping[str, object]) -> bytes:
    where = [f"{f.filename}:{f.lineno} {f.name}" for f in extract_tb(error.__traceback__)]
    return _event("internal_error", {**facts, "error": type(error).__name__, "trace": where})

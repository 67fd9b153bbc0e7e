"""Writes log lines without ever making a request wait for the disk or a slow reader.

One thread writes; between it and the event loop stands a bounded queue. What does not fit is
dropped and counted, and the count is written as a line of its own.
"""

import queue
import threading
from typing import BinaryIO

import orjson

__all__ = ["Journal"]


class Journal:
    """Log lines on their way to one file.

    Args:
        file: where lines go; flushed whenever the queue runs empty.
        max_lines: lines that may wait.
    """

    def __init__(self, file: BinaryIO, max_lines: int = 10_000) -> None:
        self._file = file
        self._lines: queue.Queue[bytes | None] = queue.Queue(max_lines)
        self._dropped = 0
        self._thread = threading.Thread(target=self._write, name="journal", daemon=True)
        self._thread.start()

    def line(self, line: bytes) -> None:
        """Write one complete line soon, or count it as dropped."""
        try:
            self._lines.put_nowait(line)
        except queue.Full:
            self._dropped += 1

    def event(self, event: str, **facts: object) -> None:
        """Write a change of state as one JSON line."""
        self.line(orjson.dumps({"event": event, **facts}, option=orjson.OPT_APPEND_NEWLINE))

    def close(self) -> None:
        """Write what waits and stop."""
        self._lines.put(None)
        self._thread.join()

    def _write(self) -> None:
        while (line := self._lines.get()) is not None:
            self._file.write(line)
            if self._dropped:
                dropped, self._dropped = self._dropped, 0
                lost = {"event": "log_lines_dropped", "count": dropped}
                self._file.write(orjson.dumps(lost, option=orjson.OPT_APPEND_NEWLINE))
            if self._lines.empty():
                self._file.flush()
        self._file.flush()

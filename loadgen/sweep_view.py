"""Shows a sweep as it goes: a live table on a terminal, lines in a log, or one JSON line an event.

Only what the sweep tells is shown; nothing is decided here.
"""

from collections.abc import Mapping
from contextlib import ExitStack
from types import TracebackType
from typing import Any, Protocol, Self

import orjson
from rich.console import Console

from loadgen.console import Progress
from loadgen.pace import clock_text

__all__ = ["JsonView", "SweepView", "View"]

Event = Mapping[str, Any]


class View(Protocol):
    """Takes events while it is entered."""

    def __enter__(self) -> Self:
        """Begin."""

    def __exit__(self, *details: object) -> None:
        """End, whatever happened."""

    def tell(self, event: Event) -> None:
        """Show one event."""


class JsonView:
    """Prints every event as a line of JSON."""

    def __init__(self, console: Console) -> None:
        self._file = console.file

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *details: object) -> None:
        return

    def tell(self, event: Event) -> None:
        """Print one event, at once."""
        self._file.write(orjson.dumps(dict(event)).decode() + "\n")
        self._file.flush()


class SweepView:
    """Prints what happens between runs, and shows the run that goes on."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._shown = ExitStack()
        self._progress: Progress | None = None
        self._last: Event = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._close()

    def tell(self, event: Event) -> None:
        """Show one event."""
        kind = event["event"]
        if kind == "row":
            self._row(event)
        elif kind == "run":
            self._begin(event)
        elif kind == "run-end":
            self._close()
            self._say(f"  {self._counts()}; {_verdict(event)}")
        else:
            self._close()
            self._say(_line(event))

    def _say(self, text: str) -> None:
        self._console.print(text, markup=False, highlight=False, soft_wrap=True)

    def _begin(self, event: Event) -> None:
        self._close()
        title = f"run {event['number']} of {event['of']}: {event['run_id']}"
        if event["attempt"] > 1:
            title += f", attempt {event['attempt']}"
        self._say(f"{title} (whole sweep: {clock_text(event['left_s'])} left)")
        self._last = {}
        self._progress = Progress(self._console, title, event["limit_s"], event["time_scale"])
        self._shown.enter_context(self._progress)

    def _row(self, event: Event) -> None:
        if event["source"] == "client":
            self._last = event
        if self._progress is not None:
            self._progress.row(event)

    def _close(self) -> None:
        self._progress = None
        self._shown.close()

    def _counts(self) -> str:
        names = ("offered", "done", "refused", "failed")
        totals = {name: sum(self._last.get(name, {}).values()) for name in names}
        return ", ".join(f"{name} {n}" for name, n in totals.items())


def _verdict(event: Event) -> str:
    faults = event["faults"]
    return "valid" if not faults else "INVALID: " + "; ".join(faults)


def _line(event: Event) -> str:
    kind = event["event"]
    if kind == "start":
        return f"start {event['start']}"
    if kind == "warm-up":
        times = ", ".join(f"{name} {s:.3f} s" for name, s in event["seconds"].items())
        return f"  warm-up {event['round']} of at most {event['of']}: {times}"
    if kind == "start-failed":
        return f"  {event['start']} failed: {event['reason']}"
    if kind == "engine-died":
        return f"  an engine of {event['start']} died; its record stands, {event['left']} runs left"
    if kind == "incompatible":
        return f"  cell {event['cell_id']} is left out: {event['reason']}"
    return f"{kind}: {event['finished']} of {event['of']} runs are there"

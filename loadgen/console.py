"""Shows a run as it goes, and its result, on a terminal or as plain lines.

On a terminal one small table is redrawn twice a second; elsewhere a line is printed every five
seconds, so that a log stays readable.
"""

from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Any, Self

from rich.console import Console
from rich.live import Live
from rich.table import Table

from loadgen.tables import (
    COLUMNS,
    attempt_lines,
    change_lines,
    pool_lines,
    rows,
    verdict_line,
)

__all__ = ["Progress", "Stages", "show_result"]

Row = Mapping[str, Any]
LINE_EVERY_S = 5.0
STAGE_EVERY_S = 1.0
ENDLESS = 10_000  # columns: wider than any table, to learn how wide it would like to be
COUNTS = ("offered", "done", "refused", "failed", "in_flight")


class Stages:
    """Says how far long work is: a line at the beginning and end of a stage, others between.

    On a terminal the line of a stage is written over, each second; elsewhere there is a new one
    every five.

    Args:
        console: what to print on.
        clock: seconds, monotonic.
    """

    def __init__(self, console: Console, clock: Callable[[], float]) -> None:
        self._console, self._clock = console, clock
        self._every_s = STAGE_EVERY_S if console.is_terminal else LINE_EVERY_S
        self._stage = ""
        self._said_s = 0.0

    def __call__(self, stage: str, done: int, total: int) -> None:
        """So much of a stage is done."""
        now = self._clock()
        if stage == self._stage and done < total and now - self._said_s < self._every_s:
            return
        self._stage, self._said_s = stage, now
        line = f"{stage}: {done} of {total}"
        if self._console.is_terminal:
            self._console.file.write(f"\r\x1b[K{line}" + "\n" * (done == total))
            self._console.file.flush()
        else:
            self._console.file.write(line + "\n")


class Progress:
    """The live view of one run; a context manager, its `row` takes every measured row.

    Args:
        console: what to print on.
        title: stands above it.
        total_s: how long the run takes at most, in recorded seconds.
        time_scale: recorded seconds in a real one; what is left is shown in real ones.
    """

    def __init__(
        self, console: Console, title: str, total_s: float, time_scale: float = 1.0
    ) -> None:
        self._console, self._title, self._total_s = console, title, total_s
        self._time_scale = time_scale
        self._client: Row = {}
        self._gateway: Row = {}
        self._printed_s = 0.0
        self._live = Live(self._table(), console=console, refresh_per_second=2, transient=True)

    def __enter__(self) -> Self:
        if self._console.is_terminal:
            self._live.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._console.is_terminal:
            self._live.stop()

    def row(self, row: Row) -> None:
        """Take one row and redraw."""
        if row.get("source") == "gateway":
            self._gateway = row
        elif row.get("source") == "client":
            self._client = row
            self._redraw()

    def _redraw(self) -> None:
        if self._console.is_terminal:
            self._live.update(self._table())
        elif self._client["t_s"] - self._printed_s >= LINE_EVERY_S * self._time_scale:
            self._printed_s = self._client["t_s"]
            self._console.print(self._line(), markup=False, highlight=False, soft_wrap=True)

    def _heading(self) -> str:
        left_s = max(0.0, self._total_s - self._client.get("t_s", 0.0)) / self._time_scale
        return f"{self._title}, at most {left_s:.0f} s left"

    def _line(self) -> str:
        counts = [
            f"{name} " + " ".join(f"{k}={n}" for k, n in sorted(self._client[name].items()))
            for name in COUNTS
            if self._client.get(name)
        ]
        return f"  {self._heading()}: {'; '.join(counts)}; {self._lag()}"

    def _lag(self) -> str:
        lag, loop = (self._client.get(k, 0.0) for k in ("dispatch_lag_ms", "loop_lag_ms"))
        return f"client lag {lag:.1f} ms, loop {loop:.1f} ms"

    def _table(self) -> Table:
        table = Table(title=self._heading(), caption=self._lag(), title_justify="left")
        for name in ("class", *(c.replace("_", " ") for c in COUNTS), "oldest waiting"):
            table.add_column(name, justify="left" if name == "class" else "right")
        ages = self._gateway.get("oldest_age_s", {})
        for name in sorted(self._client.get("offered", {}), reverse=True):
            counts = (str(self._client.get(c, {}).get(name, 0)) for c in COUNTS)
            age = f"{ages[name]:.1f} s" if name in ages else "not measured"
            table.add_row(name, *counts, age)
        return table


def _result_table(analysis: Row, title: str, columns: Sequence[int]) -> Table:
    table = Table(title=title, title_justify="left", padding=(0, 0), pad_edge=False)
    table.add_column("way")
    table.add_column("class")
    for n in columns:
        table.add_column(COLUMNS[n], justify="right")
    before = ""
    for row in rows(analysis):
        way = row[0]
        if before and way != before:
            table.add_section()
        table.add_row("" if way == before else way, row[1], *(row[n] for n in columns))
        before = way
    return table


def _result_tables(analysis: Row, console: Console) -> list[Table]:
    """Return one table, or three where the terminal is too narrow for all columns."""
    whole = _result_table(analysis, "Each way and class", range(2, len(COLUMNS)))
    unbent = console.options.update(width=ENDLESS)
    if console.measure(whole, options=unbent).maximum <= console.width:
        return [whole]
    first, last = COLUMNS.index("TTFT p50"), COLUMNS.index("goodput/s")
    parts = {
        "requests": range(2, first),
        "latency": range(first, last),
        "goodput": range(last, len(COLUMNS)),
    }
    return [_result_table(analysis, f"Each way and class: {n}", own) for n, own in parts.items()]


def show_result(console: Console, analysis: Row, decision: Row) -> None:
    """Print table, changes, pools, checks and the verdict."""
    for table in _result_tables(analysis, console):
        console.print(table)
    lines = [*pool_lines(analysis), "", *(f"change: {c}" for c in change_lines(analysis)), ""]
    for run in analysis["runs"]:
        told = run["prompt_tokens"]
        lines.append(
            f"{run['label']}: prompt tokens equal to plan: {told['equal']} of {told['of']}; "
            f"dispatch lag p99 {run['dispatch_lag_ms']['p99']:.2f} ms"
        )
        lines += [f"INVALID {run['label']}: {fault}" for fault in run["faults"]]
    lines += attempt_lines(analysis)
    lines += ["", verdict_line(decision), *(f"  because {r}" for r in decision["reasons"])]
    for line in lines:
        console.print(line, markup=False, highlight=False, soft_wrap=True)

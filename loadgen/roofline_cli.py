"""The verb `roofline`: prints the measuring client's own limits on this machine."""

import argparse
import os
from typing import Any

import orjson
from rich.console import Console
from rich.table import Table

from loadgen.roofline import LIMITS, TRIES, Level, Limit, roofline
from loadgen.verb import say

__all__ = ["add_roofline"]


def _table(found: dict[str, Any]) -> Table:
    table = Table(title="Limits of one measuring worker", title_justify="left")
    table.add_column("exact to 1 ms (p99), up to")
    for name in ("limit", "p99 there", "CPU there"):
        table.add_column(name, justify="right")
    table.add_column("the next level")
    for limit in LIMITS:
        levels = found["levels"][limit.name]
        held = next((s for s in reversed(levels) if s["held"]), None)
        failed = next(
            (f"{s['level']}: {s['fault']}" for s in levels if not s["held"]), "none tried"
        )
        cells = ("none", "", "") if held is None else _cells(held)
        table.add_row(limit.what, *cells, failed)
    return table


def _cells(held: dict[str, Any]) -> tuple[str, str, str]:
    return str(held["level"]), f"{held['p99_ms']:.2f} ms", f"{held['cpu_share']:.0%}"


def _line(limit: Limit, level: Level) -> str:
    return (
        f"{limit.name} {level.level}: p99 {level.within_ms:.2f} ms, worst second "
        f"{level.cpu_share:.0%} of a core: {level.fault or 'held'}"
    )


def _roofline(args: argparse.Namespace, console: Console) -> int:
    def tell(limit: Limit, level: Level) -> None:
        if not args.json:
            say(console, _line(limit, level))

    load = os.getloadavg()[0]
    found = {**roofline(args.seconds, tell), "load_average_before": round(load, 2)}
    if args.json:
        console.file.write(orjson.dumps(found).decode() + "\n")
        return 0
    console.print(_table(found))
    said = f"best of {TRIES} tries a level; {found['hardware_id']}; load average before: {load:.2f}"
    say(console, said)
    return 0


def _seconds(text: str) -> float:
    value = float(text)
    if not 0.5 <= value <= 3600:
        raise argparse.ArgumentTypeError(f"{text}: between 0.5 and 3600 seconds")
    return value


def add_roofline(verbs: Any) -> None:
    """Add the verb to the bench's parser."""
    said = "find the measuring client's own limits on this machine"
    parser = verbs.add_parser(
        "roofline",
        help=said,
        description=f"{said}, against a server of known truth that it starts itself",
        epilog="example:\n  sluicegate bench roofline --seconds 10",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--seconds", type=_seconds, default=10.0, help="about how long per limit (%(default)s)"
    )
    parser.add_argument("--json", action="store_true", help="print the result as one JSON object")
    parser.set_defaults(bench=_roofline)

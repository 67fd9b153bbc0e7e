"""What verbs of the command line share: how one is declared, how it fails, how a table looks."""

import argparse
from collections.abc import Callable, Mapping, Sequence
from typing import Any

__all__ = [
    "Command",
    "CommandError",
    "Said",
    "UsageError",
    "add_group",
    "add_json",
    "add_verb",
    "plain",
    "print_table",
    "table_lines",
]

Command = Callable[[argparse.Namespace], int]
Said = Mapping[str, str]  # what a verb of the top level does, by its name


class CommandError(Exception):
    """A command could not do as asked: each of ``lines`` is told, and ``exit_code`` is its own."""

    exit_code = 1

    def lines(self) -> list[str]:
        """What to tell, one error each."""
        return [str(self)]


class UsageError(CommandError):
    """A flag's value can't be used; the message names the flag."""

    exit_code = 2


def add_verb(verbs: Any, name: str, command: Command, said: str, examples: str) -> Any:
    """Declare one verb; returns its parser. ``said`` begins in lower case, without a full stop."""
    parser = _add(verbs, name, said, examples)
    parser.set_defaults(command=command)
    return parser


def add_group(verbs: Any, name: str, said: str, examples: str) -> Any:
    """Declare a verb that has verbs of its own; returns where those are added."""
    return _add(verbs, name, said, examples).add_subparsers(required=True, metavar="VERB")


def add_json(parser: Any) -> None:
    """Declare ``--json``, which makes an answer one line for programs."""
    parser.add_argument("--json", action="store_true", help="print one line of JSON instead")


def _add(verbs: Any, name: str, said: str, examples: str) -> Any:
    return verbs.add_parser(
        name,
        help=said,
        description=said[0].upper() + said[1:] + ".",
        epilog=f"examples:\n{examples}" if examples else None,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )


def table_lines(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Rows with the same keys as aligned lines, the keys first; none for no rows."""
    if not rows:
        return []
    lines = [list(rows[0]), *([_cell(value) for value in row.values()] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return [
        "  " + "  ".join(c.ljust(w) for c, w in zip(line, widths, strict=True)).rstrip()
        for line in lines
    ]


def print_table(rows: Sequence[Mapping[str, Any]]) -> None:
    """Print the lines of ``table_lines``."""
    for line in table_lines(rows):
        print(line)


def _cell(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "-" if value is None else f"{value:g}" if isinstance(value, float) else plain(str(value))


def plain(text: str) -> str:
    """Somebody else's words on one line, without what would steer a terminal."""
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)

"""What the bench's verbs share: how one is declared, what options read, how a line is printed."""

import argparse
from collections.abc import Callable
from typing import Any

from rich.console import Console

__all__ = ["Args", "Verb", "add_verb", "say", "time_scale"]

Args = argparse.Namespace
Verb = Callable[[Args, Console], int]


def add_verb(verbs: Any, name: str, verb: Verb, said: str, example: str) -> argparse.ArgumentParser:
    """Add a verb of `bench` with its sentence and an example, and return its parser."""
    parser: argparse.ArgumentParser = verbs.add_parser(
        name,
        help=said,
        description=said,
        epilog=f"example:\n  sluicegate bench {example}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.set_defaults(bench=verb)
    return parser


def time_scale(text: str) -> float:
    """Read how many recorded seconds pass in a real one."""
    value = float(text)
    if not 0 < value <= 1000:
        raise argparse.ArgumentTypeError(f"{text}: must be above 0 and at most 1000")
    return value


def say(console: Console, *lines: str) -> None:
    """Print lines without markup, colour or wrapping: names and paths stay what they are."""
    for line in lines:
        console.print(line, markup=False, highlight=False, soft_wrap=True)

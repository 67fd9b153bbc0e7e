"""Every verb of the command line shows how it is used, and every flag of it what it does."""

import argparse
from collections.abc import Iterator

import pytest

from gateway.cli import parser_of
from loadgen.engine import flags


def verbs(parser: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    """The parsers below one, itself included."""
    yield parser
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for below in action.choices.values():
                yield from verbs(below)


def every_verb() -> dict[str, argparse.ArgumentParser]:
    """All of them, whole: each of the top level is bare until it is asked for."""
    top, *named = verbs(parser_of(None))
    found = {top.prog: top}
    for first in (parser.prog.split()[-1] for parser in named):
        found |= {p.prog: p for p in verbs(parser_of(first)) if p.prog.split()[1:2] == [first]}
    return found


VERBS = every_verb()


def test_the_walk_finds_the_verbs_of_both_programs() -> None:
    assert {"sluicegate check", "sluicegate limits set", "sluicegate bench plan"} <= set(VERBS)


@pytest.mark.parametrize("verb", VERBS)
def test_each_flag_says_what_it_does(verb: str) -> None:
    own = (a for a in VERBS[verb]._actions if not isinstance(a, argparse._SubParsersAction))
    silent = [
        "/".join(action.option_strings) or action.dest
        for action in own
        if action.help is None or not action.help.strip()
    ]
    assert silent == []


@pytest.mark.parametrize("verb", VERBS)
def test_each_verb_shows_a_command_line_of_its_own(verb: str) -> None:
    shown = VERBS[verb].format_help().partition("\nexample")[2]
    assert f"  {verb}" in shown


def test_the_engine_by_itself_shows_its_defaults_and_a_command_line() -> None:
    parser = argparse.ArgumentParser(prog="python -m loadgen.engine")
    flags.add_arguments(parser)
    said = " ".join(parser.format_help().split())
    assert "python -m loadgen.engine --port 8100" in said
    for action in parser._actions:
        given = action.default
        if type(given) in {int, float, str} and given != argparse.SUPPRESS:
            assert f"({given})" in (action.help or "") % vars(action)

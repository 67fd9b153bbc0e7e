import argparse
import io

import pytest
from rich.console import Console

from loadgen.verb import add_verb, say


def test_a_verb_carries_its_sentence_its_example_and_what_it_does(
    capsys: pytest.CaptureFixture[str],
) -> None:
    parser = argparse.ArgumentParser(prog="bench")

    def look(_: argparse.Namespace, __: Console) -> int:
        return 7

    add_verb(parser.add_subparsers(), "look", look, "see what is there", "look out/x")
    assert parser.parse_args(["look"]).bench is look
    with pytest.raises(SystemExit):
        parser.parse_args(["look", "--help"])
    told = capsys.readouterr().out
    assert "see what is there" in told
    assert "example:\n  sluicegate bench look out/x" in told


def test_lines_are_printed_as_they_are() -> None:
    out = io.StringIO()
    long = "a/path/with/[red]brackets[/red]/" + "x" * 200
    say(Console(file=out, width=40), long, "second")
    assert out.getvalue() == f"{long}\nsecond\n"

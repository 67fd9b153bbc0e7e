"""The README: every command as typed is accepted, every link leads somewhere."""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from gateway.cli import parser_of
from tests.shipping.shipped import anchors

ROOT = Path(__file__).resolve().parents[1]
TEXT = (ROOT / "README.md").read_text()


def commands() -> Iterator[list[str]]:
    """The words of each sluicegate command of a block, those behind && too."""
    for block in re.findall(r"^```\n(.*?)^```", TEXT, re.DOTALL | re.MULTILINE):
        for line in block.replace("\\\n", " ").splitlines():
            for command in line.split("&&"):
                if command.strip().startswith("sluicegate "):
                    yield shlex.split(command, comments=True)[1:]


COMMANDS = list(commands())


def test_commands_are_found() -> None:
    assert {"up", "serve", "routes", "bench"} <= {words[0] for words in COMMANDS}


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_a_command_is_accepted_as_typed(words: list[str]) -> None:
    assert parser_of(words[0]).parse_args(words).command


@pytest.mark.parametrize(
    "target", sorted({t for t in re.findall(r"\]\(([^)\s]+)\)", TEXT) if "://" not in t})
)
def test_a_link_leads_somewhere(target: str) -> None:
    page, _, anchor = target.partition("#")
    assert (ROOT / page).exists()
    assert not anchor or anchor in anchors((ROOT / page).read_text())

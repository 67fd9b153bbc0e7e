"""The runbook: every outcome explained, every link good, every command as typed accepted or run."""

import argparse
import re
import shlex
import threading
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path

import pytest

from gateway.cli import main, parser_of
from gateway.contract import CONTRACT
from gateway.domain import Outcome
from loadgen.engine.launch import start_engine
from tests.e2e.configs import ADMIN_TOKEN
from tests.e2e.harness import ROOT, Front, front
from tests.shipping.conftest import ENGINE
from tests.shipping.shipped import DEPLOY, anchors, configurations, localized, runbook

BLOCK = re.compile(r"(<!-- run -->\n)?```sh\n(.*?)```", re.DOTALL)


def commands(*, run: bool | None = None) -> Iterator[list[str]]:
    """The words of each sluicegate command; with ``run`` only those of such blocks."""
    for marked, block in BLOCK.findall(runbook()):
        if run is not None and bool(marked) is not run:
            continue
        for line in block.replace("\\\n", " ").splitlines():
            if line.startswith("sluicegate "):
                yield shlex.split(line, comments=True)[1:]


ALL, SAFE = list(commands()), list(commands(run=True))
OPERATORS = (
    "check", "engines", "health", "keys", "limits", "manifest", "pools", "reload", "routes",
    "usage",
)  # fmt: skip


def verbs(parser: argparse.ArgumentParser) -> Mapping[str, argparse.ArgumentParser]:
    """The verbs that a parser has, by name."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            return dict(action.choices)
    return {}


@pytest.mark.parametrize("verb", OPERATORS)
def test_every_verb_for_operators_is_in_it(verb: str) -> None:
    named = {tuple(words[:2]) for words in ALL if words[0] == verb}
    assert named
    wanted = {(verb, below) for below in verbs(verbs(parser_of(verb))[verb])}
    assert wanted <= named


def test_enough_of_it_is_really_run() -> None:
    assert len(SAFE) >= 25


@pytest.mark.parametrize("words", ALL, ids=" ".join)
def test_a_command_is_accepted_as_typed(words: list[str]) -> None:
    parser_of(words[0]).parse_args(words)


def test_a_command_that_is_not_would_be_noticed() -> None:
    with pytest.raises(SystemExit):
        parser_of("routes").parse_args(["routes", "flop", "demo/short"])


def test_every_outcome_is_explained_once_with_its_status() -> None:
    text = runbook()
    told = text[text.index("## What each outcome means") :]
    for outcome in Outcome:
        heads = re.findall(rf"^### {outcome}$", told, re.MULTILINE)
        rows = re.findall(rf"^\| `{outcome}` \|.*$", told, re.MULTILINE)
        assert len(heads) + len(rows) == 1, outcome
        status = CONTRACT[outcome].status
        if status is not None and status not in {429, 503}:  # those have a table each
            section = rows[0] if rows else told[told.index(heads[0]) :][:200]
            assert str(status) in section, outcome


@pytest.mark.parametrize(
    ("heading", "status"),
    [("### Refusals for want of room", 429), ("### Refusals for want of anybody", 503)],
)
def test_a_table_of_one_status_holds_the_outcomes_of_that_status(heading: str, status: int) -> None:
    text = runbook()
    section = text[text.index(heading) :].split("\n### ")[0]
    listed = set(re.findall(r"^\| `(\w+)` \|", section, re.MULTILINE))
    wanted = {o.value for o in Outcome if CONTRACT[o].status == status}
    assert listed == wanted - {"identity_unavailable"}


def test_every_link_leads_somewhere() -> None:
    known = anchors(runbook())
    for target in re.findall(r"\]\(([^)\s]+)\)", runbook()):
        page, _, anchor = target.partition("#")
        assert not page or (DEPLOY / page).exists(), target
        assert not anchor or anchor in known, target


@pytest.fixture(scope="module")
def operated(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Front, Path]]:
    """A gateway of config/gateway.toml, with an engine for each of its two pools."""
    folder = tmp_path_factory.mktemp("operated")
    with ExitStack() as stack:
        pools = {
            pool: stack.enter_context(start_engine(ENGINE, folder / f"{pool}.log")).url
            for pool in ("shared", "next")
        }
        text = configurations()["config/gateway.toml"]
        config, keys = localized(text, folder, pools)
        gateway = stack.enter_context(front(config, keys, list(pools.values())))
        yield gateway, config


def test_the_commands_that_are_marked_do_what_they_say_one_after_another(
    operated: tuple[Front, Path], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    gateway, config = operated
    monkeypatch.setenv("SLUICEGATE_ADMIN_TOKEN", ADMIN_TOKEN)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "deploy").symlink_to(ROOT / "deploy")
    for words in SAFE:
        here = [str(config) if word == "/etc/sluicegate/gateway.toml" else word for word in words]
        if words[0] in {"health", "limits", "pools", "reload", "routes", "usage"}:
            here += ["--admin-url", gateway.admin_url]
        assert main(here) == 0, " ".join(words)
    assert threading.active_count() < 50

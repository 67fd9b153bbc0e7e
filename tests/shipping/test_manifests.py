"""The shipped rollback records: the one for simulated engines verifies as its file says."""

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pytest

from gateway.cli import main
from loadgen.engine.launch import start_engine
from tests.e2e.harness import ROOT
from tests.shipping.shipped import DEPLOY

SIMULATED = DEPLOY / "manifests" / "simulated.toml"
ADDRESS = "http://127.0.0.1:8001"
EXITS = {"verified": 0, "drifted": 3, "unverifiable": 4}


def commands() -> Iterator[list[str]]:
    """The words of each command in the file's own comment."""
    comment = "\n".join(re.findall(r"^# ? ?(.*)$", SIMULATED.read_text(), re.MULTILINE))
    for line in comment.replace("\\\n", " ").splitlines():
        if line.strip().startswith("sluicegate "):
            yield shlex.split(line)[1:]


ENGINE, *SEALING, VERIFY = commands()


def flags(words: Sequence[str]) -> list[str]:
    """An engine's flags as typed, but for its port: any free one."""
    at = words.index("--port")
    return [*words[1:at], *words[at + 2 :]]


@pytest.fixture(scope="module")
def engines(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mapping[str, str]]:
    """The engine that the file starts, and another one."""
    folder: Path = tmp_path_factory.mktemp("engines")
    other = [word.replace("128", "64") for word in flags(ENGINE)]
    with (
        start_engine(flags(ENGINE), folder / "same.log") as same,
        start_engine([*other, "--max-model-len", "8192"], folder / "other.log") as changed,
    ):
        yield {"same": same.url, "other": changed.url}


@pytest.fixture
def sealed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The records, sealed in a folder that is now the current one."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "deploy").symlink_to(ROOT / "deploy")
    for words in SEALING:
        assert main(words) == 0


@pytest.mark.usefixtures("sealed")
@pytest.mark.parametrize(
    ("engine", "until", "verdict"),
    [
        ("same", None, "verified"),
        ("same", VERIFY.index("--launch-record"), "unverifiable"),
        ("other", None, "drifted"),
    ],
)
def test_the_commands_of_the_file_say_what_it_promises(
    engines: Mapping[str, str],
    engine: str,
    until: int | None,
    verdict: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    asked = [engines[engine] if word == ADDRESS else word for word in VERIFY[:until]]
    capsys.readouterr()
    assert main(asked) == EXITS[verdict]
    assert f"{engines[engine]}: {verdict}" in capsys.readouterr().out

"""The command as a user types it."""

import subprocess
import sys

import pytest

from loadgen.engine.server import main


def test_help_ends_well_and_shows_examples() -> None:
    command = [sys.executable, "-m", "loadgen.engine", "--help"]
    answer = subprocess.run(command, capture_output=True, text=True, check=True, timeout=30)
    assert "examples:" in answer.stdout
    assert "--max-num-batched-tokens" in answer.stdout


@pytest.mark.parametrize(
    "flags", [["--time-scale", "0"], ["--tokenizer", "/nowhere"], ["--step-model", "/nowhere"]]
)
def test_a_wrong_value_ends_with_status_2_and_names_itself(
    flags: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--port", "0", *flags]) == 2
    assert flags[1] in capsys.readouterr().err

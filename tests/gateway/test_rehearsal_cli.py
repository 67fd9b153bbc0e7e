"""What ``routes rehearse`` refuses before anything starts; what a record in a file says."""

import json
import re
from argparse import Namespace
from pathlib import Path

import pytest

from gateway.cli import main
from gateway.rehearsal_cli import _too_few

CASES = [
    (["demo/short", "--yes"], "--yes: is for a running gateway: add --live"),
    (["demo/short", "--admin-url", "http://x"], "--admin-url: is for a running gateway"),
    (["demo/short", "--check"], "--check: is for a running gateway"),
    (["demo/short", "--load-model", "m"], "--load-model: is for a running gateway"),
    (["demo/short", "--live", "--candidate-args=--x"], "--candidate-args: is of simulated engines"),
    (["demo/short", "--live", "--engines", "3"], "--engines: is of simulated engines"),
    (["demo/short", "--limit", "eror_rate=1"], "'eror_rate' is none; known are"),
    (["demo/short", "--limit", "error_rate"], "--limit error_rate: write NAME=NUMBER"),
    (["demo/short", "--limit", "error_rate=-1"], "limits.error_rate: must be a number from 0"),
    (["demo/short", "--hold", "0"], "--hold: must be above 0"),
    (["demo/short", "--weight", "101"], "--weight: must be above 0 and at most 100"),
    (["demo/short", "--rate", "0"], "--rate: must be above 0"),
    (["demo/short", "--engines", "0"], "--engines: there must be at least one"),
    (["demo/short", "--time-scale", "0"], "--time-scale: must be above 0"),
    (["demo/short", "--manifest", "no-such"], "--manifest no-such"),
    (["demo/short", "--live", "--load-model", "m"], "--load-model: is of --load"),
    (["demo/short", "--live", "--load", "http://x"], "--load: needs --load-key-file"),
]


@pytest.mark.parametrize(("given", "words"), CASES)
def test_a_flag_that_can_not_be_used_is_named(
    given: list[str],
    words: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("SLUICEGATE_ADMIN_TOKEN", "a-token")
    assert main(["routes", "rehearse", *given]) == 2
    assert words in capsys.readouterr().err


def test_a_gateway_that_is_not_there_is_an_error_and_no_refusal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLUICEGATE_ADMIN_TOKEN", "a-token")
    away = ["--live", "--admin-url", "http://127.0.0.1:9", "--yes"]
    assert main(["routes", "rehearse", "demo/short", *away]) == 1
    assert "http://127.0.0.1:9" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("keys", "weight", "words"),
    [
        (["k"], 50.0, "has 1 caller: .* at 50 % is 50%, .*: give 7 keys"),
        (["k"] * 9, 50.0, "has 1 caller: "),
        (list("abcdefg"), 50.0, None),
        (list("abcdefg"), 10.0, "has 7 callers: .* at 10 % is 48%, .*: give 44 keys"),
        (["k"], 100.0, None),
    ],
)
def test_a_load_whose_few_callers_may_all_miss_the_candidate_is_warned_of(
    keys: list[str], weight: float, words: str | None
) -> None:
    told = _too_few(Namespace(weight=weight), keys)
    assert [re.search(words, line) is not None for line in told] == [True] if words else not told


EVIDENCE = Path(__file__).parents[2] / "deploy/evidence/h200-rehearsal-2026-11-30/rehearsal.json"


def test_a_record_in_a_file_is_shown_and_is_whole(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SLUICEGATE_ADMIN_TOKEN", raising=False)
    assert main(["routes", "rehearsals", "--file", str(EVIDENCE)]) == 0
    out = capsys.readouterr().out
    assert "PASS  digest b2c54fe03b37f1d5" in out
    assert f"{EVIDENCE}: whole, digest b2c54fe03b37f1d5" in out


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (json.dumps({**json.loads(EVIDENCE.read_bytes()), "verdict": "fail"}), "its content's is"),
        (json.dumps({"kind": "decision"}), "not the record of a rehearsal"),
        ("{", "Expecting property name"),
    ],
)
def test_a_file_that_is_no_whole_record_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], content: str, words: str
) -> None:
    path = tmp_path / "r.json"
    path.write_text(content)
    assert main(["routes", "rehearsals", "--file", str(path)]) == 1
    said = capsys.readouterr()
    assert said.err.startswith(f"error: {path}: ")
    assert words in said.err
    assert said.out == ""

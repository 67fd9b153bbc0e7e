"""What ``routes rehearse`` refuses before anything starts."""

import pytest

from gateway.cli import main

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

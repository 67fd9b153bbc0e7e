"""What ``routes canary`` sends of its watch, and what ``routes watch`` prints of one."""

import argparse
from typing import Any

import pytest

from gateway.admin_client import AdminError
from gateway.canary_cli import add_canary_flags, add_watch_verb, canary_options
from gateway.command import UsageError, add_group
from gateway.thresholds import from_json


def options(*flags: str) -> dict[str, Any]:
    parser = argparse.ArgumentParser()
    add_canary_flags(parser)
    return canary_options(parser.parse_args(flags))


def test_thresholds_are_sent_as_the_gateway_reads_them() -> None:
    sent = options(
        *("--without-record", "a trial", "--window", "30", "--min-count", "20"),
        *("--abort", "error_rate=0.02,+0.01", "--abort", "oldest_age_s=10"),
    )
    assert sent["without_record"] == "a trial"
    error_rate, age = from_json(sent["watch"]["abort"])
    assert (error_rate.limit, error_rate.margin) == (0.02, 0.01)
    assert (error_rate.window_s, error_rate.min_count, age.min_count) == (30.0, 20, 3)


def test_without_thresholds_the_record_or_the_gateway_says_what_is_watched() -> None:
    assert options() == {}
    digest = "ab" * 32
    found = options("--manifest", digest, "--accept-unverified", "model.revision")
    assert found == {
        "manifest": digest,
        "accept_unverified": ["model.revision"],
        "launch_record": [],
    }


@pytest.mark.parametrize(
    ("flags", "reason"),
    [
        (("--abort", "errors=1"), "--abort 'errors' is not watched"),
        (("--abort", "error_rate=0.1", "--window", "0"), "--abort error_rate: window_s must be"),
        (("--manifest", "x", "--without-record", "y"), "--without-record: there is a record"),
        (("--window", "30"), "--window: is of --abort"),
        (("--min-count", "5"), "--min-count: is of --abort"),
        (("--accept-unverified", "owner"), "--accept-unverified: is of --manifest"),
    ],
)
def test_a_flag_that_can_not_be_used_is_named(flags: tuple[str, ...], reason: str) -> None:
    with pytest.raises(UsageError, match=reason):
        options(*flags)


class Gateways:
    """Stands in for ``Admin.get``: what a gateway shows of its watches, look by look."""

    def __init__(self, *looks: list[dict[str, Any]]) -> None:
        self.looks = list(looks)

    def get(self, path: str) -> dict[str, Any]:
        assert path == "/admin/routes"
        return {"watches": self.looks.pop(0) if len(self.looks) > 1 else self.looks[0]}


def row(state: str, verdict: str, why: str, errors: float | None = None) -> dict[str, Any]:
    figure = {
        "metric": "error_rate",
        "verdict": verdict,
        "candidate": {"value": errors},
        "stable": {"value": 0.0},
    }
    return {
        "route": "m/short",
        "candidate": "green",
        "weight": 10,
        "state": state,
        "verdict": verdict,
        "why": why,
        "figures": [figure],
    }


def watch(monkeypatch: pytest.MonkeyPatch, gateways: Gateways, *flags: str) -> int:
    parser = argparse.ArgumentParser()
    add_watch_verb(add_group(parser.add_subparsers(), "routes", "move traffic", ""))
    monkeypatch.setenv("SLUICEGATE_ADMIN_TOKEN", "token")
    monkeypatch.setattr("gateway.canary_cli.Admin.get", gateways.get)
    monkeypatch.setattr("gateway.canary_cli.EVERY_S", 0.0)
    args = parser.parse_args(["routes", "watch", "m/short", *flags])
    found: int = args.command(args)
    return found


def test_a_watch_is_followed_until_it_is_taken_back(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    held = [row("watching", "hold", "too little data")]
    gateways = Gateways(held, held, [row("reverted", "breach", "error_rate: 20 of 60 bad", 0.333)])
    assert watch(monkeypatch, gateways) == 3
    assert capsys.readouterr().out.splitlines() == [
        "watching  hold    green 10 %  (too little data)",
        "reverted  breach  green 10 %  error_rate 0.333 / 0  (error_rate: 20 of 60 bad)",
    ]


def test_a_look_at_a_watch_that_goes_on_is_no_failure(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert watch(monkeypatch, Gateways([row("watching", "fine", "", 0.01)]), "--once") == 0
    assert capsys.readouterr().out == "watching  fine    green 10 %  error_rate 0.01 / 0\n"


def test_of_a_watch_that_is_over_it_is_said_when_it_was(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ended = {**row("ended", "hold", "promote by ops"), "since": "2026-11-30T10:00:00Z"}
    assert watch(monkeypatch, Gateways([ended]), "--once") == 0
    assert capsys.readouterr().out == (
        "ended, began 2026-11-30T10:00:00Z (promote by ops), candidate green\n"
    )


def test_a_route_that_nobody_watches_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(AdminError, match=r"m/short: no canary was watched \(watched: none\)"):
        watch(monkeypatch, Gateways([]))

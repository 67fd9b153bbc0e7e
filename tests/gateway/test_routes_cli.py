"""The verbs that move traffic, against real listeners: what they change, print and exit with."""

import io
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from gateway.admin_client import Admin, AdminError, PartialError
from gateway.admin_flags import TOKEN_VARIABLE
from gateway.cli import main
from gateway.command import table_lines
from gateway.route_client import ask_all, carry_out, set_pool
from gateway.routes_cli import _entry, _few
from gateway.steering import Steering
from tests.gateway.controlled import TOKENS
from tests.gateway.test_operate_cli import Running, run, running, told_in_one_line
from tests.gateway.test_steering import CONFIG, B

Said = pytest.CaptureFixture[str]


def gateway(folder: Path) -> Any:
    return running(folder, CONFIG)


def all_up(at: Running) -> None:
    """Engines count as up; the loop's own thread does nothing meanwhile."""
    for engine in at.held.gateway.parts.turnstile.core.engines.values():
        engine.set_state(at.held.clock(), up=True)


@pytest.fixture
def one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Running]:
    monkeypatch.setenv(TOKEN_VARIABLE, TOKENS["ben"][0])
    with gateway(tmp_path / "one") as made:
        all_up(made)
        yield made


@pytest.fixture
def two(one: Running, tmp_path: Path) -> Iterator[Running]:
    with gateway(tmp_path / "two") as made:
        all_up(made)
        yield made


def stable(at: Running, route: str = "m/short") -> tuple[str, str | None]:
    routes = {r.name: r for r in at.held.gateway.setup.table.routes.values()}
    return routes[route].stable_pool, routes[route].candidate_pool


def both(one: Running, two: Running) -> list[str]:
    return ["--admin-url", one.url, "--admin-url", two.url]


def admins(*gateways: Running) -> list[Admin]:
    return [Admin(made.url, TOKENS["ben"][0]) for made in gateways]


def test_routes_are_shown_as_a_table_and_as_json(one: Running, capsys: Said) -> None:
    assert run("routes", "show", at=one) == 0
    said = capsys.readouterr().out
    assert said.startswith(f"{one.url}  revision 1  state kept in memory alone")
    assert "  m/short  a       -          -       enforce    no\n" in said
    assert f"  b     {B}  yes     0        0               no\n" in said
    assert "  revision 1  " in said
    assert run("routes", "show", "--json", at=one) == 0
    (told,) = json.loads(capsys.readouterr().out)
    assert (told["url"], told["revision"], len(told["routes"])) == (one.url, 1, 2)


def test_drains_and_watches_are_shown_beside_them(
    one: Running, capsys: Said, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = {
        "drains": [{"drain": "c", "state": "draining", "remaining": 3}],
        "watches": [
            {"route": "m/short", "state": "watching", "verdict": "hold"},
            {"route": "m/long", "state": "ended", "verdict": "hold", "since": "2026", "why": "x"},
        ],
    }
    view = Steering.view
    monkeypatch.setattr(Steering, "view", lambda self: {**view(self), **rows})
    assert run("routes", "show", at=one) == 0
    said = capsys.readouterr().out
    assert "  drain of c: draining, 3 left\n  watch of m/short: watching hold\n" in said
    assert "  watch of m/long: ended, began 2026 (x)\n" in said


def test_a_route_goes_there_and_back(one: Running, capsys: Said) -> None:
    assert run("routes", "flip", "m", "--to", "b", "--yes", "--why", "new image", at=one) == 0
    assert capsys.readouterr().out == (
        f"{one.url}  revision 2  changed:\n  m/short: a -> b\n  m/long: a -> b\n"
    )
    assert run("routes", "rollback", "m/short", "--yes", at=one) == 0
    assert (stable(one), stable(one, "m/long")) == (("a", None), ("b", None))
    canary = ("routes", "canary", "m/short", "--to", "c", "--weight", "5")
    assert run(*canary, "--without-record", "a test", at=one) == 0
    assert "m/short: a -> a with 5 % to c" in capsys.readouterr().out
    assert run("routes", "promote", "m/short", "--yes", "--json", at=one) == 0
    (told,) = json.loads(capsys.readouterr().out)
    assert (told["url"], told["revision"], told["action"]) == (one.url, 5, "promote")
    assert run("routes", "rollback", "--to-revision", "2", "--yes", at=one) == 0
    assert stable(one) == ("b", None)
    assert run(*canary, "--without-record", "a test", at=one) == 0
    assert run("routes", "abort", "m/short", at=one) == 0
    assert stable(one) == ("b", None)


def test_the_reason_to_go_without_a_record_is_shown_wherever_the_move_is(
    one: Running, capsys: Said
) -> None:
    canary = ("routes", "canary", "m/short", "--to", "c", "--without-record", "new cluster")
    assert run(*canary, "--weight", "5", at=one) == 0
    assert run(*canary, "--weight", "9", "--why", "a trial", at=one) == 0
    capsys.readouterr()
    for verb in ("show", "audit"):
        assert run("routes", verb, at=one) == 0
        said = capsys.readouterr().out
        assert ": without a record: new cluster\n" in said
        assert ": a trial; without a record: new cluster\n" in said


def test_pools_and_routes_are_drained_and_undrained(one: Running, capsys: Said) -> None:
    assert run("routes", "drain", "c", "--deadline", "60", "--yes", at=one) == 0
    assert "  c: in use -> draining\n" in capsys.readouterr().out
    assert run("routes", "drain", "m/long", "--yes", at=one) == 0
    assert run("routes", "undrain", "c", at=one) == 0
    assert run("routes", "drain", "--all", "--yes", at=one) == 0
    assert one.held.gateway.setup.table.draining == {"m/short", "m/long"}
    assert run("routes", "show", at=one) == 0
    assert "  m/long   a       -          -       enforce    yes\n" in capsys.readouterr().out


def test_a_check_shows_what_would_change_and_changes_nothing(one: Running, capsys: Said) -> None:
    assert run("routes", "flip", "m/short", "--to", "b", "--check", at=one) == 0
    said = capsys.readouterr().out
    assert said == f"{one.url}  revision 1  would change:\n  m/short: a -> b\n"
    assert stable(one) == ("a", None)


def test_what_a_move_touched_is_named_by_routes_show_and_by_the_audit(
    one: Running, capsys: Said
) -> None:
    for verb in (
        ["flip", "m/short", "--to", "b"],
        ["rollback"],
        ["drain", "c"],
        ["drain", "--all"],
    ):
        assert run("routes", *verb, "--yes", at=one) == 0
    capsys.readouterr()
    assert run("routes", "show", at=one) == 0
    moves = [line.split("  ")[-1] for line in capsys.readouterr().out.splitlines()[-5:]]
    assert moves == [
        "drain m/long, m/short by ben", "drain c by ben", "rollback m/short by ben",
        "flip m/short by ben", "configuration by configuration: the routes of the configuration",
    ]  # fmt: skip
    assert run("routes", "audit", at=one) == 0
    assert "  rollback m/short  revision 2 -> 3\n" in capsys.readouterr().out


def test_of_many_that_a_move_touched_the_first_are_named() -> None:
    assert _few(["a", "b", "c"]) == "a, b, c"
    assert _few(["a", "b", "c", "d", "e"]) == "a, b, c and 2 more"


class Terminal(io.StringIO):
    """Somebody who can be asked."""

    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("answer", "code", "pool"), [("y\n", 0, "b"), ("\n", 1, "a"), ("", 1, "a")]
)
def test_who_can_be_asked_is_shown_the_change_and_asked(
    one: Running, capsys: Said, monkeypatch: pytest.MonkeyPatch, answer: str, code: int, pool: str
) -> None:
    monkeypatch.setattr("sys.stdin", Terminal(answer))
    assert run("routes", "flip", "m/short", "--to", "b", at=one) == code
    said = capsys.readouterr().err
    assert said.startswith(f"{one.url}  revision 1  would change:\n  m/short: a -> b\nDo it? [y/N]")
    assert stable(one) == (pool, None)
    assert ("nothing was changed" in said) is (code == 1)


def test_who_drains_is_warned_before_the_question(
    one: Running, capsys: Said, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", Terminal("n\n"))
    assert run("routes", "drain", "m/long", at=one) == 1
    said, question, after = capsys.readouterr().err.partition("Do it? [y/N]")
    assert "  m/long: in use -> draining\n" in said
    assert "  warning: m/long: its requests are refused as draining\n" in said
    assert (question, after.strip()) == ("Do it? [y/N]", "nothing was changed")
    assert not one.held.gateway.setup.table.draining


@pytest.mark.parametrize(
    "verb",
    [["flip", "m", "--to", "b"], ["rollback", "--to-revision", "1"], ["drain", "c"]],
)
def test_where_nobody_can_be_asked_it_needs_a_yes(
    one: Running, capsys: Said, monkeypatch: pytest.MonkeyPatch, verb: list[str]
) -> None:
    assert run("routes", "flip", "m/long", "--to", "b", "--yes", at=one) == 0
    monkeypatch.setattr("sys.stdin", io.StringIO("y\n"))
    capsys.readouterr()
    before = one.held.gateway.setup.table
    arguments = ["m/short" if word == "m" else word for word in verb]
    assert run("routes", *arguments, at=one) == 2
    assert capsys.readouterr().err.startswith("error: --yes: is needed")
    assert one.held.gateway.setup.table is before


def test_the_audit_trail_is_shown_and_a_broken_one_is_an_error(one: Running, capsys: Said) -> None:
    assert run("routes", "flip", "m/short", "--to", "b", "--yes", "--why", "gaps", at=one) == 0
    capsys.readouterr()
    assert run("routes", "audit", at=one) == 0
    said = capsys.readouterr().out
    assert said.startswith(f"{one.url}  chain whole\n  2  ")
    assert "  ben  flip m/short  revision 1 -> 2: gaps\n" in said
    one.held.control.trail.state.connection.execute("DELETE FROM audit WHERE n = 1")
    assert run("routes", "audit", "--json", at=one) == 1
    (told,) = json.loads(capsys.readouterr().out)
    assert told["chain"] == "broken at 1"


def test_pools_are_shown_and_set(one: Running, capsys: Said) -> None:
    new = "http://127.0.0.1:8009"
    assert run("pools", "set", "b", new, "--check", at=one) == 0
    assert one.held.gateway.parts.fleet.pools["b"] == (B,)
    assert run("pools", "set", "b", new, at=one) == 0
    assert capsys.readouterr().out.splitlines() == 2 * [f"{one.url}  b: {B} -> {new}"]
    assert one.held.gateway.parts.fleet.pools["b"] == (new,)
    assert run("pools", "show", at=one) == 0
    assert f"  b     {new}  no" in capsys.readouterr().out
    assert run("pools", "show", "--json", at=one) == 0
    assert json.loads(capsys.readouterr().out)[0]["pools"].keys() == {"a", "b", "c"}


@pytest.mark.parametrize(
    ("arguments", "code", "word"),
    [
        (["routes", "flip", "m/huge", "--to", "b", "--yes"], 1, "m/huge: there is no such route"),
        (["routes", "flip", "m", "--to", "x", "--yes"], 1, "pool 'x': is not configured"),
        (["routes", "promote", "m", "--yes"], 1, "m/short: has no candidate"),
        (["routes", "rollback", "--yes"], 1, "no route has moved yet: there is nothing"),
        (["routes", "drain"], 2, "--all"),
        (["routes", "drain", "b", "--all"], 2, "--all"),
        (["routes", "undrain", "b"], 1, "b: is not draining"),
        (["pools", "set", "b", "nonsense"], 1, "'nonsense'"),
        (["routes", "show", "--admin-url", "http://127.0.0.1:9"], 1, "http://127.0.0.1:9"),
    ],
)
def test_an_error_is_one_line_that_names_what_is_at_fault(
    one: Running, capsys: Said, arguments: list[str], code: int, word: str
) -> None:
    told_in_one_line(one, capsys, arguments, code, word)


# -- several gateways ----------------------------------------------------------------------


def test_of_several_gateways_all_move(one: Running, two: Running) -> None:
    assert run("routes", "flip", "m/long", "--to", "c", "--yes", at=two) == 0
    assert run("routes", "flip", "m/short", "--to", "b", "--yes", *both(one, two)) == 0
    assert stable(one) == stable(two) == ("b", None)
    assert run("routes", "rollback", "m/short", "--yes", *both(one, two)) == 0
    assert (stable(one), stable(two, "m/long")) == (("a", None), ("c", None))


def test_where_one_would_not_none_moves(one: Running, two: Running, capsys: Said) -> None:
    assert run("routes", "drain", "b", "--yes", at=two) == 0
    before = one.held.gateway.setup.table
    assert run("routes", "flip", "m/short", "--to", "b", "--yes", *both(one, two)) == 1
    assert f"error: {two.url}: m/short: pool 'b': is draining" in capsys.readouterr().err
    assert one.held.gateway.setup.table is before


MOVES: list[dict[str, Any]] = [
    {"action": "flip", "route": "m", "to": "b"},
    {"action": "canary", "route": "m/short", "to": "b", "weight": 10},
    {"action": "drain", "pool": "c"},
    {"action": "drain", "all": True},
    {"action": "rollback", "to_revision": 1},
]


@pytest.mark.parametrize("body", MOVES, ids=lambda body: str(body["action"]))
def test_where_one_fails_at_last_the_others_are_put_back(
    one: Running, two: Running, body: dict[str, Any]
) -> None:
    for made in (one, two):
        for verb in (["flip", "m", "--to", "c"], ["drain", "a"], ["undrain", "a"], ["drain", "a"]):
            yes = [] if verb[0] == "undrain" else ["--yes"]
            assert run("routes", *verb, *yes, at=made) == 0
    before = one.held.gateway.setup.table
    asked = ask_all(admins(one, two), body)
    two.held.control.trail.state.connection.execute("PRAGMA query_only = ON")
    with pytest.raises(AdminError, match=f"{two.url}: state: .*nothing was changed"):
        carry_out(asked, body)
    after = one.held.gateway.setup.table
    assert after.revision > before.revision
    assert (after.routes, after.draining) == (before.routes, before.draining)


class Other:
    """A gateway where something happens as soon as a flip has taken effect."""

    def __init__(self, admin: Any, flipped: Callable[[], None]) -> None:
        self.url = admin.url
        self._admin, self._flipped = admin, flipped

    def get(self, path: str) -> dict[str, Any]:
        found: dict[str, Any] = self._admin.get(path)
        return found

    def post(self, path: str, body: Any = None) -> dict[str, Any]:
        answer: dict[str, Any] = self._admin.post(path, body)
        if body["action"] == "flip":
            self._flipped()
        return answer


def test_where_one_is_not_as_moved_afterwards_all_are_put_back(one: Running, two: Running) -> None:
    body = {"action": "flip", "route": "m/short", "to": "b"}
    asked = ask_all(admins(one, two), body)

    def overruled() -> None:
        asked[1].admin.post("/admin/routes", {"action": "drain", "pool": "c"})

    second = type(asked[1])(Other(asked[1].admin, overruled), asked[1].revision, asked[1].would)
    with pytest.raises(AdminError, match=rf"{two.url}: its routes .* \(revision 3\)"):
        carry_out([asked[0], second], body)
    assert stable(one) == stable(two) == ("a", None)
    assert two.held.gateway.setup.table.draining == {"c"}


def test_one_that_moved_and_fell_silent_is_put_back_too(one: Running, two: Running) -> None:
    body = {"action": "flip", "route": "m/short", "to": "b"}
    asked = ask_all(admins(one, two), body)

    def silent() -> None:
        raise AdminError(two.url, "timed out", answered=False)

    second = type(asked[1])(Other(asked[1].admin, silent), asked[1].revision, asked[1].would)
    with pytest.raises(AdminError, match="timed out"):
        carry_out([asked[0], second], body)
    assert stable(one) == stable(two) == ("a", None)
    assert two.held.gateway.setup.table.revision == 3


def test_what_can_not_be_put_back_is_named(one: Running, two: Running) -> None:
    body = {"action": "flip", "route": "m", "to": "b"}
    asked = ask_all(admins(one, two), body)

    class Failing:
        """A gateway that falls silent, and takes the first one's state with it."""

        url = two.url

        def get(self, path: str) -> dict[str, Any]:
            return asked[1].admin.get(path)

        def post(self, path: str, body: Any = None) -> dict[str, Any]:
            one.held.control.trail.state.connection.execute("PRAGMA query_only = ON")
            raise AdminError(self.url, "timed out", answered=False)

    second = type(asked[1])(Failing(), asked[1].revision, asked[1].would)
    with pytest.raises(PartialError) as failed:
        carry_out([asked[0], second], body)
    assert str(failed.value).startswith(
        f"{two.url}: timed out; changed and not put back: {one.url}: state: "
    )


def test_pools_of_several_gateways_are_set_or_put_back(one: Running, two: Running) -> None:
    body = {"pool": "b", "engines": ["http://127.0.0.1:8009"]}
    first, second = admins(one, two)

    class Refusing:
        """A gateway that would, and then does not."""

        url = two.url

        def get(self, path: str) -> dict[str, Any]:
            return second.get(path)

        def post(self, path: str, body: Any = None) -> dict[str, Any]:
            if not body.get("check"):
                raise AdminError(self.url, "no")
            return second.post(path, body)

    with pytest.raises(AdminError, match="no"):
        set_pool([first, Refusing()], body)
    pools = [made.held.gateway.parts.fleet.pools["b"] for made in (one, two)]
    assert pools == [(B,), (B,)]
    set_pool([first, second], body)
    pools = [made.held.gateway.parts.fleet.pools["b"] for made in (one, two)]
    assert pools == 2 * [("http://127.0.0.1:8009",)]


@pytest.mark.parametrize(
    "verb",
    [
        "routes", "routes show", "routes flip", "routes canary", "routes promote", "routes abort",
        "routes rollback", "routes drain", "routes undrain", "routes audit", "routes watch",
        "pools", "pools show", "pools set",
    ],
)  # fmt: skip
def test_every_verbs_help_ends_with_examples_that_name_it(capsys: Said, verb: str) -> None:
    with pytest.raises(SystemExit) as ended:
        main([*verb.split(), "--help"])
    assert ended.value.code == 0
    assert f"sluicegate {verb}" in capsys.readouterr().out.partition("examples:")[2]


def test_somebody_elses_words_do_not_steer_a_terminal() -> None:
    entry = {"action": "flip", "route": "m/short", "to_revision": None, "detail": {}}
    assert _entry({**entry, "why": "a\x1b[2J\nb\u202e"}) == "flip m/short: a\\x1b[2J\\nb\\u202e"
    assert table_lines([{"why": "a\x1b[2J"}]) == ["  why", "  a\\x1b[2J"]

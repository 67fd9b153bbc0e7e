"""The operator's verbs against real listeners: what they change, print and exit with."""

import asyncio
import json
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import uvloop

from gateway.admin import build_admin
from gateway.admin_client import URL_VARIABLE
from gateway.admin_flags import TOKEN_VARIABLE
from gateway.cli import main
from gateway.domain import Outcome
from gateway.edge import EdgeLimits, uvicorn_config
from gateway.listen import Listener, listening
from tests.gateway.certificates import Authority
from tests.gateway.controlled import TOKENS, WHOLE, Held, controlled

Said = pytest.CaptureFixture[str]
WEIGHT = "flow.short.batch.weight"


@dataclass
class Running:
    """A gateway whose operators' listener runs on a loop in a thread of its own."""

    url: str
    held: Held


@contextmanager
def running(folder: Path, config: str = WHOLE, host: str = "127.0.0.1") -> Iterator[Running]:
    folder.mkdir(exist_ok=True)
    begun, ended = threading.Event(), asyncio.Event()
    made: list[Any] = []

    async def serve() -> None:
        made.append(asyncio.get_running_loop())
        async with controlled(folder, config) as held:
            shown = held.control._shown.get("admin")
            application = build_admin(held.control)
            listener = Listener(uvicorn_config(application, host, 0, EdgeLimits()), shown)
            async with listening(listener):
                made.append(Running(listener.url(), held))
                begun.set()
                await ended.wait()

    thread = threading.Thread(target=lambda: uvloop.run(serve()))
    thread.start()
    try:
        assert begun.wait(20)
        yield made[1]
    finally:
        made[0].call_soon_threadsafe(ended.set)
        thread.join(20)


@pytest.fixture
def one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Running]:
    monkeypatch.setenv(TOKEN_VARIABLE, TOKENS["ben"][0])
    with running(tmp_path / "one") as gateway:
        yield gateway


def run(*arguments: str, at: Running | None = None) -> int:
    where = ["--admin-url", at.url] if at else []
    return main([*arguments, *where])


def told_in_one_line(
    one: Running, capsys: Said, arguments: list[str], code: int, word: str
) -> None:
    """The command fails with ``code`` and one line that has ``word``, and says nothing else."""
    at = None if "--admin-url" in arguments else one
    assert run(*arguments, at=at) == code
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith("error: ")
    assert said.err.count("\n") == 1
    assert word in said.err


def now(gateway: Running) -> dict[str, Any]:
    entries = gateway.held.control.overlay.entries
    return {path: entry.value for path, entry in entries.items()}


def test_limits_are_shown_as_a_table_and_as_json(one: Running, capsys: Said) -> None:
    assert run("limits", "show", at=one) == 0
    said = capsys.readouterr().out
    assert said.startswith(f"{one.url}  revision 1\n")
    assert "  flow.m.short.interactive  " in said
    assert "  engine.http://127.0.0.1:8001  " in said
    assert run("limits", "show", "--json", at=one) == 0
    (told,) = json.loads(capsys.readouterr().out)
    assert (told["url"], told["revision"], len(told["flows"])) == (one.url, 1, 4)


def test_every_cell_that_is_shown_is_a_path_that_can_be_set(one: Running, capsys: Said) -> None:
    assert run("limits", "show", at=one) == 0
    paths: list[str] = []
    for line in capsys.readouterr().out.splitlines()[1:]:
        first, *cells = line.split()
        if first in {"flow", "engine"}:
            columns = cells
        else:
            paths += [f"{first}.{column}" for column in columns]
    assert len(paths) > 20
    assert run("limits", "set", *(f"{path}=default" for path in paths), at=one) == 0


def test_limits_are_set_and_taken_back(one: Running, capsys: Said) -> None:
    assignments = (f"{WEIGHT}=3.5", "engine.http://127.0.0.1:8001.slots=64")
    assert run("limits", "set", *assignments, "--expires", "60", at=one) == 0
    assert now(one) == {WEIGHT: 3.5, "engine.http://127.0.0.1:8001.slots": 64}
    assert f"set {WEIGHT} = 3.5  by ben, for 60 s more" in capsys.readouterr().out
    assert run("limits", "set", f"{WEIGHT}=default", at=one) == 0
    assert now(one) == {"engine.http://127.0.0.1:8001.slots": 64}


def test_flows_and_engines_are_paused_and_resumed(one: Running) -> None:
    targets = ("flow.long.batch", "engine.http://127.0.0.1:8001")
    assert run("limits", "pause", *targets, at=one) == 0
    assert set(now(one)) == {f"{target}.paused" for target in targets}
    assert run("limits", "resume", *targets, at=one) == 0
    assert now(one) == {}


def test_of_several_gateways_all_are_changed_or_none(
    one: Running, tmp_path: Path, capsys: Said
) -> None:
    smaller = WHOLE.replace("slots = 128", "slots = 40")
    with running(tmp_path / "two", smaller, f"unix:{tmp_path / 'admin.sock'}") as two:
        both = ("--admin-url", one.url, "--admin-url", two.url)
        assert run("limits", "set", f"{WEIGHT}=2", *both) == 0
        assert now(one) == now(two) == {WEIGHT: 2}
        capsys.readouterr()
        assert run("limits", "set", "flow.x.short.batch.weight=2", *both) == 1
        assert now(one) == now(two) == {WEIGHT: 2}
        said = capsys.readouterr().err
        assert said.startswith(f"error: {one.url}: flow.x.short.batch.weight: ")
        assert said.count("\n") == 1


def test_a_reload_says_what_changed_and_a_bad_file_what_is_wrong(
    one: Running, capsys: Said
) -> None:
    assert run("reload", at=one) == 0
    assert "(as before)" in capsys.readouterr().out
    one.held.rewrite("slots = 128", "slots = 100")
    assert run("reload", at=one) == 0
    assert "changed limits.slots" in capsys.readouterr().out
    one.held.rewrite("slots = 100", "slots = 0")
    assert run("reload", at=one) == 1
    assert f"error: {one.url}: {one.held.path}: limits.slots: " in capsys.readouterr().err


def test_usage_is_summed_by_caller(one: Running, capsys: Said) -> None:
    assert run("usage", at=one) == 0
    assert capsys.readouterr().out == "nobody has called since the start\n"
    book = one.held.gateway.parts.usage
    book.add("web", Outcome.COMPLETED, 100, 7)
    book.add("batch", Outcome.QUEUE_FULL)
    assert run("usage", "--json", at=one) == 0
    assert json.loads(capsys.readouterr().out) == [
        {"key_id": "batch", "requests": 1, "refusals": 1, "prompt_tokens": 0},
        {
            "key_id": "web", "requests": 1, "refusals": 0, "prompt_tokens": 100,
            "completion_tokens": 7,
        },
    ]  # fmt: skip
    assert run("usage", at=one) == 0
    assert "batch   1         1         0              -" in capsys.readouterr().out


def test_a_token_is_read_from_a_file_and_a_viewers_changes_nothing(
    one: Running, tmp_path: Path, capsys: Said, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(TOKEN_VARIABLE)
    token = tmp_path / "token"
    token.write_text(TOKENS["anna"][0] + "\n")
    assert run("limits", "show", "--token-file", str(token), at=one) == 0
    capsys.readouterr()
    assert run("limits", "set", f"{WEIGHT}=2", "--token-file", str(token), at=one) == 1
    assert "may look, not change" in capsys.readouterr().err
    assert now(one) == {}


@pytest.mark.parametrize(
    ("arguments", "code", "word"),
    [
        (["limits", "set", "weight"], 2, "PATH=VALUE"),
        (["limits", "set", f"{WEIGHT}=much"], 2, "must be a number"),
        (["limits", "set", f"{WEIGHT}=-1"], 1, "above 0; null, or default in limits set, takes"),
        (["limits", "show", "--token-file", "/nowhere"], 1, "/nowhere"),
        (["limits", "show", "--cert-file", "x"], 2, "--key-file"),
        (["limits", "show", "--admin-url", "http://127.0.0.1:9"], 1, "http://127.0.0.1:9"),
        (["limits", "show", "--admin-url", "nonsense"], 1, "nonsense"),
        (["usage", "--admin-url", "unix:/nowhere.sock"], 1, "unix:/nowhere.sock"),
    ],
)
def test_an_error_is_one_line_that_names_what_is_at_fault(
    one: Running, capsys: Said, arguments: list[str], code: int, word: str
) -> None:
    told_in_one_line(one, capsys, arguments, code, word)


def test_without_a_token_nothing_is_asked(
    one: Running, capsys: Said, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(TOKEN_VARIABLE, "")
    assert run("limits", "show", at=one) == 2
    assert TOKEN_VARIABLE in capsys.readouterr().err


def test_the_environment_says_which_gateway_is_meant_where_no_flag_does(
    one: Running, capsys: Said, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(URL_VARIABLE, one.url)
    for verb in (["limits", "show"], ["routes", "show"], ["health"]):
        main(verb)
        said = capsys.readouterr()
        assert (said.out.split()[0], said.err) == (one.url, "")
    assert run("usage", "--admin-url", "http://127.0.0.1:9") == 1


def test_a_gateway_named_twice_is_a_mistake(one: Running, capsys: Said) -> None:
    assert run("usage", "--admin-url", one.url, at=one) == 2
    assert "twice" in capsys.readouterr().err


def test_an_operators_listener_with_tls_asks_for_certificates_where_told(
    tmp_path: Path, capsys: Said, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(TOKEN_VARIABLE, TOKENS["ben"][0])
    authority = Authority(tmp_path / "authority")
    server, own = authority.sign("gateway"), authority.sign("operator")
    table = (
        f'[admin.tls]\ncert_file = "{server.cert}"\nkey_file = "{server.key}"\n'
        f'client_ca_file = "{authority.file}"\n'
    )
    ca = ("--ca-file", str(authority.file))
    with ExitStack() as stack:
        gateway = stack.enter_context(running(tmp_path / "one", table + WHOLE))
        assert gateway.url.startswith("https://")
        assert run("usage", at=gateway) == 1
        assert run("usage", *ca, at=gateway) == 1
        shown = ("--cert-file", str(own.cert), "--key-file", str(own.key))
        assert run("usage", *ca, *shown, at=gateway) == 0
    assert capsys.readouterr().err.count(f"error: {gateway.url}: ") == 2

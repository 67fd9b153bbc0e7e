import inspect
import os

import pytest

from gateway import up
from loadgen import stack as stack_module
from loadgen.engine.launch import EngineProcess, start_engine
from loadgen.record import BenchError, canonical
from loadgen.stack import endpoint_from, keys_by_class, stack
from tests.loadgen.conftest import stand_in

LINE = {
    "gateway_url": "http://g",
    "admin_url": "http://a",
    "admin_token": "secret",
    "engine_urls": ["http://e"],
    "model": "m",
    "config": "/somewhere/gateway.toml",
    "keys": {"interactive": "k1"},
}


def test_credentials_are_in_neither_the_repr_nor_what_is_recorded():
    endpoint = endpoint_from(canonical(LINE))
    assert endpoint.keys == {"interactive": "k1"}
    assert "k1" not in repr(endpoint)
    assert set(endpoint.told) == set(LINE) - {"keys", "admin_token", "config"}


def test_a_missing_field_is_named():
    with pytest.raises(BenchError, match="field 'model' is missing"):
        endpoint_from(canonical({k: v for k, v in LINE.items() if k != "model"}))


def test_shorts_call_as_interactive_and_longs_as_batch():
    keys = {"standard": "s", "interactive": "i", "batch": "b"}
    assert keys_by_class(keys, ("short", "long")) == {"short": "i", "long": "b"}


def test_without_their_own_service_class_any_key_serves_and_without_keys_none():
    assert keys_by_class({"standard": "s"}, ("short", "long")) == {"short": "s", "long": "s"}
    assert keys_by_class({}, ("short",)) == {}


async def test_a_stack_serves_inside_and_is_ended_by_sigterm_on_the_way_out(stand_in_gateway):
    run_dir = stand_in_gateway / "run"
    async with stack("off", "shared", run_dir) as endpoint:
        assert endpoint.gateway_url.startswith("http://127.0.0.1:")
        assert not (run_dir / "stopped").exists()
    assert (run_dir / "stopped").read_text() == "by SIGTERM"


SLOW = """
import json, signal, subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"],
                         start_new_session=True)
told = []
signal.signal(signal.SIGTERM, lambda number, frame: told.append(number))
line = {"gateway_url": "g", "engine_urls": [], "model": "m", "keys": {}, "pid": child.pid}
print(json.dumps(line), flush=True)
while not told:
    time.sleep(0.01)
time.sleep(0.7)
child.kill()
child.wait()
"""


def gone(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


async def test_engines_in_sessions_of_their_own_are_gone_after_a_slow_stop(tmp_path, monkeypatch):
    stand_in(tmp_path, SLOW)
    monkeypatch.chdir(tmp_path)
    async with stack("off", "shared", tmp_path / "run") as endpoint:
        pid = endpoint.told["pid"]
        assert not gone(pid)
    assert gone(pid)


def default_of(function, name):
    return inspect.signature(function).parameters[name].default


def test_up_is_given_longer_than_it_gives_two_engines_and_the_gateway():
    start_s = 2 * default_of(start_engine, "deadline_s") + up.READY_S
    stop_s = 2 * default_of(EngineProcess.stop, "timeout_s") + up.STOP_S
    assert start_s < stack_module.READY_S
    assert stop_s < stack_module.STOP_S


async def test_a_stack_that_ends_before_it_is_ready_shows_its_log(tmp_path, monkeypatch):
    stand_in(tmp_path, "raise SystemExit('port 8000 is taken')")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(BenchError, match=r"ended before it was ready\n.*port 8000 is taken"):
        async with stack("off", "shared", tmp_path / "run"):
            pass


async def test_a_stack_that_never_is_ready_is_stopped(tmp_path, monkeypatch):
    stand_in(tmp_path, "import time\ntime.sleep(60)")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("loadgen.stack.READY_S", 0.3)
    with pytest.raises(BenchError, match="not ready after"):
        async with stack("off", "shared", tmp_path / "run"):
            pass

import pytest

from loadgen.record import BenchError, canonical
from loadgen.upstack import endpoint_from, keys_by_class, stack
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


async def test_a_stack_that_ends_before_it_is_ready_shows_its_log(tmp_path, monkeypatch):
    stand_in(tmp_path, "raise SystemExit('port 8000 is taken')")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(BenchError, match=r"ended before it was ready\n.*port 8000 is taken"):
        async with stack("off", "shared", tmp_path / "run"):
            pass


async def test_a_stack_that_never_is_ready_is_stopped(tmp_path, monkeypatch):
    stand_in(tmp_path, "import time\ntime.sleep(60)")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("loadgen.upstack.READY_S", 0.3)
    with pytest.raises(BenchError, match="not ready after"):
        async with stack("off", "shared", tmp_path / "run"):
            pass

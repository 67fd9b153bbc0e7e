"""Starting and stopping an engine process, and saying why one did not start."""

import socket
from pathlib import Path

import httpx
import pytest

from loadgen.engine.launch import LaunchError, start_engine


def test_a_started_engine_answers_and_stops_with_status_0(tmp_path: Path) -> None:
    engine = start_engine([], tmp_path / "logs" / "engine.log")
    try:
        assert httpx.get(f"{engine.url}/health").status_code == 200
        assert engine.pid > 0
    finally:
        status = engine.stop()
    assert status == 0
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"{engine.url}/health")


def test_a_wrong_flag_is_reported_with_the_engines_own_words(tmp_path: Path) -> None:
    with pytest.raises(LaunchError, match=r"status 2.*(?s:.)*--time-scale"):
        start_engine(["--time-scale", "0"], tmp_path / "engine.log")


def test_a_taken_port_is_reported(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        with pytest.raises(LaunchError, match=f"127.0.0.1:{port}"):
            start_engine(["--port", port], tmp_path / "engine.log")


def test_a_slow_start_refuses_connections_until_it_is_over(tmp_path: Path) -> None:
    with pytest.raises(LaunchError, match=r"not ready within 1\.5 s"):
        start_engine(["--fault", "slow-start=60"], tmp_path / "engine.log", deadline_s=1.5)
    with start_engine(["--fault", "slow-start=0.1"], tmp_path / "engine.log") as engine:
        assert httpx.get(f"{engine.url}/health").status_code == 200


def test_a_killed_engine_is_gone(tmp_path: Path) -> None:
    with start_engine([], tmp_path / "engine.log") as engine:
        assert engine.kill() == -9

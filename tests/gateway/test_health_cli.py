import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from gateway.cli import main

READY = {"status": "ready", "reasons": [], "pools": {"shared": {"engines": 2, "up": 2}}}
DRAINING = {
    "status": "draining",
    "reasons": ["draining", "no healthy engine"],
    "pools": {"shared": {"engines": 2, "up": 0}},
}


@contextmanager
def listener(pages: dict[str, tuple[int, bytes]]) -> Iterator[str]:
    """An operators' listener that has these pages."""

    class Pages(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            status, body = pages.get(self.path, (404, b"{}"))
            self.send_response(status)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Pages) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()


def test_a_unix_socket_is_an_address(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def answer() -> None:
        connection, _ = server.accept()
        with connection:
            assert b"GET /health/live HTTP/1.1" in connection.recv(4096)
            connection.sendall(b'HTTP/1.1 200 OK\r\ncontent-length: 17\r\n\r\n{"status":"live"}')

    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(tmp_path / "admin.sock"))
        server.listen()
        thread = threading.Thread(target=answer)
        thread.start()
        url = f"unix:{tmp_path}/admin.sock"
        assert main(["health", "--live", "--admin-url", url]) == 0
        thread.join()
    assert capsys.readouterr().out == f"{url}  live\n"


def pages(ready: tuple[int, object]) -> dict[str, tuple[int, bytes]]:
    live = (200, b'{"status":"live"}')
    return {"/health/live": live, "/health/ready": (ready[0], json.dumps(ready[1]).encode())}


def test_a_ready_gateway_is_told_with_its_pools(capsys: pytest.CaptureFixture[str]) -> None:
    with listener(pages((200, READY))) as url:
        assert main(["health", "--admin-url", url]) == 0
        assert capsys.readouterr().out == f"{url}  ready\n  pool shared: 2 of 2 engines up\n"


def test_one_that_drains_is_not_ready_and_says_every_reason(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with listener(pages((503, DRAINING))) as url:
        assert main(["health", "--admin-url", f"{url}/"]) == 1
        assert "draining, no healthy engine" in capsys.readouterr().out
        assert main(["health", "--admin-url", url, "--json"]) == 1
        told = json.loads(capsys.readouterr().out)
        assert told == {"url": url, "ok": False, **DRAINING}


def test_one_that_drains_is_alive(capsys: pytest.CaptureFixture[str]) -> None:
    with listener(pages((503, DRAINING))) as url:
        assert main(["health", "--live", "--admin-url", url]) == 0
        assert capsys.readouterr().out == f"{url}  live\n"


def test_nobody_there_is_a_no_with_its_reason(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        url = f"http://127.0.0.1:{taken.getsockname()[1]}"
    assert main(["health", "--admin-url", url]) == 1
    assert "no answer" in capsys.readouterr().out


@pytest.mark.parametrize("body", [b"[]", b"{}", b"<html>"])
def test_another_server_is_no_gateway(body: bytes, capsys: pytest.CaptureFixture[str]) -> None:
    with listener({"/health/ready": (200, body)}) as url:
        assert main(["health", "--admin-url", url]) == 1
        assert capsys.readouterr().out.startswith(f"{url}  ")


def test_an_address_that_is_none_is_a_no(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["health", "--admin-url", "nonsense"]) == 1
    assert "no answer" in capsys.readouterr().out

"""Where a gateway listens: TCP, IPv6, unix sockets, with TLS or without."""

import socket
import ssl
from collections.abc import MutableMapping
from pathlib import Path
from typing import Any

import httpx
import pytest

from gateway.config import parse
from gateway.edge import EdgeLimits, uvicorn_config
from gateway.listen import Listener, listening
from gateway.tls import certificates
from tests.gateway.certificates import Authority
from tests.gateway.minimal import CONFIG, write


@pytest.fixture
def anyio_backend() -> Any:
    return ("asyncio", {"use_uvloop": True})


async def application(scope: MutableMapping[str, Any], _receive: Any, send: Any) -> None:
    headers = [(b"content-length", b"5"), (b"x-scheme", scope["scheme"].encode())]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": b"hello", "more_body": False})


def listener(host: str, port: int = 0, **more: Any) -> Listener:
    return Listener(uvicorn_config(application, host, port, EdgeLimits()), **more)


async def ask(url: str, verify: Any = True) -> httpx.Response:
    unix = url.removeprefix("unix:") if url.startswith("unix:") else None
    transport = httpx.AsyncHTTPTransport(uds=unix, verify=verify)
    async with httpx.AsyncClient(transport=transport) as client:
        return await client.get("http://unix/" if unix else url)


@pytest.mark.parametrize(("host", "shown"), [("127.0.0.1", "127.0.0.1"), ("::1", "[::1]")])
async def test_an_address_is_listened_on_and_told_with_its_port(host: str, shown: str) -> None:
    served = listener(host)
    async with listening(served):
        assert served.url().startswith(f"http://{shown}:")
        assert (await ask(served.url())).text == "hello"


async def test_a_unix_socket_is_listened_on_and_gone_afterwards(tmp_path: Path) -> None:
    path = tmp_path / "callers.sock"
    served = listener(f"unix:{path}")
    async with listening(served):
        assert served.url() == f"unix:{path}"
        assert (await ask(served.url())).text == "hello"
    assert not path.exists()


async def test_what_a_killed_process_left_behind_is_taken_over_and_what_is_served_is_not(
    tmp_path: Path,
) -> None:
    path = tmp_path / "callers.sock"
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(path))
    async with listening(listener(f"unix:{path}")):
        assert (await ask(f"unix:{path}")).text == "hello"
        with pytest.raises(OSError, match=f"cannot listen on unix:{path}: Address already in use"):
            listener(f"unix:{path}").bind()
        assert (await ask(f"unix:{path}")).text == "hello"


async def test_a_file_that_is_no_socket_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "precious"
    path.write_text("data")
    with pytest.raises(OSError, match="cannot listen on unix:"):
        listener(f"unix:{path}").bind()
    assert path.read_text() == "data"


async def test_an_address_that_is_taken_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(OSError, match=f"cannot listen on 127.0.0.1:{port}: Address already"):
            listener("127.0.0.1", port).bind()


@pytest.mark.parametrize("unix", [False, True])
async def test_tls_is_spoken_where_there_is_a_certificate(tmp_path: Path, unix: bool) -> None:
    authority = Authority(tmp_path / "authority")
    signed = authority.sign("gateway")
    table = f'[server.tls]\ncert_file = "{signed.cert}"\nkey_file = "{signed.key}"\n'
    shown = certificates(parse(table + CONFIG, write(tmp_path)))["server"]
    host = f"unix:{tmp_path / 's'}" if unix else "127.0.0.1"
    served = listener(host, certificates=shown)
    async with listening(served):
        if unix:
            with pytest.raises(httpx.HTTPError):
                await ask(served.url())
            return
        assert served.url().startswith("https://127.0.0.1:")
        answer = await ask(served.url(), ssl.create_default_context(cafile=authority.file))
        assert (answer.text, answer.headers["x-scheme"]) == ("hello", "https")
        with pytest.raises(httpx.HTTPError):
            await ask(served.url().replace("https", "http"))

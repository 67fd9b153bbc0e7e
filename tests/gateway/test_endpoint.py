"""Engines on real sockets: which are believed, by the prober, the relay and an operator."""

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest

from gateway.config import ConfigError, load
from gateway.endpoint import Endpoint, EngineTlsError, engine_context
from gateway.engine_http import http_client
from gateway.engines import Prober, Probing
from gateway.schema import EngineTls
from gateway.wire import ConnectFailed, EngineClient, WireError
from tests.gateway.certificates import Authority
from tests.gateway.fake_engine import FakeEngine
from tests.gateway.minimal import CONFIG, write


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("ca"))


@asynccontextmanager
async def engine(authority: Authority, *names: str, asks: bool = False) -> AsyncIterator[int]:
    """An engine whose certificate has these names; with ``asks`` it wants one of the caller."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    signed = authority.sign("engine", hosts=names)
    context.load_cert_chain(signed.cert, signed.key)
    if asks:
        context.load_verify_locations(authority.file)
        context.verify_mode = ssl.CERT_REQUIRED
    fake = FakeEngine()
    server = await asyncio.start_server(fake.serve, "127.0.0.1", 0, ssl=context)
    async with server:
        yield server.sockets[0].getsockname()[1]


async def asked_by_prober(endpoint: Endpoint) -> int:
    clock = asyncio.get_running_loop().time
    prober = Prober(Probing(), clock, lambda _before, _after: None)
    prober.watch("e", endpoint)
    status, _ = await prober.get("e", "/health", 100)
    return status


async def asked_by_relay(endpoint: Endpoint) -> int:
    client = EngineClient(endpoint.url, tls=endpoint.tls, service=endpoint.service)
    exchange = client.exchange(b"GET", b"/health")
    try:
        await exchange.start()
        return exchange.status
    finally:
        exchange.close()
        client.close()


async def asked_by_operator(endpoint: Endpoint) -> int:
    async with http_client(endpoint, 2.0) as client:
        return (await client.get("/health")).status_code


async def refused(endpoint: Endpoint) -> None:
    """All must refuse to speak to it."""
    with pytest.raises(httpx.ConnectError):
        await asked_by_operator(endpoint)
    with pytest.raises(ConnectFailed):
        await asked_by_prober(endpoint)
    with pytest.raises(ConnectFailed):
        await asked_by_relay(endpoint)


def trusting(authority: Authority, **more: str) -> ssl.SSLContext:
    return engine_context(EngineTls(ca_file=str(authority.file), **more), Path)


async def test_an_engine_with_a_certificate_of_the_named_authority_is_believed(
    authority: Authority,
) -> None:
    async with engine(authority, "localhost", "127.0.0.1") as port:
        for host in ("localhost", "127.0.0.1"):
            endpoint = Endpoint(f"https://{host}:{port}", trusting(authority))
            assert await asked_by_prober(endpoint) == 200
            assert await asked_by_relay(endpoint) == 200


async def test_a_certificate_of_somebody_else_is_not_believed(
    authority: Authority, tmp_path: Path
) -> None:
    stranger = Authority(tmp_path)
    async with engine(stranger, "localhost") as port:
        await refused(Endpoint(f"https://localhost:{port}", trusting(authority)))
        await refused(Endpoint(f"https://localhost:{port}", engine_context(EngineTls(), Path)))


async def test_a_certificate_of_another_name_is_not_believed(authority: Authority) -> None:
    async with engine(authority, "other.example") as port:
        await refused(Endpoint(f"https://localhost:{port}", trusting(authority)))


async def test_a_looked_up_address_must_have_the_services_name(authority: Authority) -> None:
    async with engine(authority, "vllm.svc") as port:
        address = f"https://127.0.0.1:{port}"
        good = Endpoint(address, trusting(authority), service="vllm.svc")
        assert await asked_by_prober(good) == 200
        assert await asked_by_relay(good) == 200
        assert await asked_by_operator(good) == 200
        await refused(Endpoint(address, trusting(authority), service="other.svc"))
        await refused(Endpoint(address, trusting(authority)))


async def test_an_engine_that_asks_for_a_certificate_gets_ours(authority: Authority) -> None:
    own = authority.sign("gateway")
    cert, key = str(own.cert), str(own.key)
    async with engine(authority, "localhost", asks=True) as port:
        url = f"https://localhost:{port}"
        shown = trusting(authority, client_cert_file=cert, client_key_file=key)
        assert await asked_by_prober(Endpoint(url, shown)) == 200
        assert await asked_by_relay(Endpoint(url, shown)) == 200
        with pytest.raises(WireError):
            await asked_by_prober(Endpoint(url, trusting(authority)))


async def test_an_ipv6_engine_and_a_unix_socket_are_reached(tmp_path: Path) -> None:
    fake = FakeEngine()
    async with await asyncio.start_server(fake.serve, "::1", 0) as server:
        endpoint = Endpoint(f"http://[::1]:{server.sockets[0].getsockname()[1]}")
        assert await asked_by_prober(endpoint) == await asked_by_relay(endpoint) == 200
    path = tmp_path / "engine.sock"
    async with await asyncio.start_unix_server(fake.serve, path):
        endpoint = Endpoint(f"unix:{path}")
        assert await asked_by_prober(endpoint) == await asked_by_relay(endpoint) == 200
    with pytest.raises(ConnectFailed):
        await asked_by_relay(Endpoint(f"unix:{tmp_path}/nobody.sock"))


def test_files_that_are_no_certificates_are_named_with_their_key(
    authority: Authority, tmp_path: Path
) -> None:
    nonsense = tmp_path / "nonsense.crt"
    nonsense.write_text("no certificate")
    own = authority.sign("gateway")
    cert, key = str(own.cert), str(own.key)
    wrong: list[tuple[str, dict[str, str]]] = [
        ("ca_file", {"ca_file": str(nonsense)}),
        ("ca_file", {"ca_file": str(tmp_path / "missing.crt")}),
        ("client_cert_file", {"client_cert_file": str(nonsense), "client_key_file": key}),
        ("client_key_file", {"client_cert_file": cert, "client_key_file": str(tmp_path / "no")}),
    ]
    for expected, files in wrong:
        with pytest.raises(EngineTlsError) as error:
            engine_context(EngineTls(**files), Path)
        assert error.value.key == expected
        assert str(tmp_path) in error.value.reason


@pytest.mark.parametrize(
    ("section", "key"),
    [
        ('[upstream.tls]\nca_file = "missing.crt"\n', "upstream.tls.ca_file"),
        ('[upstream.tls]\nclient_cert_file = "c"\n', "upstream.tls"),
        ('[pool.a.tls]\nca_file = "missing.crt"\n', "pool.a.tls.ca_file"),
        ("[upstream]\ntls = {verify = false}\n", "upstream.tls.verify"),
    ],
)
def test_a_configuration_with_unusable_tls_is_refused_by_key(
    tmp_path: Path, section: str, key: str
) -> None:
    with pytest.raises(ConfigError) as error:
        load(write(tmp_path, CONFIG + section))
    assert error.value.key == key

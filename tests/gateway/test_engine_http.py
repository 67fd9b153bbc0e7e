"""The client of operators' questions."""

import asyncio
import ssl
from pathlib import Path

from gateway.endpoint import Endpoint
from gateway.engine_http import http_client
from tests.gateway.fake_engine import FakeEngine, listening


async def test_a_client_for_plain_http_trusts_no_certificate() -> None:
    async with http_client(Endpoint("http://127.0.0.1:1"), 1.0) as client:
        pool = client._transport._pool  # type: ignore[attr-defined]
        context = pool._ssl_context
        assert context.verify_mode is ssl.CERT_REQUIRED
        assert context.get_ca_certs() == []


async def test_a_looked_up_address_is_asked_by_the_services_name_for_nothing_compressed() -> None:
    engine = FakeEngine()
    async with listening(engine) as port:
        endpoint = Endpoint(f"http://127.0.0.1:{port}", service="vllm.svc")
        async with http_client(endpoint, 2.0) as client:
            assert (await client.get("/health")).status_code == 200
    assert f"host: vllm.svc:{port}\r\n".encode() in engine.requests[0].lower()
    assert b"accept-encoding: identity\r\n" in engine.requests[0].lower()


async def test_a_unix_socket_is_reached(tmp_path: Path) -> None:
    path = tmp_path / "engine.sock"
    async with (
        await asyncio.start_unix_server(FakeEngine().serve, path),
        http_client(Endpoint(f"unix:{path}"), 2.0) as client,
    ):
        assert (await client.get("/health")).status_code == 200

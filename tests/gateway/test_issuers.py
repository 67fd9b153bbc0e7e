import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from gateway import issuers
from gateway.issuers import Keeper
from gateway.keysets import KeySet, KeySource, parse_jwks, shared_secret
from tests.gateway.mint import SECRET, Clock, KeyServer, jwk, jwks, key_server

ONE = jwks(jwk("ES256", "one"))
TWO = jwks(jwk("ES256", "one"), jwk("ES256", "two"))


class Watched:
    """A keeper with a clock set by hand, and what it told."""

    def __init__(self, source: KeySource, key_set: KeySet | None = None) -> None:
        self.events: list[tuple[str, dict[str, object]]] = []
        self.clock = Clock(1000.0)
        self.keeper = Keeper("staff", source, key_set, self.clock, self._event)

    def _event(self, event: str, **facts: object) -> None:
        assert facts.pop("issuer") == "staff"
        self.events.append((event, facts))

    async def after(self, seconds: float) -> None:
        """What a tick after so many seconds leads to."""
        self.clock.at_s += seconds
        self.keeper.tick()
        await self.answered()

    async def answered(self) -> None:
        """The end of what is on its way."""
        if self.keeper._fetching is not None:
            await asyncio.wait([self.keeper._fetching])

    @property
    def kids(self) -> list[str | None]:
        return [key.kid for key in self.keeper.key_set.keys] if self.keeper.key_set else []


@asynccontextmanager
async def served(
    document: bytes = ONE, **timing: float
) -> AsyncIterator[tuple[KeyServer, Watched]]:
    async with key_server(document) as server:
        watched = Watched(KeySource(url=server.url, **timing))
        yield server, watched
        await watched.keeper.close()


async def test_a_set_is_fetched_at_the_first_tick_and_then_every_refresh() -> None:
    async with served() as (server, watched):
        await watched.after(0)
        assert (watched.kids, server.asked) == (["one"], 1)
        assert watched.events == [("jwks_refreshed", {"keys": 1})]
        await watched.after(299)
        assert server.asked == 1
        server.body = TWO
        await watched.after(1)
        assert (watched.kids, server.asked) == (["one", "two"], 2)
        server.body = jwks(jwk("ES256", "two"))
        await watched.after(300)
        assert watched.kids == ["two"]


async def test_an_unchanged_set_is_the_same_and_told_once() -> None:
    async with served() as (server, watched):
        await watched.after(0)
        before = watched.keeper.key_set
        await watched.after(300)
        assert server.asked == 2
        assert watched.keeper.key_set is before
        assert [event for event, _ in watched.events] == ["jwks_refreshed"]


async def test_in_an_outage_the_last_good_set_serves_until_it_is_stale() -> None:
    async with served(refresh_s=60, max_stale_s=200) as (server, watched):
        await watched.after(0)
        server.status = "500 Oops"
        await watched.after(60)
        assert watched.keeper.reason == "answered 500"
        await watched.after(139)
        assert watched.kids == ["one"]
        await watched.after(1)
        assert watched.kids == []
        assert [event for event, _ in watched.events].count("jwks_stale") == 1
        assert watched.keeper.view().age_s is None
        server.status = "200 OK"
        await watched.after(60)
        assert (watched.kids, watched.keeper.reason) == (["one"], "")
        assert watched.events[-1] == ("jwks_refreshed", {"keys": 1})


async def test_after_failures_it_asks_again_sooner_but_ever_more_slowly() -> None:
    async with served() as (server, watched):
        server.status = "503 Busy"
        times = []
        for _ in range(120):
            before = server.asked
            await watched.after(1)
            if server.asked > before:
                times.append(watched.clock.at_s)
        gaps = [later - sooner for sooner, later in pairwise(times)]
        assert gaps == [1, 2, 4, 8, 16, 30, 30]


FAULTS: dict[str, tuple[dict[str, Any], str]] = {
    "a redirect": (
        {"status": "302 Found", "headers": ("location: http://127.0.0.1:1/",)},
        "answered 302",
    ),
    "an error": ({"status": "404 Not Found"}, "answered 404"),
    "no JSON": ({"body": b"<html>"}, "not JSON"),
    "no usable key": ({"body": b'{"keys": []}'}, "has no key that can verify"),
    "too much": ({"body": b" " * ((256 << 10) + 1)}, "more than 262144 bytes"),
    "compressed": (
        {"body": b"\x1f\x8b" + b"x" * 9, "headers": ("content-encoding: gzip",)},
        "not JSON",
    ),
    "no HTTP": ({"status": "200 OK\r\nnonsense"}, "can't be fetched: RemoteProtocolError"),
}


@pytest.mark.parametrize("fault", FAULTS)
async def test_an_answer_at_fault_is_named_and_changes_nothing(fault: str) -> None:
    changed, reason = FAULTS[fault]
    async with served() as (server, watched):
        await watched.after(0)
        for name, value in changed.items():
            setattr(server, name, value)
        await watched.after(300)
        assert watched.kids == ["one"]
        event, facts = watched.events[-1]
        assert event == "jwks_failed"
        assert str(facts["reason"]).startswith(reason)


async def test_nobody_there_and_no_answer_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(issuers, "TIMEOUT_S", 0.05)
    watched = Watched(KeySource(url="http://127.0.0.1:1/"))
    await watched.after(0)
    assert watched.keeper.reason == "can't be fetched: ConnectError"
    async with served() as (server, hanging):
        server.hang = True
        await hanging.after(0)
        assert hanging.keeper.reason == "no whole answer within 0.05 s"


async def test_a_server_whose_certificate_nobody_vouches_for_is_not_asked(tmp_path: Path) -> None:
    certificate, key = self_signed(tmp_path)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    served_by = KeyServer(ONE)
    server = await asyncio.start_server(served_by.serve, "127.0.0.1", 0, ssl=context)
    async with server:
        port = server.sockets[0].getsockname()[1]
        watched = Watched(KeySource(url=f"https://127.0.0.1:{port}/"))
        await watched.after(0)
        assert (watched.kids, served_by.asked) == ([], 0)
        assert watched.keeper.reason == "can't be fetched: ConnectError"


async def test_many_who_need_a_newer_set_share_one_request() -> None:
    async with served() as (server, watched):
        await watched.after(0)
        watched.clock.at_s += 10
        server.body, server.hang = TWO, True
        server.reached.clear()
        waiting = [asyncio.ensure_future(watched.keeper.asked()) for _ in range(50)]
        await server.reached.wait()
        assert not any(task.done() for task in waiting)
        server.let_go.set()
        await asyncio.gather(*waiting)
        assert (server.asked, watched.kids) == (2, ["one", "two"])


async def test_a_newer_set_is_asked_for_at_most_every_ten_seconds() -> None:
    async with served() as (server, watched):
        await watched.after(0)
        for _ in range(20):
            watched.clock.at_s += 0.9
            await watched.keeper.asked()
        assert server.asked == 2


async def test_who_waits_is_let_go_while_the_request_goes_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(issuers, "WAIT_S", 0.02)
    async with served() as (server, watched):
        server.hang = True
        await watched.keeper.asked()
        assert watched.kids == []
        server.let_go.set()
        await watched.answered()
        assert watched.kids == ["one"]
        assert server.asked == 1


async def test_closing_ends_what_is_on_its_way() -> None:
    async with served() as (server, watched):
        server.hang = True
        watched.keeper.tick()
        await server.reached.wait()
        await watched.keeper.close()
        assert watched.keeper._fetching is None
        assert watched.events == []


async def test_a_file_is_read_anew_when_it_changed(tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    path.write_bytes(ONE)
    watched = Watched(KeySource(path=str(path), max_stale_s=1000), parse_jwks(ONE))
    await watched.after(0)
    assert watched.events == []
    await watched.after(300)
    before = watched.keeper.key_set
    await watched.after(300)
    assert watched.keeper.key_set is before
    path.write_bytes(TWO)
    await watched.after(300)
    assert watched.kids == ["one", "two"]
    path.write_bytes(b"{")
    await watched.after(300)
    assert (watched.kids, watched.keeper.reason) == (["one", "two"], "not JSON")
    path.unlink()
    await watched.after(100)
    assert watched.keeper.reason == "can't be read: No such file or directory"
    path.write_bytes(b" " * ((256 << 10) + 1))
    await watched.after(100)
    assert watched.keeper.reason == "more than 262144 bytes"
    await watched.after(1000)
    assert watched.kids == []
    path.write_bytes(ONE)
    await watched.after(100)
    assert watched.kids == ["one"]


async def test_a_shared_secret_never_changes_nor_ages() -> None:
    secret = shared_secret(SECRET, frozenset({"HS256"}))
    watched = Watched(KeySource(max_stale_s=1), secret)
    await watched.after(1e6)
    await watched.keeper.asked()
    assert watched.keeper.key_set is secret
    assert watched.events == []
    view = watched.keeper.view()
    assert (view.name, view.keys, view.age_s, view.reason) == ("staff", 1, None, "")


def self_signed(folder: Path) -> tuple[Path, Path]:
    """A certificate for 127.0.0.1 that nobody has signed but its own key."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "localhost")])
    now = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(
            x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))]), critical=False
        )
        .sign(key, hashes.SHA256())
    )
    paths = folder / "cert.pem", folder / "key.pem"
    paths[0].write_bytes(certificate.public_bytes(Encoding.PEM))
    paths[1].write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    return paths

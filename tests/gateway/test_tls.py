"""TLS for callers: what is spoken, who must show a certificate, how certificates are replaced."""

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from gateway.config import ConfigError, parse
from gateway.tls import Certificates, certificates
from tests.gateway.certificates import Authority, Signed
from tests.gateway.minimal import CONFIG, write


@pytest.fixture
def anyio_backend() -> Any:
    return ("asyncio", {"use_uvloop": True})


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path / "authority")


def shown(folder: Path, signed: Signed, client_ca: Path | None = None) -> Certificates:
    """The certificates of a configuration with this one for callers."""
    more = f'client_ca_file = "{client_ca}"' if client_ca else ""
    table = f'[server.tls]\ncert_file = "{signed.cert}"\nkey_file = "{signed.key}"\n{more}\n'
    return certificates(parse(table + CONFIG, write(folder)))["server"]


def trusting(authority: Authority, own: Signed | None = None) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=authority.file)
    if own is not None:
        context.load_cert_chain(own.cert, own.key)
    return context


@asynccontextmanager
async def serving(held: Certificates) -> AsyncIterator[int]:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(await reader.read(1))
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0, ssl=held.context)
    async with server:
        yield server.sockets[0].getsockname()[1]


async def call(port: int, context: ssl.SSLContext) -> tuple[str, str]:
    """One byte there and back; the server's name and the version spoken."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context)
    try:
        writer.write(b"x")
        if await reader.read(1) != b"x":
            raise ConnectionResetError("closed without an answer")
        peer = writer.get_extra_info("peercert")
        return peer["subject"][0][0][1], writer.get_extra_info("ssl_object").version()
    finally:
        writer.close()


async def test_callers_speak_at_least_1_2(tmp_path: Path, authority: Authority) -> None:
    async with serving(shown(tmp_path, authority.sign("one"))) as port:
        assert await call(port, trusting(authority)) == ("one", "TLSv1.3")
        older = trusting(authority)
        older.maximum_version = ssl.TLSVersion.TLSv1_2
        assert (await call(port, older))[1] == "TLSv1.2"
        oldest = trusting(authority)
        oldest.set_ciphers("ALL:@SECLEVEL=0")
        with pytest.warns(DeprecationWarning, match="TLSv1_1"):
            oldest.minimum_version = oldest.maximum_version = ssl.TLSVersion.TLSv1_1
        with pytest.raises((ssl.SSLError, ConnectionError)):
            await call(port, oldest)


async def test_with_a_client_authority_only_its_callers_get_in(
    tmp_path: Path, authority: Authority
) -> None:
    callers, strangers = (
        Authority(tmp_path / "c", "callers"),
        Authority(tmp_path / "s", "strangers"),
    )
    async with serving(shown(tmp_path, authority.sign("one"), callers.file)) as port:
        assert (await call(port, trusting(authority, callers.sign("anna"))))[0] == "one"
        for own in (None, strangers.sign("eve")):
            with pytest.raises((ssl.SSLError, ConnectionError)):
                await call(port, trusting(authority, own))


async def test_a_replaced_certificate_is_shown_from_the_next_connection_on(
    tmp_path: Path, authority: Authority
) -> None:
    held = shown(tmp_path, authority.sign("one"))
    async with serving(held) as port:
        context = trusting(authority)
        assert (await call(port, context))[0] == "one"
        held.use(shown(tmp_path, authority.sign("two")))
        assert (await call(port, context))[0] == "two"
        held.use(shown(tmp_path, authority.sign("three")))
        assert (await call(port, context))[0] == "three"


async def test_a_replaced_client_authority_decides_from_the_next_connection_on(
    tmp_path: Path, authority: Authority
) -> None:
    before, after = Authority(tmp_path / "b", "before"), Authority(tmp_path / "a", "after")
    anna, ben = before.sign("anna"), after.sign("ben")
    held = shown(tmp_path, authority.sign("one"), before.file)
    async with serving(held) as port:
        known = trusting(authority, anna)
        assert (await call(port, known))[0] == "one"
        held.use(shown(tmp_path, authority.sign("two"), after.file))
        assert (await call(port, trusting(authority, ben)))[0] == "two"
        with pytest.raises((ssl.SSLError, ConnectionError)):
            await call(port, known)


def test_a_file_that_can_not_be_used_is_named_by_its_key(
    tmp_path: Path, authority: Authority
) -> None:
    good, other = authority.sign("one"), authority.sign("two")
    nothing, gone = tmp_path / "empty", tmp_path / "gone"
    nothing.write_text("")
    hidden = authority.sign("hidden", b"secret")
    for signed, client_ca, key, word in (
        (Signed(gone, good.key), None, "cert_file", "can't be read"),
        (Signed(good.cert, gone), None, "key_file", "can't be read"),
        (Signed(nothing, good.key), None, "cert_file", "no certificate and its key"),
        (Signed(good.cert, other.key), None, "cert_file", "mismatch"),
        (hidden, None, "cert_file", "encrypted"),
        (good, gone, "client_ca_file", "can't be read"),
        (good, nothing, "client_ca_file", "no certificates"),
    ):
        with pytest.raises(ConfigError, match=word) as error:
            shown(tmp_path, signed, client_ca)
        assert error.value.key == f"server.tls.{key}"


def test_without_a_section_there_is_no_tls(tmp_path: Path) -> None:
    assert certificates(parse(CONFIG, write(tmp_path))) == {}

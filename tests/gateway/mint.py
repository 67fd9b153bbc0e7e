"""Issuers for tests: key pairs made here, tokens signed with them, and a server of their keys."""

import asyncio
import json
from base64 import urlsafe_b64encode
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import jwt
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from jwt.algorithms import ECAlgorithm, OKPAlgorithm, RSAAlgorithm

from gateway.tokens import Grants, TokenRules

ISSUER = "https://login.example.com/"
AUDIENCE = "sluicegate"
NOW = 1_800_000_000.0
CURVES = {"ES256": ec.SECP256R1, "ES384": ec.SECP384R1, "ES512": ec.SECP521R1}
ASYMMETRIC = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", *CURVES, "EdDSA")
SECRET = bytes(range(64))


@cache
def private_key(algorithm: str, kid: str = "k") -> Any:
    """A key pair for an algorithm, another for each ``kid``."""
    if algorithm == "EdDSA":
        return ed25519.Ed25519PrivateKey.generate()
    if algorithm in CURVES:
        return ec.generate_private_key(CURVES[algorithm]())
    if algorithm != "RS256":  # one RSA key serves all its algorithms
        return private_key("RS256", kid)
    return rsa.generate_private_key(65537, 2048)


def jwk(algorithm: str, kid: str | None = "k", **extra: Any) -> dict[str, Any]:
    """The public key as a JWKS has it."""
    public = private_key(algorithm, kid or "k").public_key()
    kind: Any = OKPAlgorithm if algorithm == "EdDSA" else RSAAlgorithm
    if algorithm in CURVES:
        kind = ECAlgorithm
    return {**kind.to_jwk(public, as_dict=True), **({"kid": kid} if kid else {}), **extra}


def jwks(*keys: Mapping[str, Any]) -> bytes:
    """A JWKS document."""
    return json.dumps({"keys": keys}).encode()


def claims(**changed: Any) -> dict[str, Any]:
    """Good claims, with changes; ``None`` takes one away."""
    good = {"iss": ISSUER, "aud": AUDIENCE, "sub": "alice", "iat": NOW - 10, "exp": NOW + 600}
    return {name: value for name, value in {**good, **changed}.items() if value is not None}


def token(
    algorithm: str = "ES256",
    kid: str | None = "k",
    key: Any = None,
    header: Mapping[str, Any] | None = None,
    **changed: Any,
) -> str:
    """A signed token with good claims, but for ``changed``."""
    signer = key if key is not None else private_key(algorithm, kid or "k")
    headers = {**({"kid": kid} if kid else {}), **(header or {})}
    return jwt.encode(claims(**changed), signer, algorithm, headers)


def handmade(header: Any, payload: Any, signature: bytes = b"x") -> str:
    """A token of any parts, as JSON or as raw bytes."""
    parts = [p if isinstance(p, bytes) else json.dumps(p).encode() for p in (header, payload)]
    return ".".join(urlsafe_b64encode(part).rstrip(b"=").decode() for part in (*parts, signature))


def rules(**changed: Any) -> TokenRules:
    """Rules that accept what ``token`` makes."""
    given: dict[str, Any] = {
        "name": "staff",
        "issuer": ISSUER,
        "audiences": frozenset({AUDIENCE}),
        "algorithms": frozenset({"ES256"}),
        "grants": Grants("standard"),
    }
    return TokenRules(**{**given, **changed})


@dataclass(slots=True)
class KeyServer:
    """Serves a document over HTTP on loopback, or fails as told.

    ``answer``: the bytes to send, all of them; ``None`` hangs. ``asked`` counts requests.
    """

    body: bytes = b""
    status: str = "200 OK"
    headers: tuple[str, ...] = ()
    hang: bool = False
    asked: int = 0
    url: str = ""
    reached: asyncio.Event = field(default_factory=asyncio.Event)
    let_go: asyncio.Event = field(default_factory=asyncio.Event)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer one request."""
        try:
            await reader.readuntil(b"\r\n\r\n")
            self.asked += 1
            self.reached.set()
            if self.hang:
                await self.let_go.wait()
            lines = (f"HTTP/1.1 {self.status}", *self.headers, f"content-length: {len(self.body)}")
            head = "\r\n".join((*lines, "connection: close", "", ""))
            writer.write(head.encode() + self.body)
            await writer.drain()
        except (OSError, asyncio.IncompleteReadError):
            return
        finally:
            writer.close()


@asynccontextmanager
async def key_server(body: bytes) -> AsyncIterator[KeyServer]:
    """A server of this document; closed at the end."""
    served = KeyServer(body)
    server = await asyncio.start_server(served.serve, "127.0.0.1", 0)
    served.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/certs"
    try:
        yield served
    finally:
        served.let_go.set()
        server.close()
        await server.wait_closed()


class Clock:
    """A clock that is set by hand."""

    def __init__(self, at_s: float) -> None:
        self.at_s = at_s

    def __call__(self) -> float:
        return self.at_s

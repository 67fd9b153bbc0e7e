"""Where an engine is reached and how it is verified: decides which certificates are trusted.

An engine that speaks TLS is always verified, by name too. Where a pool's engines are the addresses
of one service name, the certificate must be that name's, whichever address answered.
"""

import ssl
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar
from urllib.parse import urlsplit

from gateway import schema
from gateway.origin import UNIX

__all__ = ["Endpoint", "EngineTlsError", "engine_context"]

_T = TypeVar("_T")


class EngineTlsError(Exception):
    """A file of an engine's TLS section can't be used: the section's key, and why."""

    def __init__(self, key: str, reason: str) -> None:
        super().__init__(f"{key}: {reason}")
        self.key = key
        self.reason = reason


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One engine's address: ``http://host:port``, ``https://host:port`` or ``unix:/path``.

    ``service`` is the host name that requests name and certificates must have, where the address
    was looked up; ``tls`` is the context of https addresses.
    """

    url: str
    tls: ssl.SSLContext | None = None
    service: str | None = None

    @property
    def unix_path(self) -> str | None:
        """The path of a unix socket."""
        return self.url.removeprefix(UNIX) if self.url.startswith(UNIX) else None

    @property
    def base_url(self) -> str:
        """The address as an HTTP client writes it."""
        return "http://engine" if self.unix_path else self.url

    @property
    def host_header(self) -> str | None:
        """What requests name instead of the address."""
        if self.service is None:
            return None
        port = urlsplit(self.url).port
        return self.service if port is None else f"{self.service}:{port}"


def engine_context(tls: schema.EngineTls, file: Callable[[str], Path]) -> ssl.SSLContext:
    """The context that verifies engines; ``file`` finds what the configuration names.

    Raises:
        EngineTlsError: a file can't be read, or holds something else.
    """
    if tls.ca_file is None:
        context = ssl.create_default_context()
    else:
        context = _loaded("ca_file", file(tls.ca_file), _trusting)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    cert, key = tls.client_cert_file, tls.client_key_file
    if cert is not None and key is not None:
        key_path = file(key)
        _loaded("client_key_file", key_path, Path.read_bytes)
        _loaded(
            "client_cert_file", file(cert), lambda path: context.load_cert_chain(path, key_path, "")
        )
    return context


def _trusting(path: Path) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=path)


def _loaded(key: str, path: Path, load: Callable[[Path], _T]) -> _T:
    try:
        return load(path)
    except ssl.SSLError as error:
        raise EngineTlsError(key, f"{path} is not usable: {error.reason or error}") from error
    except OSError as error:
        raise EngineTlsError(key, f"{path} can't be read: {error.strerror}") from error

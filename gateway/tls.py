"""Makes the TLS side of a listener, and lets its certificates be replaced while it serves.

TLS 1.2 is the least that is spoken. With a client CA callers must show a certificate of it.
"""

import ssl
from pathlib import Path

from gateway import schema
from gateway.config import ConfigError, Settings
from gateway.files import read_bytes

__all__ = ["Certificates", "certificates"]


class Certificates:
    """What a listener shows: the context of each new connection is the one last put in force."""

    def __init__(self, context: ssl.SSLContext) -> None:
        self.context = context
        self._current = context
        context.sni_callback = self._choose

    def use(self, fresh: "Certificates") -> None:
        """Show what ``fresh`` holds from the next connection on; open ones stay."""
        self._current = fresh.context

    def _choose(self, connection: ssl.SSLObject, _name: str | None, _: ssl.SSLContext) -> None:
        connection.context = self._current


def certificates(settings: Settings) -> dict[str, Certificates]:
    """The certificates of the listeners that have some: ``server`` and ``admin``.

    Raises:
        ConfigError: naming the key of a file that can't be used.
    """
    sections = {"server": settings.document.server.tls, "admin": settings.document.admin.tls}
    return {
        name: Certificates(_context(settings, f"{name}.tls", tls))
        for name, tls in sections.items()
        if tls is not None
    }


def _context(settings: Settings, at: str, tls: schema.Tls) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    # A resumed session would go on with what the certificates in force no longer allow.
    context.options |= ssl.OP_NO_TICKET
    context.num_tickets = 0
    cert, key = settings.file(tls.cert_file), settings.file(tls.key_file)
    for name, path in (("cert_file", cert), ("key_file", key)):
        read_bytes(path, settings.path, f"{at}.{name}")
    try:
        context.load_cert_chain(cert, key, _no_password)
    except (ssl.SSLError, _EncryptedKeyError) as error:
        reason = f"{cert} and {key} are no certificate and its key: {_words(error)}"
        raise ConfigError(settings.path, f"{at}.cert_file", reason) from error
    if tls.client_ca_file is not None:
        _trust(context, settings, f"{at}.client_ca_file", settings.file(tls.client_ca_file))
    return context


def _trust(context: ssl.SSLContext, settings: Settings, key: str, path: Path) -> None:
    read_bytes(path, settings.path, key)
    try:
        context.load_verify_locations(path)
    except ssl.SSLError as error:
        reason = f"{path} holds no certificates: {_words(error)}"
        raise ConfigError(settings.path, key, reason) from error
    context.verify_mode = ssl.CERT_REQUIRED


class _EncryptedKeyError(Exception):
    """A key that needs a password: nobody is there to type it."""


def _no_password() -> str:
    raise _EncryptedKeyError("the key is encrypted")


def _words(error: Exception) -> str:
    reason = getattr(error, "reason", None)
    return str(reason or error).lower().replace("_", " ")

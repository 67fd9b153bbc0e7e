"""Decides what an address means: host and port, TLS or not, or a unix socket.

Pure: no I/O, no clock.
"""

from dataclasses import dataclass
from ipaddress import ip_address
from urllib.parse import urlsplit

__all__ = ["UNIX", "Origin", "is_loopback"]

UNIX = "unix:"


@dataclass(frozen=True, slots=True)
class Origin:
    """Where an engine listens: host name or address, port, and whether it speaks TLS.

    With ``path`` it is a unix socket, and host and port are only what requests name.
    """

    host: str
    port: int
    tls: bool = False
    path: str | None = None

    @classmethod
    def parse(cls, url: str) -> "Origin":
        """The origin of ``http://host:port``, ``http://[v6]:port`` or https, or ``unix:/path``.

        Raises:
            ValueError: it is none of these.
        """
        if url.startswith(f"{UNIX}/"):
            return cls("engine", 80, path=url.removeprefix(UNIX))
        parts = urlsplit(url)
        if parts.scheme not in {"http", "https"} or not parts.hostname:
            raise ValueError(f"engine address {url!r}: must be http://host:port")
        if parts.path.strip("/") or parts.query or parts.fragment or parts.username is not None:
            raise ValueError(f"engine address {url!r}: must have no path, query or user")
        tls = parts.scheme == "https"
        return cls(parts.hostname, parts.port or (443 if tls else 80), tls)

    @property
    def authority(self) -> bytes:
        """The value of the Host header."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}".encode("ascii")


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach ``host``, a name or an IP address."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"

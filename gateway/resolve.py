"""Finds the engines behind a service name: decides which address takes which of the pool's names.

A pool's engines are named ``POOL#0``, ``POOL#1``, …: few names, so that metrics stay bounded
however many addresses come and go. An address keeps its name while it is there; a new one takes
the lowest name that nobody has and whose last work has ended.
"""

import asyncio
import socket
from collections.abc import Container, Iterable, Mapping
from urllib.parse import urlsplit

__all__ = ["addresses", "assigned", "lookup"]


def addresses(origin: str, found: Iterable[str]) -> tuple[str, ...]:
    """The addresses of ``origin`` (``http://name:port``) as origins of their own, sorted."""
    parts = urlsplit(origin)
    hosts = (f"[{host}]" if ":" in host else host for host in sorted(set(found)))
    return tuple(f"{parts.scheme}://{host}:{parts.port}" for host in hosts)


def assigned(
    pool: str, now: Mapping[str, str], found: Iterable[str], busy: Container[str], most: int
) -> dict[str, str]:
    """Address by name, after a lookup.

    Args:
        pool: its name, the beginning of its engines' names.
        now: address by name up to here.
        found: the addresses there are.
        busy: names whose last requests still run.
        most: names there may be.
    """
    wanted = dict.fromkeys(found)
    kept = {name: address for name, address in now.items() if address in wanted}
    new = [address for address in wanted if address not in kept.values()]
    names = (f"{pool}#{number}" for number in range(most))
    free = (name for name in names if name not in kept and name not in busy)
    return dict(sorted({**kept, **dict(zip(free, new, strict=False))}.items(), key=_number))


def _number(named: tuple[str, str]) -> int:
    return int(named[0].rpartition("#")[2])


async def lookup(origin: str) -> tuple[str, ...]:
    """The origins behind a service name now, IPv4 and IPv6; none of them is no answer.

    Raises:
        OSError: the name could not be looked up.
    """
    parts = urlsplit(origin)
    found = await asyncio.get_running_loop().getaddrinfo(
        parts.hostname, parts.port, type=socket.SOCK_STREAM
    )
    # A link-local address carries its interface: (host, port, flow, scope).
    hosts = [f"{a[0]}%{a[3]}" if len(a) > 3 and a[3] else str(a[0]) for *_, a in found]
    if not hosts:
        raise OSError(f"{parts.hostname} has no address")
    return addresses(origin, hosts)

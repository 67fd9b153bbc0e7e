"""Decides which sessions of the console are open, and who may try again to open one.

A session belongs to one token of the configuration and holds its digest, so that it ends with the
token. Kept are digests of the sessions' secrets, never the secrets. Everything is bounded:
sessions by token, tries by address and in all. Pure: no I/O, no clock.
"""

from collections import OrderedDict, deque
from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import sha256

__all__ = ["IDLE_S", "LIFETIME_S", "Attempts", "Session", "Sessions"]

# A working day; an open page asks every second, so idle means that the page was closed.
LIFETIME_S = 8 * 3600.0
IDLE_S = 15 * 60.0
MAX_SESSIONS = 16

WINDOW_S = 60.0
MAX_REFUSED = 5
# So many that no few addresses reach it: who tries from anywhere must not lock everybody out.
MAX_REFUSED_IN_ALL = 10_000
MAX_ADDRESSES = 1024


@dataclass(frozen=True, slots=True)
class Session:
    """Somebody who logged in: the token's name and digest, and what changes must carry."""

    name: str
    token_sha256: str
    csrf: str
    opened_s: float


class Sessions:
    """The open sessions, by the digest of their secret."""

    def __init__(self) -> None:
        self._open: dict[str, Session] = {}
        self._seen_s: dict[str, float] = {}

    def __len__(self) -> int:
        return len(self._open)

    def open(self, secret: str, session: Session) -> None:
        """Take a session; the oldest of the same token makes room for it."""
        self._tidy(session.opened_s)
        same = [k for k, s in self._open.items() if s.token_sha256 == session.token_sha256]
        for key in same[: max(0, len(same) + 1 - MAX_SESSIONS)]:
            self._end(key)
        key = _digest(secret)
        self._open[key], self._seen_s[key] = session, session.opened_s

    def find(self, secret: str, now: float) -> Session | None:
        """The session of this secret, unless it ended by age or idleness; it counts as used."""
        key = _digest(secret)
        found = self._open.get(key)
        if found is None:
            return None
        if self._is_over(key, now):
            self._end(key)
            return None
        self._seen_s[key] = now
        return found

    def close(self, secret: str) -> None:
        """End the session of this secret, if there is one."""
        self._end(_digest(secret))

    def _tidy(self, now: float) -> None:
        for key in [key for key in self._open if self._is_over(key, now)]:
            self._end(key)

    def _is_over(self, key: str, now: float) -> bool:
        return now - self._open[key].opened_s > LIFETIME_S or now - self._seen_s[key] > IDLE_S

    def _end(self, key: str) -> None:
        self._open.pop(key, None)
        self._seen_s.pop(key, None)


class Attempts:
    """Refused logins of the last minute, by address and in all."""

    def __init__(self) -> None:
        self._by_address: OrderedDict[str, deque[float]] = OrderedDict()
        self._all: deque[float] = deque(maxlen=MAX_REFUSED_IN_ALL)

    def wait_s(self, address: str, now: float) -> float:
        """Seconds until this address may try again; 0.0 if it may now."""
        return max(self._waits(address, now), default=0.0)

    def refused(self, address: str, now: float) -> None:
        """Count a login that was refused."""
        tries = self._by_address.setdefault(address, deque(maxlen=MAX_REFUSED))
        self._by_address.move_to_end(address)
        if len(self._by_address) > MAX_ADDRESSES:
            self._by_address.popitem(last=False)
        tries.append(now)
        self._all.append(now)

    def _waits(self, address: str, now: float) -> Iterator[float]:
        for tries in (self._by_address.get(address), self._all):
            if tries is not None and len(tries) == tries.maxlen:
                yield max(0.0, tries[0] + WINDOW_S - now)


def _digest(secret: str) -> str:
    return sha256(secret.encode()).hexdigest()

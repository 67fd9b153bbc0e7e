"""Decides who calls, by key or by token, and keeps what that needs: keys, issuers, a memory.

A header whose key was right is remembered by its BLAKE2 digest until the keys change, which is also
how one is revoked, or the memory is full; nobody can choose a digest, so the time of a look-up
tells nothing. A token that was verified is remembered by its SHA-256 for a minute at most, so that
the next requests with it cost a look-up; revocation is asked for every time. The memory is emptied
when keys or issuers change; with another key set a token's entry no longer holds. Where a newer key
set could decide, ``authenticate`` raises ``NeedsKeySet``, and ``principal`` waits for that set and
asks once more.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from hashlib import blake2b, sha256

from gateway.auth import Keyring, by_key, credential, presented
from gateway.domain import Outcome, Principal, Refused
from gateway.issuers import Keeper, KeeperView, OnEvent
from gateway.keysets import KeySet
from gateway.sent import Sent
from gateway.tokens import Issuer, NeedsKeySet, TokenRules, Verified, read_token, verify

__all__ = ["Identity", "NeedsKeySet"]


MAX_REMEMBERED = 4096
REMEMBERED_S = 60.0
TICK_S = 1.0


@dataclass(frozen=True, slots=True)
class _Seen:
    """A verified token: good from ``since_s`` until ``until_s`` while ``key_set`` is in force."""

    verified: Verified
    keeper: Keeper
    key_set: KeySet | None
    since_s: float
    until_s: float

    def holds(self, now_s: float) -> bool:
        """Whether the token need not be verified again, as it must if the clock was set back."""
        return self.since_s <= now_s < self.until_s and self.key_set is self.keeper.key_set


class Identity:
    """All accepted callers.

    Args:
        keyring: the API keys and the revoked tokens.
        issuers: whose tokens are accepted.
        clock: monotonic seconds.
        wall: seconds since 1970, which tokens are dated in.
        on_event: told of changed, failed and outdated key sets.
    """

    def __init__(
        self,
        keyring: Keyring,
        issuers: Iterable[Issuer],
        clock: Callable[[], float],
        wall: Callable[[], float],
        on_event: OnEvent,
    ) -> None:
        self.keyring = keyring
        self._clock = clock
        self._wall = wall
        self._on_event = on_event
        self._known: dict[bytes, Principal] = {}
        self._seen: OrderedDict[bytes, _Seen] = OrderedDict()
        self._rules: dict[str, TokenRules] = {}
        self._keepers: dict[str, Keeper] = {}
        self._leaving: list[Keeper] = []
        self.replace(keyring, issuers)

    def replace(self, keyring: Keyring, issuers: Iterable[Issuer]) -> None:
        """Put other keys and other issuers in force, in one step.

        The key set of an issuer whose URL stays is kept; a file's is the one it holds now.
        """
        self._seen.clear()
        self._known.clear()
        self.keyring = keyring
        before = self._keepers
        self._rules, self._keepers = {}, {}
        for issuer in issuers:
            self._rules[issuer.rules.issuer] = issuer.rules
            self._keepers[issuer.rules.name] = self._keeper(
                issuer, before.pop(issuer.rules.name, None)
            )
        self._leaving += before.values()

    def _keeper(self, issuer: Issuer, old: Keeper | None) -> Keeper:
        if old is not None:
            if old.source == issuer.source and issuer.key_set in (None, old.key_set):
                return old
            self._leaving.append(old)
        name = issuer.rules.name
        return Keeper(name, issuer.source, issuer.key_set, self._clock, self._on_event)

    def authenticate(self, sent: Sent) -> Principal:
        """The principal of a request with these headers.

        Raises:
            Refused: ``unauthenticated`` or ``forbidden``; the message repeats nothing of the
                credential.
            NeedsKeySet: the token's issuer may have a key set that decides; see ``principal``.
        """
        digest = blake2b(b"".join(presented(sent))).digest()
        known = self._known.get(digest)
        if known is not None:
            return known
        text, may_be_token = credential(sent)
        if may_be_token and self._rules:
            return self._by_token(text)
        principal = by_key(text, self.keyring)
        if len(self._known) >= MAX_REMEMBERED:  # a header can say one key in many ways
            self._known.clear()
        self._known[digest] = principal
        return principal

    async def principal(self, sent: Sent) -> Principal:
        """As ``authenticate``; waits two seconds at most for a key set that is needed.

        Raises:
            Refused: also ``identity_unavailable``: the issuer's keys can't be had now.
        """
        try:
            return self.authenticate(sent)
        except NeedsKeySet as needed:
            await self._keepers[needed.issuer].asked()
        try:
            return self.authenticate(sent)
        except NeedsKeySet as still:
            keeper = self._keepers.get(still.issuer)
            if keeper is None or keeper.key_set is None or keeper.reason or keeper.asking:
                raise Refused(
                    Outcome.IDENTITY_UNAVAILABLE,
                    "The token can't be checked now: its issuer's keys are not available.",
                ) from still
            raise Refused(Outcome.UNAUTHENTICATED, "The token is not valid.") from still

    def _by_token(self, text: str) -> Principal:
        now_s = self._wall()
        digest = sha256(text.encode()).digest()
        seen = self._seen.get(digest)
        if seen is not None and seen.holds(now_s):
            self._seen.move_to_end(digest)
        else:
            seen = self._verified(text, digest, now_s)
        if self.keyring.revoked and not self.keyring.revoked.isdisjoint(seen.verified.names):
            raise Refused(Outcome.UNAUTHENTICATED, "The token was revoked.")
        return seen.verified.principal

    def _verified(self, text: str, digest: bytes, now_s: float) -> _Seen:
        self._seen.pop(digest, None)
        token = read_token(text)
        named = token.claims.get("iss")
        rules = self._rules.get(named) if isinstance(named, str) else None
        if rules is None:
            raise Refused(Outcome.UNAUTHENTICATED, "The token is not valid.")
        keeper = self._keepers[rules.name]
        verified = verify(token, rules, keeper.key_set, now_s)
        until_s = min(verified.until_s, now_s + REMEMBERED_S)
        seen = _Seen(verified, keeper, keeper.key_set, now_s, until_s)
        self._seen[digest] = seen
        if len(self._seen) > MAX_REMEMBERED:
            self._seen.popitem(last=False)
        return seen

    def views(self) -> list[KeeperView]:
        """The issuers' key sets now, for operators."""
        return [keeper.view() for keeper in self._keepers.values()]

    async def run(self) -> None:
        """Keep the key sets fresh until cancelled."""
        try:
            while True:
                for keeper in self._keepers.values():
                    keeper.tick()
                await self._dismiss()
                await asyncio.sleep(TICK_S)
        finally:
            self._leaving += self._keepers.values()
            await self._dismiss()

    async def _dismiss(self) -> None:
        while self._leaving:
            await self._leaving.pop().close()

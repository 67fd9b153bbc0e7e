import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway import identity as identity_module
from gateway import issuers
from gateway.auth import KeyEntry, Keyring, new_key
from gateway.domain import Outcome, Refused
from gateway.identity import Identity, NeedsKeySet
from gateway.keysets import KeySource, parse_jwks, shared_secret
from gateway.sent import by_name
from gateway.tokens import Issuer
from tests.gateway.mint import (
    NOW,
    SECRET,
    Clock,
    KeyServer,
    jwk,
    jwks,
    key_server,
    private_key,
    rules,
    token,
)

KEY, DIGEST = new_key("alice", bytes(range(16)))
RING = Keyring({"alice": KeyEntry(DIGEST, "interactive")})
ONE, TWO = jwks(jwk("ES256", "one")), jwks(jwk("ES256", "two"))
FIXED = Issuer(rules(), KeySource(), parse_jwks(ONE))
Headers = list[tuple[bytes, bytes]]


def bearer(text: str) -> Headers:
    return [(b"authorization", b"Bearer " + text.encode())]


def good(kid: str = "one", **changed: Any) -> Headers:
    return bearer(token("ES256", kid, **changed))


class World:
    """An identity with clocks set by hand, its events, and how often a token was verified."""

    def __init__(self, *issuers: Issuer, keyring: Keyring = RING) -> None:
        self.clock, self.wall = Clock(1000.0), Clock(NOW)
        self.events: list[str] = []
        self.told = asyncio.Event()
        self.identity = Identity(keyring, issuers, self.clock, self.wall, self._event)

    def _event(self, event: str, **_: object) -> None:
        self.events.append(event)
        self.told.set()

    def outcome(self, headers: Headers) -> Outcome | None:
        """How ``authenticate`` ends; ``None``: with a principal."""
        return ending(lambda: self.identity.authenticate(by_name(headers)))

    async def waited(self, headers: Headers) -> Outcome | None:
        """How ``principal`` ends."""
        try:
            await self.identity.principal(by_name(headers))
        except Refused as refused:
            return refused.outcome
        return None


def ending(call: Callable[[], object]) -> Outcome | None:
    try:
        call()
    except Refused as refused:
        return refused.outcome
    return None


@pytest.fixture
def verified(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The key ids of tokens that were verified, one for each time."""
    seen: list[str] = []
    real = identity_module.verify

    def counted(token_: Any, *rest: Any) -> Any:
        seen.append(token_.kid)
        return real(token_, *rest)

    monkeypatch.setattr(identity_module, "verify", counted)
    return seen


def test_keys_and_tokens_are_accepted_side_by_side() -> None:
    world = World(FIXED)
    assert world.identity.authenticate(by_name(bearer(KEY))).key_id == "alice"
    assert world.identity.authenticate(by_name([(b"x-api-key", KEY.encode())])).key_id == "alice"
    assert world.identity.authenticate(by_name(good())).key_id == "staff:alice"


def test_a_key_that_was_right_is_looked_for_again_only_when_the_keys_change(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    checked: list[str] = []
    real = identity_module.by_key

    def counted(key: str, keyring: Keyring) -> Any:
        checked.append(key)
        return real(key, keyring)

    monkeypatch.setattr(identity_module, "by_key", counted)
    world = World()
    assert [world.outcome(bearer(KEY)) for _ in range(3)] == [None] * 3
    assert checked == [KEY]
    world.identity.replace(Keyring({"alice": KeyEntry(DIGEST, "batch")}), [])
    assert world.identity.authenticate(by_name(bearer(KEY))).service_class == "batch"
    world.identity.replace(Keyring({}), [])
    assert world.outcome(bearer(KEY)) is Outcome.UNAUTHENTICATED


def test_no_wrong_key_is_remembered() -> None:
    world = World()
    for number in range(100):
        assert world.outcome(bearer(f"{KEY[:-3]}{number:03}")) is Outcome.UNAUTHENTICATED
        assert world.outcome([(b"x-api-key", b"%d" % number)]) is Outcome.UNAUTHENTICATED
    assert not world.identity._known


def test_a_key_that_was_right_opens_only_in_the_header_and_the_form_it_came_in() -> None:
    world = World()
    assert world.outcome([(b"x-api-key", KEY.encode())]) is None
    assert world.outcome([(b"authorization", KEY.encode())]) is Outcome.UNAUTHENTICATED
    assert world.outcome(bearer(KEY)) is None
    assert world.outcome([(b"x-api-key", b"Bearer " + KEY.encode())]) is Outcome.UNAUTHENTICATED
    assert world.outcome([*bearer(KEY), *bearer(KEY)]) is Outcome.UNAUTHENTICATED
    both = [*bearer(KEY), (b"x-api-key", KEY.encode())]
    assert world.outcome(both) is Outcome.UNAUTHENTICATED


def test_the_memory_of_keys_is_bounded_however_they_are_written(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(identity_module, "MAX_REMEMBERED", 8)
    world = World()
    for spaces in range(1, 30):
        assert world.outcome(bearer(" " * spaces + KEY)) is None
        assert len(world.identity._known) <= 8


def test_a_key_is_checked_without_a_look_at_the_wall_clock() -> None:
    def never() -> float:
        raise AssertionError

    identity = Identity(RING, [FIXED], Clock(0.0), never, lambda _, **__: None)
    assert identity.authenticate(by_name(bearer(KEY))).key_id == "alice"


@pytest.mark.parametrize(
    "headers",
    [
        [(b"x-api-key", token("ES256", "one").encode())],
        [*good(), *bearer(KEY)],
        [*good(), (b"x-api-key", KEY.encode())],
        good(iss="https://other.example/"),
        good(iss=None),
        good(key=private_key("ES256", "another")),
        bearer("sg_a.b.c"),
        bearer(KEY + ".x.y"),
        bearer("..."),
        bearer(".."),
        bearer("a.b.c.d.e"),
        [(b"authorization", b"Basic " + token("ES256", "one").encode())],
        bearer("é.b.c"),
        bearer("a.b." + "c" * 9000),
    ],
)
def test_anything_else_is_unauthenticated(headers: Headers) -> None:
    assert World(FIXED).outcome(headers) is Outcome.UNAUTHENTICATED


def test_without_issuers_a_token_is_no_key() -> None:
    with pytest.raises(Refused, match="API key is not valid"):
        World().identity.authenticate(by_name(good()))


def test_without_keys_tokens_are_accepted() -> None:
    world = World(FIXED, keyring=Keyring({}))
    assert world.outcome(good()) is None
    assert world.outcome(bearer(KEY)) is Outcome.UNAUTHENTICATED


def test_a_token_is_verified_once_a_minute(verified: list[str]) -> None:
    world, headers = World(FIXED), good()
    for seconds, times in ((0, 1), (59, 1), (60, 2), (119, 2), (120, 3)):
        world.wall.at_s = NOW + seconds
        assert world.outcome(headers) is None
        assert len(verified) == times


def test_a_remembered_token_ends_when_it_expires(verified: list[str]) -> None:
    world, headers = World(FIXED), good(exp=NOW + 5)
    world.wall.at_s = NOW + 34.9
    assert world.outcome(headers) is None
    world.wall.at_s = NOW + 35
    assert world.outcome(headers) is Outcome.UNAUTHENTICATED
    assert len(verified) == 2


def test_a_clock_that_is_set_back_makes_a_token_be_verified_again(verified: list[str]) -> None:
    world, headers = World(FIXED), good()
    assert world.outcome(headers) is None
    world.wall.at_s = NOW - 3600
    assert world.outcome(headers) is Outcome.UNAUTHENTICATED
    assert len(verified) == 2


def test_a_refused_token_is_not_remembered_as_good(verified: list[str]) -> None:
    world, forged = World(FIXED), good(key=private_key("ES256", "another"))
    for _ in range(3):
        assert world.outcome(forged) is Outcome.UNAUTHENTICATED
    assert len(verified) == 3


def test_the_memory_is_bounded_and_forgets_what_was_used_least_recently(
    monkeypatch: pytest.MonkeyPatch, verified: list[str]
) -> None:
    monkeypatch.setattr(identity_module, "MAX_REMEMBERED", 3)
    world = World(FIXED)
    tokens = [good(jti=str(number)) for number in range(4)]
    for at in (0, 1, 2, 0, 3):
        world.outcome(tokens[at])
    assert len(world.identity._seen) == 3
    assert len(verified) == 4
    world.outcome(tokens[0])
    assert len(verified) == 4
    world.outcome(tokens[1])
    assert len(verified) == 5


@pytest.mark.parametrize("name", ["staff:alice", "jti:t1"])
def test_a_revoked_token_is_refused_although_it_is_remembered(name: str) -> None:
    world, headers = World(FIXED), good(jti="t1")
    assert world.outcome(headers) is None
    world.identity.replace(Keyring(RING.entries, frozenset({name})), [FIXED])
    for _ in range(2):
        with pytest.raises(Refused, match="revoked"):
            world.identity.authenticate(by_name(headers))
    assert world.outcome(good(sub="bob", jti="t2")) is None
    world.identity.replace(RING, [FIXED])
    assert world.outcome(headers) is None


def test_a_principal_is_revoked_by_the_id_that_stands_in_the_log() -> None:
    world, headers = World(FIXED), good(sub="someone with spaces")
    logged = world.identity.authenticate(by_name(headers)).key_id
    world.identity.replace(Keyring({}, frozenset({logged})), [FIXED])
    assert world.outcome(headers) is Outcome.UNAUTHENTICATED


def test_other_rules_are_in_force_at_once_for_remembered_tokens() -> None:
    world, headers = World(FIXED), good()
    assert world.outcome(headers) is None
    stricter = Issuer(rules(audiences=frozenset({"other"})), FIXED.source, FIXED.key_set)
    world.identity.replace(RING, [stricter])
    assert world.outcome(headers) is Outcome.UNAUTHENTICATED
    world.identity.replace(RING, [])
    assert world.outcome(headers) is Outcome.UNAUTHENTICATED


def test_another_key_file_is_in_force_at_once() -> None:
    source = KeySource(path="/keys")
    world = World(Issuer(rules(), source, parse_jwks(ONE)))
    assert world.outcome(good()) is None
    world.identity.replace(RING, [Issuer(rules(), source, parse_jwks(TWO))])
    with pytest.raises(NeedsKeySet):
        world.identity.authenticate(by_name(good()))
    assert world.outcome(good("two")) is None


HEADERS = st.lists(
    st.tuples(
        st.sampled_from([b"authorization", b"Authorization", b"x-api-key", b"cookie"]),
        st.one_of(
            st.binary(max_size=60),
            st.binary(max_size=60).map(lambda raw: b"Bearer " + raw),
            st.from_regex(rb"Bearer [A-Za-z0-9_-]{0,30}(\.[A-Za-z0-9_-]{0,30}){2}", fullmatch=True),
        ),
    ),
    max_size=3,
)


@given(HEADERS)
def test_any_headers_without_a_good_credential_are_refused(headers: Headers) -> None:
    world = World(FIXED, Issuer(rules(name="b", issuer=""), KeySource(), parse_jwks(ONE)))
    assert world.outcome(headers) is Outcome.UNAUTHENTICATED


# -- with a server of keys ---------------------------------------------------------------------


@asynccontextmanager
async def behind(document: bytes = ONE) -> AsyncIterator[tuple[KeyServer, World]]:
    async with key_server(document) as server:
        world = World(Issuer(rules(), KeySource(url=server.url)))
        yield server, world
        for keeper in world.identity._keepers.values():
            await keeper.close()


async def test_the_first_token_waits_for_the_first_set() -> None:
    async with behind() as (server, world):
        with pytest.raises(NeedsKeySet):
            world.identity.authenticate(by_name(good()))
        many = await asyncio.gather(*(world.waited(good(jti=str(n))) for n in range(20)))
        assert many == [None] * 20
        assert server.asked == 1


async def test_a_token_of_an_issuer_that_was_never_reached_is_told_to_come_again() -> None:
    async with behind() as (server, world):
        server.status = "500 Down"
        for _ in range(2):
            assert await world.waited(good()) is Outcome.IDENTITY_UNAVAILABLE
        assert server.asked == 1
        server.status = "200 OK"
        world.clock.at_s += 10
        assert await world.waited(good()) is None


async def test_a_new_key_is_fetched_for_and_a_withdrawn_one_is_refused_at_once() -> None:
    async with behind() as (server, world):
        assert await world.waited(good("one")) is None
        server.body = TWO
        world.clock.at_s += 10
        assert await world.waited(good("two")) is None
        assert await world.waited(good("one")) is Outcome.UNAUTHENTICATED
        assert server.asked == 2


async def test_a_key_id_nobody_knows_is_refused_and_asks_seldom() -> None:
    async with behind() as (server, world):
        assert await world.waited(good()) is None
        for number in range(20):
            world.clock.at_s += 1
            outcome = await world.waited(good(f"made up {number}", key=private_key("ES256")))
            assert outcome is Outcome.UNAUTHENTICATED
        assert server.asked == 3


async def test_in_an_outage_known_keys_serve_and_unknown_ones_may_come_again() -> None:
    async with behind() as (server, world):
        assert await world.waited(good()) is None
        server.status = "500 Down"
        world.clock.at_s += 10
        assert await world.waited(good("two")) is Outcome.IDENTITY_UNAVAILABLE
        assert await world.waited(good(jti="fresh")) is None


async def test_while_the_issuer_is_slow_to_answer_a_new_key_may_come_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with behind() as (server, world):
        assert await world.waited(good()) is None
        monkeypatch.setattr(issuers, "WAIT_S", 0.02)
        server.body, server.hang = TWO, True
        world.clock.at_s += 10
        assert await world.waited(good("two")) is Outcome.IDENTITY_UNAVAILABLE
        world.told.clear()
        server.let_go.set()
        await world.told.wait()
        assert await world.waited(good("two")) is None


async def test_a_stale_set_vouches_for_nobody_remembered_or_not() -> None:
    async with behind() as (server, world):
        headers = good()
        assert await world.waited(headers) is None
        server.status = "500 Down"
        world.clock.at_s += 3600
        keeper = world.identity._keepers["staff"]
        keeper.tick()
        assert await world.waited(headers) is Outcome.IDENTITY_UNAVAILABLE
        assert world.events == ["jwks_refreshed", "jwks_stale", "jwks_failed"]


async def test_a_reload_keeps_the_set_of_an_issuer_whose_url_stays() -> None:
    async with behind() as (server, world):
        assert await world.waited(good()) is None
        source = KeySource(url=server.url)
        world.identity.replace(RING, [Issuer(rules(leeway_s=1.0), source)])
        assert world.outcome(good()) is None
        assert server.asked == 1
        world.identity.replace(RING, [Issuer(rules(), KeySource(url=server.url + "/other"))])
        assert await world.waited(good()) is None
        assert server.asked == 2


async def test_an_issuer_that_a_reload_removed_while_its_keys_were_awaited_vouches_for_nobody() -> (
    None
):
    async with behind() as (server, world):
        server.hang = True
        waiting = asyncio.ensure_future(world.waited(good()))
        await server.reached.wait()
        world.identity.replace(RING, [])
        server.let_go.set()
        assert await waiting is Outcome.UNAUTHENTICATED


async def test_while_it_runs_sets_are_fetched_and_what_was_removed_is_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(identity_module, "TICK_S", 0.005)
    async with behind() as (server, world):
        running = asyncio.ensure_future(world.identity.run())
        await world.told.wait()
        assert world.outcome(good()) is None
        (view,) = world.identity.views()
        assert (view.name, view.keys, view.age_s, view.reason) == ("staff", 1, 0.0, "")
        server.hang = True
        server.reached.clear()
        world.clock.at_s += 300
        await server.reached.wait()
        gone = world.identity._keepers["staff"]
        assert gone._fetching is not None
        world.identity.replace(RING, [])
        await asyncio.wait([gone._fetching])
        assert world.events == ["jwks_refreshed"]
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running


async def test_the_end_of_running_ends_what_is_on_its_way() -> None:
    async with behind() as (server, world):
        server.hang = True
        running = asyncio.ensure_future(world.identity.run())
        await server.reached.wait()
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert world.identity._keepers["staff"]._fetching is None


def test_secrets_stand_beside_key_sets() -> None:
    allowed = frozenset({"HS256"})
    night = rules(name="night", issuer="night", algorithms=allowed)
    world = World(FIXED, Issuer(night, KeySource(), shared_secret(SECRET, allowed)))
    headers = bearer(token("HS256", key=SECRET, iss="night"))
    assert world.identity.authenticate(by_name(headers)).key_id == "night:alice"
    assert world.outcome(bearer(token("HS256", key=SECRET))) is Outcome.UNAUTHENTICATED

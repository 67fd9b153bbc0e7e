import hmac
from hashlib import sha256
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway import auth
from gateway.auth import KeyEntry, Keyring, by_key, credential, new_key
from gateway.domain import Outcome, Principal, Refused, Surface
from gateway.sent import by_name

KEY, DIGEST = new_key("alice", bytes(range(16)))
ENTRY = KeyEntry(DIGEST, "interactive", frozenset({"m"}), frozenset({Surface.CHAT}), 4)
RING = Keyring({"alice": ENTRY})
ALICE = Principal("alice", "interactive", frozenset({"m"}), frozenset({Surface.CHAT}), 4)


def authenticate(headers: list[tuple[bytes, bytes]], keyring: Keyring) -> Principal:
    return by_key(credential(by_name(headers))[0], keyring)


def bearer(key: str) -> list[tuple[bytes, bytes]]:
    return [(b"authorization", b"Bearer " + key.encode())]


@pytest.mark.parametrize(
    "headers",
    [
        bearer(KEY),
        [(b"Authorization", b"bearer " + KEY.encode())],
        [(b"AUTHORIZATION", b"  BEARER   " + KEY.encode() + b" ")],
        [(b"x-api-key", KEY.encode())],
        [(b"X-Api-Key", b" " + KEY.encode()), (b"x-other", b"1")],
    ],
)
def test_a_key_is_accepted_in_either_header(headers: list[tuple[bytes, bytes]]) -> None:
    assert authenticate(headers, RING) == ALICE


@pytest.mark.parametrize(
    "headers",
    [
        [],
        bearer(""),
        bearer(KEY[:-1]),
        bearer(KEY + "x"),
        bearer(KEY.upper()),
        bearer(KEY.replace("alice", "bob")),
        bearer("sg_alice_" + "A" * 22),
        bearer("x" * 100_000),
        [(b"authorization", b"Basic " + KEY.encode())],
        [(b"authorization", KEY.encode())],
        [(b"authorization", b"Bearer \xff\xfe")],
        [*bearer(KEY), *bearer(KEY)],
        [*bearer(KEY), (b"x-api-key", KEY.encode())],
        [*bearer(KEY), (b"X-API-Key", b"")],
    ],
)
def test_anything_else_is_refused(headers: list[tuple[bytes, bytes]]) -> None:
    with pytest.raises(Refused) as refused:
        authenticate(headers, RING)
    assert refused.value.outcome is Outcome.UNAUTHENTICATED
    assert KEY not in refused.value.message


def test_an_unknown_id_takes_the_same_work_as_a_wrong_secret(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    compared: list[tuple[int, int]] = []

    def spy(left: bytes, right: bytes) -> bool:
        compared.append((len(left), len(right)))
        return hmac.compare_digest(left, right)

    monkeypatch.setattr(auth, "hmac", SimpleNamespace(compare_digest=spy))
    for key in (KEY[:-1] + "A", KEY.replace("alice", "nobody"), "nonsense"):
        with pytest.raises(Refused):
            authenticate(bearer(key), RING)
    assert compared == [(32, 32)] * 3


def test_a_removed_key_is_revoked() -> None:
    with pytest.raises(Refused):
        authenticate(bearer(KEY), Keyring({}))


def test_a_key_that_hashes_to_a_digest_of_zeros_would_not_open_unknown_ids() -> None:
    zeros = Keyring({"zero": KeyEntry(bytes(32), "interactive")})
    with pytest.raises(Refused):
        authenticate(bearer(KEY), zeros)


@pytest.mark.parametrize("key_id", ["", "Alice", "a_b", "a" * 33, "é"])
def test_a_key_id_of_other_characters_is_refused(key_id: str) -> None:
    with pytest.raises(ValueError, match="key id"):
        new_key(key_id, bytes(16))


def test_a_key_of_fewer_than_128_random_bits_is_refused() -> None:
    with pytest.raises(ValueError, match="16 random bytes"):
        new_key("a", bytes(15))


@given(st.from_regex(r"[a-z0-9-]{1,32}", fullmatch=True), st.binary(min_size=16, max_size=32))
def test_every_new_key_opens_exactly_its_own_entry(key_id: str, secret: bytes) -> None:
    key, digest = new_key(key_id, secret)
    assert digest == sha256(key.encode()).digest()
    ring = Keyring({key_id: KeyEntry(digest, "batch")})
    assert authenticate(bearer(key), ring).key_id == key_id
    other, _ = new_key(key_id, bytes(b ^ 1 for b in secret))
    with pytest.raises(Refused):
        authenticate(bearer(other), ring)

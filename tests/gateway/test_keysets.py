import json
from contextlib import suppress
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import ec, ed448, rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from hypothesis import given
from hypothesis import strategies as st
from jwt.algorithms import ECAlgorithm, OKPAlgorithm, RSAAlgorithm

from gateway.keysets import KeySetError, parse_jwks, shared_secret
from tests.gateway.mint import ASYMMETRIC, SECRET, jwk, jwks, private_key

GOOD = jwk("ES256", "good")


def kids(document: bytes) -> list[str | None]:
    return [key.kid for key in parse_jwks(document).keys]


@pytest.mark.parametrize("algorithm", ASYMMETRIC)
def test_a_key_verifies_with_the_algorithms_of_its_type_and_no_others(algorithm: str) -> None:
    key = parse_jwks(jwks(jwk(algorithm))).keys[0]
    family = {"RS": "RSA", "PS": "RSA"}.get(algorithm[:2], algorithm)
    same = {a for a in ASYMMETRIC if {"RS": "RSA", "PS": "RSA"}.get(a[:2], a) == family}
    assert key.algorithms == same


def test_a_key_that_states_its_algorithm_has_only_that_one() -> None:
    assert parse_jwks(jwks(jwk("RS256", alg="PS384"))).keys[0].algorithms == {"PS384"}


def small_rsa(bits: int) -> dict[str, Any]:
    return RSAAlgorithm.to_jwk(rsa.generate_private_key(65537, bits).public_key(), as_dict=True)


UNFIT: dict[str, Any] = {
    "a shared secret": {"kty": "oct", "k": "AAAA" * 16},
    "for encryption": jwk("RS256", use="enc"),
    "for wrapping": jwk("RS256", key_ops=["wrapKey"]),
    "of operations that are no list": jwk("RS256", key_ops="verify"),
    "an RSA key of 1024 bits": small_rsa(1024),
    "of another curve": ECAlgorithm.to_jwk(
        ec.generate_private_key(ec.SECP256K1()).public_key(), as_dict=True
    ),
    "an Ed448 key": OKPAlgorithm.to_jwk(
        ed448.Ed448PrivateKey.generate().public_key(), as_dict=True
    ),
    "a point off the curve": {**jwk("ES256"), "y": jwk("ES256", "other")["y"]},
    "without a member": {k: v for k, v in jwk("RS256").items() if k != "e"},
    "with a member that is no text": {**jwk("RS256"), "n": 17},
    "with a member that is no base64": {**jwk("RS256"), "n": "é"},
    "an even exponent": {**jwk("RS256"), "e": "Ag"},
    "stating an algorithm of another type": jwk("RS256", alg="HS256"),
    "stating 'none'": jwk("RS256", alg="none"),
    "stating no text": jwk("RS256", alg=["RS256"]),
    "of an unknown type": {"kty": "XX", "x": "AA"},
    "of no type": {"kid": "a"},
    "of a type that is no text": {**jwk("RS256"), "kty": ["RSA"]},
    "with a key id that is no text": {**jwk("RS256"), "kid": 5},
    "no object": "RSA",
}


@pytest.mark.parametrize("unfit", UNFIT)
def test_an_unfit_key_is_passed_over(unfit: str) -> None:
    assert kids(jwks(UNFIT[unfit], GOOD)) == ["good"]
    with pytest.raises(KeySetError, match="no key that can verify"):
        parse_jwks(jwks(UNFIT[unfit]))


def test_of_a_private_key_that_slipped_in_only_the_public_part_is_read() -> None:
    private = {**RSAAlgorithm.to_jwk(private_key("RS256"), as_dict=True), "key_ops": ["verify"]}
    key = parse_jwks(jwks(private)).keys[0].key
    assert isinstance(key, rsa.RSAPublicKey)


@pytest.mark.parametrize(
    ("document", "reason"),
    [
        (b"", "not JSON"),
        (b"<html>", "not JSON"),
        (b"[]", "no list 'keys'"),
        (b'{"keys": {}}', "no list 'keys'"),
        (b'{"keys": []}', "no key that can verify"),
        (jwks(*[{}] * 257), "more than 256 keys"),
        (b'{"keys": ' + b"[" * 5000 + b"]" * 5000 + b"}", "not JSON"),
    ],
)
def test_a_document_that_is_no_key_set_is_refused(document: bytes, reason: str) -> None:
    with pytest.raises(KeySetError, match=reason):
        parse_jwks(document)


def test_a_key_is_found_by_its_id_and_not_guessed_among_several() -> None:
    found = parse_jwks(jwks(jwk("ES256", "a"), jwk("ES256", "b"), jwk("RS256", "a")))
    assert [key.kid for key in found.suited("b", "ES256")] == ["b"]
    assert len(found.suited("a", "ES256")) == 1
    assert found.suited("c", "ES256") == []
    assert found.suited(None, "ES256") == []
    assert len(found.suited(None, "RS512")) == 1
    assert (found.knows("a"), found.knows("c"), found.knows(None)) == (True, False, True)


def test_the_same_document_is_the_same_set() -> None:
    first, second = parse_jwks(jwks(GOOD)), parse_jwks(jwks(GOOD))
    assert first == second
    assert first != parse_jwks(jwks(GOOD, jwk("ES256", "b")))


@pytest.mark.parametrize(("algorithm", "least"), [("HS256", 32), ("HS384", 48), ("HS512", 64)])
def test_a_secret_is_as_long_as_its_hash(algorithm: str, least: int) -> None:
    names = frozenset({"HS256", algorithm})
    assert shared_secret(SECRET[:least], names).suited("any", algorithm)
    with pytest.raises(KeySetError, match=f"needs {least} bytes, got {least - 1}"):
        shared_secret(SECRET[: least - 1], names)


def test_a_public_key_is_refused_as_a_secret() -> None:
    public = private_key("RS256").public_key()
    for form in (
        public.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo),
        public.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo),
        json.dumps(jwk("RS256")).encode(),
    ):
        with pytest.raises(KeySetError, match="not a secret"):
            shared_secret(form, frozenset({"HS256"}))


def test_a_secret_is_not_shown() -> None:
    secret = b"correct horse battery staple, twice over"
    assert "horse" not in repr(shared_secret(secret, frozenset({"HS256"})))


MEMBERS = st.one_of(st.text(max_size=8), st.integers(), st.none(), st.lists(st.text(max_size=4)))
KEYS = st.dictionaries(
    st.sampled_from(["kty", "kid", "alg", "use", "key_ops", "n", "e", "crv", "x", "y"]),
    st.one_of(MEMBERS, st.sampled_from(["RSA", "EC", "OKP", "P-256", "Ed25519", "AQAB", "sig"])),
)


@given(st.one_of(st.binary(max_size=64), st.lists(KEYS, max_size=4).map(lambda k: jwks(*k))))
def test_any_document_is_a_set_with_keys_or_a_named_fault(document: bytes) -> None:
    with suppress(KeySetError):
        assert parse_jwks(document).keys

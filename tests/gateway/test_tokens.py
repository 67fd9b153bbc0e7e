import json
import re
from contextlib import suppress
from typing import Any

import jwt as pyjwt
import pytest
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from hypothesis import given
from hypothesis import strategies as st

from gateway.auth import new_key
from gateway.domain import Outcome, Principal, Refused, Surface
from gateway.keysets import KeySet, parse_jwks, shared_secret
from gateway.tokens import Grants, NeedsKeySet, Verified, read_token, verify
from tests.gateway.mint import (
    ASYMMETRIC,
    AUDIENCE,
    ISSUER,
    NOW,
    SECRET,
    claims,
    handmade,
    jwk,
    jwks,
    private_key,
    rules,
    token,
)

KEYS = parse_jwks(jwks(*(jwk(name, name) for name in ("RS256", "ES256", "ES384", "EdDSA"))))
ES = {"kid": "ES256"}
OTHER = private_key("ES256", "somebody else's")


def checked(text: str, now_s: float = NOW, keys: KeySet | None = KEYS, **changed: Any) -> Verified:
    return verify(read_token(text), rules(**changed), keys, now_s)


def es256(**changed: Any) -> str:
    return token("ES256", "ES256", **changed)


def refusal(text: str, now_s: float = NOW, **changed: Any) -> Refused:
    with pytest.raises(Refused) as refused:
        checked(text, now_s, **changed)
    told = [part for part in (*text.split("."), "alice", ISSUER) if len(part) > 4]
    assert not any(part in refused.value.message for part in told)
    return refused.value


@pytest.mark.parametrize("algorithm", ASYMMETRIC)
def test_a_good_token_of_each_algorithm_authenticates(algorithm: str) -> None:
    keys = parse_jwks(jwks(jwk(algorithm)))
    good = checked(token(algorithm), keys=keys, algorithms=frozenset({algorithm}))
    assert good.principal == Principal("staff:alice", "standard")
    assert good.until_s == NOW + 630


@pytest.mark.parametrize("algorithm", ["HS256", "HS384", "HS512"])
def test_a_shared_secret_verifies_whatever_key_id_is_named(algorithm: str) -> None:
    allowed = frozenset({algorithm})
    for kid in (None, "anything"):
        text = token(algorithm, kid, key=SECRET)
        assert checked(text, keys=shared_secret(SECRET, allowed), algorithms=allowed)
    with pytest.raises(Refused):
        checked(
            token(algorithm, key=SECRET[::-1]),
            keys=shared_secret(SECRET, allowed),
            algorithms=allowed,
        )


NOT_VALID = "The token is not valid."
BAD: dict[str, tuple[str, str]] = {
    "signed by another": (es256(key=OTHER), NOT_VALID),
    "of another issuer": (es256(iss=ISSUER.rstrip("/")), NOT_VALID),
    "of no issuer": (es256(iss=None), NOT_VALID),
    "with an issuer that is no text": (handmade({"alg": "ES256"}, {"iss": [ISSUER]}), NOT_VALID),
    "for another audience": (es256(aud="other"), "The token is not meant for this service."),
    "for several others": (es256(aud=["a", "b"]), "The token is not meant for this service."),
    "for an audience in a text": (es256(aud="a sluicegate"), "not meant for this service."),
    "for nobody": (es256(aud=None), "The token is not meant for this service."),
    "without an end": (es256(exp=None), "The token lacks 'exp'."),
    "that has ended": (es256(exp=NOW - 30), "The token has expired."),
    "with an end that is no number": (es256(exp="2099"), NOT_VALID),
    "with an end that is true": (es256(exp=True), NOT_VALID),
    "that begins later": (es256(nbf=NOW + 31), "The token is not valid yet."),
    "issued in the future": (es256(iat=NOW + 31), "The token is not valid yet."),
    "without a subject": (es256(sub=None), "does not say who its principal is."),
    "with an empty subject": (es256(sub=""), "does not say who its principal is."),
    "with 'crit'": (es256(header={"crit": ["b64"], "b64": True}), NOT_VALID),
    "with an empty 'crit'": (es256(header={"crit": []}), NOT_VALID),
    "of another type": (es256(header={"typ": "logout+jwt"}), NOT_VALID),
    "with a type that is no text": (handmade({"alg": "ES256", "typ": 5, **ES}, {}), NOT_VALID),
    "with a key id that is no text": (handmade({"alg": "ES256", "kid": 5}, claims()), NOT_VALID),
    "without a key id among several keys of its kind": (token("ES384", None), NOT_VALID),
    "with the algorithm 'none'": (handmade({"alg": "none", **ES}, claims(), b"x"), NOT_VALID),
    "with no algorithm": (handmade(ES, claims()), NOT_VALID),
    "with a signature of another length": (
        handmade({"alg": "ES256", **ES}, claims(), b"x" * 63),
        NOT_VALID,
    ),
    "without a signature": (es256().rpartition(".")[0] + ".", NOT_VALID),
    "of two parts": (es256().rpartition(".")[0], NOT_VALID),
    "of four parts": (es256() + ".x", NOT_VALID),
    "with padding": (es256() + "=", NOT_VALID),
    "with space around a part": (es256().replace(".", ". ", 1), NOT_VALID),
    "with a part of one character": ("a" + es256()[es256().index(".") :], NOT_VALID),
    "with a header that is no object": (handmade(["alg"], claims()), NOT_VALID),
    "with claims that are no object": (handmade({"alg": "ES256", **ES}, [1]), NOT_VALID),
    "with claims that are no JSON": (handmade({"alg": "ES256", **ES}, b"{"), NOT_VALID),
    "with claims beyond any depth": (
        handmade({"alg": "ES256", **ES}, b"[" * 5000 + b"]" * 5000),
        NOT_VALID,
    ),
    "longer than 8 KiB": (es256(more="x" * 8192), NOT_VALID),
}


@pytest.mark.parametrize("bad", BAD)
def test_a_token_is_refused(bad: str) -> None:
    text, message = BAD[bad]
    refused = refusal(text)
    assert refused.outcome is Outcome.UNAUTHENTICATED
    assert refused.message.endswith(message)


def test_no_claim_counts_before_the_signature_does() -> None:
    for changed in ({"exp": NOW - 99}, {"aud": "other"}, {"sub": ""}, {"nbf": NOW + 99}):
        assert refusal(es256(key=OTHER, **changed)).message == NOT_VALID


@pytest.mark.parametrize("part", [0, 1, 2])
def test_a_token_with_any_bit_turned_is_refused(part: int) -> None:
    parts = es256().split(".")
    raw = bytearray(pyjwt.utils.base64url_decode(parts[part]))
    for at in range(0, len(raw), 7):
        turned = bytes(raw[:at]) + bytes([raw[at] ^ 1]) + bytes(raw[at + 1 :])
        parts[part] = pyjwt.utils.base64url_encode(turned).decode()
        with pytest.raises((Refused, NeedsKeySet)):
            checked(".".join(parts))


def test_the_key_of_a_set_is_never_a_shared_secret() -> None:
    """The public key, in every form it has, used as the secret of HS256."""
    public = private_key("RS256", "RS256").public_key()
    forms = [
        public.public_bytes(encoding, PublicFormat.SubjectPublicKeyInfo)
        for encoding in (Encoding.PEM, Encoding.DER)
    ]
    forms += [form.strip() for form in forms] + [json.dumps(jwk("RS256", "RS256")).encode()]
    for secret in forms:
        header = {"alg": "HS256", "kid": "RS256", "typ": "JWT"}
        signed = handmade(header, claims()).rpartition(".")[0]
        signature = pyjwt.get_algorithm_by_name("HS256").sign(signed.encode(), secret)
        forged = f"{signed}.{pyjwt.utils.base64url_encode(signature).decode()}"
        for allowed in ({"RS256"}, {"RS256", "HS256"}):
            assert refusal(forged, algorithms=frozenset(allowed)).message == NOT_VALID


def test_an_algorithm_must_be_allowed_and_suit_the_key() -> None:
    text = token("ES384", "ES384")
    assert checked(text, algorithms=frozenset({"ES384"}))
    assert refusal(text).message == NOT_VALID
    mixed = token("ES384", "ES256", key=private_key("ES384", "ES384"))
    assert refusal(mixed, algorithms=frozenset({"ES256", "ES384"})).message == NOT_VALID


def test_headers_that_carry_or_name_keys_are_ignored() -> None:
    own = {
        "jku": "https://evil.example/keys",
        "x5u": "https://evil.example/cert",
        "jwk": jwk("ES256", "somebody else's"),
    }
    assert checked(es256(header=own)).principal.key_id == "staff:alice"
    assert refusal(es256(header=own, key=OTHER)).message == NOT_VALID


@pytest.mark.parametrize("kind", ["JWT", "jwt", "at+jwt", "application/at+jwt"])
def test_the_types_of_access_tokens_are_accepted(kind: str) -> None:
    assert checked(es256(header={"typ": kind}))


def test_a_token_holds_exactly_within_its_times_and_the_leeway() -> None:
    text = es256(nbf=NOW, iat=NOW, exp=NOW + 60)
    for now_s in (NOW - 30, NOW, NOW + 89.9):
        assert checked(text, now_s)
    assert refusal(text, NOW - 30.1).message == "The token is not valid yet."
    assert refusal(text, NOW + 90).message == "The token has expired."
    assert refusal(text, NOW + 60, leeway_s=0.0).message == "The token has expired."


def test_a_life_may_be_bounded() -> None:
    assert checked(es256(iat=NOW, exp=NOW + 60), max_lifetime_s=60.0)
    assert "longer than" in refusal(es256(iat=NOW, exp=NOW + 61), max_lifetime_s=60.0).message
    assert "lacks 'iat'" in refusal(es256(iat=None), max_lifetime_s=60.0).message


def test_a_key_that_is_not_there_asks_for_a_newer_set() -> None:
    for text, keys in ((es256(), None), (token("ES256", "new"), KEYS)):
        with pytest.raises(NeedsKeySet) as needed:
            checked(text, keys=keys)
        assert needed.value.issuer == "staff"


def test_a_token_that_can_never_be_good_asks_for_no_newer_set() -> None:
    assert refusal(token("ES384", "new")).message == NOT_VALID


def test_one_of_several_audiences_is_enough() -> None:
    assert checked(es256(aud=["x", AUDIENCE, 5]))
    assert checked(es256(aud="b"), audiences=frozenset({"a", "b"}))


CLASSES = Grants(
    service_class_claim="groups",
    service_classes=(("live", "interactive"), ("night", "batch")),
    caps=(("interactive", 5), ("batch", None)),
)


def test_the_first_configured_value_that_a_token_has_decides_its_class() -> None:
    for has, service_class, cap in (
        ("live", "interactive", 5),
        (["night", "live"], "interactive", 5),
        (["x", "night", 7], "batch", None),
    ):
        principal = checked(es256(groups=has), grants=CLASSES).principal
        assert (principal.service_class, principal.max_in_flight) == (service_class, cap)


@pytest.mark.parametrize("has", [None, [], "day", "live night", {"live": True}, 5])
def test_a_token_without_a_configured_value_has_no_class_or_the_default(has: object) -> None:
    refused = refusal(es256(groups=has), grants=CLASSES)
    assert (refused.outcome, refused.message) == (
        Outcome.FORBIDDEN,
        "The token grants no service class.",
    )
    by_default = Grants("standard", "groups", CLASSES.service_classes)
    assert checked(es256(groups=has), grants=by_default).principal.service_class == "standard"


def test_a_claim_may_be_nested_and_its_full_name_goes_first() -> None:
    grants = Grants(service_class_claim="a.b", service_classes=(("x", "one"), ("y", "two")))
    assert checked(es256(a={"b": ["x"]}), grants=grants).principal.service_class == "one"
    both = {"a.b": "y", "a": {"b": "x"}}
    assert checked(es256(**both), grants=grants).principal.service_class == "two"
    assert refusal(es256(a="b"), grants=grants).outcome is Outcome.FORBIDDEN


def test_scopes_are_separated_by_spaces() -> None:
    grants = Grants(service_class_claim="scope", service_classes=(("live", "interactive"),))
    assert checked(es256(scope="read live"), grants=grants).principal.service_class == "interactive"


def test_models_and_surfaces_come_from_their_claims_and_nothing_from_their_absence() -> None:
    grants = Grants("standard", models_claim="models", surfaces_claim="may")
    principal = checked(es256(models=["m", "n"], may=["chat", "admin"]), grants=grants).principal
    assert principal.models == {"m", "n"}
    assert principal.surfaces == {Surface.CHAT}
    without = checked(es256(), grants=grants).principal
    assert (without.models, without.surfaces) == (frozenset(), frozenset())
    open_to_all = checked(es256()).principal
    assert (open_to_all.models, open_to_all.surfaces) == (None, None)


def test_a_token_has_the_names_it_can_be_revoked_by() -> None:
    good = checked(es256(jti="t1", sub="a b", email="e@x"), grants=Grants("s"))
    assert {"staff:a b", "jti:t1", good.principal.key_id} == good.names
    by_mail = checked(es256(email="e@x"), grants=Grants("s", principal_claim="email"))
    assert by_mail.principal.key_id == "staff:e@x"


HMAC = frozenset({"HS256"})
SHARED = shared_secret(SECRET, HMAC)


def of_subject(subject: str) -> Verified:
    text = token("HS256", key=SECRET, sub=subject)
    return checked(text, keys=SHARED, algorithms=HMAC)


@given(st.text(min_size=1, max_size=80))
def test_the_id_of_a_principal_is_short_plain_and_never_that_of_a_key(subject: str) -> None:
    name = of_subject(subject).principal.key_id
    assert re.fullmatch(r"staff:(#[0-9a-f]{24}|[A-Za-z0-9._@:-]{1,58})", name)
    with pytest.raises(ValueError, match="key id"):
        new_key(name, bytes(16))


@given(st.lists(st.text(min_size=1, max_size=80), min_size=2, max_size=2, unique=True))
def test_two_subjects_have_two_ids(subjects: list[str]) -> None:
    assert len({of_subject(subject).principal.key_id for subject in subjects}) == 2


def test_a_subject_stands_in_its_id_as_long_as_it_fits() -> None:
    assert of_subject("a" * 58).principal.key_id == "staff:" + "a" * 58
    assert of_subject("a" * 59).principal.key_id.startswith("staff:#")


def test_a_hashed_id_can_not_be_taken_by_a_subject_that_reads_the_same() -> None:
    hashed = of_subject("a b").principal.key_id
    assert of_subject(hashed.partition(":")[2]).principal.key_id != hashed


PARTS = st.one_of(
    st.binary(max_size=40),
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
        max_leaves=8,
    ).map(lambda value: json.dumps(value).encode()),
    st.fixed_dictionaries(
        {"alg": st.sampled_from(["ES256", "HS256", "none", "RS256", 5])},
        optional={"kid": st.sampled_from(["ES256", "k", None]), "typ": st.text()},
    ).map(lambda value: json.dumps(value).encode()),
)


@given(
    st.one_of(
        st.text(),
        st.builds("{}.{}.{}".format, st.text(), st.text(), st.text()),
        st.builds(handmade, PARTS, PARTS, st.binary(max_size=70)),
    )
)
def test_any_text_is_refused_or_asks_for_a_key_set(text: str) -> None:
    with pytest.raises((Refused, NeedsKeySet)):
        checked(text)


@given(
    st.dictionaries(
        st.sampled_from(["iss", "aud", "sub", "exp", "nbf", "iat", "jti", "groups", "models"]),
        st.one_of(
            st.none(),
            st.booleans(),
            st.integers(),
            st.floats(allow_nan=False, allow_infinity=False),
            st.text(max_size=8),
            st.sampled_from([ISSUER, AUDIENCE, NOW]),
            st.lists(st.one_of(st.text(max_size=4), st.integers()), max_size=3),
        ),
    )
)
def test_any_claims_with_a_good_signature_are_a_principal_or_a_refusal(given_: Any) -> None:
    header = {"alg": "HS256", "typ": "JWT"}
    signed = handmade(header, claims(**given_)).rpartition(".")[0]
    signature = pyjwt.get_algorithm_by_name("HS256").sign(signed.encode(), SECRET)
    text = f"{signed}.{pyjwt.utils.base64url_encode(signature).decode()}"
    with suppress(Refused):
        assert checked(text, keys=SHARED, algorithms=HMAC).until_s > NOW

from pathlib import Path
from typing import get_args

import pytest

from gateway.config import ConfigError, Settings, load
from gateway.keysets import SECRET_BYTES
from gateway.schema_callers import JwtAlgorithm
from gateway.tokens import Grants, Issuer, read_token, verify
from tests.gateway.minimal import CONFIG, KEYS, write
from tests.gateway.mint import ASYMMETRIC, AUDIENCE, ISSUER, NOW, SECRET, jwk, jwks, token

STAFF = f"""
[auth.jwt.staff]
issuer = "{ISSUER}"
audience = "{AUDIENCE}"
algorithms = ["ES256"]
jwks_file = "staff.json"
service_class = "batch"
"""


def loaded(folder: Path, staff: str = STAFF, keys: str = KEYS, config: str = CONFIG) -> Settings:
    (folder / "staff.json").write_bytes(jwks(jwk("ES256")))
    (folder / "secret").write_bytes(SECRET[:32].hex().encode() + b"\n")
    (folder / "secret").chmod(0o600)
    return load(write(folder, config + staff, keys))


def fault(folder: Path, staff: str = STAFF, keys: str = KEYS) -> str:
    with pytest.raises(ConfigError) as raised:
        loaded(folder, staff, keys)
    return str(raised.value)


def the_issuer(settings: Settings) -> Issuer:
    (issuer,) = settings.issuers
    return issuer


def test_every_algorithm_that_may_be_configured_can_be_verified() -> None:
    assert set(get_args(JwtAlgorithm)) == {*ASYMMETRIC, *SECRET_BYTES}


def test_a_table_becomes_rules_a_source_and_a_key_set(tmp_path: Path) -> None:
    issuer = the_issuer(loaded(tmp_path))
    rules, source = issuer.rules, issuer.source
    assert (rules.name, rules.issuer, rules.audiences) == ("staff", ISSUER, {AUDIENCE})
    assert (rules.algorithms, rules.leeway_s, rules.max_lifetime_s) == ({"ES256"}, 30.0, None)
    assert rules.grants == Grants("batch", caps=(("interactive", None), ("batch", None)))
    assert (source.url, source.path) == ("", str(tmp_path / "staff.json"))
    good = verify(read_token(token("ES256")), rules, issuer.key_set, NOW)
    assert good.principal.key_id == "staff:alice"


def test_a_url_is_asked_later(tmp_path: Path) -> None:
    url = "https://login.example.com/certs"
    issuer = the_issuer(
        loaded(tmp_path, STAFF.replace('jwks_file = "staff.json"', f'jwks_url = "{url}"'))
    )
    assert (issuer.source.url, issuer.source.path, issuer.key_set) == (url, "", None)


SHARED = STAFF.replace('"ES256"', '"HS256"').replace(
    'jwks_file = "staff.json"', 'secret_file = "secret"'
)


def test_a_secret_is_the_line_in_its_file(tmp_path: Path) -> None:
    issuer = the_issuer(loaded(tmp_path, SHARED))
    text = token("HS256", key=SECRET[:32].hex().encode())
    assert verify(read_token(text), issuer.rules, issuer.key_set, NOW)


def test_a_secret_that_others_can_read_is_warned_about(tmp_path: Path) -> None:
    assert loaded(tmp_path, SHARED).warnings == ()
    for mode in (0o640, 0o604):
        (tmp_path / "secret").chmod(mode)
        path = tmp_path / "gateway.toml"
        warning = f"{tmp_path / 'secret'}: readable by others than its owner (chmod 600)"
        assert load(path).warnings == (warning,)


def test_the_lower_of_the_issuers_and_the_service_classes_caps_holds(tmp_path: Path) -> None:
    capped = CONFIG.replace("[service.batch]", "[service.batch]\nmax_in_flight = 9")
    for own, caps in (
        ("", (None, 9)),
        ("max_in_flight = 5", (5, 5)),
        ("max_in_flight = 20", (20, 9)),
    ):
        grants = the_issuer(loaded(tmp_path, STAFF + own, config=capped)).rules.grants
        assert grants.caps == (("interactive", caps[0]), ("batch", caps[1]))


def test_settings_in_force_show_no_secret(tmp_path: Path) -> None:
    settings = loaded(tmp_path, SHARED)
    shown = repr(settings) + str(settings.effective())
    assert settings.effective()["auth"]["jwt"]["staff"]["secret_file"] == "secret"
    assert SECRET[:32].hex() not in shown


def test_a_keys_file_may_be_empty(tmp_path: Path) -> None:
    assert loaded(tmp_path, keys="").keyring.entries == {}


def test_revoked_tokens_are_read_from_the_keys_file(tmp_path: Path) -> None:
    keys = 'revoked = ["staff:a:b", "jti:1"]\n' + KEYS
    assert loaded(tmp_path, keys=keys).keyring.revoked == {"staff:a:b", "jti:1"}


FAULTS: dict[str, tuple[str, str, str]] = {
    "no place for keys": ('jwks_file = "staff.json"', "", "auth.jwt.staff: needs exactly one of"),
    "two places": (
        'jwks_file = "staff.json"',
        'jwks_file = "staff.json"\njwks_url = "https://a/"',
        "auth.jwt.staff: needs exactly one of",
    ),
    "a secret for public keys": (
        'jwks_file = "staff.json"',
        'secret_file = "secret"',
        "auth.jwt.staff.algorithms: a secret_file allows HS256, HS384 and HS512 only",
    ),
    "public keys for a secret's algorithm": (
        '["ES256"]',
        '["ES256", "HS256"]',
        "auth.jwt.staff.algorithms: HS256 needs a secret_file",
    ),
    "the algorithm 'none'": ('"ES256"', '"none"', "auth.jwt.staff.algorithms[1]"),
    "no algorithm": ('["ES256"]', "[]", "auth.jwt.staff.algorithms"),
    "no audience": (f'audience = "{AUDIENCE}"', "", "auth.jwt.staff.audience: is required"),
    "an empty audience": (f'"{AUDIENCE}"', "[]", "auth.jwt.staff.audience"),
    "too much leeway": (
        "service_class",
        "leeway_s = 301\nservice_class",
        "auth.jwt.staff.leeway_s",
    ),
    "stale before it is refreshed": (
        "service_class",
        "max_stale_s = 200\nservice_class",
        "auth.jwt.staff.max_stale_s: is less than refresh_s",
    ),
    "an unknown service class": ('"batch"', '"vip"', "auth.jwt.staff.service_class: 'vip' is not"),
    "no service class": ('service_class = "batch"', "", "auth.jwt.staff: needs a service_class"),
    "a claim without classes": (
        'service_class = "batch"',
        'service_class_claim = "x"',
        "auth.jwt.staff: service_class_claim and service_classes need each other",
    ),
    "classes without a claim": (
        'service_class = "batch"',
        'service_classes = { a = "batch" }',
        "auth.jwt.staff: service_class_claim and service_classes need each other",
    ),
    "an unknown class of a claim": (
        'service_class = "batch"',
        'service_class_claim = "x"\nservice_classes = { a = "vip" }',
        "auth.jwt.staff.service_classes.a: 'vip' is not configured",
    ),
    "the name jti": ("auth.jwt.staff", "auth.jwt.jti", "auth.jwt.jti: can't be a name"),
    "another key": ("service_class", "nonce = 1\nservice_class", "auth.jwt.staff.nonce: unknown"),
    "a file that is not there": (
        '"staff.json"',
        '"gone.json"',
        "auth.jwt.staff.jwks_file: ",
    ),
    "a file that is no key set": ('"staff.json"', '"gateway.toml"', "gateway.toml: not JSON"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_table_at_fault_is_refused_by_file_key_and_reason(tmp_path: Path, name: str) -> None:
    old, new, reason = FAULTS[name]
    assert old in STAFF
    said = fault(tmp_path, STAFF.replace(old, new, 1))
    assert said.startswith(f"{tmp_path / 'gateway.toml'}: ")
    assert reason in said


def test_a_short_secret_is_refused_without_being_shown(tmp_path: Path) -> None:
    (tmp_path / "short").write_text("hunter2\n")
    said = fault(tmp_path, SHARED.replace('"secret"', '"short"'))
    assert "auth.jwt.staff.secret_file" in said
    assert "needs 32 bytes, got 7" in said
    assert "hunter2" not in said


def test_two_tables_can_not_have_one_issuer(tmp_path: Path) -> None:
    said = fault(tmp_path, STAFF + STAFF.replace("jwt.staff", "jwt.other"))
    assert "auth.jwt.staff.issuer: several tables have this issuer" in said


@pytest.mark.parametrize(
    ("url", "good"),
    [
        ("https://login.example.com/certs?x=1", True),
        ("https://10.0.0.1:8443/certs", True),
        ("http://127.0.0.1:8080/certs", True),
        ("http://[::1]/certs", True),
        ("http://localhost/certs", True),
        ("http://login.example.com/certs", False),
        ("http://127.0.0.1.example.com/certs", False),
        ("http://localhost.example.com/certs", False),
        ("https://user:password@login.example.com/certs", False),
        ("file:///etc/passwd", False),
        ("https://:80/certs", False),
        ("https://host:port/", False),
        ("https://[::1/", False),
        ("https://ex ample.com/", False),
        ("https://exämple.com/", False),
        ("login.example.com", False),
    ],
)
def test_keys_are_fetched_over_tls_or_from_this_machine(
    tmp_path: Path, url: str, good: bool
) -> None:
    staff = STAFF.replace('jwks_file = "staff.json"', f'jwks_url = "{url}"')
    if good:
        assert the_issuer(loaded(tmp_path, staff)).source.url == url
    else:
        said = fault(tmp_path, staff)
        assert "auth.jwt.staff.jwks_url: must be https" in said
        assert url not in said


@pytest.mark.parametrize(
    ("revoked", "reason"),
    [
        ('["staff:a", "staff:a"]', "revoked[1]: stands there twice"),
        ('["staff:b", "other:a"]', "revoked[2]: 'other' is not configured"),
        ('["alice"]', "revoked[1]"),
        ('["staff:"]', "revoked[1]"),
        ('"staff:a"', "revoked"),
    ],
)
def test_revoked_names_at_fault_are_refused(tmp_path: Path, revoked: str, reason: str) -> None:
    said = fault(tmp_path, keys=f"revoked = {revoked}\n" + KEYS)
    assert said.startswith(f"{tmp_path / 'keys.toml'}: ")
    assert reason in said

"""What a sound configuration may still get wrong: each warning names its key."""

from pathlib import Path

import pytest

from gateway.config import load
from gateway.review import replica_words, warnings_of
from tests.gateway.certificates import Authority
from tests.gateway.minimal import CONFIG, write

TOKEN = '[[admin.tokens]]\nname = "ops"\nrole = "viewer"\nsha256 = "{}"\n'
GOOD = TOKEN.format("1" * 64) + CONFIG
CANARY = '[pool.b]\nengines = ["http://127.0.0.1:8002"]\n[[route]]'


def warnings(folder: Path, text: str) -> list[str]:
    return warnings_of(load(write(folder, text)))


def test_a_careful_configuration_has_no_warnings(tmp_path: Path) -> None:
    assert warnings(tmp_path, GOOD) == []


@pytest.mark.parametrize(
    ("old", "new", "key", "word"),
    [
        ("1" * 64, "0" * 64, "admin.tokens", "the example's"),
        (TOKEN.format("1" * 64), "", "admin.tokens", "nobody can look"),
        ("[auth]", '[admin]\nhost = "0.0.0.0"\n[auth]', "admin.host", "without TLS"),
        ("[auth]", "[server]\nmax_body_bytes = 50000\n[auth]", "server.max_body_bytes", "16384"),
        (
            "[auth]",
            "[server]\nmax_held_bytes = 9000000\n[auth]",
            "server.max_held_bytes",
            "one key",
        ),
        ("token_budget", 'policy = "priority"\ntoken_budget', "pool.a.limits.policy", "verified"),
        (
            "reserved_slots = 16",
            "reserved_slots = 16\nmax_queued_tokens = 100",
            "flow.short.interactive.max_queued_tokens",
            "never wait",
        ),
        ("= 16384\nttft", "= 32768\nttft", "size.long.max_prompt_tokens", "m (16384)"),
        ("[limits]", "[scheduling]\nquantum = 20000\n[limits]", "scheduling.quantum", "a round"),
        ("[limits]", "[scheduling]\nquantum = 16\n[limits]", "scheduling.quantum", "1029 rounds"),
        (
            *("reserved_slots = 16", "reserved_slots = 16\nprincipal_share = 0.001"),
            *("flow.short.interactive.principal_share", "less than one request"),
        ),
        (
            *("reserved_slots = 16", "reserved_slots = 16\nmax_age_s = 0.1"),
            *("flow.short.interactive.max_age_s", "0.11 s"),
        ),
        (
            *("[auth]", "[server]\nmax_requests = 1\n[auth]"),
            *("server.principal_share", "server.max_requests 1 "),
        ),
        (
            *("[auth]", "[counting]\nmax_requests = 1\n[auth]"),
            *("server.principal_share", "counting.max_requests 1 "),
        ),
        (
            *("[auth]", "[counting]\nmax_bytes = 1000000\n[auth]"),
            *("counting.max_bytes", "one body"),
        ),
        (
            '["http://127.0.0.1:8001"]',
            '["http://127.0.0.1:8001", "http://localhost:8001"]',
            "pool",
            "one address",
        ),
    ],
)
def test_what_is_worth_a_second_look_is_named(
    tmp_path: Path, old: str, new: str, key: str, word: str
) -> None:
    assert old in GOOD
    (found,) = warnings(tmp_path, GOOD.replace(old, new, 1))
    assert found.startswith(f"{key}: ")
    assert word in found


def test_a_quantum_that_only_short_rounds_come_of_is_no_fault(tmp_path: Path) -> None:
    # As large beside the prompts as one that is warned of, but all ends within the TTFT limits.
    fast = GOOD.replace("token_budget = 8192", "token_budget = 8192\nprefill_tokens_per_s = 9e6")
    assert warnings(tmp_path, "[scheduling]\nquantum = 20000\n" + fast) == []


def test_a_share_that_the_engines_slots_make_a_request_of_is_no_fault(tmp_path: Path) -> None:
    small = "reserved_slots = 16\nmax_queued = 10\nprincipal_share = 0.05"
    assert warnings(tmp_path, GOOD.replace("reserved_slots = 16", small)) == []


@pytest.mark.parametrize("host", ["127.0.0.2", "::1", "localhost", "unix:/run/admin.sock"])
def test_a_local_listener_needs_no_tls(tmp_path: Path, host: str) -> None:
    assert warnings(tmp_path, f'[admin]\nhost = "{host}"\n{GOOD}') == []


def test_a_canary_that_nobody_goes_to_is_named(tmp_path: Path) -> None:
    text = GOOD.replace("[[route]]", CANARY, 1).replace(
        'size = "short"\npool = "a"', 'size = "short"\npool = "a"\ncandidate_pool = "b"'
    )
    (found,) = warnings(tmp_path, text)
    assert found.startswith("route[1].candidate_weight: ")


def test_a_private_key_that_all_may_read_is_named(tmp_path: Path) -> None:
    signed = Authority(tmp_path / "authority").sign("gateway")
    table = f'[admin.tls]\ncert_file = "{signed.cert}"\nkey_file = "{signed.key}"\n'
    assert warnings(tmp_path, table + GOOD) == []
    signed.key.chmod(0o644)
    (found,) = warnings(tmp_path, table + GOOD)
    assert found.startswith("admin.tls.key_file: ")


def test_what_one_replica_may_do_is_said_by_engine(tmp_path: Path) -> None:
    (alone,) = replica_words(load(write(tmp_path, GOOD)))
    assert alone == (
        "this gateway may have on http://127.0.0.1:8001: 128 sequences, 40960 prompt tokens in "
        "prefill, 353894 KV tokens, 1 long in prefill"
    )


def test_replicas_are_told_apart_and_what_one_may_never_have_is_said(tmp_path: Path) -> None:
    two = GOOD.replace(
        '["http://127.0.0.1:8001"]', '["http://127.0.0.1:8001", "http://127.0.0.1:8002"]'
    )
    two = two.replace("prefill_tokens = 40960", "prefill_tokens = 99000")
    lines = replica_words(load(write(tmp_path, "[replicas]\ncount = 2\nindex = 1\n" + two)))
    assert [line.partition(" on ")[0] for line in lines] == ["replica 2 of 2 may have"] * 2
    assert sorted(line.rpartition(", ")[2] for line in lines) == ["1 long in prefill", "no long"]


def test_two_sockets_are_two_addresses(tmp_path: Path) -> None:
    two = '["unix:/run/one.sock", "unix:/run/two.sock"]'
    assert warnings(tmp_path, GOOD.replace('["http://127.0.0.1:8001"]', two)) == warnings(
        tmp_path, GOOD
    )

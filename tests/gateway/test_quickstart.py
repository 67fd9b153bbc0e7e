"""What ``up`` writes is a configuration that loads, whatever the engines are."""

import stat
import tomllib
from dataclasses import replace
from pathlib import Path

import pytest

from gateway.auth import by_key
from gateway.config import load
from gateway.domain import AdmissionMode
from gateway.quickstart import (
    SERVICES,
    EngineFacts,
    Supported,
    Wish,
    supported_from,
    write_configuration,
)

ENGINES = ["http://127.0.0.1:1", "http://127.0.0.1:2"]
FACTS = EngineFacts()
OTHERS = {
    "as they come": FACTS,
    "one sequence": replace(FACTS, max_num_seqs=1),
    "few sequences": replace(FACTS, max_num_seqs=16, token_budget=2048),
    "a short context": replace(FACTS, max_model_len=256),
    "a long context": replace(FACTS, max_model_len=131_072, kv_tokens=1_600_000),
    "a large budget": replace(FACTS, token_budget=65_536),
    "engine priority": replace(FACTS, policy="priority"),
    "little memory": replace(FACTS, kv_tokens=31_984),
    "very little memory": replace(FACTS, max_model_len=4096, kv_tokens=4784),
    "a name with a slash": replace(FACTS, model="org/Model-7B.v1"),
}


@pytest.mark.parametrize("isolated", [False, True], ids=["shared", "isolated"])
@pytest.mark.parametrize("name", OTHERS)
def test_it_loads_for_engines_of_every_kind(tmp_path: Path, name: str, isolated: bool) -> None:
    facts = OTHERS[name]
    written = write_configuration(tmp_path, ENGINES, facts, Wish(isolated=isolated))
    settings = load(written.config)
    assert settings.warnings == ()
    for limits in settings.engines.values():
        assert limits.slots <= facts.max_num_seqs + 2
        assert limits.kv_tokens <= facts.kv_tokens
        assert limits.fcfs == (facts.policy == "fcfs")


SUPPORTED = """
[limits]
slots = 34
prefill_tokens = 66560
kv_tokens = 393200
token_budget = 4096
prefill_tokens_per_s = 9000.0
policy = "fcfs"
[scheduling]
beta = 0.38
[size.long]
max_prefilling_per_engine = 2
"""


def test_limits_that_records_support_take_the_place_of_the_defaults(tmp_path: Path) -> None:
    wish = Wish(supported=supported_from(SUPPORTED), time_scale=2.0)
    settings = load(write_configuration(tmp_path, ENGINES, FACTS, wish).config)
    for limits in settings.engines.values():
        assert (limits.slots, limits.prefill_tokens) == (34, 66560)
        assert limits.fcfs
    told = tomllib.loads((tmp_path / "gateway.toml").read_text())
    assert told["limits"]["prefill_tokens_per_s"] == 18_000.0
    assert told["scheduling"] == {"beta": 0.38}
    assert told["size"]["long"]["max_prefilling_per_engine"] == 2


def test_the_engines_policy_alone_leaves_the_other_limits(tmp_path: Path) -> None:
    wish = Wish(supported=Supported({"policy": "priority"}))
    settings = load(write_configuration(tmp_path, ENGINES, FACTS, wish).config)
    assert not any(limits.fcfs for limits in settings.engines.values())
    assert {limits.slots for limits in settings.engines.values()} == {128}


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("[limits]\nslot = 3", "limits.slot"),
        ("[size.short]\nweight = 1.0", "size.short"),
        ("[size.long]\nweight = 1.0", "size.long.weight"),
        ("[auth]\nkeys_file = 'x'", "auth"),
    ],
)
def test_what_bench_limits_does_not_print_is_refused_by_name(text: str, named: str) -> None:
    with pytest.raises(ValueError, match=f"^{named} is not among"):
        supported_from(text)


def test_its_keys_open_it_and_are_the_owners_alone(tmp_path: Path) -> None:
    written = write_configuration(tmp_path, ENGINES, FACTS, Wish())
    keyring = load(written.config).keyring
    for service in SERVICES:
        assert by_key(written.keys[service], keyring).service_class == service
    assert stat.S_IMODE((tmp_path / "keys.toml").stat().st_mode) == 0o600
    text = written.config.read_text() + (tmp_path / "keys.toml").read_text()
    assert written.admin_token not in text
    assert not [key for key in written.keys.values() if key in text]


def test_its_secrets_are_new_each_time_and_not_shown(tmp_path: Path) -> None:
    first = write_configuration(tmp_path / "a", ENGINES, FACTS, Wish())
    second = write_configuration(tmp_path / "b", ENGINES, FACTS, Wish())
    assert first.admin_token != second.admin_token
    assert set(first.keys.values()).isdisjoint(second.keys.values())
    assert first.admin_token not in repr(first)
    assert first.keys["batch"] not in repr(first)


@pytest.mark.parametrize("mode", AdmissionMode)
def test_every_route_has_the_mode_asked_for(tmp_path: Path, mode: AdmissionMode) -> None:
    written = write_configuration(tmp_path, ENGINES, FACTS, Wish(admission=mode.value))
    routes = load(written.config).route_table(bytes(32)).routes
    assert {route.mode for route in routes.values()} == {mode}


def test_isolated_sizes_share_no_engine_and_shared_ones_all(tmp_path: Path) -> None:
    def pools(isolated: bool) -> dict[str, set[str]]:
        written = write_configuration(
            tmp_path / str(isolated), ENGINES, FACTS, Wish(isolated=isolated)
        )
        document = load(written.config).document
        return {r.size: set(document.pool[r.pool].engines) for r in document.route}

    assert pools(isolated=True) == {"short": {ENGINES[0]}, "long": {ENGINES[1]}}
    assert pools(isolated=False) == {"short": set(ENGINES), "long": set(ENGINES)}


def test_a_faster_clock_meets_the_same_contract_in_less_time(tmp_path: Path) -> None:
    one = load(write_configuration(tmp_path / "1", ENGINES, FACTS, Wish()).config)
    ten = load(write_configuration(tmp_path / "10", ENGINES, FACTS, Wish(time_scale=10)).config)
    for slow, fast in zip(one.sizes, ten.sizes, strict=True):
        assert fast.ttft_limit_s == pytest.approx(slow.ttft_limit_s / 10)
    for before, after in zip(one.flows, ten.flows, strict=True):
        assert after.max_age_s == pytest.approx(before.max_age_s / 10)
        assert after.max_queued == before.max_queued


def test_a_split_gives_the_shorts_as_many_engines_as_asked(tmp_path: Path) -> None:
    engines = [f"http://127.0.0.1:{9000 + n}" for n in range(4)]
    wish = Wish(isolated=True, short_engines=1)
    document = load(write_configuration(tmp_path, engines, FACTS, wish).config).document
    assert {name: len(pool.engines) for name, pool in document.pool.items()} == {
        "short": 1,
        "long": 3,
    }

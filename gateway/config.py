"""Reads the configuration and key files; decides whether they describe a gateway that can run.

The only reader of configuration files. A file is taken whole or not at all: ``load`` either
returns settings in which every reference resolves and every floor holds, or raises one
``ConfigError`` that names file, key and reason of each fault: all of shape, or all of what the
parts say of each other and of the files they name, or all of the limits. Relative paths are
relative to the configuration file; ``package:NAME/FILE`` is a file inside an installed package.
"""

import os
import socket
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from types import MappingProxyType
from typing import Any

import orjson

from gateway import schema
from gateway.auth import KeyEntry, Keyring
from gateway.consistency import (
    floor_faults,
    issuer_faults,
    key_faults,
    reference_faults,
    replica_faults,
    revoked_faults,
    sharing_warnings,
)
from gateway.domain import EngineLimits, FlowSpec
from gateway.endpoint import EngineTlsError, engine_context
from gateway.files import (
    ConfigError,
    Findings,
    raise_all,
    read_bytes,
    read_text,
    resolve,
    validated,
)
from gateway.issuer_table import issuer_of, key_set_of
from gateway.keysets import KeySetError
from gateway.membership import limits_of, named
from gateway.routing import ModelName, Route, RouteTable
from gateway.template import ChatTemplate, TemplateError
from gateway.tokens import Issuer

__all__ = ["ConfigError", "Settings", "SizeClass", "load", "parse"]


# Compiling a template asks for no time.
_ANY_TIME = datetime(2000, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class SizeClass:
    """One size class by ascending bound, with the contract its goodput is judged by."""

    name: str
    max_prompt_tokens: int
    ttft_limit_s: float
    max_stall_s: float
    e2e_limit_s: float


@dataclass(frozen=True, slots=True)
class Settings:
    """A configuration that was checked whole.

    ``document`` holds the sections as written; ``flows`` are all that may have requests,
    ``engines`` the limits by engine.
    """

    path: Path
    document: schema.Document
    keyring: Keyring
    sizes: tuple[SizeClass, ...]
    flows: tuple[FlowSpec, ...]
    engines: Mapping[str, EngineLimits]
    pool_limits: Mapping[str, EngineLimits]
    replica: int = 0
    warnings: tuple[str, ...] = ()
    issuers: tuple[Issuer, ...] = ()

    def route_table(self, salt: bytes, revision: int = 1) -> RouteTable:
        """The configured routes as revision ``revision``; ``salt`` is secret and random."""
        routes = {(r.model, r.size): _route(r) for r in self.document.route}
        names = {
            alias: ModelName(name, model.engine_model or name, model.aliases)
            for name, model in self.document.model.items()
            for alias in (name, *model.aliases)
        } | {
            lora: ModelName(name, engine_name, granted=lora)
            for name, model in self.document.model.items()
            for lora, engine_name in model.loras.items()
        }
        return RouteTable(revision, salt, MappingProxyType(routes), names)

    def file(self, reference: str) -> Path:
        """The path of a file that the configuration names."""
        return resolve(self.path, reference)

    def chat_template(self, model: str) -> tuple[str, dict[str, str]]:
        """A model's template source and special tokens (``bos_token`` and the like)."""
        key = f"model.{model}.chat_template"
        return _template_source(self.path, key, self.document.model[model])

    def effective(self) -> dict[str, Any]:
        """Every setting in force, defaults and derived flows included; no key digests."""
        shown = self.document.model_dump(mode="json")
        shown["admin"]["tokens"] = [
            {"name": token.name, "role": token.role} for token in self.document.admin.tokens
        ]
        shown["flow"] = [_plain(flow) for flow in self.flows]
        shown["engine"] = {origin: _plain(limits) for origin, limits in self.engines.items()}
        return shown

    def digest(self) -> str:
        """SHA-256 of the effective settings in canonical JSON."""
        return sha256(orjson.dumps(self.effective(), option=orjson.OPT_SORT_KEYS)).hexdigest()


def load(path: Path) -> Settings:
    """Read and check the configuration at ``path`` and the files it names.

    Raises:
        ConfigError: naming file, key and reason.
    """
    return parse(read_text(path, path, ""), path)


def parse(text: str, path: Path) -> Settings:
    """As ``load``, for a text that stands, or would stand, at ``path``."""
    document = validated(schema.Document, text, path)
    keyring, issuers, warnings = _references(path, document)
    flows = tuple(_flows(document))
    pools = {name: _limits(document, pool.limits) for name, pool in document.pool.items()}
    found = Findings()
    with found.step():
        raise_all(path, replica_faults(document, pools))
    with found.step():
        raise_all(path, floor_faults(document, flows, pools))
    with found.step():
        replica = (_replica(path, document), document.replicas.count)
    found.settle()
    engines = limits_of(pools, named(document), map(_route, document.route), replica)
    sizes = tuple(
        SizeClass(name, s.max_prompt_tokens, s.ttft_limit_s, s.max_stall_s, s.e2e_limit_s)
        for name, s in _ordered_sizes(document)
    )
    return Settings(
        path,
        document,
        keyring,
        sizes,
        flows,
        MappingProxyType(engines),
        MappingProxyType(pools),
        replica[0],
        (*warnings, *sharing_warnings(document)),
        issuers,
    )


def _references(
    path: Path, document: schema.Document
) -> tuple[Keyring, tuple[Issuer, ...], tuple[str, ...]]:
    """The callers, and warnings about the files that name them; all that is named must be there.

    Raises:
        ConfigError: every name that leads nowhere, and every file that can't be used.
    """
    found, issuers, warnings = Findings(), list[Issuer](), list[str]()
    with found.step():
        raise_all(path, reference_faults(document))
    for name, model in document.model.items():
        with found.step():
            _readable(path, f"model.{name}.tokenizer", model.tokenizer)
        with found.step():
            _check_template(path, name, model)
    keys_path = resolve(path, document.auth.keys_file)
    with found.step():
        keyring, said = _keyring(keys_path, document, (path, "auth.keys_file"))
        warnings += said
    for name in ("upstream", *(f"pool.{name}" for name in document.pool)):
        with found.step():
            _check_engine_tls(path, name, document)
    with found.step():
        raise_all(path, issuer_faults(document))  # again: an issuer is made only of a sound table
        for name in document.auth.jwt:
            with found.step():
                issuer, said = _issuer(path, name, document)
                issuers.append(issuer)
                warnings += said
    found.settle()
    return keyring, tuple(issuers), tuple(warnings)


def _keyring(
    path: Path, document: schema.Document, named_by: tuple[Path, str]
) -> tuple[Keyring, tuple[str, ...]]:
    """The keys file and warnings about it.

    Raises:
        ConfigError: the file can't be read, or a key names an unknown service class or model.
    """
    try:
        text = read_text(path, *named_by)
    except ConfigError as error:
        if not isinstance(error.__cause__, FileNotFoundError):
            raise
        way = "sluicegate keys new makes it, with its first key"
        raise ConfigError(*named_by, f"{error.reason} ({way})") from error
    file = validated(schema.KeyFile, text, path)
    records = file.key
    raise_all(path, (*revoked_faults(file.revoked, document), *key_faults(records, document)))
    entries = {
        key_id: _key_entry(record, document.service[record.service_class])
        for key_id, record in records.items()
    }
    open_to_all = path.stat().st_mode & stat.S_IROTH
    warning = f"{path}: readable by every user of this machine (chmod 640)"
    keyring = Keyring(MappingProxyType(entries), frozenset(file.revoked))
    return keyring, ((warning,) if open_to_all else ())


def _issuer(path: Path, name: str, document: schema.Document) -> tuple[Issuer, tuple[str, ...]]:
    """An issuer of tokens with the keys in its file, and a warning about a secret others read."""
    table = document.auth.jwt[name]
    word = "jwks_file" if table.secret_file is None else "secret_file"
    reference = table.jwks_file or table.secret_file
    if reference is None:
        return issuer_of(name, table, document.service, "", None), ()
    key, file = f"auth.jwt.{name}.{word}", resolve(path, reference)
    try:
        key_set = key_set_of(table, read_bytes(file, path, key))
    except KeySetError as error:
        raise ConfigError(path, key, f"{file}: {error}") from error
    secret = table.secret_file is not None
    shown = secret and file.stat().st_mode & (stat.S_IRGRP | stat.S_IROTH)
    warning = f"{file}: readable by others than its owner (chmod 600)"
    issuer = issuer_of(name, table, document.service, str(file), key_set)
    return issuer, ((warning,) if shown else ())


def _key_entry(record: schema.KeyRecord, service: schema.Service) -> KeyEntry:
    return KeyEntry(
        bytes.fromhex(record.sha256),
        record.service_class,
        None if record.models is None else frozenset(record.models),
        None if record.surfaces is None else frozenset(record.surfaces),
        service.in_flight_cap(record.max_in_flight),
    )


def _readable(config_path: Path, key: str, reference: str) -> str:
    return read_text(resolve(config_path, reference), config_path, key)


def _check_template(config_path: Path, name: str, model: schema.Model) -> None:
    key = f"model.{name}.chat_template"
    source, special_tokens = _template_source(config_path, key, model)
    try:
        ChatTemplate(source, special_tokens, lambda: _ANY_TIME)
    except TemplateError as error:
        raise ConfigError(config_path, key, str(error)) from error


def _template_source(
    config_path: Path, key: str, model: schema.Model
) -> tuple[str, dict[str, str]]:
    text = _readable(config_path, key, model.chat_template)
    beside = resolve(config_path, model.tokenizer).with_name("tokenizer_config.json")
    if not model.chat_template.endswith(".json"):
        described = read_text(beside, config_path, key) if beside.is_file() else "{}"
        return text, _special_tokens(_json_object(config_path, key, described))
    described_here = _json_object(config_path, key, text)
    source = described_here.get("chat_template")
    if not isinstance(source, str):
        raise ConfigError(config_path, key, f"{model.chat_template} has no chat_template text")
    return source, _special_tokens(described_here)


def _json_object(config_path: Path, key: str, text: str) -> dict[str, Any]:
    try:
        found = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise ConfigError(config_path, key, f"tokenizer settings are not JSON: {error}") from error
    return found if isinstance(found, dict) else {}


def _special_tokens(described: Mapping[str, Any]) -> dict[str, str]:
    texts = {
        name: value.get("content") if isinstance(value, dict) else value
        for name, value in described.items()
        if name.endswith("_token")
    }
    return {name: text for name, text in texts.items() if isinstance(text, str)}


def _ordered_sizes(document: schema.Document) -> list[tuple[str, schema.Size]]:
    return sorted(document.size.items(), key=lambda item: item[1].max_prompt_tokens)


def _flows(document: schema.Document) -> Iterator[FlowSpec]:
    for model_name, model in document.model.items():
        for size_name, size in _ordered_sizes(document):
            for service_name, service in document.service.items():
                flow = document.flow.get(size_name, {}).get(service_name, schema.Flow())
                given = flow.model_dump(exclude={"predict"})
                if not flow.predict:
                    given["target_wait_s"] = None
                if flow.weight is None:
                    given["weight"] = size.weight * service.weight
                if flow.engine_priority is None:
                    given["engine_priority"] = service.engine_priority
                yield FlowSpec(
                    model_name,
                    size_name,
                    service_name,
                    output_estimate_tokens=size.output_estimate_tokens,
                    largest_prompt_tokens=min(size.max_prompt_tokens, model.max_model_len - 1),
                    ttft_limit_s=size.ttft_limit_s if flow.predict else None,
                    **given,
                )


def _check_engine_tls(path: Path, at: str, document: schema.Document) -> None:
    name = at.removeprefix("pool.")
    tls = document.upstream.tls if at == "upstream" else document.pool[name].tls
    if tls is None or tls == schema.EngineTls():
        return
    try:
        engine_context(tls, lambda reference: resolve(path, reference))
    except EngineTlsError as error:
        raise ConfigError(path, f"{at}.tls.{error.key}", error.reason) from error


def _replica(path: Path, document: schema.Document) -> int:
    """Which of the gateways this is: as configured, by the environment, or by the host's name."""
    replicas = document.replicas
    if replicas.count == 1 or replicas.index is not None:
        return replicas.index or 0
    said = os.environ.get("SLUICEGATE_REPLICA_INDEX") or socket.gethostname().rpartition("-")[2]
    if not said.isdecimal() or int(said) >= replicas.count:
        reason = (
            f"is not given; SLUICEGATE_REPLICA_INDEX or the end of the host's name says {said!r}, "
            f"which is no number from 0 to {replicas.count - 1}"
        )
        raise ConfigError(path, "replicas.index", reason)
    return int(said)


def _limits(document: schema.Document, override: schema.LimitsOverride) -> EngineLimits:
    limits = document.limits.model_copy(update=override.model_dump(exclude_none=True))
    caps = tuple(
        (name, size.max_prefilling_per_engine)
        for name, size in _ordered_sizes(document)
        if size.max_prefilling_per_engine is not None
    )
    return EngineLimits(
        slots=limits.slots,
        prefill_tokens=limits.prefill_tokens,
        kv_tokens=int(limits.kv_fraction * limits.kv_tokens),
        max_prefilling=caps,
        token_budget=limits.token_budget,
        prefill_tokens_per_s=limits.prefill_tokens_per_s,
        fcfs=limits.policy == "fcfs",
    )


def _route(route: schema.Route) -> Route:
    return Route(
        route.model,
        route.size,
        route.pool,
        route.candidate_pool,
        route.candidate_weight,
        route.admission,
    )


def _plain(value: FlowSpec | EngineLimits) -> Any:
    return orjson.loads(orjson.dumps(value))

"""Reads the configuration and key files; decides whether they describe a gateway that can run.

The only reader of configuration files. A file is taken whole or not at all: ``load`` either
returns settings in which every reference resolves and every floor holds, or raises one
``ConfigError`` that names file, key and reason. Relative paths are relative to the configuration
file; ``package:NAME/FILE`` names a file inside an installed package.
"""

import stat
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from hashlib import sha256
from importlib.util import find_spec
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar

import orjson
from pydantic import BaseModel, ValidationError

from gateway import schema
from gateway.auth import KeyEntry, Keyring
from gateway.consistency import (
    Fault,
    floor_faults,
    key_faults,
    reference_faults,
    sharing_warnings,
)
from gateway.domain import EngineLimits, FlowSpec
from gateway.routing import ModelName, Route, RouteTable
from gateway.template import ChatTemplate, TemplateError

__all__ = ["ConfigError", "Settings", "SizeClass", "load", "parse", "read_keyring"]


# Compiling a template asks for no time.
_ANY_TIME = datetime(2000, 1, 1, tzinfo=UTC)
_M = TypeVar("_M", bound=BaseModel)


class ConfigError(Exception):
    """A configuration can't be used: ``FILE: KEY: REASON``."""

    def __init__(self, file: Path, key: str, reason: str) -> None:
        super().__init__(f"{file}: {key}: {reason}" if key else f"{file}: {reason}")
        self.file = file
        self.key = key
        self.reason = reason


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
    warnings: tuple[str, ...] = ()

    def route_table(self, salt: bytes, revision: int = 1) -> RouteTable:
        """The configured routes as revision ``revision``; ``salt`` is secret and random."""
        routes = {(r.model, r.size): _route(r) for r in self.document.route}
        names = {
            alias: ModelName(name, model.engine_model or name, model.aliases)
            for name, model in self.document.model.items()
            for alias in (name, *model.aliases)
        }
        pools = {name: pool.engines for name, pool in self.document.pool.items()}
        return RouteTable(revision, salt, MappingProxyType(routes), MappingProxyType(pools), names)

    def file(self, reference: str) -> Path:
        """The path of a file that the configuration names."""
        return _resolve(self.path, reference)

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
    return parse(_read_text(path, path, ""), path)


def parse(text: str, path: Path) -> Settings:
    """As ``load``, for a text that stands, or would stand, at ``path``."""
    document = _validated(schema.Document, text, path)
    _raise_first(path, reference_faults(document))
    for name, model in document.model.items():
        _readable(path, f"model.{name}.tokenizer", model.tokenizer)
        _check_template(path, name, model)
    keys_path = _resolve(path, document.auth.keys_file)
    keyring, warnings = read_keyring(keys_path, document, (path, "auth.keys_file"))
    flows = tuple(_flows(document))
    engines = _engines(path, document)
    _raise_first(path, floor_faults(document, flows, engines))
    sizes = tuple(
        SizeClass(name, s.max_prompt_tokens, s.ttft_limit_s, s.max_stall_s, s.e2e_limit_s)
        for name, s in _ordered_sizes(document)
    )
    warnings = (*warnings, *sharing_warnings(document))
    return Settings(path, document, keyring, sizes, flows, MappingProxyType(engines), warnings)


def read_keyring(
    path: Path, document: schema.Document, named_by: tuple[Path, str]
) -> tuple[Keyring, tuple[str, ...]]:
    """The keys file and warnings about it; also called alone to reload or revoke keys.

    Raises:
        ConfigError: the file can't be read, or a key names an unknown service class or model.
    """
    records = _validated(schema.KeyFile, _read_text(path, *named_by), path).key
    _raise_first(path, key_faults(records, document))
    entries = {
        key_id: _key_entry(record, document.service[record.service_class])
        for key_id, record in records.items()
    }
    open_to_all = path.stat().st_mode & stat.S_IROTH
    warning = f"{path}: readable by every user of this machine (chmod 640)"
    return Keyring(MappingProxyType(entries)), ((warning,) if open_to_all else ())


def _raise_first(path: Path, faults: Iterable[Fault]) -> None:
    for key, reason in faults:
        raise ConfigError(path, key, reason)


def _key_entry(record: schema.KeyRecord, service: schema.Service) -> KeyEntry:
    caps = [cap for cap in (record.max_in_flight, service.max_in_flight) if cap is not None]
    return KeyEntry(
        bytes.fromhex(record.sha256),
        record.service_class,
        None if record.models is None else frozenset(record.models),
        None if record.surfaces is None else frozenset(record.surfaces),
        min(caps, default=None),
    )


def _validated(shape: type[_M], text: str, path: Path) -> _M:
    try:
        return shape.model_validate(tomllib.loads(text))
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(path, "", f"not TOML: {error}") from error
    except ValidationError as error:
        # The input is left out of the message: it may be a secret in the wrong place.
        first = error.errors(include_input=False, include_url=False)[0]
        raise ConfigError(
            path, _dotted(first["loc"]), _reason(first["type"], first["msg"])
        ) from error


def _dotted(location: tuple[int | str, ...]) -> str:
    # Tables of an array are counted from one, as a reader of the file counts them.
    parts = (f"[{p + 1}]" if isinstance(p, int) else f".{p}" for p in location if p != "[key]")
    return "".join(parts).removeprefix(".")


_REASONS = MappingProxyType(
    {"extra_forbidden": "unknown key", "missing": "is required and has no default"}
)


def _reason(kind: str, message: str) -> str:
    return _REASONS.get(kind, message[0].lower() + message[1:].replace("Input ", ""))


def _read_text(path: Path, named_by: Path, key: str) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        what = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
        reason = f"{path} can't be read: {what}" if key else f"can't be read: {what}"
        raise ConfigError(named_by, key, reason) from error


def _resolve(config_path: Path, reference: str) -> Path:
    package, slash, inside = reference.removeprefix("package:").partition("/")
    if not (reference.startswith("package:") and slash):
        return config_path.parent / reference
    # find_spec locates a top-level package without running any of its code.
    spec = find_spec(package) if package.isidentifier() else None
    places = list(spec.submodule_search_locations or ()) if spec else []
    return Path(places[0], inside) if places else Path(reference)


def _readable(config_path: Path, key: str, reference: str) -> str:
    return _read_text(_resolve(config_path, reference), config_path, key)


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
    beside = _resolve(config_path, model.tokenizer).with_name("tokenizer_config.json")
    if not model.chat_template.endswith(".json"):
        described = _read_text(beside, config_path, key) if beside.is_file() else "{}"
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


def _engines(path: Path, document: schema.Document) -> dict[str, EngineLimits]:
    engines: dict[str, EngineLimits] = {}
    for name, pool in document.pool.items():
        limits = _limits(document, pool.limits)
        for engine in pool.engines:
            if engines.setdefault(engine, limits) != limits:
                raise ConfigError(
                    path, f"pool.{name}.limits", f"{engine} has other limits in another pool"
                )
    return engines


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

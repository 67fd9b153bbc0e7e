"""Decides whether the parts of a configuration fit together.

Each check yields faults, (key, reason), in the order of the file; none: the configuration is
sound. What one key may hold by itself is in ``schema``. Pure: no I/O, no clock.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from urllib.parse import urlsplit

from gateway import schema
from gateway.audit import ACTORS
from gateway.domain import EngineLimits, FlowSpec, Surface
from gateway.floors import broken_floors
from gateway.origin import is_loopback
from gateway.replicas import faults as unsharable
from gateway.replicas import owners, share
from gateway.routing import shared_engines

__all__ = [
    "Fault",
    "floor_faults",
    "issuer_faults",
    "key_faults",
    "reference_faults",
    "replica_faults",
    "revoked_faults",
    "sharing_warnings",
]

Fault = tuple[str, str]


def reference_faults(document: schema.Document) -> Iterator[Fault]:
    """Names that lead nowhere, are taken twice, or contradict each other."""
    for number, route in enumerate(document.route, 1):
        yield from _route_faults(f"route[{number}]", route, document)
    for size, services in document.flow.items():
        yield from _unknown(f"flow.{size}", size, document.size)
        for service in services:
            yield from _unknown(f"flow.{size}.{service}", service, document.service)
    yield from _name_faults(document)
    yield from _coverage_faults(document)
    yield from _isolation_faults(document)
    yield from issuer_faults(document)


def key_faults(
    records: Mapping[str, schema.KeyRecord], document: schema.Document
) -> Iterator[Fault]:
    """Keys that grant what is not configured."""
    for key_id, record in records.items():
        yield from _unknown(f"key.{key_id}.service_class", record.service_class, document.service)
        for model in record.models or ():
            yield from _unknown(f"key.{key_id}.models", model, _granted_names(document))


def _granted_names(document: schema.Document) -> dict[str, schema.Model]:
    """Models and their adapters: what a key may be granted by name."""
    loras = {lora: m for m in document.model.values() for lora in m.loras}
    return {**document.model, **loras}


def revoked_faults(revoked: Sequence[str], document: schema.Document) -> Iterator[Fault]:
    """Revoked tokens that are named twice, or of an issuer that is not configured."""
    for name, times in Counter(revoked).items():
        at = f"revoked[{revoked.index(name) + 1}]"
        if times > 1:
            yield at, "stands there twice"
        yield from _unknown(at, name.partition(":")[0], {"jti": None, **document.auth.jwt})


def issuer_faults(document: schema.Document) -> Iterator[Fault]:
    """Issuers of tokens whose keys, algorithms and grants do not fit together."""
    named = Counter(issuer.issuer for issuer in document.auth.jwt.values())
    for name, issuer in document.auth.jwt.items():
        at = f"auth.jwt.{name}"
        if name == "jti":
            yield at, "can't be a name: it marks token ids among the revoked"
        if named[issuer.issuer] > 1:
            yield f"{at}.issuer", "several tables have this issuer"
        yield from _key_source_faults(at, issuer)
        yield from _grant_faults(at, issuer, document)


def _key_source_faults(at: str, issuer: schema.JwtIssuer) -> Iterator[Fault]:
    given = [p for p in (issuer.jwks_url, issuer.jwks_file, issuer.secret_file) if p is not None]
    if len(given) != 1:
        yield at, "needs exactly one of jwks_url, jwks_file and secret_file"
    # A public key is no secret: were both kinds allowed, it could be used to sign.
    shared = {name for name in issuer.algorithms if name.startswith("HS")}
    if issuer.secret_file is not None and len(shared) < len(issuer.algorithms):
        yield f"{at}.algorithms", "a secret_file allows HS256, HS384 and HS512 only"
    if issuer.secret_file is None and shared:
        yield f"{at}.algorithms", f"{min(shared)} needs a secret_file"
    if issuer.jwks_url is not None and not _may_fetch(issuer.jwks_url):
        yield f"{at}.jwks_url", "must be https://HOST..., or http:// on this machine's loopback"
    if issuer.max_stale_s < issuer.refresh_s:
        yield f"{at}.max_stale_s", "is less than refresh_s"


def _may_fetch(url: str) -> bool:
    try:
        parts = urlsplit(url)
        host, user = parts.hostname or "", parts.username
        _ = parts.port
    except ValueError:
        return False
    if not host or user is not None or not url.isascii() or not url.isprintable() or " " in url:
        return False
    return parts.scheme == "https" or (parts.scheme == "http" and is_loopback(host))


def _grant_faults(at: str, issuer: schema.JwtIssuer, document: schema.Document) -> Iterator[Fault]:
    if issuer.service_class is not None:
        yield from _unknown(f"{at}.service_class", issuer.service_class, document.service)
    for value, service_class in issuer.service_classes.items():
        yield from _unknown(f"{at}.service_classes.{value}", service_class, document.service)
    if (issuer.service_class_claim is None) != (not issuer.service_classes):
        yield at, "service_class_claim and service_classes need each other"
    elif issuer.service_class_claim is None and issuer.service_class is None:
        yield at, "needs a service_class, or service_class_claim and service_classes"


def floor_faults(
    document: schema.Document, flows: Sequence[FlowSpec], pools: Mapping[str, EngineLimits]
) -> Iterator[Fault]:
    """Pools whose limits would starve a flow that uses them, or shares engines with them."""
    for name, pool in document.pool.items():
        beside = _pools_beside(document, pool)
        users = {
            (route.model, route.size)
            for route in document.route
            if {route.pool, route.candidate_pool} & beside
        }
        specs = [flow for flow in flows if (flow.model, flow.size_class) in users]
        count = document.replicas.count
        owner = owners([name], count)[name]
        for reason in broken_floors(specs, share(pools[name], name, owner, count)):
            yield f"pool.{name}", reason


def replica_faults(document: schema.Document, pools: Mapping[str, EngineLimits]) -> Iterator[Fault]:
    """Engines that several gateways can't share, or that have other limits in another pool."""
    engines: dict[str, EngineLimits] = {}
    for name, pool in document.pool.items():
        for engine in pool.engines:
            if engines.setdefault(engine, pools[name]) != pools[name]:
                yield f"pool.{name}.limits", f"{engine} has other limits in another pool"
    if any(pool.dns for pool in document.pool.values()):
        return  # how many engines there are is not known yet
    served: dict[str, set[str]] = {size: set() for size in document.size}
    for route in document.route:
        for used in (route.pool, route.candidate_pool):
            served[route.size].update(document.pool[used].engines if used else ())
    for reason in unsharable(engines, document.replicas.count, served):
        yield "replicas.count", reason


def _pools_beside(document: schema.Document, pool: schema.Pool) -> set[str | None]:
    mine = set(pool.engines)
    return {
        name
        for name, other in document.pool.items()
        if other is pool or mine & set(other.engines) or (pool.dns and pool.dns == other.dns)
    }


def _unknown(key: str, name: str, names: Mapping[str, object]) -> Iterator[Fault]:
    if name not in names:
        yield key, f"{name!r} is not configured (known: {', '.join(names)})"


def _route_faults(at: str, route: schema.Route, document: schema.Document) -> Iterator[Fault]:
    yield from _unknown(f"{at}.model", route.model, document.model)
    yield from _unknown(f"{at}.size", route.size, document.size)
    yield from _unknown(f"{at}.pool", route.pool, document.pool)
    if route.candidate_pool is not None:
        yield from _unknown(f"{at}.candidate_pool", route.candidate_pool, document.pool)
        yield from _candidate_faults(at, route, document)
    elif route.candidate_weight:
        yield f"{at}.candidate_weight", "needs a candidate_pool"


def _candidate_faults(at: str, route: schema.Route, document: schema.Document) -> Iterator[Fault]:
    pools = [document.pool[n] for n in (route.pool, route.candidate_pool) if n in document.pool]
    if len(pools) < 2:
        return
    if set(pools[0].engines) & set(pools[1].engines):
        yield f"{at}.candidate_pool", "shares an engine with the stable pool"
    for key in ("model_revision", "data_region"):
        stable, candidate = (getattr(pool, key) for pool in pools)
        if stable != candidate:
            yield (
                f"{at}.candidate_pool",
                f"its {key} is {candidate or 'not given'}, and the stable pool's is "
                f"{stable or 'not given'}",
            )


def _served_faults(name: str, pool: schema.Pool, document: schema.Document) -> Iterator[Fault]:
    """Models of a pool that are unknown, or routed there without being among them."""
    if pool.models is None:
        return
    for model in pool.models:
        yield from _unknown(f"pool.{name}.models", model, document.model)
    routed = {r.model for r in document.route if name in {r.pool, r.candidate_pool}}
    for model in sorted(routed - set(pool.models)):
        yield f"pool.{name}.models", f"a route leads {model!r} there"


def _name_faults(document: schema.Document) -> Iterator[Fault]:
    yield from _model_faults(document)
    for token, times in Counter(token.name for token in document.admin.tokens).items():
        if times > 1:
            yield "admin.tokens", f"{token!r} is the name of several tokens"
        if token in ACTORS:
            reason = f"{token!r} is what the gateway calls itself in the audit trail and the log"
            yield "admin.tokens", f"{reason}: name the token after who holds it"
    bounds = Counter(size.max_prompt_tokens for size in document.size.values())
    if any(times > 1 for times in bounds.values()):
        yield "size", "two size classes have the same max_prompt_tokens"


def _model_faults(document: schema.Document) -> Iterator[Fault]:
    owners = {name: name for name in document.model}
    for name, model in document.model.items():
        for alias in model.aliases:
            if alias in document.model or owners.setdefault(alias, name) != name:
                yield f"model.{name}.aliases", f"{alias!r} already names {owners[alias]!r}"
    for name, model in document.model.items():
        for lora in model.loras:
            if owners.setdefault(lora, f"an adapter of {name}") != f"an adapter of {name}":
                yield f"model.{name}.loras", f"{lora!r} already names {owners[lora]!r}"
        if Surface.TRANSCRIPTIONS in model.surfaces and model.transcription_tokens is None:
            yield f"model.{name}.transcription_tokens", "is needed to serve transcriptions"


def _coverage_faults(document: schema.Document) -> Iterator[Fault]:
    routed = Counter((route.model, route.size) for route in document.route)
    for (model, size), times in routed.items():
        if times > 1:
            yield "route", f"model {model!r}, size {size!r} has more than one route"
    for model in document.model:
        for size in document.size:
            if not routed[model, size]:
                yield "route", f"model {model!r}, size {size!r} has no route"


def _isolation_faults(document: schema.Document) -> Iterator[Fault]:
    yield from _tls_faults("upstream.tls", document.upstream.tls)
    replicas = document.replicas
    if replicas.index is not None and replicas.index >= replicas.count:
        yield "replicas.index", f"counts from 0 to {replicas.count - 1}"
    for name, pool in document.pool.items():
        yield from _pool_faults(name, pool)
        yield from _served_faults(name, pool, document)
    if document.isolation == "required":
        for reason in sharing_warnings(document):
            yield "isolation", f"required, but {reason}"


def _pool_faults(name: str, pool: schema.Pool) -> Iterator[Fault]:
    at = f"pool.{name}"
    if pool.dns is None and not pool.engines:
        yield f"{at}.engines", "names no engine (or give the pool a dns name instead)"
    if pool.dns is not None and pool.engines:
        yield f"{at}.dns", "a pool has either engines or a dns name"
    if pool.max_engines is not None and pool.max_engines < len(pool.engines):
        yield f"{at}.max_engines", f"is below the {len(pool.engines)} engines that are named"
    if len(set(pool.engines)) < len(pool.engines):
        yield f"{at}.engines", "names an engine twice"
    for key, origin in (*(("engines", e) for e in pool.engines), ("dns", pool.dns or "")):
        port = origin.rsplit("/", 1)[-1].rpartition(":")[2]
        if origin.startswith("http") and port.isdigit() and not 0 < int(port) < 65536:
            yield f"{at}.{key}", f"{origin}: the port must be 1..65535"
    yield from _tls_faults(f"{at}.tls", pool.tls or schema.EngineTls())


def _tls_faults(at: str, tls: schema.EngineTls) -> Iterator[Fault]:
    if (tls.client_cert_file is None) != (tls.client_key_file is None):
        yield at, "client_cert_file and client_key_file are needed together"


def sharing_warnings(document: schema.Document) -> list[str]:
    """Pools that are not isolated from each other, because they name the same engine."""
    named = {n: (*p.engines, *((p.dns,) if p.dns else ())) for n, p in document.pool.items()}
    shared = shared_engines(named)
    return [f"{engine} is in the pools {' and '.join(names)}" for engine, names in shared.items()]

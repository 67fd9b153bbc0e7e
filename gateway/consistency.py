"""Decides whether the parts of a configuration fit together.

Each check yields faults, (key, reason), in the order of the file; none: the configuration is
sound. What one key may hold by itself is in ``schema``. Pure: no I/O, no clock.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from gateway import schema
from gateway.domain import EngineLimits, FlowSpec
from gateway.floors import broken_floors
from gateway.routing import shared_engines

__all__ = ["Fault", "floor_faults", "key_faults", "reference_faults", "sharing_warnings"]

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


def key_faults(
    records: Mapping[str, schema.KeyRecord], document: schema.Document
) -> Iterator[Fault]:
    """Keys that grant what is not configured."""
    for key_id, record in records.items():
        yield from _unknown(f"key.{key_id}.service_class", record.service_class, document.service)
        for model in record.models or ():
            yield from _unknown(f"key.{key_id}.models", model, document.model)


def floor_faults(
    document: schema.Document, flows: Sequence[FlowSpec], engines: Mapping[str, EngineLimits]
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
        for reason in broken_floors(specs, engines[pool.engines[0]]):
            yield f"pool.{name}", reason


def _pools_beside(document: schema.Document, pool: schema.Pool) -> set[str | None]:
    mine = set(pool.engines)
    return {name for name, other in document.pool.items() if mine & set(other.engines)}


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
    if len(pools) == 2 and set(pools[0].engines) & set(pools[1].engines):
        yield f"{at}.candidate_pool", "shares an engine with the stable pool"


def _name_faults(document: schema.Document) -> Iterator[Fault]:
    owners = {name: name for name in document.model}
    for name, model in document.model.items():
        for alias in model.aliases:
            if alias in document.model or owners.setdefault(alias, name) != name:
                yield f"model.{name}.aliases", f"{alias!r} already names {owners[alias]!r}"
    for token, times in Counter(token.name for token in document.admin.tokens).items():
        if times > 1:
            yield "admin.tokens", f"{token!r} is the name of several tokens"
    bounds = Counter(size.max_prompt_tokens for size in document.size.values())
    if any(times > 1 for times in bounds.values()):
        yield "size", "two size classes have the same max_prompt_tokens"


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
    for name, pool in document.pool.items():
        if len(set(pool.engines)) < len(pool.engines):
            yield f"pool.{name}.engines", "names an engine twice"
        for engine in pool.engines:
            port = engine.rsplit("/", 1)[1].rpartition(":")[2]
            if port.isdigit() and not 0 < int(port) < 65536:
                yield f"pool.{name}.engines", f"{engine}: the port must be 1..65535"
    if document.isolation == "required":
        for reason in sharing_warnings(document):
            yield "isolation", f"required, but {reason}"


def sharing_warnings(document: schema.Document) -> list[str]:
    """Pools that are not isolated from each other, because they name the same engine."""
    shared = shared_engines({name: pool.engines for name, pool in document.pool.items()})
    return [f"{engine} is in the pools {' and '.join(names)}" for engine, names in shared.items()]

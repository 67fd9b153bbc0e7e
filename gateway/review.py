"""Looks for what a sound configuration may still get wrong, and says what one replica may do.

Nothing here stops a gateway: each warning names the key and what follows from it.
"""

import stat
from collections.abc import Iterator, Sequence
from operator import itemgetter

from gateway.config import Settings, SizeClass
from gateway.domain import EngineLimits, FlowSpec
from gateway.origin import UNIX, Origin, is_loopback

__all__ = ["replica_words", "warnings_of"]

# What a token of JSON-escaped text takes at most in practice; English takes four.
BYTES_PER_TOKEN = 8
# Rounds in which a flow pays for its largest prompt; the default settings take some twenty.
MOST_ROUNDS = 1000


def warnings_of(settings: Settings) -> list[str]:
    """Everything worth a second look, in the order of the file."""
    found = (
        _bodies(settings),
        _listeners(settings),
        _secrets(settings),
        _counting(settings),
        _scheduling(settings),
        _sizes(settings),
        _queues(settings),
        _pools(settings),
        _routes(settings),
    )
    return [warning for group in found for warning in group]


def replica_words(settings: Settings) -> list[str]:
    """What this gateway may have outstanding on each engine, one line per engine."""
    count = settings.document.replicas.count
    who = "this gateway" if count == 1 else f"replica {settings.replica + 1} of {count}"
    return [f"{who} may have on {engine}: {_may(has)}" for engine, has in settings.engines.items()]


def _may(limits: EngineLimits) -> str:
    caps = "".join(
        f", {cap} {name} in prefill" if cap else f", no {name}"
        for name, cap in limits.max_prefilling
    )
    return (
        f"{limits.slots} sequences, {limits.prefill_tokens} prompt tokens in prefill, "
        f"{limits.kv_tokens} KV tokens{caps}"
    )


def _bodies(settings: Settings) -> Iterator[str]:
    server = settings.document.server
    largest = settings.sizes[-1].max_prompt_tokens
    if server.max_body_bytes < BYTES_PER_TOKEN * largest:
        yield (
            f"server.max_body_bytes: {server.max_body_bytes} may be too small for the largest "
            f"prompt of {largest} tokens ({BYTES_PER_TOKEN * largest} bytes are safe)"
        )
    own = int(server.principal_share * server.max_held_bytes)
    if own < server.max_body_bytes:
        yield (
            f"server.max_held_bytes: one key may hold {own} bytes of it (principal_share), less "
            f"than one body of max_body_bytes"
        )
    yield from _own_requests("server", server.principal_share, server.max_requests)


def _listeners(settings: Settings) -> Iterator[str]:
    admin = settings.document.admin
    if admin.tls is None and not (admin.host.startswith(UNIX) or is_loopback(admin.host)):
        yield f"admin.host: {admin.host} is not loopback, and tokens cross it without TLS"
    if not admin.tokens:
        yield "admin.tokens: there are none, so nobody can look at /admin or change anything"
    for token in admin.tokens:
        if not token.sha256.strip("0"):
            yield f"admin.tokens: {token.name!r} is the example's, and nobody has its token"


def _secrets(settings: Settings) -> Iterator[str]:
    document = settings.document
    for section, tls in (("server", document.server.tls), ("admin", document.admin.tls)):
        path = settings.file(tls.key_file) if tls is not None else None
        if path is not None and path.exists() and path.stat().st_mode & stat.S_IROTH:
            yield f"{section}.tls.key_file: {path} is readable by every user (chmod 640)"


def _counting(settings: Settings) -> Iterator[str]:
    counting, server = settings.document.counting, settings.document.server
    own = int(server.principal_share * counting.max_bytes)
    if own < server.max_body_bytes:
        yield (
            f"counting.max_bytes: one key may hold {own} bytes of it (server.principal_share), "
            f"less than one body of server.max_body_bytes"
        )
    yield from _own_requests("counting", server.principal_share, counting.max_requests)


def _own_requests(section: str, share: float, most: int) -> Iterator[str]:
    if int(share * most) < 1:
        yield (
            f"server.principal_share: {share:g} of {section}.max_requests {most} is less than "
            "one request; each key gets one"
        )


def _scheduling(settings: Settings) -> Iterator[str]:
    """The quantum beside the costs and weights of flows that compete, in the first such pool."""
    for pool, flows in _competing(settings).items():
        found = _too_large(settings, pool, flows) or _too_small(settings, pool, flows)
        if found is not None:
            yield f"scheduling.quantum: {settings.document.scheduling.quantum} {found}"
            return


def _too_large(settings: Settings, pool: str, flows: Sequence[FlowSpec]) -> str | None:
    """Turns as long as in deficit rounds: nobody's largest prompt has to be paid for later."""
    scheduling, lightest = settings.document.scheduling, min(flows, key=lambda f: f.weight)
    cost = max(_cost(flow, scheduling.beta) for flow in flows)
    round_s = sum(f.weight for f in flows) * scheduling.quantum / _rate(settings, pool)
    here = {flow.size_class for flow in flows}
    limit_s = min(size.ttft_limit_s for size in settings.sizes if size.name in here)
    if lightest.weight * scheduling.quantum < cost or round_s <= limit_s:
        return None
    return (
        f"gives even {lightest.name} a whole largest prompt ({cost:.0f}) on each turn, so a round "
        f"of pool {pool!r} takes {round_s:.1f} s, more than a TTFT limit of {limit_s:g} s; "
        f"{0.1 * cost / lightest.weight:.0f} is enough"
    )


def _too_small(settings: Settings, pool: str, flows: Sequence[FlowSpec]) -> str | None:
    """Rounds in which a flow still pays for one prompt, beyond any use."""
    scheduling = settings.document.scheduling
    rounds, flow = max(
        ((_cost(f, scheduling.beta) / (f.weight * scheduling.quantum), f) for f in flows),
        key=itemgetter(0),
    )
    if rounds <= MOST_ROUNDS:
        return None
    return (
        f"is so small that {flow.name} is passed over for {rounds:.0f} rounds of pool {pool!r} "
        "after one largest prompt"
    )


def _competing(settings: Settings) -> dict[str, list[FlowSpec]]:
    """The flows of each pool that has several."""
    users = {name: list[FlowSpec]() for name in settings.document.pool}
    for route in settings.document.route:
        for pool in filter(None, (route.pool, route.candidate_pool)):
            served = (f for f in settings.flows if f.group[:2] == (route.model, route.size))
            users[pool] += served
    return {pool: flows for pool, flows in users.items() if len(flows) > 1}


def _cost(flow: FlowSpec, beta: float) -> float:
    """What its largest request costs: prompt tokens, and ``beta`` for each of the output."""
    return flow.largest_prompt_tokens + beta * flow.output_estimate_tokens


def _rate(settings: Settings, pool: str) -> float:
    """Prompt tokens per second of all its engines; of one where they are not named."""
    engines = max(1, len(settings.document.pool[pool].engines))
    return settings.pool_limits[pool].prefill_tokens_per_s * engines


def _sizes(settings: Settings) -> Iterator[str]:
    for size in settings.sizes:
        short = _too_short(settings, size)
        if short:
            yield (
                f"size.{size.name}.max_prompt_tokens: {size.max_prompt_tokens} is more than "
                f"max_model_len of {', '.join(short)}; longer prompts are refused"
            )


def _too_short(settings: Settings, size: SizeClass) -> list[str]:
    models = settings.document.model.items()
    return [
        f"{name} ({model.max_model_len})"
        for name, model in models
        if size.max_prompt_tokens > model.max_model_len
    ]


def _queues(settings: Settings) -> Iterator[str]:
    for flow in settings.flows:
        at = f"flow.{flow.size_class}.{flow.service_class}"
        if flow.max_queued_tokens < flow.largest_prompt_tokens:
            yield (
                f"{at}.max_queued_tokens: {flow.max_queued_tokens} is less than the largest "
                f"prompt of {flow.name}, {flow.largest_prompt_tokens}, which could never wait"
            )
        slots = _slots(settings, flow)
        if int(flow.principal_share * (flow.max_queued + slots)) < 1:
            yield (
                f"{at}.principal_share: {flow.principal_share:g} of max_queued {flow.max_queued} "
                f"and the engines' {slots} slots is less than one request; each key gets one of "
                f"{flow.name}"
            )
        prefill_s = _prefill_s(settings, flow)
        if flow.max_age_s < prefill_s:
            yield (
                f"{at}.max_age_s: {flow.max_age_s:g} is less than the {prefill_s:.2g} s that one "
                f"prefill of {flow.name} takes at prefill_tokens_per_s: what waits behind one "
                "expires"
            )


def _prefill_s(settings: Settings, flow: FlowSpec) -> float:
    """How long its largest prompt is in prefill on the slowest engines that it may go to."""
    rates = [settings.pool_limits[p].prefill_tokens_per_s for p in _pools_of(settings, flow)]
    return flow.largest_prompt_tokens / min(rates)


def _slots(settings: Settings, flow: FlowSpec) -> int:
    """The most slots that the engines of one of its pools may have together."""
    pools, limits = settings.document.pool, settings.pool_limits
    return max(limits[p].slots * pools[p].engine_bound for p in _pools_of(settings, flow))


def _pools_of(settings: Settings, flow: FlowSpec) -> list[str]:
    return [
        pool
        for route in settings.document.route
        for pool in filter(None, (route.pool, route.candidate_pool))
        if (route.model, route.size) == flow.group[:2]
    ]


def _pools(settings: Settings) -> Iterator[str]:
    for name, limits in settings.pool_limits.items():
        if not limits.fcfs:
            yield (
                f"pool.{name}.limits.policy: priority is not verified by this check; ask an idle "
                "engine: sluicegate engines probe URL --model NAME"
            )
    spelled: dict[str, str] = {}
    for engine in settings.engines:
        other = spelled.setdefault(_address(engine), engine)
        if other != engine:
            yield f"pool: {other} and {engine} are one address, and counted as two engines"


def _address(engine: str) -> str:
    origin = Origin.parse(engine)
    if origin.path is not None:
        return origin.path
    host = origin.host.rstrip(".")
    return f"{'127.0.0.1' if host in {'localhost', '::1'} else host}:{origin.port}"


def _routes(settings: Settings) -> Iterator[str]:
    for number, route in enumerate(settings.document.route, 1):
        if route.candidate_pool is not None and route.candidate_weight == 0.0:
            yield (
                f"route[{number}].candidate_weight: is 0, so nobody goes to the pool "
                f"{route.candidate_pool!r}"
            )

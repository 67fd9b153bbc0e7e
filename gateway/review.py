"""Looks for what a sound configuration may still get wrong, and says what one replica may do.

Nothing here stops a gateway: each warning names the key and what follows from it.
"""

import stat
from collections.abc import Iterator

from gateway.config import Settings
from gateway.domain import EngineLimits
from gateway.origin import UNIX, Origin, is_loopback

__all__ = ["replica_words", "warnings_of"]

# What a token of JSON-escaped text takes at most in practice; English takes four.
BYTES_PER_TOKEN = 8


def warnings_of(settings: Settings) -> list[str]:
    """Everything worth a second look, in the order of the file."""
    found = (
        _bodies(settings),
        _listeners(settings),
        _secrets(settings),
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


def _queues(settings: Settings) -> Iterator[str]:
    for flow in settings.flows:
        at = f"flow.{flow.size_class}.{flow.service_class}"
        if flow.max_queued_tokens < flow.largest_prompt_tokens:
            yield (
                f"{at}.max_queued_tokens: {flow.max_queued_tokens} is less than its largest "
                f"prompt of {flow.largest_prompt_tokens}, which could never wait (model "
                f"{flow.model})"
            )


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

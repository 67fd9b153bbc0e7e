"""Decides what an ``[auth.jwt.NAME]`` table means: the rules for an issuer's tokens and its keys.

Pure: no I/O, no clock.
"""

from collections.abc import Mapping

from gateway import schema
from gateway.keysets import KeySet, KeySource, parse_jwks, shared_secret
from gateway.tokens import Grants, Issuer, TokenRules

__all__ = ["issuer_of", "key_set_of"]


def issuer_of(
    name: str,
    table: schema.JwtIssuer,
    services: Mapping[str, schema.Service],
    keys_path: str,
    key_set: KeySet | None,
) -> Issuer:
    """The issuer a table describes; ``keys_path`` and ``key_set`` are those of its file."""
    grants = Grants(
        table.service_class,
        table.service_class_claim,
        tuple(table.service_classes.items()),
        table.principal_claim,
        table.models_claim,
        table.surfaces_claim,
        tuple((s, given.in_flight_cap(table.max_in_flight)) for s, given in services.items()),
    )
    rules = TokenRules(
        name,
        table.issuer,
        frozenset(table.audience),
        frozenset(table.algorithms),
        grants,
        table.leeway_s,
        table.max_lifetime_s,
    )
    path = keys_path if table.jwks_file is not None else ""
    source = KeySource(table.jwks_url or "", path, table.refresh_s, table.max_stale_s)
    return Issuer(rules, source, key_set)


def key_set_of(table: schema.JwtIssuer, raw: bytes) -> KeySet:
    """The key set in an issuer's file: a JWKS document, or a secret on a line of its own.

    Raises:
        KeySetError: it can't be used.
    """
    if table.secret_file is None:
        return parse_jwks(raw)
    return shared_secret(raw.rstrip(b"\r\n"), frozenset(table.algorithms))

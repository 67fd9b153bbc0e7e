"""Declares the flags by which a verb finds running gateways, asks those, and prints answers."""

import argparse
import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from gateway.admin_client import ADMIN_URL, URL_VARIABLE, Admin, client_tls, usual_url
from gateway.command import UsageError, add_json

__all__ = ["TOKEN_VARIABLE", "add_admin_flags", "admins_of", "look", "print_answers"]

TOKEN_VARIABLE = "SLUICEGATE_ADMIN_TOKEN"  # noqa: S105  the variable's name


def add_admin_flags(parser: Any, *, optional: bool = False) -> None:
    """Declare ``--admin-url``, the flags beside it, and ``--json``.

    Args:
        parser: of the verb.
        optional: no gateway is spoken to unless one is named.
    """
    usual = "left out: none is asked" if optional else f"${URL_VARIABLE}, or {ADMIN_URL}"
    parser.add_argument(
        "--admin-url",
        action="append",
        metavar="URL",
        help=f"a gateway's admin listener; of several, all change or none ({usual})",
    )
    parser.add_argument(
        "--token-file", type=Path, metavar="FILE", help=f"default: ${TOKEN_VARIABLE}"
    )
    parser.add_argument(
        "--ca-file", type=Path, metavar="FILE", help="authority of their certificates"
    )
    parser.add_argument("--cert-file", type=Path, metavar="FILE", help="shown to them")
    parser.add_argument("--key-file", type=Path, metavar="FILE", help="of --cert-file")
    add_json(parser)


def admins_of(args: argparse.Namespace) -> list[Admin]:
    """The gateways that the flags name, or the usual one.

    Raises:
        UsageError: a flag can't be used, or there is no token.
    """
    urls = args.admin_url or [usual_url()]
    if len(set(urls)) < len(urls):
        raise UsageError("--admin-url: names a gateway twice")
    if (args.cert_file is None) != (args.key_file is None):
        raise UsageError("--cert-file and --key-file need each other")
    tls = client_tls(args.ca_file, args.cert_file, args.key_file)
    token = _token(args.token_file)
    return [Admin(url.rstrip("/"), token, tls) for url in urls]


def look(args: argparse.Namespace, path: str) -> list[tuple[str, dict[str, Any]]]:
    """What each named gateway answers at ``path``, beside its address; raises ``AdminError``."""
    return [(admin.url, admin.get(path)) for admin in admins_of(args)]


def print_answers(answers: Iterable[tuple[str, Mapping[str, Any]]]) -> None:
    """Print what each gateway answered, its address with it, as one line of JSON."""
    print(json.dumps([{"url": url, **answer} for url, answer in answers]))


def _token(file: Path | None) -> str:
    text = os.environ.get(TOKEN_VARIABLE, "") if file is None else file.read_text()
    token = text.strip()
    if not token.isascii() or not token.isprintable() or not token:
        where = f"${TOKEN_VARIABLE} (or --token-file)" if file is None else str(file)
        raise UsageError(f"{where}: holds no token")
    return token

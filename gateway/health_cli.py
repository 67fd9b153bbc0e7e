"""The verb ``health``: asks a running gateway whether it is ready, or only alive.

For containers and scripts. It needs no token. Exit codes: 0 yes; 1 no, or it can't be reached;
2 wrong usage.
"""

import argparse
import json
from pathlib import Path
from typing import Any

import httpx

from gateway.admin_client import (
    ADMIN_URL,
    URL_VARIABLE,
    client_of,
    client_tls,
    unreached,
    usual_url,
)
from gateway.command import Said, add_json, add_verb

__all__ = ["add_health_verb"]


def _health(args: argparse.Namespace) -> int:
    path = "/health/live" if args.live else "/health/ready"
    url = (args.admin_url or usual_url()).rstrip("/")
    good, told = _ask(url, path, args)
    if args.json:
        print(json.dumps({"url": url, "ok": good, **told}))
        return 0 if good else 1
    reasons = told.get("reasons") or [told["status"]]
    print(f"{url}  {', '.join(reasons)}")
    for name, pool in told.get("pools", {}).items():
        print(f"  pool {name}: {pool['up']} of {pool['engines']} engines up")
    return 0 if good else 1


def _ask(url: str, path: str, args: argparse.Namespace) -> tuple[bool, dict[str, Any]]:
    """Whether it says yes, and all that it says."""
    tls = client_tls(args.ca_file, None, None)
    try:
        with client_of(url, tls, args.timeout) as client:
            answer = client.get(path)
            told = answer.json()
    except (httpx.HTTPError, httpx.InvalidURL, ValueError) as error:
        return False, {"status": unreached(error)}
    if not isinstance(told, dict) or "status" not in told:
        return False, {"status": f"answered {answer.status_code}, but is no gateway"}
    return answer.status_code == 200, told


def add_health_verb(verbs: Any, said: Said) -> None:
    """Declare ``health``."""
    health = add_verb(verbs, "health", _health, said["health"], _HEALTH)
    health.add_argument("--live", action="store_true", help="only whether it answers, ready or not")
    health.add_argument(
        "--admin-url",
        metavar="URL",
        help=f"its admin listener (${URL_VARIABLE}, or {ADMIN_URL})",
    )
    health.add_argument("--ca-file", type=Path, metavar="FILE", help="authority of its certificate")
    health.add_argument(
        "--timeout", type=float, default=3.0, metavar="SECONDS", help="for the answer (3)"
    )
    add_json(health)


_HEALTH = """  sluicegate health
  sluicegate health --live --admin-url http://gateway-1:8081
  until sluicegate health; do sleep 1; done
"""

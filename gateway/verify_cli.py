"""The verb that holds a rollback record against what runs; finds records by file or digest.

Exit codes as ``manifest_cli``: 0 verified; 3 drifted; 4 something could not be verified.
"""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from gateway.admin_client import Admin
from gateway.admin_flags import add_admin_flags, admins_of
from gateway.command import UsageError, add_verb
from gateway.drift import Facts, State, compare
from gateway.manifest import Record, opened
from gateway.manifest_fields import RecordError
from gateway.manifest_files import read_launch, read_sealed, sealed_beside
from gateway.record_flags import add_evidence_flags, options_of

if TYPE_CHECKING:
    from gateway.endpoint import Endpoint

__all__ = ["add_verify_verb", "find_record", "named_admins"]

EXIT = MappingProxyType({"verified": 0, "drifted": 3, "unverifiable": 4})


def named_admins(args: argparse.Namespace) -> list[Admin]:
    """The gateways that ``--admin-url`` names; left out: none."""
    return admins_of(args) if args.admin_url else []


def find_record(reference: str, folder: Path, admins: Sequence[Admin]) -> Record:
    """A record by its file; or by its digest, of a file in ``folder`` or kept by a gateway."""
    if Path(reference).exists():
        return read_sealed(Path(reference))
    if not all(c in "0123456789abcdef" for c in reference) or len(reference) < 8:
        raise RecordError(f"{reference}: no such file, and no digest")
    if (found := sealed_beside(folder, reference)) is not None:
        return found
    if not admins:
        raise RecordError(f"{reference}: no sealed record in {folder} has this digest")
    return opened(admins[0].get(f"/admin/manifests?digest={reference}")["manifest"])


def _verify(args: argparse.Namespace) -> int:
    import asyncio  # noqa: PLC0415  not needed by other verbs

    from gateway.inspect_engine import inspect_engine  # noqa: PLC0415

    admins = named_admins(args)
    _check_verify(args, admins)
    if args.pool is not None and not args.engine:
        return _tell(args, [row for admin in admins for row in _by_gateway(args, admin)])
    record = find_record(args.record, Path(), admins)
    launch = tuple(map(read_launch, args.launch_record))
    gateway = _gateway_facts(args, admins)
    key = None if args.api_key_file is None else args.api_key_file.read_text().strip()
    found = []
    for url in args.engine:
        endpoint = _endpoint(url.rstrip("/"), args.engine_ca_file)
        seen = asyncio.run(inspect_engine(record, endpoint, args.timeout, key))
        facts = Facts(seen.engine, launch, gateway, seen.started_s)
        found.append(compare(record, url, facts, args.accept_unverified))
    told = [one.told() for one in found]
    if any(one.accepted for one in found):
        for admin in admins:
            admin.post("/admin/manifests/verifications", {"found": told, "why": args.why})
    return _tell(args, told)


def _endpoint(url: str, ca_file: Path | None) -> "Endpoint":
    from gateway.endpoint import Endpoint, EngineTlsError, engine_context  # noqa: PLC0415
    from gateway.schema import EngineTls  # noqa: PLC0415

    if not url.startswith("https:"):
        return Endpoint(url)
    try:
        tls = EngineTls(ca_file=None if ca_file is None else str(ca_file))
        return Endpoint(url, engine_context(tls, Path))
    except EngineTlsError as error:
        raise UsageError(f"--engine-ca-file: {error.reason}") from error


def _check_verify(args: argparse.Namespace, admins: Sequence[Admin]) -> None:
    if not args.engine and args.pool is None:
        raise UsageError("name an engine with --engine, or a pool with --pool and --admin-url")
    if args.pool is not None and not admins:
        raise UsageError("--pool: needs --admin-url, of the gateway that has it")
    if args.accept_unverified and not admins:
        raise UsageError(
            "--accept-unverified: is written to a gateway's audit; name it with --admin-url"
        )


def _by_gateway(args: argparse.Namespace, admin: Admin) -> list[dict[str, Any]]:
    body = {**options_of(args.record, args), "pool": args.pool, "why": args.why}
    found: list[dict[str, Any]] = admin.post("/admin/manifests/verifications", body)["engines"]
    return found


def _gateway_facts(args: argparse.Namespace, admins: Sequence[Admin]) -> dict[str, Any] | None:
    if args.pool is None:
        return None
    told: dict[str, Any] = admins[0].get(f"/admin/manifests?pool={args.pool}")["gateway"]
    return told


def _tell(args: argparse.Namespace, found: Sequence[dict[str, Any]]) -> int:
    verdicts = {one["verdict"] for one in found}
    worst = next(v for v in ("drifted", "unverifiable", "verified") if v in verdicts)
    if args.json:
        print(json.dumps({"verdict": worst, "engines": list(found)}))
        return EXIT[worst]
    for one in found:
        _tell_engine(one)
    return EXIT[worst]


def _tell_engine(one: dict[str, Any]) -> None:
    print(f"{one['engine']}: {one['verdict']}  (record {one['record'][:12]})")
    rows = one["fields"]
    for state in State:
        names = [row for row in rows if row["state"] == state]
        print(f"  {state}: {len(names)}")
        for row in names:
            if state is not State.MATCHED:
                print(f"    {_line(row, one['accepted_unverified'])}")
    for digest in one["launch_record_sha256"]:
        print(f"  launch record sha256:{digest}")
    if sections := dict.fromkeys(name.partition(".")[0] for name in one["not_compared"]):
        asked = " (--pool and --admin-url ask a gateway)" if "route" in sections else ""
        print(f"  not compared: {', '.join(sections)}{asked}")


def _line(row: dict[str, Any], accepted: Sequence[str]) -> str:
    name, expected = row["field"], json.dumps(row["expected"])
    if row["state"] == State.DRIFTED:
        return f"{name}: recorded {expected}, found {json.dumps(row['seen'])} ({row['by']})"
    return f"{name}: recorded {expected}; " + ("accepted" if name in accepted else row["by"])


def add_verify_verb(group: Any) -> None:
    """Declare ``manifest verify``."""
    verify = add_verb(group, "verify", _verify, "hold a record against what runs", _VERIFY)
    verify.add_argument("record", metavar="RECORD", help="a sealed file, or a digest")
    verify.add_argument(
        "--engine", action="append", default=[], metavar="URL", help="ask this engine from here"
    )
    verify.add_argument(
        "--pool", metavar="POOL", help="compare the gateway's side too; alone, it asks its engines"
    )
    add_evidence_flags(verify)
    verify.add_argument("--api-key-file", type=Path, metavar="FILE", help="the engine's own key")
    verify.add_argument(
        "--engine-ca-file", type=Path, metavar="FILE", help="authority of the engine's certificate"
    )
    verify.add_argument("--why", default="", metavar="TEXT", help="for the audit")
    verify.add_argument(
        "--timeout", type=float, default=10.0, metavar="SECONDS", help="for each question (10)"
    )
    add_admin_flags(verify, optional=True)


_VERIFY = """  sluicegate manifest verify baseline.json --engine http://127.0.0.1:8001
  sluicegate manifest verify baseline.json --engine http://127.0.0.1:8001 \\
    --launch-record vllm.log --launch-record pod.json
  sluicegate manifest verify baseline.json --pool shared --admin-url http://127.0.0.1:8081 \\
    --launch-record pod.json --accept-unverified model.revision --why 'local folder, no revision'
"""

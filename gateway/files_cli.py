"""The verbs that read and write files: check a configuration, make and revoke keys.

Exit codes: 0 done; 2 wrong usage or configuration.
"""

import argparse
import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gateway.command import Said, UsageError, add_group, add_json, add_verb
from gateway.files import ConfigError, Findings, Found
from gateway.keys import known_service_class, list_keys, make_key, revoke_key

if TYPE_CHECKING:
    from gateway.config import Settings

__all__ = ["add_file_verbs"]


def _check(args: argparse.Namespace) -> int:
    from gateway.observe import series_bound  # noqa: PLC0415  not needed by keys
    from gateway.review import replica_words, warnings_of  # noqa: PLC0415

    try:
        settings = _checked(args.config)
    except ConfigError as error:
        if args.json:
            print(json.dumps({"faults": [_fault(fault) for fault in error.faults]}))
        raise
    shown = {
        "digest": settings.digest(),
        "series_at_most": series_bound(settings),
        "replica": replica_words(settings),
        "warnings": [*settings.warnings, *warnings_of(settings)],
        "settings": settings.effective(),
    }
    if args.json:
        print(json.dumps(shown))
        return 0
    _tell(args.config, shown)
    return 0


def _checked(path: Path) -> "Settings":
    """The settings, if a gateway could start with them.

    Raises:
        ConfigError: all that stops it.
    """
    from gateway.config import load  # noqa: PLC0415  not needed by keys
    from gateway.counters import load_counters  # noqa: PLC0415
    from gateway.tls import certificates  # noqa: PLC0415
    from gateway.tracing import make_tracer  # noqa: PLC0415

    settings, found = load(path), Findings()
    with found.step():
        load_counters(settings)
    with found.step():
        certificates(settings)
    with found.step():
        make_tracer(settings, dry=True)
    found.settle()
    return settings


def _fault(fault: Found) -> dict[str, str]:
    return {"file": str(fault.file), "key": fault.key, "reason": fault.reason}


def _tell(path: Path, shown: dict[str, Any]) -> None:
    """Warnings stand before the settings, which are long, and are counted in the last line."""
    for warning in shown["warnings"]:
        print(f"warning: {warning}")
    print(json.dumps(shown["settings"], indent=2))
    for line in shown["replica"]:
        print(line)
    print(f"at most {shown['series_at_most']} metric series")
    many = len(shown["warnings"])
    warnings = f"{many or 'no'} warning{'' if many == 1 else 's'}"
    print(f"{path}: good, {warnings}, digest {shown['digest']}")


def _new(args: argparse.Namespace) -> int:
    file = args.keys_file
    if args.config is not None:
        configured = known_service_class(args.config, args.service_class)
        file = file or configured
    made = make_key(args.id, args.service_class)
    is_new = file is not None and not file.exists()
    if file is not None:
        made.append_to(file)
    if args.json:
        kept = {"keys_file": str(file), "created": is_new}
        where = {"record": made.record} if file is None else kept
        print(json.dumps({"id": args.id, "key": made.key, **where}))
        return 0
    print(f"key (shown once): {made.key}")
    told = f"its digest is in {file}{', which was not there and is now' if is_new else ''}"
    print(made.record if file is None else told)
    return 0


def _list(args: argparse.Namespace) -> int:
    rows = list_keys(_keys_file(args))
    if args.json:
        print(json.dumps([asdict(row) for row in rows]))
        return 0
    for row in rows:
        models = "all models" if row.models is None else ", ".join(row.models)
        cap = "" if row.max_in_flight is None else f"  at most {row.max_in_flight} in flight"
        print(f"{row.id}  {row.service_class}  {models}{cap}")
    return 0


def _revoke(args: argparse.Namespace) -> int:
    path = _keys_file(args)
    revoke_key(path, args.id)
    if args.json:
        print(json.dumps({"id": args.id, "keys_file": str(path)}))
        return 0
    print(f"{args.id} is out of {path}; gateways take it until they reload (sluicegate reload)")
    return 0


def _keys_file(args: argparse.Namespace) -> Path:
    from gateway.config import load  # noqa: PLC0415  not needed to make a key

    if args.keys_file is not None:
        return Path(args.keys_file)
    if args.config is None:
        raise UsageError("--keys-file or --config: one of them must say where the keys are")
    settings = load(args.config)
    return settings.file(settings.document.auth.keys_file)


def add_file_verbs(verbs: Any, said: Said) -> None:
    """Declare ``check`` and ``keys``."""
    check = add_verb(verbs, "check", _check, said["check"], _CHECK)
    check.add_argument(
        "--config", type=Path, required=True, metavar="FILE", help="the configuration, in TOML"
    )
    add_json(check)
    keys = add_group(verbs, "keys", said["keys"], _NEW)
    new = add_verb(keys, "new", _new, "make a key, show it once, keep its digest", _NEW)
    new.add_argument("id", help="1 to 32 of a-z, 0-9 and hyphen; it stands in the log")
    new.add_argument(
        "--service-class", required=True, metavar="NAME", help="a [service.NAME] of the gateway"
    )
    revoke = add_verb(keys, "revoke", _revoke, "take a key out of the file", _REVOKE)
    revoke.add_argument("id", help="as it was given to keys new")
    listing = add_verb(keys, "list", _list, "list keys and what they grant", _LIST)
    for verb in (new, listing, revoke):
        verb.add_argument("--keys-file", type=Path, metavar="FILE", help="default: --config's")
        verb.add_argument("--config", type=Path, metavar="FILE", help="of the gateway")
        add_json(verb)


_CHECK = """  sluicegate check --config config/gateway.toml
  sluicegate check --config config/gateway.toml --json | jq .digest
"""
_NEW = """  sluicegate keys new web-frontend --service-class interactive --config gateway.toml
  sluicegate keys new nightly --service-class batch --keys-file keys.toml
  sluicegate reload   # the gateway reads the keys file anew
"""
_LIST = """  sluicegate keys list --config gateway.toml
  sluicegate keys list --keys-file keys.toml --json | jq .[].id
"""
_REVOKE = """  sluicegate keys revoke web-frontend --config gateway.toml
  sluicegate reload
"""

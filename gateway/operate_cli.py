"""The operator's verbs: limits, reload, usage and engines, spoken to running gateways.

Exit codes: 0 done; 1 a gateway said no or can't be reached; 2 wrong usage.
"""

import argparse
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from gateway.admin_client import change_limits
from gateway.admin_flags import add_admin_flags, admins_of, look, print_answers
from gateway.command import Said, UsageError, add_group, add_json, add_verb, print_table

__all__ = ["add_operator_verbs"]

WORDS = {"true": True, "false": False, "default": None, "null": None}


# -- limits --------------------------------------------------------------------------------


def _show(args: argparse.Namespace) -> int:
    _tell_limits(args, look(args, "/admin/limits"))
    return 0


def _set(args: argparse.Namespace) -> int:
    return _change(args, dict(_assignment(text) for text in args.assignment))


def _pause(args: argparse.Namespace) -> int:
    return _change(args, {f"{target}.paused": True for target in args.target})


def _resume(args: argparse.Namespace) -> int:
    return _change(args, {f"{target}.paused": None for target in args.target})


def _change(args: argparse.Namespace, values: dict[str, Any]) -> int:
    admins = admins_of(args)
    after = change_limits(admins, values, getattr(args, "expires", None))
    _tell_limits(args, [(a.url, seen) for a, seen in zip(admins, after, strict=True)])
    return 0


def _assignment(text: str) -> tuple[str, Any]:
    path, equals, value = text.rpartition("=")
    if not equals:
        raise UsageError(f"{text}: must be PATH=VALUE, like flow.short.interactive.weight=8")
    if value in WORDS:
        return path, WORDS[value]
    try:
        return path, json.loads(value)
    except ValueError as error:
        raise UsageError(f"{text}: the value must be a number, true, false or default") from error


def _tell_limits(args: argparse.Namespace, seen: Sequence[tuple[str, dict[str, Any]]]) -> None:
    if args.json:
        print_answers(seen)
        return
    for url, limits in seen:
        print(f"{url}  revision {limits['revision']}")
        for path, entry in limits["set"].items():
            left_s = entry["expires_in_s"]
            until = "" if left_s is None else f", for {left_s:.0f} s more"
            print(f"  set {path} = {json.dumps(entry['value'])}  by {entry['by']}{until}")
        print_table(_flow_rows(limits["flows"]))
        print_table([{**row, "engine": f"engine.{row['engine']}"} for row in limits["engines"]])


def _flow_rows(flows: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    named = ("model", "size_class", "service_class")
    return [
        {
            "flow": ".".join(("flow", *(flow[key] for key in named))),
            **{key: value for key, value in flow.items() if key not in named},
        }
        for flow in flows
    ]


# -- the others ----------------------------------------------------------------------------


def _reload(args: argparse.Namespace) -> int:
    told = [(admin.url, admin.post("/admin/reload")) for admin in admins_of(args)]
    if args.json:
        print_answers(told)
        return 0
    for url, one in told:
        same = one["from"] == one["to"]
        print(f"{url}  digest {one['to']}{'  (as before)' if same else ''}")
        for key in one["changed"]:
            print(f"  changed {key}")
        for path, reason in one["limits_dropped"].items():
            print(f"  dropped limit {path}: {reason}")
    return 0


def _usage(args: argparse.Namespace) -> int:
    rows: dict[str, dict[str, Any]] = {}
    for admin in admins_of(args):
        for row in admin.get("/admin/usage")["usage"]:
            _add(rows.setdefault(row["key_id"], {"key_id": row["key_id"]}), row)
    if args.json:
        print(json.dumps(list(rows.values())))
        return 0
    if not rows:
        print("nobody has called since the start")
    columns = ("key_id", "requests", "refusals", "prompt_tokens", "completion_tokens")
    print_table([{column: row.get(column) for column in columns} for row in rows.values()])
    return 0


def _add(into: dict[str, Any], row: dict[str, Any]) -> None:
    for key, value in row.items():
        if key != "key_id":
            into[key] = into.get(key, 0) + value


def _probe(args: argparse.Namespace) -> int:
    import asyncio  # noqa: PLC0415  not needed by other verbs

    from gateway.capability import probe_priority  # noqa: PLC0415
    from gateway.descriptors import raise_limit  # noqa: PLC0415

    raise_limit()  # an answer for each seat of the engine, and more, is asked for at once
    key = None if args.api_key_file is None else args.api_key_file.read_text().strip()
    url = args.url.rstrip("/")
    asked = probe_priority(
        url, args.model, api_key=key, timeout_s=args.timeout, tls=_engine_tls(url, args)
    )
    report = asyncio.run(asked)
    if args.json:
        shown = {"verdict": report.verdict, "evidence": list(report.evidence), "ok": report.ok}
        print(json.dumps(shown | ({"advice": report.advice} if report.advice else {})))
    else:
        print(report.verdict)
        for line in (*report.evidence, *filter(None, [report.advice])):
            print(f"  {line}")
    return 0 if report.ok else 1


def _engine_tls(url: str, args: argparse.Namespace) -> Any:
    """As ``[upstream.tls]`` has it: an https engine is always verified."""
    from gateway.endpoint import EngineTlsError, engine_context  # noqa: PLC0415
    from gateway.schema import EngineTls  # noqa: PLC0415

    files = {key: getattr(args, key.removeprefix("client_")) for key in EngineTls.model_fields}
    given = {key: str(path) for key, path in files.items() if path is not None}
    if not url.startswith("https://"):
        if given:
            raise UsageError(f"{url}: --ca-file, --cert-file and --key-file need https://")
        return None
    if ("client_cert_file" in given) != ("client_key_file" in given):
        raise UsageError("--cert-file and --key-file need each other")
    try:
        return engine_context(EngineTls(**given), Path)
    except EngineTlsError as error:
        flag = error.key.removeprefix("client_").replace("_", "-")
        raise UsageError(f"--{flag}: {error.reason}") from error


def add_operator_verbs(verbs: Any, said: Said) -> None:
    """Declare ``limits``, ``reload``, ``usage`` and ``engines``."""
    limits = add_group(verbs, "limits", said["limits"], _LIMITS)
    _address(add_verb(limits, "show", _show, "show the limits in force", _SHOW))
    setting = add_verb(limits, "set", _set, "set limits, on all gateways or on none", _SET)
    setting.add_argument(
        "assignment",
        nargs="+",
        metavar="PATH=VALUE",
        help="a row's name of limits show, a dot, a column's name; default takes it back",
    )
    _address(setting, expires=True)
    effect = "refuse new requests of a flow, or give an engine none"
    pause = add_verb(limits, "pause", _pause, effect, _PAUSE)
    resume = add_verb(limits, "resume", _resume, "take a pause back", _RESUME)
    for verb in (pause, resume):
        verb.add_argument(
            "target",
            nargs="+",
            metavar="TARGET",
            help="flow.SIZE.SERVICE, flow.MODEL.SIZE.SERVICE or engine.ADDRESS",
        )
        _address(verb, expires=verb is pause)
    _address(add_verb(verbs, "reload", _reload, said["reload"], _RELOAD))
    _address(add_verb(verbs, "usage", _usage, said["usage"], _USAGE))
    _add_probe(add_group(verbs, "engines", said["engines"], _PROBE))


def _add_probe(engines: Any) -> None:
    said = (
        "find out whether an idle engine honours priorities: fills its seats with up to twice as "
        "many long answers as --max-num-seqs, and ends them when it knows"
    )
    probe = add_verb(engines, "probe", _probe, said, _PROBE)
    probe.add_argument("url", metavar="URL", help="of the engine, not of a gateway")
    probe.add_argument("--model", required=True, metavar="NAME", help="as the engine calls it")
    probe.add_argument("--api-key-file", type=Path, metavar="FILE", help="the engine's own key")
    probe.add_argument(
        "--timeout",
        type=float,
        default=60.0,
        metavar="SECONDS",
        help="for all of it (60); an engine of a thousand seats, or a busy machine, may need more",
    )
    said = "authority of its certificate (the system's)"
    probe.add_argument("--ca-file", type=Path, metavar="FILE", help=said)
    said = "shown to an engine that asks for a certificate"
    probe.add_argument("--cert-file", type=Path, metavar="FILE", help=said)
    probe.add_argument("--key-file", type=Path, metavar="FILE", help="of --cert-file")
    add_json(probe)


def _address(parser: Any, *, expires: bool = False) -> None:
    add_admin_flags(parser)
    if expires:
        parser.add_argument(
            "--expires", type=float, metavar="SECONDS", help="then it is as configured again"
        )


_LIMITS = """  sluicegate limits show
  sluicegate limits set flow.short.batch.weight=0.5 --expires 3600
  sluicegate limits pause flow.long.batch
"""
_SHOW = """  export SLUICEGATE_ADMIN_TOKEN=...
  sluicegate limits show --json | jq .[0].revision
"""
_SET = """  sluicegate limits set flow.short.interactive.max_age_s=5 flow.long.batch.max_queued=64
  sluicegate limits set engine.http://127.0.0.1:8001.slots=64 --expires 600
  sluicegate limits set flow.short.interactive.max_age_s=default
  sluicegate limits set flow.long.batch.weight=0.2 \\
    --admin-url http://gw-1:8081 --admin-url http://gw-2:8081 --token-file token
"""
_PAUSE = """  sluicegate limits pause flow.long.batch --expires 900
  sluicegate limits pause flow.demo.long.batch engine.http://127.0.0.1:8002
"""
_RESUME = """  sluicegate limits resume flow.long.batch
"""
_RELOAD = """  sluicegate reload
  sluicegate reload --admin-url unix:/run/sluicegate/admin.sock --token-file token
"""
_USAGE = """  sluicegate usage
  sluicegate usage --json | jq 'map(select(.refusals > 0))'
"""
_PROBE = """  sluicegate engines probe http://127.0.0.1:8001 --model demo
  sluicegate engines probe https://engine-1:8000 --model demo --ca-file engines-ca.crt
"""

"""Carries out the verbs that rehearse a rollback and show rehearsals.

By itself ``routes rehearse`` starts engines, a gateway and load on this machine and rehearses
there; with ``--live`` it rehearses on a running gateway, after it was confirmed.
Exit codes: 0 passed; 1 failed, not confirmed, or a record that is not whole; 2 wrong usage, or
refused because the baseline could not take the load back; 130 interrupted, when the routes are back
as they were.
"""

import argparse
import contextlib
import json
import shlex
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from math import ceil, log
from pathlib import Path
from types import MappingProxyType
from typing import Any

from gateway.admin_client import Admin, AdminError
from gateway.admin_flags import admins_of, look, print_answers
from gateway.command import UsageError, table_lines
from gateway.rehearsal_facts import CANARY_HOLDS
from gateway.rehearsal_flags import ENGINES, order_of
from gateway.rehearsal_stage import Bundle, Load, staged
from gateway.rehearsal_text import record_lines
from gateway.rehearsal_verdict import PASS, unsealed, with_client

__all__ = ["rehearse", "show_rehearsals"]

PATH = "/admin/rehearsals"
POLL_S = 0.2
RAMP_S = 2.0  # of load before the gateway begins to look
MARGIN_S = 60.0  # of load beyond the phases: for probes, moves and the drain
UNLIKELY = 0.01
# Flags of one kind of rehearsal alone, and their defaults.
_LIVE = MappingProxyType(
    {
        **dict.fromkeys(("admin_url", "to", "load", "load_model", "load_key_file")),
        **dict.fromkeys(("check", "yes"), False),
    }
)
_HERE = MappingProxyType({"engines": ENGINES, "engine_args": "", "candidate_args": ""})


def _none_of(args: argparse.Namespace, flags: Mapping[str, Any], why: str) -> None:
    """Refuse a flag that would have no effect: one that is not at its default."""
    for flag, default in flags.items():
        if getattr(args, flag) != default:
            raise UsageError(f"--{flag.replace('_', '-')}: {why}")


def rehearse(bundle: Bundle, args: argparse.Namespace) -> int:
    """Carry out ``routes rehearse``; returns the exit code."""
    order = order_of(args)
    if args.live:
        return _live(bundle, args, order)
    _none_of(args, _LIVE, "is for a running gateway: add --live")
    if isinstance(order.get("manifest"), str):
        raise UsageError(f"--manifest {args.manifest}: there is no such file")
    with _folder(args) as folder, _told_to_stop() as stop:
        return _here(bundle, args, order, (folder, stop))


# -- on this machine -----------------------------------------------------------------------


@contextlib.contextmanager
def _folder(args: argparse.Namespace) -> Iterator[Path]:
    if args.run_dir is not None:
        args.run_dir.mkdir(parents=True, exist_ok=True)
        yield args.run_dir
        return
    with tempfile.TemporaryDirectory(prefix="sluicegate-") as folder:
        yield Path(folder)


def _here(
    bundle: Bundle,
    args: argparse.Namespace,
    order: dict[str, Any],
    where: tuple[Path, threading.Event],
) -> int:
    folder, stop = where
    model = args.route.partition("/")[0]
    # With a cache, as engines have in production: the other pool is cold at the flip.
    own = f"--enable-prefix-caching --served-model-name {shlex.quote(model)}"
    common = f"{own} {args.engine_args}"
    kinds = (common, f"{common} {args.candidate_args}")
    made = [bundle.simulated(_with(args, engine_args=kind)) for kind in kinds]
    say = partial(_say, args)
    say(f"freezing the load: {args.rate:g} requests a second")
    load = bundle.load(folder / "load", args.rate, _load_s(args), args.time_scale)
    say(f"starting {args.engines} simulated engines for each pool, and a gateway")
    starts = (made[0][0], made[1][0])
    with staged(folder, starts, made[0][1], args.time_scale) as stage:
        for pool, urls in stage.engines.items():
            say(f"pool {pool}: {' '.join(urls)}")
        say(f"gateway {stage.url}, operators {stage.admin.url}")
        for warning in _too_few(args, stage.keys):
            say(f"warning: {warning}")
        body = {**order, "to": "candidate", "verify": False}
        callers = stage.url, model, stage.keys
        return _conduct(args, (stage.admin, body), (load, callers), stop)


def _with(args: argparse.Namespace, **more: Any) -> argparse.Namespace:
    return argparse.Namespace(**{**vars(args), **more})


def _load_s(args: argparse.Namespace) -> float:
    """Seconds of load, in the engines' time."""
    drain_s = args.drain_deadline or 0.0
    holds = 3 + CANARY_HOLDS
    return float((RAMP_S + holds * args.hold + drain_s + MARGIN_S) * args.time_scale)


def _too_few(args: argparse.Namespace, keys: Sequence[str]) -> list[str]:
    """A warning where a load's callers, each whole on one side, may all miss the candidate."""
    count, left = len(set(keys)), 1 - args.weight / 100
    if left**count <= UNLIKELY:
        return []
    wanted, noun = ceil(log(UNLIKELY) / log(left)), "caller" if count == 1 else "callers"
    return [
        f"the load has {count} {noun}: the chance that none goes to the candidate at "
        f"{args.weight:g} % is {left**count:.0%}, and then it can't pass: give {wanted} keys, or "
        "more --weight"
    ]


# -- on a running gateway ------------------------------------------------------------------


def _live(bundle: Bundle, args: argparse.Namespace, order: dict[str, Any]) -> int:
    _none_of(args, _HERE, "is of simulated engines, and --live has none")
    admins = admins_of(args)
    if len(admins) != 1:
        raise UsageError("--admin-url: name one gateway: a rehearsal is of one")
    callers = _live_callers(args)
    admin, body = admins[0], {**order, "to": args.to, "verify": True}
    try:
        told = admin.post(PATH, {**body, "check": True})
    except AdminError as error:
        return _refused(error)
    told["warnings"] = [] if callers is None else _too_few(args, callers[2])
    if args.check:
        print(json.dumps(told) if args.json else "\n".join(_plan(args, admin, told)))
        return 0
    if not args.yes and not _confirmed(args, admin, told):
        print("nothing was changed", file=sys.stderr)
        return 1
    for warning in told["warnings"] if args.yes else ():
        _say(args, f"warning: {warning}")
    with _folder(args) as folder, _told_to_stop() as stop:
        load = None
        if callers is not None:
            load = bundle.load(folder / "load", args.rate, _load_s(args), args.time_scale), callers
        return _conduct(args, (admin, body), load, stop)


def _live_callers(args: argparse.Namespace) -> tuple[str, str, Sequence[str]] | None:
    if args.load is None:
        _none_of(args, {"load_model": None, "load_key_file": None}, "is of --load")
        return None
    if args.load_key_file is None:
        raise UsageError("--load: needs --load-key-file, a file with a caller's key on each line")
    keys = args.load_key_file.read_text().split()
    if not keys:
        raise UsageError(f"--load-key-file {args.load_key_file}: holds no key")
    model = args.load_model or args.route.partition("/")[0]
    return args.load.rstrip("/"), model, keys


def _plan(args: argparse.Namespace, admin: Admin, told: Mapping[str, Any]) -> list[str]:
    """What will happen, in an operator's words."""
    (row,) = [row for row in told["changed"] if "route" in row]
    before, after = row["before"]["stable"], row["after"]["stable"]
    most_s, least = CANARY_HOLDS * args.hold, told["limits"]["min_count"]
    load = f"under {args.rate:g} requests a second of its own" if args.load else "as it is"
    return [
        f"This moves the traffic of {row['route']} on {admin.url}, {load}:",
        f"  for {args.hold:g} s nothing moves: {before} is watched and probed",
        f"  then {args.weight:g} % of its callers go to {after} for {args.hold:g} s, or for up to "
        f"{most_s:g} s until it has served {least} requests",
        f"  then all of them for {args.hold:g} s",
        f"  then all go back to {before}, and what still runs on {after} is drained",
        "It goes back at once where callers' requests fail, and on Ctrl-C.",
        *(f"warning: {warning}" for warning in told["warnings"]),
    ]


def _confirmed(args: argparse.Namespace, admin: Admin, told: Mapping[str, Any]) -> bool:
    if not sys.stdin.isatty():
        raise UsageError("--yes: is needed to rehearse live where nobody can be asked")
    print("\n".join(_plan(args, admin, told)), file=sys.stderr)
    print(f"Type the route ({args.route}) to begin: ", end="", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip() == str(args.route)


# -- carrying it out -----------------------------------------------------------------------

Called = tuple[Load, tuple[str, str, Sequence[str]]]


@contextlib.contextmanager
def _told_to_stop() -> Iterator[threading.Event]:
    """Set by Ctrl-C or SIGTERM, which end nothing by themselves: routes must go back first."""
    told = threading.Event()
    before = {
        number: signal.signal(number, lambda _number, _frame: told.set())
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    }
    try:
        yield told
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _conduct(
    args: argparse.Namespace,
    asked: tuple[Admin, dict[str, Any]],
    called: Called | None,
    stop: threading.Event,
) -> int:
    admin, body = asked
    if called is not None:
        load, callers = called
        load.start(*callers)
        body = {**body, "load": dict(load.told)}
        _say(args, f"load: {load.told['arrivals']} requests frozen, trace "
                   f"{load.told['trace_sha256'][:12]}")  # fmt: skip
        stop.wait(RAMP_S)
    seen: Mapping[str, Any] = {}
    try:
        if stop.is_set():
            return _interrupted({"state": "stopped"})
        name = admin.post(PATH, body)["id"]
        told = _followed(args, admin, name, stop)
    except AdminError as error:
        return _refused(error)
    finally:
        if called is not None:
            seen = called[0].stop()
    return _over(args, admin, told, seen)


def _followed(
    args: argparse.Namespace, admin: Admin, name: str, stop: threading.Event
) -> dict[str, Any]:
    """Print what it says until it is over; have it go back where it is told to stop."""
    shown, stopping = 0, False
    while True:
        told = admin.get(f"{PATH}?id={name}")
        for line in told["said"][shown:]:
            _say(args, f"{line['at_s']:7.2f} s  {line['said']}")
        shown = len(told["said"])
        if told["state"] != "running":
            return told
        if stop.is_set() and not stopping:
            stopping = True
            _say(args, "interrupted: taking the routes back before leaving")
            with contextlib.suppress(AdminError):  # over just now: the next look says so
                admin.post(PATH, {"stop": name})
        time.sleep(POLL_S)


def _over(
    args: argparse.Namespace, admin: Admin, told: Mapping[str, Any], seen: Mapping[str, Any]
) -> int:
    record = told["record"]
    if told["state"] == "stopped":
        return _interrupted(told)
    if record is None:
        print(f"error: {told['state']}: {told['why']}", file=sys.stderr)
        return 2 if told["state"] == "refused" else 1
    if seen:
        record = with_client(record, seen)
        admin.post(PATH, {"record": record})
    if args.out is not None:
        args.out.parent.mkdir(parents=True, exist_ok=True)
        args.out.write_text(json.dumps(record, indent=2, sort_keys=True) + "\n")
    if args.json:
        print(json.dumps(record))
    else:
        print("\n".join(record_lines(record)))
        if args.out is not None:
            print(f"record: {args.out}")
    return 0 if record["verdict"] == PASS else 1


def _interrupted(told: Mapping[str, Any]) -> int:
    record = told.get("record") or {"revisions": {}, "checks": ()}
    left = [c["why"] for c in record["checks"] if "differ" in c["name"] and not c["passed"]]
    if left:
        print(f"interrupted; NOT everything is back: {'; '.join(left)}", file=sys.stderr)
    elif "after" in record["revisions"]:
        revision = record["revisions"]["after"]
        print(f"interrupted; the routes are back as they were (revision {revision})",
              file=sys.stderr)  # fmt: skip
    else:
        print("interrupted; nothing had been moved", file=sys.stderr)
    return 130


def _refused(error: AdminError) -> int:
    print(f"error: {error}", file=sys.stderr)
    return 2 if error.answered else 1


def _say(args: argparse.Namespace, line: str) -> None:
    """Progress goes beside the answer where that is for programs."""
    print(line, file=sys.stderr if args.json else sys.stdout, flush=True)


# -- those there are -----------------------------------------------------------------------


def show_rehearsals(args: argparse.Namespace) -> int:
    """Carry out ``routes rehearsals``; returns the exit code."""
    if args.file is not None:
        return _show_file(args)
    query = "" if args.id is None else f"?id={args.id}"
    found = look(args, PATH + query)
    if args.json:
        print_answers(found)
        return 0
    for url, told in found:
        print(url)
        if args.id is not None:
            record = told["record"]
            text = record_lines(record) if record else [f"{told['state']}: {told['why']}"]
            print("\n".join(text))
            continue
        keys = ("id", "route", "to", "state", "result", "by", "why")
        rows = [{key: row[key] for key in keys} for row in told["rehearsals"]]
        print("\n".join(table_lines(rows)) if rows else "  no rehearsal yet")
    return 0


def _show_file(args: argparse.Namespace) -> int:
    """Say of a record in a file whether it is whole, and what it says; no gateway is asked."""
    try:
        record = unsealed(json.loads(args.file.read_bytes()))
        lines = [json.dumps(record)] if args.json else record_lines(record)
    except ValueError as error:  # no JSON, no record, or changed
        print(f"error: {args.file}: {error}", file=sys.stderr)
        return 1
    print("\n".join(lines))
    if not args.json:
        print(f"{args.file}: whole, digest {record['digest']}")
    return 0

"""Declares what ``routes canary`` says of its watch, and follows watches: ``routes watch``."""

import argparse
import json
import time
from collections.abc import Mapping, Sequence
from typing import Any

from gateway.admin_client import Admin, AdminError
from gateway.admin_flags import add_admin_flags, admins_of
from gateway.command import UsageError, add_verb, plain
from gateway.record_flags import add_record_flags, record_options
from gateway.thresholds import Metric, ThresholdError, from_text, to_json

__all__ = ["add_canary_flags", "add_watch_verb", "canary_options", "standing"]

EVERY_S = 1.0
ACTIVE = frozenset({"watching", "breached"})
ABORTED = 3


def add_canary_flags(parser: Any) -> None:
    """Declare the record a canary rests on, and what it is watched for."""
    add_record_flags(
        parser, "sealed rollback record of the baseline, or the digest of one kept there"
    )
    parser.add_argument("--without-record", metavar="REASON", help="go without a record (audited)")
    parser.add_argument(
        "--abort",
        action="append",
        default=[],
        metavar="METRIC=LIMIT",
        help=f"take the canary back beyond this; +MARGIN (-MARGIN) is against the stable arm; "
        f"metrics: {', '.join(Metric)}",
    )
    parser.add_argument(
        "--window", type=float, metavar="SECONDS", help="of --abort: judged at a time (60)"
    )
    parser.add_argument(
        "--min-count",
        type=int,
        metavar="N",
        help="of --abort: requests of each arm without which nothing is decided (50)",
    )


def canary_options(args: argparse.Namespace) -> dict[str, Any]:
    """What the flags add to the body of the move.

    Raises:
        UsageError: a flag can't be used.
    """
    if args.manifest is not None and args.without_record is not None:
        raise UsageError("--without-record: there is a record (--manifest)")
    options = record_options(args)
    if args.without_record is not None:
        options["without_record"] = args.without_record
    for flag in ("window", "min_count"):
        if getattr(args, flag) is not None and not args.abort:
            raise UsageError(f"--{flag.replace('_', '-')}: is of --abort")
    try:
        given = {"window_s": args.window, "min_count": args.min_count}
        asked = {name: value for name, value in given.items() if value is not None}
        rows = [to_json(from_text(text, **asked)) for text in args.abort]
    except ThresholdError as error:
        raise UsageError(f"--abort {error}") from error
    return options | {"watch": {"abort": rows}} if rows else options


def add_watch_verb(routes: Any) -> None:
    """Declare ``routes watch``."""
    watch = add_verb(
        routes, "watch", _watch, "follow a canary until it ends; 3 if it was taken back", _WATCH
    )
    watch.add_argument("route", metavar="ROUTE", help="as MODEL/SIZE")
    watch.add_argument("--once", action="store_true", help="print how it stands, and end")
    watch.add_argument(
        "--timeout", type=float, metavar="SECONDS", help="end after this long, whatever it does"
    )
    add_admin_flags(watch)


def _watch(args: argparse.Namespace) -> int:
    admins = admins_of(args)
    until_s = None if args.timeout is None else time.monotonic() + args.timeout
    said: dict[str, str] = {}
    while True:
        rows = [_row(admin, args.route) for admin in admins]
        for admin, row in zip(admins, rows, strict=True):
            line = json.dumps({"url": admin.url, **row}) if args.json else _line(row)
            if said.get(admin.url) != line:
                said[admin.url] = line
                where = f"{admin.url}  " if len(admins) > 1 and not args.json else ""
                print(where + line, flush=True)
        states = {row["state"] for row in rows}
        over = until_s is not None and time.monotonic() >= until_s
        if args.once or over or not states & ACTIVE:
            return ABORTED if states & {"breached", "reverted"} else 0
        time.sleep(EVERY_S)


def _row(admin: Admin, route: str) -> dict[str, Any]:
    rows: Sequence[dict[str, Any]] = admin.get("/admin/routes").get("watches", ())
    for row in rows:
        if row["route"] == route:
            return row
    known = ", ".join(row["route"] for row in rows) or "none"
    raise AdminError(admin.url, f"{route}: no canary was watched (watched: {known})")


def standing(row: Mapping[str, Any]) -> str:
    """How a watch stands, in a few words: of one that is over, when it began and how it ended."""
    if row["state"] in ACTIVE:
        return f"{row['state']} {row['verdict'] or ''}".rstrip()
    return plain(f"{row['state']}, began {row['since']} ({row['why']})")


def _line(row: Mapping[str, Any]) -> str:
    if row["state"] == "ended":
        return f"{standing(row)}, candidate {row['candidate']}"
    head = f"{row['state']:<9} {row['verdict'] or '-':<7} {row['candidate']} {row['weight']:g} %"
    figures = [_figure(f) for f in row["figures"] if f["verdict"] != "hold"]
    return "  ".join([head, *figures, f"({row['why']})" if row["why"] else ""]).rstrip()


def _figure(figure: Mapping[str, Any]) -> str:
    arms = (figure["candidate"]["value"], figure["stable"]["value"])
    shown = " / ".join("-" if value is None else f"{value:.3g}" for value in arms)
    return f"{figure['metric']} {shown}"


_WATCH = """  sluicegate routes watch demo/short
  sluicegate routes watch demo/short --json | jq -r .why
"""

"""Declares ``routes rehearse`` and ``routes rehearsals``, and reads what their flags ask for."""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gateway.admin_flags import add_admin_flags
from gateway.command import Command, UsageError, add_verb
from gateway.record_flags import add_record_flags, record_options

__all__ = ["ENGINES", "add_rehearse_verbs", "order_of"]

ENGINES = 2
MAX_TIME_SCALE = 100.0


def order_of(args: argparse.Namespace) -> dict[str, Any]:
    """The body that begins the rehearsal, as far as the flags say.

    Raises:
        UsageError: a flag can't be used.
    """
    if not 0 < args.weight <= 100:
        raise UsageError("--weight: must be above 0 and at most 100 percent")
    if not 0 < args.hold <= 3600:
        raise UsageError("--hold: must be above 0 and at most 3600 seconds")
    if args.engines < 1:
        raise UsageError("--engines: there must be at least one")
    if args.rate <= 0:
        raise UsageError("--rate: must be above 0")
    if not 0 < args.time_scale <= MAX_TIME_SCALE:
        raise UsageError(f"--time-scale: must be above 0 and at most {MAX_TIME_SCALE:g}")
    order = {
        "route": args.route, "weight": args.weight, "hold_s": args.hold, "why": args.why,
        "drain_deadline_s": args.drain_deadline, "limits": _limits(args.limit),
    }  # fmt: skip
    return {**order, **record_options(args)}


def _limits(given: Sequence[str]) -> dict[str, float]:
    from gateway.rehearsal_facts import limits_of  # noqa: PLC0415  not needed to declare flags

    found = {}
    for text in given:
        name, _, value = text.partition("=")
        try:
            found[name] = float(value)
        except ValueError:
            raise UsageError(f"--limit {text}: write NAME=NUMBER") from None
    try:
        limits_of((), found)
    except ValueError as error:
        raise UsageError(f"--limit: {error}") from error
    return found


def add_rehearse_verbs(routes: Any, rehearse: Command, show: Command) -> None:
    """Declare the two verbs, which ``rehearse`` and ``show`` carry out."""
    said = "rehearse a rollback: canary, flip, rollback, drain, under load"
    verb = add_verb(routes, "rehearse", rehearse, said, _REHEARSE)
    verb.add_argument("route", metavar="ROUTE", help="as MODEL/SIZE")
    _add_order(verb)
    _add_here(verb)
    _add_live(verb)
    verb.add_argument("--out", type=Path, metavar="FILE", help="write the record here")
    add_admin_flags(verb)
    said = "show the rehearsals that a gateway keeps"
    listing = add_verb(routes, "rehearsals", show, said, _LIST)
    one = listing.add_mutually_exclusive_group()
    one.add_argument("--id", metavar="ID", help="show this one whole")
    one.add_argument(
        "--file", type=Path, metavar="FILE", help="show this record, if it is whole (1: it is not)"
    )
    add_admin_flags(listing)


def _add_order(verb: Any) -> None:
    verb.add_argument(
        "--weight", type=float, default=50.0, metavar="PERCENT", help="of the canary (50)"
    )
    verb.add_argument(
        "--hold", type=float, default=10.0, metavar="SECONDS", help="of each phase (10)"
    )
    verb.add_argument(
        "--drain-deadline",
        type=float,
        metavar="SECONDS",
        help="then what still runs on the candidate is cut off (as configured)",
    )
    add_record_flags(
        verb,
        "sealed rollback record: its abort thresholds are the limits; live, it must verify",
    )
    verb.add_argument(
        "--limit",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="another threshold, as the record names it (repeatable): error_rate=0.02 "
        "refusals=0.05 ttft_attainment=0.9 stall_attainment=0.9 oldest_age_s=(TTFT limit) "
        "first_back_s=5 last_affected_s=60 recovery_s=10 streams_ended=0 prefill_peak=0.95 "
        "warm_probe_ratio=1 (of the size class's TTFT limit, before and after) min_count=10 "
        "(served by the pool that a phase is about)",
    )
    verb.add_argument("--why", default="", metavar="TEXT", help="for the audit trail")


def _add_here(verb: Any) -> None:
    verb.add_argument(
        "--rate",
        type=float,
        default=5.0,
        metavar="N",
        help="bundled requests a second of the engines' clock (5)",
    )
    verb.add_argument(
        "--engines", type=int, default=ENGINES, metavar="N", help="simulated ones of each pool (2)"
    )
    verb.add_argument(
        "--engine-args",
        default="",
        metavar="FLAGS",
        help="of all simulated engines, as one word: --engine-args='--flag 1'",
    )
    verb.add_argument(
        "--candidate-args", default="", metavar="FLAGS", help="more for those of the candidate"
    )
    verb.add_argument("--time-scale", type=float, default=1.0, help="of the engines' clock (1)")
    verb.add_argument("--run-dir", type=Path, metavar="DIR", help="keep files and logs here")


def _add_live(verb: Any) -> None:
    verb.add_argument("--live", action="store_true", help="on a running gateway (--admin-url)")
    verb.add_argument("--to", metavar="POOL", help="live: the candidate (the only other pool)")
    verb.add_argument("--check", action="store_true", help="live: only say what would happen")
    verb.add_argument("--yes", action="store_true", help="live: do not ask")
    verb.add_argument("--load", metavar="URL", help="live: send the bundled load there too")
    verb.add_argument("--load-model", metavar="NAME", help="of --load (ROUTE's)")
    verb.add_argument(
        "--load-key-file", type=Path, metavar="FILE", help="of --load: a caller's key on each line"
    )


_REHEARSE = """  sluicegate routes rehearse demo/short           # on this machine, nothing needed
  sluicegate routes rehearse demo/long --hold 20 --out rehearsal.json
  sluicegate routes rehearse demo/short --candidate-args='--max-num-batched-tokens 2048'
  sluicegate routes rehearse demo/short --live --to next --manifest baseline.json \\
    --admin-url http://gw-1:8081 --token-file token
"""
_LIST = """  sluicegate routes rehearsals
  sluicegate routes rehearsals --id 20260401T101500-1a2b --json
  sluicegate routes rehearsals --file rehearsal.json     # offline: no gateway is asked
"""

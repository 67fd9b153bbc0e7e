"""The verbs that move traffic: routes and pools, spoken to running gateways.

Exit codes: 0 done; 1 a gateway said no or can't be reached, or it was not confirmed; 2 wrong usage.
What moves traffic at once is shown first, exactly as the gateways say it would change, and asked
about; where nobody can be asked it needs ``--yes``.
"""

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from gateway.admin_flags import add_admin_flags, admins_of, look, print_answers
from gateway.canary_cli import add_canary_flags, add_watch_verb, canary_options, standing
from gateway.command import Said, UsageError, add_group, add_verb, plain, print_table
from gateway.rehearsal_flags import add_rehearse_verbs
from gateway.route_client import Asked, ask_all, carry_out, set_pool

if TYPE_CHECKING:
    from gateway.rehearsal_stage import Bundle

__all__ = ["add_route_verbs"]

ASKED_ABOUT = frozenset({"flip", "promote", "rollback", "drain"})
SHOWN_MOVES = 5
SHOWN_NAMES = 3


# -- looking -------------------------------------------------------------------------------


def _show(args: argparse.Namespace) -> int:
    seen = look(args, "/admin/routes")
    if args.json:
        print_answers(seen)
        return 0
    for url, routes in seen:
        print(f"{url}  revision {routes['revision']}  state {_state(routes)}")
        print_table([_route_row(row) for row in routes["routes"]])
        print_table(_engine_rows(routes["pools"]))
        for row in routes["drains"]:
            print(f"  drain of {row['drain']}: {row['state']}, {row['remaining']} left")
        for row in routes["watches"]:
            print(f"  watch of {row['route']}: {standing(row)}")
        for row in routes["history"][:SHOWN_MOVES]:
            print(f"  revision {row['revision']}  {row['at']}  {_moved(row)}")
    return 0


def _moved(row: Mapping[str, Any]) -> str:
    what = f"{row['action']} {_few(row['touched'])}".rstrip()
    why = f": {row['why']}" if row["why"] else ""
    return plain(f"{what} by {row['who']}{why}")


def _few(names: Sequence[str]) -> str:
    """Routes and pools by name, of many the first."""
    left = len(names) - SHOWN_NAMES
    return ", ".join(names[:SHOWN_NAMES]) + (f" and {left} more" if left > 0 else "")


def _state(routes: Mapping[str, Any]) -> str:
    if routes["state"] == "none":
        return "kept in memory alone (state.directory is not configured)"
    fault = routes.get("state_fault")
    return f"{routes['state']} ({fault})" if fault else str(routes["state"])


def _route_row(row: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "route": row["route"],
        "stable": row["stable"],
        "candidate": row["candidate"],
        "weight": f"{row['candidate_weight']:g} %" if row["candidate"] else None,
        "admission": row["admission"],
        "draining": row["draining"],
    }


def _engine_rows(pools: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [
        {
            "pool": name,
            "engine": engine["engine"],
            "usable": engine["usable"],
            "running": engine["running"],
            "prefill_tokens": engine["prefill_tokens"],
            "draining": pool["draining"],
        }
        for name, pool in pools.items()
        for engine in pool["engines"]
    ]


def _audit(args: argparse.Namespace) -> int:
    seen = look(args, f"/admin/audit?limit={args.limit}")
    if args.json:
        print_answers(seen)
    for url, audit in [] if args.json else seen:
        print(f"{url}  chain {audit['chain']}")
        for entry in audit["entries"]:
            print(f"  {entry['n']}  {entry['at']}  {entry['who']}  {_entry(entry)}")
    return 0 if all(audit["chain"] == "whole" for _, audit in seen) else 1


def _entry(entry: Mapping[str, Any]) -> str:
    changed = entry["detail"].get("changed", ())
    touched = [row.get("route") or row.get("pool") for row in changed]
    what = f"{entry['action']} {entry['route'] or _few(touched)}".rstrip()
    if entry["to_revision"] is not None:
        what += f"  revision {entry['from_revision'] or 0} -> {entry['to_revision']}"
    return plain(f"{what}: {entry['why']}" if entry["why"] else what)


# -- moving --------------------------------------------------------------------------------


def _flip(args: argparse.Namespace) -> int:
    return _move(args, {"action": "flip", "route": args.route, "to": args.to, "force": args.force})


def _canary(args: argparse.Namespace) -> int:
    body = {"action": "canary", "route": args.route, "to": args.to, "force": args.force}
    return _move(args, {**body, "weight": args.weight, **canary_options(args)})


def _promote(args: argparse.Namespace) -> int:
    return _move(args, {"action": "promote", "route": args.route, "force": args.force})


def _abort(args: argparse.Namespace) -> int:
    return _move(args, {"action": "abort", "route": args.route})


def _rollback(args: argparse.Namespace) -> int:
    body = {"action": "rollback", "route": args.route, "to_revision": args.to_revision}
    return _move(args, body)


def _drain(args: argparse.Namespace) -> int:
    return _move(args, {"action": "drain", **_target(args), "deadline_s": args.deadline})


def _undrain(args: argparse.Namespace) -> int:
    return _move(args, {"action": "undrain", **_target(args)})


def _target(args: argparse.Namespace) -> dict[str, Any]:
    if (args.target is None) != args.all:
        raise UsageError("name a pool or a route as MODEL/SIZE, or give --all")
    if args.all:
        return {"all": True}
    return {"route" if "/" in args.target else "pool": args.target}


def _move(args: argparse.Namespace, body: dict[str, Any]) -> int:
    body = {**body, "why": args.why}
    asked = ask_all(admins_of(args), body)
    if args.check:
        return _tell(args, [(one, one.would) for one in asked], "would change")
    if body["action"] in ASKED_ABOUT and not args.yes and not _confirmed(asked):
        print("nothing was changed", file=sys.stderr)
        return 1
    told = carry_out(asked, body)
    return _tell(args, list(zip(asked, told, strict=True)), "changed")


def _confirmed(asked: Sequence[Asked]) -> bool:
    """Show the change and ask.

    Raises:
        UsageError: there is nobody to ask.
    """
    if not sys.stdin.isatty():
        raise UsageError("--yes: is needed to move traffic where nobody can be asked")
    for one in asked:
        print("\n".join(_lines(one, one.would, "would change")), file=sys.stderr)
    print("Do it? [y/N] ", end="", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip().lower() in {"y", "yes"}


def _tell(
    args: argparse.Namespace, told: Sequence[tuple[Asked, Mapping[str, Any]]], verb: str
) -> int:
    if args.json:
        print_answers((one.admin.url, answer) for one, answer in told)
        return 0
    for one, answer in told:
        print("\n".join(_lines(one, answer, verb)))
    return 0


def _lines(one: Asked, answer: Mapping[str, Any], verb: str) -> list[str]:
    head = f"{one.admin.url}  revision {answer['revision']}  {verb}:"
    return [
        head,
        *(f"  {_change(row)}" for row in answer["changed"]),
        *(f"  warning: {warning}" for warning in answer.get("warnings", ())),
    ]


def _change(row: Mapping[str, Any]) -> str:
    name = row.get("route") or row.get("pool")
    return f"{name}: {_side(row['before'])} -> {_side(row['after'])}"


def _side(side: Mapping[str, Any]) -> str:
    if "draining" in side:
        return "draining" if side["draining"] else "in use"
    if "engines" in side:
        return " ".join(side["engines"])
    candidate = side["candidate"]
    share = f" with {side['candidate_weight']:g} % to {candidate}" if candidate else ""
    return f"{side['stable']}{share}"


# -- rehearsing, which takes long to load --------------------------------------------------


def _rehearse(bundle: "Callable[[], Bundle]", args: argparse.Namespace) -> int:
    from gateway.rehearsal_cli import rehearse  # noqa: PLC0415

    return rehearse(bundle(), args)


def _rehearsals(args: argparse.Namespace) -> int:
    from gateway.rehearsal_cli import show_rehearsals  # noqa: PLC0415

    return show_rehearsals(args)


# -- pools ---------------------------------------------------------------------------------


def _pools_show(args: argparse.Namespace) -> int:
    seen = look(args, "/admin/pools")
    if args.json:
        print_answers(seen)
        return 0
    for url, pools in seen:
        print(url)
        print_table(_engine_rows(pools["pools"]))
    return 0


def _pools_set(args: argparse.Namespace) -> int:
    admins = admins_of(args)
    body = {"pool": args.pool, "engines": args.engine, "why": args.why}
    told = list(zip(admins, set_pool(admins, body, check=args.check), strict=True))
    if args.json:
        print_answers((admin.url, answer) for admin, answer in told)
        return 0
    for admin, answer in told:
        print(f"{admin.url}  {_change(answer['changed'][0])}")
    return 0


# -- the parser ----------------------------------------------------------------------------


def add_route_verbs(verbs: Any, said: Said, bundle: "Callable[[], Bundle]") -> None:
    """Declare ``routes`` and ``pools``; ``bundle`` makes what a rehearsal of its own needs."""
    routes = add_group(verbs, "routes", said["routes"], _ROUTES)
    add_admin_flags(add_verb(routes, "show", _show, "show routes, pools and the last moves", _SHOW))
    _add_moves(routes)
    add_watch_verb(routes)
    add_rehearse_verbs(routes, partial(_rehearse, bundle), _rehearsals)
    audit = add_verb(
        routes, "audit", _audit, "show who changed what, and whether it is whole", _AUDIT
    )
    audit.add_argument("--limit", type=int, default=20, metavar="N", help="entries (20)")
    add_admin_flags(audit)
    _add_pools(add_group(verbs, "pools", said["pools"], _POOLS))


def _add_pools(pools: Any) -> None:
    add_admin_flags(add_verb(pools, "show", _pools_show, "show the engines of all pools", _POOLS))
    said = "give a pool these engines, until a restart or its keys change"
    setting = add_verb(pools, "set", _pools_set, said, _POOLS_SET)
    setting.add_argument("pool", metavar="POOL", help="as the configuration names it")
    setting.add_argument("engine", nargs="+", metavar="URL", help="all of its engines from now on")
    _add_common(setting)


def _add_moves(routes: Any) -> None:
    flip = add_verb(routes, "flip", _flip, "send all of a route's requests to another pool", _FLIP)
    flip.add_argument("--to", metavar="POOL", help="left out: the candidate")
    canary = add_verb(routes, "canary", _canary, "send some callers to a candidate pool", _CANARY)
    canary.add_argument("--to", metavar="POOL", help="left out: the candidate there is")
    canary.add_argument(
        "--weight", type=float, required=True, metavar="PERCENT", help="of the callers, 0 to 100"
    )
    add_canary_flags(canary)
    promote = add_verb(routes, "promote", _promote, "make a route's candidate its pool", _PROMOTE)
    abort = add_verb(routes, "abort", _abort, "take a route's candidate away", _ABORT)
    said = "take routes back to what they were before their pools changed last"
    rollback = add_verb(routes, "rollback", _rollback, said, _ROLLBACK)
    rollback.add_argument("route", nargs="?", metavar="ROUTE", help="left out: what moved last")
    rollback.add_argument(
        "--to-revision", type=int, metavar="N", help="as at this revision (all routes, or ROUTE)"
    )
    for verb in (flip, canary, promote, abort):
        verb.add_argument("route", metavar="ROUTE", help="MODEL/SIZE, or MODEL for all its sizes")
    for verb in (flip, canary, promote):
        verb.add_argument("--force", action="store_true", help="even if no engine there is usable")
    drain = add_verb(routes, "drain", _drain, "give a pool or route no new work", _DRAIN)
    undrain = add_verb(routes, "undrain", _undrain, "give it work again", _UNDRAIN)
    for verb in (drain, undrain):
        verb.add_argument("target", nargs="?", metavar="TARGET", help="POOL or MODEL/SIZE")
        verb.add_argument("--all", action="store_true", help="all routes")
    drain.add_argument(
        "--deadline", type=float, metavar="SECONDS", help="then what still runs is ended"
    )
    for verb in (flip, canary, promote, abort, rollback, drain, undrain):
        _add_common(verb)
    for verb in (flip, promote, rollback, drain):
        verb.add_argument("--yes", action="store_true", help="do not ask")
    for verb in (canary, abort, undrain):
        verb.set_defaults(yes=True)


def _add_common(parser: Any) -> None:
    parser.add_argument("--why", default="", metavar="TEXT", help="for the audit trail")
    parser.add_argument("--check", action="store_true", help="only show what would change")
    add_admin_flags(parser)


_ROUTES = """  sluicegate routes show
  sluicegate routes canary demo/short --to next --weight 10 --manifest baseline.json
  sluicegate routes rollback --why 'long gaps on next'
"""
_SHOW = """  export SLUICEGATE_ADMIN_TOKEN=...
  sluicegate routes show
  sluicegate routes show --json | jq '.[0].revision'
"""
_FLIP = """  sluicegate routes flip demo/short --to next
  sluicegate routes flip demo --to next --yes --why 'new image' \\
    --admin-url http://gw-1:8081 --admin-url http://gw-2:8081 --token-file token
"""
_CANARY = """  sluicegate routes canary demo/short --to next --weight 10 --manifest baseline.json
  sluicegate routes canary demo/short --weight 25 --manifest baseline.json \\
    --abort error_rate=0.02 --window 60
"""
_PROMOTE = """  sluicegate routes promote demo/short
  sluicegate routes promote demo --yes
"""
_ABORT = """  sluicegate routes abort demo/short --why 'no longer needed'
"""
_ROLLBACK = """  sluicegate routes rollback
  sluicegate routes rollback demo/short --to-revision 5 --yes --why 'gaps on next'
"""
_DRAIN = """  sluicegate routes drain next --deadline 60
  sluicegate routes drain demo/long --deadline 120 --yes --why maintenance
  sluicegate routes drain --all
"""
_UNDRAIN = """  sluicegate routes undrain next
"""
_AUDIT = """  sluicegate routes audit
  sluicegate routes audit --limit 100 --json
"""
_POOLS = """  sluicegate pools show
  sluicegate pools set shared http://10.0.0.1:8000 http://10.0.0.2:8000
"""
_POOLS_SET = """  sluicegate pools set shared http://10.0.0.1:8000 http://10.0.0.2:8000
"""

"""The verb ``up``: engines and a gateway on this machine, to play with.

Simulated engines belong to the bench, so the starter of those is handed in.
Exit codes: 0 done; 1 something did not start; 2 wrong usage.
"""

import argparse
import json
import sys
import tempfile
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from gateway.command import Said, UsageError, add_json, add_verb
from gateway.files import PACKAGE, resolve
from gateway.quickstart import EngineFacts, Supported, Wish, supported_from
from gateway.up import Engine, UpError, curl_lines, stay_up

__all__ = ["Simulated", "add_up_verb", "supported_in"]

HERE = Path("gateway.toml")  # what is given on the command line is relative to this folder
MAX_TIME_SCALE = 1000.0

Simulated = Callable[[argparse.Namespace], tuple[Callable[[Path], list[Engine]], EngineFacts]]


def _up(simulated: Simulated, args: argparse.Namespace) -> int:
    _check_wish(args)
    wish = Wish(
        args.admission,
        args.topology == "isolated",
        args.time_scale,
        args.port,
        args.admin_port,
        args.short_engines,
        _supported(args.limits, args.engine_policy),
    )
    engines, facts = _engines_there(args) if args.engine_url else simulated(args)
    announce = _announce_json if args.json else _announce
    if args.run_dir is not None:
        return stay_up(args.run_dir, engines, facts, wish, announce)
    with tempfile.TemporaryDirectory(prefix="sluicegate-") as folder:
        return stay_up(Path(folder), engines, facts, wish, announce)


def _supported(path: Path | None, policy: str | None) -> Supported:
    """What the file says; how the engines order what waits is better known on the command line."""
    known = {} if policy is None else {"policy": policy}
    if path is None:
        return Supported(known)
    found = supported_in(path)
    return replace(found, limits={**found.limits, **known})


def supported_in(path: Path) -> Supported:
    """What a file of limits says.

    Raises:
        UsageError: it can't be read, or holds something else than ``bench limits`` prints.
    """
    try:
        return supported_from(path.read_text())
    except OSError as error:
        raise UsageError(f"limits {path}: cannot be read ({error.strerror})") from error
    except ValueError as error:
        raise UsageError(f"limits {path}: {error}") from error


def _check_wish(args: argparse.Namespace) -> None:
    count = len(args.engine_url) if args.engine_url else args.engines
    if count < 1:
        raise UsageError("--engines: there must be at least one")
    if args.topology == "isolated" and count < 2:
        raise UsageError("--topology isolated: needs an engine per class, at least two")
    if args.short_engines is not None and not 0 < args.short_engines < count:
        raise UsageError(f"--short-engines: must be from 1 to {count - 1}, which leaves the rest")
    if not 0 < args.time_scale <= MAX_TIME_SCALE:
        raise UsageError(f"--time-scale: must be above 0 and at most {MAX_TIME_SCALE:g}")
    if args.engine_url and (args.tokenizer is None or args.chat_template is None):
        raise UsageError("--engine-url: needs --tokenizer FILE and --chat-template FILE")
    for flag in ("tokenizer", "chat_template"):
        _check_file(f"--{flag.replace('_', '-')}", getattr(args, flag))


def _check_file(flag: str, reference: str | None) -> None:
    if reference is not None and not resolve(HERE, reference).is_file():
        raise UsageError(f"{flag} {reference}: there is no such file")


def _reference(given: str) -> str:
    """A file as a configuration in another folder names it."""
    return given if given.startswith(PACKAGE) else str(Path(given).resolve())


class _There:
    """An engine somebody else runs."""

    def __init__(self, url: str) -> None:
        self.url = url

    def stop(self, timeout_s: float = 0.0) -> int:
        """Leave it alone."""
        return 0


def _engines_there(args: argparse.Namespace) -> tuple[Callable[[Path], list[Engine]], EngineFacts]:
    """Use engines that run already: ask the first for its model, take the default limits."""
    import httpx  # noqa: PLC0415

    urls = [url.rstrip("/") for url in args.engine_url]
    try:
        answer = httpx.get(f"{urls[0]}/v1/models", timeout=5.0, trust_env=False)
        model = answer.raise_for_status().json()["data"][0]
    except (httpx.HTTPError, ValueError, LookupError) as error:
        raise UpError(f"--engine-url {urls[0]}: cannot read /v1/models: {error}") from error
    facts = EngineFacts(
        model=model["id"],
        tokenizer=_reference(args.tokenizer),
        chat_template=_reference(args.chat_template),
        max_model_len=model["max_model_len"],
    )
    if args.limits is None:
        print(
            "note: the limits are the defaults of config/gateway.toml, not learnt from these "
            "engines; --limits FILE takes what `sluicegate bench limits` prints",
            file=sys.stderr,
        )
    return (lambda _folder: [_There(url) for url in urls]), facts


def _announce_json(told: dict[str, Any]) -> None:
    print(json.dumps(told), flush=True)


def _announce(told: dict[str, Any]) -> None:
    print(curl_lines(told), flush=True)


def add_up_verb(verbs: Any, said: Said, simulated: Simulated) -> None:
    """Declare ``up``; ``simulated`` starts its engines where none are named."""
    up = add_verb(verbs, "up", partial(_up, simulated), said["up"], _UP)
    add_json(up)
    up.add_argument("--engines", type=int, default=2, metavar="N", help="simulated engines (2)")
    up.add_argument(
        "--engine-args",
        default="",
        metavar="FLAGS",
        help="for each, as one word: --engine-args='--flag 1'",
    )
    up.add_argument("--engine-url", action="append", metavar="URL", help="use a running engine")
    forms = "of --engine-url's model: a path, or package:NAME/FILE"
    up.add_argument("--tokenizer", metavar="FILE", help=forms)
    up.add_argument("--chat-template", metavar="FILE", help=forms)
    up.add_argument(
        "--admission",
        choices=("enforce", "observe", "off"),
        default="enforce",
        help="whether requests wait and are refused, or only counted (enforce)",
    )
    up.add_argument(
        "--topology",
        choices=("shared", "isolated"),
        default="shared",
        help="one pool for all, or one for each size class (shared)",
    )
    instead = "what `sluicegate bench limits` printed, instead of the default limits"
    up.add_argument("--limits", type=Path, metavar="FILE", help=instead)
    up.add_argument(
        "--engine-policy",
        choices=("fcfs", "priority"),
        help="how the engines order what waits (as --engine-args has it; fcfs of --engine-url)",
    )
    up.add_argument(
        "--short-engines", type=int, metavar="N", help="isolated: the rest is for longs (all but 1)"
    )
    up.add_argument("--time-scale", type=float, default=1.0, help="of the engines' clock (1)")
    up.add_argument("--port", type=int, default=0, help="of the gateway (any free one)")
    up.add_argument("--admin-port", type=int, default=0, help="of its operators' listener")
    up.add_argument("--run-dir", type=Path, metavar="DIR", help="keep configuration and logs here")


_UP = """  sluicegate up
  sluicegate up --engines 1 --engine-args '--max-num-batched-tokens 2048 --max-num-seqs 64'
  sluicegate up --admission off --json
  sluicegate up --engine-url http://127.0.0.1:8000 --tokenizer MODEL/tokenizer.json \\
    --chat-template MODEL/tokenizer_config.json   # or package:NAME/FILE, of a Python package
"""

"""The verb that carries failure scenarios out: `bench scenario NAME | all`."""

import argparse
import asyncio
import os
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import orjson
from rich.console import Console

from loadgen.asker import Asker
from loadgen.asking import ADMIN_TOKEN, version
from loadgen.engine.textmodel import TextModel
from loadgen.identity import engine_identity
from loadgen.probe import hardware_id
from loadgen.record import BenchError
from loadgen.scenario import Check, Scenario
from loadgen.scenario_list import SCENARIOS, scenario_named
from loadgen.scenario_run import Prompts, perform, record_of, write_record
from loadgen.stack import Endpoint, stack
from loadgen.verb import Args, say

__all__ = ["add_scenario_verb"]

Json = Mapping[str, Any]
ALL = "all"
DEFAULT_SCALE = 2.0
CONTEXT_TOKENS = 16384
# Flags of the engines of each kind of stack; small KV memory holds seven of the scenario's calls
# as charged, and four as they become.
STACKS = {
    "two": ("--engines", "2", "--engine-args=--sim-control"),
    "small-kv": (
        "--engines",
        "1",
        "--engine-args=--max-model-len 4096 --num-gpu-blocks-override 400",
    ),
}


def _external(args: Args) -> Endpoint:
    token = os.environ.get(ADMIN_TOKEN)
    if args.admin_url is None or not token:
        raise BenchError(f"scenario --url: needs --admin-url, and an operator's {ADMIN_TOKEN}")
    services = {"interactive": args.key, "batch": args.batch_key or args.key}
    keys = {name: key for name, key in services.items() if key}
    engines = tuple(args.engine_url)
    return Endpoint(args.url, args.admin_url, engines, args.model, keys, {}, admin_token=token)


@asynccontextmanager
async def _stage(args: Args, kind: str, folder: Path) -> AsyncIterator[Endpoint]:
    if args.url is not None:
        yield _external(args)
        return
    more = STACKS[kind]
    async with stack("enforce", "shared", folder, args.time_scale, more) as endpoint:
        yield endpoint


async def _context_tokens(endpoint: Endpoint) -> int:
    """Return the context length that the first engine tells; the usual one without engines."""
    if not endpoint.engine_urls:
        return CONTEXT_TOKENS
    async with Asker() as asker:
        models = await asker.json(f"{endpoint.engine_urls[0]}/v1/models")
    return int(models["data"][0]["max_model_len"])


async def _there(args: Args) -> dict[str, Any]:
    """Return what is known of servers that run already; unknown engines are not called real."""
    versions = [await version(url) for url in args.engine_url]
    told: dict[str, Any] = {"url": args.url, "engine_versions": versions}
    if versions and None not in versions:
        told["synthetic"] = any("simulated" in str(v) for v in versions)
    return told


def _names(args: Args) -> list[str]:
    if args.name != ALL:
        return [args.name]
    if args.url is None:
        return list(SCENARIOS)
    return [n for n in SCENARIOS if _suits_external(scenario_named(n, CONTEXT_TOKENS))]


def _suits_external(scenario: Scenario) -> bool:
    return not scenario.faults and scenario.engines == "two"


def _show(console: Console, scenario: Scenario, checks: Sequence[Check]) -> None:
    word = "pass" if all(c.passed for c in checks) else "FAIL"
    say(console, f"{word}  {scenario.name}: {scenario.said}")
    for check in checks:
        say(console, f"  {'ok  ' if check.passed else 'FAIL'} {check.name}: {check.said}")


async def _perform_all(args: Args, model: TextModel, show: Callable[[Json], None]) -> list[Json]:
    prompts, records = Prompts(model), list[Json]()
    more = {"time_scale": args.time_scale, "hardware_id": hardware_id()}
    more |= (
        {"synthetic": True, **engine_identity(model)} if args.url is None else await _there(args)
    )
    names = _names(args)
    kinds = dict.fromkeys(scenario_named(n, CONTEXT_TOKENS).engines for n in names)
    for kind in kinds:
        async with _stage(args, kind, args.out / f"stack-{kind}") as endpoint:
            context_tokens = await _context_tokens(endpoint)
            for name in names:
                scenario = scenario_named(name, context_tokens)
                if scenario.engines != kind:
                    continue
                if args.url is not None and not _suits_external(scenario):
                    raise BenchError(f"scenario {name}: needs simulated engines, not --url")
                story, checks = await perform(scenario, endpoint, args.time_scale, prompts)
                record = record_of(scenario, story, checks, more)
                write_record(args.out, record)
                records.append(record)
                show({"scenario": scenario, "checks": checks, "record": record})
    return records


def _scenario(args: Args, console: Console) -> int:
    scale = args.time_scale if args.url is None else 1.0
    args = argparse.Namespace(**{**vars(args), "time_scale": scale})
    model = TextModel(args.tokenizer, args.chat_template)

    def show(told: Json) -> None:
        if args.json:
            keys = ("name", "passed", "checks", "offered", "outcomes", "synthetic")
            row = {k: told["record"][k] for k in keys if k in told["record"]}
            console.file.write(orjson.dumps(row).decode() + "\n")
        else:
            _show(console, told["scenario"], told["checks"])

    records = asyncio.run(_perform_all(args, model, show))
    return 0 if all(record["passed"] for record in records) else 1


def add_scenario_verb(verbs: Any) -> None:
    """Add `scenario` to `bench`."""
    said = "make things go wrong on purpose; say what held"
    names = "\n".join(
        f"  {name:17} {make(CONTEXT_TOKENS).said}" for name, make in SCENARIOS.items()
    )
    parser = verbs.add_parser(
        "scenario",
        help=said,
        description=said,
        epilog=f"scenarios:\n{names}\n\nexample:\n  sluicegate bench scenario all --out out/x",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.set_defaults(bench=_scenario)
    parser.add_argument("name", choices=(*SCENARIOS, ALL), metavar="NAME", help="or: all")
    add = parser.add_argument
    add("--out", type=Path, default=Path("out/scenarios"), metavar="DIR", help="%(default)s")
    add("--json", action="store_true", help="print one JSON line for each scenario")
    add(
        "--time-scale", type=float, default=DEFAULT_SCALE, help="of simulated engines (%(default)g)"
    )
    add("--url", help="a running gateway; without it one is started, with simulated engines")
    add("--admin-url", help=f"of its operators' listener; its token is in {ADMIN_TOKEN}")
    add("--engine-url", action="append", default=[], help="an engine behind it (repeatable)")
    add("--model", default="simulated", help="for --url (%(default)s)")
    add("--key", help="an interactive caller's key, for --url")
    add("--batch-key", help="a batch caller's key (default: --key)")
    add("--tokenizer", type=Path, help="tokenizer.json (default: the simulator's)")
    add("--chat-template", type=Path, help="Jinja file (default: the simulator's)")

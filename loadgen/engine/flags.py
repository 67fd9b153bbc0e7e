"""Reads the simulated engine's command line: vLLM's flags, and those of the simulation.

Flags that vLLM has are spelled and defaulted as there (defaults of one H200). A wrong value
ends in an error that names the flag.
"""

import argparse
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from loadgen.engine.cost import StepCost, step_cost_from
from loadgen.engine.faults import FaultPlan, parse_faults
from loadgen.engine.scheduler import SchedulerConfig

__all__ = [
    "EngineSettings",
    "add_arguments",
    "default_step_model_path",
    "read_step_model",
    "settings_from",
]

EPILOG = """\
examples:
  # an engine as one H200 would run it, on a free port
  %(prog)s --port 0

  # a smaller token budget and engine priority, ten times faster than real time
  %(prog)s --port 8100 --max-num-batched-tokens 2048 --max-num-seqs 32 \\
    --scheduling-policy priority --time-scale 10

  # little KV memory, so that sequences are preempted
  %(prog)s --port 8100 --max-model-len 4096 --num-gpu-blocks-override 300

  # prompts that begin alike are computed once; usage says how much was cached
  %(prog)s --port 8100 --enable-prefix-caching --enable-prompt-tokens-details

  # dies after 100 stream events, to see what its clients make of it
  %(prog)s --port 8100 --fault kill-after=100
"""


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """Everything one simulated engine is started with; times in seconds."""

    host: str
    port: int
    served_model_name: str
    scheduler: SchedulerConfig
    cost: StepCost
    tokenizer: str | None
    chat_template: str | None
    time_scale: float
    seed: int
    api_key: tuple[str, ...]
    max_num_queued_reqs: int | None
    max_num_queued_tokens: int | None
    shutdown_timeout_s: float
    fault: FaultPlan
    sim_state: bool
    sim_control: bool = False
    dev_mode: bool = False
    load_tracking: bool = False
    prompt_tokens_details: bool = False
    sse_keep_alive_interval_s: int = 0
    lora_modules: Mapping[str, str] = field(default_factory=dict)


def default_step_model_path() -> Path:
    """The step cost of one H200 with CUDA graphs."""
    return Path(__file__).parent / "data" / "cost-h200-graph.json"


def read_step_model(path: Path) -> StepCost:
    """Read a step-cost file.

    Raises:
        ValueError: The file is missing, no JSON object, or holds wrong coefficients.
    """
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ValueError(f"--step-model {path}: {error.strerror or error}") from error
    except json.JSONDecodeError as error:
        raise ValueError(f"--step-model {path}: not JSON: {error}") from error
    if not isinstance(data, dict):
        raise ValueError(  # noqa: TRY004 - one kind of error for a wrong file
            f"--step-model {path}: must hold a JSON object"
        )
    return step_cost_from(data, name=f"--step-model {path}")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the engine's flags and examples to a parser."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.description = "A simulated vLLM engine: real API and scheduler, modelled step times."
    parser.epilog = EPILOG
    _add_server_flags(parser.add_argument_group("server, as vllm serve"))
    _add_scheduler_flags(parser.add_argument_group("scheduler, as vllm serve"))
    _add_simulation_flags(parser.add_argument_group("simulation"))


def _add_server_flags(group: argparse._ArgumentGroup) -> None:
    add = group.add_argument
    add("--host", default="127.0.0.1", help="address to listen on (%(default)s)")
    add("--port", type=int, default=8000, help="port; 0 takes a free one (%(default)s)")
    add("--served-model-name", default="simulated", metavar="NAME", help="(%(default)s)")
    add("--model", help="accepted; used as the model's name if no --served-model-name is given")
    add("--tokenizer", metavar="PATH", help="tokenizer.json or its folder")
    add("--chat-template", metavar="FILE", help="Jinja template of text content")
    add("--max-model-len", type=int, default=16384, metavar="TOKENS", help="(%(default)s)")
    add(
        "--lora-modules",
        nargs="+",
        default=[],
        metavar="NAME=PATH",
        help="adapters, served as models of their own; nothing is read from PATH",
    )
    add("--enable-server-load-tracking", action="store_true", help="let /load count requests")
    flag, said = argparse.BooleanOptionalAction, "let usage say how many prompt tokens were cached"
    add("--enable-prompt-tokens-details", action=flag, default=False, help=said)
    add(
        "--sse-keep-alive-interval",
        type=int,
        default=0,
        metavar="S",
        help="comment in silent chat and completion streams every S seconds; at 0 never (0)",
    )
    add("--dev-mode", action="store_true", help="open /server_info, as VLLM_SERVER_DEV_MODE=1")
    add("--seed", type=int, default=0, help="seed of texts and natural lengths (%(default)s)")
    add("--api-key", nargs="+", default=[], metavar="KEY", help="guards /v1 only, as vLLM does")
    add(
        "--shutdown-timeout",
        type=float,
        default=0.0,
        metavar="S",
        help="seconds that open requests get after SIGTERM; at 0 they hang (%(default)s)",
    )


def _add_scheduler_flags(group: argparse._ArgumentGroup) -> None:
    add = group.add_argument
    defaults = SchedulerConfig()
    for name, default, said in (
        ("max-num-batched-tokens", defaults.max_num_batched_tokens, "budget of one iteration"),
        ("max-num-seqs", defaults.max_num_seqs, "sequences that run at once"),
        ("long-prefill-token-threshold", 0, "most tokens of one prompt in an iteration; 0: any"),
        ("num-gpu-blocks-override", defaults.num_gpu_blocks, "blocks of the KV cache"),
        ("block-size", defaults.block_size, "tokens of a block"),
    ):
        add(f"--{name}", type=int, default=default, metavar="N", help=f"{said} (%(default)s)")
    policies, said = ("fcfs", "priority"), "who goes first (%(default)s)"
    add("--scheduling-policy", choices=policies, default=defaults.policy, help=said)
    said = "part of the blocks kept free when a sequence starts (%(default)s)"
    add("--watermark", type=float, default=0.0, metavar="PART", help=said)
    flag, said = argparse.BooleanOptionalAction, "start a prompt only if all of it has room (yes)"
    add("--scheduler-reserve-full-isl", action=flag, default=True, help=said)
    add("--enable-chunked-prefill", action=flag, default=True, help="can't be switched off here")
    said = "take over the KV blocks of prompts that began alike (no)"
    add("--enable-prefix-caching", action=flag, default=False, help=said)
    add("--max-num-queued-reqs", type=int, metavar="N", help="503 above N requests in the engine")
    add("--max-num-queued-tokens", type=int, metavar="N", help="503 at N prompt tokens in prefill")


def _add_simulation_flags(group: argparse._ArgumentGroup) -> None:
    add = group.add_argument
    add("--step-model", type=Path, metavar="FILE", help="step cost (one H200's, CUDA graphs)")
    add(
        "--time-scale",
        type=float,
        default=1.0,
        metavar="K",
        help="its clock runs K times as fast (%(default)s)",
    )
    add(
        "--fault",
        action="append",
        default=[],
        metavar="NAME[=VALUE]",
        help="kill-after=N, hang-after=N, error-event-after=N, busy-event=N, slow-start=S, "
        "hang-scheduler or reject",
    )
    add("--sim-control", action="store_true", help="open POST /sim/fault: other faults at run time")
    add("--sim-state", action="store_true", help="open GET /sim/state, a test aid without texts")


def settings_from(args: argparse.Namespace) -> EngineSettings:
    """Check and freeze parsed flags.

    Raises:
        ValueError: A value is out of range, or a file can't be used; the message names the flag.
    """
    _check(args)
    scheduler = SchedulerConfig(
        max_num_batched_tokens=args.max_num_batched_tokens,
        max_num_seqs=args.max_num_seqs,
        policy=args.scheduling_policy,
        long_prefill_token_threshold=args.long_prefill_token_threshold,
        num_gpu_blocks=args.num_gpu_blocks_override,
        block_size=args.block_size,
        max_model_len=args.max_model_len,
        reserve_full_isl=args.scheduler_reserve_full_isl,
        watermark=args.watermark,
        enable_prefix_caching=args.enable_prefix_caching,
    )
    return EngineSettings(
        host=args.host,
        port=args.port,
        served_model_name=_model_name(args),
        scheduler=scheduler,
        cost=read_step_model(args.step_model or default_step_model_path()),
        tokenizer=args.tokenizer,
        chat_template=args.chat_template,
        time_scale=args.time_scale,
        seed=args.seed,
        api_key=tuple(args.api_key),
        max_num_queued_reqs=args.max_num_queued_reqs,
        max_num_queued_tokens=args.max_num_queued_tokens,
        shutdown_timeout_s=args.shutdown_timeout,
        fault=parse_faults(args.fault),
        sim_state=args.sim_state,
        sim_control=args.sim_control,
        dev_mode=args.dev_mode,
        load_tracking=args.enable_server_load_tracking,
        prompt_tokens_details=args.enable_prompt_tokens_details,
        sse_keep_alive_interval_s=args.sse_keep_alive_interval,
        lora_modules=dict(map(_lora_module, args.lora_modules)),
    )


def _lora_module(text: str) -> tuple[str, str]:
    name, equals, path = text.partition("=")
    if not (name and equals and path):
        raise ValueError(f"--lora-modules {text}: must be NAME=PATH")
    return name, path


def _model_name(args: argparse.Namespace) -> str:
    default = "simulated"
    if args.model and args.served_model_name == default:
        return str(args.model)
    return str(args.served_model_name)


def _check(args: argparse.Namespace) -> None:
    """Refuse what would silently simulate something else than asked."""
    if not 0 <= args.port <= 65535:
        raise ValueError(f"--port {args.port}: must be 0..65535")
    if not 0.0 < args.time_scale <= 1000.0:
        raise ValueError(f"--time-scale {args.time_scale}: must be above 0 and at most 1000")
    if not 0.0 <= args.shutdown_timeout <= 86400.0:
        raise ValueError(f"--shutdown-timeout {args.shutdown_timeout}: must be 0..86400 seconds")
    if not args.enable_chunked_prefill:
        raise ValueError("--no-enable-chunked-prefill: the simulated engine always chunks")
    least = {"max_num_queued_reqs": 1, "max_num_queued_tokens": 1, "sse_keep_alive_interval": 0}
    for name, lowest in least.items():
        value = getattr(args, name)
        if value is not None and value < lowest:
            raise ValueError(f"--{name.replace('_', '-')} {value}: must be at least {lowest}")

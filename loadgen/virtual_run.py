"""Makes a run's records and its seconds in virtual time, as a measured run would have them.

Engines are the simulated ones' scheduler and step cost with the cell's arguments, so the same
decisions about the same trace; what is missing is the noise of real servers, sockets and clocks.
Pure: no I/O, no clock.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from loadgen.engine.cost import StepCost
from loadgen.engine.scheduler import Scheduler, SchedulerConfig
from loadgen.events import EXPIRED, max_stall_us
from loadgen.forecast import DELAYS
from loadgen.record import SERVICE_CLASS, BenchError, Outcome, RequestRecord
from loadgen.sessions import engine_keys
from loadgen.simulate import Delays, Policy, SimArrival, SimResult, Watch, simulate
from loadgen.trace import Arrival, planned_part

__all__ = ["VirtualRun", "World", "cell_args", "scheduler_config", "virtual_run"]

Json = dict[str, Any]
DEFAULT_BLOCK_TOKENS = 16
# Arguments of `vllm serve` that decide a schedule, and the scheduler's own names for them.
ARGUMENTS = {
    "max_num_batched_tokens": "max_num_batched_tokens",
    "max_num_seqs": "max_num_seqs",
    "scheduling_policy": "policy",
    "long_prefill_token_threshold": "long_prefill_token_threshold",
    "num_gpu_blocks_override": "num_gpu_blocks",
    "block_size": "block_size",
    "max_model_len": "max_model_len",
    "scheduler_reserve_full_isl": "reserve_full_isl",
    "watermark": "watermark",
    "enable_prefix_caching": "enable_prefix_caching",
}


@dataclass(frozen=True, slots=True)
class World:
    """Where a run takes place: the engines' configurations, their step cost, and the times.

    `tells_cached`: the engines say of each answer how much of its prompt was cached.
    """

    engines: tuple[SchedulerConfig, ...]
    cost: StepCost
    ramp_s: float
    timeout_s: float
    delays: Delays = DELAYS
    tells_cached: bool = False


@dataclass(frozen=True, slots=True)
class VirtualRun:
    """What a run in virtual time shows: its requests and its samples."""

    records: tuple[RequestRecord, ...]
    samples: tuple[Json, ...]


def scheduler_config(args: Mapping[str, Any]) -> SchedulerConfig:
    """Return the scheduler's limits from a cell's arguments; other arguments decide no schedule.

    Raises:
        BenchError: a limit that no engine would start with.
    """
    known = {name: value for name, value in args.items() if value is not None}
    own = {ARGUMENTS[name]: value for name, value in known.items() if name in ARGUMENTS}
    try:
        return SchedulerConfig(**own)
    except (TypeError, ValueError) as error:
        raise BenchError(f"cell arguments: {error}") from error


def cell_args(plan: Mapping[str, Any], cell_id: str) -> Json:
    """Return a cell's arguments, its KV cache the captured baseline's where no argument says it.

    Raises:
        BenchError: the plan has no such cell.
    """
    cells = {cell["cell_id"]: cell["args"] for cell in plan["cells"]}
    if cell_id not in cells:
        raise BenchError(f"cell {cell_id!r}: the plan has {', '.join(cells)}")
    args = cells[cell_id]
    kv_tokens = plan["baseline"].get("facts", {}).get("kv_tokens")
    if kv_tokens is None or args.get("num_gpu_blocks_override") is not None:
        return dict(args)
    block_tokens = args.get("block_size") or DEFAULT_BLOCK_TOKENS
    return {**args, "num_gpu_blocks_override": kv_tokens // block_tokens}


class _Seconds:
    """Keeps what the engines say at every second."""

    def __init__(self) -> None:
        self.rows: list[Json] = []

    def look(self, now: float, schedulers: Sequence[Scheduler]) -> None:
        for number, engine in enumerate(schedulers):
            self.rows.append(
                {
                    "source": "engine",
                    "engine": number,
                    "up": True,
                    "t_s": now,
                    "running": engine.running,
                    "waiting": engine.waiting,
                    "kv_usage": engine.kv_used_blocks / engine.config.usable_blocks,
                    "preemptions_total": engine.preemptions_total,
                    **_cache_counters(engine),
                }
            )


def _cache_counters(engine: Scheduler) -> Json:
    if not engine.config.enable_prefix_caching:
        return {}
    hits, queries = engine.prefix_hits_total, engine.prefix_queries_total
    return {"prefix_cache_hits_total": hits, "prefix_cache_queries_total": queries}


def virtual_run(trace: Sequence[Arrival], policy: Policy, world: World) -> VirtualRun:
    """Play a frozen trace through a policy at a world's engines."""
    config = world.engines[0]
    arrivals = [
        SimArrival(
            a.seq,
            a.offset_us / 1e6,
            a.size_class,
            a.input_tokens,
            a.output_tokens,
            service_class=SERVICE_CLASS.get(a.size_class, a.size_class),
            keys=_keys(a, config),
        )
        for a in trace
    ]
    seconds = _Seconds()
    watch = Watch(world.timeout_s, seconds.look)
    results = simulate(arrivals, policy, world.engines, world.cost, world.delays, watch)
    records = tuple(_record(a, r, world) for a, r in zip(trace, results, strict=True))
    times = dict.fromkeys(row["t_s"] for row in seconds.rows)
    told = [row for t in times for row in (_client(results, t), _gateway(results, t))]
    return VirtualRun(records, (*told, *seconds.rows))


def _keys(arrival: Arrival, config: SchedulerConfig) -> tuple[int, ...]:
    if not config.enable_prefix_caching:
        return ()
    return engine_keys(arrival.hash_ids, arrival.input_tokens, config.block_size)


def _us(seconds: float | None) -> int | None:
    return None if seconds is None else round(seconds * 1e6)


def _outcome(result: SimResult) -> tuple[Outcome, str | None]:
    if result.done:
        return Outcome.OK, None
    if result.refused is not None:
        expired = result.refused in EXPIRED
        return Outcome.EXPIRED if expired else Outcome.REJECTED, result.refused
    return Outcome.TIMEOUT, None


def _record(arrival: Arrival, result: SimResult, world: World) -> RequestRecord:
    outcome, code = _outcome(result)
    events = tuple(round(at * 1e6) for at in result.events_s)
    ok, first = outcome is Outcome.OK, _us(result.first_s)
    queued = None if result.sent_s is None else (result.sent_s - result.arrival.at_s) * 1e3
    return RequestRecord(
        **planned_part(arrival, world.ramp_s),
        outcome=outcome,
        outcome_code=code,
        status=200 if ok else None,
        connect_wait_us=0,
        dispatched_us=arrival.offset_us,
        first_byte_us=first,
        first_event_us=first,
        last_byte_us=_us(result.last_s if ok else result.refused_s),
        event_us=events or None,
        max_stall_us=max_stall_us(events),
        finish_reason="length" if ok else None,
        prompt_tokens_reported=arrival.input_tokens if ok else None,
        completion_tokens_reported=result.tokens if ok else None,
        cached_tokens=result.cached_tokens if ok and world.tells_cached else None,
        queue_ms=queued,
    )


def _ended_s(result: SimResult) -> float | None:
    return result.last_s if result.done else result.refused_s


def _client(results: Sequence[SimResult], now: float) -> Json:
    """Return what the client has seen by now; in virtual time it is never late."""
    offered = [r for r in results if r.arrival.at_s <= now]
    done = [r for r in offered if r.done and r.last_s is not None and r.last_s <= now]
    refused = [r for r in offered if r.refused_s is not None and r.refused_s <= now]
    silent = [r for r in offered if not _answered(r, now)]
    return {
        "source": "client",
        "t_s": now,
        "offered": _by_class(offered),
        "done": _by_class(done),
        "refused": _by_class(refused),
        "oldest_unanswered_s": _oldest_s(silent, now),
        "loop_lag_ms": 0.0,
        "cpu_share": 0.0,
    }


def _answered(result: SimResult, now: float) -> bool:
    seen = (result.first_s, _ended_s(result))
    return result.timed_out or any(at is not None and at <= now for at in seen)


def _gateway(results: Sequence[SimResult], now: float) -> Json:
    """Return who waits in the gateway: offered, neither sent nor refused yet."""
    waiting = [r for r in results if r.arrival.at_s <= now and not _left_queue(r, now)]
    ages = _oldest_s(waiting, now)
    names = sorted({r.arrival.size_class for r in results})
    depths = Counter(r.arrival.size_class for r in waiting)
    return {
        "source": "gateway",
        "up": True,
        "t_s": now,
        "oldest_age_s": {name: ages.get(name, 0.0) for name in names},
        "queue_depth": {name: depths[name] for name in names},
    }


def _left_queue(result: SimResult, now: float) -> bool:
    left = (result.sent_s, result.refused_s)
    return result.timed_out or any(at is not None and at <= now for at in left)


def _oldest_s(results: Sequence[SimResult], now: float) -> dict[str, float]:
    ages: dict[str, float] = {}
    for r in results:
        ages[r.arrival.size_class] = max(ages.get(r.arrival.size_class, 0.0), now - r.arrival.at_s)
    return ages


def _by_class(results: Sequence[SimResult]) -> dict[str, int]:
    return dict(Counter(r.arrival.size_class for r in results))

"""A small decided sweep on disk, for tests of what is shown and handed on."""

from loadgen.record import Outcome
from loadgen.results import conclude
from tests.loadgen.made import PLAIN, Behaviour, better, plan, write_plan, write_run

ARGS = {
    "B0": {"max_num_batched_tokens": 8192, "max_num_seqs": 1024},
    "C1": {"max_num_batched_tokens": 2048, "max_num_seqs": 1024},
    "C2": {"max_num_batched_tokens": 4096, "max_num_seqs": 16},
}
UNITS = ("B0", "C1", "C2")
# C1 stalls less and harms nobody; C2 turns every tenth long prompt away.
BEHAVIOURS = {
    "B0": PLAIN,
    "C1": better(short_stall=0.5),
    "C2": Behaviour(failed={"long": 0.1}, failure=Outcome.REJECTED),
}
CONFIG = {
    "image_digest": "e" * 64,
    "model_revision": "m" * 40,
    "tokenizer_revision": "t" * 40,
    "hardware_id": "a test machine",
}


def samples(unit):
    """Three seconds of a client, a gateway and an engine."""
    told = []
    for t in range(3):
        ages = {"short": 0.1 * t, "long": 0.5 * t}
        client = {"loop_lag_ms": 1.0, "cpu_share": 0.1, "dispatch_lag_ms": 0.3}
        told += [
            {"source": "client", "t_s": float(t), "oldest_unanswered_s": ages, **client},
            {
                "source": "gateway",
                "up": True,
                "t_s": t + 0.2,
                "oldest_age_s": ages,
                "queue_depth": {"short": 0, "long": t},
            },
            {
                "source": "engine",
                "engine": 0,
                "up": True,
                "t_s": t + 0.4,
                "running": 4 + t,
                "waiting": t,
                "kv_usage": 0.2 * t,
                "preemptions_total": (10.0, 12.0, 1.0)[t] if unit == "C2" else 10.0,
            },
        ]
    return told


def planned(**changes):
    made = plan(UNITS, **changes)
    for cell in made["cells"]:
        cell["args"] = ARGS[cell["cell_id"]]
    for run in made["runs"]:
        run["rate_per_s"] = 8.0
    return {**made, "launcher": {"kind": "command", "start": ["ssh", "secret-host"]}}


def write_runs(folder, made, behaviours=None, leave_out=()):
    for run in made["runs"]:
        if run["run_id"] not in leave_out:
            unit = run["cell_id"]
            config = {**CONFIG, "effective_args": ARGS[unit]}
            behaviour = (behaviours or BEHAVIOURS)[unit]
            write_run(folder, run, made, behaviour, samples=samples(unit), **config)


def write_sweep(folder, behaviours=None, leave_out=(), **changes):
    """Write a sweep, analyse and decide it; returns analysis and decision."""
    made = write_plan(folder, planned(**changes))
    write_runs(folder, made, behaviours, leave_out)
    return conclude(folder)

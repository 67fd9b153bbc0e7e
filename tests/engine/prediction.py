"""Measures real vLLM under load and says how well virtual time foretold it.

Run: python -m tests.engine.prediction DIR

Starts the middle model on this machine's CPU, fits the cost of its steps, plans six runs of Poisson
arrivals, carries them out through the gateway (admission off), simulates the same plan with the
fitted costs, and compares: every step is a command of the product and is printed. About ten
minutes; what is in DIR already is kept. Nothing else should run on the machine.
"""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from tests.engine.vllm import (
    ENTRY,
    ENVIRONMENT,
    begin,
    carried_out,
    end_in_order,
    model,
    python,
    ready,
)
from tests.ports import free_port

LIMITS = {
    "max_num_batched_tokens": 2048,
    "max_num_seqs": 16,
    "max_model_len": 9216,
    "block_size": 128,
    "kv_cache_memory_bytes": "400M",
    "dtype": "bfloat16",
    "enforce_eager": True,
    "enable_prefix_caching": False,
}
# What no engine tells of itself.
UNTOLD = ("--load-format", "dummy", "--distributed-executor-backend", "uni")
# About three quarters of what the model does on one core.
PLAN = """
seed = 5
rounds = 3
looks = [3]
strata = ["near"]
rates.80-20 = {{ low = 1.4, near = 1.8, stress = 2.2 }}
rates.50-50 = {{ low = 0.8, near = 1.1, stress = 1.3 }}
classes.short = {{ prompt_tokens = 256, output_tokens = 48 }}
classes.long = {{ prompt_tokens = 4096, output_tokens = 48 }}
mixes.80-20.shares = {{ short = 0.8, long = 0.2 }}
mixes.50-50.shares = {{ short = 0.5, long = 0.5 }}
intervals = {{ ramp_s = 8.0, window_s = 40.0, drain_s = 30.0, timeout_s = 30.0 }}
arrivals.kind = "poisson"
cells = []
gateway.admission = "off"
tokenizer = {{ path = {tokenizer}, chat_template = {template} }}
baseline.captured = "b0.json"

[contract.short]
{contract}
[contract.long]
{contract}
[launcher]
kind = "vllm"
model = {model}
command = {command}
served_model_name = "simulated"
port = {port}
tokenizer = {tokenizer}
chat_template = {template}
{environment}
"""
CONTRACT = """ttft_s = 10.0
max_stall_s = 10.0
e2e_s = 30.0
attainment = 0.95
max_refused = 0.05
validator = "finish reason, usage and forced length"
gate_strata = [["80-20", "near"], ["50-50", "near"]]
"""


def sluicegate(*words: str | Path, tries: int = 1) -> None:
    """Run a command of the product, up to so many times; raises CalledProcessError."""
    print("$ sluicegate", *words, flush=True)
    command = [sys.executable, "-m", "gateway", *map(str, words)]
    while status := carried_out(command):
        tries -= 1
        if not tries:
            raise subprocess.CalledProcessError(status, command)


def calibrate(folder: Path) -> None:
    """Fit the steps of an idle engine and write down its settings."""
    flags = [word for name, value in LIMITS.items() for word in flag(name, value)]
    os.environ["VLLM_SERVER_DEV_MODE"] = "1"  # so that it tells its settings
    engine = begin(model("mid").parent, "mid", flags, folder / "calibrated.log")
    del os.environ["VLLM_SERVER_DEV_MODE"]
    try:
        ready(engine)
        asked = ("--engine-url", engine.url, "--model", "simulated", "--repeats", "8")
        budget = str(LIMITS["max_num_batched_tokens"])
        out = ("--token-budget", budget, "--out", folder / "step-model.json")
        sluicegate("bench", "calibrate-engine", *asked, *out)
        sluicegate("bench", "capture", "--engine-url", engine.url, "--out", folder / "b0.json")
    finally:
        engine.stop()


def flag(name: str, value: object) -> list[str]:
    """The words of one argument of `vllm serve`."""
    dashed = name.replace("_", "-")
    if isinstance(value, bool):
        return [f"--{dashed}" if value else f"--no-{dashed}"]
    return [f"--{dashed}", str(value)]


def write_plan(folder: Path) -> Path:
    """The file of the sweep: one cell, what the captured engine had."""
    own = model("mid")
    environment = "".join(f"environment.{k} = {json.dumps(v)}\n" for k, v in ENVIRONMENT.items())
    text = PLAN.format(
        contract=CONTRACT,
        model=json.dumps(str(own)),
        tokenizer=json.dumps(str(own / "tokenizer.json")),
        template=json.dumps(str(own / "chat_template.jinja")),
        command=json.dumps([str(python()), *ENTRY, "{model}", *UNTOLD]),
        port=free_port(),
        environment=environment,
    )
    path = folder / "sweep.toml"
    path.write_text(text)
    return path


def main(words: Sequence[str]) -> int:
    """Do all of it and print the comparison."""
    end_in_order()
    folder = Path(words[0] if words else "out/prediction").resolve()
    folder.mkdir(parents=True, exist_ok=True)
    if not (folder / "step-model.json").is_file():
        calibrate(folder)
    measured, told = folder / "measured", folder / "simulated"
    if not (measured / "plan.json").is_file():
        sluicegate("bench", "plan", write_plan(folder), "--out", measured)
    # A run that the machine disturbed is invalid; it is made again.
    sluicegate("bench", "run", measured, "--resume", tries=3)
    costs = ("--step-model", folder / "step-model.json")
    sluicegate("bench", "simulate", measured, "--out", told, *costs)
    sluicegate("bench", "simulate", measured, "--out", told, "--compare", measured)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""Carries a plan out, run by run: the engines of each, its configuration, its records."""

import contextlib
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from loadgen.files import file_digest, read_json
from loadgen.identity import EXTERNAL_IDENTITY, cost_path, engine_identity
from loadgen.probe import hardware_id
from loadgen.record import RunConfig
from loadgen.replay import Job
from loadgen.results import trace_path
from loadgen.run import Watch, carry_out, write_config
from loadgen.stack import Endpoint, keys_by_class, stack

__all__ = [
    "EXTERNAL_IDENTITY",
    "Show",
    "conduct",
    "cost_path",
    "done_already",
    "engine_identity",
    "run_config",
]

Json = Mapping[str, Any]
# Shows one run as it goes: given number, run and seconds at most, it yields what takes the rows.
Show = Callable[[int, Json, float], contextlib.AbstractContextManager[Watch]]


def run_config(
    run: Json, plan: Json, plan_sha256: str, endpoint: Endpoint, identity: Mapping[str, str]
) -> RunConfig:
    """Return what a run is: its identity, inputs, environment, arguments and intervals."""
    intervals = plan["intervals"]
    # A server that ran already was not set up by the plan: nothing is claimed of its settings.
    own = () if "external" in endpoint.told else ("admission", "topology", "engines")
    arms = {k: run[k] for k in own}
    digests = {"gateway_config_digest": file_digest(endpoint.config)} if endpoint.config else {}
    return RunConfig(
        run_id=run["run_id"],
        cell_id=run["cell_id"],
        repeat=run["repeat"],
        trace_sha256=run["trace_sha256"],
        corpus_sha256=plan["corpus_sha256"],
        hardware_id=hardware_id(),
        effective_args={**arms, "stack": endpoint.told},
        warmup_seconds=intervals["ramp_s"],
        observation_seconds=intervals["window_s"],
        drain_deadline_seconds=intervals["drain_s"],
        details={
            "kind": "config",
            "synthetic": plan["synthetic"],
            "plan_sha256": plan_sha256,
            "trace": run["trace"],
            "synthetic_length": True,
            **digests,
        },
        **identity,
    )


def done_already(folder: Path, run: Json) -> bool:
    """Say whether a run's records are all there: samples are written last."""
    path: Path = folder / "runs" / run["run_id"] / "samples.jsonl"
    return path.is_file()


def _job(folder: Path, run: Json, plan: Json, endpoint: Endpoint, config_sha256: str) -> Job:
    intervals = plan["intervals"]
    return Job(
        run_id=run["run_id"],
        url=endpoint.gateway_url,
        model=endpoint.model,
        keys=keys_by_class(endpoint.keys, tuple(plan["demands"])),
        trace_path=str(trace_path(folder, run["trace"])),
        trace_sha256=run["trace_sha256"],
        corpus_path=str(folder / "corpus.jsonl"),
        corpus_sha256=plan["corpus_sha256"],
        config_sha256=config_sha256,
        out_path=str(folder / "runs" / run["run_id"] / "requests.jsonl"),
        **intervals,
    )


@asynccontextmanager
async def _endpoint(external: Endpoint | None, run: Json, run_dir: Path) -> AsyncIterator[Endpoint]:
    if external is not None:
        yield external
        return
    async with stack(run["admission"], run["topology"], run_dir / "stack") as endpoint:
        yield endpoint


async def conduct(
    folder: Path,
    runs: Sequence[Json],
    identity: Mapping[str, str],
    show: Show,
    external: Endpoint | None = None,
) -> None:
    """Carry out runs of the folder's plan, one after another, each on a fresh stack.

    Args:
        folder: with corpus, traces and plan.
        runs: which of the plan's, in order.
        identity: image, model and tokenizer of the engines.
        show: the live view.
        external: a server that runs already, used as it is for every run.

    Raises:
        BenchError: the stack or the replay failed; records of earlier runs stay.
    """
    plan, plan_sha256 = read_json(folder / "plan.json"), file_digest(folder / "plan.json")
    limit_s = sum(plan["intervals"][k] for k in ("ramp_s", "window_s", "drain_s"))
    for number, run in enumerate(runs, start=1):
        run_dir = folder / "runs" / run["run_id"]
        (run_dir / "samples.jsonl").unlink(missing_ok=True)
        async with _endpoint(external, run, run_dir) as endpoint:
            config = run_config(run, plan, plan_sha256, endpoint, identity)
            sha256 = write_config(run_dir, config)
            job = _job(folder, run, plan, endpoint, sha256)
            with show(number, run, limit_s) as watch:
                await carry_out(job, run_dir, endpoint.admin_url, endpoint.engine_urls, watch)

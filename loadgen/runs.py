"""Carries a demonstration's plan out, run by run: engines, configuration, records.

A run that the client spoilt is run again as a sweep's is: at most twice, directly after, on a fresh
stack; the spoilt attempts stay beside it.
"""

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractContextManager, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from loadgen import staging
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
# Shows one attempt as it goes: given the run's number, the run, what was at fault in each of its
# attempts before, and seconds at most, it yields what takes the rows.
Show = Callable[[int, Json, Sequence[Sequence[str]], float], AbstractContextManager[Watch]]


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


def _job(part: Path, run: Json, plan: Json, endpoint: Endpoint, config_sha256: str) -> Job:
    intervals, folder = plan["intervals"], part.parent.parent
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
        out_path=str(part / "requests.jsonl"),
        **intervals,
    )


@asynccontextmanager
async def _endpoint(external: Endpoint | None, run: Json, run_dir: Path) -> AsyncIterator[Endpoint]:
    if external is not None:
        yield external
        return
    async with stack(run["admission"], run["topology"], run_dir / "stack") as endpoint:
        yield endpoint


@dataclass(frozen=True, slots=True)
class _Demo:
    """What all runs of a plan have in common."""

    folder: Path
    plan: Json
    plan_sha256: str
    identity: Mapping[str, str]
    external: Endpoint | None

    async def run(self, number: int, run: Json, show: Show) -> None:
        """Measure until the client keeps up, so often at most; spoilt attempts are kept."""
        folder, run_id = self.folder, run["run_id"]
        planned = staging.arrivals_of(trace_path(folder, run["trace"]))
        staging.drop_attempts(folder, run_id)
        (folder / "runs" / run_id / "samples.jsonl").unlink(missing_ok=True)
        before: list[list[str]] = []
        while True:
            part = staging.part_of(folder, run_id)
            await self._attempt(part, run, partial(show, number, run, before))
            faults = staging.faults_of(part, run, self.plan, planned)
            if not faults or len(before) == staging.RERUNS:
                break
            before.append(faults)
            staging.keep(part, run_id, len(before))
        staging.keep(part, run_id, None)

    async def _attempt(
        self, part: Path, run: Json, show: Callable[[float], AbstractContextManager[Watch]]
    ) -> None:
        plan = self.plan
        limit_s = sum(plan["intervals"][k] for k in ("ramp_s", "window_s", "drain_s"))
        async with _endpoint(self.external, run, part) as endpoint:
            config = run_config(run, plan, self.plan_sha256, endpoint, self.identity)
            job = _job(part, run, plan, endpoint, write_config(part, config))
            with show(limit_s) as watch:
                await carry_out(job, part, endpoint.admin_url, endpoint.engine_urls, watch)


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
        show: the live view of each attempt.
        external: a server that runs already, used as it is for every run.

    Raises:
        BenchError: the stack or the replay failed; records of earlier runs stay.
    """
    plan, plan_sha256 = read_json(folder / "plan.json"), file_digest(folder / "plan.json")
    demo = _Demo(folder, plan, plan_sha256, identity, external)
    for number, run in enumerate(runs, start=1):
        await demo.run(number, run, show)

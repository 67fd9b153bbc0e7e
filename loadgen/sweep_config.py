"""Says what one run of a sweep is, apart from what it measured, and its job for the replay.

The thirteen fields of a configuration are always there; what is not known beside them is absent.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from loadgen.files import file_digest
from loadgen.identity import EXTERNAL_IDENTITY
from loadgen.launching import Need, Standing
from loadgen.probe import hardware_id
from loadgen.record import RunConfig
from loadgen.replay import Job
from loadgen.run_folder import trace_path
from loadgen.stack import keys_by_class

__all__ = ["Started", "incompatible_config", "job_of", "sweep_config"]

Json = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Started:
    """One start of a cell's servers: the name of its folder, what stands, and what is said of it.

    `restarted` is set where the engine had died in the run before.
    """

    name: str
    need: Need
    standing: Standing
    rounds: tuple[Mapping[str, float], ...] = ()
    restarted: bool = False
    extra: Json = field(default_factory=dict)


def _common(run: Json, plan: Json, plan_sha256: str, need: Need) -> dict[str, Any]:
    names = ("order", "mix", "rate", "arm", "pools")
    template = plan.get("chat_template_sha256")
    return {
        "kind": "config",
        "synthetic": bool(plan["synthetic"]),
        "plan_sha256": plan_sha256,
        "trace": run["trace"],
        "synthetic_length": True,
        "time_scale": need.time_scale,
        "gateway": {k: getattr(need, k) for k in ("admission", "topology", "engines")},
        **{k: run[k] for k in names if k in run},
        **({} if template is None else {"chat_template_sha256": template}),
    }


def _config(
    run: Json, plan: Json, args: Json, identity: Mapping[str, str], details: Json
) -> RunConfig:
    times = plan["intervals"]
    return RunConfig(
        run_id=run["run_id"],
        cell_id=run["cell_id"],
        repeat=run["repeat"],
        trace_sha256=run["trace_sha256"],
        corpus_sha256=plan["corpus_sha256"],
        effective_args=args,
        warmup_seconds=times["ramp_s"],
        observation_seconds=times["window_s"],
        drain_deadline_seconds=times["drain_s"],
        details=details,
        **{"hardware_id": hardware_id(), **identity},
    )


def sweep_config(
    run: Json, plan: Json, plan_sha256: str, started: Started, attempt: int
) -> RunConfig:
    """Return a run's configuration on the servers that stand for it."""
    confirmed, endpoint = started.standing.confirmed, started.standing.endpoint
    details = {
        **_common(run, plan, plan_sha256, started.need),
        **started.standing.facts,
        **confirmed.facts,
        "start": started.name,
        "attempt": attempt,
        "effective_source": confirmed.source,
        "unconfirmed": list(confirmed.unconfirmed),
        "stack": dict(endpoint.told),
        "warmup_rounds": len(started.rounds),
        **({"engine_restarted": True} if started.restarted else {}),
    }
    if endpoint.config is not None:
        details["gateway_config_digest"] = file_digest(endpoint.config)
    return _config(run, plan, confirmed.args, started.standing.identity, details)


def incompatible_config(
    run: Json, plan: Json, plan_sha256: str, need: Need, reason: str
) -> RunConfig:
    """Return the configuration of a run that cannot be: its cell is not what the plan says."""
    details = {**_common(run, plan, plan_sha256, need), "incompatible": reason}
    return _config(run, plan, need.args, EXTERNAL_IDENTITY, details)


def job_of(
    folder: Path, run_dir: Path, run: Json, plan: Json, started: Started, config_sha256: str
) -> Job:
    """Return what the replaying process is told; the keys in it are written nowhere."""
    endpoint = started.standing.endpoint
    return Job(
        run_id=run["run_id"],
        url=endpoint.gateway_url,
        model=endpoint.model,
        keys=keys_by_class(endpoint.keys, tuple(plan["classes"])),
        trace_path=str(trace_path(folder, run["trace"])),
        trace_sha256=run["trace_sha256"],
        corpus_path=str(folder / "corpus.jsonl"),
        corpus_sha256=plan["corpus_sha256"],
        config_sha256=config_sha256,
        out_path=str(run_dir / "requests.jsonl"),
        time_scale=started.need.time_scale,
        **plan["intervals"],
    )

"""Carries a sweep out: starts in the plan's order, the runs of each on one start, reruns, resume.

Only the client's own faults make a run again, at most twice, directly after and on the same
server (on a fresh one where prefixes are reused: the cache remembers); the spoilt attempts stay.
What a server does stands: an engine that died is started anew for the runs that are left of its
cell, and the record says so. Every finished run is on disk; whatever ends the bench costs the run
in flight.
"""

import fcntl
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import asdict, dataclass, replace
from itertools import groupby
from pathlib import Path
from typing import Any

from loadgen import staging
from loadgen.asking import healthy, settled
from loadgen.corpus import load_corpus
from loadgen.files import file_digest, read_json, write_json
from loadgen.launchers import launcher_of
from loadgen.launching import Launcher, Need, need_of, start_name
from loadgen.pace import Pace
from loadgen.record import BenchError
from loadgen.run import carry_out, write_config
from loadgen.run_folder import trace_path
from loadgen.start_files import seal_start
from loadgen.sweep_config import Started, incompatible_config, job_of, sweep_config
from loadgen.sweep_inputs import FILE, hold_inputs, planned_inputs
from loadgen.warmup import Round, rounds_of, warm_up

__all__ = ["Outcome", "Tell", "conduct_sweep"]

Json = Mapping[str, Any]
Tell = Callable[[Json], None]
TRIES = 3


class _NotStartedError(BenchError):
    """The servers of a cell did not come to stand."""


class _ColdError(BenchError):
    """The servers stand, and do not answer alike."""


class _IncompatibleError(BenchError):
    """The servers stand, and are not what the plan says."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of it: runs finished of those asked for, and what was left out and why."""

    finished: int
    of: int
    left_out: tuple[str, ...] = ()


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Keep a second bench out of the folder; the kernel lets go however this one ends."""
    with (folder / ".lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise BenchError(f"{folder}: another bench is running in it") from error
        yield


def _time_scale(folder: Path, asked: float | None) -> float:
    """Return what was asked for, else what the sweep began with, else real time."""
    began = read_json(folder / FILE) if (folder / FILE).is_file() else {}
    return float(began.get("time_scale", 1.0)) if asked is None else asked


async def conduct_sweep(
    folder: Path,
    runs: Sequence[Json],
    time_scale: float | None,
    tell: Tell,
    launcher: Launcher | None = None,
    *,
    rerun_faulty: bool = False,
) -> Outcome:
    """Carry out what is unfinished of the given runs of the folder's plan.

    Args:
        folder: with plan, corpus and traces.
        runs: which of the plan's, in its order.
        time_scale: recorded seconds in a real one, for simulated engines; None keeps what the
            sweep began with.
        tell: is shown everything as it happens.
        launcher: starts the servers; None takes the one that the plan names.
        rerun_faulty: measure those again that the client spoilt to the last.

    Raises:
        BenchError: an input changed, or the servers cannot be started; finished runs stay.
    """
    plan = read_json(folder / "plan.json")
    scale = _time_scale(folder, time_scale)
    with _locked(folder):
        found = planned_inputs(folder, plan)
        launcher = launcher or launcher_of(plan["launcher"])
        needs = {start_name(run): need_of(plan, run, scale) for run in plan["runs"]}
        used = await launcher.prepare(list(needs.values()))
        own = {f"engine {name}": value for name, value in used.items()}
        hold_inputs(folder, {**found, **own, "time_scale": scale})
        staging.clear(folder)
        if rerun_faulty:
            staging.set_faulty_aside(folder, runs, plan)
        sweep = _Sweep(folder, plan, launcher, runs, tell)
        todo = [run for run in runs if not staging.finished(folder, run["run_id"])]
        try:
            for name, group in groupby(todo, key=start_name):
                await sweep.group(needs[name], list(group))
        finally:
            staging.clear(folder)
        return sweep.outcome()


class _Sweep:
    """One sweep as it goes."""

    def __init__(
        self, folder: Path, plan: Json, launcher: Launcher, runs: Sequence[Json], tell: Tell
    ) -> None:
        self._folder, self._plan, self._launcher, self._tell = folder, plan, launcher, tell
        self._plan_sha256 = file_digest(folder / "plan.json")
        self._runs, self._left_out = runs, list[str]()
        self._ever_started = False
        times = plan["intervals"]
        run_s = times["ramp_s"] + times["window_s"] + 0.25 * times["drain_s"]
        start_s = float(plan["launcher"].get("expected_start_s") or 5.0) + 10.0
        self._pace = Pace(run_s, start_s)
        kept = plan.get("warmup_prompts", {})
        prompts = load_corpus(folder / "corpus.jsonl").prompts if kept else ()
        self._warmup: list[Round] = rounds_of(prompts, kept)
        self._planned: dict[str, int] = {}

    def outcome(self) -> Outcome:
        """Return what came of it."""
        done = sum(staging.finished(self._folder, run["run_id"]) for run in self._runs)
        return Outcome(done, len(self._runs), tuple(self._left_out))

    def _left_s(self) -> float:
        open_runs = [r for r in self._runs if not staging.finished(self._folder, r["run_id"])]
        return self._pace.left_s(len(open_runs), len({start_name(r) for r in open_runs}))

    async def group(self, need: Need, runs: list[Json]) -> None:
        """Carry out the runs of one start; more starts follow where servers die or stay cold."""
        tries, restarted = 0, False
        while runs:
            try:
                async with self._started(need, restarted) as started:
                    restarted = await self._on(started, runs)
            except _IncompatibleError as error:
                self._exclude(need, runs, str(error))
            except (_ColdError, _NotStartedError) as error:
                tries += 1
                self._tell({"event": "start-failed", "start": need.name, "reason": str(error)})
                if tries == TRIES:
                    self._give_up(need, runs, error)

    def _give_up(self, need: Need, runs: list[Json], error: BenchError) -> None:
        """Leave cold runs unmeasured; exclude a cell that does not start, unless none ever did."""
        if isinstance(error, _NotStartedError):
            if not self._ever_started or need.cell_id == self._plan["cells"][0]["cell_id"]:
                raise error
            self._exclude(need, runs, f"did not start: {str(error).splitlines()[0]}")
            return
        self._left_out += [f"{run['run_id']}: {error}" for run in runs]
        runs.clear()

    def _exclude(self, need: Need, runs: list[Json], reason: str) -> None:
        for run in runs:
            config = incompatible_config(run, self._plan, self._plan_sha256, need, reason)
            part = staging.part_of(self._folder, run["run_id"])
            write_config(part, config)
            staging.keep(part, run["run_id"], None)
        self._tell({"event": "incompatible", "cell_id": need.cell_id, "reason": reason})
        self._left_out.append(f"{need.cell_id}: {reason}")
        runs.clear()

    def _next_folder(self, need: Need) -> Path:
        base = self._folder / "starts"
        numbers = [int(p.name.rpartition("-")[2]) for p in base.glob(f"{need.name}-*")]
        return base / f"{need.name}-{max(numbers, default=0) + 1}"

    @asynccontextmanager
    async def _started(self, need: Need, restarted: bool) -> AsyncIterator[Started]:
        folder, began_s = self._next_folder(need), time.monotonic()
        self._tell({"event": "start", "start": folder.name, "cell_id": need.cell_id})
        async with AsyncExitStack() as stack:
            stack.callback(seal_start, folder)  # entered first, so that the servers are gone
            try:
                entering = self._launcher.standing(need, folder)
                standing = await stack.enter_async_context(entering)
            except BenchError as error:
                self._say(folder, need, {"fault": str(error)})
                raise _NotStartedError(str(error)) from error
            started = Started(folder.name, need, standing, restarted=restarted)
            started = await self._warmed(folder, started)
            self._ever_started = True
            self._pace.started(time.monotonic() - began_s)
            yield started

    async def _warmed(self, folder: Path, started: Started) -> Started:
        """Confirm the servers, warm them up, and write down both."""
        confirmed = started.standing.confirmed
        told = {**asdict(confirmed), "identity": dict(started.standing.identity)}
        if confirmed.differences:
            self._say(folder, started.need, {**told, "fault": "not what the plan says"})
            raise _IncompatibleError("; ".join(confirmed.differences))
        endpoint, scale = started.standing.endpoint, started.need.time_scale
        warmed = await warm_up(endpoint, self._warmup, scale, self._tell)
        self._say(folder, started.need, {**told, **asdict(warmed)})
        if warmed.fault is not None:
            raise _ColdError(warmed.fault)
        return replace(started, rounds=warmed.rounds)

    def _say(self, folder: Path, need: Need, told: Json) -> None:
        write_json(folder / "start.json", {"kind": "start", **asdict(need), **told})

    async def _on(self, started: Started, runs: list[Json]) -> bool:
        """Carry out runs until none is left, one needs a fresh start, or an engine died: True."""
        while runs:
            if not await self._run(started, runs[0]):
                return False
            runs.pop(0)
            if not all([await healthy(u) for u in started.standing.endpoint.engine_urls]):
                self._tell({"event": "engine-died", "start": started.name, "left": len(runs)})
                return True
            started = replace(started, restarted=False)
        return False

    async def _run(self, started: Started, run: Json) -> bool:
        """Measure until the client keeps up; False where the next attempt needs fresh servers."""
        attempt = staging.attempts_kept(self._folder, run["run_id"]) + 1
        while await self._attempt(started, run, attempt) and not staging.is_last(attempt):
            if self._plan["kind"] == "prefix_reuse":
                return False
            attempt += 1
        return True

    async def _attempt(self, started: Started, run: Json, attempt: int) -> list[str]:
        """Measure once; returns the client's faults, the attempt being kept either way."""
        run_id, began_s = run["run_id"], time.monotonic()
        self._tell(self._announced(run, attempt, started.need.time_scale))
        part = staging.part_of(self._folder, run_id)
        endpoint = started.standing.endpoint
        idle = await settled(endpoint.engine_urls, self._plan["intervals"]["drain_s"])
        config = sweep_config(run, self._plan, self._plan_sha256, started, attempt)
        if not idle:
            config = replace(config, details={**config.details, "engine_busy_before": True})
        sha256 = write_config(part, config)
        job = job_of(self._folder, part, run, self._plan, started, sha256)
        await carry_out(job, part, endpoint.admin_url, endpoint.engine_urls, self._row)
        faults = staging.faults_of(part, run, self._plan, self._count(run))
        spoilt = faults and not staging.is_last(attempt)
        staging.keep(part, run_id, attempt if spoilt else None)
        self._pace.ran(time.monotonic() - began_s)
        self._tell({"event": "run-end", "run_id": run_id, "attempt": attempt, "faults": faults})
        return faults

    def _announced(self, run: Json, attempt: int, scale: float) -> Json:
        number = next(n for n, r in enumerate(self._runs, 1) if r["run_id"] == run["run_id"])
        times = self._plan["intervals"]
        limit_s = times["ramp_s"] + times["window_s"] + times["drain_s"]
        told = {k: run[k] for k in ("run_id", "cell_id", "mix", "rate", "repeat") if k in run}
        own = {"number": number, "of": len(self._runs), "attempt": attempt, "limit_s": limit_s}
        return {"event": "run", **told, **own, "time_scale": scale, "left_s": self._left_s()}

    def _row(self, row: Json) -> None:
        if "source" in row and row["source"] != "engine":
            self._tell({"event": "row", **row})

    def _count(self, run: Json) -> int:
        """Return how many arrivals the run's trace holds."""
        name = run["trace"]
        if name not in self._planned:
            self._planned[name] = staging.arrivals_of(trace_path(self._folder, name))
        return self._planned[name]

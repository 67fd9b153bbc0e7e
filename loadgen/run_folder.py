"""Reads the runs of a results folder, each file held to the digest that was named for it.

What a run was offered is the trace's to say: each record is held to its arrival. A run is whole
once both its requests and its samples are there. An attempt that the client spoilt lies beside it
as `<run_id>.invalid-<n>`; a cell whose effective values contradict the plan has left a
configuration that says so.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from loadgen.analyse import reduce_run
from loadgen.archive import RECORDS
from loadgen.facts import RunFacts
from loadgen.files import file_digest, read_bytes, read_json
from loadgen.record import BenchError, RequestRecord, decode_requests, digest, strict_json
from loadgen.trace import decode_trace, planned_part

__all__ = ["Folder", "is_whole", "named", "require", "trace_path"]

Json = dict[str, Any]
FILES = ("config.json", "requests.jsonl", "samples.jsonl")
# What a folder gets, in this order, and the verb that makes it.
MADE_BY = {
    "plan.json": "plan FILE --out {}",
    "corpus.jsonl": "plan FILE --out {}",
    "runs": "run {}",
    "analysis.json": "analyse {}",
    "decision.json": "decide {}",
}


def is_whole(own: Path) -> bool:
    """Say whether all files of a run, or of an attempt at one, are in its folder."""
    return all((own / name).is_file() for name in FILES)


def trace_path(folder: Path, name: str) -> Path:
    """Return where the trace of this name lies."""
    return folder / f"trace-{name}.jsonl"


def require(folder: Path, last: str) -> None:
    """Refuse a folder that is not made as far as ``last``, with the command that goes on.

    Raises:
        BenchError: something is missing; or it is a folder of something else, or packed evidence.
    """
    for name, verb in MADE_BY.items():
        if not (folder / name).exists():
            raise BenchError(_way_on(folder, name, verb))
        if name == last:
            return


def _way_on(folder: Path, name: str, verb: str) -> str:
    there = {path.name for path in folder.iterdir()} if folder.is_dir() else set()
    if there and not there & MADE_BY.keys():
        return f"{folder}: is no results folder: it has no plan.json"
    if (folder / RECORDS).is_file():
        verb = f"unpack {folder} --out out/{folder.resolve().name}"
        return f"{folder}: is packed evidence; run: sluicegate bench {verb}"
    said = f"{folder / name}: is not there yet; run: sluicegate bench {verb.format(folder)}"
    if name == "runs" and (folder / "sim" / "runs").is_dir():
        said += f"; its simulation is a results folder of its own: {folder / 'sim'}"
    return said


def named(what: str, found: str, expected: str) -> None:
    """Refuse a file that is not the one that was named.

    Raises:
        BenchError: the digests differ.
    """
    if found != expected:
        raise BenchError(f"{what}: its sha256 is {found[:16]}, but {expected[:16]} is named for it")


def _hold(records: Sequence[RequestRecord], planned: Mapping[int, Json], path: Path) -> None:
    """Refuse records of other requests than the trace's, or of one twice.

    Those that are missing are the client's fault, and told as such.
    """
    left = dict(planned)
    for n, record in enumerate(records, start=2):
        part = left.pop(record.seq, None)
        if part is None:
            how = "is there twice" if record.seq in planned else "is not in the trace"
            raise BenchError(f"{path} line {n}: request {record.seq} {how}")
        for key, value in part.items():
            if (found := getattr(record, key)) != value:
                raise BenchError(f"{path} line {n}: {key} is {found}, but {value} was planned")


def _rows(path: Path, config_sha256: str) -> list[Json]:
    rows = [
        strict_json(line, f"{path} line {n}")
        for n, line in enumerate(read_bytes(path).splitlines(), start=1)
    ]
    if not rows or rows[0].get("kind") != "samples":
        raise BenchError(f"{path} line 1: not the header of a samples file")
    named(f"{path}: config.json", config_sha256, rows[0]["config_sha256"])
    return rows[1:]


class Folder:
    """A results folder with its plan.

    Args:
        path: of the folder.
        plan: as read from it.
        plan_sha256: of the plan's file.
    """

    __slots__ = ("_arrivals", "path", "plan", "plan_sha256")

    def __init__(self, path: Path, plan: Json, plan_sha256: str) -> None:
        self.path, self.plan, self.plan_sha256 = path, plan, plan_sha256
        self._arrivals: dict[str, dict[int, Json]] = {}

    def check_manifests(self) -> None:
        """Hold every trace's manifest to the plan, where the plan names one.

        Raises:
            BenchError: a manifest is missing or is not the one named.
        """
        for name, trace in self.plan.get("traces", {}).items():
            if isinstance(trace, Mapping) and "manifest_sha256" in trace:
                path = trace_path(self.path, name).with_suffix(".manifest.json")
                named(str(path), file_digest(path), trace["manifest_sha256"])
                named(f"{path}: trace", read_json(path)["trace_sha256"], trace["sha256"])

    def _own(self, run: Mapping[str, Any]) -> Path:
        return self.path / "runs" / str(run["run_id"])

    def whole(self, run: Mapping[str, Any]) -> bool:
        """Say whether all files of a run are there."""
        return is_whole(self._own(run))

    def incompatible(self, run: Mapping[str, Any]) -> str | None:
        """Return why the run's cell cannot be what the plan says; None if it can."""
        path = self._own(run) / "config.json"
        return read_json(path).get("incompatible") if path.is_file() else None

    def inputs(self, run: Mapping[str, Any]) -> Json:
        """Return the digests of a run's files, having held its configuration to the plan."""
        return self._inputs(run, self._own(run))

    def _inputs(self, run: Mapping[str, Any], own: Path) -> Json:
        config = read_json(own / "config.json")
        if config["run_id"] != run["run_id"]:
            raise BenchError(f"{own}/config.json: is of run {config['run_id']}")
        named(f"{own}/config.json: plan.json", self.plan_sha256, config["plan_sha256"])
        named(f"{own}/config.json: trace", run["trace_sha256"], config["trace_sha256"])
        self._check_stack(own, config)
        return {f"{name.split('.')[0]}_sha256": file_digest(own / name) for name in FILES}

    def _check_stack(self, own: Path, config: Mapping[str, Any]) -> None:
        """Hold the gateway's configuration, where it was kept, to the recorded digest."""
        if "gateway_config_digest" not in config:
            return
        kept = [own / "stack"]
        if "start" in config:
            kept.append(self.path / "starts" / str(config["start"]))
        for path in (folder / "gateway.toml" for folder in kept):
            if path.is_file():
                named(str(path), file_digest(path), config["gateway_config_digest"])

    def _planned(self, run: Mapping[str, Any]) -> dict[int, Json]:
        """What the run's trace says of each request, by its number."""
        name = run["trace"]
        if name not in self._arrivals:
            path = trace_path(self.path, name)
            data = read_bytes(path)
            named(str(path), digest(data), run["trace_sha256"])
            ramp_s = self.plan["intervals"]["ramp_s"]
            arrivals = decode_trace(data, str(path))
            self._arrivals[name] = {a.seq: planned_part(a, ramp_s) for a in arrivals}
        return self._arrivals[name]

    def reduced(self, run: Mapping[str, Any], inputs: Mapping[str, str]) -> RunFacts:
        """Return what a run showed.

        Args:
            run: its entry in the plan.
            inputs: what `inputs` returned for it.

        Raises:
            BenchError: a file is missing, malformed, or not the one that was named.
        """
        return self._reduced(run, inputs, self._own(run))

    def _reduced(self, run: Mapping[str, Any], inputs: Mapping[str, str], own: Path) -> RunFacts:
        path = own / "requests.jsonl"
        header, records = decode_requests(read_bytes(path), str(path))
        named(f"{path}: config.json", inputs["config_sha256"], header["config_sha256"])
        planned = self._planned(run)
        _hold(records, planned, path)
        samples = _rows(own / "samples.jsonl", inputs["config_sha256"])
        config = read_json(own / "config.json")
        return reduce_run(run, self.plan, len(planned), records, samples, config)

    def attempts(self, run: Mapping[str, Any]) -> list[Json]:
        """Return the run's attempts that were kept as invalid, with what was at fault in each."""
        own = self._own(run)
        found = []
        for path in sorted(own.parent.glob(f"{own.name}.invalid-*")):
            number = path.name.rpartition("-")[2]
            if is_whole(path):
                inputs = self._inputs(run, path)
                faults = self._reduced(run, inputs, path).row["faults"]
            else:
                inputs, faults = {}, ["it ended before its records were written"]
            row = {"run_id": run["run_id"], "attempt": number, "faults": faults}
            found.append({**row, "inputs": inputs})
        return found

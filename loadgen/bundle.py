"""Packs what an architecture review needs into one file, and checks such a file.

Inside are contracts, decision, analysis, the effective serving manifest, the plan without how
engines are started, traces without what identifies a prompt or a session, the digests of every
original, and how to verify. Texts are never among a folder's records; the corpus stays out. The
same folder gives the same bytes with the same compression library.
"""

import gzip
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from loadgen.archive import entries, tarred
from loadgen.decide import decide
from loadgen.files import file_digest, read_bytes, read_json, write_bytes
from loadgen.record import BenchError, canonical, digest, strict_json
from loadgen.run_folder import trace_path

__all__ = ["check_bundle", "write_bundle"]

Json = Mapping[str, Any]
SUMS = "SHA256SUMS"
TOPOLOGY = "topology-analysis.json"
BESIDE = (TOPOLOGY, "arms-analysis.json", "expected-analysis.json")
IDENTIFYING = ("session_id", "hash_ids")
SECRETS = frozenset({"key", "token", "secret", "password", "credential"})
SERVING = (
    "effective_args",
    "effective_source",
    "image_digest",
    "model_revision",
    "tokenizer_revision",
    "engine_version",
    "chat_template_sha256",
    "generation_config_sha256",
    "precision",
    "parallelism",
    "kv_tokens",
    "hardware_id",
    "gateway_config_digest",
)
README = """Sluicegate evidence bundle

decision.json   the verdict, its reasons and the digests it rests on
analysis.json   every number the verdict was made from
contracts.json  the limits, fixed before the runs
manifest.json   what really served: effective arguments, image, model and hardware, by cell
plan.json       the runs in order; how engines are started is left out
traces/         arrivals: when, which class, how many tokens; nothing that identifies a prompt
originals.json  SHA-256 of every file of evidence, the left out ones included
report.html     the report, where it was written

Check these files, and that the decision follows from the analysis:
  sluicegate bench bundle --check THIS_FILE.tar.gz
  sha256sum -c SHA256SUMS

Whoever holds the results folder recomputes everything from the records:
  sluicegate bench verify DIR
"""


def _secret_names(value: Any, path: str) -> Iterator[str]:
    if isinstance(value, Mapping):
        for key, inner in value.items():
            here = f"{path}.{key}"
            if str(key).lower().replace("-", "_").rpartition("_")[2] in SECRETS and inner:
                yield here
            yield from _secret_names(inner, here)


def _refuse_secrets(plan: Json) -> None:
    for cell in plan.get("cells", ()):
        for name in _secret_names(cell.get("args", {}), f"cells.{cell['cell_id']}.args"):
            raise BenchError(f"bundle: plan.json: {name} looks like a secret; nothing was written")


def _redacted_trace(data: bytes, name: str) -> bytes:
    lines = []
    for number, line in enumerate(data.splitlines(), start=1):
        row = strict_json(line, f"{name} line {number}")
        extra = {k: v for k, v in row.get("extra", {}).items() if k != "prompt_sha256"}
        lines.append(canonical({**{k: v for k, v in row.items() if k not in IDENTIFYING},
                                "extra": extra}))  # fmt: skip
    return b"".join(lines)


def _traces(folder: Path, plan: Json) -> dict[str, bytes]:
    names = sorted({run["trace"] for run in plan["runs"]})
    paths = [trace_path(folder, name) for name in names]
    return {f"traces/{p.name}": _redacted_trace(read_bytes(p), p.name) for p in paths}


def _manifest(folder: Path, plan: Json, analysis: Json) -> list[dict[str, Any]]:
    """Group the runs by what served them: one entry per cell, more where it changed."""
    found: dict[bytes, dict[str, Any]] = {}
    planned = {run["run_id"]: run for run in plan["runs"]}
    for run in analysis["runs"]:
        config = read_json(folder / "runs" / run["run_id"] / "config.json")
        served = {k: config[k] for k in SERVING if k in config}
        served["cell_id"] = planned[run["run_id"]].get("cell_id", run["run_id"])
        entry = found.setdefault(canonical(served), {**served, "runs": []})
        entry["runs"].append(run["run_id"])
    entries = list(found.values())
    for entry in entries:
        for name in _secret_names(entry.get("effective_args", {}), str(entry["cell_id"])):
            raise BenchError(
                f"bundle: config.json: {name} looks like a secret; nothing was written"
            )
    return entries


def _originals(folder: Path) -> dict[str, str]:
    found = (*folder.glob("*.json"), *folder.glob("*.jsonl"), *(folder / "runs").rglob("*"))
    files = sorted(path for path in found if path.is_file())
    return {str(p.relative_to(folder)): file_digest(p) for p in files}


def _contents(folder: Path, *, report: bool) -> dict[str, bytes]:
    plan, analysis = read_json(folder / "plan.json"), read_json(folder / "analysis.json")
    _refuse_secrets(plan)
    launcher = {"kind": plan["launcher"]["kind"]} if "launcher" in plan else {}
    shown = {**plan, **({"launcher": launcher} if launcher else {})}
    found = {
        "README.txt": README.encode(),
        "contracts.json": canonical(analysis["contract"]),
        "manifest.json": canonical(_manifest(folder, plan, analysis)),
        "plan.json": canonical(shown),
        "originals.json": canonical(_originals(folder)),
        **_traces(folder, plan),
    }
    kept = ["analysis.json", "decision.json", *BESIDE, *(["report.html"] if report else [])]
    for name in kept:
        if (folder / name).is_file() or name in ("analysis.json", "decision.json"):
            found[name] = read_bytes(folder / name)
    return found


def _sums(contents: Mapping[str, bytes]) -> bytes:
    return "".join(f"{digest(contents[n])}  {n}\n" for n in sorted(contents)).encode()


def _packed(contents: Mapping[str, bytes]) -> bytes:
    raw = tarred({f"bundle/{name}": data for name, data in contents.items()})
    return gzip.compress(raw, compresslevel=9, mtime=0)


def write_bundle(folder: Path, out: Path, *, report: bool = True) -> str:
    """Write the bundle of a decided folder; returns its SHA-256.

    Args:
        folder: with analysis and decision.
        out: the file, `.tar.gz`.
        report: whether `report.html` goes in where it is there.

    Raises:
        BenchError: a file is missing or malformed, or an argument looks like a secret.
    """
    contents = _contents(folder, report=report)
    return write_bytes(out, _packed({**contents, SUMS: _sums(contents)}))


def _unpacked(path: Path) -> dict[str, bytes]:
    return {name.removeprefix("bundle/"): data for name, data in entries(path, "r:gz", "a bundle")}


def _decided_anew(found: Mapping[str, bytes]) -> bytes:
    data, other = found["analysis.json"], found.get(TOPOLOGY)
    analysis = strict_json(data, "analysis.json")
    if other is None:
        return canonical(decide(analysis, digest(data)))
    return canonical(decide(analysis, digest(data), strict_json(other, TOPOLOGY), digest(other)))


def check_bundle(path: Path) -> list[str]:
    """Return what does not hold in a bundle; [] if its files are whole and its decision follows.

    Raises:
        BenchError: it is not a bundle.
    """
    found = _unpacked(path)
    sums = found.pop(SUMS, None)
    if lacking := [n for n in ("analysis.json", "decision.json") if n not in found]:
        raise BenchError(f"{path}: not a bundle ({lacking[0]} is missing)")
    if sums is None:
        return [f"{SUMS} is missing"]
    stated = dict(line.split("  ", 1)[::-1] for line in sums.decode().splitlines())
    said = [f"{name}: not listed in {SUMS}" for name in sorted(found.keys() - stated.keys())]
    said += [f"{name}: missing" for name in sorted(stated.keys() - found.keys())]
    said += [
        f"{name}: its sha256 is {digest(found[name])[:16]}, but {stated[name][:16]} is stated"
        for name in sorted(found.keys() & stated.keys())
        if digest(found[name]) != stated[name]
    ]
    if _decided_anew(found) != found["decision.json"]:
        said.append("decision.json: does not follow from analysis.json")
    return said

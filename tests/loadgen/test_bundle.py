import gzip
import io
import subprocess
import tarfile

import orjson
import pytest

from loadgen.bundle import check_bundle, write_bundle
from loadgen.files import file_digest, read_json, write_json
from loadgen.record import BenchError
from loadgen.results import decide_folder
from tests.loadgen.made import analysis, plan


def inside(path):
    with tarfile.open(path) as archive:
        return {e.name.removeprefix("bundle/"): archive.extractfile(e).read() for e in archive}


def repacked(path, change):
    """The bundle again, with its files changed."""
    files = inside(path)
    change(files)
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w") as archive:
        for name, data in files.items():
            entry = tarfile.TarInfo(f"bundle/{name}")
            entry.size = len(data)
            archive.addfile(entry, io.BytesIO(data))
    path.write_bytes(gzip.compress(raw.getvalue()))
    return path


@pytest.fixture
def bundle(sweep_once, tmp_path):
    path = tmp_path / "b.tar.gz"
    write_bundle(sweep_once, path)
    return path


def test_the_same_folder_gives_the_same_bytes_wherever_it_lies(swept, bundle, tmp_path):
    write_bundle(swept, tmp_path / "other.tar.gz")
    assert (tmp_path / "other.tar.gz").read_bytes() == bundle.read_bytes()


def test_what_a_review_needs_is_inside(bundle, sweep_once):
    files = inside(bundle)
    wanted = {"README.txt", "SHA256SUMS", "analysis.json", "contracts.json", "decision.json"}
    assert wanted | {"manifest.json", "originals.json", "plan.json"} <= set(files)
    assert orjson.loads(files["contracts.json"]) == read_json(sweep_once / "plan.json")["contract"]
    assert b"bench verify" in files["README.txt"]
    manifest = orjson.loads(files["manifest.json"])
    assert {m["cell_id"]: m["effective_args"]["max_num_batched_tokens"] for m in manifest} == {
        "B0": 8192,
        "C1": 2048,
        "C2": 4096,
    }
    assert sum(len(m["runs"]) for m in manifest) == 18


def test_nothing_that_identifies_a_prompt_a_session_or_a_host_goes_out(swept, tmp_path):
    path = tmp_path / "b.tar.gz"
    write_bundle(swept, path)
    files = inside(path)
    traces = [data for name, data in files.items() if name.startswith("traces/")]
    assert traces
    for data in traces:
        rows = [orjson.loads(line) for line in data.splitlines()]
        assert {"timestamp", "input_length", "output_length"} <= set(rows[0])
        assert not any(k in data for k in (b"prompt_sha256", b"session_id", b"hash_ids"))
    assert not any(b"secret-host" in data for data in files.values())
    assert "corpus.jsonl" not in files


def test_the_originals_are_named_by_digest_the_left_out_ones_too(bundle, sweep_once):
    originals = orjson.loads(inside(bundle)["originals.json"])
    for name in ("corpus.jsonl", "plan.json", "runs/r1-B0-80-20-near/requests.jsonl"):
        assert originals[name] == file_digest(sweep_once / name)


def test_the_sums_are_those_that_sha256sum_checks(bundle, tmp_path):
    with tarfile.open(bundle) as archive:
        archive.extractall(tmp_path, filter="data")
    done = subprocess.run(
        ["/usr/bin/sha256sum", "--strict", "-c", "SHA256SUMS"],
        cwd=tmp_path / "bundle", capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_whole_bundle_checks(bundle):
    assert check_bundle(bundle) == []


def test_a_sweep_decided_with_topology_runs_checks_too(swept, tmp_path):
    other = tmp_path / "topology"
    made = plan(("shared", "isolated"), kind="topology")
    made["contract"] = read_json(swept / "plan.json")["contract"]
    write_json(other / "analysis.json", analysis(None, made))
    decide_folder(swept, other)
    path = tmp_path / "b.tar.gz"
    write_bundle(swept, path)
    assert "topology-analysis.json" in inside(path)
    assert check_bundle(path) == []


def test_an_altered_file_is_named(bundle):
    def change(files):
        files["contracts.json"] = files["contracts.json"].replace(b"0.95", b"0.50", 1)

    (said,) = check_bundle(repacked(bundle, change))
    assert said.startswith("contracts.json: its sha256 is ")


def test_a_decision_that_does_not_follow_is_found_even_with_sums_that_fit(bundle):
    from loadgen.bundle import _sums  # noqa: PLC0415 - the forger has it too

    def change(files):
        old, new = b'"verdict":"retune(C1)"', b'"verdict":"retain"'
        assert old in files["decision.json"]
        files["decision.json"] = files["decision.json"].replace(old, new)
        del files["SHA256SUMS"]
        files["SHA256SUMS"] = _sums(files)

    assert check_bundle(repacked(bundle, change)) == [
        "decision.json: does not follow from analysis.json"
    ]


def test_files_that_are_missing_or_were_slipped_in_are_named(bundle):
    def change(files):
        del files["plan.json"]
        files["extra.txt"] = b""

    assert check_bundle(repacked(bundle, change)) == [
        "extra.txt: not listed in SHA256SUMS",
        "plan.json: missing",
    ]


@pytest.mark.parametrize("data", [b"", b"no archive", gzip.compress(b"no archive", mtime=0)])
def test_what_is_no_bundle_is_refused(tmp_path, data):
    path = tmp_path / "x.tar.gz"
    path.write_bytes(data)
    with pytest.raises(BenchError, match="not a bundle"):
        check_bundle(path)


def test_an_archive_without_a_decision_is_no_bundle(bundle):
    path = repacked(bundle, lambda files: files.pop("decision.json"))
    with pytest.raises(BenchError, match=r"not a bundle \(decision.json is missing\)"):
        check_bundle(path)


@pytest.mark.parametrize("name", ["api_key", "hf-token"])
def test_an_argument_that_looks_like_a_secret_stops_everything(swept, tmp_path, name):
    made = read_json(swept / "plan.json")
    made["cells"][0]["args"][name] = "s3cret"
    write_json(swept / "plan.json", made)
    with pytest.raises(BenchError, match=f"cells.B0.args.{name} looks like a secret"):
        write_bundle(swept, tmp_path / "b.tar.gz")
    assert not (tmp_path / "b.tar.gz").exists()

import asyncio
import shutil

import orjson
import pytest

from loadgen.files import file_digest, read_json
from loadgen.record import Outcome, decode_requests
from loadgen.replay import Job
from loadgen.run import carry_out, write_config
from loadgen.runs import EXTERNAL_IDENTITY, run_config
from loadgen.stack import Endpoint
from tests.loadgen.truth import truth_server


def rows(folder, run_id):
    path = folder / "runs" / run_id / "samples.jsonl"
    return [orjson.loads(line) for line in path.read_bytes().splitlines()]


def test_samples_begin_with_what_they_belong_to_and_lie_on_the_runs_axis(demo):
    header, *found = rows(demo[0], "r1-admission-shared")
    config = demo[0] / "runs" / "r1-admission-shared" / "config.json"
    assert header["config_sha256"] == file_digest(config)
    assert {r["source"] for r in found} == {"client", "gateway", "engine"}
    assert all("t_s" in r and "at_ns" not in r for r in found)
    assert any(r["t_s"] < 0 for r in found), "the scrape before the start"


def test_the_gateways_oldest_age_is_sampled_per_class(demo):
    found = [r for r in rows(demo[0], "r1-admission-shared") if r.get("source") == "gateway"]
    assert found[0]["oldest_age_s"] == {"short": 0.25, "long": 1.5}
    assert found[0]["queue_depth"] == {"short": 3.0}


def test_the_written_config_has_the_digest_that_was_returned(demo, tmp_path):
    plan = read_json(demo[0] / "plan.json")
    endpoint = Endpoint("u", None, (), "m", {}, {"external": "u"})
    config = run_config(plan["runs"][0], plan, "p", endpoint, EXTERNAL_IDENTITY)
    assert write_config(tmp_path, config) == file_digest(tmp_path / "config.json")


async def test_an_interrupted_run_ends_its_process_and_keeps_what_was_measured(demo, tmp_path):
    folder = shutil.copytree(demo[0], tmp_path / "copy")
    plan = read_json(folder / "plan.json")
    run_dir = folder / "runs" / "r1-pass-through-shared"
    (run_dir / "samples.jsonl").unlink()
    started = asyncio.Event()
    async with truth_server(ttft_s=30.0) as truth:
        job = Job(
            run_id="r1-pass-through-shared",
            url=truth.url,
            model="m",
            keys={},
            trace_path=str(folder / "trace-mixed.jsonl"),
            trace_sha256=plan["traces"]["mixed"],
            corpus_path=str(folder / "corpus.jsonl"),
            corpus_sha256=plan["corpus_sha256"],
            config_sha256="k",
            out_path=str(run_dir / "requests.jsonl"),
            **plan["intervals"],
        )
        watch = lambda row: started.set() if row.get("source") == "client" else None  # noqa: E731
        async with asyncio.TaskGroup() as group:
            task = group.create_task(carry_out(job, run_dir, None, [], watch))
            await started.wait()
            task.cancel()
    with pytest.raises(asyncio.CancelledError):
        task.result()
    _, records = decode_requests((run_dir / "requests.jsonl").read_bytes(), "requests")
    assert {r.outcome for r in records} <= {Outcome.CANCELLED, Outcome.NOT_SENT}
    assert not (run_dir / "samples.jsonl").exists(), "an unfinished run is not taken for done"

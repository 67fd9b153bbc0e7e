"""The load of a rehearsal: frozen, the same again, and from many callers."""

from dataclasses import replace
from pathlib import Path

import pytest

from loadgen.job import Job
from loadgen.record import BenchError
from loadgen.rehearsal_load import RehearsalLoad, Wanted, freeze_load
from loadgen.trace import Arrival, decode_trace

JOB = Job(
    run_id="r", url="http://x", model="m", keys={"short": "own"}, trace_path="", trace_sha256="",
    corpus_path="", corpus_sha256="", config_sha256="", out_path="", ramp_s=0.0, window_s=1.0,
    drain_s=1.0, timeout_s=1.0,
)  # fmt: skip


def test_the_same_load_is_the_same_bytes_and_its_prompts_come_again(tmp_path: Path) -> None:
    one = freeze_load(tmp_path / "one", Wanted(5.0, 30.0))
    assert one == freeze_load(tmp_path / "two", Wanted(5.0, 30.0))
    trace = decode_trace((tmp_path / "one" / "trace.jsonl").read_bytes(), "trace")
    assert len(trace) == one["arrivals"] == 150
    assert len({a.prompt_sha256 for a in trace}) == 30
    assert {a.size_class for a in trace} == {"short", "long"}


def test_a_load_that_can_not_be_drawn_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BenchError, match="rate"):
        RehearsalLoad(tmp_path, Wanted(0.0, 30.0))


def test_callers_take_turns_where_there_are_any() -> None:
    job = replace(JOB, callers=("a", "b"))
    arrivals = [Arrival(seq, "short", 0, 1, 1, "") for seq in range(3)]
    assert [job.key(arrival) for arrival in arrivals] == ["a", "b", "a"]
    assert [JOB.key(arrival) for arrival in arrivals] == ["own"] * 3


def test_a_load_that_was_never_started_saw_nothing(tmp_path: Path) -> None:
    assert RehearsalLoad(tmp_path, Wanted(5.0, 10.0)).stop() == {}

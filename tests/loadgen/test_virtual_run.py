import pytest

from loadgen.engine.cost import StepCost
from loadgen.engine.scheduler import SchedulerConfig
from loadgen.record import BenchError, Outcome
from loadgen.simulate import Action, PassThrough
from loadgen.trace import Arrival
from loadgen.virtual_run import World, cell_args, scheduler_config, virtual_run

COST = StepCost(5.0e-3, 2.53e-5, 9.6e-6, 3.6e-8)
TRACE = tuple(Arrival(n, "short", n * 100_000, 512, 8, f"p{n}") for n in range(30))
WORLD = World((SchedulerConfig(2048, 4),), COST, ramp_s=1.0, timeout_s=5.0)


class Refusing(PassThrough):
    """Refuses request 12 at once and lets request 13 expire."""

    def offer(self, arrival, now):
        words = {12: "queue_full", 13: "queue_expired"}
        if arrival.seq in words:
            return [Action(arrival.seq, refused=words[arrival.seq])]
        return super().offer(arrival, now)


def test_there_is_a_record_of_every_planned_request_with_the_trace_s_own_figures():
    records = virtual_run(TRACE, PassThrough(1), WORLD).records
    assert [r.seq for r in records] == [a.seq for a in TRACE]
    assert [r.planned_us for r in records] == [a.offset_us for a in TRACE]
    assert [r.phase for r in records] == ["ramp"] * 10 + ["observed"] * 20
    assert {r.outcome for r in records} == {Outcome.OK}
    assert {(r.prompt_tokens_reported, r.completion_tokens_reported) for r in records} == {(512, 8)}
    assert all(len(r.event_us) == 8 and r.event_us[0] == r.first_event_us for r in records)


def test_what_is_refused_has_its_outcome_and_no_latency():
    records = virtual_run(TRACE, Refusing(1), WORLD).records
    assert (records[12].outcome, records[12].outcome_code) == (Outcome.REJECTED, "queue_full")
    assert records[13].outcome is Outcome.EXPIRED
    assert records[12].first_event_us is None
    assert records[12].completion_tokens_reported is None


def test_a_request_beyond_the_client_s_patience_is_a_timeout():
    world = World((SchedulerConfig(2048, 1),), COST, 1.0, timeout_s=0.05)
    outcomes = [r.outcome for r in virtual_run(TRACE, PassThrough(1), world).records]
    assert Outcome.TIMEOUT in outcomes
    assert set(outcomes) <= {Outcome.OK, Outcome.TIMEOUT}


def test_every_second_has_rows_of_client_gateway_and_engine():
    samples = virtual_run(TRACE, PassThrough(1), WORLD).samples
    for source in ("client", "gateway", "engine"):
        assert [r["t_s"] for r in samples if r["source"] == source][:3] == [0.0, 1.0, 2.0]
    client = [r for r in samples if r["source"] == "client"]
    assert client[-1]["offered"] == client[-1]["done"] == {"short": 30}


def test_what_waits_in_the_gate_is_seen_with_its_age():
    class Holding(PassThrough):
        """Sends nothing before the third second."""

        def __init__(self):
            super().__init__(1)
            self.held = []

        def offer(self, arrival, now):
            self.held.append(arrival)
            return []

        def tick(self, now):
            held, self.held = self.held, []
            return [Action(a.seq, 0) for a in held]

        def next_wakeup(self, now):
            return 3.0 if self.held else None

    samples = virtual_run(TRACE, Holding(), WORLD).samples
    gateway = {r["t_s"]: r for r in samples if r["source"] == "gateway"}
    assert gateway[2.0]["oldest_age_s"]["short"] == pytest.approx(2.0)
    assert gateway[2.0]["queue_depth"]["short"] == 21
    assert gateway[4.0]["queue_depth"]["short"] == 0


def test_a_cell_s_arguments_become_the_scheduler_s_limits():
    args = {"max_num_batched_tokens": 4096, "max_num_seqs": 32, "dtype": "bfloat16"}
    config = scheduler_config({**args, "scheduling_policy": "priority", "watermark": None})
    assert (config.max_num_batched_tokens, config.max_num_seqs) == (4096, 32)
    assert config.policy == "priority"
    with pytest.raises(BenchError, match="must not be less than"):
        scheduler_config({"max_num_batched_tokens": 16, "max_num_seqs": 32})


def test_the_captured_kv_cache_stands_where_no_argument_says_it():
    cells = [
        {"cell_id": "B0", "args": {}},
        {"cell_id": "C1", "args": {"num_gpu_blocks_override": 9}},
    ]
    plan = {"cells": cells, "baseline": {"facts": {"kv_tokens": 393216}}}
    assert cell_args(plan, "B0") == {"num_gpu_blocks_override": 24576}
    assert cell_args(plan, "C1") == {"num_gpu_blocks_override": 9}
    with pytest.raises(BenchError, match="cell 'C2': the plan has B0, C1"):
        cell_args(plan, "C2")

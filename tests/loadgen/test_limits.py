import tomllib
from dataclasses import replace

import pytest

from gateway.config import load
from loadgen.engine.cost import StepCost
from loadgen.files import write_json
from loadgen.limits import Asked, Gate, limits_toml, run_seen, supported
from loadgen.limits_folder import folder_limits
from loadgen.record import BenchError, Outcome, RequestRecord, canonical, encode_requests
from tests.loadgen.conftest import ROOT

ORDER = ("short", "long")
COST = StepCost(5e-3, 2.5e-5, 1e-5, 3.6e-8)
ARGS = {"max_num_batched_tokens": 8192, "max_num_seqs": 32, "num_gpu_blocks_override": 24576}
GATE = Gate(16384, 16, 8192)
ASKED = Asked("C2", ARGS, ORDER, GATE, COST, ("80-20/near: held",), {"plan.json": "ab"})


def record(seq, size_class, *times_s, outcome=Outcome.OK, queue_ms=None):
    begin_s, first_s, last_s = times_s
    return RequestRecord(
        seq=seq,
        size_class=size_class,
        phase="observed",
        planned_us=round(begin_s * 1e6),
        outcome=outcome,
        prompt_tokens_planned=8192 if size_class == "long" else 512,
        completion_tokens_planned=16,
        prompt_sha256="00",
        dispatched_us=round(begin_s * 1e6),
        first_event_us=round(first_s * 1e6),
        last_byte_us=round(last_s * 1e6),
        queue_ms=queue_ms,
    )


RECORDS = [
    record(0, "long", 0.0, 0.2, 1.0),
    record(1, "short", 0.1, 0.25, 0.9),
    record(2, "long", 2.0, 2.2, 3.0),
    record(3, "short", 2.5, 2.52, 3.0),
    record(4, "long", 5.0, 5.4, 6.0),
    record(5, "long", 5.1, 5.6, 6.0),
    record(6, "short", 5.2, 5.7, 6.0),
    record(7, "long", 5.0, 9.0, 9.0, outcome=Outcome.TIMEOUT),
]
SAMPLES = [
    {"source": "engine", "up": True, "kv_usage": 0.25, "preemptions_total": 2.0},
    {"source": "engine", "up": True, "kv_usage": 0.5, "preemptions_total": 2.0},
    {"source": "engine", "up": False},
    {"source": "client"},
]


def seen():
    return run_seen("r1", RECORDS, SAMPLES, ORDER)


def test_a_run_shows_what_was_outstanding_at_once():
    run = seen()
    assert run.in_flight == 3
    assert run.prefill_tokens == 8192 * 2 + 512
    assert run.longest_prefilling == 2
    assert (run.kv_usage, run.preemptions) == (0.5, 0.0)


def test_only_prompts_alone_in_prefill_tell_its_rate():
    # The first overlaps a short one's prefill, the last two each other: one is left.
    assert seen().alone == (pytest.approx(8192 / 0.2),)


def test_waiting_in_the_gateway_is_no_prefill():
    held = record(0, "long", 0.0, 0.4, 1.0, queue_ms=200.0)
    assert run_seen("r", [held], (), ORDER).alone == (pytest.approx(8192 / 0.2),)


def test_short_prompts_are_told_apart_by_the_long_ones_beside_them():
    beside = seen().beside
    assert beside[0] == (pytest.approx(0.02),)
    assert beside[1] == (pytest.approx(0.15),)
    assert beside[2] == (pytest.approx(0.5),)


def test_limits_reach_as_far_as_the_records_and_no_lower_than_the_floors():
    found = supported([seen()], ASKED)
    # Three in flight are fewer than the reserved slots need.
    assert found.limits["slots"] == 22
    assert found.limits["prefill_tokens"] == 16384 + 8192 + 2 * 8192
    assert found.limits["kv_tokens"] == 24575 * 16
    assert found.beta == pytest.approx(0.4)
    assert found.caps == {"long": 1}
    many = replace(seen(), in_flight=60, prefill_tokens=90_000)
    found = supported([seen(), many], ASKED)
    assert found.limits["slots"] == 34  # the seats and two to look ahead
    assert found.limits["prefill_tokens"] == 90_000


def test_preemptions_lower_the_memory_that_may_be_charged():
    preempted = replace(seen(), preemptions=3.0)
    assert supported([seen()], ASKED).limits["kv_fraction"] == 0.9
    assert supported([seen(), preempted], ASKED).limits["kv_fraction"] == 0.8


def test_what_the_records_do_not_show_is_said_and_not_made_up():
    run = replace(seen(), alone=())
    asked = replace(ASKED, cost=None, args={"max_num_batched_tokens": 8192})
    text = limits_toml(supported([run], asked), [run], asked)
    assert "# prefill_tokens_per_s is unknown" in text
    assert "# kv_tokens is unknown" in text
    assert tomllib.loads(text)["scheduling"]["beta"] == 0.3
    assert "the default" in text


def test_without_runs_that_held_there_are_no_limits():
    with pytest.raises(BenchError, match="support none"):
        supported([], ASKED)
    with pytest.raises(BenchError, match="max_num_batched_tokens"):
        supported([seen()], replace(ASKED, args={}))


def test_a_gateway_loads_what_is_printed(tmp_path):
    text = limits_toml(supported([seen()], ASKED), [seen()], ASKED)
    made = tomllib.loads(text)
    config = (ROOT / "config" / "gateway.toml").read_text()
    begin, end = config.index("\n[limits]"), config.index("# --- Pools")
    pool_begin, pool_end = config.index("[pool.shared.limits]"), config.index("[pool.next]")
    own = text[text.index("[limits]") : text.index("[scheduling]")]
    merged = config[:begin] + "\n" + own + config[end:pool_begin] + config[pool_end:]
    path = tmp_path / "gateway.toml"
    path.write_text(merged)
    (tmp_path / "keys.example.toml").write_text((ROOT / "config/keys.example.toml").read_text())
    limits = load(path).document.limits
    assert limits.slots == made["limits"]["slots"]
    assert limits.prefill_tokens_per_s == pytest.approx(made["limits"]["prefill_tokens_per_s"])


def laid_out(tmp_path, attainment):
    run = tmp_path / "runs" / "r1-B0-80-20-near"
    run.mkdir(parents=True)
    (run / "requests.jsonl").write_bytes(encode_requests({}, RECORDS))
    (run / "samples.jsonl").write_bytes(b"".join(canonical(row) for row in SAMPLES))
    (run / "config.json").write_text('{"kv_tokens": 1000}')
    where = {"cell_id": "B0", "mix": "80-20", "rate": "near"}
    classes = {"short": {"prompt_tokens": 512}, "long": {"prompt_tokens": 8192}}
    plan = {
        "synthetic": True,
        "class_order": list(ORDER),
        "classes": classes,
        "contract": {name: {"attainment": 0.95} for name in ORDER},
        "cells": [{"cell_id": "B0", "args": ARGS}],
        "strata": [{"mix": "80-20", "rate": "near", "rate_per_s": 9.6}],
        "runs": [{"run_id": run.name, **where}],
    }
    write_json(tmp_path / "plan.json", plan)
    row = {**where, "n": 7, "state": "undecided"}
    strata = [{**row, "size_class": n, "attainment": attainment} for n in ORDER]
    write_json(tmp_path / "analysis.json", {"strata": strata, "runs": [{"run_id": run.name}]})
    return tmp_path


def test_a_folder_s_limits_name_their_evidence(tmp_path):
    text = folder_limits(laid_out(tmp_path, 1.0), None, COST, ROOT / "config" / "gateway.toml")
    assert text.startswith("# synthetic")
    assert "80-20/near at 9.6 requests/s: short 100.0% of 7" in text
    assert "seen, not proved" in text
    assert tomllib.loads(text)["limits"]["kv_tokens"] == 1000
    assert "16 reserved slots" in text


def test_a_cell_whose_contracts_did_not_hold_supports_no_limits(tmp_path):
    folder = laid_out(tmp_path, 0.9)
    with pytest.raises(BenchError, match="support none"):
        folder_limits(folder, "B0", COST, None)
    with pytest.raises(BenchError, match="no cell C9"):
        folder_limits(folder, "C9", COST, None)

import json

import pytest

from loadgen.record import BenchError
from loadgen.sweep_file import read_sweep
from tests.loadgen.sweeps import DEFAULT, write


def test_the_shipped_sweep_is_the_published_one():
    settings = read_sweep(DEFAULT).settings
    grid = [(c.args["max_num_batched_tokens"], c.args["max_num_seqs"]) for c in settings.cells]
    assert grid == [(b, s) for b in (2048, 4096, 8192) for s in (16, 32)]
    assert tuple(settings.mixes) == ("short", "80-20", "50-50")
    assert settings.rounds == 3
    assert settings.rates["80-20"].near == 9.6


def test_the_baseline_says_that_it_is_a_stand_in(tmp_path):
    sweep = read_sweep(write(tmp_path))
    assert sweep.baseline["source"] == "stand-in"
    assert sweep.baseline_args["max_num_batched_tokens"] == 2048


def test_a_captured_baseline_is_named_by_its_digest(tmp_path):
    args = {"max-num-seqs": 256, "max_num_batched_tokens": 8192}
    (tmp_path / "b0.json").write_text(json.dumps({"args": args, "approved_by": "ops"}))
    stand_in = "[baseline.stand_in]\nmax-num-batched-tokens = 2048\nmax_num_seqs = 64\n"
    stand_in += "max_model_len = 4096\nnum_gpu_blocks_override = 2000\n"
    path = write(tmp_path, swap={stand_in: '[baseline]\ncaptured = "b0.json"\n'})
    sweep = read_sweep(path)
    assert sweep.baseline_args == {"max_num_seqs": 256, "max_num_batched_tokens": 8192}
    assert sweep.baseline["approved_by"] == "ops"
    assert len(sweep.baseline["sha256"]) == 64


def test_rates_may_come_from_the_file_that_calibrate_writes(tmp_path):
    rates = {"80-20": {"low": 1.5, "near": 2.0, "stress": 2.2}}
    found = {"kind": "rates", "rates": rates, "source": {"virtual": True}}
    (tmp_path / "rates.json").write_text(json.dumps(found))
    named = {"seed = 3": 'seed = 3\nrates_file = "rates.json"'}
    path = write(tmp_path, swap={**named, "[rates.80-20]\nlow = 4.0\nnear = 8.0\n": ""})
    sweep = read_sweep(path)
    assert sweep.settings.rates["80-20"].near == 2.0
    assert sweep.rates_source["kind"] == "calibration"
    assert sweep.rates_source["virtual"] is True
    assert len(sweep.rates_source["sha256"]) == 64


def test_a_sweep_without_rates_can_be_read_to_find_them(tmp_path):
    path = write(tmp_path, swap={"[rates.80-20]\nlow = 4.0\nnear = 8.0\n": ""})
    with pytest.raises(BenchError, match=r"rates\.80-20: is missing"):
        read_sweep(path)
    assert read_sweep(path, with_rates=False).rates_source["kind"] == "none"


@pytest.mark.parametrize(
    ("before", "after", "reason"),
    [
        ("seed = 3", "sede = 3", "sede: unknown key"),
        ("seed = 3", 'seed = "3"', "seed: Input should be a valid integer"),
        ("seed = 3", "seed = ", "not TOML"),
        ("rounds = 3", "rounds = 4", "rounds: 4 rounds, but the last look is after 3"),
        ("rounds = 3", "rounds = 3\nlooks = [2]", r"looks: \[2\] is not"),
        ("short = 0.8", "short = 0.7", "mixes.80-20: the shares must be positive and sum to 1"),
        ("short = 0.8", "tiny = 0.8", "class 'tiny' is not under"),
        ("prompt_tokens = 96", "prompt_tokens = 400", "two classes have the same prompt size"),
        ('derived_from = "80-20"', 'derived_from = "70-30"', "is not a mix that is drawn itself"),
        ("near = 8.0", "near = 0.0", "rates.80-20.near: must be above 0"),
        ("drain_s = 5.0", "drain_s = 4.0", "intervals.drain_s: is shorter than timeout_s"),
        ("e2e_s = 4.0", "e2e_s = 6.0", "intervals.timeout_s: is shorter than a limit"),
        ('["short", "near"]', '["short", "low"]', "short, low is no stratum of this sweep"),
        ("[contract.long]", "[contract.lnog]", "contract.long: is missing"),
        ('cell_id = "C1"', 'cell_id = "B0"', "cells: B0 is the baseline's own name"),
        ("seed = 3", 'seed = 3\nlauncher = { kind = "docker" }', "launcher.kind: must be"),
        ("seed = 3", 'seed = 3\narrivals = { kind = "bursty" }', "arrivals.kind: 'bursty' is not"),
        ("seed = 3", 'seed = 3\ncorpus = { file = "p.jsonl" }', "needs source, licence and"),
    ],
)
def test_what_is_wrong_is_refused_by_file_key_and_reason(tmp_path, before, after, reason):
    path = write(tmp_path, swap={before: after})
    with pytest.raises(BenchError, match=reason) as refused:
        read_sweep(path)
    assert str(refused.value).startswith(str(path))


def test_rates_and_a_file_of_rates_exclude_each_other(tmp_path):
    path = write(tmp_path, swap={"seed = 3": 'seed = 3\nrates_file = "rates.json"'})
    with pytest.raises(BenchError, match="rates or rates_file, not both"):
        read_sweep(path)

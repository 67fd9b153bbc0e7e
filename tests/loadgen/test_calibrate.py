import pytest

from loadgen.calibrate import calibrate_server, calibrate_virtual
from loadgen.closed_loop import Server
from loadgen.engine.cost import StepCost
from loadgen.engine.launch import start_engine
from loadgen.record import BenchError
from loadgen.sweep_file import read_sweep
from tests.loadgen.sweeps import DEFAULT, write

COST = StepCost(5.0e-3, 2.53e-5, 9.6e-6, 3.6e-8, source="measured somewhere")


def test_in_virtual_time_the_rates_are_near_those_of_the_card():
    said = []
    found = calibrate_virtual(read_sweep(DEFAULT, with_rates=False), COST, said.append)
    assert found["rates"]["80-20"]["near"] == pytest.approx(9.6, rel=0.1)
    assert found["rates"]["50-50"]["near"] == pytest.approx(5.4, rel=0.1)
    assert set(found["rates"]) == {"80-20", "50-50"}
    assert found["source"]["synthetic"] is True
    assert found["source"]["step_costs"] == "measured somewhere"
    assert said[0].endswith("with 8 in flight")


def test_a_mix_without_shares_has_no_rate_to_be_found(tmp_path):
    recorded = 'replay = "x.csv"\nformat = "azure"'
    path = write(tmp_path, swap={"shares = { short = 0.8, long = 0.2 }": recorded})
    with pytest.raises(BenchError, match="mix 80-20: replays a recorded trace"):
        calibrate_virtual(read_sweep(path, with_rates=False), COST, print)


def test_a_running_engine_is_measured_mix_by_mix(tmp_path):
    sweep = read_sweep(write(tmp_path), with_rates=False)
    args = ["--time-scale", "4", "--max-num-seqs", "8", "--max-num-batched-tokens", "2048"]
    with start_engine(args, tmp_path / "engine.log") as engine:
        server = Server(engine.url, "simulated", settle_s=0.2, measured_s=0.6)
        found = calibrate_server(sweep, server, print)
    assert set(found["rates"]) == {"80-20"}
    per_s = found["source"]["completions_per_s"]["80-20"]
    assert found["rates"]["80-20"]["near"] == round(0.75 * per_s, 2)
    assert found["source"]["virtual"] is False

import pytest

from loadgen.capacity_view import capacity_of, capacity_table
from loadgen.engine.cost import StepCost
from loadgen.freeze import preview
from loadgen.rate_ladder import Rung, knee, ladder
from loadgen.record import BenchError
from loadgen.sweep_file import read_sweep
from tests.loadgen.sweeps import DEFAULT

COST = StepCost(5.0e-3, 2.53e-5, 9.6e-6, 3.6e-8)
CONTRACT = {"short": {"attainment": 0.95}, "long": {"attainment": 0.9}}


@pytest.fixture(scope="module")
def plan():
    return preview(read_sweep(DEFAULT))


def rung(rate, short, long):
    return Rung(rate, {"short": short, "long": long}, {})


def test_the_knee_is_the_last_rate_before_the_first_class_fails():
    rungs = [rung(1, 1, 1), rung(2, 0.96, 0.9), rung(3, 0.94, 1), rung(4, 1, 1)]
    assert knee(rungs, CONTRACT) == 2
    assert knee(list(reversed(rungs)), CONTRACT) == 2
    assert knee([rung(1, 0.5, 1)], CONTRACT) is None


def test_goodput_rises_with_the_rate_until_the_contract_breaks(plan):
    low, high = ladder(plan, ("B0", "80-20"), [5.0, 30.0], COST)
    assert low.attainment == {"short": 1.0, "long": 1.0}
    assert low.goodput_per_s["short"] == pytest.approx(4.0, abs=0.1)
    assert high.attainment["long"] < 0.95


def test_fewer_seats_have_an_earlier_knee(plan):
    rates = [8.0, 11.0, 14.0]
    knees = {
        c: knee(list(ladder(plan, (c, "80-20"), rates, COST)), plan["contract"])
        for c in ("B0", "C1")
    }
    assert knees["C1"] < knees["B0"]


def test_a_ladder_is_printed_with_a_row_for_each_rate(plan):
    told = capacity_of(plan, "B0", "50-50", COST)
    assert capacity_table(told).row_count == len(told["rungs"]) == 15


def test_an_unknown_cell_or_mix_is_named(plan):
    with pytest.raises(BenchError, match="cell 'C9': the plan has B0"):
        capacity_of(plan, "C9", "80-20", COST)
    with pytest.raises(BenchError, match="mix '10-90': the sweep has short, 80-20, 50-50"):
        capacity_of(plan, "B0", "10-90", COST)

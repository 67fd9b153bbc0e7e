"""The rule's error rates and power, by Monte Carlo; `python -m tests.simulation.error_rates` is
the bigger form of this."""

import pytest

from loadgen.stats import at_least, at_most
from tests.simulation.error_rates import PLANTED, World, rates, variation


def retuned(found):
    return sum(count for verdict, count in found.items() if verdict.startswith("retune"))


def show(name, found, sweeps):
    print(f"{name}: " + ", ".join(f"{v} {n / sweeps:.1%}" for v, n in sorted(found.items())))


@pytest.mark.slow
def test_identical_cells_are_neither_retuned_nor_isolated_beyond_the_stated_rates():
    worlds = {
        "well inside": (World(), 40),
        "at the contract's edge": (World(load=4.2), 20),
        "outside": (World(load=5.2), 20),
    }
    total, false_retune, false_isolate = 0, 0, 0
    for name, (world, sweeps) in worlds.items():
        found = rates(world, sweeps)
        show(name, found, sweeps)
        assert name != "well inside" or found["retain"] >= 0.9 * sweeps
        total += sweeps
        false_retune += retuned(found)
        false_isolate += found["isolate"]
    # So many would be unlikely (1 in 1000) if the true rates were 5 % and 1 %.
    assert at_least(false_retune, total, 0.05) > 1e-3
    assert at_least(false_isolate, total, 0.01) > 1e-3


def test_the_worlds_vary_from_run_to_run_as_the_stated_power_supposes():
    found = variation(World(planted=PLANTED), sweeps=4)
    assert 0.045 < found["short_stall_p95"] < 0.065
    assert variation(World(run_sd=0.10), sweeps=4)["short_stall_p95"] > 0.09


@pytest.mark.slow
def test_a_planted_fifth_is_found_with_the_stated_power():
    sweeps = 40
    found = rates(World(planted=PLANTED), sweeps)
    show("stall -20 %", found, sweeps)
    assert found["retune(C3)"] == retuned(found)
    # So few would be unlikely (1 in 1000) if the power were 80 %.
    assert at_most(retuned(found), sweeps, 0.80) > 1e-3

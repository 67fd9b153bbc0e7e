"""Virtual time foretells what the recorded cells of one H200 say about the long-prefill cap."""

import pytest

from loadgen.simulate import PassThrough, SimArrival
from tests.simulation.h200_cells import RECORDED, Apart, OneLong, arrivals, compare

BY_NAME = {cell["cell"]: cell for cell in RECORDED["cells"]}
SEEDS = 12


def p95(cell: str, size_class: str) -> Apart:
    found = compare(BY_NAME[cell], SEEDS)
    return next(a for a in found if (a.size_class, a.level) == (size_class, 0.95))


def test_the_drawn_arrivals_are_as_many_as_were_recorded() -> None:
    for cell in RECORDED["cells"]:
        drawn = [a for a in arrivals(cell, 8.0, seed=1) if a.at_s >= 8.0]
        counts = {name: sum(a.size_class == name for a in drawn) for name in cell["offered"]}
        assert counts == cell["offered"]


@pytest.mark.parametrize("rate", ["5.4", "9.6"])
def test_the_short_p95_is_foretold_within_a_quarter_with_and_without_the_cap(rate: str) -> None:
    off, capped = p95(f"off-{rate}", "short"), p95(f"cap1-{rate}", "short")
    assert 0.8 < off.ratio < 1.25
    assert 0.8 < capped.ratio < 1.25
    assert capped.recorded < 0.6 * off.recorded
    assert capped.middle < 0.6 * off.middle


def test_a_long_is_held_until_the_one_before_has_its_first_token() -> None:
    policy = OneLong(PassThrough(1))
    longs = [SimArrival(n, 0.0, "long", 8192, 1) for n in range(3)]
    assert [a.seq for long in longs for a in policy.offer(long, 0.0)] == [0]
    assert [a.seq for a in policy.offer(SimArrival(3, 0.0, "short", 512, 1), 0.0)] == [3]
    assert policy.first_event(3, 0.1) == ()
    assert [a.seq for a in policy.first_event(0, 0.2)] == [1]

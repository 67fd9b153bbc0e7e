"""The vocabulary of the admission core."""

import pytest

from gateway.domain import Arm
from gateway.verdicts import Dispatched, RouteView


@pytest.mark.parametrize(
    ("route", "stable", "candidate"),
    [
        (RouteView("blue"), "blue", "blue"),
        (RouteView("blue", "green", 0.1), "blue", "green"),
    ],
)
def test_an_arm_resolves_to_its_pool_and_to_the_stable_one_without_a_candidate(
    route: RouteView, stable: str, candidate: str
) -> None:
    assert route.pool(Arm.STABLE) == stable
    assert route.pool(Arm.CANDIDATE) == candidate


def test_verdicts_are_values_that_nobody_can_change() -> None:
    verdict = Dispatched(1, "e0", 2)
    assert verdict == Dispatched(1, "e0", 2)
    with pytest.raises(AttributeError):
        verdict.engine = "e1"  # type: ignore[misc]

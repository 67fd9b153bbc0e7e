"""Native admission, and the faults that stand in its place."""

import pytest

from loadgen.engine.core import EngineCore
from loadgen.engine.cost import StepCost
from loadgen.engine.faults import FaultPlan, parse_faults
from loadgen.engine.gate import Faults, Gate, Limits
from loadgen.engine.metrics import EngineMetrics
from loadgen.engine.refusals import ApiError
from loadgen.engine.scheduler import SchedulerConfig


def gate(limits: Limits | None = None, plan: FaultPlan | None = None) -> Gate:
    config = SchedulerConfig()
    core = EngineCore(config, StepCost(0.0, 0.0, 0.0, 0.0), EngineMetrics("m", config))
    return Gate(core, limits or Limits(), Faults(plan or FaultPlan()))


def test_an_engine_without_limits_takes_everything() -> None:
    gate().admit(10_000)


def test_sequences_above_the_limit_are_refused_by_503() -> None:
    limited = gate(Limits(queued_requests=2))
    limited.admit(2)
    with pytest.raises(ApiError, match="currently busy") as refused:
        limited.admit(3)
    assert refused.value.status == 503
    assert b'max_num_queued_reqs"} 1.0' in limited.core.metrics.page(limited.core.scheduler)


def test_another_plan_forgets_the_counts_of_the_last() -> None:
    planned = gate(plan=parse_faults(["kill-after=3"]))
    planned.faults.events = planned.faults.streams = 2
    planned.replan(["reject"])
    assert planned.faults == Faults(FaultPlan(reject=True))
    with pytest.raises(ApiError):
        planned.admit(1)


def test_a_plan_ends_the_halt_that_an_earlier_one_caused() -> None:
    planned = gate()
    planned.core.halt()
    planned.replan([])
    assert not planned.core.halted


def test_a_running_engine_cannot_start_slowly() -> None:
    planned = gate(plan=parse_faults(["reject"]))
    with pytest.raises(ValueError, match="slow-start"):
        planned.replan(["slow-start=1"])
    assert planned.faults.plan.reject

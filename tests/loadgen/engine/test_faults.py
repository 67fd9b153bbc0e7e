"""Reading of planned faults."""

import pytest

from loadgen.engine.faults import FaultPlan, parse_faults


def test_no_fault_counts_no_events() -> None:
    assert parse_faults([]) == FaultPlan()
    assert not FaultPlan().counts_events


def test_faults_are_read_by_name_and_may_be_combined() -> None:
    plan = parse_faults(["kill-after=3", "slow-start=0.5", "busy-event=2"])
    assert plan == FaultPlan(kill_after=3, slow_start_s=0.5, busy_event=2)
    assert plan.counts_events
    assert not parse_faults(["slow-start=1"]).counts_events
    assert parse_faults(["error-event-after=0"]).counts_events


def test_switches_take_no_value() -> None:
    assert parse_faults(["hang-scheduler", "reject"]) == FaultPlan(hang_scheduler=True, reject=True)
    assert not FaultPlan(hang_scheduler=True, reject=True).counts_events
    with pytest.raises(ValueError, match="takes no value"):
        parse_faults(["reject=1"])


@pytest.mark.parametrize("text", ["explode=1", "kill-after", "kill-after=x", "hang-after=-1"])
def test_a_fault_that_cannot_be_read_is_refused_whole(text: str) -> None:
    with pytest.raises(ValueError, match=text):
        parse_faults([text])


def test_a_slow_start_must_end() -> None:
    with pytest.raises(ValueError, match="infinite"):
        parse_faults(["slow-start=inf"])

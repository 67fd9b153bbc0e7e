import math

import pytest

from loadgen.analyse import analyse_class
from loadgen.engine.cost import StepCost
from loadgen.forecast import forecast, play
from loadgen.record import Outcome, RequestRecord
from loadgen.simulate import Action, PassThrough
from loadgen.trace import Arrival

COST = StepCost(5.0e-3, 2.53e-5, 9.6e-6, 3.6e-8)
LIMITS = {"ttft_s": 1.0, "max_stall_s": 1.0, "e2e_s": 10.0}
TRACE = tuple(Arrival(n, "short", n * 20_000, 512, 4, "s") for n in range(100))


class Refusing(PassThrough):
    """Refuses every request whose number `every` divides."""

    def __init__(self, every):
        super().__init__(1)
        self.every = every

    def offer(self, arrival, now):
        if arrival.seq % self.every == 0:
            return [Action(arrival.seq, refused="queue_full")]
        return super().offer(arrival, now)


def record_of(result):
    planned_us = round(result.arrival.at_s * 1e6)
    at_us = None if result.first_s is None else round(result.first_s * 1e6)
    return RequestRecord(
        seq=result.arrival.seq,
        size_class="short",
        phase="observed",
        planned_us=planned_us,
        outcome=Outcome.OK if result.done else Outcome.REJECTED,
        prompt_tokens_planned=512,
        completion_tokens_planned=4,
        prompt_sha256="s",
        first_event_us=at_us,
    )


@pytest.mark.parametrize("every", [1000, 30])
def test_what_is_foretold_is_what_the_analysis_makes_of_the_same_run(every):
    told = forecast(TRACE, Refusing(every), 1, COST, 0.0)["short"]
    results = play(TRACE, Refusing(every), 1, COST)
    made = analyse_class([record_of(r) for r in results], LIMITS, 2.0)["ttft_s"]["offered"]
    assert told["ttft_p50_s"] == pytest.approx(made["p50"]["value"], abs=1e-6)
    assert told["ttft_p95_s"] == pytest.approx(made["p95"]["value"], abs=1e-6)


def test_a_policy_cannot_look_faster_by_refusing():
    told = forecast(TRACE, Refusing(10), 1, COST, 0.0)["short"]
    assert math.isfinite(told["ttft_p50_s"])
    assert told["ttft_p95_s"] == math.inf


def test_arrivals_of_the_ramp_do_not_count_and_an_unseen_class_is_left_out():
    lone = (Arrival(0, "long", 0, 8192, 4, "l"), *(TRACE[n] for n in range(1, 100)))
    told = forecast(lone, PassThrough(1), 1, COST, 1.0)
    assert set(told) == {"short"}

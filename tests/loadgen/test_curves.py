import math

from loadgen.curves import SHARES, join_curves, run_curves
from loadgen.quantiles import quantile
from tests.loadgen.made import Behaviour, records
from tests.loadgen.swept import samples

RUN = {"run_id": "r1-B0-80-20-near", "unit": "B0", "mix": "80-20", "rate": "near"}
KEY = ("B0", "80-20", "near")


def curves_of(behaviour, runs=1):
    made = [
        run_curves(RUN, records(RUN, behaviour, "B0", seed=n), samples("B0")) for n in range(runs)
    ]
    return made, join_curves(made)[KEY]


def test_a_curve_holds_the_nearest_rank_quantiles_of_all_rounds():
    made, stratum = curves_of(Behaviour(), runs=3)
    pooled = [v for run in made for v in run.values["short"]["ttft_s"]]
    x, y = stratum.offered["short"]["ttft_s"]
    assert y == list(SHARES)
    assert x == [round(quantile(pooled, q), 4) for q in SHARES]


def test_failures_end_the_offered_curve_early_and_are_not_in_the_accepted_one():
    _, stratum = curves_of(Behaviour(failed={"short": 0.25}))
    _, offered = stratum.offered["short"]["e2e_s"]
    _, accepted = stratum.accepted["short"]["e2e_s"]
    assert offered[-1] == 0.75
    assert accepted[-1] == 1.0


def test_a_failure_never_has_a_latency():
    made, _ = curves_of(Behaviour(failed={"long": 1.0}))
    assert set(made[0].values["long"]["ttft_s"]) == {math.inf}


def test_an_answer_of_one_piece_has_no_stall_and_is_not_a_failure():
    made, _ = curves_of(Behaviour(single_event=True))
    assert made[0].values["short"]["max_stall_s"] == ()


def test_the_seconds_of_the_rounds_are_joined():
    _, stratum = curves_of(Behaviour(), runs=2)
    assert stratum.seconds["oldest_age_s"]["long"] == {0: 0.0, 1: 0.5, 2: 1.0}
    assert stratum.seconds["waiting"] == {"": {0: 0, 1: 1, 2: 2}}

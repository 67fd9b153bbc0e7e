from loadgen.facts import RunFacts, facts_from_values
from loadgen.strata import by_stratum, run_p95, stratum_row
from tests.loadgen.made import Behaviour, analysis
from tests.loadgen.test_analyse import LIMITS


def test_a_run_s_p95_is_by_nearest_rank_and_absent_where_nothing_was_measured():
    values = [n / 100 for n in range(1, 21)]
    facts = facts_from_values(dict.fromkeys(("ttft_s", "e2e_s", "max_stall_s"), values), LIMITS)
    assert run_p95(facts, "ttft_s") == 0.19
    empty = facts_from_values(dict.fromkeys(("ttft_s", "e2e_s", "max_stall_s"), ()), LIMITS)
    assert run_p95(empty, "ttft_s") is None


def test_a_class_that_misses_little_is_certified_for_its_p95():
    found = analysis({"B0": Behaviour(missed={"short": 0.0125})})
    row = found["strata"][0]
    assert (row["misses"], row["n"]) == (3, 240)
    assert row["certified"] == {"p95": True, "p99": False}


def test_an_undecided_stratum_says_what_more_rounds_would_decide():
    row = analysis({"B0": Behaviour(missed={"short": 0.0375})})["strata"][0]
    assert (row["state"], row["misses"]) == ("undecided", 9)
    assert row["more_rounds"]["fail"] is None
    assert row["more_rounds"]["pass"] > 3
    assert "more_rounds" not in analysis()["strata"][0]


def test_responses_of_several_lengths_are_shown_by_length():
    assert "by_output" not in analysis()["strata"][0]
    shown = analysis({"B0": Behaviour(lengths=(100, 200))})["strata"][0]["by_output"]
    assert [(row["tokens_at_most"], row["n"]) for row in shown] == [(128, 120), (256, 120)]
    assert shown[0]["ttft_s"]["n"] == 120


def test_no_runs_make_no_strata():
    assert by_stratum([]) == []


def test_a_class_that_was_offered_nothing_is_not_judged():
    empty = facts_from_values(dict.fromkeys(("ttft_s", "e2e_s", "max_stall_s"), ()), LIMITS)
    run = RunFacts("r1", "B0", "80-20", "near", 1, {"classes": {"short": {}}}, {"short": empty})
    made = {"contract": {"short": {**LIMITS, "attainment": 0.95}}, "intervals": {"window_s": 9.0}}
    row = stratum_row(by_stratum([run])[0], "short", made, 0.05)
    assert (row["state"], row["why"]) == ("undecided", "attainment: nothing was offered")
    assert row["per_run_p95"] == {"n": [0]}
    assert row["more_rounds"] == {"pass": None, "fail": None}

import math

import pytest

from loadgen.record import Outcome
from tests.loadgen.made import Behaviour, analysis, better, plan


def comparison(found, unit):
    return next(r for r in found["comparisons"] if r["cell_id"] == unit)


def test_the_comparison_averages_logarithms_over_the_gate_mixed_strata():
    slower = {("C1", "80-20"): Behaviour(ttft_s={"short": 0.8, "long": 0.6}, variation=0.0)}
    still = Behaviour(variation=0.0)
    found = analysis({**dict.fromkeys(("B0", "C1", "C2", "C3"), still), **slower})
    row = next(r for r in found["comparisons"] if r["cell_id"] == "C1")
    # Twice as slow in one of two strata: the geometric mean is the square root of two.
    assert row["primaries"]["short_ttft_p95"]["ratio"] == pytest.approx(math.sqrt(2), rel=1e-4)
    assert row["primaries"]["short_ttft_p95"]["df"] == 3 * 2
    assert found["family"] == 6


def test_a_mix_of_one_class_is_a_gate_and_no_part_of_the_comparison():
    made = plan()
    runs = [
        {**r, "mix": "short", "run_id": f"{r['run_id']}-alone"}
        for r in made["runs"]
        if r["mix"] == "80-20"
    ]
    found = analysis(made={**made, "runs": [*made["runs"], *runs]})
    assert {r["gate"] for r in found["strata"] if r["mix"] == "short"} == {False}


def test_a_failing_cell_is_left_out_of_the_error_and_named():
    found = analysis({"C1": Behaviour(missed={"long": 0.3})})
    assert found["spread"]["short_ttft_p95"]["left_out"] == ["C1"]
    assert found["spread"]["short_ttft_p95"]["df"] == 2 * 2


def test_where_only_the_baseline_is_unbounded_its_timeout_stands_for_it():
    shed = Behaviour(failed={"short": 0.06}, failure=Outcome.ERROR, variation=0.0)
    found = analysis({("B0", "80-20"): shed, "B0": Behaviour(variation=0.0)})
    row = next(r for r in found["comparisons"] if r["cell_id"] == "C1")["primaries"]
    ratio = row["short_ttft_p95"]["ratio"]
    # 20 s for the baseline in one of two strata, about 0.47 s elsewhere.
    assert ratio == pytest.approx(math.sqrt(0.47 / 20.0), rel=0.1)


def test_policy_arms_are_three_contrasts_against_off():
    made = plan(("off", "enforce", "priority", "both"), kind="arms")
    found = analysis({"enforce": better()}, made)
    assert found["base"] == "off"
    assert found["family"] == 3
    row = next(r for r in found["comparisons"] if r["cell_id"] == "enforce")
    assert row["superior"] == ["short_stall_p95"]


def test_holm_s_correction_is_over_cells_times_two():
    found = analysis({"C2": better(short_stall=0.85)})
    tested = [p for row in found["comparisons"] for p in row["primaries"].values()]
    assert found["family"] == len(tested) == 6
    least = min(tested, key=lambda p: p["p"])
    assert least["p_holm"] == pytest.approx(6 * least["p"])


def test_a_candidate_that_cannot_be_tested_still_counts_in_the_family():
    shed = Behaviour(failed={"short": 0.5})
    found = analysis({"C1": shed, "C2": better()})
    row = comparison(found, "C1")
    assert row["primaries"]["short_ttft_p95"] == {"unbounded": True, "superior": False}
    assert row["guardrails"]["short_ttft_p95"]["held"] is False
    assert found["family"] == 6
    best = comparison(found, "C2")["primaries"]["short_stall_p95"]
    assert best["p_holm"] == pytest.approx(6 * best["p"])


@pytest.mark.parametrize(
    ("behaviour", "rail"),
    [
        (Behaviour(ttft_s={"short": 0.46, "long": 0.6}), "short_ttft_p95"),
        (Behaviour(stall_s={"short": 0.23, "long": 0.2}), "short_stall_p95"),
        (Behaviour(ttft_s={"short": 0.4, "long": 0.69}), "long_ttft_p95"),
        (Behaviour(e2e_s={"short": 3.0, "long": 4.6}), "long_e2e_p95"),
        (Behaviour(missed={"long": 0.025}), "long_attainment"),
        (Behaviour(failed={"long": 0.025}), "long_failures"),
        (Behaviour(failed={"short": 0.025}), "short_failures"),
    ],
)
def test_each_guardrail_sees_its_own_harm(behaviour, rail):
    row = comparison(analysis({"C1": behaviour}), "C1")
    assert row["guardrails"][rail]["held"] is False
    assert row["guardrails_held"] is False


def test_one_failed_request_more_than_the_baseline_is_within_the_guardrail():
    one = Behaviour(failed={"long": 0.0125})  # one of 80, in each of six runs
    made = analysis({("C1", "80-20"): one})["comparisons"][0]["guardrails"]["long_failures"]
    assert made["limit"] == pytest.approx(0.005 + 1 / 480)
    assert made["value"] == pytest.approx(3 / 480)
    assert made["held"] is True


def test_harmless_cells_hold_every_guardrail():
    assert all(row["guardrails_held"] for row in analysis()["comparisons"])


def test_responses_of_another_length_are_named_and_no_gain():
    row = comparison(
        analysis({"C1": Behaviour(tokens=120, stall_s={"short": 0.1, "long": 0.2})}), "C1"
    )
    assert row["output_differs"] == [
        f"{name} responses at {mix} near are 6.2% shorter than the baseline's"
        for name in ("short", "long")
        for mix in ("80-20", "50-50")
    ]
    assert row["superior"] == []


def test_longer_responses_in_one_stratum_do_not_hide_shorter_ones_in_another():
    quick = {"stall_s": {"short": 0.1, "long": 0.2}}
    behaviours = {
        ("C1", "80-20"): Behaviour(tokens=134, **quick),
        ("C1", "50-50"): Behaviour(tokens=122, **quick),
        "C2": Behaviour(tokens=130, **quick),
    }
    found = analysis(behaviours)
    row = comparison(found, "C1")
    assert (
        "short responses at 80-20 near are 4.7% longer than the baseline's"
        in (row["output_differs"])
    )
    assert (
        "short responses at 50-50 near are 4.7% shorter than the baseline's"
        in (row["output_differs"])
    )
    assert row["superior"] == []
    within = comparison(found, "C2")  # 1.6 % longer everywhere
    assert within["output_differs"] == []
    assert within["superior"] == ["short_stall_p95"]


def test_where_lengths_vary_responses_of_like_length_are_compared():
    both = {u: Behaviour(lengths=(100, 200), variation=0.0) for u in ("B0", "C2", "C3")}
    slow = Behaviour(lengths=(100, 200), variation=0.0, ttft_s={"short": 0.8, "long": 0.6})
    found = comparison(analysis({**both, "C1": slow}), "C1")["by_output"]
    assert [(r["size_class"], r["tokens_at_most"]) for r in found] == [
        ("short", 128),
        ("short", 256),
        ("long", 128),
        ("long", 256),
    ]
    assert found[0]["ttft_p95"] == pytest.approx(2.0)
    assert found[2]["ttft_p95"] == pytest.approx(1.0)
    assert "by_output" not in comparison(analysis(), "C1")


def test_a_gain_that_is_seen_and_not_proved_says_how_many_rounds_would_prove_it():
    noisy = Behaviour(variation=0.25)
    cells = dict.fromkeys(("B0", "C1", "C3"), noisy)
    row = comparison(analysis({**cells, "C2": better(noisy, short_stall=0.75)}), "C2")
    primary = row["primaries"]["short_stall_p95"]
    assert not primary["superior"]
    assert primary["more_rounds"] > 3


def test_a_single_round_compares_nothing():
    found = analysis(made=plan(rounds=1))
    assert found["comparisons"][0]["primaries"]["short_ttft_p95"] == {
        "not_compared": True,
        "superior": False,
    }
    assert not found["comparisons"][0]["guardrails_held"]
    assert found["smallest_gain"] == {}


def test_where_no_response_had_two_events_no_stall_is_compared():
    whole = dict.fromkeys(("B0", "C1", "C2", "C3"), Behaviour(single_event=True))
    found = analysis(whole)
    primaries = comparison(found, "C1")["primaries"]
    assert primaries["short_stall_p95"] == {"not_compared": True, "superior": False}
    assert "ratio" in primaries["short_ttft_p95"]
    assert found["strata"][0]["stall_absent"] == 240

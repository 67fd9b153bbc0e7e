from collections import Counter
from dataclasses import replace

import pytest

from loadgen.arms import ARMS, Stamped, arms_plan, arms_settings
from loadgen.freeze import preview
from loadgen.record import BenchError
from loadgen.simulate import PassThrough, SimArrival
from loadgen.sweep_file import read_sweep
from tests.loadgen.conftest import ROOT

SWEEP = read_sweep(ROOT / "config" / "sweep.toml")


def plan():
    return arms_plan(preview(replace(SWEEP, settings=arms_settings(SWEEP.settings))))


def test_every_arm_meets_every_mixed_stratum_once_a_round():
    runs = plan()["runs"]
    met = Counter((r["repeat"], r["arm"], r["mix"], r["rate"]) for r in runs)
    assert set(met.values()) == {1}
    arms = ("off", "enforce", "engine-priority", "both")
    strata = (("80-20", "near"), ("50-50", "near"))
    assert set(met) == {(n, arm, *s) for n in (1, 2, 3) for arm in arms for s in strata}
    assert [r["order"] for r in runs] == list(range(1, 25))


def test_some_arms_alone_are_compared_with_off():
    made = arms_plan(preview(replace(SWEEP, settings=arms_settings(SWEEP.settings))), ["enforce"])
    assert made["arms"] == ["off", "enforce"]
    assert Counter(r["arm"] for r in made["runs"]) == {"off": 6, "enforce": 6}
    assert made["engine_starts"] == len({r["start"] for r in made["runs"]}) == 6


def test_all_arms_of_a_round_replay_the_same_trace_of_the_sweep():
    sweep = {(r["mix"], r["rate"], r["repeat"]): r["trace"] for r in preview(SWEEP)["runs"]}
    for run in plan()["runs"]:
        assert run["trace"] == sweep[run["mix"], run["rate"], run["repeat"]]


def test_each_arm_and_round_has_an_engine_of_its_own():
    made = plan()
    pairs = {(r["start"], r["arm"], r["repeat"]) for r in made["runs"]}
    assert len(pairs) == len({start for start, _, _ in pairs}) == made["engine_starts"] == 12


def test_an_arm_says_what_gateway_and_engine_do():
    told = {
        r["arm"]: (r["admission"], r["engine_args"].get("scheduling_policy"))
        for r in plan()["runs"]
    }
    assert told == {
        "off": ("off", None),
        "enforce": ("enforce", None),
        "engine-priority": ("off", "priority"),
        "both": ("enforce", "priority"),
    }


def test_the_order_of_arms_differs_between_rounds_and_follows_the_seed():
    def order(made):
        return [
            tuple(dict.fromkeys(r["arm"] for r in made["runs"] if r["repeat"] == n))
            for n in (1, 2, 3)
        ]

    assert len(set(order(plan()))) > 1
    assert order(plan()) == order(plan())
    own = replace(SWEEP, settings=replace(arms_settings(SWEEP.settings), seed=2))
    assert order(arms_plan(preview(own))) != order(plan())


def test_only_the_baseline_and_the_near_gates_are_left():
    made = plan()
    assert [c["cell_id"] for c in made["cells"]] == ["B0"]
    assert made["kind"] == "arms"
    near = [("80-20", "near"), ("50-50", "near")]
    assert [tuple(s) for s in made["contract"]["short"]["gate_strata"]] == near
    assert made["contract"]["short"]["ttft_s"] == SWEEP.settings.contract["short"].ttft_s


def test_a_sweep_without_mixed_classes_has_no_arms():
    alone = {n: m for n, m in SWEEP.settings.mixes.items() if not m.shares}
    with pytest.raises(BenchError, match="no mix of several classes"):
        arms_settings(replace(SWEEP.settings, mixes=alone))


def test_a_stamped_policy_gives_each_service_class_its_priority():
    policy = Stamped(PassThrough(1))
    arrivals = [
        SimArrival(n, 0.0, "short", 8, 8, service_class=name)
        for n, name in enumerate(("interactive", "standard", "batch", "other"))
    ]
    stamped = [action.priority for a in arrivals for action in policy.offer(a, 0.0)]
    assert stamped == [-10, 0, 10, 0]
    assert len(ARMS) == 4

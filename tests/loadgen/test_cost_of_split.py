import pytest

from loadgen.cost_of_split import split_cost


def run(unit, ok, pools=(), engines=(), *, valid=True, rate="near", classes=("short", "long")):
    return {
        "unit": unit,
        "valid": valid,
        "mix": "80-20",
        "rate": rate,
        "classes": {name: {"outcomes": {"ok": ok}} for name in classes},
        "pools": list(pools),
        "engines": list(engines),
    }


def analysis(*runs):
    return {
        "gates": {"short": [["80-20", "near"]], "long": [["80-20", "near"]]},
        "runs": list(runs),
        "cells": [{"cell_id": unit} for unit in dict.fromkeys(r["unit"] for r in runs)],
        "class_order": ["short", "long"],
        "intervals": {"window_s": 30.0},
    }


POOLS = (
    {"name": "short", "engines": 1, "offered_work": 0.3},
    {"name": "long", "engines": 3, "offered_work": 0.9},
)


def test_a_split_is_priced_per_ok_response_against_the_best_shared_cell():
    sweep = analysis(run("B0", 50), run("C1", 60), run("C1", 1, rate="stress"))
    topology = analysis(
        run("isolated", 100, POOLS, [{"idle_share": 0.5}, {}]),
        run("shared", 100, POOLS),
        run("isolated", 1, POOLS, valid=False),
    )
    found = split_cost(sweep, topology)
    assert found["gpu_s_per_ok"] == pytest.approx(4 * 30 / 200)
    assert (found["best_shared"], found["replicas"]) == ("C1", 4)
    assert found["best_shared_gpu_s_per_ok"] == pytest.approx(30 / 120)
    assert found["observed_idle_share"] == 0.5
    assert found["said"] == [
        "short pool (1 engines) idles 70% of its time by plan",
        "long pool (3 engines) idles 10% of its time by plan",
        "0.6 GPU-seconds per ok response on 4 replicas, against 0.25 of C1, the best shared cell",
    ]


def test_runs_of_one_class_are_no_comparison_and_nothing_is_said_of_nothing():
    sweep = analysis(run("B0", 50, classes=("short",)))
    found = split_cost(sweep, analysis(run("isolated", 0, POOLS)))
    assert found["best_shared"] is None
    assert found["gpu_s_per_ok"] is None
    assert found["observed_idle_share"] is None
    assert len(found["said"]) == 2

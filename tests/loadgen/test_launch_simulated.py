import tomllib

import pytest

from loadgen.asking import healthy
from loadgen.confirm import confirm
from loadgen.launch_simulated import Simulated, engine_words
from loadgen.launchers import launcher_of
from loadgen.launching import Need, need_of, start_name
from loadgen.record import BenchError


def test_arguments_of_real_hardware_change_nothing_in_a_simulated_engine():
    assert engine_words(
        {"max_num_seqs": 16, "dtype": "bfloat16", "enable_prefix_caching": False}
    ) == [
        "--max-num-seqs",
        "16",
        "--no-enable-prefix-caching",
    ]


@pytest.mark.parametrize(
    "args", [{"enable_chunked_prefill": False}, {"max_num_seqs": 0}, {"max_num_seqs": "many"}]
)
async def test_a_value_that_it_cannot_take_is_refused_with_the_cells_name(args):
    with pytest.raises(BenchError, match="cell C3: the simulated engine cannot be started so"):
        await Simulated({}).prepare([Need("01", "C3", args, ())])


async def test_a_cell_stands_with_its_arguments_told_by_the_engine_itself(tmp_path):
    args = {"max_num_seqs": 16, "max_num_batched_tokens": 4096, "gpu_memory_utilization": 0.9}
    need = Need("01", "C3", args, ("max_num_seqs",), time_scale=2.0)
    async with Simulated({}).standing(need, tmp_path / "s") as standing:
        confirmed = standing.confirmed
        assert (confirmed.source, confirmed.differences) == ("engine", ())
        assert confirmed.unconfirmed == ("gpu_memory_utilization",)
        assert confirmed.args["max_num_batched_tokens"] == 4096
        assert standing.facts["versions"]["engine"].endswith("simulated")
        engine = standing.endpoint.engine_urls[0]
        assert await healthy(engine)
    assert not await healthy(engine)


def test_a_kind_that_there_is_not_is_named():
    with pytest.raises(BenchError, match=r"launcher\.kind: 'docker' is not one of simulated, vllm"):
        launcher_of({"kind": "docker"})


PLAN = {
    "cells": [
        {"cell_id": "B0", "args": {"max_num_seqs": 64}, "changed": {}},
        {"cell_id": "C1", "args": {"max_num_seqs": 8}, "changed": {"max_num_seqs": {}}},
    ],
    "gateway": {"admission": "off"},
}


def test_a_runs_need_is_its_cells_arguments_behind_the_plans_gateway():
    run = {"run_id": "r1-C1-a-low", "cell_id": "C1", "repeat": 1, "start": 3}
    need = need_of(PLAN, run, 1.0)
    assert (need.args, need.critical) == ({"max_num_seqs": 8}, ("max_num_seqs",))
    assert (need.admission, need.topology, need.engines) == ("off", "shared", 1)
    assert need.name == "03-r1-C1"


def test_an_arm_or_a_topology_changes_what_stands():
    arm = {
        "run_id": "r2-both-a-near",
        "cell_id": "B0",
        "repeat": 2,
        "start": 5,
        "arm": "both",
        "admission": "enforce",
        "engine_args": {"scheduling_policy": "priority"},
    }
    need = need_of(PLAN, arm, 1.0)
    assert need.args == {"max_num_seqs": 64, "scheduling_policy": "priority"}
    assert "scheduling_policy" in need.critical
    assert (need.admission, need.name) == ("enforce", "05-r2-both")
    alone = {"run_id": "x", "cell_id": "B0", "repeat": 1, "topology": "alone-long", "engines": 2}
    need = need_of(PLAN, alone, 1.0)
    assert (need.topology, need.engines) == ("isolated", 2)
    assert start_name(alone) == "x"


@pytest.mark.parametrize("shorts", [1, 2, 3])
def test_a_split_is_started_as_it_was_planned(shorts):
    pools = [
        {"name": "short", "classes": ["short"], "engines": shorts},
        {"name": "long", "classes": ["long"], "engines": 4 - shorts},
    ]
    run = {"run_id": "x", "cell_id": "B0", "repeat": 1, "topology": "isolated", "engines": 4}
    need = need_of(PLAN, {**run, "pools": pools}, 1.0)
    assert (need.engines, need.split_words()) == (4, ["--short-engines", str(shorts)])
    assert need_of(PLAN, {**run, "topology": "shared", "pools": pools}, 1.0).split_words() == []


def test_a_split_that_cannot_be_started_is_refused_instead_of_measuring_another():
    pools = [{"name": n, "classes": [n], "engines": 1} for n in ("short", "mid", "long")]
    run = {"run_id": "x", "cell_id": "B0", "repeat": 1, "topology": "isolated", "engines": 3}
    with pytest.raises(BenchError, match="x: 3 pools, but only two can be started"):
        need_of(PLAN, {**run, "pools": pools}, 1.0)


@pytest.mark.parametrize(
    ("own", "policy"), [({}, "fcfs"), ({"scheduling_policy": "priority"}, "priority")]
)
def test_no_arm_leaves_the_engines_policy_to_a_default(own, policy):
    run = {"run_id": "x", "cell_id": "B0", "repeat": 1, "arm": "enforce", "engine_args": own}
    need = need_of(PLAN, run, 1.0)
    assert need.args["scheduling_policy"] == policy
    assert "scheduling_policy" in need.critical
    told = {"scheduler_config": {"policy": "lifo", "max_num_seqs": 64}}
    assert confirm(need.args, need.critical, told, "").differences == (
        f"scheduling_policy is lifo at the engine, {policy} in the plan",
    )
    assert confirm(need.args, need.critical, None, "").source == "unverified"


async def test_a_split_of_unequal_halves_stands(tmp_path):
    need = Need("01", "B0", {}, (), topology="isolated", engines=3, short_engines=1)
    async with Simulated({}).standing(need, tmp_path / "s") as standing:
        pools = tomllib.loads(standing.endpoint.config.read_text())["pool"]
    assert [len(pool["engines"]) for pool in pools.values()] == [1, 2]

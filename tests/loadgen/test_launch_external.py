from dataclasses import replace

import pytest

from loadgen.launch_external import External
from loadgen.launching import Need
from loadgen.record import BenchError
from tests.loadgen.truth import truth_server

ARGS = {"max_num_seqs": 16}


def need(cell="B0", **args):
    return Need("01", cell, {**ARGS, **args}, ())


async def test_a_running_server_is_used_as_it_is_and_nothing_is_claimed_of_it(
    tmp_path, monkeypatch
):
    monkeypatch.setenv("MY_KEY", "secret")
    async with truth_server() as truth:
        own = External({"url": truth.url, "model": "m", "key_env": "MY_KEY"})
        await own.prepare([need(), need()])
        async with own.standing(need(), tmp_path / "s") as standing:
            assert standing.endpoint.gateway_url == truth.url
            assert standing.endpoint.keys["interactive"] == "secret"
            assert standing.confirmed.source == "unverified"
            assert standing.identity["image_digest"].startswith("unverified")
            assert "secret" not in repr(standing)


async def test_it_can_be_one_cell_only():
    own = External({"url": "http://127.0.0.1:1"})
    with pytest.raises(BenchError, match="one cell can run, the plan has B0, C1"):
        await own.prepare([need(), need("C1", max_num_seqs=8)])


async def test_arms_need_a_gateway_of_their_own_each():
    arms = [need(), replace(need(), admission="enforce")]
    with pytest.raises(BenchError, match="what runs has one admission, the plan has enforce, off"):
        await External({"url": "http://127.0.0.1:1"}).prepare(arms)


async def test_the_same_arguments_twice_are_one_cell():
    await External({"url": "http://127.0.0.1:1"}).prepare([need(), need("B0b")])


async def test_a_key_that_is_not_in_the_environment_is_named(monkeypatch):
    monkeypatch.delenv("MY_KEY", raising=False)
    own = External({"url": "http://127.0.0.1:1", "key_env": "MY_KEY"})
    with pytest.raises(BenchError, match="the variable MY_KEY is not set"):
        await own.prepare([need()])

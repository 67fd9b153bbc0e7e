import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.record import Prompt
from loadgen.stack import Endpoint
from loadgen.warmup import ROUNDS, agreed, rounds_of, warm_up
from tests.loadgen.truth import truth_server


def prompt(name, n):
    return Prompt(name, 10, 3, f"{name} {n}", f"{name}{n}")


PROMPTS = [prompt("short", n) for n in range(100)] + [prompt("long", n) for n in range(40)]


def medians(*pairs):
    return [{"short": s, "long": g} for s, g in pairs]


def test_rounds_agree_once_two_in_a_row_are_within_a_tenth_in_both_classes():
    assert not agreed(medians((1, 1), (1, 1)))
    assert agreed(medians((9, 9), (1, 1), (1.09, 0.91), (1.05, 0.99)))
    assert not agreed(medians((1, 1), (1, 1), (1, 1.2)))
    assert not agreed(medians((1.2, 1), (1, 1), (1, 1)))


def test_a_difference_that_is_the_machines_noise_is_none():
    rounds = medians((0.05, 1), (0.065, 1), (0.05, 1))
    assert not agreed(rounds)
    assert agreed(rounds, noise_s=0.02)


@given(st.floats(0.01, 100), st.floats(0.01, 100))
def test_equal_rounds_always_agree(short, long):
    assert agreed(medians(*[(short, long)] * 3))


def test_every_round_has_prompts_of_its_own_from_the_corpus_end():
    rounds = rounds_of(PROMPTS, {"short": 24, "long": 6})
    assert len(rounds) == ROUNDS
    assert [(len(r["short"]), len(r["long"])) for r in rounds] == [(4, 1)] * ROUNDS
    used = [p.text for r in rounds for own in r.values() for p in own]
    assert len(set(used)) == 30
    assert {"short 76", "short 99", "long 34", "long 39"} <= set(used)
    assert "short 75" not in used


def test_without_kept_prompts_there_is_nothing_to_warm_up_with():
    assert rounds_of(PROMPTS, {}) == []


async def warmed(truth, **kept):
    told = []
    rounds = rounds_of(PROMPTS, kept or {"short": 24, "long": 6})
    endpoint = Endpoint(truth.url, None, (), "m", {"interactive": "k"}, {})
    return await warm_up(endpoint, rounds, 2.0, told.append), told


async def test_a_steady_server_is_warm_after_three_rounds_in_recorded_seconds(monkeypatch):
    monkeypatch.setattr("loadgen.warmup.NOISE_S", 1.0)
    async with truth_server(ttft_s=0.05, gap_s=0.01, chunks=3) as truth:
        found, told = await warmed(truth)
        bodies = truth.bodies
    assert found.fault is None
    assert len(found.rounds) == len(told) == 3
    assert len(bodies) == 15
    assert bodies[0]["max_tokens"] == bodies[0]["min_tokens"] == 3
    assert found.rounds[-1]["short"] >= 2 * 0.07


async def test_a_server_that_keeps_changing_never_is(monkeypatch):
    monkeypatch.setattr("loadgen.warmup.agreed", lambda *args: False)
    async with truth_server(ttft_s=0.001, gap_s=0.001) as truth:
        found, _ = await warmed(truth)
    assert len(found.rounds) == ROUNDS
    assert "no two agreements" in found.fault


async def test_a_server_that_refuses_is_a_fault_with_its_status():
    async with truth_server() as truth:
        truth.script = lambda body: {"status": 503, "code": "down"}
        found, _ = await warmed(truth)
    assert found.fault.startswith("warm-up: no answer (status 503")


async def test_a_server_that_is_gone_is_a_fault():
    async with truth_server() as truth:
        pass
    found, _ = await warmed(truth)
    assert found.fault == "warm-up: no answer (ConnectError)"


@pytest.mark.parametrize("kept", [{}, {"short": 0}])
async def test_nothing_to_send_is_warm_at_once(kept):
    endpoint = Endpoint("http://127.0.0.1:1", None, (), "m", {}, {})
    found = await warm_up(endpoint, rounds_of(PROMPTS, kept), 1.0, lambda row: None)
    assert (found.rounds, found.fault) == ((), None)

"""What a record is held against: who is believed, what drifts, what nobody can tell."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.drift import Facts, State, Verification, compare
from gateway.launch_record import LaunchRecord
from gateway.manifest import Record, overlay, seal
from gateway.manifest_fields import RecordError
from tests.gateway.records import OTHER, WHOLE

BASE = seal(WHOLE)
URL = "http://127.0.0.1:8001"
ORDERS = {name for name in WHOLE if name == "owner" or name.startswith("abort.")}
GATEWAY = {
    name
    for name in WHOLE
    if name.startswith(("route.", "capacity.", "health_probe.", "drain_"))
    and name not in {"capacity.kv_tokens", "health_probe.path"}
}
ENGINE = WHOLE.keys() - ORDERS - GATEWAY
ALL = {name: WHOLE[name] for name in ENGINE - {"capacity.kv_tokens"}} | {"kv_tokens": 393216}
AT_GATEWAY = {name: WHOLE[name] for name in GATEWAY}


def states(found: Verification) -> dict[str, State]:
    return {finding.field: finding.state for finding in found.findings}


def held(
    record: Record = BASE, engine: Any = ALL, launch: Any = None, gateway: Any = AT_GATEWAY
) -> Verification:
    launched = () if launch is None else (LaunchRecord("5" * 64, launch),)
    return compare(record, URL, Facts(engine, launched, gateway))


def test_what_is_as_recorded_is_verified_and_orders_are_not_compared() -> None:
    found = held()
    assert found.verdict == "verified"
    assert found.ok
    assert found.words == f"record {BASE.digest[:12]} matches {URL}"
    assert set(found.left_out) == ORDERS
    assert states(found) == dict.fromkeys(WHOLE.keys() - ORDERS, State.MATCHED)


def test_without_a_gateway_its_side_is_left_out_and_said_so() -> None:
    found = held(gateway=None)
    assert found.ok
    assert set(found.left_out) == ORDERS | GATEWAY


@given(st.sets(st.sampled_from(sorted(WHOLE.keys() - ORDERS)), min_size=1))
def test_exactly_what_differs_drifts(names: set[str]) -> None:
    found = held(overlay(BASE, {name: OTHER[name] for name in names}))
    assert {f.field for f in found.named(State.DRIFTED)} == names
    assert (found.verdict, found.ok) == ("drifted", False)
    assert all(name in found.words for name in names)


@given(st.sets(st.sampled_from(sorted(ENGINE)), min_size=1))
def test_exactly_what_nobody_tells_is_unverifiable_until_each_is_accepted(names: set[str]) -> None:
    untold = {"kv_tokens" if name == "capacity.kv_tokens" else name for name in names}
    facts = Facts({k: v for k, v in ALL.items() if k not in untold}, (), AT_GATEWAY)
    found = compare(BASE, URL, facts)
    assert {f.field for f in found.named(State.UNVERIFIABLE)} == names
    assert found.verdict == "unverifiable"
    assert set(found.words.partition("launch record: ")[2].split(", ")) == names
    accepted = compare(BASE, URL, facts, [*names, "owner"])
    assert (accepted.verdict, set(accepted.accepted)) == ("verified", names)
    left = sorted(names)[1:]
    assert compare(BASE, URL, facts, left).ok is False


def test_drift_is_not_excused_by_accepting_it() -> None:
    found = compare(BASE, URL, Facts({**ALL, "args.max_num_seqs": 9}), ["args.max_num_seqs"])
    assert (found.verdict, found.accepted) == ("drifted", ())
    with pytest.raises(RecordError, match="no such field"):
        compare(BASE, URL, Facts(ALL), ["args.max_num_sqs"])


def test_a_launch_record_tells_what_the_engine_does_not_and_is_held_against_what_it_does() -> None:
    hidden = {k: v for k, v in ALL.items() if not k.startswith("args.max_num_")}
    launched = {k: v for k, v in ALL.items() if k.startswith("args.")}
    assert held(engine=hidden).verdict == "unverifiable"
    found = held(engine=hidden, launch=launched)
    assert (found.verdict, found.launch_sha256) == ("verified", ("5" * 64,))
    drifted = held(engine=hidden, launch={**launched, "args.max_num_seqs": 9})
    assert [f.field for f in drifted.named(State.DRIFTED)] == ["args.max_num_seqs"]


def test_a_launch_record_of_another_engine_proves_nothing() -> None:
    hidden = {k: v for k, v in ALL.items() if k != "args.max_num_seqs"}
    other = {"args.max_num_seqs": WHOLE["args.max_num_seqs"], "args.max_model_len": 4096}
    found = held(engine=hidden, launch=other)
    assert [f.field for f in found.named(State.DRIFTED)] == ["launch_record (args.max_model_len)"]
    assert [f.field for f in found.named(State.UNVERIFIABLE)] == ["args.max_num_seqs"]


def test_a_launch_record_of_another_start_proves_nothing() -> None:
    launch = LaunchRecord("5" * 64, {"args.seed": 0}, started_s=1000.0)
    for started_s, verdict in ((1300.0, "verified"), (90_000.0, "drifted"), (None, "verified")):
        assert compare(BASE, URL, Facts(ALL, (launch,), None, started_s)).verdict == verdict


def test_two_launch_records_add_up_unless_they_contradict_each_other() -> None:
    hidden = {k: v for k, v in ALL.items() if k not in {"args.max_num_seqs", "image.digest"}}
    log = LaunchRecord("5" * 64, {"args.max_num_seqs": WHOLE["args.max_num_seqs"]})
    pod = LaunchRecord("6" * 64, {"image.digest": WHOLE["image.digest"], "args.seed": 0})
    found = compare(BASE, URL, Facts(hidden, (log, pod)))
    assert (found.verdict, found.launch_sha256) == ("verified", ("5" * 64, "6" * 64))
    other = LaunchRecord("7" * 64, {"args.max_num_seqs": 9})
    for pair in ((log, other), (other, log)):
        found = compare(BASE, URL, Facts(hidden, pair))
        assert {f.field for f in found.named(State.DRIFTED)} == {
            "launch_record (args.max_num_seqs)"
        }


def test_blocks_that_a_description_has_found_do_not_contradict_the_engine() -> None:
    name = "args.num_gpu_blocks_override"
    launch = (LaunchRecord("5" * 64, {name: 512}),)
    for blocks, verdict in ((512, "verified"), (511, "drifted")):
        seen = {**ALL, name: None, "num_gpu_blocks": blocks}
        assert compare(seal({**WHOLE, name: blocks}), URL, Facts(seen, launch)).verdict == verdict


@pytest.mark.parametrize(
    ("field", "recorded", "seen", "state"),
    [
        ("args.dtype", "bfloat16", "torch.bfloat16", State.MATCHED),
        ("args.kv_cache_memory_bytes", 64 * 2**20, "64M", State.MATCHED),
        ("args.kv_cache_memory_bytes", 64 * 2**20, "64m", State.DRIFTED),
        ("args.enable_prefix_caching", True, 1, State.DRIFTED),
        ("args.gpu_memory_utilization", 0.92, 0.92, State.MATCHED),
        ("args.quantization", None, "fp8", State.DRIFTED),
    ],
)
def test_values_are_compared_by_what_they_mean(
    field: str, recorded: Any, seen: Any, state: State
) -> None:
    record = seal({**WHOLE, field: recorded})
    assert states(held(record, {**ALL, field: seen}))[field] is state


@pytest.mark.parametrize(
    ("tokens", "state"),
    [(393215, State.DRIFTED), (393216, State.MATCHED), (400000, State.MATCHED)],
)
def test_more_cache_than_recorded_is_no_drift(tokens: int, state: State) -> None:
    assert states(held(engine={**ALL, "kv_tokens": tokens}))["capacity.kv_tokens"] is state


@pytest.mark.parametrize(
    ("recorded", "told", "state"),
    [
        (None, {}, State.UNVERIFIABLE),
        (None, {"num_gpu_blocks": 512}, State.UNVERIFIABLE),
        (None, {"args.num_gpu_blocks_override": None, "num_gpu_blocks": 512}, State.MATCHED),
        (None, {"args.num_gpu_blocks_override": 512, "num_gpu_blocks": 512}, State.DRIFTED),
        (512, {"num_gpu_blocks": 512}, State.MATCHED),
        (512, {"args.num_gpu_blocks_override": None, "num_gpu_blocks": 512}, State.MATCHED),
        (512, {"args.num_gpu_blocks_override": None, "num_gpu_blocks": 511}, State.DRIFTED),
        (512, {"args.num_gpu_blocks_override": 511, "num_gpu_blocks": 511}, State.DRIFTED),
    ],
)
def test_blocks_are_compared_as_given_or_as_found(
    recorded: int | None, told: dict[str, Any], state: State
) -> None:
    name = "args.num_gpu_blocks_override"
    engine = {k: v for k, v in ALL.items() if k != name} | told
    assert states(held(seal({**WHOLE, name: recorded}), engine))[name] is state


SPECULATES = {"method": "ngram", "num_speculative_tokens": 3}


@pytest.mark.parametrize(
    ("recorded", "seen", "launched", "state"),
    [
        (None, False, None, State.MATCHED),
        (None, True, None, State.DRIFTED),
        (SPECULATES, False, SPECULATES, State.DRIFTED),
        (SPECULATES, True, None, State.UNVERIFIABLE),
        (SPECULATES, True, SPECULATES, State.MATCHED),
        (SPECULATES, True, {**SPECULATES, "num_speculative_tokens": 4}, State.DRIFTED),
    ],
)
def test_an_engine_shows_whether_it_speculates_and_a_launch_record_how(
    recorded: Any, seen: bool, launched: Any, state: State
) -> None:
    name = "args.speculative_config"
    engine = {k: v for k, v in ALL.items() if k != name} | {"speculation": seen}
    launch = None if launched is None else {name: launched}
    assert states(held(seal({**WHOLE, name: recorded}), engine, launch))[name] is state


def test_a_route_that_the_gateway_does_not_have_drifts() -> None:
    gateway = {k: v for k, v in AT_GATEWAY.items() if k != "route.demo/long"}
    found = held(gateway=gateway)
    assert [f.field for f in found.named(State.DRIFTED)] == ["route.demo/long"]


def test_what_is_told_is_json_with_each_field_once() -> None:
    told = json.loads(json.dumps(held().told()))
    assert (told["verdict"], told["engine"], told["record"]) == ("verified", URL, BASE.digest)
    assert sorted(row["field"] for row in told["fields"]) == sorted(WHOLE.keys() - ORDERS)

"""A canary rests on the record of its baseline: what the desk says of it decides."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from gateway.canary_start import checked_record
from gateway.manifest import Record, document, overlay, seal
from gateway.manifest_desk import Desk
from gateway.manifest_fields import RecordError
from gateway.moves import RouteError
from gateway.routing import Route
from loadgen.engine.launch import EngineProcess
from tests.gateway.controlled import WHOLE, controlled
from tests.gateway.records import OTHER, args_of, record_of_started

UNTOLD = ["image.digest", "model.revision", "model.tokenizer_revision", "deployment.revision"]
ROUTE = Route("m", "short", "a")


@pytest.fixture
async def desk(engine: EngineProcess, tmp_path: Path) -> AsyncIterator[Desk]:
    config = WHOLE.replace("http://127.0.0.1:8001", engine.url)
    async with controlled(tmp_path, config) as held:
        yield Desk(held.gateway, held.control.trail)


@pytest.fixture
def record(folder: Path, desk: Desk) -> Record:
    """Of the engine as it runs, and of its side of the gateway as that is configured."""
    fields = record_of_started(folder).fields
    own = {name: value for name, value in fields.items() if not name.startswith("route.")}
    return seal({**own, **desk.facts("a")})


def resting_on(record: Record, **more: Any) -> dict[str, Any]:
    launched = {f"args.{name}": value for name, value in args_of(record).items()}
    proof = {"sha256": "5" * 64, "told": launched, "started_s": None}
    return {"manifest": document(record), "launch_record": [proof], **more}


async def test_a_record_that_verifies_lets_a_canary_begin_and_says_what_was_accepted(
    desk: Desk, record: Record
) -> None:
    options = resting_on(record, accept_unverified=UNTOLD)
    told, rules = await checked_record(desk, options, ROUTE)
    assert isinstance(told, list)
    assert set(told[0]["accepted_unverified"]) == set(UNTOLD)
    assert {rule["metric"] for rule in rules} == {
        name.partition(".")[2] for name in record.fields if name.startswith("abort.")
    }


async def test_a_kept_record_is_named_by_its_digest(desk: Desk, record: Record) -> None:
    await desk.keep("ben", document(record))
    options = resting_on(record, accept_unverified=UNTOLD) | {"manifest": record.digest[:16]}
    found, told = await desk.verified(options, "a")
    assert (found, [one.ok for one in told]) == (record, [True])


async def test_what_nobody_tells_refuses_a_canary_until_it_is_accepted(
    desk: Desk, record: Record
) -> None:
    with pytest.raises(RouteError) as raised:
        await checked_record(desk, resting_on(record, accept_unverified=UNTOLD[1:]), ROUTE)
    assert str(raised.value).endswith("nor a launch record: image.digest")


@pytest.mark.parametrize("field", ["args.max_num_seqs", "capacity.slots", "args.block_size"])
async def test_drift_refuses_a_canary_by_name(field: str, desk: Desk, record: Record) -> None:
    drifted = overlay(record, {field: OTHER[field]})
    options = resting_on(record, accept_unverified=[*UNTOLD, field])
    with pytest.raises(RouteError, match=f"does not match .*: {field} is "):
        await checked_record(desk, {**options, "manifest": document(drifted)}, ROUTE)


async def test_a_record_that_is_not_of_the_pool_refuses_a_canary(
    desk: Desk, record: Record
) -> None:
    other = overlay(record, {"route.m/short": "elsewhere", "route.m/long": "elsewhere"})
    with pytest.raises(RouteError, match="has no route to pool 'a'"):
        await checked_record(desk, resting_on(other), ROUTE)
    with pytest.raises(RecordError, match="launch_record"):
        await desk.verified({"manifest": document(record), "launch_record": "log"}, "a")

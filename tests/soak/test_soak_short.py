"""A minute of what ``python -m tests.soak`` does for longer: outcomes, ledger, memory; no times."""

from pathlib import Path
from typing import Any

import pytest

from gateway.domain import Outcome
from tests.soak.__main__ import MIXES
from tests.soak.figures import outcomes
from tests.soak.world import CAPACITY, soak, world

GROWTH_MIB = 32
CONTRACT = {outcome.value for outcome in Outcome} - {"internal_error"}


@pytest.fixture
def anyio_backend() -> Any:
    return ("asyncio", {"use_uvloop": True})


@pytest.mark.slow
@pytest.mark.timeout(240)
async def test_under_overload_and_faults_every_outcome_is_in_the_contract_and_nothing_stays(
    tmp_path: Path,
) -> None:
    async with world(tmp_path) as place:
        overload = await soak(place, MIXES["overload"], 5 * CAPACITY, 12.0)
        words = outcomes(overload.load.done)
        assert set(words) <= CONTRACT, words
        assert words["completed"] > 0
        assert words["predicted_wait"] + words["queue_expired"] + words["principal_limit"] > 0
        warm = place.sample(0.0)

        mixed = await soak(place, MIXES["mixed"], CAPACITY, 20.0, restart_every_s=10.0)
        words = outcomes(mixed.load.done)
        assert set(words) <= CONTRACT, words
        assert {"completed", "client_cancelled", "bad_request", "not_found"} <= set(words)
        after = place.sample(0.0)
        assert after.rss_kib - warm.rss_kib < GROWTH_MIB * 1024
        assert after.descriptors <= warm.descriptors + 8
        assert place.gateway.events("internal_error") == []
        assert len(place.gateway.events("engine_down")) >= 2

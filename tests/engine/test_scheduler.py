"""The simulated scheduler does in every step what vLLM's own does."""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.engine.vllm import ENVIRONMENT, python

ROOT = Path(__file__).parents[2]
WORLDS = 1000
# Each would be a fault of the simulated scheduler; a value at which every world differs from it.
PLANTS = {
    "max_num_batched_tokens": 81,
    "policy": '"fcfs"',
    "long_prefill_token_threshold": 0,
    "num_gpu_blocks": 99,
    "reserve_full_isl": "false",
    "watermark": 0.0,
    "enable_prefix_caching": "false",
}


@pytest.fixture(scope="module")
def told() -> Any:
    """What the comparison says, run by vLLM's own Python."""
    plants = [word for name, value in PLANTS.items() for word in ("--plant", f"{name}={value}")]
    done = subprocess.run(
        [python(), "-m", "tests.engine.scheduler_worlds", str(WORLDS), *plants],
        cwd=ROOT,
        env={**os.environ, **ENVIRONMENT, "VLLM_LOGGING_LEVEL": "ERROR"},
        capture_output=True,
        check=False,
    )
    assert done.returncode in (0, 1), done.stderr.decode()[-2000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.timeout(600)
def test_no_step_of_a_thousand_worlds_differs(told: Any) -> None:
    print({name: value for name, value in told.items() if name != "planted"})
    assert told["differences"] == 0, told["first_differences"]


def test_the_worlds_make_every_mechanism_occur(told: Any) -> None:
    assert told["worlds"] == WORLDS
    assert told["steps"] > 50 * WORLDS
    assert told["preemptions"] > WORLDS
    assert told["aborts"] > WORLDS
    assert told["cached_tokens"] > 10 * WORLDS
    for limit in ("by_priority", "with_threshold", "with_watermark", "with_prefix_cache"):
        assert told[limit] > WORLDS / 5, limit


@pytest.mark.parametrize("limit", PLANTS)
def test_a_scheduler_with_another_limit_is_found_out(told: Any, limit: str) -> None:
    assert told["planted"][limit] > 0

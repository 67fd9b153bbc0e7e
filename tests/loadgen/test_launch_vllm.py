import socket
import sys
from pathlib import Path

import pytest

from loadgen.asking import healthy
from loadgen.launch_vllm import Vllm, VllmSettings, vllm_command
from loadgen.launching import Need
from loadgen.record import BenchError
from tests.loadgen.test_front import TEXT
from tests.ports import free_port

FAKE = str(Path(__file__).parent / "fake_vllm.py")
ARGS = {"max_num_batched_tokens": 2048, "max_num_seqs": 16}


def launcher(**settings):
    command = [sys.executable, FAKE, "serve", "{model}"]
    own = {"model": "some/model", "command": command, "port": free_port(2), "direct": True}
    return Vllm({"kind": "vllm", **own, **settings})


def need(**args):
    return Need("01", "C1", {**ARGS, **args}, ("max_num_seqs",))


def test_the_command_is_the_template_and_then_the_complete_arguments():
    settings = VllmSettings(model="org/m", revision="abc", served_model_name="m")
    args = {**ARGS, "enable_prefix_caching": False, "dtype": "bfloat16", "quantization": None}
    assert vllm_command(settings, args, 1) == [
        *("vllm", "serve", "org/m", "--revision", "abc", "--tokenizer-revision", "abc"),
        *("--served-model-name", "m", "--enable-chunked-prefill"),
        *("--host", "127.0.0.1", "--port", "8101"),
        *("--max-num-batched-tokens", "2048", "--max-num-seqs", "16"),
        *("--no-enable-prefix-caching", "--dtype", "bfloat16"),
    ]


async def test_a_flag_that_this_vllm_does_not_have_is_refused_before_anything_starts():
    with pytest.raises(BenchError, match="cell C1: this vLLM has no --max-warp-speed"):
        await launcher().prepare([need(max_warp_speed=9)])


async def test_the_helps_digest_is_among_the_inputs_whatever_width_and_time_are(monkeypatch):
    monkeypatch.setenv("COLUMNS", "40")
    narrow = await launcher().prepare([need()])
    monkeypatch.setenv("COLUMNS", "200")
    wide = await launcher().prepare([need()])
    assert len(narrow["help_sha256"]) == 64
    assert narrow == wide


async def test_a_program_that_is_not_there_is_named():
    with pytest.raises(BenchError, match="no-such-vllm"):
        await launcher(command=["no-such-vllm", "serve", "{model}"]).prepare([need()])


def test_an_unknown_setting_is_named():
    with pytest.raises(BenchError, match=r"launcher\.prot: unknown key"):
        launcher(prot=1)


async def test_an_engine_tells_its_effective_values_and_is_gone_afterwards(tmp_path):
    own = launcher()
    await own.prepare([need()])
    async with own.standing(need(), tmp_path / "s") as standing:
        confirmed = standing.confirmed
        assert (confirmed.source, confirmed.differences) == ("engine", ())
        assert confirmed.args["max_num_seqs"] == 16
        assert standing.facts["precision"] == "bfloat16"
        assert standing.facts["kv_tokens"] == 160
        assert standing.facts["versions"] == {"engine": "0.0.fake"}
        assert "0.0.fake" in standing.identity["image_digest"]
        port = int(standing.endpoint.gateway_url.rpartition(":")[2])
    with pytest.raises(ConnectionRefusedError), socket.socket() as sock:
        sock.connect(("127.0.0.1", port))


@pytest.mark.parametrize(
    ("environment", "source", "differences"),
    [
        ({"FAKE_LIES": "1"}, "engine", ("max_num_seqs is 17 at the engine, 16 in the plan",)),
        ({"FAKE_MUTE": "1"}, "launch-record", ()),
    ],
)
async def test_what_is_not_confirmed_is_said(tmp_path, environment, source, differences):
    own = launcher(environment=environment)
    async with own.standing(need(), tmp_path / "s") as standing:
        assert standing.confirmed.source == source
        assert standing.confirmed.differences == differences


async def test_an_engine_that_ends_while_it_starts_shows_its_log(tmp_path):
    own = launcher(environment={"FAKE_CRASH": "1"})
    with pytest.raises(BenchError, match=r"ended while it started\n.*CUDA out of memory"):
        async with own.standing(need(), tmp_path / "s"):
            pass


def two():
    return Need("01", "C1", ARGS, (), engines=2)


async def test_engines_with_devices_of_their_own_start_together(tmp_path):
    (waits := tmp_path / "waits").mkdir()
    text = dict(zip(("tokenizer", "chat_template"), TEXT, strict=True))
    environment = {"FAKE_WAITS": str(waits)}
    own = launcher(devices=["0", "1"], environment=environment, ready_s=30.0, direct=False, **text)
    async with own.standing(two(), tmp_path / "s") as standing:
        assert len(standing.endpoint.engine_urls) == 2


@pytest.mark.parametrize("devices", [[], ["0"], ["0", "0"], ["0, 1", "1"], ["0", "GPU-1"]])
async def test_engines_that_share_a_device_start_one_after_another(tmp_path, devices):
    (waits := tmp_path / "waits").mkdir()
    own = launcher(devices=devices, environment={"FAKE_WAITS": str(waits)}, ready_s=1.0)
    with pytest.raises(BenchError, match="not healthy after 1 s"):
        async with own.standing(two(), tmp_path / "s"):
            pass
    assert len(list(waits.iterdir())) == 1


async def test_a_server_that_stands_there_already_is_left_alone(tmp_path):
    own = launcher()
    async with own.standing(need(), tmp_path / "s") as standing:
        with pytest.raises(BenchError, match="something serves there already"):
            async with own.standing(need(), tmp_path / "t"):
                pass
        assert await healthy(standing.endpoint.gateway_url)


async def test_a_real_engines_clock_cannot_be_scaled(tmp_path):
    scaled = Need("01", "C1", ARGS, (), time_scale=2.0)
    with pytest.raises(BenchError, match="clock cannot be scaled"):
        async with launcher().standing(scaled, tmp_path / "s"):
            pass


async def test_a_gateway_before_it_needs_its_tokenizer(tmp_path):
    with pytest.raises(BenchError, match="needs tokenizer and chat_template"):
        async with launcher(direct=False).standing(need(), tmp_path / "s"):
            pass

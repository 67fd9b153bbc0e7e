from hypothesis import given
from hypothesis import strategies as st

from loadgen.vllm_flags import command_line, flags_in, unknown_flags

HELP = """\
usage: vllm serve [--enable-chunked-prefill | --no-enable-chunked-prefill]
  --max-num-seqs MAX_NUM_SEQS   see also --max-num-batched-tokens
  -O.LEVEL, -O LEVEL  # not a flag: a--b
"""


def test_each_kind_of_value_has_its_words():
    args = {
        "max_num_seqs": 16,
        "enable_chunked_prefill": True,
        "async_scheduling": False,
        "quantization": None,
        "lora_modules": ["a=1", "b=2"],
        "compilation_config": {"mode": 0, "cudagraph_mode": "FULL"},
    }
    assert command_line(args) == [
        *("--max-num-seqs", "16", "--enable-chunked-prefill", "--no-async-scheduling"),
        *("--lora-modules", "a=1", "b=2"),
        *("--compilation-config", '{"cudagraph_mode": "FULL", "mode": 0}'),
    ]


def test_a_help_text_names_its_flags():
    assert flags_in(HELP) == {
        "--enable-chunked-prefill",
        "--no-enable-chunked-prefill",
        "--max-num-seqs",
        "--max-num-batched-tokens",
    }


@given(st.sets(st.from_regex(r"[a-z]{1,8}(_[a-z]{1,8}){0,2}", fullmatch=True), min_size=1))
def test_exactly_the_flags_that_a_help_does_not_name_are_unknown(names):
    words = command_line(dict.fromkeys(names, 1))
    half = [w for w in words if w.startswith("--")][::2]
    known = flags_in("\n".join(half))
    assert set(unknown_flags(words, known)) == {w for w in words if w.startswith("--")} - set(half)

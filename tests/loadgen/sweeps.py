"""A small sweep file for the tests: two cells, two mixes, one round of few seconds."""

from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DEFAULT = ROOT / "config" / "sweep.toml"

SMALL = """
seed = 3
rounds = 3
strata = ["near"]
[rates.80-20]
low = 4.0
near = 8.0
[classes.short]
prompt_tokens = 96
output_tokens = 8
[classes.long]
prompt_tokens = 400
output_tokens = 8
[mixes.short]
derived_from = "80-20"
keep = ["short"]
[mixes.80-20]
shares = { short = 0.8, long = 0.2 }
[intervals]
ramp_s = 1.0
window_s = 4.0
drain_s = 5.0
timeout_s = 5.0
[contract.short]
ttft_s = 1.0
max_stall_s = 1.0
e2e_s = 4.0
gate_strata = [["80-20", "near"], ["short", "near"]]
[contract.long]
ttft_s = 1.0
max_stall_s = 1.0
e2e_s = 4.0
gate_strata = [["80-20", "near"]]
[baseline.stand_in]
max-num-batched-tokens = 2048
max_num_seqs = 64
max_model_len = 4096
num_gpu_blocks_override = 2000
[[cells]]
cell_id = "C1"
args = { max_num_batched_tokens = 128, max_num_seqs = 16 }
"""


def write(folder, text=SMALL, **replaced):
    """Write the small sweep, each key's text replaced by the value's, and return its path."""
    for before, after in replaced.pop("swap", {}).items():
        assert before in text, before
        text = text.replace(before, after)
    path = folder / "sweep.toml"
    path.write_text(text)
    return path

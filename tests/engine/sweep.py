"""A real sweep on this machine's processor, end to end: three cells of vLLM, measured and decided.

Run: python -m tests.engine.sweep --out DIR

Writes the sweep file that names vLLM's environment here, then `sluicegate bench all` does the rest:
27 runs on 9 engine starts, about half an hour on two cores that do nothing else. The model has
random weights and is small; the point is that everything holds together on the engine itself.
"""

import argparse
import sys
from pathlib import Path

from tests.engine.vllm import ENTRY, ENVIRONMENT, carried_out, end_in_order, model, python

__all__ = ["sweep_file"]

BASE = Path(__file__).parent / "sweep.toml"


def sweep_file() -> str:
    """The sweep file: what is the same everywhere, then where vLLM and its model are here."""
    folder = model("mid")
    entry = ", ".join(f'"{word}"' for word in (python(), *ENTRY))
    environment = "\n".join(f'{name} = "{value}"' for name, value in ENVIRONMENT.items())
    return f"""{BASE.read_text()}
[tokenizer]
path = "{folder}/tokenizer.json"
chat_template = "{folder}/chat_template.jinja"

[launcher]
kind = "vllm"
model = "{folder}"
command = [{entry}, "{{model}}"]
served_model_name = "mid"
tokenizer = "{folder}/tokenizer.json"
chat_template = "{folder}/chat_template.jinja"
expected_start_s = 40.0

[launcher.environment]
{environment}
"""


def main() -> int:
    """Write the file beside the results and carry the sweep out."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="the results folder")
    out = parser.parse_args().out
    out.mkdir(parents=True, exist_ok=True)
    path = out / "sweep.toml"
    path.write_text(sweep_file())
    words = [sys.executable, "-m", "gateway", "bench", "all", str(path), "--out", str(out)]
    end_in_order()
    return carried_out(words)


if __name__ == "__main__":
    sys.exit(main())

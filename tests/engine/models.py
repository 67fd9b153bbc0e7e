"""Makes model folders with real tokenizers and no weights: vLLM loads random ones.

Run by vLLM's own Python: models.py OUT QWEN3, where QWEN3 holds Qwen3's tokenizer files.

``tiny`` and ``mid`` have Mistral's first tokenizer (it comes with mistral_common) and a short chat
template of our own; ``qwen`` has Qwen3's with its whole template. ``mid`` takes about 2 seconds for
a prompt of 8,192 tokens on one core, the others a tenth of that.
"""

import json
import shutil
import sys
from pathlib import Path

import mistral_common
from transformers import LlamaTokenizerFast

TEMPLATE = """{{ bos_token }}
{%- if tools %}{{ '[tools] ' ~ (tools | tojson) ~ '\\n' }}{% endif %}
{%- for m in messages %}
{{- '[' ~ m.role ~ '] ' ~ (m.content or '') }}
{%- for call in m.tool_calls or [] %}
{{- ' [call] ' ~ call.function.name ~ ' ' ~ (call.function.arguments | tojson) }}
{%- endfor %}
{{- '\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '[assistant] ' }}{% endif %}
"""
COMMON = {
    "max_position_embeddings": 16384,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "hidden_act": "silu",
    "tie_word_embeddings": True,
    "torch_dtype": "bfloat16",
    "initializer_range": 0.02,
}
LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 32000,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
QWEN3 = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "vocab_size": 151936,
    "bos_token_id": 151643,
    "eos_token_id": 151645,
}
TINY = {
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 32,
    "intermediate_size": 128,
}
MID = {
    "hidden_size": 512,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "intermediate_size": 1536,
}


def write_config(folder, *tables):
    config = {key: value for table in tables for key, value in table.items()}
    (folder / "config.json").write_text(json.dumps(config, indent=1))
    ends = {key: config[key] for key in ("bos_token_id", "eos_token_id")}
    (folder / "generation_config.json").write_text(json.dumps(ends))


def mistral(folder, size):
    folder.mkdir()
    source = Path(mistral_common.__file__).parent / "data" / "tokenizer.model.v1"
    shutil.copy(source, folder / "tokenizer.model")
    tokenizer = LlamaTokenizerFast.from_pretrained(str(folder), legacy=False)
    tokenizer.chat_template = TEMPLATE
    tokenizer.model_max_length = COMMON["max_position_embeddings"]
    tokenizer.save_pretrained(str(folder))
    (folder / "tokenizer.model").unlink()
    write_config(folder, LLAMA, COMMON, size)


def qwen(folder, tokenizer):
    folder.mkdir()
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(tokenizer / name, folder / name)
    told = json.loads((folder / "tokenizer_config.json").read_text())
    (folder / "chat_template.jinja").write_text(told["chat_template"])
    write_config(folder, QWEN3, COMMON, TINY)


def main(out, tokenizer):
    mistral(out / "tiny", TINY)
    mistral(out / "mid", MID)
    qwen(out / "qwen", tokenizer)


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))

"""Says what stands for image, model and tokenizer of a server, by digests."""

from pathlib import Path
from typing import Any

from loadgen.engine.textmodel import TextModel
from loadgen.files import file_digest, tree_digest

__all__ = ["EXTERNAL_IDENTITY", "cost_path", "engine_identity", "model_facts", "model_identity"]

EXTERNAL_IDENTITY = dict.fromkeys(
    ("image_digest", "model_revision", "tokenizer_revision"), "unverified: external server"
)


def cost_path() -> Path:
    """Return the step costs that the simulated engine uses unless told otherwise."""
    return Path(__file__).parent / "engine" / "data" / "cost-h200-graph.json"


def engine_identity(model: TextModel) -> dict[str, str]:
    """Return what stands for image, model and tokenizer where engines are simulated."""
    return {
        "image_digest": tree_digest(
            Path(__file__).parent / "engine", ("*.py", "*.json", "*.jinja")
        ),
        "model_revision": file_digest(cost_path()),
        "tokenizer_revision": file_digest(model.tokenizer_path),
    }


def model_identity(
    model: str, revision: str | None, tokenizer_revision: str | None
) -> dict[str, str]:
    """Return the revisions of a model: as pinned, else by the files of its folder."""
    folder = Path(model)
    files = {"model_revision": "config.json", "tokenizer_revision": "tokenizer.json"}
    found = {"model_revision": revision, "tokenizer_revision": tokenizer_revision or revision}
    for name, file in files.items():
        if found[name] is None and (folder / file).is_file():
            found[name] = f"{file} sha256:{file_digest(folder / file)}"
    return {name: value or f"unverified: {model} is not pinned" for name, value in found.items()}


def model_facts(model: str) -> dict[str, Any]:
    """Return the digest of a model folder's generation configuration, if it has one."""
    path = Path(model) / "generation_config.json"
    return {"generation_config_sha256": file_digest(path)} if path.is_file() else {}

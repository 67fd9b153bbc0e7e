"""Freezes prompts of real text, each of its class's exact token count.

The count is that of the final chat request, template and special tokens included, by the pinned
tokenizer. The text is the Python language reference that ships with every interpreter
(`pydoc_data.topics`, PSF licence), its paragraphs recombined by a seeded generator. Every prompt
opens with a tag of its own, so that no two share a first cache block.
"""

import hashlib
import random
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any, Protocol

from loadgen.files import read_bytes, read_json, write_bytes, write_json
from loadgen.record import BenchError, Prompt, canonical, digest, strict_json

__all__ = [
    "Corpus",
    "Prompt",
    "Shape",
    "TokenCounter",
    "body_of",
    "freeze_corpus",
    "load_corpus",
    "make_prompt",
    "reference_text",
]

GENERATOR = "sluicegate-corpus-1"
# A paragraph joined to another may merge or split tokens at the seam: stop short by this much
# and close the rest word by word, counting the whole request each time.
MARGIN_TOKENS = 12
MAX_ROUNDS = 40


class TokenCounter(Protocol):
    """Counts as the engine does."""

    def count_chat(self, body: Mapping[str, Any], /) -> int:
        """Return the prompt tokens of a chat request, template included."""

    def count_text(self, text: str, /, *, add_special_tokens: bool) -> int:
        """Return the tokens of bare text."""


@dataclass(frozen=True, slots=True)
class Shape:
    """How many prompts of a class to make, and of what size."""

    size_class: str
    prompt_tokens: int
    output_tokens: int
    count: int


@dataclass(frozen=True, slots=True)
class Corpus:
    """The prompts in file order, and the digest of the file."""

    prompts: tuple[Prompt, ...]
    sha256: str

    def by_class(self) -> dict[str, tuple[Prompt, ...]]:
        """Group the prompts by class, order kept."""
        names = dict.fromkeys(p.size_class for p in self.prompts)
        return {n: tuple(p for p in self.prompts if p.size_class == n) for n in names}


def reference_text() -> tuple[str, ...]:
    """Return the paragraphs of the Python language reference, in a fixed order."""
    joined = "\n\n".join(topics[name] for name in sorted(topics))
    pieces = (re.sub(r"[ \t]+", " ", p).strip() for p in re.split(r"\n\s*\n", joined))
    return tuple(dict.fromkeys(p for p in pieces if len(p) >= 40))


def body_of(text: str) -> dict[str, Any]:
    """Return the part of a chat request that decides its prompt tokens."""
    return {"messages": [{"role": "user", "content": text}]}


def _rng(*parts: object) -> random.Random:
    # A string seed is hashed by random itself in a way that is fixed across versions.
    return random.Random(":".join(map(str, parts)))


def _bare(counter: TokenCounter, text: str) -> int:
    return counter.count_text(text, add_special_tokens=False)


def _close_gap(text: str, gap: int, words: Iterator[str], counter: TokenCounter) -> str:
    """Append words that are worth about `gap` tokens, or drop as many from the end."""
    while gap < 0:
        text, _, last = text.rpartition(" ")
        gap += max(1, _bare(counter, f" {last}"))
    while gap > 0:
        word = next(words)
        worth = _bare(counter, f" {word}")
        if 0 < worth <= gap:
            text, gap = f"{text} {word}", gap - worth
    return text


def _endless_words(pieces: Sequence[str], rng: random.Random) -> Iterator[str]:
    while True:
        # Words of letters alone: their token count hardly depends on what stands beside them.
        yield from (w for w in rng.choice(pieces).split() if w.isalpha())


def make_prompt(
    shape: Shape, index: int, seed: int, pieces: Mapping[str, int], counter: TokenCounter
) -> Prompt:
    """Build prompt number `index` of a class with exactly the class's token count.

    Args:
        shape: the class and its size.
        index: which prompt of the class.
        seed: of the corpus.
        pieces: paragraphs and the token count of each.
        counter: the pinned tokenizer.

    Raises:
        BenchError: the exact count was not reached.
    """
    rng = _rng(seed, shape.size_class, index)
    tag = digest(f"{seed}:{shape.size_class}:{index}".encode())[:10]
    texts = list(pieces)
    text, room = f"{tag} is the mark of this extract.", shape.prompt_tokens - MARGIN_TOKENS
    room -= counter.count_chat(body_of(text))
    while (piece := rng.choice(texts)) and pieces[piece] + 2 <= room:
        text, room = f"{text}\n\n{piece}", room - pieces[piece] - 2
    words = _endless_words(texts, rng)
    for _ in range(MAX_ROUNDS):
        gap = shape.prompt_tokens - counter.count_chat(body_of(text))
        if gap == 0:
            sha256 = digest(text.encode())
            size = shape.prompt_tokens, shape.output_tokens
            return Prompt(shape.size_class, *size, text, sha256)
        text = _close_gap(text, gap, words, counter)
    raise BenchError(
        f"corpus: prompt {index} of class {shape.size_class} cannot be made exactly "
        f"{shape.prompt_tokens} tokens long; is the class smaller than the chat template?"
    )


def _row(prompt: Prompt) -> dict[str, Any]:
    return {
        "class": prompt.size_class,
        "prompt_tokens": prompt.prompt_tokens,
        "output_tokens": prompt.output_tokens,
        "sha256": prompt.sha256,
        "text": prompt.text,
    }


def _parse_row(line: bytes, name: str) -> Prompt:
    row = strict_json(line, name)
    try:
        prompt = Prompt(
            row["class"], row["prompt_tokens"], row["output_tokens"], row["text"], row["sha256"]
        )
    except (KeyError, TypeError) as error:
        raise BenchError(f"{name}: not a corpus line ({error!r})") from error
    if digest(prompt.text.encode()) != prompt.sha256:
        raise BenchError(f"{name}: the text does not match its sha256")
    return prompt


def load_corpus(path: Path) -> Corpus:
    """Read a frozen corpus and check every prompt against its digest.

    Raises:
        BenchError: unreadable, malformed or altered; the message names file and line.
    """
    data = read_bytes(path)
    rows = data.split(b"\n")[:-1]
    prompts = tuple(_parse_row(row, f"{path} line {n}") for n, row in enumerate(rows, start=1))
    return Corpus(prompts, digest(data))


def _inputs(shapes: Sequence[Shape], seed: int, pins: Mapping[str, str]) -> dict[str, Any]:
    source = hashlib.sha256("\n\n".join(reference_text()).encode()).hexdigest()
    return {
        "generator": GENERATOR,
        "seed": seed,
        "source_sha256": source,
        "shapes": [[s.size_class, s.prompt_tokens, s.output_tokens, s.count] for s in shapes],
        **pins,
    }


def _cached(path: Path, inputs_sha256: str) -> Corpus | None:
    manifest_path = path.with_suffix(".manifest.json")
    if not (path.is_file() and manifest_path.is_file()):
        return None
    manifest = read_json(manifest_path)
    if manifest.get("inputs_sha256") != inputs_sha256:
        return None
    corpus = load_corpus(path)
    return corpus if corpus.sha256 == manifest.get("corpus_sha256") else None


def freeze_corpus(
    path: Path,
    shapes: Sequence[Shape],
    seed: int,
    counter: TokenCounter,
    pins: Mapping[str, str],
) -> Corpus:
    """Write `corpus.jsonl` and its manifest, or reuse them if made from the same inputs.

    Args:
        path: where `corpus.jsonl` goes; the manifest lies beside it.
        shapes: the classes.
        seed: of the recombination.
        counter: the pinned tokenizer.
        pins: `tokenizer_sha256` and `chat_template_sha256`.

    Raises:
        BenchError: an exact count cannot be reached, or an existing corpus is damaged.
    """
    inputs = _inputs(shapes, seed, pins)
    inputs_sha256 = digest(canonical(inputs))
    if (cached := _cached(path, inputs_sha256)) is not None:
        return cached
    pieces = {p: _bare(counter, p) for p in reference_text()}
    prompts = tuple(
        make_prompt(shape, n, seed, pieces, counter) for shape in shapes for n in range(shape.count)
    )
    sha256 = write_bytes(path, b"".join(canonical(_row(p)) for p in prompts))
    manifest = {
        **inputs,
        "inputs_sha256": inputs_sha256,
        "corpus_sha256": sha256,
        "source": "Python language reference, pydoc_data.topics of the running interpreter",
        "licence": "PSF-2.0",
        "approved_by": "default corpus of the product; replace before real traffic is judged",
        "synthetic_length": True,
        "prefix_unique": True,
        "verified": "every final chat request re-encoded to its exact count",
    }
    write_json(path.with_suffix(".manifest.json"), manifest)
    return Corpus(prompts, sha256)

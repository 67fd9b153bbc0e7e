"""Freezes prompts of real text, each of its class's exact token count.

The count is that of the final chat request, template and special tokens included, by the pinned
tokenizer, counted anew for every finished prompt. The text is a user's own prompts, or else the
Python language reference that ships with every interpreter (`pydoc_data.topics`, PSF licence);
pieces are joined, and the last one cut, by a seeded generator. Every prompt opens with a tag of
its own, so that no two share more than one cache block beyond what the template puts before them.
"""

import hashlib
import random
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any, Protocol

from loadgen.files import read_bytes, read_json, write_bytes, write_json
from loadgen.record import BenchError, Prompt, canonical, digest, strict_json
from loadgen.sessions import (
    BLOCK_TOKENS,
    SharedCounter,
    one_each,
    session_of,
    session_shares,
    shared_tokens,
)
from loadgen.sweep_settings import Reuse
from loadgen.validators import check_validator

__all__ = [
    "Corpus",
    "Prompt",
    "Shape",
    "SourceText",
    "TokenCounter",
    "body_of",
    "freeze_corpus",
    "load_corpus",
    "make_prompt",
    "own_text",
    "reference_source",
    "reference_text",
]

GENERATOR = "sluicegate-corpus-2"
# A paragraph joined to another may merge or split tokens at the seam: stop short by this much
# and close the rest word by word, counting the whole request each time.
MARGIN_TOKENS = 12
MAX_ROUNDS = 40
# As many characters hold more tokens than a block and the template's head, with room to spare.
HEAD_CHARACTERS = 400


class TokenCounter(Protocol):
    """Counts as the engine does."""

    def count_chat(self, body: Mapping[str, Any], /) -> int:
        """Return the prompt tokens of a chat request, template included."""

    def count_text(self, text: str, /, *, add_special_tokens: bool) -> int:
        """Return the tokens of bare text."""

    def chat_ids(self, body: Mapping[str, Any], /) -> list[int]:
        """Return the prompt's token ids."""


@dataclass(frozen=True, slots=True)
class Shape:
    """How many prompts of a class to make, of what size, and which begin alike."""

    size_class: str
    prompt_tokens: int
    output_tokens: int
    count: int
    reuse: Reuse | None = None


@dataclass(frozen=True, slots=True)
class SourceText:
    """The pieces that prompts are made of, and what the manifest says of them."""

    pieces: tuple[str, ...]
    source: str
    licence: str
    approved_by: str


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


def reference_source() -> SourceText:
    """Return the text that is used where none is brought."""
    return SourceText(
        reference_text(),
        "Python language reference, pydoc_data.topics of the running interpreter",
        "PSF-2.0",
        "default corpus of the product; replace before real traffic is judged",
    )


def _piece(line: bytes, name: str) -> str:
    """Return a line's prompt, or its messages' texts joined."""
    row = strict_json(line, name)
    if isinstance(row, dict) and isinstance(row.get("prompt"), str):
        return str(row["prompt"])
    try:
        parts = [message["content"] for message in row["messages"]]
        flat = [p if isinstance(p, str) else "\n".join(part["text"] for part in p) for p in parts]
    except (KeyError, TypeError) as error:
        raise BenchError(f"{name}: neither 'prompt' nor 'messages' with text") from error
    return "\n\n".join(flat)


def own_text(path: Path, source: str, licence: str, approved_by: str) -> SourceText:
    """Read a user's JSONL of prompts or chat messages; empty lines and doubles are left out.

    Raises:
        BenchError: unreadable, malformed, or without any text; file and line are named.
    """
    lines = enumerate(read_bytes(path).splitlines(), start=1)
    found = (_piece(line, f"{path} line {n}").strip() for n, line in lines if line.strip())
    pieces = tuple(dict.fromkeys(text for text in found if text))
    if not any(word.isalpha() for text in pieces for word in text.split()):
        raise BenchError(f"{path}: holds no text")
    return SourceText(pieces, source, licence, approved_by)


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


def _cut(piece: str, tokens: int, room: int) -> str:
    """Return about `room` of a piece's tokens, ending at a word; a little less than more."""
    words = piece.split(" ")
    return " ".join(words[: len(words) * max(0, room) // max(1, tokens)])


def _endless_words(pieces: Sequence[str], rng: random.Random) -> Iterator[str]:
    while True:
        # Words of letters alone: their token count hardly depends on what stands beside them.
        yield from (w for w in rng.choice(pieces).split() if w.isalpha())


def make_prompt(
    shape: Shape,
    index: int,
    seed: int,
    pieces: Mapping[str, int],
    counter: TokenCounter,
    head: str = "",
) -> Prompt:
    """Build prompt number `index` of a class with exactly the class's token count.

    Args:
        shape: the class and its size.
        index: which prompt of the class.
        seed: of the corpus.
        pieces: paragraphs and the token count of each.
        counter: the pinned tokenizer.
        head: what it begins with, before its tag.

    Raises:
        BenchError: the exact count was not reached.
    """
    rng = _rng(seed, shape.size_class, index)
    tag = digest(f"{seed}:{shape.size_class}:{index}".encode())[:10]
    texts = list(pieces)
    text, room = f"{head}{tag} is the mark of this extract.", shape.prompt_tokens - MARGIN_TOKENS
    room -= counter.count_chat(body_of(text))
    while (piece := rng.choice(texts)) and pieces[piece] + 2 <= room:
        text, room = f"{text}\n\n{piece}", room - pieces[piece] - 2
    if (end := _cut(piece, pieces[piece], room - 2)) != "":
        text = f"{text}\n\n{end}"
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
    own = {"validator": prompt.validator, "session": prompt.session}
    return {
        **{k: v for k, v in own.items() if v is not None},
        "class": prompt.size_class,
        "prompt_tokens": prompt.prompt_tokens,
        "output_tokens": prompt.output_tokens,
        "sha256": prompt.sha256,
        "text": prompt.text,
    }


def _parse_row(line: bytes, name: str) -> Prompt:
    row = strict_json(line, name)
    try:
        size = row["prompt_tokens"], row["output_tokens"]
        told = row["text"], row["sha256"], row.get("validator"), row.get("session")
        prompt = Prompt(row["class"], *size, *told)
    except (KeyError, TypeError, AttributeError) as error:
        raise BenchError(f"{name}: not a corpus line ({error!r})") from error
    if prompt.validator is not None:
        check_validator(prompt.validator, name)
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


def _inputs(
    shapes: Sequence[Shape], seed: int, pins: Mapping[str, str], text: SourceText
) -> dict[str, Any]:
    reuse = {s.size_class: asdict(s.reuse) for s in shapes if s.reuse is not None}
    source = hashlib.sha256("\n\n".join(text.pieces).encode()).hexdigest()
    return {
        "generator": GENERATOR,
        "seed": seed,
        "source_sha256": source,
        "source": text.source,
        "licence": text.licence,
        "approved_by": text.approved_by,
        "shapes": [[s.size_class, s.prompt_tokens, s.output_tokens, s.count] for s in shapes],
        **({"reuse": reuse} if reuse else {}),
        **pins,
    }


def _shared_prefix_tokens(prompts: Sequence[Prompt], counter: TokenCounter) -> int:
    """Return the longest prefix that two prompts share beyond what the template begins with.

    Raises:
        BenchError: it is longer than a block, so that a prefix cache could answer part of it.
    """
    template = shared_tokens(counter.chat_ids(body_of("0")), counter.chat_ids(body_of("Z")))
    heads = sorted(counter.chat_ids(body_of(p.text[:HEAD_CHARACTERS])) for p in prompts)
    longest = max((shared_tokens(a, b) for a, b in pairwise(heads)), default=template)
    shared = max(0, longest - template)
    if shared > BLOCK_TOKENS:
        raise BenchError(
            f"corpus: two prompts share {shared} tokens at their beginning, more than a cache "
            f"block of {BLOCK_TOKENS}"
        )
    return shared


def _head(
    shape: Shape,
    session: int | None,
    seed: int,
    pieces: Mapping[str, int],
    counter: TokenCounter,
    made: dict[tuple[str, int], str],
) -> str:
    """Return what the prompts of a session begin with; made once, and kept in `made`."""
    if session is None or shape.reuse is None:
        return ""
    key = (shape.size_class, session)
    if key not in made:
        own = Shape(f"{shape.size_class} session", shape.reuse.shared_tokens, 1, 1)
        text = make_prompt(own, session, seed, pieces, SharedCounter(counter)).text
        made[key] = f"{text}\n\n"
    return made[key]


def _make_all(
    shapes: Sequence[Shape], seed: int, counter: TokenCounter, text: SourceText
) -> tuple[Prompt, ...]:
    pieces = {p: _bare(counter, p) for p in text.pieces}
    made: Counter[str] = Counter()
    heads: dict[tuple[str, int], str] = {}
    prompts = []
    for shape in shapes:
        for _ in range(shape.count):
            at = made[shape.size_class]
            session = None if shape.reuse is None else session_of(shape.reuse, at, seed)
            head = _head(shape, session, seed, pieces, counter, heads)
            prompt = make_prompt(shape, at, seed, pieces, counter, head)
            named = None if session is None else f"{shape.size_class}-{session}"
            prompts.append(replace(prompt, session=named))
            made[shape.size_class] += 1
    return tuple(prompts)


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
    text: SourceText | None = None,
) -> Corpus:
    """Write `corpus.jsonl` and its manifest, or reuse them if made from the same inputs.

    Args:
        path: where `corpus.jsonl` goes; the manifest lies beside it.
        shapes: how many prompts of which size, in order; a class may stand there more than once.
        seed: of the recombination.
        counter: the pinned tokenizer.
        pins: `tokenizer_sha256` and `chat_template_sha256`.
        text: what to make them of; without it the language reference.

    Raises:
        BenchError: an exact count cannot be reached, two prompts share a prefix, or an existing
            corpus is damaged.
    """
    text = text or reference_source()
    inputs = _inputs(shapes, seed, pins, text)
    inputs_sha256 = digest(canonical(inputs))
    if (cached := _cached(path, inputs_sha256)) is not None:
        return cached
    prompts = _make_all(shapes, seed, counter, text)
    between_tokens = _shared_prefix_tokens(one_each(prompts), counter)
    reuse = {s.size_class: s.reuse for s in shapes if s.reuse is not None}
    inside = session_shares(prompts, reuse, lambda p: counter.chat_ids(body_of(p.text)))
    sha256 = write_bytes(path, b"".join(canonical(_row(p)) for p in prompts))
    manifest = {
        **inputs,
        "inputs_sha256": inputs_sha256,
        "corpus_sha256": sha256,
        "synthetic_length": True,
        "shared_prefix_tokens": between_tokens,
        "prefix_unique": not inside,
        **({"session_prefix_tokens": inside} if inside else {}),
        "verified": "every final chat request re-encoded to its exact count",
    }
    write_json(path.with_suffix(".manifest.json"), manifest)
    return Corpus(prompts, sha256)

"""Decides which prompts of a class begin alike, and numbers what they have in common.

A session is a set of requests that share a prefix, as turns of a conversation or questions about
one document do. Which prompt belongs to which follows from the corpus's seed. Tokens are counted
in the final chat request, template included. Pure: no I/O, no clock.
"""

import random
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any, Protocol

from loadgen.engine.prefix_cache import block_keys
from loadgen.record import BenchError, Prompt
from loadgen.sweep_settings import Reuse

__all__ = [
    "BLOCK_TOKENS",
    "SharedCounter",
    "engine_keys",
    "numbered",
    "one_each",
    "prompt_keys",
    "session_of",
    "session_shares",
    "shared_tokens",
]

# Of the blocks that a trace's hash_ids number.
BLOCK_TOKENS = 16


class _Ids(Protocol):
    def chat_ids(self, body: Mapping[str, Any], /) -> list[int]:
        """Return the prompt's token ids."""

    def count_text(self, text: str, /, *, add_special_tokens: bool) -> int:
        """Return the tokens of bare text."""


def session_of(reuse: Reuse, index: int, seed: int) -> int | None:
    """Return the session of a class's prompt by its number, None for one that shares nothing.

    Of the first n prompts, n times `share` belong to sessions, to the nearest one below.
    """
    if int((index + 1) * reuse.share + 1e-9) == int(index * reuse.share + 1e-9):
        return None
    return random.Random(f"sluicegate-sessions-1:{seed}:{index}").randrange(reuse.sessions)


def shared_tokens(one: Sequence[int], other: Sequence[int]) -> int:
    """Return how many tokens two prompts have in common at their beginning."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((n for n, (a, b) in pairs if a != b), min(len(one), len(other)))


class SharedCounter:
    """Counts what two requests share that begin with a text and go on differently."""

    def __init__(self, counter: _Ids) -> None:
        self._counter = counter

    def chat_ids(self, body: Mapping[str, Any], /) -> list[int]:
        """Return the ids that such requests have in common."""
        own, other = (self._counter.chat_ids(_continued(body, end)) for end in ("0", "Z"))
        return own[: shared_tokens(own, other)]

    def count_chat(self, body: Mapping[str, Any], /) -> int:
        """Return their number."""
        return len(self.chat_ids(body))

    def count_text(self, text: str, /, *, add_special_tokens: bool) -> int:
        """Return the tokens of bare text."""
        return self._counter.count_text(text, add_special_tokens=add_special_tokens)


def _continued(body: Mapping[str, Any], end: str) -> Mapping[str, Any]:
    last = body["messages"][-1]
    return {**body, "messages": [{**last, "content": f"{last['content']}\n\n{end}"}]}


def one_each(prompts: Sequence[Prompt]) -> list[Prompt]:
    """Return the prompts of no session, and the first of each session."""
    first = {p.session or p.sha256: p for p in reversed(prompts)}
    return list(first.values())


def session_shares(
    prompts: Sequence[Prompt],
    reuse: Mapping[str, Reuse],
    ids_of: Callable[[Prompt], Sequence[int]],
) -> dict[str, int]:
    """Return by class the least number of tokens that two prompts of a session share.

    Raises:
        BenchError: it is not the number that was asked for, or up to a block more.
    """
    found = {}
    for name, own in reuse.items():
        least = _least_shared(prompts, name, ids_of)
        if least is None:
            continue
        if not own.shared_tokens <= least < own.shared_tokens + BLOCK_TOKENS:
            raise BenchError(
                f"corpus: prompts of a session of class {name} share {least} tokens, "
                f"not {own.shared_tokens}"
            )
        found[name] = least
    return found


def _least_shared(
    prompts: Iterable[Prompt], size_class: str, ids_of: Callable[[Prompt], Sequence[int]]
) -> int | None:
    """Return the fewest tokens that prompts of one session share; None where none are two."""
    sessions: dict[str, list[list[int]]] = {}
    for prompt in prompts:
        if prompt.size_class == size_class and prompt.session is not None:
            sessions.setdefault(prompt.session, []).append(list(ids_of(prompt)))
    pairs = (pair for ids in sessions.values() for pair in pairwise(sorted(ids)))
    return min((shared_tokens(*pair) for pair in pairs), default=None)


def prompt_keys(ids: Sequence[int]) -> tuple[Hashable, ...]:
    """Return a key for each block of a prompt, the last one full or not."""
    keys: tuple[Hashable, ...] = block_keys(ids, BLOCK_TOKENS)
    rest = ids[len(keys) * BLOCK_TOKENS :]
    return (*keys, (keys[-1] if keys else None, *rest)) if rest else keys


def numbered(prompts: Iterable[Sequence[Hashable]]) -> list[tuple[int, ...]]:
    """Return keys as numbers in the order in which they first appear, as Mooncake's traces do."""
    numbers: dict[Hashable, int] = {}
    return [tuple(numbers.setdefault(key, len(numbers)) for key in keys) for keys in prompts]


def engine_keys(hash_ids: Sequence[int], prompt_tokens: int, block_size: int) -> tuple[int, ...]:
    """Return the keys of a prompt's full blocks of an engine's size.

    Raises:
        BenchError: the engine's blocks are no multiple of the trace's.
    """
    if block_size % BLOCK_TOKENS:
        raise BenchError(
            f"cell arguments: block_size {block_size} is no multiple of {BLOCK_TOKENS}, of which "
            "the trace numbers the prompts' blocks"
        )
    many = block_size // BLOCK_TOKENS
    return tuple(hash_ids[: prompt_tokens // BLOCK_TOKENS][many - 1 :: many])

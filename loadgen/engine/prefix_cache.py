"""Decides which KV blocks a sequence holds where prompts share prefixes, as vLLM's V1 does it.

A full block is known by a key that stands for everything up to its end, so equal keys mean equal
prefixes. A sequence that is admitted takes over the longest run of known blocks, except that its
last token is always computed; the blocks it fills are known from the step that fills them. Blocks
have reference counts. What nobody holds stays known until its place is needed: places without a
key are taken first, then the block that has been free for the longest time. A sequence frees its
blocks from the last to the first, so that prefixes outlive what followed them.

Follows ``kv_cache_manager.py``, ``single_type_kv_cache_manager.py`` and ``block_pool.py`` of vLLM
0.32 for one group of full attention. Equal blocks that were computed side by side are kept apart,
as there. Units: tokens and blocks. Pure: no I/O, no clock.
"""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field

__all__ = ["PrefixCache", "block_keys"]

# The chain's beginning: any number, the same for all.
SEED = 0


def block_keys(ids: Sequence[int], block_size: int) -> tuple[int, ...]:
    """Return a key for each full block of token ids; equal keys mean equal ids up to its end."""
    keys, before = [], SEED
    for end in range(block_size, len(ids) + 1, block_size):
        before = hash((before, *ids[end - block_size : end]))
        keys.append(before)
    return tuple(keys)


@dataclass(slots=True, eq=False)
class _Holder:
    """A sequence's keys as far as they are known, and the blocks it holds, in order.

    ``full`` counts those of its blocks that have a key; ``serial`` makes the others' keys its own.
    """

    keys: Sequence[Hashable]
    serial: int
    blocks: list[int] = field(default_factory=list)
    full: int = 0

    def key(self, index: int) -> Hashable:
        """The key of a block: given, or nobody else's."""
        return self.keys[index] if index < len(self.keys) else (self.serial, index)


class PrefixCache:
    """The blocks of one engine. A sequence is known from ``add`` to ``drop``.

    The mutable state: who holds which blocks, how often each is held, the key of each and back,
    the count of free places without a key, and the free blocks that have one, oldest first.
    """

    def __init__(self, blocks: int, block_size: int) -> None:
        self._size = block_size
        self._holders: dict[int, _Holder] = {}
        self._count: dict[int, int] = {}
        self._key_of: dict[int, Hashable] = {}
        self._known: dict[Hashable, dict[int, None]] = {}
        self._unused = blocks
        self._idle: dict[int, None] = {}
        self._numbers = 0

    @property
    def free(self) -> int:
        """Blocks that nobody holds, known ones included."""
        return self._unused + len(self._idle)

    def add(self, seq_id: int, keys: Sequence[Hashable]) -> None:
        """Take notice of a sequence; ``keys`` are those of its full blocks that are known."""
        self._numbers += 1
        self._holders[seq_id] = _Holder(keys, self._numbers)

    def drop(self, seq_id: int) -> None:
        """Forget a sequence and free its blocks."""
        self.release(seq_id)
        del self._holders[seq_id]

    def hit_tokens(self, seq_id: int, total: int) -> int:
        """Return how many of a sequence's tokens need not be computed; never its last one."""
        return len(self._hits(seq_id, total)) * self._size

    def fits(self, seq_id: int, total: int, spare: int) -> bool:
        """Say whether all of a waiting sequence has room, ``spare`` blocks left free."""
        hits = self._hits(seq_id, total)
        return self._demand(total, hits) + spare <= self.free

    def admit(self, seq_id: int, total: int, through: int, spare: int) -> bool:
        """Give a waiting sequence what is known of it and room up to token ``through``."""
        hits = self._hits(seq_id, total)
        if self._demand(through, hits) + spare > self.free:
            return False
        holder = self._holders[seq_id]
        for block in hits:
            self._idle.pop(block, None)
            self._count[block] = self._count.get(block, 0) + 1
        holder.blocks.extend(hits)
        holder.full = len(hits)
        self._extend(holder, through)
        return True

    def extend(self, seq_id: int, through: int) -> bool:
        """Give a running sequence room up to token ``through``; False when too few are free."""
        holder = self._holders[seq_id]
        if self._blocks(through) - len(holder.blocks) > self.free:
            return False
        self._extend(holder, through)
        return True

    def release(self, seq_id: int) -> None:
        """Free a sequence's blocks, the last first; what has a key stays known."""
        holder = self._holders[seq_id]
        for block in reversed(holder.blocks):
            self._count[block] -= 1
            if self._count[block]:
                continue
            del self._count[block]
            if block in self._key_of:
                self._idle[block] = None
            else:
                self._unused += 1
        holder.blocks.clear()
        holder.full = 0

    def _hits(self, seq_id: int, total: int) -> list[int]:
        """The longest run of known blocks; of equal ones the first."""
        holder, found = self._holders[seq_id], []
        for index in range((total - 1) // self._size):
            same = self._known.get(holder.key(index))
            if same is None:
                break
            found.append(next(iter(same)))
        return found

    def _blocks(self, tokens: int) -> int:
        return -(-tokens // self._size)

    def _demand(self, tokens: int, hits: Sequence[int]) -> int:
        """Free blocks that are needed: new ones, and hits that nobody holds."""
        return max(0, self._blocks(tokens) - len(hits)) + sum(b in self._idle for b in hits)

    def _extend(self, holder: _Holder, through: int) -> None:
        for _ in range(self._blocks(through) - len(holder.blocks)):
            holder.blocks.append(self._new())
        for index in range(holder.full, through // self._size):
            self._know(holder.blocks[index], holder.key(index))
        holder.full = max(holder.full, through // self._size)

    def _new(self) -> int:
        if self._unused:
            self._unused -= 1
        else:
            self._evict(next(iter(self._idle)))
        self._numbers += 1
        self._count[self._numbers] = 1
        return self._numbers

    def _know(self, block: int, key: Hashable) -> None:
        self._key_of[block] = key
        self._known.setdefault(key, {})[block] = None

    def _evict(self, block: int) -> None:
        del self._idle[block]
        key = self._key_of.pop(block)
        same = self._known[key]
        del same[block]
        if not same:
            del self._known[key]

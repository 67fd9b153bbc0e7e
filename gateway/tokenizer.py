"""Counts prompt tokens exactly as the engine's tokenizer would, off the event loop.

Two encoders read one ``tokenizer.json``: ``tokenizers`` is the reference, ``kitoken`` about four
times as fast and used when both agree on a set of probes at start-up. Both release the
interpreter lock in the calls used here (``Tokenizer.encode`` does not, hence only batches).

A long text is counted in pieces cut where no token can span: between an ASCII letter or newline
and a following word, confirmed by the tokenizer's own pre-tokenizer. Pieces bound the work: a
count may stop once it exceeds ``stop_above``, and then says that it is a lower bound. Pieces also
bound what kitoken sees: its regular expressions give up, which ends the process, within runs of
about 167,000 characters that the tokenizer's pattern does not know, or 300,000 spaces (measured,
0.11.1). A text that can't be cut goes to the reference encoder whole.
"""

import asyncio
import heapq
import re
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple, Protocol, TypeVar

from kitoken import Kitoken
from tokenizers import Tokenizer

from gateway.domain import Outcome, Refused

__all__ = ["LARGE_BYTES", "Counted", "Counter", "CountingPool"]

T = TypeVar("T")

# Some texts of this size take half a second: one word, digits, ideographs without a break.
LARGE_BYTES = 256 << 10
_PIECE_CHARS = 32 << 10
_KITOKEN_CHARS = 32 << 10
_CUT_WINDOW_CHARS = 4096
# A word and the space before it form one pre-token, or two that part before the space.
_CUT = re.compile(r"(?<=[a-z])(?= [a-z])|(?<=[a-z.,;:]\n)(?=[A-Za-z])")
_PROBES = (
    "",
    "The quick brown fox jumps over 13 lazy dogs.\n\n  def f(x):\n\treturn x ** 2  # ok\n",
    "naïve café Straße \u00e9 e\u0301 中文测试 한국어 日本語テスト 🙂👩‍👩‍👧 \u200b\u00a0",
    "   leading and trailing   \r\n\r\n\t\t  ",
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa" * 8,
    "https://example.org/a_b?c=d&e=%20 {'k': [1, 2.5e-3, null]} <tag/> \\n \x00\x7f\ufffd",
)


class Counted(NamedTuple):
    """Tokens of one or several texts: their sum and the largest one.

    Not ``exact``: counting stopped above its bound, and the numbers are lower bounds.
    """

    tokens: int
    largest: int
    exact: bool = True


class _Encoder(Protocol):
    def __call__(self, text: str) -> int: ...


class Counter:
    """The tokenizer of one model. Its methods are safe to call from several threads.

    Raises:
        ValueError: the file is no tokenizer.
    """

    def __init__(self, path: Path) -> None:
        try:
            # Its loader raises bare Exception for a file that is no tokenizer.
            self._reference = Tokenizer.from_file(str(path))
        except Exception as error:
            raise ValueError(f"{path}: not a tokenizer.json: {error}") from error
        self._reference.no_truncation()
        self._reference.no_padding()
        self._added_specials = self._reference.num_special_tokens_to_add(False)
        fast = _agreeing_kitoken(path, self._count_by_reference, self._special_texts())
        self.method = "tokenizers" if fast is None else "kitoken"
        self._fast = fast or self._count_by_reference
        self._cuttable = _is_cuttable(self._reference)
        self._longest_token_bytes = _longest_token_bytes(self._reference)

    def __repr__(self) -> str:
        return f"<Counter method={self.method} cuttable={self._cuttable}>"

    def count(
        self, text: str, *, add_special_tokens: bool, stop_above: int | None = None
    ) -> Counted:
        """Tokens of ``text``, with what the tokenizer itself puts around a plain prompt or not.

        The count is exact, or exceeds ``stop_above`` and so gives the same refusal.
        """
        specials = self._added_specials if add_special_tokens else 0
        if len(text) <= _PIECE_CHARS:
            tokens = specials + self._fast(text)
            return Counted(tokens, tokens)
        if stop_above is not None and self._cuttable:
            least = -(-len(text.encode()) // self._longest_token_bytes)
            if least > stop_above:
                return Counted(least, least, exact=False)
        tokens = specials
        for piece, more in self._pieces(text):
            tokens += self._encode(piece)
            if more and stop_above is not None and tokens > stop_above:
                return Counted(tokens, tokens, exact=False)
        return Counted(tokens, tokens)

    def _encode(self, piece: str) -> int:
        fast = len(piece) <= _KITOKEN_CHARS
        return self._fast(piece) if fast else self._count_by_reference(piece)

    def _pieces(self, text: str) -> Iterator[tuple[str, bool]]:
        """The text in pieces, each with whether more follow."""
        start = 0
        while self._cuttable and len(text) - start > _PIECE_CHARS:
            cut = self._cut(text, start + _PIECE_CHARS)
            if cut is None:
                break
            yield text[start:cut], True
            start = cut
        yield text[start:], False

    def _cut(self, text: str, end: int) -> int | None:
        """The last place before ``end`` where the tokenizer parts the text whatever follows."""
        places = [m.start() for m in _CUT.finditer(text, end - _CUT_WINDOW_CHARS, end - 64)]
        for place in reversed(places[-8:]):
            around = text[place - 64 : place + 64]
            parts = self._reference.pre_tokenizer.pre_tokenize_str(around)
            if any(begin == 64 for _, (begin, _) in parts):
                return place
        return None

    def _count_by_reference(self, text: str) -> int:
        encoded = self._reference.encode_batch_fast([text], add_special_tokens=False)
        return len(encoded[0].ids)

    def _special_texts(self) -> list[str]:
        added = self._reference.get_added_tokens_decoder().values()
        return [f"a {token.content} b{token.content}" for token in list(added)[:64]]


def _agreeing_kitoken(
    path: Path, reference: _Encoder, special_texts: Sequence[str]
) -> _Encoder | None:
    try:
        kitoken = Kitoken.from_tokenizers_file(str(path))
    except (OSError, RuntimeError, ValueError):
        return None  # a kind of tokenizer it can't read: the reference serves

    def count(text: str) -> int:
        return len(kitoken.encode(text, True))

    texts = (*_PROBES, *special_texts)
    return count if all(count(text) == reference(text) for text in texts) else None


def _is_cuttable(tokenizer: Tokenizer) -> bool:
    """Whether a cut beside a space or newline can't meet a normaliser or an added token."""
    probe = "a word,\nand another"
    if tokenizer.pre_tokenizer is None:
        return False
    if tokenizer.normalizer is not None and tokenizer.normalizer.normalize_str(probe) != probe:
        return False
    starts = {begin for _, (begin, _) in tokenizer.pre_tokenizer.pre_tokenize_str(probe)}
    added = tokenizer.get_added_tokens_decoder().values()
    plain = not any(
        token.lstrip or token.rstrip or any(map(str.isspace, token.content)) for token in added
    )
    return plain and {1, 8, 11} <= starts


def _longest_token_bytes(tokenizer: Tokenizer) -> int:
    # A byte-level entry has one character per byte; others have at most four bytes each.
    added = (token.content for token in tokenizer.get_added_tokens_decoder().values())
    entries = (*tokenizer.get_vocab(with_added_tokens=False), *added)
    return max((len(entry.encode()) for entry in entries), default=1)


class CountingPool:
    """Threads that render and count, the shortest body first, with bounds on what waits.

    Bodies below ``inline_below_bytes`` are counted at once on the caller's thread. A body over
    ``LARGE_BYTES`` never takes the last free thread: some texts of that size take seconds, and the
    others must not wait for them. ``principal_share`` is the part of both bounds that one caller
    may hold. Close it with ``close``. One event loop uses it.
    """

    def __init__(
        self,
        threads: int,
        inline_below_bytes: int,
        max_requests: int,
        max_bytes: int,
        principal_share: float = 1.0,
    ) -> None:
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="count")
        self._free = threads
        self._kept_free = 1 if threads > 1 else 0
        self._inline_below_bytes = inline_below_bytes
        self._all = Bounds(max_requests, max_bytes)
        self._own = Bounds(
            max(1, int(principal_share * max_requests)), int(principal_share * max_bytes)
        )
        self._waiting: list[tuple[int, int, asyncio.Future[None]]] = []
        self._arrivals = 0
        self._held = (0, 0)
        self._held_by: dict[str, tuple[int, int]] = {}

    @property
    def held_requests(self) -> int:
        """Bodies that wait or are counted."""
        return self._held[0]

    @property
    def held_bytes(self) -> int:
        """The bytes of those."""
        return self._held[1]

    def at_once(self, size_bytes: int) -> bool:
        """Whether a body is so small that it is counted on the caller's thread."""
        return size_bytes < self._inline_below_bytes

    async def work(self, size_bytes: int, work: Callable[[], T], principal: str = "") -> T:
        """Do ``work`` on a body of ``size_bytes``: at once if it is small, else in a thread.

        Raises:
            Refused: ``ingress_full`` where too many requests or bytes wait, ``principal_limit``
                where too many of them are the caller's own; or what ``work`` does.
        """
        if self.at_once(size_bytes):
            return work()
        self._take(size_bytes, principal)
        try:
            await self._turn(size_bytes)
            done = self._pool.submit(work)
            # The thread stays busy after a cancelled caller has left: its own end frees it.
            loop = asyncio.get_running_loop()
            done.add_done_callback(lambda _: loop.call_soon_threadsafe(self._release))
            return await asyncio.wrap_future(done)
        finally:
            self._give_back(size_bytes, principal)

    def close(self) -> None:
        """End the threads after what they count now."""
        self._pool.shutdown(wait=True, cancel_futures=True)

    def _take(self, size_bytes: int, principal: str) -> None:
        held, own = _more(self._held, size_bytes), self._held_by.get(principal, (0, 0))
        if self._all.passed_by(held):
            raise Refused(Outcome.INGRESS_FULL, "Too many prompts are being counted.")
        own = _more(own, size_bytes)
        if self._own.passed_by(own):
            raise Refused(
                Outcome.PRINCIPAL_LIMIT, "Too many prompts of this key are being counted."
            )
        self._held, self._held_by[principal] = held, own

    def _give_back(self, size_bytes: int, principal: str) -> None:
        requests, size = self._held
        self._held = (requests - 1, size - size_bytes)
        requests, size = self._held_by.pop(principal)
        if requests > 1:
            self._held_by[principal] = (requests - 1, size - size_bytes)

    def _may_start(self, size_bytes: int) -> bool:
        return self._free > (self._kept_free if size_bytes > LARGE_BYTES else 0)

    async def _turn(self, size_bytes: int) -> None:
        if self._may_start(size_bytes):
            self._free -= 1
            return
        self._arrivals += 1
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        heapq.heappush(self._waiting, (size_bytes, self._arrivals, turn))
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self._release()
            raise

    def _release(self) -> None:
        self._free += 1
        while self._waiting and self._may_start(self._waiting[0][0]):
            turn = heapq.heappop(self._waiting)[2]
            if not turn.done():
                self._free -= 1
                turn.set_result(None)


class Bounds(NamedTuple):
    """The most requests and bytes that may be held."""

    requests: int
    bytes: int

    def passed_by(self, held: tuple[int, int]) -> bool:
        """Whether so many requests and bytes are too many."""
        return held[0] > self.requests or held[1] > self.bytes


def _more(held: tuple[int, int], size_bytes: int) -> tuple[int, int]:
    return (held[0] + 1, held[1] + size_bytes)

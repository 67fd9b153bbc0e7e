import asyncio
import json
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer

from gateway.classify import classify
from gateway.domain import Outcome, Refused
from gateway.tokenizer import LARGE_BYTES, Counted, Counter, CountingPool
from tests.gateway.minimal import tokenizer_path

SPECIAL = [
    "<｜begin▁of▁sentence｜>",
    "<｜User｜>",
    "<｜end▁of▁sentence｜>",
    "<|EOT|>",
    "<｜fim▁hole｜>",
]


@pytest.fixture(scope="module")
def counter() -> Counter:
    return Counter(tokenizer_path())


@pytest.fixture(scope="module")
def oracle() -> Tokenizer:
    return Tokenizer.from_file(str(tokenizer_path()))


def full(oracle: Tokenizer, text: str) -> int:
    return len(oracle.encode_batch([text], add_special_tokens=False)[0].ids)


pieces = (
    st.text(max_size=40)
    | st.sampled_from(
        [*SPECIAL, "<｜begin▁of", "｜>", "def f(x):\n    return x\n", "\r\n\r\n", "a.b"]
    )
    | st.text(alphabet=" \n\t\r\u00a0\u3000", max_size=60)
    | st.text(alphabet="ab", min_size=100, max_size=300)
    | st.text(alphabet="中文字日本語한국어👩‍💻é\u0301", max_size=40)
    | st.text(alphabet="0123456789.,-+e", max_size=40)
    | st.lists(st.sampled_from(["the", "Quick", "fox", "isn't", "x"]), max_size=30).map(" ".join)
)
texts = st.lists(pieces, max_size=12).map("".join)


def test_the_fast_encoder_is_in_use(counter: Counter) -> None:
    assert repr(counter) == "<Counter method=kitoken cuttable=True>"


@given(texts)
@settings(max_examples=400, deadline=None)
def test_the_fast_count_is_the_reference_count(
    counter: Counter, oracle: Tokenizer, text: str
) -> None:
    got = counter.count(text, add_special_tokens=False)
    assert got == Counted(full(oracle, text), full(oracle, text))


@pytest.fixture
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.tokenizer._PIECE_CHARS", 700)
    monkeypatch.setattr("gateway.tokenizer._CUT_WINDOW_CHARS", 500)


@pytest.mark.usefixtures("small_pieces")
def test_counting_in_pieces_or_stopping_early_never_changes_the_class(
    counter: Counter, oracle: Tokenizer
) -> None:
    cut = 0

    @given(st.lists(texts, min_size=1, max_size=30).map(" and ".join), st.integers(1, 800))
    @settings(max_examples=250, deadline=None)
    def check(text: str, most: int) -> None:
        nonlocal cut
        cut += sum(1 for _ in counter._pieces(text)) > 1
        expected = full(oracle, text)
        assert counter.count(text, add_special_tokens=False).tokens == expected
        got = counter.count(text, add_special_tokens=False, stop_above=most)
        assert got.tokens == expected if got.exact else most < got.tokens <= expected
        bounds = (("short", most // 2), ("long", most))
        assert named(got.tokens, bounds) == named(expected, bounds)

    check()
    assert cut > 50


def named(tokens: int, bounds: tuple[tuple[str, int], ...]) -> str:
    try:
        return classify(tokens, tokens, bounds, 10**9)
    except Refused as refused:
        return refused.outcome.value


def test_a_long_text_stops_early_and_says_so(counter: Counter) -> None:
    text = "The quick brown fox jumps over the lazy dog. " * 40_000
    got = counter.count(text, add_special_tokens=False, stop_above=16_384)
    assert not got.exact
    assert 16_384 < got.tokens < 40_000


@pytest.mark.parametrize("run", [" ", "\u00a0", "\n", "a", "中", "!", "1"])
def test_a_run_that_overflows_the_fast_encoder_never_reaches_it(
    counter: Counter, oracle: Tokenizer, run: str
) -> None:
    # kitoken aborts the whole process within such a run of spaces.
    text = run * 1_000_000
    got = counter.count(text, add_special_tokens=False)
    assert got.tokens == full(oracle, text)


def test_more_bytes_than_any_tokens_could_hold_need_no_counting(counter: Counter) -> None:
    got = counter.count(" " * 1_000_000, add_special_tokens=False, stop_above=1000)
    assert got == Counted(3907, 3907, exact=False)
    assert counter.count(" " * 1_000_000, add_special_tokens=False).tokens >= 3907


def with_bos(folder: Path) -> Path:
    data = json.loads(tokenizer_path().read_text())
    bos = data["added_tokens"][0]
    data["post_processor"] = {
        "type": "TemplateProcessing",
        "single": [
            {"SpecialToken": {"id": bos["content"], "type_id": 0}},
            {"Sequence": {"id": "A", "type_id": 0}},
        ],
        "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
        "special_tokens": {
            bos["content"]: {"id": bos["content"], "ids": [bos["id"]], "tokens": [bos["content"]]}
        },
    }
    path = folder / "tokenizer.json"
    path.write_text(json.dumps(data))
    return path


def test_plain_prompts_get_the_tokenizers_own_special_tokens(tmp_path: Path) -> None:
    path = with_bos(tmp_path)
    counter, oracle = Counter(path), Tokenizer.from_file(str(path))
    for text in ("", "hello", SPECIAL[0] + "hello"):
        expected = len(oracle.encode_batch([text], add_special_tokens=True)[0].ids)
        assert counter.count(text, add_special_tokens=True).tokens == expected
        plain = counter.count(text, add_special_tokens=False).tokens
        assert plain == expected - 1


def test_a_tokenizer_the_fast_encoder_reads_otherwise_is_left_to_the_reference(
    tmp_path: Path,
) -> None:
    data = json.loads(tokenizer_path().read_text())
    data["normalizer"] = {"type": "Replace", "pattern": {"String": "fox"}, "content": "of x"}
    data["added_tokens"][0]["single_word"] = True
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps(data))
    counter, oracle = Counter(path), Tokenizer.from_file(str(path))
    for text in ("The fox.", f"x{SPECIAL[0]}x", f" {SPECIAL[0]} "):
        got = counter.count(text, add_special_tokens=False)
        assert got.tokens == full(oracle, text)


@pytest.mark.usefixtures("small_pieces")
def test_a_text_is_cut_only_where_the_tokenizer_itself_parts_it(tmp_path: Path) -> None:
    data = json.loads(tokenizer_path().read_text())
    pattern = {"Regex": " ?new york| ?[a-z]+|[^a-z ]+| +"}
    data["pre_tokenizer"]["pretokenizers"] = [
        {"type": "Split", "pattern": pattern, "behavior": "Isolated", "invert": False},
        data["pre_tokenizer"]["pretokenizers"][-1],
    ]
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps(data))
    counter = Counter(path)
    parts = [piece for piece, _ in counter._pieces("new york in " * 300)]
    assert len(parts) > 3
    assert not any(piece.endswith("new") for piece in parts)


def test_where_the_encoders_disagree_the_reference_counts(
    monkeypatch: pytest.MonkeyPatch, oracle: Tokenizer
) -> None:
    class Wrong:
        @staticmethod
        def from_tokenizers_file(_: str) -> "Wrong":
            return Wrong()

        def encode(self, text: str, _: bool) -> list[int]:
            return [0] * len(text)

    monkeypatch.setattr("gateway.tokenizer.Kitoken", Wrong)
    counter = Counter(tokenizer_path())
    assert counter.method == "tokenizers"
    assert counter.count("hello world", add_special_tokens=False).tokens == 2


def test_a_file_that_is_no_tokenizer_is_named(tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    path.write_text("{}")
    with pytest.raises(ValueError, match="not a tokenizer"):
        Counter(path)


async def counted(stage: CountingPool, counter: Counter, text: str) -> Counted:
    return await stage.work(
        len(text.encode()), lambda: counter.count(text, add_special_tokens=False)
    )


async def test_short_texts_are_counted_at_once_and_long_ones_in_threads(counter: Counter) -> None:
    stage = CountingPool(threads=1, inline_below_bytes=100, max_requests=10, max_bytes=10_000)
    try:
        for text in ("hello", "hello " * 100):
            got = await counted(stage, counter, text)
            assert got == counter.count(text, add_special_tokens=False)
    finally:
        stage.close()


async def test_what_waits_to_be_counted_is_bounded_in_requests_and_bytes(counter: Counter) -> None:
    stage = CountingPool(threads=1, inline_below_bytes=0, max_requests=3, max_bytes=1000)
    try:
        held = [asyncio.ensure_future(counted(stage, counter, "x" * 300)) for _ in range(3)]
        await asyncio.sleep(0)
        with pytest.raises(Refused) as refused:
            await counted(stage, counter, "x")
        assert refused.value.outcome is Outcome.INGRESS_FULL
        await asyncio.gather(*held)
        with pytest.raises(Refused):
            await counted(stage, counter, "x" * 1001)
        assert (stage.held_requests, stage.held_bytes) == (0, 0)
    finally:
        stage.close()


async def test_the_shortest_text_is_counted_first(counter: Counter) -> None:
    stage = CountingPool(threads=1, inline_below_bytes=0, max_requests=10, max_bytes=10**9)
    order: list[int] = []

    async def one(size: int) -> None:
        await counted(stage, counter, "word " * size)
        order.append(size)

    try:
        await asyncio.gather(*(one(size) for size in (50_000, 4000, 20, 300)))
        assert order == [50_000, 20, 300, 4000]
    finally:
        stage.close()


async def test_a_caller_that_leaves_while_waiting_frees_its_turn(counter: Counter) -> None:
    stage = CountingPool(threads=1, inline_below_bytes=0, max_requests=10, max_bytes=10**9)
    try:
        tasks = [asyncio.ensure_future(counted(stage, counter, "word " * 50_000)) for _ in range(4)]
        await asyncio.sleep(0)
        for task in tasks[:3]:
            task.cancel()
        results = await asyncio.gather(*tasks, return_exceptions=True)
        assert [type(result) for result in results[:3]] == [asyncio.CancelledError] * 3
        assert results[3] == counter.count("word " * 50_000, add_special_tokens=False)
        assert (stage.held_requests, stage._free) == (0, 1)
    finally:
        stage.close()


async def test_a_caller_that_leaves_just_as_its_turn_comes_passes_the_turn_on(
    counter: Counter,
) -> None:
    stage = CountingPool(threads=1, inline_below_bytes=0, max_requests=10, max_bytes=10**9)
    try:
        stage._free = 0  # a thread of somebody else's, given back by the release below
        task = asyncio.ensure_future(counted(stage, counter, "word"))
        await asyncio.sleep(0)
        stage._release()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert (stage._free, stage.held_requests) == (1, 0)
    finally:
        stage.close()


async def test_a_large_text_never_takes_the_last_free_thread() -> None:
    stage = CountingPool(threads=2, inline_below_bytes=0, max_requests=10, max_bytes=10**9)
    gate, ended = threading.Event(), []

    async def one(name: str, size: int, work: Callable[[], object]) -> None:
        await stage.work(size, work, name)
        ended.append(name)

    try:
        large = [
            asyncio.ensure_future(one(f"large {n}", LARGE_BYTES + 1, gate.wait)) for n in range(2)
        ]
        await asyncio.sleep(0)
        await one("small", LARGE_BYTES, lambda: None)
        assert ended == ["small"]
        gate.set()
        await asyncio.gather(*large)
        assert (stage._free, stage.held_requests, stage.held_bytes) == (2, 0, 0)
    finally:
        gate.set()
        stage.close()


async def test_one_caller_holds_no_more_than_its_share_of_the_stage() -> None:
    stage = CountingPool(1, 0, max_requests=4, max_bytes=1000, principal_share=0.5)
    gate = threading.Event()
    try:
        held = [asyncio.ensure_future(stage.work(100, gate.wait, "a")) for _ in range(2)]
        await asyncio.sleep(0)
        with pytest.raises(Refused) as refused:
            await stage.work(100, gate.wait, "a")
        assert refused.value.outcome is Outcome.PRINCIPAL_LIMIT
        with pytest.raises(Refused) as too_large:
            await stage.work(501, gate.wait, "b")
        assert too_large.value.outcome is Outcome.PRINCIPAL_LIMIT
        other = asyncio.ensure_future(stage.work(100, lambda: "b", "b"))
        gate.set()
        assert await other == "b"
        await asyncio.gather(*held)
        assert (stage.held_requests, stage._held_by) == (0, {})
    finally:
        gate.set()
        stage.close()


RUNS = ["\x00", "\x1b", "\x7f", "\u200b", "\u200d", "\ue000", "\U000e0001", " ", "a", "\n", "中"]


def test_no_run_of_one_character_ends_the_process() -> None:
    """kitoken gives up on some runs by ending the process: so this counts in one of its own."""
    script = (
        "import sys; from pathlib import Path; from gateway.tokenizer import Counter\n"
        f"counter = Counter(Path({str(tokenizer_path())!r}))\n"
        f"for mark in {RUNS!r}:\n"
        "    for size in (32_768, 32_769, 200_000, 1_000_000):\n"
        "        assert counter.count(mark * size, add_special_tokens=False).tokens > 0\n"
        "print('whole')"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False, timeout=100
    )
    assert (done.returncode, done.stdout) == (0, "whole\n"), done.stderr[-500:]

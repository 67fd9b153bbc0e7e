"""The gateway's count is the engine's, for every kind of body and on two real tokenizers."""

from collections import Counter
from collections.abc import Callable

from tests.e2e.harness import Front
from tests.engine.bodies import bodies
from tests.engine.counts import TOKENIZERS, compare, table
from tests.engine.vllm import Engine


async def check(gateway: Front, tokenizer: str) -> None:
    rows = await compare(gateway, bodies())
    print(table({tokenizer: rows}))
    answered = [row for row in rows if row.error is None]
    assert [(row.body, row.counted, row.usage) for row in answered if not row.equal] == []
    # What was written to be answered is; of what chance made, a part is refused.
    made = [row for row in rows if not row.body.kind.startswith("by chance")]
    assert [(row.body, row.error) for row in made if row.error] == []
    assert len(made) >= 250
    assert len(answered) - len(made) >= 80
    assert min(Counter(row.body.kind for row in answered).values()) >= 8


async def test_the_count_before_is_the_usage_after_with_mistrals_tokenizer(
    first: Engine, before: Callable[..., Front]
) -> None:
    await check(before(first), TOKENIZERS["first"])


async def test_the_count_before_is_the_usage_after_with_qwens_tokenizer_and_template(
    qwen: Engine, before: Callable[..., Front]
) -> None:
    await check(before(qwen), TOKENIZERS["qwen"])


async def test_the_comparison_sees_another_tokenizer(
    first: Engine, qwen: Engine, before: Callable[..., Front]
) -> None:
    other = {"tokenizer": str(qwen.model / "tokenizer.json")}
    texts = [body for body in bodies() if body.kind == "chat: messages and texts"]
    rows = await compare(before(first, model=other), texts)
    assert sum(not row.equal for row in rows) > len(rows) / 2

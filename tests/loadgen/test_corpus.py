from itertools import combinations

import orjson
import pytest

from loadgen.corpus import (
    Shape,
    body_of,
    freeze_corpus,
    load_corpus,
    make_prompt,
    reference_text,
)
from loadgen.engine.textmodel import TextModel
from loadgen.files import read_json
from loadgen.record import BenchError

PINS = {"tokenizer_sha256": "t", "chat_template_sha256": "c"}
SHAPES = (Shape("short", 512, 128, 6), Shape("long", 8192, 128, 2))


@pytest.fixture(scope="module")
def model():
    return TextModel()


@pytest.fixture(scope="module")
def frozen(tmp_path_factory, model):
    path = tmp_path_factory.mktemp("corpus") / "corpus.jsonl"
    return path, freeze_corpus(path, SHAPES, 7, model, PINS)


def test_every_prompt_has_exactly_its_class_size_with_the_chat_template(frozen, model):
    _, corpus = frozen
    sizes = [(p.size_class, model.count_chat(body_of(p.text))) for p in corpus.prompts]
    assert sizes == [("short", 512)] * 6 + [("long", 8192)] * 2


def test_no_two_prompts_share_their_first_block_of_sixteen_tokens(frozen, model):
    _, corpus = frozen
    heads = [tuple(model.chat_ids(body_of(p.text))[:16]) for p in corpus.prompts]
    assert all(a != b for a, b in combinations(heads, 2))


def test_the_text_is_words_of_the_language_reference(frozen):
    _, corpus = frozen
    known = set(" ".join(reference_text()).split())
    words = corpus.prompts[-1].text.split()[7:]
    assert len(words) > 3000
    # The last word of all may be cut.
    assert [w for w in words[:-1] if w not in known] == []


def test_the_same_inputs_are_reused_and_other_inputs_are_not(frozen, model):
    path, corpus = frozen
    stamp = path.stat().st_mtime_ns
    assert freeze_corpus(path, SHAPES, 7, model, PINS) == corpus
    assert path.stat().st_mtime_ns == stamp


def test_another_seed_gives_another_corpus(tmp_path, model):
    shape = Shape("short", 128, 8, 2)
    path = tmp_path / "corpus.jsonl"
    one = freeze_corpus(path, [shape], 1, model, PINS)
    assert freeze_corpus(path, [shape], 2, model, PINS).sha256 != one.sha256
    assert freeze_corpus(path, [shape], 1, model, PINS) == one


def test_the_manifest_names_source_licence_and_approval(frozen):
    path, corpus = frozen
    manifest = read_json(path.with_suffix(".manifest.json"))
    assert manifest["corpus_sha256"] == corpus.sha256
    assert manifest["licence"] == "PSF-2.0"
    assert manifest["source"]
    assert manifest["approved_by"]
    assert manifest["tokenizer_sha256"] == "t"
    assert manifest["synthetic_length"] is True


def test_an_altered_text_is_found(frozen, tmp_path):
    path, _ = frozen
    rows = [orjson.loads(line) for line in path.read_bytes().splitlines()]
    rows[1]["text"] += "!"
    altered = tmp_path / "corpus.jsonl"
    altered.write_bytes(b"".join(orjson.dumps(r) + b"\n" for r in rows))
    with pytest.raises(BenchError, match=r"corpus.jsonl line 2: the text does not match"):
        load_corpus(altered)


def test_a_line_that_is_no_prompt_is_named(tmp_path):
    path = tmp_path / "corpus.jsonl"
    path.write_bytes(b'{"class":"short"}\n')
    with pytest.raises(BenchError, match="line 1: not a corpus line"):
        load_corpus(path)


def test_a_class_smaller_than_the_template_is_refused(model):
    with pytest.raises(BenchError, match=r"class tiny cannot be made exactly 3 tokens"):
        make_prompt(Shape("tiny", 3, 1, 1), 0, 1, {"a piece of text": 4}, model)

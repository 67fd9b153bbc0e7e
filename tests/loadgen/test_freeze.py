import json

import orjson
import pytest

from loadgen.corpus import body_of, load_corpus
from loadgen.engine.textmodel import TextModel
from loadgen.files import file_digest, read_json
from loadgen.freeze import freeze_sweep
from loadgen.record import BenchError
from loadgen.sweep_file import read_sweep
from loadgen.trace import decode_trace
from tests.loadgen.sweeps import write

CHATS = [
    {"prompt": "Please summarise the meeting about the zebra enclosure in three sentences."},
    {"messages": [{"role": "user", "content": "How does a heron catch fish in winter?"}]},
    {"messages": [{"role": "user", "content": [{"type": "text", "text": "Name two otters."}]}]},
]


def trace_of(folder, name):
    path = folder / f"trace-{name}.jsonl"
    return decode_trace(path.read_bytes(), name)


@pytest.fixture(scope="module")
def frozen(tmp_path_factory):
    base = tmp_path_factory.mktemp("sweep")
    plan = freeze_sweep(read_sweep(write(base)), base / "out")
    return base / "out", plan


def test_every_file_is_the_one_whose_digest_the_plan_names(frozen):
    folder, plan = frozen
    assert read_json(folder / "plan.json") == json.loads(json.dumps(plan))
    assert file_digest(folder / "corpus.jsonl") == plan["corpus_sha256"]
    assert file_digest(folder / "corpus.manifest.json") == plan["corpus_manifest_sha256"]
    assert len(plan["traces"]) == 6
    for name, told in plan["traces"].items():
        path = folder / f"trace-{name}.jsonl"
        assert file_digest(path) == told["sha256"]
        assert file_digest(path.with_suffix(".manifest.json")) == told["manifest_sha256"]
        assert read_json(path.with_suffix(".manifest.json"))["trace_sha256"] == told["sha256"]
    assert {r["trace_sha256"] for r in plan["runs"]} == {
        t["sha256"] for t in plan["traces"].values()
    }


def test_short_only_is_the_mixed_trace_with_its_longs_deleted(frozen):
    folder, _ = frozen
    mixed, short = trace_of(folder, "80-20-near-r1"), trace_of(folder, "short-near-r1")
    assert short == tuple(a for a in mixed if a.size_class == "short")
    assert len(short) < len(mixed)


def test_the_mix_is_exact_by_count_in_the_window(frozen):
    folder, _ = frozen
    observed = [a.size_class for a in trace_of(folder, "80-20-near-r2") if a.offset_us >= 1_000_000]
    assert (observed.count("short"), observed.count("long")) == (26, 6)


def test_prompts_for_warming_up_stand_in_no_trace(frozen):
    folder, plan = frozen
    used = {a.prompt_sha256 for name in plan["traces"] for a in trace_of(folder, name)}
    by_class = load_corpus(folder / "corpus.jsonl").by_class()
    for name, count in plan["warmup_prompts"].items():
        assert not used & {p.sha256 for p in by_class[name][-count:]}
    assert plan["warmup_prompts"] == {"short": 24, "long": 6}


def test_the_same_file_gives_the_same_bytes(frozen, tmp_path):
    folder, _ = frozen
    freeze_sweep(read_sweep(write(tmp_path)), tmp_path / "again")
    for path in folder.iterdir():
        assert path.read_bytes() == (tmp_path / "again" / path.name).read_bytes(), path.name


def test_no_file_but_the_corpus_holds_any_text(frozen):
    folder, _ = frozen
    texts = [p.text for p in load_corpus(folder / "corpus.jsonl").prompts]
    words = {w for text in texts for w in text.split() if len(w) > 12 and w.isalpha()}
    assert words
    for path in folder.iterdir():
        if path.name != "corpus.jsonl":
            held = path.read_text()
            assert [w for w in words if w in held] == [], path.name


def test_prompts_of_ones_own_are_cut_or_joined_to_the_exact_count(tmp_path):
    (tmp_path / "chats.jsonl").write_bytes(b"\n".join(map(orjson.dumps, CHATS)))
    named = '[corpus]\nfile = "chats.jsonl"\nsource = "test chats"\nlicence = "none"\n'
    path = write(tmp_path, swap={"[rates.80-20]": f'{named}approved_by = "me"\n[rates.80-20]'})
    freeze_sweep(read_sweep(path), tmp_path / "out")
    manifest = read_json(tmp_path / "out" / "corpus.manifest.json")
    assert [manifest[k] for k in ("source", "licence", "approved_by")] == [
        "test chats",
        "none",
        "me",
    ]
    model = TextModel()
    prompts = load_corpus(tmp_path / "out" / "corpus.jsonl").prompts
    assert {(p.size_class, model.count_chat(body_of(p.text))) for p in prompts} == {
        ("short", 96),
        ("long", 400),
    }
    assert sum("heron" in p.text for p in prompts) > len(prompts) / 2


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b'{"text": "x"}', r"chats.jsonl line 1: neither 'prompt' nor 'messages'"),
        (b'{"prompt": "  "}', "holds no text"),
    ],
)
def test_a_file_without_prompts_is_refused(tmp_path, line, reason):
    (tmp_path / "chats.jsonl").write_bytes(line)
    named = '[corpus]\nfile = "chats.jsonl"\nsource = "s"\nlicence = "l"\napproved_by = "a"\n'
    path = write(tmp_path, swap={"[rates.80-20]": f"{named}[rates.80-20]"})
    with pytest.raises(BenchError, match=reason):
        freeze_sweep(read_sweep(path), tmp_path / "out")


def test_a_recorded_trace_is_replayed_with_text_made_to_its_sizes(tmp_path):
    rows = "".join(f"{n},GPT-4,{90 + 40 * n},{n % 5 + 1},0,API log\n" for n in range(60))
    header = "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
    (tmp_path / "burst.csv").write_text(header + rows)
    recorded = 'replay = "burst.csv"\nformat = "burstgpt"'
    path = write(
        tmp_path,
        swap={"shares = { short = 0.8, long = 0.2 }": recorded, "near = 8.0": "near = 2.0"},
    )
    plan = freeze_sweep(read_sweep(path), tmp_path / "out")
    first, second = (trace_of(tmp_path / "out", f"80-20-near-r{n}") for n in (1, 2))
    assert [(a.input_tokens, a.output_tokens) for a in first[:3]] == [(90, 1), (130, 2), (170, 3)]
    assert [a.size_class for a in first[:2]] == ["short", "long"]
    assert first[-1].offset_us < 5_000_000
    assert second[0].input_tokens == min(90 + 40 * len(first), 400)
    model, texts = (
        TextModel(),
        {p.sha256: p.text for p in load_corpus(tmp_path / "out" / "corpus.jsonl").prompts},
    )
    for arrival in first:
        assert model.count_chat(body_of(texts[arrival.prompt_sha256])) == arrival.input_tokens
    manifest = read_json(tmp_path / "out" / "trace-80-20-near-r1.manifest.json")
    assert manifest["kind"] == "replay"
    assert manifest["recorded_sha256"] == file_digest(tmp_path / "burst.csv")
    assert plan["traces"]["short-near-r1"]["arrivals"] == sum(
        a.size_class == "short" for a in first
    )

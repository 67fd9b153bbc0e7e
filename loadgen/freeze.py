"""Writes what a sweep needs before its first run: corpus, traces with manifests, and the plan.

Everything follows from the sweep file and the seeds in it: the same file gives the same bytes.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from loadgen.corpus import Corpus, Shape, SourceText, body_of, freeze_corpus, own_text
from loadgen.engine.textmodel import TextModel
from loadgen.files import file_digest, read_bytes, write_bytes, write_json
from loadgen.formats_in import Replayed, read_recorded, replayed
from loadgen.record import Prompt, digest
from loadgen.run_folder import trace_path
from loadgen.sessions import BLOCK_TOKENS, numbered, prompt_keys
from loadgen.sweep_file import Sweep
from loadgen.sweep_plan import (
    Frozen,
    TraceKey,
    sweep_plan,
    trace_keys,
    trace_spec,
    warmup_prompts,
)
from loadgen.sweep_settings import SweepSettings
from loadgen.trace import (
    Arrival,
    assign,
    class_counts,
    draw,
    encode_trace,
    keep_classes,
    recorded_manifest,
    trace_manifest,
)

__all__ = ["corpus_inputs", "freeze_sweep", "preview", "text_model"]

Json = dict[str, Any]
# The template, the tag that tells prompts apart, and the words that close the gap.
LEAST_TOKENS = 64


def text_model(sweep: Sweep) -> TextModel:
    """Return tokenizer and chat template of the sweep's engines.

    Raises:
        FileNotFoundError: one of the named files is missing.
    """
    own = sweep.settings.tokenizer
    paths = [None if p is None else sweep.folder / p for p in (own.path, own.chat_template)]
    return TextModel(*paths)


def _text(sweep: Sweep) -> SourceText | None:
    own = sweep.settings.corpus
    if own.file is None:
        return None
    # The sweep file was refused without these three.
    told = own.source or "", own.licence or "", own.approved_by or ""
    return own_text(sweep.folder / own.file, *told)


@dataclass(frozen=True, slots=True)
class _Recordings:
    """The stretch of a recorded trace that each trace key replays, and the files' digests."""

    requests: Mapping[TraceKey, tuple[Replayed, ...]]
    digests: Mapping[str, str]


def _recordings(sweep: Sweep, keys: Sequence[TraceKey]) -> _Recordings:
    settings, times = sweep.settings, sweep.settings.intervals
    length_s = times.ramp_s + times.window_s
    bounds = {name: size.bound_tokens for name, size in settings.classes.items()}
    requests, digests = {}, {}
    for key in keys:
        mix = settings.mixes[key.mix]
        if mix.replay is None or mix.format is None:
            continue
        path = sweep.folder / mix.replay
        data = read_bytes(path)
        rate_per_s, skip_s = settings.rates[key.mix].named(key.rate), _skip_s(key, length_s)
        recorded = read_recorded(data, mix.format, str(path))
        sized = replayed(recorded, bounds, LEAST_TOKENS, rate_per_s, length_s, skip_s)
        requests[key], digests[key.mix] = sized, digest(data)
    return _Recordings(requests, digests)


def _skip_s(key: TraceKey, length_s: float) -> float:
    """Return where a round's stretch begins: each has the next one, so that rounds differ."""
    return 0.0 if key.repeat is None else (key.repeat - 1) * length_s


def _shapes(settings: SweepSettings, keys: Sequence[TraceKey]) -> list[Shape]:
    """Return enough prompts of each class for its largest trace, the warm-up's last."""
    most: Counter[str] = Counter()
    for key in keys:
        if settings.mixes[key.mix].shares:
            most |= Counter(class_counts(trace_spec(settings, key)))
    spare = warmup_prompts(settings)
    shapes = []
    for name, size in settings.classes.items():
        tokens, reuse = (size.prompt_tokens, size.output_tokens), settings.reuse.get(name)
        if reuse is None:
            shapes.append(Shape(name, *tokens, most[name] + spare[name]))
        else:  # what warms up belongs to no session, or it would warm the cache
            shapes += [Shape(name, *tokens, most[name], reuse), Shape(name, *tokens, spare[name])]
    return shapes


def _replay_shapes(recordings: _Recordings) -> Iterator[Shape]:
    for requests in recordings.requests.values():
        for request in requests:
            yield Shape(request.size_class, request.input_tokens, request.output_tokens, 1)


def _drawn_traces(
    sweep: Sweep, keys: Sequence[TraceKey], corpus: Corpus
) -> Iterator[tuple[TraceKey, tuple[Arrival, ...]]]:
    by_class = corpus.by_class()
    for key in keys:
        if sweep.settings.mixes[key.mix].shares:
            yield key, assign(draw(trace_spec(sweep.settings, key)), by_class)


def _replayed_traces(
    recordings: _Recordings, prompts: Sequence[Prompt]
) -> Iterator[tuple[TraceKey, tuple[Arrival, ...]]]:
    """Give each recorded request the prompt that was made to its size, in the same order."""
    made = iter(prompts)
    for key, requests in recordings.requests.items():
        yield key, tuple(_arrival(n, r, next(made)) for n, r in enumerate(requests))


def _arrival(seq: int, request: Replayed, prompt: Prompt) -> Arrival:
    size = request.input_tokens, request.output_tokens
    return Arrival(seq, request.size_class, request.offset_us, *size, prompt.sha256)


def _all_traces(
    sweep: Sweep, keys: Sequence[TraceKey], corpus: Corpus, recordings: _Recordings
) -> dict[TraceKey, tuple[Arrival, ...]]:
    """Return every trace; a derived one is its mix's trace with classes deleted."""
    recorded = sum(map(len, recordings.requests.values()))
    rest = Corpus(corpus.prompts[recorded:], corpus.sha256)
    traces = dict(_replayed_traces(recordings, corpus.prompts[:recorded]))
    traces |= dict(_drawn_traces(sweep, keys, rest))
    for key in keys:
        mix = sweep.settings.mixes[key.mix]
        if mix.derived_from is not None:
            whole = traces[TraceKey(mix.derived_from, key.rate, key.repeat)]
            traces[key] = keep_classes(whole, mix.keep)
    return traces


def _with_hash_ids(
    traces: Mapping[TraceKey, tuple[Arrival, ...]], corpus: Corpus, model: TextModel
) -> dict[TraceKey, tuple[Arrival, ...]]:
    """Number the blocks of every trace's prompts, so that it tells which begin alike."""
    used = {a.prompt_sha256 for trace in traces.values() for a in trace}
    keys = {
        p.sha256: prompt_keys(model.chat_ids(body_of(p.text)))
        for p in corpus.prompts
        if p.sha256 in used
    }
    told = {}
    for key, trace in traces.items():
        ids = numbered([keys[a.prompt_sha256] for a in trace])
        pairs = zip(trace, ids, strict=True)
        told[key] = tuple(replace(arrival, hash_ids=own) for arrival, own in pairs)
    return told


def _manifest(
    sweep: Sweep, key: TraceKey, trace: Sequence[Arrival], corpus: Corpus, recordings: _Recordings
) -> Json:
    settings, mix = sweep.settings, sweep.settings.mixes[key.mix]
    source = key if mix.derived_from is None else TraceKey(mix.derived_from, key.rate, key.repeat)
    told: Json = {"name": key.name, "mix_name": key.mix, "rate": key.rate, "repeat": key.repeat}
    if mix.derived_from is not None:
        told |= {"derived_from": source.name, "keep": list(mix.keep)}
    if settings.kind == "prefix_reuse":
        sessions = {a.session for a in trace} - {None}
        inside = sum(a.session is not None for a in trace)
        told |= {
            "hash_block_tokens": BLOCK_TOKENS,
            "sessions": len(sessions),
            "in_sessions": inside,
        }
    if source.mix in recordings.digests:
        told |= {"recorded_sha256": recordings.digests[source.mix]}
        rate_per_s = settings.rates[source.mix].named(key.rate)
        return told | recorded_manifest(rate_per_s, settings.intervals.ramp_s, trace, corpus.sha256)
    return told | trace_manifest(trace_spec(settings, source), trace, corpus.sha256)


def _write_trace(folder: Path, key: TraceKey, trace: Sequence[Arrival], manifest: Json) -> Json:
    path = trace_path(folder, key.name)
    return {
        "sha256": write_bytes(path, encode_trace(trace)),
        "manifest_sha256": write_json(path.with_suffix(".manifest.json"), manifest),
        "mix": key.mix,
        "rate": key.rate,
        "repeat": key.repeat,
        "arrivals": len(trace),
    }


def preview(sweep: Sweep) -> Json:
    """Return the plan as it would be, without digests: nothing is drawn, made or written."""
    traces = {key.name: {"sha256": ""} for key in trace_keys(sweep.settings)}
    frozen = Frozen({}, traces, sweep.baseline_args, sweep.baseline, sweep.rates_source)
    return sweep_plan(sweep.settings, frozen)


def corpus_inputs(folder: Path) -> dict[str, str]:
    """Return the digests of a folder's corpus and of its manifest, as a plan names them."""
    path = folder / "corpus.jsonl"
    manifest = file_digest(path.with_suffix(".manifest.json"))
    return {"corpus_sha256": file_digest(path), "corpus_manifest_sha256": manifest}


def freeze_sweep(sweep: Sweep, folder: Path) -> Json:
    """Write corpus, traces and `plan.json` into a folder; returns the plan.

    Raises:
        BenchError: an input is at fault; the message names it.
    """
    settings, model = sweep.settings, text_model(sweep)
    keys = list(trace_keys(settings))
    recordings = _recordings(sweep, keys)
    shapes = [*_replay_shapes(recordings), *_shapes(settings, keys)]
    pins = {
        "tokenizer_sha256": file_digest(model.tokenizer_path),
        "chat_template_sha256": file_digest(model.chat_template_path),
    }
    seed = settings.corpus.seed
    corpus = freeze_corpus(folder / "corpus.jsonl", shapes, seed, model, pins, _text(sweep))
    traces = _all_traces(sweep, keys, corpus, recordings)
    if settings.kind == "prefix_reuse":
        traces = _with_hash_ids(traces, corpus, model)
    written = {
        key.name: _write_trace(
            folder, key, traces[key], _manifest(sweep, key, traces[key], corpus, recordings)
        )
        for key in keys
    }
    inputs = {**corpus_inputs(folder), **pins}
    frozen = Frozen(inputs, written, sweep.baseline_args, sweep.baseline, sweep.rates_source)
    plan = sweep_plan(settings, frozen)
    write_json(folder / "plan.json", plan)
    return plan

"""The table of surfaces holds every one, and no path twice."""

from collections import Counter
from pathlib import Path

from gateway.domain import Surface
from gateway.sse import END_RULES
from gateway.surfaces import DEFAULT_SURFACES, SURFACES, BodyForm, ErrorForm


def test_every_surface_has_its_row_and_no_path_has_two() -> None:
    assert set(SURFACES) == set(Surface)
    paths = Counter(path for row in SURFACES.values() for path in row.paths)
    assert set(paths.values()) == {1}
    assert all(path.startswith("/") and not path.endswith("/") for path in paths)


def test_what_is_open_at_an_engine_without_its_key_is_asked_for_where_it_needs_it() -> None:
    # vLLM's API key guards only paths under /v1 (and some that are not served here).
    assert SURFACES[Surface.SCORE].paths[0] == "/v1/score"
    assert SURFACES[Surface.RERANK].paths[0] == "/v1/rerank"


def test_only_what_generates_streams_and_a_stream_has_an_end() -> None:
    for surface, row in SURFACES.items():
        assert row.generates == (surface in END_RULES)
        assert row.rule


def test_a_model_that_generates_text_does_not_serve_what_needs_another_kind() -> None:
    other = {"embeddings", "score", "rerank", "classify", "pooling", "transcriptions"}
    assert {surface.value for surface in Surface} - DEFAULT_SURFACES == other


def test_forms_of_bodies_and_errors() -> None:
    forms = {row.body for row in SURFACES.values()}
    assert forms == set(BodyForm)
    anthropic = {s for s, row in SURFACES.items() if row.errors is ErrorForm.ANTHROPIC}
    assert anthropic == {Surface.MESSAGES, Surface.COUNT_TOKENS}


def test_the_table_in_the_architecture_is_this_one() -> None:
    told = (Path(__file__).resolve().parents[2] / "ARCHITECTURE.md").read_text()
    for surface, row in SURFACES.items():
        paths = " ".join(f"`{path}`" for path in row.paths)
        assert f"| {surface} | {paths} | {row.rule} |" in told

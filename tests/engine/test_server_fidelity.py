"""The simulated server answers as vLLM's does: the same requests, the same shapes and metrics."""

from collections.abc import Iterator, Mapping
from typing import Any

import httpx
import pytest

from loadgen.engine.launch import EngineProcess, start_engine
from tests.engine.server_differences import ANSWERS, METRICS
from tests.engine.server_requests import KEY, REQUESTS
from tests.engine.server_shapes import apart, families, shape
from tests.engine.vllm import Engine

# What is a matter of time (how many tokens come in one event) is not the same every time.
TRIES = 3
KNOWN = {known.request: known.places for known in ANSWERS}

pytestmark = pytest.mark.timeout(600)


@pytest.fixture(scope="module")
def simulated(guarded: Engine, tmp_path_factory: pytest.TempPathFactory) -> Iterator[EngineProcess]:
    """The simulated engine with the real one's model, limits and key."""
    template = guarded.model / "chat_template.jinja"
    flags = (
        *("--tokenizer", str(guarded.model), "--chat-template", str(template)),
        *("--max-model-len", "9216", "--max-num-seqs", "16", "--max-num-batched-tokens", "2048"),
        *("--scheduling-policy", "priority", "--api-key", KEY, "--time-scale", "20"),
    )
    with start_engine(flags, tmp_path_factory.mktemp("simulated") / "engine.log") as engine:
        yield engine


@pytest.fixture(scope="module")
def client() -> Iterator[httpx.Client]:
    with httpx.Client(timeout=60.0, trust_env=False) as client:
        yield client


@pytest.fixture(scope="module")
def found(
    guarded: Engine, simulated: EngineProcess, client: httpx.Client
) -> dict[str, Mapping[str, Any]]:
    """What differs of each request's answer, every time."""

    def differing(name: str) -> Mapping[str, Any]:
        known = KNOWN.get(name, ())
        for _ in range(TRIES):
            ask = REQUESTS[name]
            seen = apart(shape(client, guarded.url, ask), shape(client, simulated.url, ask))
            if covered(seen, known) and covering(seen, known):
                break
        return seen

    return {name: differing(name) for name in REQUESTS}


def covered(seen: Mapping[str, Any], known: tuple[str, ...]) -> bool:
    """Whether all that differs is known to."""
    return all(path.startswith(known) for path in seen)


def covering(seen: Mapping[str, Any], known: tuple[str, ...]) -> bool:
    """Whether all that is known to differ does."""
    return all(any(path.startswith(place) for path in seen) for place in known)


@pytest.mark.parametrize("name", REQUESTS)
def test_an_answer_has_vllms_shape_but_for_what_is_listed(
    found: dict[str, Mapping[str, Any]], name: str
) -> None:
    new = {
        path: pair for path, pair in found[name].items() if not path.startswith(KNOWN.get(name, ()))
    }
    assert not new, "differs from vLLM, and is not listed"


@pytest.mark.parametrize("name", KNOWN)
def test_a_listed_difference_is_one(found: dict[str, Mapping[str, Any]], name: str) -> None:
    gone = [place for place in KNOWN[name] if not any(p.startswith(place) for p in found[name])]
    assert not gone, "no longer differs: take it off the list"


def test_the_metrics_are_vllms_but_for_those_listed(
    found: dict[str, Mapping[str, Any]],
    guarded: Engine,
    simulated: EngineProcess,
    client: httpx.Client,
) -> None:
    assert found  # both have been used
    real, own = (
        families(client.get(f"{url}/metrics").text) for url in (guarded.url, simulated.url)
    )
    differing = {name for name in real.keys() | own.keys() if real.get(name) != own.get(name)}
    assert {name for name in differing if not name.startswith(tuple(METRICS))} == set()
    gone = {known for known in METRICS if not any(name.startswith(known) for name in differing)}
    assert gone == set()
    assert {name for name in own.keys() - real.keys() if "cache_config_info" not in name} == set()


def test_a_difference_that_is_not_listed_is_found(guarded: Engine, client: httpx.Client) -> None:
    real = dict(shape(client, guarded.url, REQUESTS["chat, unknown model"]))
    assert apart(real, {**real, ".error.param": None}) == {".error.param": ("model", None)}
    gone = {path: value for path, value in real.items() if path != ".error.code"}
    assert apart(real, gone) == {".error.code": (404, "-")}

"""Real engines of the engine tests, each started once, and gateways before them.

Only what the chosen tests use is started, all at once at the first use of any. Tests marked
``last`` end the engines they are given: they run after all others.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.configs import Served, write_config
from tests.e2e.harness import Front, front
from tests.engine.vllm import Engine, begin, model, ready

SEATS = 4  # of ``first``
TOOLS = ("--enable-auto-tool-choice", "--tool-call-parser", "hermes")
# name -> model folder and flags beside the common ones.
ENGINES: Mapping[str, tuple[str, tuple[str, ...]]] = {
    # Honours priorities; few seats, so that they are soon taken.
    "first": (
        "tiny",
        (
            *("--scheduling-policy", "priority", "--max-num-seqs", f"{SEATS}"),
            *("--max-num-batched-tokens", "2048", "--kv-cache-memory-bytes", "64M"),
            *TOOLS,
        ),
    ),
    # First come, first served; the other tokenizer.
    "qwen": (
        "qwen",
        (
            *("--max-num-seqs", "8", "--max-num-batched-tokens", "2048"),
            *("--kv-cache-memory-bytes", "64M"),
            *TOOLS,
        ),
    ),
    # Behind a key, as the simulated server it is compared with.
    "guarded": (
        "tiny",
        (
            *("--scheduling-policy", "priority", "--max-num-seqs", "16", "--api-key", "engine-key"),
            *("--max-num-batched-tokens", "2048", "--kv-cache-memory-bytes", "64M"),
            *TOOLS,
        ),
    ),
    # Short of memory, with a bound of its own, and patient when told to end.
    "narrow": (
        "tiny",
        (
            *("--scheduling-policy", "priority", "--max-num-seqs", "32", "--block-size", "32"),
            *("--num-gpu-blocks-override", "304", "--kv-cache-memory-bytes", "64M"),
            *("--max-num-batched-tokens", "2048", "--max-num-queued-reqs", "20"),
            *("--shutdown-timeout", "60"),
        ),
    ),
    # To be killed.
    "victim": ("tiny", ("--max-num-seqs", "4", "--kv-cache-memory-bytes", "64M")),
}


def pytest_ignore_collect(config: pytest.Config) -> bool | None:
    """Leave these tests out unless they are asked for by their path."""
    asked = any("tests/engine" in argument for argument in config.args)
    return None if asked else True


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the tests that end engines last."""
    items.sort(key=lambda item: item.get_closest_marker("last") is not None)


@pytest.fixture
def anyio_backend() -> Any:
    return ("asyncio", {"use_uvloop": True})


@pytest.fixture(scope="session")
def begun(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, Engine]]:
    """All engines that the chosen tests use, starting."""
    folder = tmp_path_factory.mktemp("engines")
    used = {name for item in request.session.items for name in getattr(item, "fixturenames", ())}
    with ExitStack() as stack:
        found = {}
        for name in sorted(used & ENGINES.keys()):
            served, flags = ENGINES[name]
            found[name] = begin(model(served).parent, served, flags, folder / f"{name}.log")
            stack.callback(found[name].stop)
        yield found


@pytest.fixture(scope="session")
def first(begun: dict[str, Engine]) -> Engine:
    return ready(begun["first"])


@pytest.fixture(scope="session")
def qwen(begun: dict[str, Engine]) -> Engine:
    return ready(begun["qwen"])


@pytest.fixture(scope="session")
def guarded(begun: dict[str, Engine]) -> Engine:
    return ready(begun["guarded"])


@pytest.fixture(scope="session")
def narrow(begun: dict[str, Engine]) -> Engine:
    return ready(begun["narrow"])


@pytest.fixture(scope="session")
def victim(begun: dict[str, Engine]) -> Engine:
    return ready(begun["victim"])


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
    """Show the end of the engine's log beside what failed."""
    report = yield
    if report.failed:
        for name, value in getattr(item, "funcargs", {}).items():
            if isinstance(value, Engine):
                report.sections.append((f"engine {name}", value.tail))
    return report


# -- gateways --------------------------------------------------------------------------------


def served(engine: Engine, **more: Any) -> Served:
    """The model of an engine, with its own tokenizer and template."""
    facts = {
        "tokenizer": str(engine.model / "tokenizer.json"),
        "chat_template": str(engine.model / "chat_template.jinja"),
        "chat_template_kwargs": ["enable_thinking", "thinking", "reasoning_effort"],
        **more,
    }
    return Served([engine.url], max_model_len=9216, more=facts)


@pytest.fixture
def before(tmp_path: Path) -> Iterator[Callable[..., Front]]:
    """Start a gateway of a test's own before an engine."""
    with ExitStack() as stack:

        def start(engine: Engine, **changes: Any) -> Front:
            return stack.enter_context(gateway_before(engine, tmp_path / "gateway", **changes))

        yield start


def gateway_before(
    engine: Engine,
    folder: Path,
    grants: dict[str, dict[str, Any]] | None = None,
    model: Mapping[str, Any] | None = None,
    **changes: Any,
) -> Any:
    """A running gateway whose one model is the engine's; changes are laid over the base."""
    wide = {"long": {"max_prompt_tokens": 9216}}
    changes = {"size": wide, **changes}
    path, keys = write_config(
        folder, {"simulated": served(engine, **(model or {}))}, grants, **changes
    )
    return front(path, keys, [engine.url])

"""Engines and gateways of the end-to-end tests: started once, shared by all that change nothing."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from loadgen.engine.launch import EngineProcess, start_engine
from tests.e2e.configs import Served, write_config
from tests.e2e.harness import Front, front

Engines = Callable[..., list[EngineProcess]]

FAST = ("--time-scale", "20", "--sim-state", "--scheduling-policy", "priority")
SLOW = ("--time-scale", "0.3", "--sim-state")


@pytest.fixture
def anyio_backend() -> Any:
    return ("asyncio", {"use_uvloop": True})


@pytest.fixture(scope="session")
def engines(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engines]:
    """Start several engines at once; all are gone at the end of the session."""
    folder = tmp_path_factory.mktemp("engines")
    with ExitStack() as stack, ThreadPoolExecutor(2) as pool:
        count = 0

        def start(*flags: tuple[str, ...]) -> list[EngineProcess]:
            nonlocal count
            logs = [folder / f"{count + n}.log" for n in range(len(flags))]
            count += len(flags)
            return [stack.enter_context(e) for e in pool.map(start_engine, flags, logs)]

        yield start


@pytest.fixture(scope="session")
def shared_engines(engines: Engines) -> tuple[str, str]:
    """A fast engine and a slow one, for tests that leave them as they were."""
    fast, slow = engines(FAST, SLOW)
    return fast.url, slow.url


@pytest.fixture(scope="session")
def fast(shared_engines: tuple[str, str]) -> str:
    return shared_engines[0]


@pytest.fixture(scope="session")
def slow(shared_engines: tuple[str, str]) -> str:
    return shared_engines[1]


@pytest.fixture(scope="session")
def plain(fast: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Front]:
    """A roomy gateway with several models and keys before the fast engine."""
    folder = tmp_path_factory.mktemp("plain")
    nobody = "http://127.0.0.1:9"
    models = {
        "simulated": Served([fast], aliases=["default"]),
        "other": Served([fast]),
        "narrow": Served([fast], max_model_len=1000),
        "unserved": Served([nobody]),
    }
    grants: dict[str, dict[str, Any]] = {
        "everything": {"service_class": "interactive"},
        "batch": {"service_class": "batch"},
        "only-other": {"service_class": "interactive", "models": ["other"]},
        "only-plain": {"service_class": "interactive", "surfaces": ["completions"]},
    }
    path, keys = write_config(
        folder,
        models,
        grants,
        server={"max_body_bytes": 65536},
        service={"batch": {"engine_priority": 10}},
    )
    with front(path, keys, [fast]) as gateway:
        yield gateway


# One service class per cap, so that one gateway shows them all.
FLOWS: dict[str, dict[str, Any]] = {
    "roomy": {"predict": False},  # what it has to wait is up to the test
    "count": {"max_queued": 1},
    "tokens": {"max_queued_tokens": 60},
    "bytes": {"max_queued_bytes": 400},
    "ages": {"max_age_s": 1.2},
    "shares": {"max_queued": 4, "principal_share": 0.5},
}


@pytest.fixture(scope="session")
def tight(slow: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Front]:
    """A gateway that lets two sequences at once into the slow engine."""
    models = {
        "simulated": Served([slow]),
        "observed": Served([slow], admission="observe"),
        "open": Served([slow], admission="off"),
    }
    grants: dict[str, dict[str, Any]] = {name: {"service_class": name} for name in FLOWS}
    grants["holder"] = {"service_class": "roomy"}
    grants["lonely"] = {"service_class": "roomy", "max_in_flight": 1}
    grants["sharer"] = {"service_class": "shares"}
    path, keys = write_config(
        tmp_path_factory.mktemp("tight"),
        models,
        grants,
        service={name: {} for name in FLOWS},
        flow={
            "short": {name: {"principal_share": 1.0, **flow} for name, flow in FLOWS.items()},
            "long": {"roomy": FLOWS["roomy"]},
        },
        limits={"slots": 2},
    )
    with front(path, keys, [slow]) as gateway:
        yield gateway


@pytest.fixture
def started(tmp_path: Path) -> Iterator[Callable[..., Front]]:
    """Start gateways of a test's own."""
    with ExitStack() as stack:

        def start(
            models: dict[str, Served],
            up: tuple[str, ...],
            grants: dict[str, dict[str, Any]] | None = None,
            **changes: Any,
        ) -> Front:
            path, keys = write_config(tmp_path / "gateway", models, grants, **changes)
            return stack.enter_context(front(path, keys, up))

        yield start

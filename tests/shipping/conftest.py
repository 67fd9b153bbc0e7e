"""One gateway that really runs with the configuration shipped for Kubernetes, and has been used."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from loadgen.engine.launch import start_engine
from tests.e2e.harness import Front, front
from tests.shipping.shipped import configurations, localized

ENGINE = ("--time-scale", "10", "--sim-state", "--served-model-name", "demo")


@pytest.fixture
def anyio_backend() -> Any:
    return ("asyncio", {"use_uvloop": True})


@pytest.fixture(scope="session")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Front]:
    folder: Path = tmp_path_factory.mktemp("shipped")
    text = configurations()["deploy/kubernetes/base/configmap.yaml"]
    with start_engine(ENGINE, folder / "engine.log") as engine:
        config, keys = localized(text, folder, {"shared": engine.url})
        with front(config, keys, [engine.url]) as gateway:
            yield gateway

"""The gateway's reading of bodies against vLLM's own code, where that is installed."""

import sys

import pytest


def test_bodies_of_every_shape_are_rendered_as_the_engine_renders_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pytest.importorskip("vllm")
    from tests.oracle.__main__ import main  # noqa: PLC0415 - it needs vLLM's own packages

    monkeypatch.setattr(sys, "argv", ["tests.oracle", "--bodies", "40"])
    assert main() == 0

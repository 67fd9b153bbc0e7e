"""The gateway's reading of bodies is that of vLLM's own request models and converters."""

import re
import subprocess

from gateway.domain import Surface
from tests.e2e.harness import ROOT
from tests.engine.vllm import ENVIRONMENT, python
from tests.oracle.bodies import BODIES


def test_bodies_of_every_shape_are_rendered_as_the_engines_own_code_renders_them() -> None:
    """In vLLM's environment, without an engine."""
    done = subprocess.run(
        [python(), "-m", "tests.oracle", "--bodies", "60"],
        cwd=ROOT,
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.endswith("vLLM 0.32.0: 0 differences\n")
    for surface in (Surface.CHAT, Surface.MESSAGES, Surface.RESPONSES):
        same = re.findall(rf"(?m)^{surface} .*'same': (\d+)", done.stdout)
        assert sum(map(int, same)) >= 150
    assert set(BODIES) == {Surface.CHAT, Surface.MESSAGES, Surface.RESPONSES}

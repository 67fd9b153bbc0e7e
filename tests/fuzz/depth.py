"""How far a fuzz test searches: some seconds in a normal run, minutes in a long one.

``HYPOTHESIS_PROFILE=long python -m pytest tests/fuzz`` takes thirty times as many, fresh examples.
"""

import os

from hypothesis import HealthCheck, settings

__all__ = ["fuzz"]

_FACTOR = 30 if os.environ.get("HYPOTHESIS_PROFILE") == "long" else 1


def fuzz(examples: int) -> settings:
    """Settings for ``examples`` in a normal run."""
    return settings(
        max_examples=examples * _FACTOR,
        deadline=None,
        suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
    )

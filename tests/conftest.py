"""How hypothesis explores: the same examples in every normal run, more and new ones in a long one.

``HYPOTHESIS_PROFILE=long python -m pytest tests/gateway`` searches further, with fresh examples.
"""

import os

from hypothesis import settings

settings.register_profile("ci", derandomize=True, deadline=None)
settings.register_profile("long", max_examples=2000, deadline=None)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))

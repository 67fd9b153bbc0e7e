"""How hypothesis explores: the same examples in every normal run, more and new ones in a long one.

``HYPOTHESIS_PROFILE=long python -m pytest tests/gateway`` searches further, with fresh examples.
"""

import os
import signal

from hypothesis import settings

settings.register_profile("ci", derandomize=True, deadline=None)
settings.register_profile("long", max_examples=2000, deadline=None)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))

# A shell starts what it leaves in the background with SIGINT ignored, which children inherit: those
# that a test interrupts would go on.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

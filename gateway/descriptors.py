"""Decides how many callers may be connected, so that they can't use up all file descriptors.

A process without a free descriptor can't answer its operators nor reach its engines. Callers get
what is left when those have theirs.
"""

import resource

__all__ = ["raise_limit", "spare_connections"]

# Log, tokenizers, event loop, probes, and whatever libraries open.
_OWN = 64
_ENGINES_SHARE = 2


def raise_limit() -> int:
    """Take as many descriptors as the system lets this process have; returns how many."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard


def spare_connections(descriptors: int, admin_connections: int) -> int:
    """How many callers may connect: each may need an engine's connection too.

    At least one, however few descriptors there are.
    """
    if descriptors == resource.RLIM_INFINITY:
        return 1 << 30
    left = descriptors - _OWN - min(admin_connections, descriptors // 4)
    return max(1, left // _ENGINES_SHARE)

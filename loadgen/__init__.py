"""The bench: freezes workloads, replays them open-loop, measures, decides.

Never imports ``gateway``: the two meet only on the wire, so that a fault in one
cannot cancel itself out in the other.
"""

__all__: list[str] = []

"""How often a canary's watch tells arms apart that are alike, and how soon it sees real faults.

``python -m tests.simulation.watch_errors [WATCHES]`` plays watches of an hour with the product's
own rule: a look every second, requests that arrive at random on both arms and go wrong at random.
"""

import random
import statistics
import sys
from dataclasses import dataclass

from gateway.domain import Arm
from gateway.thresholds import Metric, Threshold
from gateway.watch import Contract, Tally, Verdict, Watch

HOUR_S = 3600
USUAL = Threshold(Metric.ERROR_RATE, 0.02, 0.01)
MARGIN_ALONE = Threshold(Metric.ERROR_RATE, None, 0.01)
NO_MARGIN = Threshold(Metric.ERROR_RATE, None, 0.0)


@dataclass(frozen=True)
class Traffic:
    """Requests per second and the part of them that fails, by arm."""

    candidate_per_s: float = 2.0
    stable_per_s: float = 18.0
    candidate_bad: float = 0.01
    stable_bad: float = 0.01


def seconds_to_abort(threshold: Threshold, traffic: Traffic, seconds: int, seed: int) -> int | None:
    """When one watch aborts; None if it never does."""
    draw = random.Random(seed)
    watch = Watch((threshold,), Contract(1.0, 1.0))
    arms = (
        (Arm.CANDIDATE, traffic.candidate_per_s, traffic.candidate_bad),
        (Arm.STABLE, traffic.stable_per_s, traffic.stable_bad),
    )
    for second in range(seconds):
        for arm, per_s, bad in arms:
            # As many as arrive in a second: a binomial of 4 trials per expected request.
            count = _hits(draw, round(4 * per_s), 0.25)
            watch.add(arm, Tally(count, _hits(draw, count, bad)), float(second))
        if watch.judge(float(second)).verdict is Verdict.BREACH:
            return second
    return None


def _hits(draw: random.Random, trials: int, chance: float) -> int:
    return sum(draw.random() < chance for _ in range(trials))


def aborts(threshold: Threshold, traffic: Traffic, watches: int, seconds: int) -> list[int]:
    """The seconds at which those of ``watches`` abort that do."""
    found = (seconds_to_abort(threshold, traffic, seconds, seed) for seed in range(watches))
    return [at_s for at_s in found if at_s is not None]


def main(watches: int) -> None:
    """Print both tables."""
    print(f"Arms that are alike: part of {watches} watches of an hour that abort")
    for name, threshold in (
        ("0.02,+0.01", USUAL),
        ("+0.01", MARGIN_ALONE),
        ("+0", NO_MARGIN),
    ):
        for bad in (0.001, 0.01, 0.05, 0.2):
            traffic = Traffic(candidate_bad=bad, stable_bad=bad)
            part = len(aborts(threshold, traffic, watches, HOUR_S)) / watches
            print(f"  error_rate={name:<11} both fail {bad:6.1%}: {part:.3f}")
    print("A candidate that fails more (stable 0.5 %): aborted within ten minutes, median seconds")
    for bad in (0.03, 0.05, 0.1, 0.3, 1.0):
        traffic = Traffic(candidate_bad=bad, stable_bad=0.005)
        found = aborts(USUAL, traffic, watches, 600)
        median = f"{statistics.median(found):.0f} s" if found else "-"
        print(f"  candidate fails {bad:6.1%}: {len(found) / watches:.3f}  {median}")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 200)

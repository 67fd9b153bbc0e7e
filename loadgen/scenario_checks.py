"""Decides whether a scenario held: what every one must hold, and what is its own.

Every scenario: admission stays within the limits in force, work that is not done is visible in
the gateway, every call ends in exactly one way, and afterwards nothing is held any more. The
checks read the record alone. Pure: no I/O, no clock.
"""

from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Any

from loadgen.record import Outcome
from loadgen.scenario import Check, Scenario, Story, Told

__all__ = ["checks_of"]

AGE_SLACK_S = 0.3  # what a timer and a stalled loop may add to the cap on waiting
REFUSED = {Outcome.REJECTED, Outcome.EXPIRED}
SDK_TRIES = 3
PHASES = "sluicegate_cancelled_total"
# What the gateway says of an engine that died: in mid-stream, before it began, with none left.
NAMED = {"stream_interrupted", "upstream_unreachable", "no_engine"}


def _flow(view: Mapping[str, Any]) -> tuple[str, str]:
    key = view.get("key", view)
    return key["size_class"], key["service_class"]


def _bounded(story: Story) -> Check:
    caps = {_flow(row): row["max_queued"] for row in story.limits["flows"]}
    over, deepest = set[str](), 0
    for sample in story.samples:
        for view in sample["flows"]:
            deepest = max(deepest, view["depth"])
            if view["depth"] > caps[_flow(view)]:
                over.add(f"queue {'.'.join(_flow(view))} {view['depth']}")
        for view in sample["engines"]:
            over |= set(_engine_over(view))
    said = f"at most {deepest} waited in a flow, in {len(story.samples)} looks"
    bad = "; ".join(sorted(over))
    return Check("bounded_admission", bool(story.samples) and not over, bad or said)


def _engine_over(view: Mapping[str, Any]) -> Iterator[str]:
    # KV memory is not among them: what answers grow by beyond their charge is no admission.
    for held, limit in (("slots", "slot_limit"), ("prefill_tokens", "prefill_limit")):
        if view[held] > view[limit]:
            yield f"{view['engine']} {held} {view[held]} > {view[limit]}"


def _open(story: Story, sent_before_s: float, ended_after_s: float) -> int:
    """How many requests were sent before and ended after these moments.

    Callers that read slowly are left out: the rest of an answer may wait in socket buffers.
    """
    return sum(
        t.sent_s is not None and t.sent_s < sent_before_s and t.end_s > ended_after_s
        for told in story.told
        for t in told.tries
        if told.call.manner != "slow"
    )


def _visible(story: Story) -> Check:
    """Every request that was open from the look before to the look after must be in a look.

    A look passes through the loops of both client and gateway, so that whatever had been sent
    before one began has been seen when the next is answered, however busy the machine is.
    """
    most, missing, looks = 0, 0, story.samples
    for before, sample, after in zip(looks, looks[1:], looks[2:], strict=False):
        sure = _open(story, before["begin_s"], after["at_s"])
        most = max(most, sure)
        missing = max(missing, sure - sample["running"])
    shown = max((sample["running"] for sample in looks), default=0)
    said = (
        f"up to {shown} requests shown; of {most} surely open at once, {max(0, missing)} were not"
    )
    return Check("visible_unfinished", shown > 0 and missing <= 0, said)


def _ages(story: Story) -> Check:
    """The oldest wait is shown whenever somebody waits, and stays within the flow's cap."""
    bad = set[str]()
    oldest = 0.0
    for sample in story.samples:
        for view in sample["flows"]:
            oldest = max(oldest, view["oldest_age_s"])
            if view["oldest_age_s"] > view["max_age_s"] + AGE_SLACK_S:
                bad.add(f"{'.'.join(_flow(view))} waited {view['oldest_age_s']:.2f} s")
    return Check("bounded_wait", not bad, "; ".join(sorted(bad)) or f"oldest {oldest:.2f} s")


def _all_ended(story: Story) -> Check:
    counts = story.outcomes()
    total = sum(counts.values())
    said = ", ".join(f"{n} {name}" for name, n in sorted(counts.items()))
    open_ended = counts[Outcome.UNFINISHED] + counts[Outcome.NOT_SENT]
    return Check("every_call_ended", total == len(story.told) and not open_ended, said)


def _at_rest(story: Story) -> Check:
    held = [
        f"{view['engine']}: {view['slots']} slots, {view['prefill_tokens']} prefill tokens, "
        f"{view['kv_tokens']} KV tokens"
        for view in story.rest["engines"]
        if view["slots"] or view["prefill_tokens"] or view["kv_tokens"]
    ]
    held += [f"flow {'.'.join(_flow(v))}: {v['depth']}" for v in story.rest["flows"] if v["depth"]]
    if story.rest["running"]:
        held.append(f"{story.rest['running']} requests")
    return Check("no_leaked_lease", not held, "; ".join(held) or "nothing is held any more")


# -- each scenario's own ---------------------------------------------------------------------


def _count(told: list[Told], *outcomes: Outcome) -> int:
    return sum(t.outcome in outcomes for t in told)


def _all_of(story: Story, role: str, name: str, *outcomes: Outcome) -> Check:
    told = story.of(role)
    good = _count(told, *outcomes)
    return Check(name, bool(told) and good == len(told), f"{good} of {len(told)} {role}")


def _some_refused(story: Story, role: str, name: str) -> Check:
    told = story.of(role)
    tries = [t for own in told for t in own.tries]
    refused = [t for t in tries if t.outcome in REFUSED]
    codes = sorted({str(t.code) for t in refused})
    ok = _count(told, Outcome.OK)
    said = f"{len(refused)} of {len(tries)} refused ({', '.join(codes)}), {ok} served"
    return Check(name, bool(refused) and ok > 0, said)


def _advice(story: Story) -> Check:
    refused = [t for told in story.told for t in told.tries if t.status in {429, 503}]
    bare = sum(t.retry_after_s is None for t in refused)
    said = f"{len(refused) - bare} of {len(refused)} refusals say when to come again"
    return Check("advice", bool(refused) and not bare, said)


def _seats_full(story: Story) -> Check:
    most = max(
        (v["slots"] / v["slot_limit"] for s in story.samples for v in s["engines"]), default=0
    )
    waited = max((v["depth"] for s in story.samples for v in s["flows"]), default=0)
    said = f"seats taken up to {most:.0%}, {waited} waited"
    return Check("seats_full", most >= 0.9 and waited > 0, said)


def _boundary(story: Story) -> Check:
    below, at, above = (story.of(role) for role in ("below", "at", "above"))
    good = _count([*below, *at], Outcome.OK) == len(below) + len(at)
    last = [t.tries[-1] for t in above]
    refused = all(t.status == 400 for t in last)
    codes = ", ".join(f"{t.status} {t.code}" for t in last)
    said = f"below {story.outcomes('below')}, at {story.outcomes('at')}, above {codes}"
    return Check("boundary", good and refused, said.replace("Counter", ""))


def _all_cancelled(story: Story) -> Check:
    leaving = [t for t in story.told if t.call.leaves]
    left = _count(leaving, Outcome.CANCELLED)
    return Check("all_cancelled", left == len(leaving), f"{left} of {len(leaving)} left")


def _phases(story: Story) -> Check:
    risen = {
        name.removeprefix(PHASES).strip("{}"): story.risen(name)
        for name in story.after
        if name.startswith(PHASES) and story.risen(name) > 0
    }
    said = ", ".join(f"{phase} {n:.0f}" for phase, n in sorted(risen.items()))
    return Check("phases", len(risen) >= 3, said or "no cancelled request was counted")


def _engines_emptied(story: Story) -> Check:
    peak = max((e.get("running", 0) for s in story.samples for e in s["engine_pages"]), default=0)
    left = [e.get("running", 0) + e.get("waiting", 0) for e in story.rest["engine_pages"]]
    said = f"engines ran up to {peak:.0f} at once, {sum(left):.0f} afterwards"
    return Check("engines_emptied", peak > 1 and not any(left), said)


def _preempted(story: Story) -> Check:
    rose = story.risen("engine preemptions")
    return Check("preempted", rose > 0, f"{rose:.0f} preemptions, of the engine as a whole")


def _lower_wait(story: Story) -> Check:
    views = [v for s in story.samples for v in s["flows"] if _flow(v) == ("long", "batch")]
    oldest = max((v["oldest_age_s"] for v in views), default=0.0)
    cap = max((v["max_age_s"] for v in views), default=0.0)
    lower = story.outcomes("lower")
    said = f"oldest lower wait {oldest:.2f} of {cap:.2f} s; {dict(lower)}"
    return Check("lower_wait", bool(views) and oldest <= cap, said)


def _broken_named(story: Story) -> Check:
    told = story.of("before")
    broken = [t.tries[-1] for t in told if t.outcome is not Outcome.OK]
    named = [t for t in broken if t.code in NAMED]
    codes = sorted({str(t.code) for t in broken})
    said = f"{len(broken)} of {len(told)} broken ({', '.join(codes)}), the rest served"
    return Check("broken_named", bool(broken) and len(named) == len(broken), said)


def _hang_visible(story: Story) -> Check:
    """While the engine hangs, what it holds stays in the gateway's account."""
    if len(story.faults) < 2:
        return Check("hang_visible", passed=False, said="the engine was not made to hang")
    begin_s, end_s = story.faults[0][0], story.faults[1][0]
    during = [s for s in story.samples if begin_s + AGE_SLACK_S < s["at_s"] < end_s]
    hung = [s["engines"][story.faults[0][1].engine]["slots"] for s in during]
    said = f"{max(hung, default=0)} seats shown as taken while it hung ({len(hung)} looks)"
    return Check("hang_visible", bool(hung) and max(hung) > 0, said)


def _slow_ended(story: Story) -> Check:
    slow, gone = story.of("slow"), story.of("gone")
    good = _count(slow, Outcome.OK), _count(gone, Outcome.CANCELLED, Outcome.OK)
    said = f"{good[0]} of {len(slow)} slow readers got all, {good[1]} of {len(gone)} vanished"
    return Check("slow_ended", good == (len(slow), len(gone)), said)


def _tries_bounded(story: Story) -> Check:
    tries = [len(t.tries) for t in story.told]
    said = f"{sum(tries)} requests of {len(tries)} callers, at most {max(tries)} each"
    return Check("tries_bounded", max(tries) <= SDK_TRIES and sum(tries) > len(tries), said)


_OWN: Mapping[str, Callable[[Story], Check]] = MappingProxyType(
    {
        "burst_refused": lambda s: _some_refused(s, "burst", "burst_refused"),
        "flood_refused": lambda s: _some_refused(s, "flood", "flood_refused"),
        "some_refused": lambda s: _some_refused(s, "sdk", "some_refused"),
        "advice": _advice,
        "shorts_served": lambda s: _all_of(s, "shorts", "shorts_served", Outcome.OK),
        "all_ok": lambda s: _all_of(s, "work", "all_ok", Outcome.OK),
        "after_served": lambda s: _all_of(s, "after", "after_served", Outcome.OK),
        "lower_served": lambda s: _all_of(s, "lower", "lower_served", Outcome.OK),
        "none_lost": lambda s: _all_of(s, "before", "none_lost", Outcome.OK),
        "seats_full": _seats_full,
        "boundary": _boundary,
        "all_cancelled": _all_cancelled,
        "phases": _phases,
        "engines_emptied": _engines_emptied,
        "preempted": _preempted,
        "lower_wait": _lower_wait,
        "broken_named": _broken_named,
        "hang_visible": _hang_visible,
        "slow_ended": _slow_ended,
        "tries_bounded": _tries_bounded,
    }
)


def checks_of(scenario: Scenario, story: Story) -> list[Check]:
    """Return every check of a scenario, those of all scenarios first."""
    common = (_bounded, _visible, _ages, _all_ended, _at_rest)
    return [check(story) for check in (*common, *(_OWN[name] for name in scenario.checks))]

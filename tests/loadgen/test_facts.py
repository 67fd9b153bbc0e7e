import math

import pytest

from loadgen.facts import class_facts, facts_from_values, pooled, views
from loadgen.record import Outcome
from tests.loadgen.test_analyse import LIMITS, record


def test_late_is_answered_validly_and_beyond_a_limit():
    facts = class_facts([record(), record(1, ttft_s=1.5), record(2, outcome=Outcome.ERROR)], LIMITS)
    assert (facts.offered, facts.ok, facts.met, facts.late, facts.failed) == (3, 2, 1, 1, 1)


def test_what_ends_after_the_window_is_counted_apart_and_still_counts():
    facts = class_facts([record(), record(1, ttft_s=0.9)], LIMITS, window_end_s=1.5)
    assert (facts.after_window, facts.met) == (1, 2)


def test_refused_is_what_was_turned_away_at_once_or_after_waiting():
    facts = class_facts([record(outcome=o) for o in Outcome], LIMITS)
    assert facts.refused == 2


def test_tokens_are_counted_beside_events_where_they_were_told():
    told = record(1, completion_tokens_reported=128)
    facts = class_facts([record(), told], LIMITS)
    row = views(facts, 1.0)
    assert (row["tokens_per_event"], row["output_tokens_per_ok"]) == (64.0, 128.0)
    assert "tokens_per_event" not in views(class_facts([record()], LIMITS), 1.0)


def test_responses_are_grouped_by_the_power_of_two_they_do_not_pass():
    lengths = (1, 2, 3, 64, 65)
    facts = class_facts([record(completion_tokens_reported=n) for n in lengths], LIMITS)
    assert {upper: len(rows) for upper, rows in facts.by_tokens.items()} == {
        1: 1,
        2: 1,
        4: 1,
        64: 1,
        128: 1,
    }


def test_rounds_are_pooled_without_losing_a_request():
    one = class_facts([record(), record(1, outcome=Outcome.REJECTED, outcome_code="full")], LIMITS)
    both = pooled([one, one])
    assert (both.offered, both.met, both.refused) == (4, 2, 2)
    assert sorted(both.values["ttft_s"]) == [0.1, 0.1, math.inf, math.inf]
    assert both.codes == {"rejected:full": 2}
    assert views(both, 2.0)["accepted_over_offered"] == 0.5
    assert pooled([]).offered == 0


def test_facts_of_bare_latencies_miss_where_any_limit_is_missed():
    values = {
        "ttft_s": [0.5, 0.5, 1.1, math.inf],
        "e2e_s": [1.0, 6.0, 1.0, math.inf],
        "max_stall_s": [0.1, 0.1, 0.1, math.inf],
    }
    facts = facts_from_values(values, LIMITS)
    assert (facts.offered, facts.met, facts.ok, facts.failed) == (4, 1, 3, 1)
    with pytest.raises(ValueError, match="shorter"):
        facts_from_values({**values, "e2e_s": [1.0]}, LIMITS)

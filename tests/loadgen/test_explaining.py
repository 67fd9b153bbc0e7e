import pytest

from loadgen.record import Outcome
from tests.loadgen.made import CALM, Behaviour, analysis


def test_the_explaining_table_has_waits_preemptions_and_their_absence():
    gateway = {"source": "gateway", "up": True, "oldest_age_s": {"long": 2.5}}
    engine = {"source": "engine", "engine": 0, "up": True, "kv_usage": 0.5}
    rows = [CALM, gateway] + [{**engine, "preemptions_total": n} for n in (0.0, 4.0)]
    told = analysis(samples=rows)["explain"]
    first = told["strata"][0]
    assert told["ages_recorded"] is True
    assert first["oldest_age_s"] == {"long": 2.5}
    assert first["preemptions"] == {"delta": 12.0, "restarts": 0, "runs": 3, "max_kv_usage": 0.5}
    assert first["classes"]["short"]["ttft_parts"]["mean"]["client_s"] == pytest.approx(1e-4)
    bare = analysis()["explain"]
    assert bare["fairness"] == "no fairness claim: no oldest ages recorded"
    assert "preemptions" not in bare["strata"][0]


def test_what_never_came_is_counted_as_starved():
    never = Behaviour(failed={"long": 0.5}, failure=Outcome.UNFINISHED)
    told = analysis({"B0": never})["explain"]["strata"][0]["classes"]["long"]
    assert told["starved"] == 120
    assert told["ttft_p95"]["value"] is None
    assert told["ttft_p95_accepted"]["value"] < 1.0

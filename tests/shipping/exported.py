"""What a gateway that has been used exports: each metric with its labels."""

from dataclasses import dataclass

from prometheus_client.parser import text_string_to_metric_families

from gateway.observe import METRICS
from tests.e2e.harness import Front, caller, chat, ids

# What has had no event has no series, and these need a fault or a canary to get one.
WITHOUT_SERIES = frozenset(
    {
        "sluicegate_would_refuse",
        "sluicegate_count_mismatches",
        "sluicegate_retries",
        "sluicegate_canary_aborts",
        "sluicegate_canary_watch",
    }
)


@dataclass(frozen=True, slots=True)
class Exported:
    """``labels``: of every name that a sample may have."""

    labels: dict[str, set[str]]


async def use(gateway: Front) -> None:
    """A caller of each kind: short and long, streamed and whole, refused, and gone."""
    body = {"model": "demo"}
    for _ in range(3):
        async with gateway.stream(chat(max_tokens=8, **body)) as stream:
            assert await stream.rest()
    for tokens in (50, 5000):
        answer = await gateway.ask(ids(tokens, **body), "/v1/completions", key="batch")
        assert answer.status_code == 200, answer.text
    assert (await gateway.ask(chat(model="nobody-has-this"))).status_code == 404
    endless = chat(max_tokens=2000, ignore_eos=True, **body)
    async with gateway.stream(endless) as stream:
        await stream.next()


async def exported(gateway: Front) -> Exported:
    """Use the gateway, then read its metrics page."""
    await use(gateway)
    await gateway.at_rest()
    async with caller() as client:
        page = (await client.get(f"{gateway.admin_url}/metrics")).text
    labels: dict[str, set[str]] = {}
    for family in text_string_to_metric_families(page):
        if not family.samples:
            assert family.name in WITHOUT_SERIES, f"{family.name} was not counted"
            kind = METRICS[family.name]
            name = family.name + ("_total" if kind.kind == "counter" else "")
            labels[name] = set(kind.labels)
        for sample in family.samples:
            labels.setdefault(sample.name, set()).update(sample.labels)
    return Exported(labels)

"""Decides whether a result may pass a pipeline's gate, and words that for people and machines.

The gate is on what would serve: the baseline, or what the verdict names. A contract that is proved
to fail there fails the gate; one that is undecided is skipped, as JUnit calls it, because lack of
proof is no failure; the verdict itself has to be among those accepted. Pure: no I/O, no clock.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from xml.etree import ElementTree as ET

__all__ = ["VERDICTS", "Check", "GateResult", "junit", "pass_gate"]

Json = Mapping[str, Any]
VERDICTS = ("retain", "retune", "isolate", "capacity", "inconclusive", "invalid", "none")
# What XML 1.0 cannot hold; a reason may quote what a server said.
UNPRINTABLE = dict.fromkeys((*set(range(32)) - {9, 10, 13}, 0xFFFE, 0xFFFF), "\ufffd")


@dataclass(frozen=True, slots=True)
class Check:
    """One line of the gate: passed, failed or skipped, and why."""

    group: str
    name: str
    state: str
    why: str = ""


@dataclass(frozen=True, slots=True)
class GateResult:
    """What was checked, for which verdict."""

    verdict: str
    served: str
    checks: Sequence[Check] = field(default_factory=tuple)

    @property
    def passed(self) -> bool:
        """Whether nothing failed."""
        return all(check.state != "failed" for check in self.checks)

    def as_json(self) -> dict[str, Any]:
        """Return the result as JSON."""
        return {
            "kind": "gate",
            "verdict": self.verdict,
            "served": self.served,
            "passed": self.passed,
            "checks": [
                {"group": c.group, "name": c.name, "state": c.state, "why": c.why}
                for c in self.checks
            ],
        }


def _verdict(decision: Json, accepted: Sequence[str]) -> Check:
    word = decision["verdict"].partition("(")[0]
    state = "passed" if word in accepted else "failed"
    said = "; ".join((f"accepted are {', '.join(accepted)}", *decision["reasons"]))
    return Check("verdict", decision["verdict"], state, "" if state == "passed" else said)


def _deployable(decision: Json) -> Check:
    state = "passed" if decision["deployable"] else "failed"
    return Check("verdict", "deployable", state, "; ".join(decision.get("not_deployable", ())))


def _complete(analysis: Json) -> Check:
    lost = [f"{run_id} is missing" for run_id in analysis.get("missing", ())]
    faulty = [r for r in analysis["runs"] if r["faults"]]
    lost += [f"{r['run_id']}: {'; '.join(r['faults'])}" for r in faulty]
    return Check("evidence", "every run is there and valid", "failed" if lost else "passed",
                 "; ".join(lost))  # fmt: skip


def _served(analysis: Json, decision: Json) -> str:
    named = decision.get("named")
    units = {cell["cell_id"] for cell in analysis.get("cells", ())}
    return str(named) if named in units else str(analysis.get("base", ""))


STATES = {"pass": "passed", "fail": "failed", "undecided": "skipped"}


def _contracts(analysis: Json, served: str) -> Iterable[Check]:
    for row in analysis.get("strata", ()):
        if row["gate"] and row["cell_id"] == served:
            name = f"{row['size_class']} at {row['mix']} {row['rate']}"
            yield Check(f"contract.{served}", name, STATES[row["state"]], row["why"])


def _guards(analysis: Json, served: str) -> Iterable[Check]:
    for row in analysis.get("comparisons", ()):
        if row["cell_id"] == served:
            for name, rail in row["guardrails"].items():
                said = (
                    f"bound {rail['bound']:.4g}, limit {rail['limit']:.4g}"
                    if "bound" in rail
                    else ""
                )
                state = "passed" if rail["held"] else "failed"
                yield Check(f"guardrail.{served}", name, state, said)


def pass_gate(
    analysis: Json, decision: Json, accepted: Sequence[str], *, deployable: bool = False
) -> GateResult:
    """Check a result.

    Args:
        analysis: of any kind.
        decision: that rests on it.
        accepted: verdicts, without their brackets.
        deployable: whether evidence that may not be deployed fails.
    """
    served = _served(analysis, decision)
    checks = [_verdict(decision, accepted), _complete(analysis)]
    if deployable:
        checks.append(_deployable(decision))
    # Where the baseline fails, a candidate may be named that was not shown harmless beside it.
    guarded = decision.get("rule") == 3 and _base_passes(analysis)
    checks += [*_contracts(analysis, served), *(_guards(analysis, served) if guarded else ())]
    return GateResult(decision["verdict"], served, checks)


def _base_passes(analysis: Json) -> bool:
    return any(c["cell_id"] == analysis["base"] and c["state"] != "fail" for c in analysis["cells"])


def _count(checks: Sequence[Check], state: str) -> str:
    return str(sum(check.state == state for check in checks))


def _case(suite: ET.Element, check: Check) -> None:
    text = check.why.translate(UNPRINTABLE)
    case = ET.SubElement(suite, "testcase", classname=f"sluicegate.{check.group}", name=check.name)
    case.set("time", "0")
    if check.state == "failed":
        ET.SubElement(case, "failure", message=text or "failed", type="gate").text = text
    elif check.state == "skipped":
        ET.SubElement(case, "skipped", message=text)
    elif text:
        ET.SubElement(case, "system-out").text = text


def junit(result: GateResult) -> bytes:
    """Return the result as JUnit's XML, which pipelines read."""
    counts = {
        "tests": str(len(result.checks)),
        "failures": _count(result.checks, "failed"),
        "skipped": _count(result.checks, "skipped"),
        "errors": "0",
        "time": "0",
    }
    root = ET.Element("testsuites", {"name": "sluicegate bench gate", **counts})
    suite = ET.SubElement(root, "testsuite", {"name": f"verdict {result.verdict}", **counts})
    for check in result.checks:
        _case(suite, check)
    ET.indent(root)
    data: bytes = ET.tostring(root, encoding="utf-8", xml_declaration=True)
    return data + b"\n"

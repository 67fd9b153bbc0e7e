"""The image's recipe, as far as it can be read; ``make image-test`` builds and runs it."""

import re

from gateway.admin_client import ADMIN_URL
from tests.e2e.harness import ROOT
from tests.shipping.shipped import one

RECIPE = (ROOT / "Dockerfile").read_text()
FINAL = RECIPE[RECIPE.rindex("\nFROM ") :]


def test_the_base_is_an_argument_and_what_it_runs_comes_from_the_builder() -> None:
    assert re.findall(r"^FROM (.+)$", RECIPE, re.MULTILINE) == ["${BASE} AS builder", "${BASE}"]
    assert "ARG BASE=python:3.12-slim" in RECIPE
    assert "COPY --from=builder" in FINAL
    assert "pip" not in FINAL
    assert "apt" not in FINAL


def test_every_package_is_locked_by_its_hash() -> None:
    builder = RECIPE[: RECIPE.rindex("\nFROM ")].replace("\\\n", " ")
    steps = [s for line in builder.splitlines() if line[:4] == "RUN " for s in line.split("&&")]
    installs = [step for step in steps if re.search(r"bin/pip .*\b(install|wheel)\b", step)]
    assert len(installs) == 4
    assert all("--require-hashes" in i or "--no-index" in i for i in installs)
    for name in ("runtime", "bench", "build"):
        lock = (ROOT / f"requirements/{name}.txt").read_text()
        pinned = re.findall(r"^[\w.-]+==", lock, re.MULTILINE)
        assert len(pinned) > 3
        assert lock.count("--hash=sha256:") >= len(pinned)
        assert "://" not in lock


def test_the_locks_agree_with_each_other() -> None:
    found: dict[str, set[str]] = {}
    for name in ("runtime", "bench", "build", "dev"):
        lock = (ROOT / f"requirements/{name}.txt").read_text()
        for package, version in re.findall(r"^([\w.-]+)==(\S+)", lock, re.MULTILINE):
            found.setdefault(package, set()).add(version)
    assert {p: v for p, v in found.items() if len(v) > 1} == {}


def test_the_user_is_a_number_that_the_pod_has_too() -> None:
    user = re.findall(r"^USER (\d+):(\d+)$", FINAL, re.MULTILINE)
    security = one("Deployment")["spec"]["template"]["spec"]["securityContext"]
    assert user == [(str(security["runAsUser"]), str(security["runAsGroup"]))]


def test_it_stops_by_the_signal_that_drains_and_asks_for_its_health() -> None:
    assert "STOPSIGNAL SIGTERM" in FINAL
    assert 'CMD ["sluicegate", "health", "--live"]' in FINAL
    assert re.findall(r"^EXPOSE (.+)$", FINAL, re.MULTILINE) == ["8080 8081"]
    assert ADMIN_URL.endswith(":8081")


def test_only_what_the_wheel_needs_is_sent_to_the_build() -> None:
    lines = (ROOT / ".dockerignore").read_text().splitlines()
    rules = [line for line in lines if line and not line.startswith("#")]
    assert rules[0] == "*"
    copied = set(re.findall(r"^COPY ([^-].*) \S+$", RECIPE, re.MULTILINE))
    wanted = {word.rstrip("/") for line in copied for word in line.split()}
    assert {rule[1:].rstrip("/") for rule in rules if rule.startswith("!")} == wanted

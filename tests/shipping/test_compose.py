"""The compose file: its services, mounts and times fit the gateway and its configuration."""

import re
import tomllib
from typing import Any

import pytest

from gateway.schema import Document
from gateway.serve import LAST_ANSWERS_S
from tests.e2e.harness import ROOT
from tests.shipping.shipped import DEPLOY, MARGIN_S, configurations, documents

COMPOSE: dict[str, Any] = documents(DEPLOY / "compose.yaml")[0]
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
CONFIGURATIONS = [name for name in configurations() if name.startswith("deploy/compose/")]
# What the compose specification allows a service to say, as far as it is used here.
KEYS = {
    "build", "cap_drop", "command", "depends_on", "deploy", "environment", "healthcheck", "image",
    "ipc", "networks", "ports", "profiles", "read_only", "restart", "security_opt",
    "stop_grace_period", "tmpfs", "ulimits", "volumes",
}  # fmt: skip


def document(name: str) -> Document:
    return Document.model_validate(tomllib.loads(configurations()[name]))


def seconds(text: str) -> float:
    assert text.endswith("s")
    return float(text.removesuffix("s"))


def default(text: str) -> str:
    """A value with compose's variables replaced by their defaults."""
    return re.sub(r"\$\{\w+:-([^}]*)\}", r"\1", text)


@pytest.mark.parametrize("name", SERVICES)
def test_a_service_says_only_what_compose_knows(name: str) -> None:
    assert set(SERVICES[name]) <= KEYS
    assert SERVICES[name]["healthcheck"]["test"][0] == "CMD"
    assert ":" in SERVICES[name]["image"], "an image without a version changes by itself"
    for network in SERVICES[name]["networks"]:
        assert network in COMPOSE["networks"]


@pytest.mark.parametrize("name", SERVICES)
def test_what_a_service_mounts_is_there(name: str) -> None:
    for volume in SERVICES[name].get("volumes", ()):
        source = default(volume).split(":")[0]
        if source.startswith("."):
            assert (DEPLOY / source).exists(), source
            assert volume.endswith(":ro"), volume
        else:
            assert source in COMPOSE["volumes"]


def test_the_two_configurations_are_the_ones_it_offers() -> None:
    text = (DEPLOY / "compose.yaml").read_text()
    assert len(CONFIGURATIONS) == 2
    for name in CONFIGURATIONS:
        assert f"./compose/{name.rpartition('/')[2]}" in text


@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_the_gateway_is_killed_only_after_its_drain(name: str) -> None:
    server = document(name).server
    needs_s = server.shutdown_delay_s + server.drain_deadline_s + LAST_ANSWERS_S
    assert seconds(SERVICES["gateway"]["stop_grace_period"]) >= needs_s + MARGIN_S


@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_the_engines_have_the_address_and_the_model_of_the_configuration(name: str) -> None:
    pools = document(name).pool
    assert [pool.engines for pool in pools.values()] == [("http://engine:8000",)]
    model = next(iter(document(name).model.values())).engine_model
    for engine in ("simulated", "vllm"):
        assert SERVICES[engine]["networks"] == {"engines": {"aliases": ["engine"]}}
        command = SERVICES[engine]["command"]
        assert command[command.index("--port") + 1] == "8000"
        assert command[command.index("--served-model-name") + 1] == model
        assert SERVICES[engine]["profiles"] == [engine]


def test_only_the_gateway_and_nobody_outside_reaches_engines() -> None:
    assert COMPOSE["networks"]["engines"] == {"internal": True}
    inside = {name for name, service in SERVICES.items() if "engines" in service["networks"]}
    assert inside == {"gateway", "simulated", "vllm", "prometheus"}
    assert not any("ports" in SERVICES[name] for name in ("simulated", "vllm"))
    for service in SERVICES.values():
        assert all(port.startswith("127.0.0.1:") for port in service.get("ports", ()))


@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_the_gateway_writes_to_its_volume_alone(name: str) -> None:
    gateway = SERVICES["gateway"]
    assert gateway["read_only"] is True
    assert gateway["cap_drop"] == ["ALL"]
    writable = [v.split(":")[1] for v in gateway["volumes"] if not v.endswith(":ro")]
    assert writable == ["/var/lib/sluicegate"]
    assert str(document(name).state.directory).startswith(writable[0])
    assert document(name).auth.keys_file.startswith(writable[0])


def test_the_published_ports_are_those_of_the_configuration() -> None:
    found = document(CONFIGURATIONS[0])
    published = {port.rsplit(":", 1)[1] for port in SERVICES["gateway"]["ports"]}
    assert published == {str(found.server.port), str(found.admin.port)}


def test_prometheus_scrapes_the_gateway_under_its_name() -> None:
    scraped = documents(DEPLOY / "prometheus/prometheus.yml")[0]["scrape_configs"]
    by_job = {job["job_name"]: job["static_configs"][0]["targets"] for job in scraped}
    assert by_job["sluicegate"] == [f"gateway:{document(CONFIGURATIONS[0]).admin.port}"]


def test_no_secret_stands_in_the_files() -> None:
    for service in SERVICES.values():
        named = " ".join(service.get("environment", {}))
        assert not re.search("PASSWORD|TOKEN|SECRET|KEY", named)
    for name in CONFIGURATIONS:
        assert all(set(t.sha256) == {"0"} for t in document(name).admin.tokens)


def test_the_images_version_is_the_projects() -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert SERVICES["gateway"]["image"].startswith(f"sluicegate:{version}")
    assert f"ARG VERSION={version}\n" in (ROOT / "Dockerfile").read_text()

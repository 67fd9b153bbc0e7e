"""The Kubernetes objects: valid by their schemas, and true to what the gateway does."""

import json
import shutil
import subprocess
import tomllib
from typing import Any

import kubernetes_validate
import pytest
import yaml

from gateway.schema import Document
from gateway.serve import LAST_ANSWERS_S
from tests.shipping.shipped import KUBERNETES, MARGIN_S, configurations, manifests, one

KUBECTL = shutil.which("kubectl")
VERSIONS = ("1.29", "1.32", "1.34")
# The part of the operator's schema that a ServiceMonitor of ours uses.
SERVICE_MONITOR = {
    "apiVersion": "monitoring.coreos.com/v1",
    "spec": {"selector", "endpoints", "jobLabel", "namespaceSelector", "targetLabels"},
    "endpoint": {"port", "path", "interval", "scrapeTimeout", "scheme", "relabelings"},
}


def name_of(found: dict[str, Any]) -> str:
    return f"{found['kind']}-{found['metadata']['name']}"


def pod() -> dict[str, Any]:
    spec: dict[str, Any] = one("Deployment")["spec"]["template"]["spec"]
    return spec


def container() -> dict[str, Any]:
    found: dict[str, Any] = pod()["containers"][0]
    return found


def settings() -> Document:
    return Document.model_validate(tomllib.loads(one("ConfigMap")["data"]["gateway.toml"]))


def valid(found: dict[str, Any], version: str) -> None:
    if found["kind"] == "ServiceMonitor":
        assert found["apiVersion"] == SERVICE_MONITOR["apiVersion"]
        assert set(found["spec"]) <= SERVICE_MONITOR["spec"]
        assert all(set(e) <= SERVICE_MONITOR["endpoint"] for e in found["spec"]["endpoints"])
        return
    kubernetes_validate.validate(found, version, strict=True)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("found", manifests(), ids=name_of)
def test_an_object_is_valid(found: dict[str, Any], version: str) -> None:
    valid(found, version)


def test_an_unknown_field_is_not_valid() -> None:
    wrong = json.loads(json.dumps(one("Deployment")))
    wrong["spec"]["template"]["spec"]["terminationGraceSeconds"] = 90
    with pytest.raises(kubernetes_validate.ValidationError):
        valid(wrong, VERSIONS[-1])


def test_every_file_of_the_base_is_in_its_kustomization() -> None:
    base = KUBERNETES / "base"
    listed = set(yaml.safe_load((base / "kustomization.yaml").read_text())["resources"])
    assert listed == {f.name for f in base.glob("*.yaml")} - {"kustomization.yaml"}


def test_a_pod_is_killed_only_after_its_drain() -> None:
    server = settings().server
    needs_s = server.shutdown_delay_s + server.drain_deadline_s + LAST_ANSWERS_S
    assert pod()["terminationGracePeriodSeconds"] >= needs_s + MARGIN_S


def test_endpoints_are_gone_before_requests_are_refused() -> None:
    probe = container()["readinessProbe"]
    notices_s = probe["periodSeconds"] * probe["failureThreshold"]
    assert settings().server.shutdown_delay_s > notices_s


def test_the_ports_paths_and_files_are_those_of_the_configuration() -> None:
    document, ports = settings(), {p["name"]: p["containerPort"] for p in container()["ports"]}
    assert ports == {"http": document.server.port, "admin": document.admin.port}
    assert document.server.host == document.admin.host == "0.0.0.0"  # noqa: S104  in a pod
    probes = {name: container()[f"{name}Probe"]["httpGet"] for name in ("liveness", "readiness")}
    assert probes["liveness"] == {"path": "/health/live", "port": "admin"}
    assert probes["readiness"] == {"path": "/health/ready", "port": "admin"}
    mounts = [m["mountPath"] for m in container()["volumeMounts"]]
    assert container()["args"] == ["serve", "--config", f"{mounts[0]}/gateway.toml"]
    files = [document.auth.keys_file, str(document.state.directory)]
    files += [m.tokenizer for m in document.model.values()]
    assert all(any(f.startswith(mount) for mount in mounts) for f in files), files
    volumes = {v["name"] for v in pod()["volumes"]}
    assert {m["name"] for m in container()["volumeMounts"]} == volumes
    writable = [m["name"] for m in container()["volumeMounts"] if not m.get("readOnly")]
    assert writable == ["state"]


def test_the_pod_may_do_as_little_as_it_can() -> None:
    assert pod()["securityContext"]["runAsNonRoot"] is True
    assert pod()["securityContext"]["runAsUser"] == 10001
    assert pod()["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert container()["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert pod()["automountServiceAccountToken"] is False
    assert one("ServiceAccount")["automountServiceAccountToken"] is False
    assert container()["resources"]["limits"]["memory"]


def test_nothing_secret_stands_in_the_objects() -> None:
    assert not [m for m in manifests() if m["kind"] == "Secret"]
    assert all(set(t.sha256[:-1]) == {"0"} for t in settings().admin.tokens)


def selects(selector: dict[str, str], labels: dict[str, str]) -> bool:
    return selector.items() <= labels.items()


def test_selectors_find_what_they_are_for() -> None:
    labels = one("Deployment")["spec"]["template"]["metadata"]["labels"]
    assert selects(one("Deployment")["spec"]["selector"]["matchLabels"], labels)
    assert selects(one("PodDisruptionBudget")["spec"]["selector"]["matchLabels"], labels)
    admin = one("Service", "sluicegate-admin")
    for service in (one("Service"), admin):
        assert selects(service["spec"]["selector"], labels)
        names = {p["name"] for p in container()["ports"]}
        assert {p["targetPort"] for p in service["spec"]["ports"]} <= names
    monitor = one("ServiceMonitor")["spec"]
    assert selects(monitor["selector"]["matchLabels"], admin["metadata"]["labels"])
    assert not selects(monitor["selector"]["matchLabels"], one("Service")["metadata"]["labels"])
    assert monitor["endpoints"][0]["port"] in {p["name"] for p in admin["spec"]["ports"]}
    job = admin["metadata"]["labels"][monitor["jobLabel"]]
    assert job == "sluicegate"  # as the alerts ask for it


def test_only_the_gateway_reaches_engines() -> None:
    engines = one("Service", "vllm")
    pods = engines["spec"]["selector"]
    policy = one("NetworkPolicy", "engines-only-from-sluicegate")["spec"]
    assert policy["podSelector"]["matchLabels"] == pods
    gateway = one("Deployment")["spec"]["template"]["metadata"]["labels"]
    assert [rule["from"] for rule in policy["ingress"]] == [
        [{"podSelector": {"matchLabels": gateway}}]
    ]
    port = engines["spec"]["ports"][0]["port"]
    assert policy["ingress"][0]["ports"] == [{"protocol": "TCP", "port": port}]
    for pool in settings().pool.values():
        assert pool.dns == f"http://vllm:{port}"
    assert engines["spec"]["clusterIP"] == "None"  # all addresses, not one
    out = one("NetworkPolicy")["spec"]["egress"][0]
    assert out["to"][0]["podSelector"]["matchLabels"] == pods


def test_operators_are_reached_from_monitoring_alone() -> None:
    rules = one("NetworkPolicy")["spec"]["ingress"]
    by_port = {rule["ports"][0]["port"]: rule for rule in rules}
    assert set(by_port) == {settings().server.port, settings().admin.port}
    assert "from" in by_port[settings().admin.port]


def test_one_state_volume_is_never_shared() -> None:
    assert one("Deployment")["spec"]["replicas"] == 1
    assert one("Deployment")["spec"]["strategy"] == {"type": "Recreate"}
    claim = one("PersistentVolumeClaim", "sluicegate-state")
    assert claim["spec"]["accessModes"] == ["ReadWriteOncePod"]


def test_several_gateways_have_the_same_configuration_but_for_their_number() -> None:
    base = tomllib.loads(configurations()["deploy/kubernetes/base/configmap.yaml"])
    several = tomllib.loads(configurations()["deploy/kubernetes/several/gateway.toml"])
    # Each may fill half of an engine, and that must still hold the largest prompt.
    base["limits"]["prefill_tokens"] *= 2
    assert several == {**base, "replicas": {"count": 2}}


@pytest.mark.skipif(KUBECTL is None, reason="kubectl is not installed: it builds the overlay")
def test_several_gateways_are_a_stateful_set_with_a_volume_each() -> None:
    done = subprocess.run(
        [str(KUBECTL), "kustomize", str(KUBERNETES / "several")],
        capture_output=True,
        text=True,
        check=True,
    )
    made = list(yaml.safe_load_all(done.stdout))
    for found in made:
        valid(found, VERSIONS[-1])
    kinds = [found["kind"] for found in made]
    assert "Deployment" not in kinds
    assert "PersistentVolumeClaim" not in kinds
    sets = [found for found in made if found["kind"] == "StatefulSet"]
    spec = sets[0]["spec"]
    config = next(found for found in made if found["kind"] == "ConfigMap")
    counted = tomllib.loads(config["data"]["gateway.toml"])["replicas"]["count"]
    assert (spec["replicas"], counted) == (2, 2)
    claimed = {claim["metadata"]["name"] for claim in spec["volumeClaimTemplates"]}
    volumes = {volume["name"] for volume in spec["template"]["spec"]["volumes"]}
    mounted = {m["name"] for m in spec["template"]["spec"]["containers"][0]["volumeMounts"]}
    assert mounted == volumes | claimed
    assert not volumes & claimed
    assert spec["serviceName"] in {f["metadata"]["name"] for f in made if f["kind"] == "Service"}

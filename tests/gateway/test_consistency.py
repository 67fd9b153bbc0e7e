"""Names and surfaces of models that contradict each other are refused by key."""

from pathlib import Path

import pytest

from gateway.audit import ACTORS
from gateway.config import ConfigError, load
from gateway.domain import Surface
from tests.gateway.minimal import CONFIG, KEYS, write

HEAD = "[model.m]\n"
LORAS = 'loras = {"tuned" = "engine-lora"}\n'


def changed(folder: Path, more: str, keys: str = KEYS) -> Path:
    return write(folder, CONFIG.replace(HEAD, HEAD + more), keys)


def test_an_adapter_is_a_name_of_its_own_that_keys_may_be_granted(tmp_path: Path) -> None:
    settings = load(changed(tmp_path, LORAS, KEYS + 'models = ["tuned"]\n'))
    tuned = settings.route_table(b"salt").model("tuned")
    assert (tuned.public, tuned.engine_model, tuned.grant) == ("m", "engine-lora", "tuned")
    assert settings.route_table(b"salt").model("also-m").grant == "m"


@pytest.mark.parametrize(
    ("more", "key"),
    [
        ('loras = {"m" = "x"}\n', "model.m.loras"),
        ('loras = {"also-m" = "x"}\n', "model.m.loras"),
        ('surfaces = ["transcriptions"]\n', "model.m.transcription_tokens"),
        ('surfaces = ["nothing"]\n', "model.m.surfaces"),
        ("surfaces = []\n", "model.m.surfaces"),
        ("image_tokens = 0\n", "model.m.image_tokens"),
    ],
)
def test_what_does_not_fit_is_refused_by_its_key(tmp_path: Path, more: str, key: str) -> None:
    with pytest.raises(ConfigError) as refused:
        load(changed(tmp_path, more))
    assert refused.value.key.startswith(key)


def test_a_key_may_not_be_granted_an_adapter_that_there_is_not(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="tuned"):
        load(changed(tmp_path, "", KEYS + 'models = ["tuned"]\n'))


def test_a_model_serves_by_default_what_generates_text(tmp_path: Path) -> None:
    served = load(changed(tmp_path, "")).document.model["m"].surfaces
    assert Surface.MESSAGES in served
    assert Surface.EMBEDDINGS not in served


@pytest.mark.parametrize("name", sorted(ACTORS))
def test_no_operator_may_be_called_what_the_gateway_calls_itself(tmp_path: Path, name: str) -> None:
    token = f'[[admin.tokens]]\nname = "{name}"\nrole = "operator"\nsha256 = "{"ab" * 32}"\n'
    with pytest.raises(ConfigError, match=f"'{name}' is what the gateway calls itself") as refused:
        load(write(tmp_path, token + CONFIG, KEYS))
    assert refused.value.key == "admin.tokens"
    load(write(tmp_path, token.replace(f'"{name}"', f'"{name}-2"') + CONFIG, KEYS))

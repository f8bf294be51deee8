"""Attention kernels that this machine does not have are refused by name."""

import pytest
import torch

from offleash.eval.errors import ConfigError
from offleash.train.preflight import attention
from offleash.train.preflight.attention import check_attention
from offleash.train.recipe.config import parse_recipe

FLASH = ["--config", "lab", "--use_cpu", "true", "--attn_implementation", "flash_attention_2"]


@pytest.mark.parametrize(("device", "told"), [("cpu", "--attn_implementation sdpa"), ("cuda", "pip install")])
def test_flash_attention_without_a_gpu_or_its_package_is_refused(device, told, monkeypatch) -> None:
    monkeypatch.setattr(attention, "find_spec", lambda name: None)
    _, training, model = parse_recipe(FLASH)
    monkeypatch.setattr(type(training), "device", property(lambda self: torch.device(device)))
    with pytest.raises(ConfigError, match=f"flash_attention_2 .*{told}"):
        check_attention(model, training)
    model.attn_implementation = "sdpa"
    check_attention(model, training)


def test_any_of_the_packages_is_enough(monkeypatch) -> None:
    monkeypatch.setattr(attention, "find_spec", lambda name: name == "kernels" or None)
    _, training, model = parse_recipe(FLASH)
    monkeypatch.setattr(type(training), "device", property(lambda self: torch.device("cuda")))
    check_attention(model, training)

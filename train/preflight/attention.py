"""Attention kernels that a recipe asks for and this machine does not have.

`sdpa` is part of torch and runs on GPUs and CPUs; a model without it is refused by transformers, where no value would
silently fall back to the slow `eager`. Flash attention needs a GPU and a package: read against transformers 5.17, which
uses `kernels` where `flash-attn` is missing.
"""

from importlib.util import find_spec

from transformers import TrainingArguments
from trl import ModelConfig

from offleash.eval.errors import ConfigError

FLASH = "flash_attention"
PACKAGES = ("flash_attn", "flash_attn_interface", "kernels")


def check_attention(model: ModelConfig, training: TrainingArguments) -> None:
    """Raise ConfigError for flash attention on a CPU, or without a package that has it."""
    asked = str(model.attn_implementation or "")
    if not asked.startswith(FLASH):
        return
    if training.device.type == "cpu":
        raise ConfigError(f"attn_implementation {asked} runs on GPUs only: add --attn_implementation sdpa")
    if no_flash_attention(asked):
        raise ConfigError(
            f"attn_implementation {asked} needs a package that is not installed: pip install kernels (or flash-attn), "
            "or set attn_implementation: sdpa"
        )


def no_flash_attention(asked: str | None) -> bool:
    """Whether it is asked for and no package has it."""
    return str(asked or "").startswith(FLASH) and not any(find_spec(name) for name in PACKAGES)

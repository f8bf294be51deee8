"""Prompts and completions through the trainer: its tokens, its generation, for a while another model or settings."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any

from accelerate.utils import set_seed

from offleash.callbacks.policy.trainer_protocol import PolicyTrainer
from offleash.callbacks.policy.trl_engine import draws_in_process, engine_processes
from offleash.callbacks.policy.trl_internals import TokenizedPrompts, holding, internals_of, vllm_of
from offleash.callbacks.policy.trl_weights import serve
from offleash.eval.sampling import Sampling, round_seed


def text_tokenizer(trainer: PolicyTrainer) -> Any:
    """The tokenizer, also where `processing_class` is a processor. Relies on `_tokenizer`."""
    return internals_of(trainer)._tokenizer


def takes_images(trainer: PolicyTrainer) -> bool:
    """Whether the model is a vision-language one. Relies on `_is_vlm`."""
    return internals_of(trainer)._is_vlm


def tokenize_prompts(trainer: PolicyTrainer, prompts: Sequence[Any]) -> TokenizedPrompts:
    """Prompts as the trainer tokenizes them, chat template included.

    Relies on `_tokenize_prompts` returning token ids, images and the processor's other fields.
    """
    return TokenizedPrompts(*internals_of(trainer)._tokenize_prompts(list(prompts)))


def generate(trainer: PolicyTrainer, prompts: TokenizedPrompts, num_generations: int) -> list[list[int]]:
    """Completions of prompts that already stand `num_generations` times each, one after another.

    Relies on `_generate_single_turn`: it serves transformers, colocated and served vLLM, copies weights to vLLM at a
    new step, logs nothing, and takes the same number of prompts and calls on every rank.
    """
    completions, _ = internals_of(trainer)._generate_single_turn(*prompts, num_generations=num_generations)
    return completions


@contextmanager
def generating_with(trainer: PolicyTrainer, model: Any) -> Iterator[None]:
    """Draw from another model inside the block.

    Relies on generation reading `model` and `model_wrapped`; with vLLM the engine gets the model's weights.
    """
    policy, wrapped = trainer.model, trainer.model_wrapped
    _generate_from(trainer, model, model)
    try:
        yield
    finally:
        _generate_from(trainer, policy, wrapped)


def _generate_from(trainer: PolicyTrainer, model: Any, wrapped: Any) -> None:
    trainer.model, trainer.model_wrapped = model, wrapped
    if trainer.use_vllm:
        serve(trainer, model)


@contextmanager
def sampling_as(trainer: PolicyTrainer, sampling: Sampling) -> Iterator[None]:
    """Sample with other settings inside the block.

    Relies on TRL reading them from `generation_config` and `generation_kwargs` for transformers, from attributes of
    `vllm_generation` for vLLM, at each call.
    """
    values = asdict(sampling)
    del values["stop"]  # TRL's rollouts have no stop texts
    if trainer.use_vllm:
        holder = vllm_of(trainer)
        values["max_completion_length"] = values.pop("max_new_tokens")
    else:
        inside = internals_of(trainer)
        holder, config, kwargs = trainer, inside.generation_config, inside.generation_kwargs
        # min_p = 0 keeps everything; None spares transformers the warper
        values |= {"min_p": sampling.min_p or None, "do_sample": True}
        config = type(config)(**{**config.to_dict(), **values})
        values = {"generation_config": config, "generation_kwargs": {**kwargs, **values}}
    # The whole of a completion of several turns may be as long as one turn.
    with holding(holder, **values), holding(trainer, max_completion_length=sampling.max_new_tokens):
        yield


def seed_rollouts(trainer: PolicyTrainer, seed: int) -> None:
    """Let a colocated engine's rollouts depend on the run's seed. Without one nothing is done.

    Such an engine sets the process's random numbers to those of its own rank when it starts, whatever the seed of the
    run: two seeds would see the same noise.
    """
    if draws_in_process(trainer):
        set_seed(round_seed(seed, sampling_group(trainer)))


def sampling_group(trainer: PolicyTrainer) -> int:
    """Which of the groups of processes that draw together this process is in: their random numbers must be the same.

    A colocated engine with tensor parallelism runs on several processes, each of which picks every next token by itself
    and goes on with its own: with different picks the rest of the text is garbage. Relies on the ranks of an engine
    being consecutive, as many as `vllm_generation.tensor_parallel_size`.
    """
    return int(trainer.accelerator.process_index // engine_processes(trainer))

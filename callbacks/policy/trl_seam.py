"""Everything private of TRL and of transformers' Trainer that Offleash uses: when TRL changes, this file changes.

Read against trl 1.16 and transformers 5.17; `make test-matrix` runs the tests of this file against other versions.
Private names of TRL appear in one other file only, `train/trainer.py`, which overrides some methods. vLLM's own
internals are in `eval/engines/vllm_seam.py`.
"""

import asyncio
import copy
import inspect
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, Protocol, cast

import torch
from transformers import Trainer, TrainingArguments
from transformers.integrations import TrackioCallback, WandbCallback
from transformers.utils import get_json_schema
from trl.models import prepare_deepspeed, prepare_fsdp
from trl.models.utils import disable_gradient_checkpointing
from trl.trainer import utils

from offleash.callbacks.policy.trainer_protocol import PolicyTrainer
from offleash.eval.engines import vllm_seam
from offleash.eval.errors import MonitorError
from offleash.eval.sampling import Sampling


class TrainerInternals(PolicyTrainer, Protocol):
    """The names of `trl.GRPOTrainer` that this file relies on beyond its public ones."""

    generation_config: Any
    generation_kwargs: dict[str, Any]
    use_adaptive_entropy: bool
    entropy_coef: float
    _tokenizer: Any
    _is_vlm: bool
    _metrics: dict[str, dict[str, list[float]]]
    _logs: dict[str, Any]
    _step: int
    _last_world_entropy: float
    tools: list[Callable[..., Any]]
    environment_factories: dict[str | None, Callable[[], Any]] | None
    rollout_func: Callable[..., Any] | None
    max_tool_calling_iterations: int
    chat_template: str | None
    chat_template_kwargs: dict[str, Any]
    num_generations_eval: int
    environments: list[Any] | None
    reward_processing_classes: list[Any]
    _pending_extra_logs: dict[str, list[Any]]
    _pending_metrics: dict[str, list[float]]

    def save_model(self, output_dir: str, _internal_call: bool) -> None: ...
    def _tokenize_prompts(self, prompts: list[Any]) -> "TokenizedPrompts": ...
    def _generate_single_turn(
        self, prompt_ids: list[list[int]], images: Any, multimodal_fields: dict[str, Any], num_generations: int
    ) -> tuple[list[list[int]], Any]: ...
    def _generate(self, prompts: list[Any]) -> tuple[Any, ...]: ...
    def _generate_and_score_completions(self, inputs: list[dict[str, Any]]) -> dict[str, Any]: ...
    def _calculate_rewards(
        self, inputs: list[dict[str, Any]], prompts: list[Any], completions: list[Any], completion_ids: list[list[int]]
    ) -> torch.Tensor: ...
    def _get_per_token_logps_and_entropies(self, model: Any, *args: Any, **kwargs: Any) -> tuple[Any, Any, Any]: ...
    def _get_train_sampler(self) -> Any: ...
    def _get_output_dir(self, trial: Any) -> str: ...


class EnvironmentInternals(TrainerInternals, Protocol):
    """What a trainer with an `environment_factory` has in addition."""

    _env_tools: dict[str | None, list[Callable[..., Any]]]
    _environment_pool: dict[str | None, list[Any]]


class VllmInternals(TrainerInternals, Protocol):
    """What a trainer with `use_vllm` has in addition."""

    vllm_generation: Any
    _last_loaded_step: int


def _inside(trainer: PolicyTrainer) -> TrainerInternals:
    return cast(TrainerInternals, trainer)


def _generation(trainer: PolicyTrainer) -> Any:
    """TRL's `VLLMGeneration`."""
    return cast(VllmInternals, trainer).vllm_generation


# Tokens


class TokenizedPrompts(NamedTuple):
    """One row per prompt; images and the processor's other fields only where prompts have images."""

    ids: list[list[int]]
    images: list[Any] | None
    fields: dict[str, Any]


def text_tokenizer(trainer: PolicyTrainer) -> Any:
    """The tokenizer, also where `processing_class` is a processor. Relies on `_tokenizer`."""
    return _inside(trainer)._tokenizer


def takes_images(trainer: PolicyTrainer) -> bool:
    """Whether the model is a vision-language one. Relies on `_is_vlm`."""
    return _inside(trainer)._is_vlm


def tokenize_prompts(trainer: PolicyTrainer, prompts: Sequence[Any]) -> TokenizedPrompts:
    """Prompts as the trainer tokenizes them, chat template included.

    Relies on `_tokenize_prompts` returning token ids, images and the processor's other fields.
    """
    return TokenizedPrompts(*_inside(trainer)._tokenize_prompts(list(prompts)))


# Generation


def generate(trainer: PolicyTrainer, prompts: TokenizedPrompts, num_generations: int) -> list[list[int]]:
    """Completions of prompts that already stand `num_generations` times each, one after another.

    Relies on `_generate_single_turn`: it serves transformers, colocated and served vLLM, copies weights to vLLM at a
    new step, logs nothing, and takes the same number of prompts and calls on every rank.
    """
    completions, _ = _inside(trainer)._generate_single_turn(*prompts, num_generations=num_generations)
    return completions


def rollout_features(trainer: PolicyTrainer) -> list[str]:
    """Which arguments of the trainer make its rollouts more than one turn of the model.

    Relies on `tools`, which holds those of environments too, `environment_factories` and `rollout_func`.
    """
    inside = _inside(trainer)
    given = {
        "rollout_func": inside.rollout_func is not None,
        "environment_factory": inside.environment_factories is not None,
        "tools": bool(inside.tools) and inside.environment_factories is None,
    }
    return [name for name, is_given in given.items() if is_given]


@contextmanager
def generating_with(trainer: PolicyTrainer, model: Any) -> Iterator[None]:
    """Draw from another model inside the block.

    Relies on generation reading `model` and `model_wrapped`, with vLLM `vllm_generation.model`, whose weights are
    copied to the engine when `_last_loaded_step` is not the current step.
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
        _generation(trainer).model = model
        cast(VllmInternals, trainer)._last_loaded_step = -1


@contextmanager
def sampling_as(trainer: PolicyTrainer, sampling: Sampling) -> Iterator[None]:
    """Sample with other settings inside the block.

    Relies on TRL reading them from `generation_config` and `generation_kwargs` for transformers, from attributes of
    `vllm_generation` for vLLM, at each call.
    """
    values = asdict(sampling)
    del values["stop"]  # TRL's rollouts have no stop texts
    if trainer.use_vllm:
        holder = _generation(trainer)
        values["max_completion_length"] = values.pop("max_new_tokens")
    else:
        holder, config, kwargs = trainer, _inside(trainer).generation_config, _inside(trainer).generation_kwargs
        # min_p = 0 keeps everything; None spares transformers the warper
        values |= {"min_p": sampling.min_p or None, "do_sample": True}
        config = type(config)(**{**config.to_dict(), **values})
        values = {"generation_config": config, "generation_kwargs": {**kwargs, **values}}
    # The whole of a completion of several turns may be as long as one turn.
    with _set(holder, **values), _set(trainer, max_completion_length=sampling.max_new_tokens):
        yield


@contextmanager
def _set(holder: Any, **values: Any) -> Iterator[None]:
    """Attributes of an object inside the block; afterwards those it had, or none."""
    own = vars(holder)
    before = {name: own[name] for name in values if name in own}
    own.update(values)
    try:
        yield
    finally:
        for name in values:
            own.pop(name, None)
        own.update(before)


# Rollouts of several turns


class Rollouts(NamedTuple):
    """What the trainer's full generation gave, row by row."""

    prompt_ids: list[list[int]]
    completion_ids: list[list[int]]
    written: list[list[int]]
    """1 for a token of the policy, 0 for one that a tool, an environment or a rollout function put in."""
    completions: list[Any]
    """Chat messages, or text where prompts are text."""
    rewards: list[float] | None
    """NaN where the reward function returned None."""


def roll_out(
    trainer: PolicyTrainer,
    rows: Sequence[dict[str, Any]],
    num_generations: int,
    environments: dict[str | None, list[Any]],
    reward: Callable[..., Any] | None,
) -> Rollouts:
    """Roll out rows of the dataset's columns, which already stand `num_generations` times each, as in training.

    The rollouts play in `environments`, instances by name of the factory, which are added to as needed. Nothing is
    logged and nothing of the trainer's own rollouts is touched. Collective: the same number of rows on every rank.

    Relies on `_generate_and_score_completions` handing out and resetting environments and then calling `_generate`,
    which runs tools and rollout functions, counts in `_metrics` and `state.num_input_tokens_seen`, and, outside of
    training, has `num_generations_eval` equal prompts in a row; on `_calculate_rewards` for what a reward is called
    with. What these leave on the trainer: `environments`, `_batch_environments` and the tools of each row.
    """
    inside = _inside(trainer)
    drawn = _set(
        trainer,
        num_generations=num_generations,
        # A server draws several completions of the first of so many prompts; environments may start differently.
        num_generations_eval=num_generations if inside.environment_factories is None else 1,
        environments=None,
        _environment_pool=environments,
        _batch_environments=None,
        _sync_tool_dicts=None,
        _async_tool_dicts=None,
        _metrics={mode: defaultdict(list) for mode in inside._metrics},
        _pending_extra_logs=defaultdict(list),
        _pending_metrics=defaultdict(list),
    )
    with drawn, _set(trainer.state, num_input_tokens_seen=trainer.state.num_input_tokens_seen):
        played = copy.deepcopy(list(rows))
        prompts, generated = _generated(inside, played)
        prompt_ids, completion_ids, written, completions, _, extra, _, tool_images = generated
        if any(tool_images):
            raise MonitorError("a tool returned an image: the monitor cannot score rollouts with images of tools")
        rewards = None
        if reward is not None:
            played = [{**row, **_extra_fields(extra, place)} for place, row in enumerate(played)]
            rewards = _rewards(inside, reward, played, prompts, completions, completion_ids)
    return Rollouts(
        prompt_ids, completion_ids, written or [[1] * len(ids) for ids in completion_ids], completions, rewards
    )


class _Generated(BaseException):
    """Leaves TRL's method, which would go on to score, once the rollouts are there."""


def _generated(inside: TrainerInternals, rows: list[dict[str, Any]]) -> tuple[list[Any], tuple[Any, ...]]:
    """The prompts, which environments may have added to, and what `_generate` returned for them."""
    generate = inside._generate

    def generate_only(prompts: list[Any]) -> None:
        raise _Generated(prompts, generate(prompts))

    with _set(inside, _generate=generate_only):
        try:
            inside._generate_and_score_completions(rows)
        except _Generated as done:
            prompts, generated = done.args
            return prompts, generated
    raise MonitorError(f"{type(inside).__name__} does not generate through TRL's _generate: the monitor cannot sample")


def _extra_fields(extra: Mapping[str, Any], place: int) -> dict[str, Any]:
    """What a rollout function returned beyond tokens, which reward functions see as columns."""
    return {
        name: values[place] if isinstance(values, list) else values
        for name, values in extra.items()
        if not isinstance(values, list) or place < len(values)
    }


def _rewards(
    inside: TrainerInternals, reward: Callable[..., Any], rows: list[dict[str, Any]], *made: Any
) -> list[float]:
    own = [place for place, other in enumerate(inside.reward_funcs) if other is reward]
    processing_class = inside.reward_processing_classes[own[0]] if own else None
    called = reward if own else _without_loop(reward)
    with _set(
        inside, reward_funcs=[called], reward_func_names=["monitor"], reward_processing_classes=[processing_class]
    ):
        rewards = inside._calculate_rewards(rows, *made)
    first = inside.accelerator.process_index * len(rows)
    # TRL keeps them in 32 bits, where 0.7 is less than 0.7.
    return [float(f"{value:.7g}") for value in rewards[first : first + len(rows), 0].tolist()]


def _without_loop(reward: Callable[..., Any]) -> Callable[..., Any]:
    """A reward function that is not the trainer's: TRL has an event loop only where one of its own is async."""

    def called(**columns: Any) -> Any:
        returned = reward(**columns)
        return asyncio.run(returned) if inspect.iscoroutine(returned) else returned

    return called


def rollout_settings(trainer: PolicyTrainer) -> dict[str, Any]:
    """What rollouts of several turns depend on beyond the model, the prompts and the sampling settings.

    Relies on `_env_tools`, `max_tool_calling_iterations`, and the template and its arguments as TRL uses them.
    """
    inside = _inside(trainer)
    factories = inside.environment_factories or {}
    by_environment = cast(EnvironmentInternals, trainer)._env_tools if factories else {None: inside.tools}
    return {
        "tools": {str(name): [get_json_schema(tool) for tool in tools] for name, tools in by_environment.items()},
        "iterations": inside.max_tool_calling_iterations,
        "chat_template": inside.chat_template,
        "chat_template_kwargs": inside.chat_template_kwargs,
        "code": [*([] if factories else inside.tools), *factories.values(), *filter(None, [inside.rollout_func])],
    }


def waits_at_every_turn(trainer: PolicyTrainer) -> str | None:
    """The setting by which ranks wait for each other whenever one generates; None if they do not.

    Relies on `vllm_generation.mode` and `tensor_parallel_size`, and on ZeRO-3 and FSDP gathering weights to generate.
    """
    if trainer.accelerator.num_processes == 1:
        return None
    if trainer.use_vllm and is_server(trainer):
        return "vllm_mode=server"
    if trainer.use_vllm and _generation(trainer).tensor_parallel_size > 1:
        return "vllm_tensor_parallel_size"
    if trainer.is_fsdp_enabled:
        return "FSDP"
    plugin = trainer.accelerator.state.deepspeed_plugin if trainer.is_deepspeed_enabled else None
    return "ZeRO-3" if plugin is not None and plugin.zero_stage == 3 else None


# Scoring


def token_logps(
    trainer: PolicyTrainer,
    model: Any,
    input_ids: torch.Tensor,
    attention_mask: torch.Tensor,
    completion_length: int,
    *,
    batch_size: int | None = None,
    entropies: bool = False,
    **pixels: Any,
) -> tuple[torch.Tensor, torch.Tensor]:
    """(B, T) log-probabilities of the last `completion_length` tokens at the training temperature, and entropies.

    Relies on `_get_per_token_logps_and_entropies`; without `entropies` the second may be None.
    """
    logps, entropy, _ = _inside(trainer)._get_per_token_logps_and_entropies(
        model,
        input_ids,
        attention_mask,
        completion_length,
        batch_size=batch_size,
        compute_entropy=entropies,
        **pixels,
    )
    return logps, entropy


def without_gradient_checkpointing(trainer: PolicyTrainer) -> AbstractContextManager[None]:
    """Inside the block forward passes of the policy are plain ones. Relies on `disable_gradient_checkpointing`."""
    context: AbstractContextManager[None] = disable_gradient_checkpointing(
        trainer.model, trainer.args.gradient_checkpointing_kwargs
    )
    return context


@contextmanager
def entropy_head(trainer: PolicyTrainer, model: Any) -> Iterator[None]:
    """Inside the block `token_logps` of this model gives entropies too: TRL's reference has a head without them.

    Relies on `add_fused_lm_head` replacing the model's `forward`.
    """
    forward = model.forward
    _add_head(trainer, model, ("log_probs", "entropy"))
    try:
        yield
    finally:
        model.forward = forward


def _add_head(trainer: PolicyTrainer, model: Any, outputs: tuple[str, ...]) -> None:
    cast_head = trainer.args.cast_lm_head_to_fp32
    utils.add_fused_lm_head(model, temperature=trainer.temperature, cast_lm_head_to_fp32=cast_head, outputs=outputs)


def load_reference(trainer: PolicyTrainer, source: str) -> Any:
    """A frozen model loaded and prepared as TRL does with its KL reference.

    Relies on `create_model_from_path`, `disable_dropout_in_model`, `add_fused_lm_head`, `prepare_deepspeed` and
    `prepare_fsdp`, and on the config's `_attn_implementation`.
    """
    kwargs = dict(trainer.args.model_init_kwargs or {})
    kwargs.setdefault("dtype", trainer.model.dtype)
    kwargs.setdefault("attn_implementation", trainer.model.config._attn_implementation)
    if trainer.accelerator.num_processes > 1:
        kwargs["device_map"] = None
    model = utils.create_model_from_path(source, **kwargs)
    utils.disable_dropout_in_model(model)
    _add_head(trainer, model, ("log_probs",))
    if trainer.is_deepspeed_enabled:
        return prepare_deepspeed(model, trainer.accelerator)
    if trainer.is_fsdp_enabled:
        return prepare_fsdp(model, trainer.accelerator)
    return trainer.accelerator.prepare_model(model, evaluation_mode=True)


def model_id(model: Any) -> str:
    """Where the model was loaded from: a folder or a hub id. Relies on `get_config_model_id`."""
    return str(utils.get_config_model_id(model.config))


def to_device(trainer: PolicyTrainer, inputs: dict[str, Any]) -> dict[str, Any]:
    """Tensors on the trainer's device, in the dtype that DeepSpeed asks for.

    Relies on the Trainer's own `_prepare_inputs`, not on TRL's, which draws rollouts.
    """
    moved: dict[str, Any] = Trainer._prepare_inputs(trainer, inputs)
    return moved


def nanstd(values: torch.Tensor, dim: int | None = None, keepdim: bool = False) -> torch.Tensor:
    """The standard deviation by which TRL divides advantages. Relies on `trl.trainer.utils.nanstd`."""
    deviation: torch.Tensor = utils.nanstd(values, dim=dim, keepdim=keepdim)
    return deviation


# The run


def train_metrics(trainer: PolicyTrainer) -> dict[str, list[float]]:
    """What is averaged and logged at the next logging step. Relies on `_metrics["train"]`, a dictionary of lists."""
    return _inside(trainer)._metrics["train"]


def latest_rollouts(trainer: PolicyTrainer) -> tuple[list[Any], list[Any]]:
    """Prompts and completions of all ranks, group by group. Relies on `_logs`, which TRL keeps for its own log."""
    logs = _inside(trainer)._logs
    return list(logs["prompt"]), list(logs["completion"])


def micro_batch(trainer: PolicyTrainer) -> int:
    """Which micro-batch of the optimizer step this is. Relies on `_step`, which restarts at 0 when a run resumes."""
    return int(_inside(trainer)._step % trainer.args.gradient_accumulation_steps)


def train_sampler(trainer: PolicyTrainer) -> Any:
    """Dataset rows in the order of training, each as often as it is drawn. Relies on `_get_train_sampler`."""
    return _inside(trainer)._get_train_sampler()


def save_model(trainer: PolicyTrainer, folder: Path) -> None:
    """Save the weights without a push of the run's folder. Relies on `save_model(_internal_call=True)`."""
    _inside(trainer).save_model(str(folder), _internal_call=True)


def checkpoint_folder(trainer: PolicyTrainer, trial: Any) -> Path:
    """Where `_save_checkpoint` writes. Relies on `_get_output_dir` and the folder's name."""
    return Path(_inside(trainer)._get_output_dir(trial=trial)) / f"checkpoint-{trainer.state.global_step}"


def entropy_controller(trainer: PolicyTrainer) -> dict[str, float] | None:
    """The state of TRL's adaptive entropy bonus, as its `entropy_ctrl_state.json` has it. None without the bonus."""
    inside = _inside(trainer)
    if not inside.use_adaptive_entropy:
        return None
    return {"entropy_coef": inside.entropy_coef, "last_world_entropy": inside._last_world_entropy}


def unsaved_weights(model: Any) -> set[str]:
    """Weights that a checkpoint need not have. Relies on `all_tied_weights_keys` and `_keys_to_ignore_on_save`."""
    return {*model.all_tied_weights_keys, *(model._keys_to_ignore_on_save or ())}


def set_device(training: TrainingArguments, device: torch.device) -> None:
    """Relies on `device` being cached in `_setup_devices`."""
    training.__dict__["_setup_devices"] = device


def log_to_wandb(callback: WandbCallback, values: Mapping[str, Any]) -> None:
    """Relies on the callback's `_wandb`, the module, None if it is not installed."""
    if callback._wandb is not None and callback._wandb.run is not None:
        callback._wandb.log(dict(values))


def log_to_trackio(callback: TrackioCallback, values: Mapping[str, Any]) -> None:
    """Relies on the callback's `_trackio`, the module."""
    callback._trackio.log(dict(values))


def alert_by_trackio(callback: TrackioCallback, title: str, text: str) -> None:
    """Relies on the callback's `_trackio`, the module."""
    callback._trackio.alert(title, text, level=callback._trackio.AlertLevel.WARN)


def tracker_module(callback: WandbCallback | TrackioCallback) -> Any:
    """`wandb` with an open run, or `trackio`; None if there is none. Relies on `_wandb` and `_trackio`."""
    if isinstance(callback, WandbCallback):
        return callback._wandb if callback._wandb is not None and callback._wandb.run is not None else None
    return callback._trackio


# vLLM as TRL holds it


def set_engine_options(**options: Any) -> None:
    """Give the engine that TRL will build these options. Relies on `LLM` in `trl.generation.vllm_generation`."""
    from trl.generation import vllm_generation

    vllm_generation.LLM = partial(vllm_seam.import_vllm("use_vllm").LLM, **options)


def add_request_options(trainer: PolicyTrainer, **options: Any) -> None:
    """Of every rollout; what the recipe sets goes first. Relies on `vllm_generation.generation_kwargs`."""
    generation = _generation(trainer)
    generation.generation_kwargs = {**options, **generation.generation_kwargs}


def is_server(trainer: PolicyTrainer) -> bool:
    """Whether vLLM runs in a server, not in the trainer's process. Relies on `vllm_generation.mode`."""
    return bool(_generation(trainer).mode == "server")


def before_generate(trainer: PolicyTrainer, check: Callable[[bool], None]) -> None:
    """Call `check` before each draw of vLLM, with True if weights were just copied to an engine in sleep mode.

    Relies on `vllm_generation.generate` copying weights itself only while `_llm_weights_sleeping`.
    """
    generation = _generation(trainer)
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
    client = _generation(trainer).vllm_client
    post = client._post
    client._post = lambda url, **kwargs: send(client.base_url, lambda: post(url, **kwargs))


def engine_logps(trainer: PolicyTrainer, sequences: Sequence[Sequence[int]]) -> list[float]:
    """vLLM's log-probability of each token but the first of each sequence, at temperature 1.

    Relies on `vllm_generation.llm` and `enable_sleep_mode`, on a server on `vllm_client` and its `_post`.
    """
    generation = _generation(trainer)
    if not is_server(trainer):
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
    generation = _generation(trainer)
    if is_server(trainer):
        dtype = generation.vllm_client.get_server_info()["model_config"]["dtype"]
    else:
        dtype = vllm_seam.model_dtype(generation.llm)
    return str(dtype).removeprefix("torch.")


def shut_down_engine(trainer: PolicyTrainer) -> None:
    """End a colocated engine. Relies on `vllm_generation.llm`."""
    vllm_seam.shut_down(_generation(trainer).llm)

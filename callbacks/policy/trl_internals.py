"""The private names of TRL's trainer that Offleash relies on, as protocols, and how the seam reaches them.

Only the files `trl_*.py` of this folder use them; `trl_seam.py` is their door.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple, Protocol, cast

import torch

from offleash.callbacks.policy.trainer_protocol import PolicyTrainer


class TokenizedPrompts(NamedTuple):
    """One row per prompt; images and the processor's other fields only where prompts have images."""

    ids: list[list[int]]
    images: list[Any] | None
    fields: dict[str, Any]


class TrainerInternals(PolicyTrainer, Protocol):
    """The names of `trl.GRPOTrainer` that the seam relies on beyond its public ones."""

    generation_config: Any
    generation_kwargs: dict[str, Any]
    use_adaptive_entropy: bool
    entropy_coef: float
    _tokenizer: Any
    _is_vlm: bool
    _metrics: dict[str, dict[str, list[float]]]
    _logs: dict[str, Any]
    _step: int
    _buffered_inputs: Any
    loss_type: str
    top_entropy_quantile: float
    aux_loss_enabled: bool
    _entropy_bonus_enabled: bool
    _last_world_entropy: float
    tools: list[Callable[..., Any]]
    environment_factories: dict[str | None, Callable[[], Any]] | None
    rollout_func: Callable[..., Any] | None
    max_tool_calling_iterations: int
    chat_template: str | None
    pad_to_multiple_of: int | None
    chat_template_kwargs: dict[str, Any]
    num_generations_eval: int
    environments: list[Any] | None
    reward_processing_classes: list[Any]
    _pending_extra_logs: dict[str, list[Any]]
    _pending_metrics: dict[str, list[float]]

    def save_model(self, output_dir: str, _internal_call: bool) -> None: ...
    def _tokenize_prompts(self, prompts: list[Any]) -> TokenizedPrompts: ...
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


def internals_of(trainer: PolicyTrainer) -> TrainerInternals:
    return cast(TrainerInternals, trainer)


def vllm_of(trainer: PolicyTrainer) -> Any:
    """TRL's `VLLMGeneration`."""
    return cast(VllmInternals, trainer).vllm_generation


def weight_shards(trainer: PolicyTrainer) -> str | None:
    """What splits the weights among several processes, which then wait for each other in each forward pass."""
    if trainer.accelerator.num_processes == 1:
        return None
    if trainer.is_fsdp_enabled:
        return "FSDP"
    plugin = trainer.accelerator.state.deepspeed_plugin if trainer.is_deepspeed_enabled else None
    return "ZeRO-3" if plugin is not None and plugin.zero_stage == 3 else None


@contextmanager
def holding(holder: Any, **values: Any) -> Iterator[None]:
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

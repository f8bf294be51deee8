"""The door to what is private in TRL and transformers' Trainer: when TRL changes, the files behind it change.

Read against trl 1.16 and transformers 5.17; `make test-matrix` runs the tests of the seam against other versions. The
functions are in the files `trl_*.py` beside this one. Private names of TRL appear in one other file only,
`train/trainer.py`, which overrides some methods. vLLM's own internals are in `eval/engines/vllm_seam.py`.
"""

from offleash.callbacks.policy.trl_engine import (
    add_request_options,
    before_generate,
    engine_dtype,
    engine_logps,
    engine_processes,
    is_server,
    set_engine_options,
    shut_down_engine,
    wrap_requests,
)
from offleash.callbacks.policy.trl_generation import (
    generate,
    generating_with,
    sampling_as,
    sampling_group,
    takes_images,
    text_tokenizer,
    tokenize_prompts,
)
from offleash.callbacks.policy.trl_internals import (
    EnvironmentInternals,
    TokenizedPrompts,
    TrainerInternals,
    VllmInternals,
)
from offleash.callbacks.policy.trl_rollouts import (
    Rollouts,
    roll_out,
    rollout_features,
    rollout_settings,
    waits_at_every_turn,
)
from offleash.callbacks.policy.trl_run import (
    checkpoint_folder,
    entropy_controller,
    latest_rollouts,
    log_to_trackio,
    log_to_wandb,
    micro_batch,
    save_model,
    set_device,
    train_metrics,
    train_sampler,
    unsaved_weights,
)
from offleash.callbacks.policy.trl_scoring import (
    entropy_head,
    load_reference,
    model_id,
    nanstd,
    to_device,
    token_logits,
    token_logps,
    without_gradient_checkpointing,
)
from offleash.callbacks.policy.trl_weights import has_adapter_off, take_over_sync

__all__ = [
    "EnvironmentInternals",
    "Rollouts",
    "TokenizedPrompts",
    "TrainerInternals",
    "VllmInternals",
    "add_request_options",
    "before_generate",
    "checkpoint_folder",
    "engine_dtype",
    "engine_logps",
    "engine_processes",
    "entropy_controller",
    "entropy_head",
    "generate",
    "generating_with",
    "has_adapter_off",
    "is_server",
    "latest_rollouts",
    "load_reference",
    "log_to_trackio",
    "log_to_wandb",
    "micro_batch",
    "model_id",
    "nanstd",
    "roll_out",
    "rollout_features",
    "rollout_settings",
    "sampling_as",
    "sampling_group",
    "save_model",
    "set_device",
    "set_engine_options",
    "shut_down_engine",
    "take_over_sync",
    "takes_images",
    "text_tokenizer",
    "to_device",
    "token_logits",
    "token_logps",
    "tokenize_prompts",
    "train_metrics",
    "train_sampler",
    "unsaved_weights",
    "waits_at_every_turn",
    "without_gradient_checkpointing",
    "wrap_requests",
]

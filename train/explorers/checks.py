"""Settings that explorers do not work with: arguments out of range, chains that undo each other, no-op keys."""

import math
from collections.abc import Sequence
from typing import Any

import torch
from trl import GRPOConfig

from offleash.eval.errors import ConfigError
from offleash.train.explorers.base import Explorer, all_correct

BY_LENGTH = ("grpo", "sapo", "bnpo")


def check_at_least_1(explorer: str, **arguments: int | None) -> None:
    """None, where an argument allows it, is not checked."""
    for name, value in arguments.items():
        if value is not None and value < 1:
            raise ConfigError(f"{name} of explorer {explorer} must be at least 1, got {value}")


def check_positive(explorer: str, **arguments: float) -> None:
    for name, value in arguments.items():
        if not 0 < value < math.inf:
            raise ConfigError(f"{name} of explorer {explorer} must be above 0, got {value}")


def check_not_negative(explorer: str, **arguments: float) -> None:
    for name, value in arguments.items():
        if not 0 <= value < math.inf:
            raise ConfigError(f"{name} of explorer {explorer} must be 0 or more, got {value}")


def check_fraction(explorer: str, **arguments: float) -> None:
    for name, value in arguments.items():
        if not 0 < value <= 1:
            raise ConfigError(f"{name} of explorer {explorer} must be above 0 and at most 1, got {value}")


def check_group_size(name: str, k: int, training: GRPOConfig, largest: int) -> None:
    if k > largest:
        raise ConfigError(
            f"explorer {name} would train on nothing: k is {k}, but a group has {training.num_generations} rollouts; "
            "lower k or raise num_generations"
        )


def check_not_by_length(name: str, training: GRPOConfig) -> None:
    """Raise ConfigError for a loss that divides each completion, or each micro-batch, by its number of tokens."""
    if training.loss_type in BY_LENGTH or training.importance_sampling_level != "token":
        raise ConfigError(
            f"explorer {name} needs a loss that is not divided by each completion's length, or its objective is "
            "another: set loss_type to dapo, dr_grpo, luspo or cispo, and importance_sampling_level to token"
        )


def overrides(explorer: Explorer, hook: str) -> bool:
    """Whether its class overrides the hook."""
    return getattr(type(explorer), hook) is not getattr(Explorer, hook)


def check_chain(explorers: Sequence[Explorer]) -> None:
    """Raise ConfigError if one explorer of a run would discard what another one did.

    An explorer that recomputes advantages must come first, and ignores shaped rewards. Only one explorer can draw the
    batch, and a group has room for one trace. A method `require`, the former name of `check`, would never be called.
    """
    for explorer in explorers:
        if hasattr(explorer, "require"):
            raise ConfigError(f"{type(explorer).__name__}.require is never called: rename it to check")
    for hook in ("collect", "traces"):
        if len(both := [type(e).__name__ for e in explorers if overrides(e, hook)]) > 1:
            raise ConfigError(f"{' and '.join(both)} cannot be combined, only one explorer may have {hook}: choose one")
    for place, explorer in enumerate(explorers):
        if not explorer.replaces_advantages:
            continue
        name = type(explorer).__name__
        dropped = [type(e).__name__ for e in explorers[:place] if overrides(e, "advantages")]
        if dropped:
            raise ConfigError(
                f"{name} recomputes the advantages and would discard those of {' and '.join(dropped)}: "
                + (f"list {name} first" if not explorers[0].replaces_advantages else "choose one of them")
            )
        ignored = [type(e).__name__ for e in explorers if e is not explorer and overrides(e, "rewards")]
        if ignored:
            raise ConfigError(
                f"{name} computes advantages from the true rewards and would ignore those of {' and '.join(ignored)}: "
                "choose one of them"
            )


def check_rewards_used(
    explorers: Sequence[Explorer], rewards: Sequence[str], weights: Sequence[float], training: GRPOConfig
) -> None:
    """Raise ConfigError if an explorer would discard what the run's reward functions give besides 0 and 1."""
    for explorer in explorers:
        name = type(explorer).__name__
        if explorer.replaces_advantages and (len(rewards) > 1 or weights[0] != 1):
            told = ", ".join(f"{weight:g} x {reward}" for reward, weight in zip(rewards, weights, strict=True))
            raise ConfigError(
                f"{name} computes advantages from the verifier's 0 and 1 and would ignore the rewards {told}: keep the "
                "verifier alone, at weight 1, or choose another explorer"
            )
        if overrides(explorer, "rewards") and training.multi_objective_aggregation != "sum_then_normalize":
            raise ConfigError(
                f"{name} changes the sum of the rewards: set multi_objective_aggregation to sum_then_normalize"
            )


def check_shape(explorer: Explorer, hook: str, value: Any, shape: torch.Size) -> None:
    if not torch.is_tensor(value) or value.shape != shape:
        got = f"shape {tuple(value.shape)}" if torch.is_tensor(value) else repr(value)
        raise ConfigError(
            f"explorer {type(explorer).__name__}: {hook} must return a tensor of shape {tuple(shape)}, got {got}"
        )


def check_solved_alike(
    explorer: Explorer, rewards_pg: torch.Tensor, before_pg: torch.Tensor, advantages_pg: torch.Tensor
) -> None:
    """Raise ConfigError if it tells the rollouts of an all-correct group apart that were equal before."""
    alike_p1 = all_correct(rewards_pg) & (_spread(rewards_pg, before_pg) <= 1e-6)
    if (alike_p1 & (_spread(rewards_pg, advantages_pg) > 1e-6)).any():
        raise ConfigError(
            f"explorer {type(explorer).__name__}: advantages must be equal for all rollouts of a group that is all "
            "correct (offleash.train.explorers.base.all_correct finds such groups)"
        )


def _spread(rewards_pg: torch.Tensor, values_pg: torch.Tensor) -> torch.Tensor:
    """(P, 1) from the lowest to the highest value of the rollouts that were scored; -inf without any."""
    failed_pg = rewards_pg.isnan()
    highest_p1 = values_pg.masked_fill(failed_pg, -torch.inf).amax(1, keepdim=True)
    return highest_p1 - values_pg.masked_fill(failed_pg, torch.inf).amin(1, keepdim=True)


def updates_per_rollout(training: GRPOConfig) -> int:
    """Optimizer steps from one rollout until a step and a rollout next start together (read against trl 1.16).

    If it is 1, the policy that is updated is the one that drew the rollouts: all ratios are 1.
    """
    micro_batches = training.steps_per_generation * training.num_iterations
    return math.lcm(micro_batches, training.gradient_accumulation_steps) // training.gradient_accumulation_steps


def no_op_settings(training: GRPOConfig) -> list[str]:
    """One line for each key that is set and has no effect."""
    if updates_per_rollout(training) > 1:
        return []
    return [
        f"{key} has no effect with one update per rollout, where no ratio is ever clipped: set steps_per_generation "
        "(or num_iterations) above gradient_accumulation_steps"
        for key in ("epsilon_high", "delta")
        if getattr(training, key) is not None
    ]

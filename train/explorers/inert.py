"""Settings under which a method does nothing."""

import math

from trl import GRPOConfig

from offleash.eval.errors import ConfigError


def updates_per_rollout(training: GRPOConfig) -> int:
    """Optimizer steps from one rollout to where a step and a rollout next begin together (read against trl 1.16).

    With one, the policy is still the one that drew them: ratios are 1.
    """
    micro_batches = training.steps_per_generation * training.num_iterations
    return math.lcm(micro_batches, training.gradient_accumulation_steps) // training.gradient_accumulation_steps


def inert_settings(training: GRPOConfig) -> list[str]:
    """One line for each key that was set and changes nothing."""
    if updates_per_rollout(training) > 1:
        return []
    return [
        f"{key} does nothing with one update per rollout, where no ratio is ever clipped: set steps_per_generation (or "
        "num_iterations) above gradient_accumulation_steps"
        for key in ("epsilon_high", "delta")
        if getattr(training, key) is not None
    ]


def require_group(name: str, k: int, training: GRPOConfig, largest: int | None = None) -> None:
    """Raise ConfigError if a group has too few rollouts for an explorer's k, at most num_generations or `largest`."""
    if k > (training.num_generations if largest is None else largest):
        raise ConfigError(
            f"explorer {name} would train on nothing: k is {k}, but a group has {training.num_generations} rollouts; "
            "lower k or raise num_generations"
        )

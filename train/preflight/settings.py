"""Settings of a recipe under which a resumed run would leave its trajectory."""

from trl import GRPOConfig

from offleash.eval.errors import ConfigError
from offleash.train.explorers.checks import updates_per_rollout
from offleash.train.recipe.config import Recipe


def check_aligned_saves(recipe: Recipe) -> None:
    """A checkpoint in the middle of a rollout's updates loses the rest of them: a resume would leave the trajectory."""
    training = recipe.training
    updates = updates_per_rollout(training)
    if updates == 1:
        return
    spans = {"save_steps": int(training.save_steps)} if training.save_strategy == "steps" else {}
    if recipe.run.guards:
        spans["monitor_every"] = recipe.run.monitor_every
    for key, steps in spans.items():
        if steps % updates:
            raise ConfigError(
                f"{key} is {steps}, but each rollout serves {updates} steps (steps_per_generation x num_iterations / "
                f"gradient_accumulation_steps): choose a multiple, or a run resumed there leaves its trajectory"
            )


def check_synced_reference(training: GRPOConfig) -> None:
    """TRL does not save the reference it moves: a resumed run would be held to another one."""
    if training.sync_ref_model:
        raise ConfigError(
            "sync_ref_model loses its reference when a run is resumed: use explorer: {reference_reset: {every: "
            f"{training.ref_model_sync_steps}, alpha: {training.ref_model_mixup_alpha}, reset_optimizer: false}}}}"
        )

"""The trainer of a recipe: explorers, checkpoints that are complete and load whole, and the model card."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from offleash.callbacks import SupportCallback
from offleash.callbacks.policy.trl_seam import (
    checkpoint_folder,
    entropy_controller,
    model_id,
    takes_images,
    unsaved_weights,
)
from offleash.callbacks.watch.sealed import seal
from offleash.eval.console import say
from offleash.eval.errors import ConfigError
from offleash.eval.files import write_atomic
from offleash.eval.images import with_pictures
from offleash.train.explorers.base import Explorer
from offleash.train.exploring import Exploring
from offleash.train.publish import base_name, complete_card, model_only
from offleash.train.rewards import VerifierReward
from offleash.train.run_folder.checkpoints import step_of


class ExploringTrainer(Exploring):
    """The trainer of a recipe. `reward` is the task's verifier, and `rewards`, which begin with it, are what TRL adds
    up; None: the verifier alone."""

    def __init__(
        self,
        *args: Any,
        reward: VerifierReward,
        rewards: Sequence[Any] | None = None,
        explorers: Sequence[Explorer] = (),
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, reward_funcs=list(rewards or [reward]), **kwargs)
        self.begin_exploring(reward, explorers)

    when_loaded: Callable[[], object] | None = None
    """Called on every rank once a checkpoint has been loaded, before the callbacks begin."""
    _resumed_from: str | None = None

    def _shown(self, inputs: list[dict[str, Any]]) -> list[dict[str, Any]]:
        if not takes_images(self):
            return inputs
        prompts = {row["problem_id"]: row["prompt"] for row in inputs}
        with_images = {problem_id: with_pictures(prompt) for problem_id, prompt in prompts.items()}
        return [{**row, "prompt": with_images[row["problem_id"]]} for row in inputs]

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        folder, state = checkpoint_folder(self, trial), entropy_controller(self)
        if state is not None and self.accelerator.is_main_process:
            # TRL writes this file too, but after the trainer's state, by which a checkpoint counts as complete.
            folder.mkdir(parents=True, exist_ok=True)
            write_atomic(folder / "entropy_ctrl_state.json", json.dumps(state).encode())
        super()._save_checkpoint(model, trial)
        self.accelerator.wait_for_everyone()  # every rank writes its random state
        if self.accelerator.is_main_process:
            seal(folder)
        self.accelerator.wait_for_everyone()  # an interrupted run ends here: the launcher ends whoever is not done

    def _load_from_checkpoint(self, checkpoint: str, model: Any = None) -> None:
        self._resumed_from = checkpoint
        try:
            super()._load_from_checkpoint(checkpoint, model)
        finally:
            self._resumed_from = None

    def _load_best_model(self) -> None:
        self._resumed_from = self.state.best_model_checkpoint
        try:
            super()._load_best_model()
        finally:
            self._resumed_from = None

    @property
    def best_step(self) -> int | None:
        """The step of the weights that `load_best_model_at_end` has loaded; None before the end and without it."""
        is_loaded = self.args.load_best_model_at_end and self.state.best_model_checkpoint and not self.is_in_train
        return step_of(Path(self.state.best_model_checkpoint)) if is_loaded else None

    def _issue_warnings_after_load(self, loaded: Any) -> None:
        """Some models, such as vision-language ones, name their weights differently in files than in memory.

        The Trainer then only warns that all keys are missing, and would continue with the weights of step 0.
        """
        if self._resumed_from is None:
            super()._issue_warnings_after_load(loaded)
            return
        if set(loaded.missing_keys) - unsaved_weights(self.model) or loaded.unexpected_keys:
            load = type(self.model).from_pretrained
            stored, info = load(self._resumed_from, dtype=torch.float32, output_loading_info=True)
            if lacking := sorted(info["missing_keys"]):
                raise ConfigError(
                    f"{self._resumed_from} is missing {len(lacking)} weights of this model ({', '.join(lacking[:3])}): "
                    "resume from another checkpoint"
                )
            self.model.load_state_dict(stored.state_dict())

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        super()._load_optimizer_and_scheduler(checkpoint)
        if checkpoint is not None and self.when_loaded is not None:
            self.when_loaded()

    def create_model_card(self, *args: Any, **kwargs: Any) -> None:
        super().create_model_card(*args, **kwargs)
        if not self.is_world_process_zero():
            return
        base = base_name(model_id(self.model))
        try:
            complete_card(Path(self.args.output_dir), self._probe_name(), base, self.best_step)
        except Exception as error:  # a model card must not end a run
            say(f"offleash: WARNING: the model card has no support table: {error!r}")

    def _probe_name(self) -> str:
        """The task of the problems in the card's support table."""
        monitors = [each for each in self.callback_handler.callbacks if isinstance(each, SupportCallback)]
        return str(monitors[0].task.name if monitors else self.verifier.task.name)

    def _push_from_checkpoint(self, checkpoint_folder: str) -> None:
        if self.is_world_process_zero() and self.args.hub_strategy != "end":
            with model_only(self.args):
                super()._push_from_checkpoint(checkpoint_folder)

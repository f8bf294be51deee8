"""One run: recipe -> tasks, trainer, callbacks -> checkpoints, pools, event files."""

import json
import os
import shutil
from pathlib import Path

from accelerate import PartialState
from datasets import Dataset
from transformers import AutoTokenizer, PrinterCallback, ProgressCallback
from transformers.utils.logging import disable_progress_bar
from trl import GRPOTrainer, get_peft_config, get_quantization_config

from offleash.callbacks import RolloutCallback, SupportCallback, SupportGuard
from offleash.callbacks.ranks import Ranks
from offleash.callbacks.summary import HISTORY, run_summary
from offleash.callbacks.tensorboard import trim_events
from offleash.eval.errors import ConfigError
from offleash.eval.tasks import Task, load_task
from offleash.train.checkpoints import last_whole_checkpoint, remove_torn
from offleash.train.config import Recipe, save_resolved
from offleash.train.console import ProgressBar
from offleash.train.rewards import VerifierReward

__all__ = ["build_trainer", "run", "training_dataset"]

RESOLVED = "recipe.yaml"


def run(recipe: Recipe) -> GRPOTrainer | None:
    """Train as the recipe says; continue a killed run where `resume` asks for it. None if it had ended already."""
    folder = Path(recipe.training.output_dir)
    os.environ.setdefault("TENSORBOARD_LOGGING_DIR", str(folder / "tensorboard"))
    ranks = Ranks(PartialState())
    checkpoint = ranks.from_main(lambda: _prepare_folder(recipe, folder))
    if checkpoint and _has_ended(checkpoint, recipe.training.max_steps):
        if ranks.is_main:
            print(f"offleash: {folder} has ended already ({checkpoint.name}); nothing to train")
            print(run_summary(folder) if (folder / HISTORY).exists() else "")
        return None
    disable_progress_bar()  # of loading and saving weights
    trainer = build_trainer(recipe)
    trainer.train(resume_from_checkpoint=str(checkpoint) if checkpoint else None)
    trainer.save_model(str(folder / "final"))
    # Ranks that leave one by one break each other's connections, and a run that ended well would exit with an abort.
    trainer.accelerator.wait_for_everyone()
    trainer.accelerator.end_training()
    return trainer


def build_trainer(recipe: Recipe) -> GRPOTrainer:
    """TRL's trainer with a verifier as its reward, and the callbacks that the recipe asks for."""
    run, training, model = recipe
    train_task, probe_task = load_task(run.task, **run.train_task_args), load_task(run.task, **run.probe_task_args)
    tokenizer = AutoTokenizer.from_pretrained(
        model.model_name_or_path, revision=model.model_revision, padding_side="left", truncation_side="left"
    )
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    training.model_init_kwargs = {
        "revision": model.model_revision,
        "attn_implementation": model.attn_implementation,
        "dtype": model.dtype,
        **(training.model_init_kwargs or {}),
    }
    reward = VerifierReward(train_task, end_token_ids=[])
    trainer = GRPOTrainer(
        model=model.model_name_or_path,
        reward_funcs=[reward],
        args=training,
        train_dataset=training_dataset(train_task),
        processing_class=tokenizer,
        quantization_config=get_quantization_config(model),
        peft_config=get_peft_config(model),
    )
    reward.end_token_ids = frozenset([*trainer.eos_token_ids, tokenizer.pad_token_id])
    _add_callbacks(trainer, recipe, train_task, probe_task)
    return trainer


def training_dataset(task: Task) -> Dataset:
    """The columns TRL needs: the prompt, and the id by which the reward finds the problem again."""
    return Dataset.from_list([{"prompt": problem.prompt, "problem_id": problem.id} for problem in task.problems])


def _add_callbacks(trainer: GRPOTrainer, recipe: Recipe, train_task: Task, probe_task: Task) -> None:
    run = recipe.run
    for noisy in (PrinterCallback, ProgressCallback):
        trainer.remove_callback(noisy)
    if not recipe.training.disable_tqdm:
        trainer.add_callback(ProgressBar)
    if run.rollout_metrics:
        trainer.add_callback(RolloutCallback(trainer, train_task))
    if not run.monitor_every:
        if run.guards:
            raise ConfigError(f"guards {run.guards} need the monitor: set monitor_every to a number of steps")
        return
    monitor = SupportCallback(
        trainer,
        probe_task,
        k=run.monitor_k,
        every=run.monitor_every,
        score_k=run.monitor_score_k,
        batch_size=run.monitor_batch_size,
        seed=run.monitor_seed,
        temperature=run.monitor_temperature,
        top_p=run.monitor_top_p,
        max_new_tokens=run.monitor_max_new_tokens,
        base_pools=run.monitor_base_pools,
    )
    trainer.add_callback(monitor)
    if run.guards:
        trainer.add_callback(SupportGuard(monitor, run.guards))


def _prepare_folder(recipe: Recipe, folder: Path) -> Path | None:
    """The checkpoint to continue from, None to start afresh; what lies after it is removed."""
    if (folder / RESOLVED).exists() and not recipe.run.resume:
        raise ConfigError(f"{folder} already holds a run: add --resume to continue it, or choose another --output_dir")
    checkpoint = last_whole_checkpoint(folder, recipe.training.world_size)
    if checkpoint and _has_ended(checkpoint, recipe.training.max_steps):
        return checkpoint
    for torn in remove_torn(folder, checkpoint):
        print(f"offleash: {torn} was not written to its end and is removed", flush=True)
    step = int(checkpoint.name.removeprefix("checkpoint-")) if checkpoint else -1
    if checkpoint is None:
        shutil.rmtree(folder / "pools", ignore_errors=True)
    dropped = trim_events(Path(os.environ["TENSORBOARD_LOGGING_DIR"]), step)
    if checkpoint is not None:
        print(f"offleash: continuing from {checkpoint} ({dropped} later events dropped from TensorBoard)", flush=True)
    save_resolved(recipe, folder / RESOLVED)
    return checkpoint


def _has_ended(checkpoint: Path, max_steps: int) -> bool:
    """The Trainer, resumed at its last step, would take one step more."""
    state = json.loads((checkpoint / "trainer_state.json").read_text())
    return bool(state["global_step"] >= (max_steps if max_steps > 0 else state["max_steps"]))

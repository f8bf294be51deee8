"""One run, from a recipe to its output: tasks, trainer and callbacks; checkpoints, pools and event files."""

import os
import shutil
from dataclasses import fields
from pathlib import Path

import torch
from accelerate import PartialState
from datasets import Dataset
from transformers import PrinterCallback, ProgressCallback, TrainingArguments
from transformers.utils.logging import disable_progress_bar
from trl import get_peft_config, get_quantization_config

from offleash.callbacks import RolloutCallback, SupportCallback, SupportGuard
from offleash.callbacks.contamination import check_dataset_contamination
from offleash.callbacks.policy.ranks import Ranks
from offleash.callbacks.policy.trl_seam import (
    save_model,
    seed_rollouts,
    set_device,
    shut_down_engine,
    text_tokenizer,
)
from offleash.callbacks.summary import read_record, run_summary
from offleash.callbacks.weight_sync import WeightSyncCheck
from offleash.eval.console import say
from offleash.eval.fingerprint import problems_fingerprint
from offleash.eval.images import as_parts
from offleash.eval.lock import hold
from offleash.eval.problem import Task
from offleash.eval.secrets import hide
from offleash.eval.tasks import load_task
from offleash.eval.verify.dry_call import check_task
from offleash.train.engine_ratio import EngineRatioWarning
from offleash.train.explorers.checks import no_op_settings
from offleash.train.interrupt import InterruptCallback
from offleash.train.preflight.attention import check_attention
from offleash.train.preflight.chat import check_chat_template, check_thinking
from offleash.train.preflight.images import all_have_images, check_takes_images, hide_image_token, load_processor
from offleash.train.preflight.launch import check_frozen_models, check_launch
from offleash.train.preflight.precision import accumulate_in_float32, check_precision, check_weight_dtype
from offleash.train.preflight.recipe_checks import (
    check_aligned_saves,
    check_best_metric,
    check_explorers,
    check_guards_have_monitor,
    check_synced_reference,
)
from offleash.train.preflight.vllm_cpu import prepare_vllm
from offleash.train.progress import ProgressBar
from offleash.train.publish import copy_card, push_final, repo_name
from offleash.train.recipe.config import Recipe, move_tokens
from offleash.train.rewards import VerifierReward, reward_functions
from offleash.train.run_folder.checkpoints import best_checkpoint, export_final
from offleash.train.run_folder.folder import FINAL, FORMER, PART, begin, events_folder, find_start
from offleash.train.trainer import ExploringTrainer


def train(recipe: Recipe) -> ExploringTrainer | None:
    """Train a recipe; with `resume`, continue an interrupted run from its last checkpoint.

    Checkpoints, pools, event files, the resolved recipe and the final model are written to the recipe's `output_dir`.
    On several GPUs or CPUs, call it from a script that `accelerate launch` starts.

    Args:
        recipe: from `load_recipe`.

    Returns:
        The trainer after its last step, or None if the run had already finished when it was resumed.

    Raises:
        ConfigError: for settings that would fail, or would silently train something else than was asked for.
        KeyboardInterrupt: after Ctrl-C, once the step is complete and a checkpoint saved.

    Example:
        >>> from offleash.train import load_recipe, train
        >>> recipe = load_recipe(
        ...     "lab",
        ...     output_dir="runs/short",
        ...     max_steps=1,
        ...     train_args={"split": "train", "n": 64},
        ...     per_device_train_batch_size=16,
        ...     monitor_every=0,
        ...     disable_tqdm=True,
        ...     use_cpu=True,
        ... )
        >>> trainer = train(recipe)
        >>> trainer.state.global_step
        1
        >>> from pathlib import Path
        >>> sorted(path.name for path in Path("runs/short").iterdir() if path.is_dir())
        ['checkpoint-1', 'final']
    """
    folder = Path(recipe.training.output_dir)
    os.environ["TENSORBOARD_LOGGING_DIR"] = str(events_folder(folder))
    move_tokens(recipe.training)
    _plain_cpu(recipe.training)
    check_launch()
    check_precision(recipe.training)
    check_frozen_models(recipe)
    accumulate_in_float32(recipe.training)
    ranks = Ranks(PartialState())
    lock = ranks.on_main(lambda: hold(folder, f"another process is training in {folder}: wait for it or end it"))
    try:
        return _run_in(recipe, folder, ranks)
    finally:
        if lock is not None:
            os.close(lock)


def _run_in(recipe: Recipe, folder: Path, ranks: Ranks) -> ExploringTrainer | None:
    start = ranks.from_main(lambda: find_start(recipe, folder))
    checkpoint = start.checkpoint
    if (reason := start.ended) is not None:
        ranks.on_main(lambda: _close(folder, checkpoint, reason, recipe.training))
        return None
    disable_progress_bar()  # those of loading and saving weights
    trainer = build_trainer(recipe)
    check_launch()  # only now it is known whether DeepSpeed or FSDP is active
    problems = problems_fingerprint(trainer.verifier.task.problems)[:16]

    def prepare() -> None:
        ranks.on_main(lambda: begin(recipe, folder, start.choice, problems))

    if checkpoint is None:
        prepare()
    trainer.when_loaded = prepare
    interrupts = InterruptCallback(trainer)
    trainer.add_callback(interrupts)
    with interrupts.listening():
        trainer.train(resume_from_checkpoint=str(checkpoint) if checkpoint else None)
    ranks.on_main(lambda: _say_best(trainer))
    trainer.create_model_card(model_name=repo_name(recipe.training).split("/")[-1])
    save_model(trainer, folder / PART)
    trainer.accelerator.wait_for_everyone()
    ranks.on_main(lambda: _finish(folder, recipe.training))
    # Ranks that exit one by one break each other's connections: a successful run would end with an abort.
    trainer.accelerator.wait_for_everyone()
    if recipe.training.use_vllm and recipe.training.vllm_mode == "colocate":
        # Its process groups are parts of ours: left to the exit, it would not find them any more.
        shut_down_engine(trainer)
    trainer.accelerator.end_training()
    return trainer


def _say_best(trainer: ExploringTrainer) -> None:
    if (step := trainer.best_step) is not None:
        metric, value = trainer.args.metric_for_best_model, trainer.state.best_metric
        say(f"offleash: {FINAL} has the weights of step {step}, the best by {metric} ({value:.4g})")


def _plain_cpu(training: TrainingArguments) -> None:
    """In several CPU processes the device is "cpu:0", a name that torch.load cannot map to: a resume would crash."""
    if training.device.type == "cpu":
        os.environ.setdefault("DS_ACCELERATOR", "cpu")  # or DeepSpeed, if installed, warns that it found no GPU
    if training.device.type == "cpu" and training.device.index is not None:
        device = PartialState().device = torch.device("cpu")
        set_device(training, device)


def _finish(folder: Path, training: TrainingArguments) -> None:
    (folder / PART).rename(folder / FINAL)
    shutil.rmtree(folder / FORMER, ignore_errors=True)
    _publish(folder, training)


def _publish(folder: Path, training: TrainingArguments) -> None:
    copy_card(folder, folder / FINAL)
    if training.push_to_hub:
        push_final(training, folder / FINAL)


def _close(folder: Path, checkpoint: Path | None, reason: str, training: TrainingArguments) -> None:
    """Complete a run that had finished when it was resumed: a kill at the very end may have cost it its final model."""
    where = f"{checkpoint.name}: {reason}" if checkpoint else reason
    say(f"offleash: {folder} has already finished ({where}); nothing to train")
    shutil.rmtree(folder / PART, ignore_errors=True)
    if checkpoint and not (folder / FINAL).exists():
        source = best_checkpoint(folder, checkpoint) if training.load_best_model_at_end else checkpoint
        export_final(source, folder / FINAL)
        say(f"offleash: {folder / FINAL} was missing and has been exported from {source.name}")
    shutil.rmtree(folder / FORMER, ignore_errors=True)
    _publish(folder, training)
    if (record := read_record(folder)) is not None and record["steps"]:
        say(run_summary(record, folder))


def build_trainer(recipe: Recipe) -> ExploringTrainer:
    """The trainer of a recipe: the verifier as its reward, explorers and callbacks."""
    run, training, model = recipe
    train_task = load_task(run.task, **run.train_task_args)
    probe_task = load_task(run.probe_name, **run.probe_task_args)
    check_task(train_task)
    with_images, explorers = all_have_images(train_task, probe_task), check_explorers(recipe)
    if with_images:
        check_takes_images(explorers, training)
    own_rewards = any(":" in name for name in run.rewards)
    dataset = training_dataset(train_task, with_images, golds=own_rewards)
    check_dataset_contamination(dataset, probe_task)
    check_aligned_saves(recipe)
    check_best_metric(recipe)
    check_synced_reference(training)
    processor = load_processor(model, with_images)
    check_chat_template(processor, train_task, probe_task)
    check_thinking(processor, training.chat_template_kwargs, train_task, probe_task)
    check_attention(model, training)
    training.model_init_kwargs = {
        "revision": model.model_revision,
        "attn_implementation": model.attn_implementation,
        "dtype": model.dtype,
        **(training.model_init_kwargs or {}),
    }
    check_weight_dtype(training, model)
    prepare_vllm(training, model.model_name_or_path)
    reward = VerifierReward(train_task, end_token_ids=[])
    trainer = ExploringTrainer(
        model=model.model_name_or_path,
        reward=reward,
        rewards=reward_functions(run.rewards, reward),
        explorers=explorers,
        args=training,
        train_dataset=dataset,
        processing_class=processor,
        quantization_config=get_quantization_config(model),
        peft_config=get_peft_config(model),
    )
    seed_rollouts(trainer, training.seed)
    _hide_passwords(training)
    reward.end_token_ids = frozenset([*trainer.eos_token_ids, text_tokenizer(trainer).pad_token_id])
    if with_images:
        hide_image_token(trainer)
    _add_callbacks(trainer, recipe, train_task, probe_task)
    for line in no_op_settings(training):
        if trainer.accelerator.is_local_main_process:
            say(f"offleash: WARNING: {line}")
    return trainer


def _hide_passwords(training: TrainingArguments) -> None:
    """In URLs, which the trainer has used by now: its arguments are saved with every checkpoint."""
    for field in fields(training):
        if isinstance(value := getattr(training, field.name), str) and (hidden := hide(value)) != value:
            setattr(training, field.name, hidden)


def training_dataset(task: Task, with_images: bool = False, golds: bool = False) -> Dataset:
    """The columns TRL needs: the prompt, and the id by which the verifier finds the problem.

    `golds`: also the reference answers, for reward functions of the user's own.
    """
    shown = as_parts if with_images else lambda prompt: prompt  # all prompts of one type
    rows = [{"prompt": shown(p.prompt), "problem_id": p.id, "gold": p.gold} for p in task.problems]
    dataset = Dataset.from_list(rows)
    return dataset if golds else dataset.remove_columns("gold")


def _add_callbacks(trainer: ExploringTrainer, recipe: Recipe, train_task: Task, probe_task: Task) -> None:
    run = recipe.run
    for noisy in (PrinterCallback, ProgressCallback):
        trainer.remove_callback(noisy)
    if not recipe.training.disable_tqdm:
        trainer.add_callback(ProgressBar)
    if recipe.training.use_vllm:
        trainer.add_callback(WeightSyncCheck(trainer, train_task))
        trainer.add_callback(EngineRatioWarning())
    if run.rollout_metrics:
        trainer.add_callback(RolloutCallback(trainer, train_task))
    check_guards_have_monitor(run)
    if not run.monitor_every:
        return
    monitor = SupportCallback(
        trainer,
        probe_task,
        k=run.monitor_k,
        successes=run.monitor_successes,
        every=run.monitor_every,
        score_k=run.monitor_score_k,
        batch_size=run.monitor_batch_size,
        seed=run.monitor_seed,
        temperature=run.monitor_temperature,
        top_p=run.monitor_top_p,
        max_new_tokens=run.monitor_max_new_tokens,
        base_pools=run.monitor_base_pools,
        importance=run.monitor_importance,
        exact=run.monitor_exact,
    )
    trainer.add_callback(monitor)
    if run.guards:
        trainer.add_callback(SupportGuard(monitor, run.guards))

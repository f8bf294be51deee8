"""Cost of monitoring: seconds per step of plain TRL, of Offleash without the monitor, and with the monitor of the lab.

    python bench/monitor.py            # the lab's 200 steps, three times: about 10 minutes on 2 cores
    python bench/monitor.py --repeats 3

All three train the same model on the same problems with the same settings, one after another in one process, so that
the ratios are meaningful on any machine. The base pool is drawn before the clock starts, once for all runs.
"""

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from trl import GRPOTrainer

from offleash.callbacks import SupportCallback
from offleash.eval.tasks import load_task
from offleash.train.grpo import build_trainer, training_dataset
from offleash.train.recipe.config import Recipe, parse_recipe
from offleash.train.rewards import VerifierReward


def recipe(folder: Path, steps: int | None, *flags: str) -> Recipe:
    length = ["--max_steps", str(steps)] if steps else []
    quiet = ["--disable_tqdm", "true", "--save_strategy", "no"]
    return parse_recipe(["--config", "lab", "--output_dir", str(folder), *length, *quiet, *flags])


def plain_trl(folder: Path, steps: int | None) -> GRPOTrainer:
    """What a user would write without Offleash, except for the verifier."""
    run, training, model = recipe(folder, steps)
    task = load_task(run.task, **run.train_task_args)
    training.model_init_kwargs = {"dtype": model.dtype}
    return GRPOTrainer(
        model=model.model_name_or_path,
        reward_funcs=[VerifierReward(task, end_token_ids=[0, 1])],
        args=training,
        train_dataset=training_dataset(task),
    )


def ours(folder: Path, steps: int | None) -> GRPOTrainer:
    return build_trainer(recipe(folder, steps, "--monitor_every", "0"))


def ours_watched(folder: Path, steps: int | None) -> GRPOTrainer:
    trainer = build_trainer(recipe(folder, steps))
    monitor = next(cb for cb in trainer.callback_handler.callbacks if isinstance(cb, SupportCallback))
    trainer.model_wrapped = trainer.model
    monitor._prepare_base(0)
    return trainer


def seconds_per_step(trainer: GRPOTrainer) -> float:
    start = time.perf_counter()
    trainer.train()
    return (time.perf_counter() - start) / trainer.state.global_step


def main(argv: Sequence[str] | None = None) -> list[tuple[str, float]]:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, help="default: the recipe's")
    parser.add_argument("--repeats", type=int, default=1)
    options = parser.parse_args(argv)
    kinds = {"plain TRL": plain_trl, "ours, no monitor": ours, "ours, monitor": ours_watched}
    times: dict[str, list[float]] = {name: [] for name in kinds}
    with tempfile.TemporaryDirectory() as scratch:
        for repeat in range(options.repeats):
            for name, make in kinds.items():
                folder = Path(scratch) / f"{repeat}-{name.replace(' ', '-')}"
                os.environ["TENSORBOARD_LOGGING_DIR"] = str(folder / "tensorboard")
                times[name].append(seconds_per_step(make(folder, options.steps)))
    print(f"\n{'':20}{'s/step':>8}{'ratio':>8}")
    reference = statistics.median(times["plain TRL"])
    for name, values in times.items():
        print(f"{name:20}{statistics.median(values):8.3f}{statistics.median(values) / reference:8.3f}")
    return [
        (f"seconds per step of {name} against plain TRL", statistics.median(values) / reference)
        for name, values in times.items()
        if name != "plain TRL"
    ]


def quick() -> list[tuple[str, float]]:
    """For `make bench`."""
    return main(["--steps", "100"])


if __name__ == "__main__":
    main()

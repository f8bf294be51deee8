"""What exploring costs: CPU seconds per step of every variant over plain TRL's.

    python bench/explorers.py                    # every recipe under recipes/variants: some 25 minutes of one core
    python bench/explorers.py --variants focal ucpo

Each round trains every variant for a few steps of the lab, in one process, and plain TRL before them, in their midst
and after them; shown is the ratio to the median of these three, and of that the median over rounds. Per step means per
rollout: variants with two updates for each rollout are measured against plain TRL with two updates. The first steps of
each training are not counted, nor is what a variant draws before the first step.
"""

import argparse
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from transformers import TrainerCallback
from trl import GRPOTrainer

from offleash.eval.tasks import load_task
from offleash.train.config import RECIPES, Recipe, load_recipe
from offleash.train.grpo import build_trainer, training_dataset
from offleash.train.rewards import VerifierReward

WARM_UP = 3


class Clock(TrainerCallback):
    """The process's CPU seconds at the end of each step."""

    def __init__(self) -> None:
        self.ends: list[float] = []

    def on_step_end(self, *args: Any, **kwargs: Any) -> None:
        self.ends.append(time.process_time())

    def seconds_per_rollout(self, updates: int) -> float:
        ends = self.ends[WARM_UP * updates :: updates]
        return statistics.median(after - before for before, after in pairwise(ends))


def recipe(folder: Path, steps: int, *configs: str) -> Recipe:
    overlays = [word for name in configs for word in ("--config", name)]
    flags = ["--monitor_every", "0", "--disable_tqdm", "true", "--save_strategy", "no", "--report_to", "none"]
    if "variants/reference_reset" in configs:
        flags += ["--explorer.every", "4"]  # so that a few steps have a reset in them
    made = load_recipe(["--config", "lab", *overlays, "--output_dir", str(folder), *flags])
    made.training.max_steps = (WARM_UP + steps + 1) * updates(made)
    return made


def updates(made: Recipe) -> int:
    return int(made.training.steps_per_generation)


def plain_trl(made: Recipe) -> GRPOTrainer:
    """What a user writes without Offleash, but for the verifier."""
    task = load_task(made.run.task, **made.run.train_task_args)
    made.training.model_init_kwargs = {"dtype": made.model.dtype}
    return GRPOTrainer(
        model=made.model.model_name_or_path,
        reward_funcs=[VerifierReward(task, end_token_ids=[0, 1])],
        args=made.training,
        train_dataset=training_dataset(task),
    )


def measured(trainer: GRPOTrainer, made: Recipe) -> float:
    clock = Clock()
    trainer.add_callback(clock)
    trainer.train()
    return clock.seconds_per_rollout(updates(made))


def rounds(names: Sequence[str], steps: int, count: int, folder: Path) -> Iterator[tuple[float, dict[str, float]]]:
    """Of each round the CPU seconds of plain TRL's step, and each variant's ratio to plain TRL."""
    recipes = {name: recipe(folder, steps, f"variants/{name}") for name in names}
    references = {1: [], **{updates(made): ["variants/two_updates"] for made in recipes.values() if updates(made) > 1}}
    measured(*stock(folder, steps, []))  # the first training of a process is slower
    for _ in range(count):
        seconds: dict[str, float] = {}
        plain: dict[int, list[float]] = {n: [] for n in references}
        for i, name in enumerate(names):
            if i in {0, len(names) // 2}:
                add_plain(plain, references, folder, steps)
            made = recipe(folder, steps, f"variants/{name}")
            seconds[name] = measured(build_trainer(made), made)
            print(f"{name} {seconds[name]:.3f} s", file=sys.stderr)
        add_plain(plain, references, folder, steps)
        usual = {n: statistics.median(values) for n, values in plain.items()}
        yield usual[1], {name: seconds[name] / usual[updates(recipes[name])] for name in names}


def add_plain(plain: dict[int, list[float]], references: Mapping[int, Sequence[str]], folder: Path, steps: int) -> None:
    for count, overlays in references.items():
        plain[count].append(measured(*stock(folder, steps, overlays)))


def stock(folder: Path, steps: int, overlays: Sequence[str]) -> tuple[GRPOTrainer, Recipe]:
    made = recipe(folder, steps, *overlays)
    return plain_trl(made), made


def main() -> None:
    shipped = sorted(path.stem for path in (RECIPES / "variants").glob("*.yaml"))
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--variants", nargs="+", default=shipped)
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        os.environ["TENSORBOARD_LOGGING_DIR"] = scratch
        found = list(rounds(options.variants, options.steps, options.rounds, Path(scratch) / "run"))
    print(f"\nplain TRL: {statistics.median(seconds for seconds, _ in found):.3f} CPU s/step\n{'':24}{'ratio':>8}")
    medians = {name: statistics.median(ratios[name] for _, ratios in found) for name in options.variants}
    for name, ratio in sorted(medians.items(), key=lambda item: item[1]):
        print(f"{name:24}{ratio:8.3f}")


if __name__ == "__main__":
    main()

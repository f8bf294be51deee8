"""What exploring costs: CPU seconds per step of every variant over plain TRL's.

    python bench/explorers.py                    # every recipe under recipes/variants: some 25 minutes of one core
    python bench/explorers.py --variants focal ucpo

Each round trains plain TRL and then every variant for a few steps of the lab, in one process, and takes the ratio to
that round's plain TRL; the median over rounds is shown. Per step means per rollout: variants with two updates for each
rollout are measured against plain TRL with two updates. The first steps of each training are not counted, nor is what a
variant draws before the first step.
"""

import argparse
import os
import statistics
import sys
import tempfile
import time
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


def main() -> None:
    shipped = sorted(path.stem for path in (RECIPES / "variants").glob("*.yaml"))
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--variants", nargs="+", default=shipped)
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    ratios: dict[str, list[float]] = {name: [] for name in options.variants}
    plain: list[float] = []
    with tempfile.TemporaryDirectory() as scratch:
        os.environ["TENSORBOARD_LOGGING_DIR"] = scratch
        for _ in range(options.rounds):
            reference: dict[int, float] = {}
            for name in options.variants:
                made = recipe(Path(scratch) / "run", options.steps, f"variants/{name}")
                count = updates(made)
                if count not in reference:
                    stock = recipe(
                        Path(scratch) / "run", options.steps, *(["variants/two_updates"] if count > 1 else [])
                    )
                    reference[count] = measured(plain_trl(stock), stock)
                ratios[name].append(measured(build_trainer(made), made) / reference[count])
                print(f"round {len(ratios[name])}: {name} {ratios[name][-1]:.3f}", file=sys.stderr)
            plain += [seconds for count, seconds in reference.items() if count == 1]
    if plain:
        print(f"\nplain TRL: {statistics.median(plain):.3f} CPU s/step")
    print(f"{'':24}{'ratio':>8}")
    for name, values in sorted(ratios.items(), key=lambda item: statistics.median(item[1])):
        print(f"{name:24}{statistics.median(values):8.3f}")


if __name__ == "__main__":
    main()

"""Cost of exploration variants: CPU seconds per step relative to plain TRL.

    python bench/explorers.py                    # every recipe in recipes/variants: about 35 minutes of one core
    python bench/explorers.py --variants focal ucpo

Each variant trains on the lab in one process with plain TRL, in alternating steps, so that a machine that is slower for
a while is slower for both. Reported is the median ratio of neighboring steps, with quartiles. `low_lr`, `high_lr` and
`high_beta` add no work: their deviation from 1 is noise plus the cost of Offleash without an explorer. A step is one
rollout: variants with two updates per rollout are measured against plain TRL with two updates. Warm-up steps, and what
a variant draws before the first step, are not counted.
"""

import argparse
import os
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from transformers import PrinterCallback, TrainerCallback
from transformers.utils.logging import disable_progress_bar
from trl import GRPOTrainer

from offleash.eval.tasks import load_task
from offleash.train.grpo import build_trainer, training_dataset
from offleash.train.recipe.catalogue import RECIPES
from offleash.train.recipe.config import Recipe, parse_recipe
from offleash.train.rewards import VerifierReward

WARM_UP = 3


class Turns:
    """Two trainings in threads take turns; once one of them is finished the other no longer waits."""

    def __init__(self) -> None:
        self.changed, self.turn, self.over = threading.Condition(), 0, False

    def wait(self, player: int) -> None:
        with self.changed:
            self.changed.wait_for(lambda: self.turn == player or self.over)

    def give(self, player: int, over: bool = False) -> None:
        with self.changed:
            self.turn, self.over = player, self.over or over
            self.changed.notify_all()


class Clock(TrainerCallback):
    """CPU seconds of each turn of one trainer; a turn ends with the last update of a rollout."""

    def __init__(self, turns: Turns, player: int, updates: int) -> None:
        self.turns, self.player, self.updates = turns, player, updates
        self.seconds: list[float] = []

    def on_train_begin(self, *args: Any, **kwargs: Any) -> None:
        self._begin()

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step % self.updates == 0:
            self.seconds.append(time.process_time() - self.began)
            self.turns.give(1 - self.player)
            self._begin()

    def _begin(self) -> None:
        self.turns.wait(self.player)
        self.began = time.process_time()


def ratios(name: str, steps: int, folder: Path) -> tuple[list[float], list[float]]:
    """CPU seconds per step of plain TRL, and the ratios of the variant's steps to them."""
    made = recipe(folder, steps, f"variants/{name}")
    updates = int(made.training.steps_per_generation)
    plain = recipe(folder, steps, *(["variants/two_updates"] if updates > 1 else []))
    turns = Turns()
    clocks = [Clock(turns, player, updates) for player in (0, 1)]

    def train(player: int, trainer: GRPOTrainer) -> None:
        try:
            trainer.add_callback(clocks[player])
            trainer.remove_callback(PrinterCallback)
            trainer.train()
        finally:
            turns.give(1 - player, over=True)

    with ThreadPoolExecutor(2) as pool:
        for done in [pool.submit(train, 0, plain_trl(plain)), pool.submit(train, 1, build_trainer(made))]:
            done.result()
    stock, variant = (clock.seconds[WARM_UP : WARM_UP + steps] for clock in clocks)
    return stock, [ours / theirs for ours, theirs in zip(variant, stock, strict=True)]


def recipe(folder: Path, steps: int, *configs: str) -> Recipe:
    overlays = [word for name in configs for word in ("--config", name)]
    flags = ["--monitor_every", "0", "--disable_tqdm", "true", "--save_strategy", "no", "--report_to", "none"]
    if "variants/reference_reset" in configs:
        flags += ["--explorer.every", "4"]  # so that a few steps have resets among them
    if "variants/rehearsal" in configs:
        flags += ["--explorer.k", "4"]  # drawn before the first step, which does not count
    made = parse_recipe(["--config", "lab", *overlays, "--output_dir", str(folder), *flags])
    made.training.max_steps = (WARM_UP + steps + 1) * int(made.training.steps_per_generation)
    return made


def plain_trl(made: Recipe) -> GRPOTrainer:
    """What a user would write without Offleash, except for the verifier."""
    task = load_task(made.run.task, **made.run.train_task_args)
    made.training.model_init_kwargs = {"dtype": made.model.dtype}
    return GRPOTrainer(
        model=made.model.model_name_or_path,
        reward_funcs=[VerifierReward(task, end_token_ids=[0, 1])],
        args=made.training,
        train_dataset=training_dataset(task),
    )


def main() -> None:
    shipped = sorted(path.stem for path in (RECIPES / "variants").glob("*.yaml"))
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--variants", nargs="+", default=shipped)
    parser.add_argument("--steps", type=int, default=16)
    options = parser.parse_args()
    disable_progress_bar()
    with tempfile.TemporaryDirectory() as scratch:
        os.environ["TENSORBOARD_LOGGING_DIR"] = scratch
        report(options.variants, options.steps, Path(scratch) / "run")


def report(names: Sequence[str], steps: int, folder: Path) -> None:
    rows, seconds = [], []
    for i, name in enumerate(names, 1):
        stock, found = ratios(name, steps, folder)
        low, middle, high = statistics.quantiles(found, n=4)
        seconds += stock
        rows.append((middle, f"{name:20}{middle:8.3f}{low:8.3f}{high:8.3f}"))
        print(f"{i} of {len(names)}: {rows[-1][1]}", file=sys.stderr, flush=True)
    print(f"\nplain TRL: {statistics.median(seconds):.3f} CPU s/step\n{'':20}{'ratio':>8}{'quartiles':>16}")
    print("\n".join(line for _, line in sorted(rows)))


if __name__ == "__main__":
    main()

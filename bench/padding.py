"""Cost of padding: columns that plain TRL and Offleash compute, and CPU seconds per update, for skewed lengths.

    python bench/padding.py                 # three shapes of length, about 5 minutes of one core
    python bench/padding.py --columns       # ratios of columns alone, seconds
    python bench/padding.py --limit 512 --steps 2

TRL pads every micro-batch to the longest rollout of the generation batch; Offleash cuts off columns that are padding in
the whole micro-batch. Lengths are lognormal, cut at the limit, with the ratio of limit to mean, the micro-batch and the
optimizer step of three recipes on 8 GPUs, with their four updates per rollout. Ratios are of columns of completions:

    scored         in scoring, which takes rows of similar length together
    drawn          in the loss, with micro-batches as TRL draws them
    by length      in the loss, with the rows of an optimizer step sorted by length on each rank
    sharded: ...   the same on 8 ranks with sharded weights, which wait for the widest micro-batch of all; "ordered" are
                   whole micro-batches as drawn, the widest of a step first
    bound          without any padding

For the seconds, both train the lab's model on the same rollouts, which cost nothing here, 64 for each two updates, with
a reference: old and reference log-probabilities are scored too.
"""

import argparse
import os
import tempfile
import time
from collections.abc import Callable
from importlib.resources import files
from typing import Any

import numpy as np
from datasets import Dataset
from transformers import PrinterCallback, TrainerCallback
from trl import GRPOConfig, GRPOTrainer

from offleash.eval.tasks import load_task
from offleash.train.rewards import VerifierReward
from offleash.train.trainer import ExploringTrainer

SHAPES = {"prorl-1.5b": (1.55, 4, 32), "dapo-7b": (2.65, 4, 16), "qwen2.5-32b-dapo": (3.9, 1, 16)}
"""Limit over mean length, sequences in a micro-batch, and micro-batches in an optimizer step, by recipe."""
SIGMA, END, GROUP, ROWS, RANKS, UPDATES, WARM_UP = 0.8, 1, 8, 64, 8, 4, 1
COLUMNS = ("scored", "drawn", "by length", "sharded: drawn", "ordered", "by length", "bound")


def drawn_lengths(rng: np.random.Generator, rows: int, limit: int, ratio: float) -> np.ndarray:
    """Lognormal lengths, cut at the limit, whose mean is limit / ratio."""
    shape = np.exp(SIGMA * np.random.default_rng(0).standard_normal(100_000))
    low, high = 1e-3, 10.0
    while high - low > 1e-4:
        middle = (low + high) / 2
        low, high = (low, middle) if np.minimum(middle * shape, 1).mean() > 1 / ratio else (middle, high)
    lengths = limit * low * np.exp(SIGMA * rng.standard_normal(rows))
    return np.clip(lengths, 2, limit).astype(int)


def rollouts_of(limit: int, ratio: float) -> Callable[[list[str], Any], dict[str, Any]]:
    rng = np.random.default_rng(7)

    def roll_out(prompts: list[str], trainer: Any) -> dict[str, Any]:
        lengths = drawn_lengths(rng, len(prompts), limit, ratio)
        completions = [[*rng.integers(3, 17, length - 1).tolist(), END] for length in lengths]
        ids = trainer.processing_class(prompts)["input_ids"]
        return {"prompt_ids": ids, "completion_ids": completions, "logprobs": None}

    return roll_out


class Clock(TrainerCallback):
    """CPU seconds of each update."""

    def __init__(self) -> None:
        self.marks: list[float] = []

    def on_step_end(self, *args: Any, **kwargs: Any) -> None:
        self.marks.append(time.process_time())


def seconds_per_update(
    kind: type[GRPOTrainer], folder: str, limit: int, shape: tuple[float, int, int], steps: int
) -> float:
    ratio, micro, _ = shape
    task = load_task("countdown", split="train", n=64)
    verifier, rng = VerifierReward(task, end_token_ids=[END]), np.random.default_rng(1)

    def chance(completions: list[str], **columns: Any) -> list[float]:
        return [float(reward) for reward in rng.random(len(completions))]

    args = GRPOConfig(
        output_dir=folder,
        max_steps=2 * (steps + WARM_UP),
        beta=0.01,
        learning_rate=1e-6,
        num_generations=GROUP,
        per_device_train_batch_size=micro,
        gradient_accumulation_steps=ROWS // micro // 2,
        steps_per_generation=ROWS // micro,
        max_completion_length=limit,
        logging_steps=1000,
        save_strategy="no",
        report_to="none",
        bf16=False,
        gradient_checkpointing=False,
        use_cpu=True,
        disable_tqdm=True,
    )
    rewards = {"reward_funcs": chance} if kind is GRPOTrainer else {"reward": verifier, "rewards": [chance]}
    trainer = kind(
        model=str(files("offleash.recipes") / "lab" / "base"),
        args=args,
        train_dataset=Dataset.from_list([{"prompt": p.prompt, "problem_id": p.id} for p in task.problems]),
        rollout_func=rollouts_of(limit, ratio),
        **rewards,
    )
    clock = Clock()
    trainer.add_callback(clock)
    trainer.remove_callback(PrinterCallback)
    trainer.train()
    rounds = clock.marks[1::2]  # a generation batch serves two updates
    return float(min(np.diff(rounds))) / 2  # what else runs on the machine only adds


def columns(limit: int, shape: tuple[float, int, int]) -> tuple[float, ...]:
    """What TRL computes over what is left, as in `COLUMNS`."""
    (ratio, micro, window), rng = shape, np.random.default_rng(3)
    given, left = 0, np.zeros(len(COLUMNS))
    for _ in range(100):
        lengths = drawn_lengths(rng, RANKS * UPDATES * window * micro, limit, ratio).reshape(RANKS, UPDATES, -1)
        scored = widths(np.sort(lengths.reshape(RANKS, 1, -1)), micro)
        drawn, dealt = widths(lengths, micro), widths(np.sort(lengths), micro)
        awaited = [RANKS * each.max(0).sum() for each in (drawn, np.sort(drawn), dealt)]
        given += lengths.max() * drawn.size
        left += scored.sum(), drawn.sum(), dealt.sum(), *awaited, lengths.sum() / micro
    return tuple(given / left)


def widths(lengths: np.ndarray, micro: int) -> np.ndarray:
    """(ranks, updates, micro-batches) from lengths (ranks, updates, rows)."""
    return lengths.reshape(*lengths.shape[:2], -1, micro).max(3)


def main(argv: list[str] | None = None) -> list[tuple[str, float]]:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--limit", type=int, default=256, help="longest completion")
    parser.add_argument("--steps", type=int, default=2, help="generation batches to time, of two updates each")
    parser.add_argument("--columns", action="store_true", help="ratios of columns alone, without training")
    options = parser.parse_args(argv)
    print_columns(options.limit)
    return [] if options.columns else seconds(options.limit, options.steps)


def print_columns(limit: int) -> None:
    print(f"{'columns':24}" + "".join(f"{name:>{len(name) + 2}}" for name in COLUMNS))
    for name, (ratio, micro, window) in SHAPES.items():
        for size in sorted({1, micro}):
            found = columns(limit, (ratio, size, window * micro // size))
            shares = "".join(f"{share:{len(title) + 2}.2f}" for title, share in zip(COLUMNS, found, strict=True))
            print(f"{name + ' of ' + str(size):24}{shares}", flush=True)


def seconds(limit: int, steps: int) -> list[tuple[str, float]]:
    os.environ["TRL_EXPERIMENTAL_SILENCE"] = "1"
    print(f"\n{'CPU seconds':24}{'plain TRL':>11}{'ours':>8}{'ratio':>8}")
    found = []
    with tempfile.TemporaryDirectory() as folder:
        for name, shape in SHAPES.items():
            plain, ours = (
                seconds_per_update(kind, folder, limit, shape, steps) for kind in (GRPOTrainer, ExploringTrainer)
            )
            print(f"{name:24}{plain:11.2f}{ours:8.2f}{plain / ours:8.2f}", flush=True)
            found.append((f"padding: CPU time of plain TRL's update against ours, lengths of {name}", plain / ours))
    return found


def quick() -> list[tuple[str, float]]:
    """For `make bench`."""
    return main([])


if __name__ == "__main__":
    main()

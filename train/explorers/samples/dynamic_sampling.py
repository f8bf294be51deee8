"""Dynamic sampling: train only on groups with both correct and wrong rollouts, and generate until there are enough.

Yu et al., DAPO, arXiv 2503.14476, eq. 11: groups with 0 < accuracy < 1 are kept, and the batch is filled with groups of
other training problems, in at most `max_batches` generation batches; if it is still not full, other groups complete it.
Every batch costs as much as a regular one, so a fair comparison uses equal numbers of rollouts: see `budget`.

It is the batch of all ranks that is filled: ranks with more such groups than they train on give them to ranks with
fewer. The additional problems follow from (seed, step) alone: a resume needs no state for them. Every rank sees the
rewards of all ranks, so all of them stop together. Under `scale_rewards: batch` the deviation is that of the batch as
generated.
"""

import json
from collections.abc import Collection, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from accelerate.utils import gather_object
from torch.nn.utils.rnn import pad_sequence
from trl import GRPOConfig

from offleash.callbacks.guard import STOPPED
from offleash.callbacks.policy.trl_seam import micro_batch, text_tokenizer
from offleash.eval.console import say
from offleash.eval.errors import ConfigError
from offleash.eval.files import write_atomic
from offleash.train.explorers.base import Explored, Explorer, ExplorerTrainer
from offleash.train.explorers.checks import check_positive, updates_per_rollout
from offleash.train.explorers.metrics import ROLLOUTS

FILE = "dynamic_sampling.json"
ITEMS = "num_items_in_batch"
LEFT = ("prompt_ids", "prompt_mask")
ZEROS = (
    *("prompt_mask", "completion_mask", "tool_mask", "advantages", "off_policy"),
    *("old_per_token_logps", "ref_per_token_logps", "sampling_per_token_logps", "base_per_token_logps"),
)
FILLS: dict[str, float] = {**dict.fromkeys(ZEROS, 0), "importance_sampling_ratio": 1}
"""What pads each tensor of a batch, besides the token ids: those of TRL (read against 1.16) and of our trainer."""


class Place(NamedTuple):
    """Where a group was generated: in which batch of the step, on which rank, as which of its groups."""

    batch: int
    rank: int
    group: int


class DynamicSampling(Explorer):
    """Args: max_batches per step; budget, ends the run at this multiple of the rollouts of max_steps batches."""

    text_only = True

    def __init__(self, max_batches: int = 10, budget: float | None = None) -> None:
        if max_batches < 2:
            raise ConfigError(
                f"max_batches of explorer dynamic_sampling must be at least 2 (1 is plain GRPO), got {max_batches}"
            )
        if budget is not None:
            check_positive("dynamic_sampling", budget=budget)
        self.max_batches, self.budget = max_batches, budget
        self.rollouts, self.batches, self.filled = 0, 0, 0.0

    def check(self, training: GRPOConfig) -> None:
        rows = training.per_device_train_batch_size * training.steps_per_generation
        if rows % training.num_generations:
            raise ConfigError(
                f"explorer dynamic_sampling needs complete groups on each process: per_device_train_batch_size x "
                f"steps_per_generation is {rows}, make it a multiple of num_generations ({training.num_generations})"
            )

    def attach(self, trainer: ExplorerTrainer) -> None:
        super().attach(trainer)
        if not hasattr(trainer.train_dataset, "__len__"):
            raise ConfigError("explorer dynamic_sampling needs a dataset that can be indexed, not a streamed one")
        self.problem_ids = trainer.problem_ids(trainer.train_dataset)

    def collect(self, inputs: list[Any], explored: Explored) -> dict[str, Any]:
        batches: list[dict[str, Any]] = []
        mixed: list[torch.Tensor] = []
        seen: set[str] = set()
        rows: list[Any] | None = inputs
        while rows is not None:
            batch, rollouts = explored(rows)
            batches.append(batch)
            mixed.append(is_mixed(rollouts.rewards_pg).view(self.trainer.accelerator.num_processes, -1))
            seen.update(rollouts.problem_ids)
            self.rollouts += rollouts.rewards_pg.numel()
            rows = None if self._is_enough(mixed) else self._further(len(inputs), seen)
        return self._trained_on(batches, mixed)

    def _is_enough(self, mixed: Sequence[torch.Tensor]) -> bool:
        """Whether to stop generating. `mixed`, of each batch, is (ranks, groups of a rank)."""
        full = sum(int(mixed_rn.sum()) for mixed_rn in mixed) >= mixed[0].numel()
        return full or self._is_spent() or len(mixed) >= self.max_batches

    def _further(self, count: int, seen: Collection[str]) -> list[Any] | None:
        """This rank's rows of another batch, None if no training problems are left."""
        trainer = self.trainer
        # Several batches may be drawn within one step.
        seed = (trainer.args.seed, trainer.state.global_step, micro_batch(trainer))
        groups = count // trainer.num_generations
        chosen = further_rows(self.problem_ids, seen, seed, trainer.accelerator.num_processes * groups)
        if chosen is None:
            return None
        mine = chosen[trainer.accelerator.process_index * groups :][:groups]
        return [trainer.train_dataset[row] for row in mine for _ in range(trainer.num_generations)]

    def _trained_on(self, batches: Sequence[dict[str, Any]], mixed: Sequence[torch.Tensor]) -> dict[str, Any]:
        accelerator, size = self.trainer.accelerator, self.trainer.num_generations
        shares, me = share_groups(mixed), accelerator.process_index
        found, wanted = sum(int(mixed_rn.sum()) for mixed_rn in mixed), mixed[0].numel()
        self.batches, self.filled = len(batches), min(found, wanted) / wanted

        def own(place: Place) -> dict[str, Any]:
            return rows_of(batches[place.batch], range(place.group * size, (place.group + 1) * size))

        given = [place for rank, share in enumerate(shares) for place in share if rank != me == place.rank]
        received: dict[Place, dict[str, Any]] = {}
        if any(place.rank != rank for rank, share in enumerate(shares) for place in share):
            sent = [(place, {key: rows.cpu() for key, rows in own(place).items()}) for place in given]
            received = dict(gather_object(sent))
        parts = [own(place) if place.rank == me else received[place] for place in shares[me]]
        parts = [{key: rows.to(accelerator.device) for key, rows in part.items()} for part in parts]
        output = joined(parts, text_tokenizer(self.trainer).pad_token_id)
        mask = output["completion_mask"] * output.get("tool_mask", 1)
        output[ITEMS] = accelerator.gather(mask.sum()).sum()
        return output

    def after_step(self, step: int) -> None:
        """End a run whose budget is spent, as a guard does, once all updates on its last rollouts are done."""
        if self._is_spent() and step % updates_per_rollout(self.trainer.args) == 0:
            self.trainer.control.should_save = self.trainer.control.should_training_stop = True
            if self.trainer.accelerator.is_main_process:
                self._record_stop(step)

    def _is_spent(self) -> bool:
        return self.budget is not None and self.rollouts >= self._most()

    def _most(self) -> float:
        processes = self.trainer.accelerator.num_processes
        return float(self.budget or 0) * rollouts(vars(self.trainer.args), self.trainer.state.max_steps, processes)

    def _record_stop(self, step: int) -> None:
        rule = {"rule": f"budget of {self._most():g} rollouts", "metric": ROLLOUTS.key, "value": self.rollouts}
        record = {**rule, "step": step, "checkpoint": f"checkpoint-{step}"}
        write_atomic(Path(self.trainer.args.output_dir) / STOPPED, json.dumps(record, indent=1).encode())
        say(f"offleash: stopped at step {step}: the budget of {self.rollouts} rollouts is spent")

    def metrics(self) -> dict[str, float]:
        return {"batches": float(self.batches), "rollouts": float(self.rollouts), "filled": self.filled}

    def save(self, folder: Path) -> None:
        if self.trainer.accelerator.is_main_process:
            write_atomic(folder / FILE, json.dumps({"rollouts": self.rollouts}).encode())

    def load(self, folder: Path) -> None:
        self.rollouts = json.loads((folder / FILE).read_text())["rollouts"]


def rollouts(recipe: Mapping[str, Any], steps: int, processes: int) -> int:
    """Of plain GRPO: TRL generates a batch for a number of micro-batches, of which an optimizer step takes some."""
    micro_batches = recipe["steps_per_generation"] * recipe["num_iterations"]
    batches = -(-steps * recipe["gradient_accumulation_steps"] // micro_batches)
    batch = recipe["per_device_train_batch_size"] * recipe["steps_per_generation"] * processes
    return int(batches * batch)


def is_mixed(rewards_pg: torch.Tensor) -> torch.Tensor:
    """(P,) True where a group has correct and wrong rollouts; those on which the verifier failed do not count."""
    return (rewards_pg == 1).any(1) & (rewards_pg == 0).any(1)


def share_groups(mixed: Sequence[torch.Tensor]) -> list[list[Place]]:
    """The groups that each rank trains on, from what it is told of each batch: (ranks, groups of a rank).

    Over all ranks mixed groups in order of generation, then others in that order. A rank keeps its own as far as it has
    room; what it has beyond that goes to ranks with room left.
    """
    ranks, room = mixed[0].shape
    places = [Place(*where) for where in np.ndindex(len(mixed), ranks, room)]
    chosen = sorted(places, key=lambda place: (not mixed[place.batch][place.rank, place.group], place))[: ranks * room]
    shares = [sorted(place for place in chosen if place.rank == rank) for rank in range(ranks)]
    beyond = [place for share in shares for place in share[room:]]
    for share in shares:
        del share[room:]
        missing = room - len(share)
        share += beyond[:missing]
        del beyond[:missing]
    return shares


def further_rows(
    problem_ids: Sequence[str], seen: Collection[str], seed: Sequence[int], count: int
) -> list[int] | None:
    """Dataset rows of `count` problems not seen in this step, in random order; None if there are too few."""
    order = np.random.default_rng(list(seed)).permutation(len(problem_ids))
    rows = list(islice((int(row) for row in order if problem_ids[int(row)] not in seen), count))
    return rows if len(rows) == count else None


def rows_of(batch: dict[str, Any], rows: Sequence[int]) -> dict[str, Any]:
    """These rows of a batch, without the token count of the whole batch."""
    known = {"prompt_ids", "completion_ids", ITEMS, *FILLS}
    if strange := sorted(set(batch) - known):
        raise ConfigError(
            f"batches with {', '.join(strange)} cannot be concatenated: explorer dynamic_sampling supports text only; "
            "remove it from the recipe"
        )
    return {key: values[list(rows)] for key, values in batch.items() if key != ITEMS}


def joined(parts: Sequence[dict[str, Any]], pad_token_id: int) -> dict[str, Any]:
    """Concatenate batches: prompts are padded on the left, everything else on the right."""
    fills = {"prompt_ids": pad_token_id, "completion_ids": pad_token_id, **FILLS}
    return {key: _stacked([row for part in parts for row in part[key]], key, fills[key]) for key in parts[0]}


def _stacked(rows: list[torch.Tensor], key: str, fill: float) -> torch.Tensor:
    if rows[0].dim() == 0:
        return torch.stack(rows)
    return pad_sequence(rows, batch_first=True, padding_value=fill, padding_side="left" if key in LEFT else "right")

import json
import math
import shutil
from dataclasses import replace
from typing import Any

import pytest
import torch

from offleash.callbacks import SupportCallback
from offleash.eval.errors import ConfigError
from offleash.eval.tasks import load_task
from offleash.train.explorers.base import Explorer
from offleash.train.explorers.samples.dynamic_sampling import (
    DynamicSampling,
    further_rows,
    is_mixed,
    joined,
    rows_of,
    share_groups,
)
from offleash.train.run_folder.folder import why_ended

SMALL = {"per_device_train_batch_size": 16}


def test_a_group_is_mixed_if_some_are_right_and_some_wrong_and_failures_count_for_neither(rollouts) -> None:
    batch = rollouts("1100", "1111", "0000", "11x1", "00xx", "1xx0", "xxxx")
    assert is_mixed(batch.rewards_pg).tolist() == [True, False, False, False, False, True, False]


T, F = True, False


@pytest.mark.parametrize(
    ("mixed", "expected"),
    [
        ([[[T, T]]], [[(0, 0, 0), (0, 0, 1)]]),
        ([[[T, F, T]], [[F, T, T]]], [[(0, 0, 0), (0, 0, 2), (1, 0, 1)]]),  # one mixed group more than needed
        ([[[F, T]], [[F, F]]], [[(0, 0, 0), (0, 0, 1)]]),  # too few: the dead group drawn first fills up
        ([[[F, F]], [[F, T]]], [[(0, 0, 0), (1, 0, 1)]]),
        ([[[T], [F]], [[T], [F]]], [[(0, 0, 0)], [(1, 0, 0)]]),  # the second of rank 0 goes to rank 1
        ([[[T, T], [F, F]], [[T, F], [T, F]]], [[(0, 0, 0), (0, 0, 1)], [(1, 1, 0), (1, 0, 0)]]),
    ],
)
def test_mixed_groups_are_taken_first_and_ranks_that_lack_some_get_them_from_others(mixed, expected) -> None:
    assert share_groups([torch.tensor(m) for m in mixed]) == expected


@pytest.mark.parametrize("seed", range(5))
def test_every_rank_trains_on_as_many_groups_and_no_group_is_trained_on_twice(seed) -> None:
    generator = torch.Generator().manual_seed(seed)
    mixed = [torch.rand(4, 3, generator=generator) < 0.4 for _ in range(3)]
    shares = share_groups(mixed)
    assert [len(share) for share in shares] == [3] * 4
    places = [place for share in shares for place in share]
    assert len(set(places)) == 12
    assert sum(bool(mixed[b][r, g]) for b, r, g in places) == min(12, int(torch.stack(mixed).sum()))


def test_further_problems_are_new_within_a_step_and_follow_from_the_seed() -> None:
    ids = [f"p{i}" for i in range(20)]
    seen = {"p3", "p7", "p11"}
    batches = []
    for _ in range(2):
        rows = further_rows(ids, seen, (0, 5, 0), 8)
        assert rows is not None
        assert not seen & {ids[row] for row in rows}
        assert len(set(rows)) == 8
        batches.append(rows)
        seen |= {ids[row] for row in rows}
    assert further_rows(ids, seen, (0, 5, 0), 8) is None  # one problem is left, eight are asked for
    assert further_rows(ids, {"p3", "p7", "p11"}, (0, 5, 0), 8) == batches[0]
    assert further_rows(ids, {"p3", "p7", "p11"}, (0, 6, 0), 8) != batches[0]


def test_batches_of_different_lengths_are_joined_around_the_end_of_the_prompt() -> None:
    long = {
        "prompt_ids": torch.tensor([[7, 8, 9], [0, 5, 6]]),
        "prompt_mask": torch.tensor([[1, 1, 1], [0, 1, 1]]),
        "completion_ids": torch.tensor([[1, 2, 3], [4, 0, 0]]),
        "completion_mask": torch.tensor([[1, 1, 1], [1, 0, 0]]),
        "advantages": torch.tensor([0.5, -0.5]),
        "old_per_token_logps": torch.tensor([[-1.0, -2.0, -3.0], [-4.0, 0.0, 0.0]]),
        "importance_sampling_ratio": torch.tensor([[1.5], [0.5]]),
        "off_policy": torch.tensor([False, True]),
        "num_items_in_batch": torch.tensor(4),
    }
    short = {key: value[:, :1] if value.dim() == 2 else value for key, value in long.items()}
    both = joined([rows_of(short, [1]), rows_of(long, [0, 1])], pad_token_id=99)
    assert both["prompt_ids"].tolist() == [[99, 99, 0], [7, 8, 9], [0, 5, 6]]
    assert both["prompt_mask"].tolist() == [[0, 0, 0], [1, 1, 1], [0, 1, 1]]
    assert both["completion_ids"].tolist() == [[4, 99, 99], [1, 2, 3], [4, 0, 0]]
    assert both["completion_mask"].tolist() == [[1, 0, 0], [1, 1, 1], [1, 0, 0]]
    assert both["old_per_token_logps"].tolist() == [[-4, 0, 0], [-1, -2, -3], [-4, 0, 0]]
    assert both["importance_sampling_ratio"].tolist() == [[0.5], [1.5], [0.5]]  # one for a sequence stays one
    assert both["advantages"].tolist() == [-0.5, 0.5, -0.5]
    assert both["off_policy"].tolist() == [True, False, True]
    assert "num_items_in_batch" not in both


def test_a_ratio_for_each_token_is_padded_with_one() -> None:
    parts = [{"importance_sampling_ratio": torch.full((1, width), 2.0)} for width in (3, 1)]
    assert joined(parts, 0)["importance_sampling_ratio"].tolist() == [[2, 2, 2], [2, 1, 1]]


def test_images_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"pixel_values .*dynamic_sampling"):
        rows_of({"prompt_ids": torch.zeros(1, 1), "pixel_values": torch.zeros(1, 1)}, [0])


class Watch(DynamicSampling):
    """Keeps what a step was trained on beside what was drawn for it."""

    def __init__(self, **arguments: Any) -> None:
        super().__init__(**arguments)
        self.steps: list[tuple[dict[str, Any], list[tuple[dict[str, Any], Any]]]] = []

    def collect(self, inputs: list[Any], explored: Any) -> dict[str, Any]:
        drawn: list[tuple[dict[str, Any], Any]] = []

        def remembered(rows: list[Any]) -> Any:
            drawn.append(explored(rows))
            return drawn[-1]

        output = super().collect(inputs, remembered)
        self.steps.append((output, drawn))
        return output


def completions(batch: dict[str, Any]) -> list[tuple[int, ...]]:
    ids, mask = ([*batch[f"prompt_{part}"].unbind(), *batch[f"completion_{part}"].unbind()] for part in ("ids", "mask"))
    kept = [tuple(row[seen.bool()].tolist()) for row, seen in zip(ids, mask, strict=True)]
    half = len(kept) // 2
    return [(*prompt, -1, *completion) for prompt, completion in zip(kept[:half], kept[half:], strict=True)]


@pytest.mark.long
def test_every_group_of_a_step_teaches_something_if_enough_were_found(make_trainer, trajectory) -> None:
    watch = Watch()
    trainer = make_trainer("run", [watch], max_steps=2, **SMALL)
    trainer.train()
    total = 0
    for (output, drawn), row in zip(watch.steps, trajectory(trainer), strict=True):
        found = sum(int(is_mixed(rollouts.rewards_pg).sum()) for _, rollouts in drawn)
        assert found >= 4
        assert len(drawn) > 1  # else nothing was filled and this shows little
        assert (output["advantages"].view(4, 4).std(1) > 0).all()
        assert output["num_items_in_batch"] == output["completion_mask"].sum()
        problems = [problem for _, rollouts in drawn for problem in rollouts.problem_ids]
        assert len(set(problems)) == len(problems)
        everything = [c for batch, _ in drawn for c in completions(batch)]
        assert all(completion in everything for completion in completions(output))
        total += 16 * len(drawn)
        assert (row["explorer/batches"], row["explorer/rollouts"], row["explorer/filled"]) == (len(drawn), total, 1)
        rewards = [rollouts.rewards_pg.mean().item() for _, rollouts in drawn]
        assert row["reward"] == pytest.approx(sum(rewards) / len(rewards))


@pytest.mark.long
def test_log_probabilities_of_a_joined_batch_are_those_of_its_rows(make_trainer) -> None:
    """Joining moves the padding; what the reference says about each token must be what it says afresh."""
    watch = Watch()
    trainer = make_trainer("run", [watch], max_steps=1, **SMALL)
    trainer.train()
    ((output, drawn),) = watch.steps
    assert len(drawn) > 1
    again = trainer._logps(trainer.ref_model, output)
    mask = output["completion_mask"].bool()
    assert torch.allclose(again[mask], output["ref_per_token_logps"][mask], atol=1e-4)


@pytest.mark.long
def test_after_the_last_batch_a_step_is_filled_with_what_was_drawn(make_trainer, trajectory) -> None:
    watch = Watch()
    watch.max_batches = 1  # refused as an argument: it is plain GRPO
    once = make_trainer("once", [watch], max_steps=2, **SMALL)
    once.train()
    plain = make_trainer("plain", [], max_steps=2, **SMALL)
    plain.train()
    for _, drawn in watch.steps:
        assert len(drawn) == 1
        assert not is_mixed(drawn[0][1].rewards_pg).all()
    assert [without_explorer(row) for row in trajectory(once)] == trajectory(plain)
    mixed = is_mixed(watch.steps[-1][1][0][1].rewards_pg)
    assert watch.filled == pytest.approx(mixed.float().mean().item())


def without_explorer(row: dict[str, float]) -> dict[str, float]:
    return {key: value for key, value in row.items() if not key.startswith("explorer/")}


@pytest.mark.long
def test_when_all_problems_were_drawn_the_step_goes_on_with_what_it_has(make_trainer) -> None:
    watch = Watch(max_batches=100)
    trainer = make_trainer("run", [Hopeless(), watch], max_steps=1, **SMALL)
    trainer.train()
    ((_, drawn),) = watch.steps
    assert len(drawn) == 16  # 64 problems, 4 to a batch
    assert watch.filled == 0


class Hopeless(Explorer):
    """Breaks the verifier: all is wrong."""

    def attach(self, trainer: Any) -> None:
        super().attach(trainer)
        verify = trainer.verifier.task.verify
        trainer.verifier.task.verify = lambda *a: [replace(v, correct=False) for v in verify(*a)]


@pytest.mark.long
def test_a_spent_budget_ends_the_run_measured_saved_and_for_good(make_trainer, tmp_path) -> None:
    settings = {"max_steps": 9, "save_strategy": "steps", "save_steps": 1, **SMALL}
    whole = make_trainer("run", [DynamicSampling(budget=5 / 9)], **settings)
    monitor = SupportCallback(whole, load_task("countdown", split="probe", n=4), k=2, every=100)
    whole.add_callback(monitor)
    whole.train()
    end, folder = whole.state.global_step, tmp_path / "run"
    assert 1 < end < 9
    assert whole.explorers[0].rollouts == 5 * 16  # exactly: no batch is drawn beyond it
    assert set(monitor.history) == {0, end}
    checkpoint = folder / f"checkpoint-{end}"
    assert json.loads((folder / "stopped.json").read_text())["checkpoint"] == checkpoint.name
    assert "budget of 80 rollouts" in str(why_ended(folder, checkpoint, whole.args))
    assert why_ended(folder, folder / "checkpoint-1", whole.args) is None  # killed before the last one was whole

    resumed = make_trainer("run", [DynamicSampling(budget=5 / 9)], **settings)
    resumed.train(resume_from_checkpoint=str(folder / "checkpoint-1"))
    assert (resumed.state.global_step, resumed.explorers[0].rollouts) == (end, 5 * 16)


@pytest.mark.long
def test_groups_that_straddle_processes_are_refused(make_trainer) -> None:
    trainer = make_trainer("run", [])
    trainer.args.per_device_train_batch_size = 30  # TRL lets it pass on two processes
    with pytest.raises(ConfigError, match=r"30, .*num_generations \(4\)"):
        DynamicSampling().attach(trainer)


RECORD = """
import json, sys
from pathlib import Path
from offleash.train.explorers.samples.dynamic_sampling import DynamicSampling
trained_on = DynamicSampling._trained_on

def recorded(self, batches, mixed):
    output = trained_on(self, batches, mixed)
    rank, size = self.trainer.accelerator.process_index, self.trainer.num_generations
    found = [each.sum(1).tolist() for each in mixed]
    rows = {"found": found, "spread": output["advantages"].view(-1, size).std(1).tolist()}
    rows |= {key: output[key].tolist() for key in ("prompt_ids", "completion_mask", "num_items_in_batch")}
    folder = Path(self.trainer.args.output_dir)
    (folder / f"trained-{self.trainer.state.global_step}-{rank}.json").write_text(json.dumps(rows))
    return output

DynamicSampling._trained_on = recorded
"""


@pytest.mark.slow
def test_two_ranks_fill_one_batch_together_and_continue_on_the_same_trajectory(
    tmp_path, launch, launch_patched, logged, trajectory
) -> None:
    settings = {"explorer": "dynamic_sampling", "save_steps": 1, "max_steps": 3, "monitor_every": 0, "seed": 1}
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    done = launch_patched(whole, RECORD, "cpu_two_processes", **settings)
    assert done.returncode == 0, done.stderr[-4000:]
    moved = 0
    for step in range(3):
        parts = [json.loads((whole / f"trained-{step}-{rank}.json").read_text()) for rank in (0, 1)]
        (found, again) = (part["found"] for part in parts)
        assert found == again
        own = [sum(batch[rank] for batch in found) for rank in (0, 1)]
        before = sum(map(sum, found[:-1]))
        assert before < 4 <= sum(own)  # 2 ranks x 2 groups: it stops as soon as they are there
        moved += min(own) < 2
        assert all(spread > 0 for part in parts for spread in part["spread"])
        prompts = {str([token for token in row if token]) for part in parts for row in part["prompt_ids"]}
        assert len(prompts) == 4
        tokens = sum(sum(row) for part in parts for row in part["completion_mask"])
        assert [part["num_items_in_batch"] for part in parts] == [tokens, tokens]
    assert moved  # else nothing went from one rank to the other
    shutil.copytree(whole, cut)
    for step in (2, 3):
        shutil.rmtree(cut / f"checkpoint-{step}")
    again = launch(cut, "cpu_two_processes", **settings, resume="true")
    assert again.returncode == 0, again.stderr[-4000:]
    rows = trajectory(logged(whole, 3))
    assert trajectory(logged(cut, 3)) == rows
    assert all(math.isfinite(row["grad_norm"]) and row["grad_norm"] > 0 for row in rows)
    assert max(row["explorer/batches"] for row in rows) > 1
    assert all(row["explorer/filled"] == 1 or row["explorer/batches"] == 10 for row in rows)

"""Explorers under settings that a lab on one CPU does not have, each of which must give the same step.

Several micro-batches and updates per rollout, other losses, an engine that differs from the trainer, groups that
straddle ranks.
"""

import json
from dataclasses import replace
from typing import Any

import pytest
import torch

from offleash.callbacks.policy.frozen_base import frozen_base
from offleash.train.explorers import load_explorers
from offleash.train.explorers.base import Explorer

WHOLE = {"tilt": {}, "entropy_advantage": {}, "sage": {"threshold": 0.0}, "outcome_batch": {}}
"""Explorers of all kinds in one chain. Those that compare tokens of a micro-batch (clip_cov, kl_cov, tilt by credit
to_go) depend on its size by definition."""
CHAINS = {
    "dapo": WHOLE,
    "dr_grpo": WHOLE,
    "grpo": {"unlikeliness": {}, "ucpo": {}, "entropy_advantage": {}, "sage": {"threshold": 0.0}},
}


@pytest.mark.long
@pytest.mark.parametrize("loss_type", CHAINS)
def test_a_step_is_the_same_in_one_micro_batch_and_in_four(loss_type: str, make_trainer, trajectory) -> None:
    norms = []
    for size in (32, 8):
        settings = {"per_device_train_batch_size": size, "gradient_accumulation_steps": 32 // size, "max_steps": 1}
        explorers = load_explorers(CHAINS[loss_type])
        trainer = make_trainer(f"{size}", explorers, loss_type=loss_type, beta=0.1, max_grad_norm=1e9, **settings)
        _shake(trainer.model)
        trainer.train()
        (row,) = trajectory(trainer)
        norms.append([row[key] for key in ("reward", "grad_norm", "explorer/advantage_change_abs")])
    assert norms[0] == pytest.approx(norms[1], rel=1e-3)
    assert norms[0][1] > 1e-3


@pytest.mark.long
def test_the_second_update_on_a_rollout_sees_what_the_first_saw(make_trainer, trajectory) -> None:
    """With a learning rate of 0 both have the same gradient: no hook leaves anything in the buffered rollouts."""
    explorers = load_explorers({**WHOLE, "tilt": {"credit": "to_go"}, "kl_cov": {"ratio": 0.5}})
    settings = {"per_device_train_batch_size": 8, "gradient_accumulation_steps": 2, "num_iterations": 2}
    trainer = make_trainer("run", explorers, learning_rate=0.0, beta=0.1, max_steps=4, max_grad_norm=1e9, **settings)
    _shake(trainer.model)
    trainer.train()
    norms = [row["grad_norm"] for row in trajectory(trainer)]
    assert norms[0] == pytest.approx(norms[1], rel=1e-5)
    assert norms[2] == pytest.approx(norms[3], rel=1e-5)
    assert norms[0] != pytest.approx(norms[2], rel=1e-3)  # another rollout


def _shake(model: Any) -> None:
    """Away from the base, so that what compares with it is not 0."""
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.01 * torch.randn(parameter.shape, generator=generator)


class Watch(Explorer):
    needs_logps = True

    def __init__(self) -> None:
        self.rollouts: list[Any] = []
        self.tokens: list[Any] = []

    def advantages(self, rollouts: Any, advantages_pg: torch.Tensor) -> torch.Tensor:
        self.rollouts.append(rollouts)
        return advantages_pg

    def token_advantages(self, tokens: Any) -> torch.Tensor:
        self.tokens.append(tokens)
        return tokens.advantages_bt


@pytest.mark.parametrize("corrected", [True, pytest.param(False, marks=pytest.mark.long)])
def test_log_probabilities_are_the_trainers_also_where_an_engine_has_its_own(
    corrected: bool, make_trainer, served
) -> None:
    watch = Watch()
    trainer = make_trainer("run", [watch], max_steps=1)
    frozen_base(trainer)  # which would look for an engine
    served(trainer, -0.5)  # far from the trainer's
    trainer.vllm_importance_sampling_correction = corrected
    trainer.train()
    (rollouts,), (tokens,) = watch.rollouts, watch.tokens
    own_b = (tokens.logps_bt.detach() * tokens.mask_bt).sum(1)
    assert torch.allclose(own_b.sort().values, rollouts.sequence_logps_pg.flatten().sort().values, atol=1e-4)
    assert torch.allclose(tokens.old_logps_bt * tokens.mask_bt, tokens.logps_bt.detach() * tokens.mask_bt, atol=1e-5)


RECORD = """
import json
from pathlib import Path
from offleash.train.exploring import Exploring
explored = Exploring._explored

def recorded(self, inputs):
    output, rollouts = explored(self, inputs)
    step, rank = self.state.global_step, self.accelerator.process_index
    made = {"local": output["advantages"].tolist(), "answers": rollouts.answers_pg, "problems": rollouts.problem_ids}
    made |= {name: getattr(rollouts, name).tolist() for name in ("rewards_pg", "logps_pg", "base_logps_pg")}
    made["ids"] = self._local_ids
    (Path(self.args.output_dir) / f"rollouts-{step}-{rank}.json").write_text(json.dumps(made))
    return output, rollouts

Exploring._explored = recorded
"""


@pytest.mark.slow
@pytest.mark.parametrize("processes", ["cpu_two_processes", "cpu_zero3"])
def test_groups_that_straddle_ranks_are_shaped_as_one(processes: str, launch_patched, rollouts, tmp_path) -> None:
    """Groups of 8 on ranks of 12, truncated rollouts among them: each rank has its part of the same advantages."""
    explorer = '{"outcome_ucb": {}, "ucpo": {"tau": 0.5}, "focal": {}}'
    settings = {"max_steps": 2, "per_device_train_batch_size": 12, "monitor_every": 0, "explorer": explorer}
    settings |= {"mask_truncated_completions": "true", "max_completion_length": 8}
    done = launch_patched(tmp_path / "run", RECORD, processes, **settings)
    assert done.returncode == 0, done.stderr[-4000:]
    chain = load_explorers(json.loads(explorer))
    cut = 0
    for step in (0, 1):
        parts = [json.loads((tmp_path / "run" / f"rollouts-{step}-{rank}.json").read_text()) for rank in (0, 1)]
        assert {key: parts[0][key] for key in ("answers", "rewards_pg", "problems")} == {
            key: parts[1][key] for key in ("answers", "rewards_pg", "problems")
        }
        assert [one for part in parts for one in part["ids"]] == [one for one in parts[0]["problems"] for _ in range(8)]
        logps_pg = torch.tensor(parts[0]["logps_pg"])
        assert not logps_pg.isnan().any()
        cut += int(torch.tensor(parts[0]["base_logps_pg"]).isnan().sum())
        groups = ["".join(str(int(reward)) for reward in group) for group in parts[0]["rewards_pg"]]
        batch = rollouts(*groups, answers=parts[0]["answers"], logps=logps_pg.tolist())
        batch = replace(batch, problem_ids=tuple(parts[0]["problems"]))
        shaped_pg = _stock(batch.rewards_pg)
        for each in chain:
            shaped_pg = each.advantages(batch, shaped_pg)
        local = torch.tensor([value for part in parts for value in part["local"]])
        assert torch.allclose(local, shaped_pg.flatten(), atol=1e-5)
    assert cut


def _stock(rewards_pg: torch.Tensor) -> torch.Tensor:
    return (rewards_pg - rewards_pg.mean(1, keepdim=True)) / (rewards_pg.std(1, keepdim=True) + 1e-4)

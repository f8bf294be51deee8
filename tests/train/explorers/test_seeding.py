"""Seeding: the off-policy weight in closed form, the choice of a trace, and traces in a real run."""

import json
import re

import pytest
import torch

from offleash.callbacks.rollouts import RolloutCallback
from offleash.eval.errors import ConfigError
from offleash.eval.tasks import load_task
from offleash.train.explorers.samples.seeding import Seeding, seeded_advantage, visited


def test_the_advantage_gives_the_gradient_of_the_shaped_objective() -> None:
    advantages = torch.tensor([1.5, -0.7, 0.0, 2.0], dtype=torch.float64)
    lp = torch.tensor([0.9, 0.4, 0.1, 1e-4], dtype=torch.float64).log().requires_grad_()
    p = lp.exp()
    (shaped,) = torch.autograd.grad((-advantages * p / (p + 0.1)).sum(), lp)
    ratio = (lp - lp.detach()).exp()
    (ours,) = torch.autograd.grad((-ratio * seeded_advantage(advantages, lp, 0.1)).sum(), lp)
    assert torch.allclose(ours, shaped)
    assert not torch.allclose(ours, -advantages)


def test_only_traces_from_outside_are_reweighted(tokens) -> None:
    made = tokens([[1.0, 1.0], [1.0, 1.0]], [[-0.1, -2.3], [-0.1, -2.3]])
    made.off_policy_b = torch.tensor([False, True])
    shaped = Seeding().token_advantages(made)
    assert shaped[0].tolist() == [1.0, 1.0]
    p = torch.tensor([-0.1, -2.3]).exp()
    assert torch.allclose(shaped[1], 0.1 * p / (p + 0.1) ** 2)
    assert not shaped.requires_grad


class Watching(Seeding):
    """Keeps what passes through its hooks."""

    def __init__(self, **arguments) -> None:
        super().__init__(**arguments)
        self.asked: list[str] = []
        self.batches = []
        self.rows: list[tuple[int, bool]] = []

    def traces(self, problem_ids):
        self.asked += problem_ids
        return super().traces(problem_ids)

    def advantages(self, rollouts, advantages_pg):
        self.batches.append(rollouts)
        return super().advantages(rollouts, advantages_pg)

    def token_advantages(self, tokens):
        shaped = super().token_advantages(tokens)
        changed = ((shaped != tokens.advantages_bt) & tokens.mask_bt.bool()).any(1)
        self.rows += list(zip(tokens.off_policy_b.tolist(), changed.tolist(), strict=True))
        return shaped


@pytest.mark.long
def test_traces_are_right_stand_last_in_their_group_and_are_counted(make_trainer, trajectory) -> None:
    seeding = Watching(k=8)
    trainer = make_trainer("run", [seeding], max_steps=2)
    trainer.train()
    for rollouts in seeding.batches:
        assert not rollouts.off_policy_pg[:, :-1].any()
        assert rollouts.off_policy_pg[:, -1].any()
        assert (rollouts.rewards_pg[rollouts.off_policy_pg] == 1).all()
    for row, rollouts in zip(trajectory(trainer), seeding.batches, strict=True):
        own = rollouts.rewards_pg[~rollouts.off_policy_pg].mean().item()
        assert row["explorer/off_policy"] == pytest.approx(rollouts.off_policy_pg.float().mean().item())
        assert row["reward"] == row["rewards/correct/mean"] == pytest.approx(own)
        assert row["explorer/reward_with_traces"] == pytest.approx(rollouts.rewards_pg.mean().item())
        assert row["reward"] < row["explorer/reward_with_traces"]
        assert row["reward_std"] == row["rewards/correct/std"] == pytest.approx((own * (1 - own)) ** 0.5, rel=0.05)
        groups = [r[~outside] for r, outside in zip(rollouts.rewards_pg, rollouts.off_policy_pg, strict=True)]
        dead = sum(len(set(group.tolist())) == 1 for group in groups) / len(groups)
        assert row["frac_reward_zero_std"] == pytest.approx(dead)
    free = RolloutCallback(trainer, trainer.verifier.task)
    groups = free._groups(free._verdicts())
    assert sum(map(len, groups)) == (~rollouts.off_policy_pg).sum()
    right = sum(r.correct for group in groups for r in group)
    assert right == rollouts.rewards_pg[~rollouts.off_policy_pg].sum()
    assert any(changed for outside, changed in seeding.rows if outside)
    assert not any(changed for outside, changed in seeding.rows if not outside)


@pytest.mark.long
@pytest.mark.parametrize(("steps", "accumulation"), [(2, 1), (2, 2), (40, 1)])
def test_base_samples_are_of_the_problems_that_the_run_visits(make_trainer, steps, accumulation) -> None:
    few = make_trainer("run", [], max_steps=steps, gradient_accumulation_steps=accumulation)
    state = torch.get_rng_state()
    problems = visited(few, few.verifier.task.problems)
    assert torch.equal(torch.get_rng_state(), state)
    assert len(problems) == min(8 * steps * accumulation, 64)
    if steps > 2:
        return
    seeding = Watching(k=2)
    make_trainer("again", [seeding], max_steps=steps, gradient_accumulation_steps=accumulation).train()
    assert set(seeding.asked) == {problem.id for problem in problems}


@pytest.mark.long
def test_rare_answers_are_chosen_as_often_as_common_ones(make_trainer) -> None:
    seeding = Seeding(problems=64, k=32)  # few problems of three numbers have two solutions
    trainer = make_trainer("run", [seeding], max_steps=1)
    trainer.train()
    task = trainer.verifier.task
    chosen: dict[str, list[str]] = {}
    for name, (rows, _) in seeding.choices.items():
        texts = trainer._tokenizer.batch_decode(rows, skip_special_tokens=True)
        answers = [v.answer for v in task.verify([trainer.verifier.problems[name]] * len(rows), texts)]
        if len(set(answers)) == 1 or max(map(answers.count, answers)) < 3:
            continue
        drawn = []
        for step in range(200):
            trainer.state.global_step = step
            (ids,) = seeding.traces([name])
            drawn.append(answers[rows.index(ids)])
        for answer in set(answers):
            assert drawn.count(answer) / 200 == pytest.approx(1 / len(set(answers)), abs=0.15)
        chosen[name] = drawn
    assert chosen


@pytest.mark.long
def test_a_teachers_traces_are_verified_and_wrong_ones_left_out(make_trainer, tmp_path, capsys) -> None:
    task = load_task("countdown", split="train", n=64)
    right = [{"problem_id": p.id, "completion": p.gold} for p in task.problems[:40]]
    wrong = {"problem_id": task.problems[40].id, "completion": "1+1"}
    stranger = {"problem_id": "elsewhere", "completion": "1+1"}
    path = tmp_path / "teacher.jsonl"
    path.write_text("\n".join(map(json.dumps, [*right, wrong, stranger])) + "\n")
    seeding = Watching(source=str(path))
    make_trainer("run", [seeding], max_steps=2).train()
    (line,) = [line for line in capsys.readouterr().out.splitlines() if "teacher.jsonl" in line]
    assert [int(number) for number in re.findall(r" (\d+)\b", line)] == [40, 42, 1, 0, 1]
    assert set(seeding.choices) == {row["problem_id"] for row in right}
    assert any(rollouts.off_policy_pg.any() for rollouts in seeding.batches)
    assert not (tmp_path / "base-pools").exists()
    for text, message in (('{"problem_id": 1}', "completion"), (json.dumps(wrong), "teacher.jsonl")):
        path.write_text(text)
        with pytest.raises(ConfigError, match=message):
            make_trainer("bad", [Seeding(source=str(path))], max_steps=1).train()
    with pytest.raises(ConfigError, match="source of seeding"):
        make_trainer("none", [Seeding(source=str(tmp_path / "none"))], max_steps=1).train()


@pytest.mark.long
@pytest.mark.parametrize(
    "settings",
    [{"num_iterations": 2}, {"steps_per_generation": 2}, {"importance_sampling_level": "sequence"}],
)
def test_settings_under_which_the_weight_would_be_wrong_are_refused(make_trainer, settings) -> None:
    with pytest.raises(ConfigError, match=r"importance_sampling_level token .*num_iterations"):
        make_trainer("run", [Seeding()], **settings)

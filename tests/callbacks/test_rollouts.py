import math

import pytest

from offleash.callbacks import RolloutCallback
from offleash.callbacks.rollouts import group_metrics
from offleash.eval.errors import ConfigError
from offleash.eval.problem import Problem, Verdict
from offleash.eval.tasks import load_task


def test_groups_by_hand():
    answers = [
        [("a", True), ("a", True), ("b", True), ("b", True)],
        [(None, False), ("c", False), ("c", False), ("c", False)],
        [("a", True), ("None", False), (None, False), ("d", False)],
    ]
    groups = [[Verdict(a, correct, "no_answer" if a is None else "ok") for a, correct in group] for group in answers]
    entropy = [math.log(2), -(0.25 * math.log(0.25) + 0.75 * math.log(0.75)), math.log(4)]
    metrics = group_metrics(groups)
    assert metrics["rollouts/answer_entropy"] == pytest.approx(sum(entropy) / 3)
    assert metrics["rollouts/all_correct"] == pytest.approx(1 / 3)
    assert metrics["rollouts/all_wrong"] == pytest.approx(1 / 3)
    assert metrics["rollouts/distinct_correct"] == pytest.approx((2 + 0 + 1) / 3)
    assert metrics["rollouts/distinct_answers"] == pytest.approx((2 + 2 + 4) / 3)


def test_rollouts_without_a_verdict_or_an_answer_are_not_counted_as_wrong_or_silent():
    right, failed, late = Verdict("a", True, "ok"), Verdict(None, False, "error"), Verdict(None, False, "timeout")
    metrics = group_metrics([[right, right, failed], [failed, failed, failed], [right, late, late]])
    assert metrics["rollouts/all_correct"] == 0.5  # of two groups with a verdict; a timeout is wrong
    assert metrics["rollouts/all_wrong"] == 0
    assert (metrics["rollouts/answer_entropy"], metrics["rollouts/distinct_answers"]) == (0, 1)
    nameless = group_metrics([[Verdict(None, True, "ok"), Verdict(None, False, "ok")]])
    assert nameless["rollouts/all_correct"] == nameless["rollouts/all_wrong"] == 0
    for name in ("answer_entropy", "distinct_answers", "distinct_correct"):
        assert math.isnan(nameless[f"rollouts/{name}"])
    assert all(map(math.isnan, group_metrics([[failed]]).values()))


def test_no_rollouts_is_an_error_not_a_zero():
    with pytest.raises(ValueError, match="group_metrics"):
        group_metrics([])


def test_it_agrees_with_what_trl_logs_of_the_same_rollouts(make_trainer, read_scalars, tmp_path):
    trainer = make_trainer(max_steps=3)
    trainer.add_callback(RolloutCallback(trainer, load_task("countdown", split="train", n=64)))
    trainer.train()
    scalars = read_scalars(tmp_path / "run" / "tensorboard")
    dead = [
        r + w for (_, r), (_, w) in zip(scalars["rollouts/all_correct"], scalars["rollouts/all_wrong"], strict=True)
    ]
    assert dead == pytest.approx([value for _, value in scalars["train/frac_reward_zero_std"]])
    assert [step for step, _ in scalars["rollouts/answer_entropy"]] == [1, 2, 3]
    assert all(0 < value <= math.log(4) for _, value in scalars["rollouts/answer_entropy"])


@pytest.mark.long
def test_what_the_reward_has_judged_is_not_judged_again_and_gives_the_same_numbers(make_trainer, monkeypatch):
    """One verifier's verdicts, and those of another task of the same problems, which judges by itself."""
    trainer, verified = make_trainer(explorers=[], max_steps=1), []
    own, other = trainer.verifier.task, load_task("countdown", split="train", n=64)
    verify = type(own).verify

    def counted(self, problems, completions, truncated=None):
        verified.append((self is own, len(completions)))
        return verify(self, problems, completions, truncated)

    monkeypatch.setattr(type(own), "verify", counted)
    callbacks = [RolloutCallback(trainer, task) for task in (own, other)]
    for callback in callbacks:
        trainer.add_callback(callback)
    trainer.train()
    assert verified == [(True, 32), (False, 32)]
    assert callbacks[0].latest == pytest.approx(callbacks[1].latest, nan_ok=True)


@pytest.mark.long
def test_rollouts_of_other_problems_are_said_and_do_not_stop_training(make_trainer, read_scalars, tmp_path, capsys):
    trainer = make_trainer(max_steps=3)
    callback = RolloutCallback(trainer, load_task("countdown", split="train", n=8))
    trainer.add_callback(callback)
    trainer.train()
    assert trainer.state.global_step == 3
    assert callback.latest == {}
    assert "has no rollout metrics: MonitorError" in capsys.readouterr().out
    scalars = read_scalars(tmp_path / "run" / "tensorboard")
    assert scalars["monitor/failed"][-1] == (3, 3.0)
    assert "rollouts/answer_entropy" not in scalars


@pytest.mark.long
def test_of_rollouts_with_tools_the_last_turn_is_verified(make_tool_trainer):
    class Letters:
        name, version = "letters", "1"

        def __init__(self, trainer):
            rows = trainer.train_dataset
            self.problems, self.seen = [Problem(row["key"], row["prompt"], row["value"]) for row in rows], []

        def verify(self, problems, completions, truncated=None):
            self.seen += completions
            return [Verdict(text, text == p.gold, "ok") for p, text in zip(problems, completions, strict=True)]

        def correct_answers(self, problem):
            return None

    trainer = make_tool_trainer("tools", max_steps=1)
    task = Letters(trainer)
    callback = RolloutCallback(trainer, task)
    trainer.add_callback(callback)
    trainer.train()
    assert callback.latest["rollouts/distinct_answers"] > 0
    assert task.seen == [chat[-1]["content"] for chat in trainer._logs["completion"]]
    assert any(len(chat) == 3 for chat in trainer._logs["completion"])


@pytest.mark.parametrize("kind", ["environment_factory", "rollout_func"])
def test_rollouts_that_no_text_tells_are_refused_by_name(make_tool_trainer, kind):
    with pytest.raises(ConfigError, match=kind):
        RolloutCallback(make_tool_trainer(kind), load_task("countdown", split="train", n=2))

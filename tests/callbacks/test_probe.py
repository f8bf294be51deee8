"""SupportCallback on a stock trl.GRPOTrainer, given a dataset and a reward function and nothing else."""

import asyncio
import functools
import json
import math
import random

import pytest
import torch
from datasets import Dataset, IterableDataset
from transformers import set_seed
from trl import GRPOConfig, GRPOTrainer

from offleash import RolloutCallback, SupportCallback, SupportGuard, load_task, task_from_dataset
from offleash.eval.errors import ConfigError, MonitorError, VerifyError
from offleash.eval.pool.pool import Pool


def rows(first, count):
    return [{"prompt": f"{n}+{n + 1}=", "digit": str(n % 10)} for n in range(first, first + count)]


TRAIN, PROBE = rows(10, 16), rows(60, 6)


def has_digit(completions, digit, **columns):
    return [float(one in text) for text, one in zip(completions, digit, strict=True)]


def length(completions, **columns):
    return [len(text) / 100 for text in completions]


@pytest.fixture
def trainer_of(tmp_path, lab_base):
    def make(reward_funcs=has_digit, name="run", train=None, model=None, **settings):
        kwargs = {key: settings.pop(key) for key in ("eval_dataset", "peft_config") if key in settings}
        defaults = {"max_steps": 1, "num_generations": 4, "per_device_train_batch_size": 8, "max_completion_length": 8}
        quiet = {"report_to": "none", "use_cpu": True, "bf16": False, "disable_tqdm": True, "save_strategy": "no"}
        return GRPOTrainer(
            model=str(model or lab_base),
            reward_funcs=reward_funcs,
            args=GRPOConfig(output_dir=str(tmp_path / name), **{**defaults, **quiet, "seed": 1, **settings}),
            train_dataset=Dataset.from_list(TRAIN) if train is None else train,
            **kwargs,
        )

    return make


def measured(trainer, probe=None, **settings):
    """A run with the callback; its monitor."""
    monitor = SupportCallback(trainer, probe, **{"k": 4, "every": 1, **settings})
    trainer.add_callback(monitor)
    trainer.train()
    assert sorted(monitor.history) == [0, 1]
    return monitor


def verdicts(monitor):
    table = monitor.base_pool.read(["problem_id", "completion", "correct", "answer", "status"])
    return table.to_pylist()


def test_the_three_lines_judge_by_the_first_of_several_rewards_as_the_trainer_does(trainer_of, capsys):
    trainer = trainer_of([has_digit, length], eval_dataset=Dataset.from_list(PROBE))
    monitor = measured(trainer)
    assert "has_digit" in capsys.readouterr().out  # said, because the first may be one of format
    digits = {problem.id: row["digit"] for problem, row in zip(monitor.task.problems, PROBE, strict=True)}
    rows = verdicts(monitor)
    assert len(rows) == 4 * len(PROBE)
    assert [row["correct"] for row in rows] == [digits[row["problem_id"]] in row["completion"] for row in rows]
    assert {row["correct"] for row in rows} == {True, False}


@pytest.mark.long
def test_a_reward_that_draws_random_numbers_does_not_change_training(trainer_of, trajectory):
    def noisy(completions, digit, **columns):
        assert random.random() + float(torch.rand(1)) < 2
        return has_digit(completions, digit)

    runs = [trainer_of(noisy, name, max_steps=2, logging_steps=1, learning_rate=1e-3) for name in ("plain", "watched")]
    for trainer in runs:
        set_seed(5)
        if trainer is runs[1]:
            trainer.add_callback(SupportCallback(trainer, PROBE, k=4, every=1))
        trainer.train()
    assert trajectory(runs[0]) == trajectory(runs[1])


@pytest.mark.long
def test_a_float_reward_needs_a_threshold_and_is_counted_from_it_on(trainer_of):
    trainer = trainer_of([length, has_digit])
    with pytest.raises(ConfigError, match=r"length returned a reward of 0.09.*threshold"):
        SupportCallback(trainer, PROBE, k=4)
    monitor = measured(trainer, PROBE, threshold=0.05)
    assert [row["correct"] for row in verdicts(monitor)] == [len(row["completion"]) >= 5 for row in verdicts(monitor)]


@pytest.mark.long
def test_without_answers_units_are_problems_and_answer_entropy_is_left_out(
    trainer_of, read_tags, tmp_path, monkeypatch
):
    monkeypatch.setenv("TENSORBOARD_LOGGING_DIR", str(tmp_path / "tensorboard"))
    trainer = trainer_of(report_to="tensorboard")
    monitor = measured(trainer, PROBE, answer=False)
    found = monitor.history[0]
    for tag in ("entropy/answer", "entropy/answer_corrected", "verify/no_answer"):
        assert math.isnan(found[tag]), tag
    assert found["support/problem/preserved"] == found["support/unit/preserved"]
    assert "pass_at_k/1" in read_tags(tmp_path / "tensorboard")
    assert not [tag for tag in read_tags(tmp_path / "tensorboard") if tag.startswith("entropy/answer")]
    shown = json.loads((tmp_path / "run" / "support.json").read_text())["steps"]["0"]
    assert shown["entropy/answer"] is None


@pytest.mark.long
def test_chat_prompts_give_the_reward_messages_and_rewards_may_be_async(trainer_of, chat_model):
    def chat(rows):
        return [{**row, "prompt": [{"role": "user", "content": row["prompt"]}]} for row in rows]

    class Judge:
        async def __call__(self, prompts, completions, digit, **columns):
            await asyncio.sleep(0)
            assert all(prompt[0]["role"] == "user" for prompt in prompts)
            return [float(one in reply[0]["content"]) for reply, one in zip(completions, digit, strict=True)]

    trainer = trainer_of(functools.partial(Judge()), train=Dataset.from_list(chat(TRAIN)), model=chat_model)
    monitor = measured(trainer, chat(PROBE))
    assert monitor.task.loop is trainer.async_loop
    assert {row["status"] for row in verdicts(monitor)} <= {"ok", "no_answer", "truncated"}


@pytest.mark.long
def test_a_streaming_training_set_is_warned_of_and_a_streaming_probe_refused(trainer_of, capsys):
    def stream(rows):
        return IterableDataset.from_generator(lambda: iter(rows))

    trainer = trainer_of(train=stream(TRAIN))
    with pytest.raises(ConfigError, match=r"IterableDataset.*take"):
        SupportCallback(trainer, stream(PROBE), k=4)
    measured(trainer, list(stream(PROBE).take(4)))
    assert "streaming dataset cannot be searched" in capsys.readouterr().out


def test_a_reward_that_does_not_apply_to_a_probe_problem_is_refused_and_later_a_failed_verdict(trainer_of):
    def digits_only(completions, digit, **columns):
        return [None if one == "3" else float(one in text) for text, one in zip(completions, digit, strict=True)]

    with pytest.raises(ConfigError, match=r"digits_only fails on problem .*None"):
        SupportCallback(trainer_of(digits_only), PROBE, k=4)

    def unsure(completions, **columns):
        return [None if "7" in text else 1.0 for text in completions]

    monitor = SupportCallback(trainer_of(unsure), PROBE, k=4)
    (verdict,) = monitor.task.verify(monitor.task.problems[:1], ["7"])
    assert (verdict.correct, verdict.failed) == (False, True)


def too_few(completions, **columns):
    return [1.0]


def typo(completions, **columns):
    return [float(one in text) for text, one in zip(completions, columns["digits"], strict=True)]


def test_what_cannot_tell_right_from_wrong_is_refused_by_name(trainer_of, lab_model):
    trainer = trainer_of()
    with pytest.raises(ConfigError, match="probe="):
        SupportCallback(trainer)
    with pytest.raises(ConfigError, match="reward model"):
        SupportCallback(trainer, PROBE, correct="some/reward-model")
    with pytest.raises(ConfigError, match="own verifier"):
        SupportCallback(trainer, load_task("countdown", split="probe", n=2), correct=has_digit)
    with pytest.raises(VerifyError, match="too_few returned 1 rewards for 6"):
        SupportCallback(trainer, PROBE, correct=too_few)
    with pytest.raises(ConfigError, match=r"typo fails on problem .*KeyError: 'digits'"):
        SupportCallback(trainer, PROBE, correct=typo)
    trainer.reward_funcs = [lab_model[0]]
    with pytest.raises(ConfigError, match="first reward is a reward model"):
        SupportCallback(trainer, PROBE)


def test_probe_rows_among_the_training_rows_are_refused(trainer_of):
    with pytest.raises(ConfigError, match="3 of 6 probe problems are among the training problems"):
        SupportCallback(trainer_of(), [*PROBE[:3], *TRAIN[:3]], k=4)


@pytest.mark.long
def test_an_edited_reward_is_another_base_pool(trainer_of):
    def judge(wanted):
        def correct(completions, **columns):
            return [float(wanted in text) for text in completions]

        return correct

    first = measured(trainer_of(judge("1"), "first"), PROBE)
    again = measured(trainer_of(judge("1"), "again", learning_rate=1e-3), PROBE)
    edited = measured(trainer_of(judge("2"), "edited"), PROBE)
    assert again.base_pool.path == first.base_pool.path
    assert edited.base_pool.path != first.base_pool.path


@pytest.mark.long
def test_a_base_pool_with_other_verdicts_stops_the_run_at_step_0(trainer_of, tmp_path):
    probe = [{**row, "digit": "1"} for row in rows(60, 16)]
    strict = task_from_dataset(probe, lambda completions, **columns: [0.0 for _ in completions], version="1")
    lenient = task_from_dataset(probe, lambda completions, **columns: [1.0 for _ in completions], version="1")
    measured(trainer_of(name="first"), strict, k=8)
    second = trainer_of(name="second")
    second.add_callback(SupportCallback(second, lenient, k=8))
    with pytest.raises(MonitorError, match=r"step 0 is the base itself.*pass@1 0.000 there, 1.000 now"):
        second.train()
    assert second.state.global_step == 0


@pytest.mark.long
def test_the_other_callbacks_work_on_the_same_task(trainer_of):
    task = task_from_dataset(TRAIN, has_digit)
    spec_trainer = trainer_of(task.reward_funcs, train=task.train_dataset, logging_steps=1)
    rollouts = RolloutCallback(spec_trainer, task)
    spec_trainer.add_callback(rollouts)
    monitor = SupportCallback(spec_trainer, PROBE, k=4, every=1)
    spec_trainer.add_callback(monitor)
    spec_trainer.add_callback(SupportGuard(monitor, ["best sds"]))
    spec_trainer.train()
    assert 0 <= rollouts.latest["rollouts/all_correct"] <= 1


@pytest.mark.parametrize("beta", [0.0, 0.01])
def test_lora_is_measured_against_the_policy_without_its_adapter(trainer_of, beta):
    peft = pytest.importorskip("peft")
    adapter = peft.LoraConfig(target_modules=["q_proj", "v_proj"])
    trainer = trainer_of(beta=beta, peft_config=adapter, learning_rate=1e-2, max_steps=2)
    monitor = SupportCallback(trainer, PROBE, k=4, every=1)
    trainer.add_callback(monitor)
    trainer.train()
    assert monitor.history[0]["monitor/kl_base_k1"] == pytest.approx(0, abs=1e-5)
    assert monitor.history[2]["monitor/kl_base_k1"] != pytest.approx(0, abs=1e-5)
    assert Pool.open(monitor.base_pool.path).is_complete

"""Mode replay: what is banked, the loss in closed form, and the bank in a checkpoint."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from offleash.eval.problem import Problem
from offleash.train.explorers.samples import mode_replay
from offleash.train.explorers.samples.mode_replay import ModeReplay
from offleash.train.explorers.samples.rehearsing import Sample


@pytest.fixture
def replay(stand_in_trainer, monkeypatch) -> Any:
    """Attached to a trainer of four problems whose prompts are tokenized as their number."""
    monkeypatch.setattr(
        mode_replay, "tokenize_prompts", lambda _, prompts: SimpleNamespace(ids=[[int(prompt)] for prompt in prompts])
    )

    def make(**arguments: Any) -> ModeReplay:
        made = ModeReplay(**arguments)
        task = SimpleNamespace(problems=[Problem(f"p{i}", str(i), "") for i in range(4)])
        accelerator = SimpleNamespace(is_main_process=True, num_processes=1, process_index=0, device="cpu")
        made.attach(
            stand_in_trainer(
                {"seed": 3, "per_device_train_batch_size": 8},
                verifier=SimpleNamespace(task=task),
                accelerator=accelerator,
                _tokenizer=SimpleNamespace(pad_token_id=0),
                current_gradient_accumulation_steps=2,
            )
        )
        return made

    return make


def ids(*groups: str) -> Any:
    """Token ids from letters: "ab" is (97, 98)."""
    return tuple(tuple(tuple(map(ord, word)) for word in group.split()) for group in groups)


def test_the_first_correct_rollout_of_each_class_is_banked_and_nothing_else(replay, rollouts) -> None:
    made = replay(cap=2)
    first = rollouts("110x", answers=[["7", "7", "8", "9"]], completion_ids_pg=ids("a b c d"))
    assert torch.equal(made.advantages(first, torch.ones(1, 4)), torch.ones(1, 4))
    later = rollouts(
        "1111",
        "1000",
        answers=[["7", "9", "5", "6"], [None, "3", "3", "3"]],
        completion_ids_pg=ids("e f g h", "i j k l"),
    )
    made.advantages(later, torch.ones(2, 4))
    assert made.bank == {("p0", "7"): [97], ("p0", "9"): [102]}  # the cap leaves 5 and 6 out; no answer is no class
    assert made.samples == [Sample([0], [97]), Sample([0], [102])]
    assert made.metrics() == {"modes_banked": 2.0}


def test_a_trace_that_the_policy_did_not_draw_and_a_masked_rollout_are_not_banked(replay, rollouts) -> None:
    made, batch = replay(), rollouts("111", answers=[["7", "8", "9"]], completion_ids_pg=((((97,), (98,), ()),)))
    batch.off_policy_pg[0, 0] = True
    made.advantages(batch, torch.zeros(1, 3))
    assert list(made.bank) == [("p0", "8")]


def test_the_loss_is_the_mean_over_classes_of_the_mean_token_loss(replay, rollouts, monkeypatch, tokens) -> None:
    made = replay(eta=3.0, batch=64)
    made.advantages(rollouts("111", answers=[["7", "8", "8"]], completion_ids_pg=ids("abc d d")), torch.zeros(1, 3))
    seen: dict[int, int] = {}

    def logps(model: Any, inputs: Any) -> torch.Tensor:
        lengths = inputs["mask"].sum(1)
        seen.update({int(n): int((lengths == n).sum()) for n in lengths})
        return -lengths[:, None] * torch.ones(inputs["mask"].shape)  # each token costs its row's length

    monkeypatch.setattr(made, "logps", logps)
    loss = made.extra_loss(tokens([[0.0]], [[0.0]]), None)
    assert set(seen) == {1, 3}
    assert abs(seen[1] - seen[3]) < 24  # drawn uniformly over classes: 64 fair coins, three standard deviations
    assert float(loss) == pytest.approx(3.0 * (1 * seen[1] + 3 * seen[3]) / 64 / 2)


def test_an_empty_bank_adds_nothing(replay, tokens) -> None:
    assert replay().extra_loss(tokens([[0.0]], [[0.0]]), None) is None


def test_a_checkpoint_brings_the_bank_back_in_its_order(replay, rollouts, tmp_path) -> None:
    made = replay()
    for group in (("p", "q"), ("r",)):
        answers = [list(group)[:1] * 2, list(group)[-1:] * 2]
        made.advantages(rollouts("11", "11", answers=answers, completion_ids_pg=ids("a b", "c d")), torch.zeros(2, 2))
    assert len(made.samples) == 4
    made.save(tmp_path)
    loaded = replay()
    loaded.load(tmp_path)
    assert loaded.bank == made.bank
    assert list(loaded.bank) == list(made.bank)
    assert loaded.samples == made.samples
    assert loaded._share(7) == made._share(7)


@pytest.mark.long
def test_it_replays_what_a_real_run_found(make_trainer, trajectory) -> None:
    made = ModeReplay(eta=1.0, batch=8)
    trainer = make_trainer("run", [made], max_steps=3)
    trainer.train()
    task, tokenizer = trainer.verifier.task, trainer._tokenizer
    problems = {problem.id: problem for problem in task.problems}
    assert len(made.bank) > 5
    for (problem, answer), row in made.bank.items():
        assert row[-1] in trainer.eos_token_ids
        (verdict,) = task.verify([problems[problem]], [tokenizer.decode(row, skip_special_tokens=True)])
        assert verdict.correct
        assert verdict.answer == answer
    rows = trajectory(trainer)
    assert rows[0]["explorer/extra_loss"] > 0
    assert rows[0]["explorer/modes_banked"] < rows[-1]["explorer/modes_banked"]

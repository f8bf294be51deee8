import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate import Accelerator

from offleash.callbacks import SupportCallback
from offleash.eval.errors import ConfigError
from offleash.eval.tasks import load_task
from offleash.train.explorers.loss.reference_reset import ReferenceReset, Stall, reset_optimizer_state
from offleash.train.run_folder.checkpoints import export_final

pytestmark = pytest.mark.long

SMALL = {"per_device_train_batch_size": 16}


def weights(model: Any) -> dict[str, torch.Tensor]:
    return {name: parameter.detach().clone() for name, parameter in model.named_parameters()}


def same(ours: dict[str, torch.Tensor], theirs: dict[str, torch.Tensor]) -> bool:
    return ours.keys() == theirs.keys() and all(torch.equal(ours[name], theirs[name]) for name in ours)


def test_a_stall_is_called_when_the_mean_of_a_window_was_no_new_best_for_so_long() -> None:
    stall = Stall(patience=2, window=2)
    #         means:    -, .5, .6, .6, .5 -> two in a row without a new best
    assert [stall.add(v) for v in (0.4, 0.6, 0.6, 0.6, 0.4)] == [False, False, False, False, True]
    rising = Stall(patience=1, window=1)
    assert not any(rising.add(i / 10) for i in range(10))


@pytest.mark.parametrize(
    "wrap", [lambda optimizer: optimizer, lambda optimizer: Accelerator(cpu=True).prepare(optimizer)]
)
@pytest.mark.parametrize("fused", [False, True])
def test_an_emptied_optimizer_steps_as_a_fresh_one_does(wrap, fused) -> None:
    def step(parameter: torch.Tensor, optimizer: Any, gradient: float) -> None:
        parameter.grad = torch.full_like(parameter, gradient)
        optimizer.step()

    used, fresh = (torch.nn.Parameter(torch.ones(5)) for _ in range(2))
    optimizer = wrap(torch.optim.AdamW([used], lr=0.1, fused=fused))
    for gradient in (3.0, -1.0, 2.0):
        step(used, optimizer, gradient)
    fresh.data.copy_(used.data)
    reset_optimizer_state(optimizer)
    other = torch.optim.AdamW([fresh], lr=0.1, fused=fused)
    for gradient in (0.5, -4.0):
        step(used, optimizer, gradient)
        step(fresh, other, gradient)
        assert torch.equal(used, fresh)


def test_a_counter_kept_by_group_is_set_back_too() -> None:
    """As DeepSpeed's FusedAdam keeps it."""
    optimizer = torch.optim.AdamW([torch.nn.Parameter(torch.ones(1))])
    optimizer.param_groups[0]["step"] = 7
    reset_optimizer_state(optimizer)
    assert optimizer.param_groups[0]["step"] == 0


def test_a_reset_makes_the_policy_the_reference_and_the_optimizer_new_and_keeps_the_schedule(make_trainer) -> None:
    trainer = make_trainer("run", [ReferenceReset(every=2)], max_steps=2, **SMALL, lr_scheduler_type="linear")
    base = weights(trainer.ref_model)
    trainer.train()
    assert not same(weights(trainer.model), base)
    assert same(weights(trainer.ref_model), weights(trainer.model))
    states = trainer.optimizer.optimizer.state.values()
    assert states
    assert all(not value.any() for state in states for value in state.values())
    assert trainer.lr_scheduler.last_epoch == 2


def test_with_alpha_a_reference_in_between_is_taken(make_trainer) -> None:
    trainer = make_trainer("run", [ReferenceReset(every=2, alpha=0.25, reset_optimizer=False)], max_steps=2, **SMALL)
    base = weights(trainer.ref_model)
    trainer.train()
    policy, reference = weights(trainer.model), weights(trainer.ref_model)
    assert all(torch.allclose(reference[n], 0.75 * base[n] + 0.25 * policy[n], atol=1e-6) for n in base)
    assert any(value.any() for state in trainer.optimizer.optimizer.state.values() for value in state.values())


@pytest.mark.parametrize("arguments", [{"every": 2}, {"patience": 1, "window": 1}])
def test_a_run_resumed_after_a_reset_has_the_trajectory_of_one_that_was_not_interrupted(
    arguments, make_trainer, trajectory, tmp_path
) -> None:
    settings = {"max_steps": 4, "save_strategy": "steps", "save_steps": 1, **SMALL}
    rows = {}
    for name, checkpoint in (("whole", None), ("resumed", str(tmp_path / "whole" / "checkpoint-2"))):
        trainer = make_trainer(name, [ReferenceReset(**arguments)], **settings)
        trainer.train(resume_from_checkpoint=checkpoint)
        rows[name] = trajectory(trainer)
    assert rows["resumed"][2:] == rows["whole"][2:]
    assert rows["whole"][-1]["explorer/resets"] >= 1
    if "every" in arguments:
        assert [row["kl"] < 1e-7 for row in rows["whole"]] == [True, False, True, False]


def test_the_reference_is_in_a_checkpoint_once_it_moved_and_never_in_the_final_model(make_trainer, tmp_path) -> None:
    make_trainer("run", [ReferenceReset(every=2)], max_steps=2, **SMALL, save_strategy="steps", save_steps=1).train()
    folder = tmp_path / "run"
    assert not (folder / "checkpoint-1" / "reference.safetensors").exists()
    assert (folder / "checkpoint-2" / "reference.safetensors").exists()
    assert json.loads((folder / "checkpoint-2" / "reference_reset.json").read_text())["resets"] == 1
    export_final(folder / "checkpoint-2", folder / "final")
    assert not list((folder / "final").glob("reference*"))


def test_after_a_reset_the_monitor_still_measures_against_the_true_base(make_trainer, tmp_path) -> None:
    def measured(name: str, explorers: list[Any]) -> dict[str, float]:
        trainer = make_trainer(name, explorers, max_steps=2, **SMALL)
        monitor = SupportCallback(trainer, load_task("countdown", split="probe", n=6), k=4, every=2)
        trainer.add_callback(monitor)
        trainer.train()
        return {tag: value for tag, value in monitor.history[2].items() if "seconds" not in tag}

    plain, reset = measured("plain", []), measured("reset", [ReferenceReset(every=2)])
    assert reset == pytest.approx(plain, nan_ok=True)  # the reset comes after step 2, so the policy is the same
    assert plain["monitor/kl_base_k1"] > 1e-3


@pytest.mark.parametrize(
    ("arguments", "settings", "message"),
    [
        ({"every": 2}, {"beta": 0.0}, "set beta"),
        ({"every": 2}, {"optim": "adafactor"}, "optim: adamw_torch"),
        ({"every": 3}, {"steps_per_generation": 2, "per_device_train_batch_size": 16}, "multiple of 2"),
        ({"every": 9}, {"max_steps": 8}, "every is 9, max_steps 8"),
    ],
)
def test_what_would_do_nothing_or_harm_is_refused(arguments, settings, message, make_trainer) -> None:
    with pytest.raises(ConfigError, match=message):
        make_trainer("run", [ReferenceReset(**arguments)], **settings)


@pytest.mark.parametrize("arguments", [{}, {"every": 2, "patience": 3}, {"every": 0}, {"every": 2, "alpha": 0.0}])
def test_arguments_that_make_no_sense_are_refused(arguments) -> None:
    with pytest.raises(ConfigError, match="explorer reference_reset"):
        ReferenceReset(**arguments)


@pytest.mark.slow
def test_zero3_resets_and_resumes_as_two_plain_ranks_do(tmp_path: Path, launch, logged, trajectory) -> None:
    settings = {"explorer": '{"reference_reset": {"every": 2}}', "save_steps": 1, "max_steps": 4, "monitor_every": 2}
    for processes in ("cpu_two_processes", "cpu_zero3"):
        done = launch(tmp_path / processes, processes, **settings)
        assert done.returncode == 0, done.stderr[-4000:]
    plain, zero3 = (trajectory(logged(tmp_path / name, 4)) for name in ("cpu_two_processes", "cpu_zero3"))
    for ours, theirs in zip(zero3, plain, strict=True):
        for key in ("loss", "reward", "kl", "entropy"):
            assert ours[key] == pytest.approx(theirs[key], abs=2e-4), key
    assert zero3[2]["kl"] == pytest.approx(0, abs=1e-6)
    cut = tmp_path / "cut" / "run"
    shutil.copytree(tmp_path / "cpu_zero3", cut)
    shutil.copytree(tmp_path / "base-pools", tmp_path / "cut" / "base-pools")
    shutil.rmtree(cut / "checkpoint-4")
    again = launch(cut, "cpu_zero3", **settings, resume="true")
    assert again.returncode == 0, again.stderr[-4000:]
    assert trajectory(logged(cut, 4)) == zero3

"""Measured steps as evaluations: `log_history`, the best checkpoint and early stopping, in runs of a stock trainer."""

import json
from pathlib import Path
from typing import Any

import pytest
from datasets import Dataset
from safetensors.torch import load_file
from transformers import EarlyStoppingCallback
from trl import GRPOConfig, GRPOTrainer

from offleash.callbacks import SupportCallback
from offleash.eval.errors import ConfigError
from offleash.eval.tasks import load_task

pytestmark = pytest.mark.long

NSCR = "support/unit/nscr"
PROBE = {"split": "probe", "n": 6}


@pytest.fixture
def stock(tmp_path: Path, lab_base: Path):
    """A stock trainer with an evaluation dataset, as somebody with EarlyStoppingCallback has it."""
    task = load_task("countdown", split="train", n=32)

    def make(name: str = "run", *, callbacks: Any = (), evaluated: bool = False, **settings: Any) -> Any:
        rows = Dataset.from_list([{"prompt": problem.prompt} for problem in task.problems])
        given: dict[str, Any] = {
            **{"output_dir": str(tmp_path / name), "max_steps": 4, "learning_rate": 2e-3, "beta": 0.0, "seed": 3},
            **{"num_generations": 4, "per_device_train_batch_size": 16, "max_completion_length": 20},
            **{"logging_steps": 1, "save_strategy": "no", "report_to": "none", "bf16": False, "use_cpu": True},
            **{"gradient_checkpointing": False, "disable_tqdm": True},
        }
        return GRPOTrainer(
            model=str(lab_base),
            reward_funcs=lambda completions, **columns: [float(text.count("1")) for text in completions],
            args=GRPOConfig(**{**given, **settings}),
            train_dataset=rows,
            eval_dataset=rows.select(range(4)) if evaluated else None,
            callbacks=list(callbacks),
        )

    return make


def monitored(trainer: Any, values: list[float] | None = None, **settings: Any) -> SupportCallback:
    """With `values` the NSCR of steps 1, 2, ... is replaced after it was measured, so that the best step is known."""
    monitor = SupportCallback(trainer, load_task("countdown", **PROBE), **{"k": 4, "every": 1, **settings})
    if values is not None:
        measure = monitor.measure

        def planted(step: int) -> dict[str, float]:
            metrics = measure(step)
            if step:
                metrics[NSCR] = values[step - 1]
            return metrics

        monitor.measure = planted  # type: ignore[method-assign]
    trainer.add_callback(monitor)
    return monitor


def rows_of(trainer: Any) -> dict[int, list[dict[str, float]]]:
    found: dict[int, list[dict[str, float]]] = {}
    for row in trainer.state.log_history:
        if f"eval_{NSCR}" in row:
            found.setdefault(row["step"], []).append(row)
    return found


def test_every_measured_step_is_a_row_of_the_log_history_and_training_is_the_same(stock, trajectory) -> None:
    plain = stock("plain")
    plain.train()
    trainer = stock()
    monitor = monitored(trainer, every=2)
    trainer.train()
    assert trajectory(trainer) == trajectory(plain)
    rows = rows_of(trainer)
    assert {step: len(found) for step, found in rows.items()} == {0: 1, 2: 1, 4: 1}
    assert all(rows[step][0][f"eval_{NSCR}"] == monitor.history[step][NSCR] for step in rows)
    assert trainer.state.best_metric is None


def test_the_best_checkpoint_has_the_highest_nscr_and_is_loaded_at_the_end(stock, trajectory, tmp_path) -> None:
    plain = stock("plain")
    plain.train()
    best = {"save_strategy": "best", "load_best_model_at_end": True, "metric_for_best_model": NSCR}
    trainer = stock(**best, save_total_limit=1)
    monitor = monitored(trainer, [-0.3, 0.2, 0.1, -0.1])
    trainer.train()
    assert trajectory(trainer) == trajectory(plain)
    assert (trainer.state.best_metric, trainer.state.best_global_step) == (0.2, 2)
    assert Path(trainer.state.best_model_checkpoint).name == "checkpoint-2"
    assert [path.name for path in (tmp_path / "run").glob("checkpoint-*")] == ["checkpoint-2"]
    saved = load_file(tmp_path / "run" / "checkpoint-2" / "model.safetensors")
    loaded = trainer.model.state_dict()
    assert all((loaded[name] == tensor).all() for name, tensor in saved.items())
    assert not all((plain.model.state_dict()[name] == tensor).all() for name, tensor in saved.items())
    assert sorted(monitor.history) == [0, 1, 2, 3, 4]


def test_a_step_is_saved_when_it_is_the_best_whatever_the_save_steps(stock, tmp_path) -> None:
    trainer = stock(
        save_strategy="steps", save_steps=100, metric_for_best_model=f"eval_{NSCR}", greater_is_better=False
    )
    monitored(trainer, [0.3, 0.2, 0.2, 0.4])
    trainer.train()
    assert sorted(path.name for path in (tmp_path / "run").glob("checkpoint-*")) == [
        *("checkpoint-1", "checkpoint-2", "checkpoint-4")  # the last one as always
    ]
    assert trainer.state.best_global_step == 2


@pytest.mark.parametrize("order", ["before", "after"])
def test_early_stopping_stops_after_its_patience_wherever_it_was_added(stock, order) -> None:
    stopper = EarlyStoppingCallback(early_stopping_patience=2)
    settings = {"eval_strategy": "steps", "eval_steps": 1, "metric_for_best_model": NSCR, "max_steps": 6}
    best = {"save_strategy": "best", "load_best_model_at_end": True, **settings}
    trainer = stock(evaluated=True, callbacks=[stopper] if order == "before" else [], **best)
    monitored(trainer, [0.1, 0.2, 0.15, 0.2, 0.9, 0.9])
    if order == "after":
        trainer.add_callback(stopper)
    trainer.train()
    assert trainer.state.global_step == 4
    assert (trainer.state.best_global_step, trainer.state.best_metric) == (2, 0.2)
    assert {step: len(found) for step, found in rows_of(trainer).items()} == {0: 1, 1: 1, 2: 1, 3: 1, 4: 1}
    assert all("eval_reward" in row for row in trainer.state.log_history if "eval_runtime" in row)


def test_an_evaluation_at_a_step_that_is_not_measured_is_refused_before_training(stock) -> None:
    settings = {"eval_strategy": "steps", "eval_steps": 3, "metric_for_best_model": NSCR}
    trainer = stock(evaluated=True, **settings)
    monitored(trainer, every=2)
    with pytest.raises(ConfigError, match=r"metric_for_best_model is support/unit/nscr.*eval_steps"):
        trainer.train()
    trainer = stock("epochs", evaluated=True, **{**settings, "eval_strategy": "epoch"})
    monitored(trainer, every=2)
    with pytest.raises(ConfigError, match="epoch"):
        trainer.train()


def test_a_metric_that_the_monitor_does_not_measure_is_refused_and_the_trainers_own_are_not(stock) -> None:
    for named, meant in (("support/unit/nscrr", NSCR), ("pass_at_k/8", "pass_at_k/4")):
        trainer = stock(save_strategy="best", metric_for_best_model=named)
        with pytest.raises(ConfigError, match=f"metric_for_best_model.*{named}.*did you mean {meant}"):
            SupportCallback(trainer, load_task("countdown", **PROBE), k=4)
    own = stock(metric_for_best_model="rewards/correct/mean")
    assert SupportCallback(own, load_task("countdown", **PROBE), k=4).evaluations.tag is None


def test_a_failed_measurement_is_never_the_best_and_does_not_end_the_run(stock) -> None:
    settings = {"eval_strategy": "steps", "eval_steps": 1, "metric_for_best_model": NSCR, "max_steps": 2}
    trainer = stock(evaluated=True, save_strategy="best", **settings)
    monitor = monitored(trainer, [0.1, 0.2])
    measure = monitor.measure

    def failing(step: int) -> dict[str, float]:
        if step == 2:
            raise OSError("no space left on device")
        return measure(step)

    monitor.measure = failing  # type: ignore[method-assign]
    trainer.train()
    assert (trainer.state.global_step, trainer.state.best_global_step) == (2, 1)
    assert set(rows_of(trainer)) == {0, 1}


def test_a_resumed_run_keeps_its_history_and_logs_no_step_twice(stock, tmp_path) -> None:
    settings = {"save_strategy": "steps", "save_steps": 2, "metric_for_best_model": NSCR}
    first = stock(**{**settings, "max_steps": 3})
    monitored(first, [0.1, 0.3, 0.9])
    first.train()
    again = stock(**settings)
    monitored(again, [0.1, 0.3, 0.2, 0.0])
    again.train(resume_from_checkpoint=str(tmp_path / "run" / "checkpoint-2"))
    assert {step: len(found) for step, found in rows_of(again).items()} == {0: 1, 1: 1, 2: 1, 3: 1, 4: 1}
    assert rows_of(again)[2][0][f"eval_{NSCR}"] == 0.3
    assert (again.state.best_global_step, again.state.best_metric) == (2, 0.3)
    state = json.loads((tmp_path / "run" / "checkpoint-4" / "trainer_state.json").read_text())
    assert [row["step"] for row in state["log_history"] if f"eval_{NSCR}" in row] == [0, 1, 2, 3, 4]

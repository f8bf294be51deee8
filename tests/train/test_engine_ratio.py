"""One line, once, when rollouts of vLLM hardly count."""

from types import SimpleNamespace
from typing import Any

import pytest
from transformers import TrainerControl, TrainerState

from offleash.train.engine_ratio import RATIO, EngineRatioWarning


def logged(*ratios: float | None, mode: str = "sequence_mask", main: bool = True) -> Any:
    callback, state = EngineRatioWarning(), TrainerState(is_world_process_zero=main)
    for step, ratio in enumerate(ratios, start=1):
        state.global_step = step
        logs = {"loss": 0.0} if ratio is None else {RATIO: ratio}
        callback.on_log(SimpleNamespace(vllm_importance_sampling_mode=mode), state, TrainerControl(), logs=logs)


@pytest.mark.parametrize(("mode", "told"), [("sequence_mask", "token_truncate"), ("token_mask", "dtypes")])
def test_a_low_ratio_is_told_once_with_what_to_do(mode: str, told: str, capsys: pytest.CaptureFixture[str]) -> None:
    logged(0.99, None, 0.53, 0.2, mode=mode)
    (line,) = capsys.readouterr().out.splitlines()
    assert line.startswith(f"offleash: WARNING: step 3: {RATIO} is 0.53")
    assert told in line


def test_nothing_is_said_of_ratios_near_one_nor_by_other_ranks(capsys: pytest.CaptureFixture[str]) -> None:
    logged(1.0, 0.81, float("nan"), None)
    logged(0.1, main=False)
    assert capsys.readouterr().out == ""


@pytest.mark.long
def test_trl_logs_the_ratio_under_this_key(make_trainer: Any, served: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """Fails if TRL renames it."""
    trainer = make_trainer("run", [], max_steps=1, per_device_train_batch_size=8)
    served(trainer, 0.0)  # sure of every token: all weights are small
    trainer.add_callback(EngineRatioWarning())
    trainer.train()
    assert f"WARNING: step 1: {RATIO} is 0." in capsys.readouterr().out

"""The monitor on trainers whose rollouts take several turns: tools, environments, rollout functions."""

from typing import Any

import pytest

from offleash.callbacks import SupportCallback
from offleash.eval import load_task
from offleash.eval.errors import ConfigError


@pytest.mark.parametrize("kind", ["tools", "environment_factory", "rollout_func"])
def test_a_trainer_with_rollouts_of_several_turns_is_refused_by_name(make_tool_trainer: Any, kind: str) -> None:
    trainer = make_tool_trainer(kind)
    with pytest.raises(ConfigError, match=kind):
        SupportCallback(trainer, load_task("countdown", split="probe", n=2), k=2)

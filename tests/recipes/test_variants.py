"""Every variant and control that ships, trained from its recipe on a small lab."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from offleash import recipes
from offleash.train.explorers import EXPLORERS
from offleash.train.grpo import build_trainer
from offleash.train.recipe.config import parse_recipe

VARIANTS = sorted(path.stem for path in (Path(recipes.__path__[0]) / "variants").glob("*.yaml"))
ROLLOUTS = 3
SMALL = {
    "train_args": '{"split": "train", "n": 64}',
    "per_device_train_batch_size": "32",
    "learning_rate": "1e-3",
    "monitor_every": "0",
    "save_steps": "1",
    "save_total_limit": "100",
    "max_steps": str(ROLLOUTS),
    "use_cpu": "true",
    "disable_tqdm": "true",
    "report_to": "none",
}
FEW_BASE_SAMPLES = {"explorer.k": "8", "explorer.batch": "8"}
MORE = {
    "anchor": FEW_BASE_SAMPLES,
    "anchor_js": FEW_BASE_SAMPLES,
    "rehearsal": FEW_BASE_SAMPLES,
    "reference_reset": {"explorer.every": "1"},
    "dynamic_sampling": {"max_steps": "6", "save_steps": "2"},  # halved by the recipe
}


@pytest.fixture
def build(tmp_path: Path) -> Callable[[str], Any]:
    def make(name: str) -> Any:
        flags = SMALL | MORE.get(name, {}) | {"output_dir": str(tmp_path / name)}
        words = [word for key, value in flags.items() for word in (f"--{key}", value)]
        return build_trainer(parse_recipe(["--config", "lab", "--config", f"variants/{name}", *words]))

    return make


@pytest.mark.long
@pytest.mark.parametrize("name", VARIANTS)
def test_a_resumed_run_has_the_trajectory_of_one_that_was_not_interrupted(name: str, build, trajectory) -> None:
    whole = build(name)
    whole.train()
    rows = trajectory(whole)
    steps = whole.state.global_step
    assert steps in (ROLLOUTS, 2 * ROLLOUTS)  # twice where a rollout serves two updates
    assert len(rows) == steps
    assert all(torch.isfinite(torch.tensor(row["grad_norm"])) for row in rows)
    resumed = build(name)
    resumed.train(resume_from_checkpoint=f"{whole.args.output_dir}/checkpoint-{steps // ROLLOUTS}")
    assert trajectory(resumed) == rows


def test_every_explorer_has_a_recipe() -> None:
    used = {explorer for name in VARIANTS for explorer in _settings(name).run.explorers}
    assert used == set(EXPLORERS) - {"identity"}


def _settings(name: str) -> Any:
    return parse_recipe(["--config", "lab", "--config", f"variants/{name}", "--use_cpu", "true"])

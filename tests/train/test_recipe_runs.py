"""Recipes with a probe task of its own, several rewards, and a best checkpoint: real runs of one or two steps."""

import json
import shutil
import sys
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from safetensors.torch import load_file

from offleash.callbacks import SupportCallback
from offleash.eval.errors import ConfigError
from offleash.eval.problem import Problem
from offleash.eval.tasks import load_task
from offleash.eval.tasks.countdown import Countdown
from offleash.train.explorers.base import Explorer, normalized
from offleash.train.grpo import build_trainer, train
from offleash.train.recipe.config import Recipe, parse_recipe

pytestmark = pytest.mark.long

NSCR = "support/unit/nscr"
TINY = {
    "train_args": '{"split": "train", "n": 16}',
    "probe_args": '{"split": "probe", "n": 4}',
    **{"monitor_exact": "false", "monitor_every": "1", "monitor_k": "4", "monitor_score_k": "4"},
    **{"per_device_train_batch_size": "16", "num_generations": "8", "learning_rate": "1e-3", "max_steps": "2"},
    **{"save_strategy": "no", "use_cpu": "true", "disable_tqdm": "true", "report_to": "none"},
}


def recipe_in(folder: Path, *words: str, **settings: Any) -> Recipe:
    flags = {**TINY, "output_dir": str(folder), **settings}
    return parse_recipe(["--config", "lab", *(w for k, v in flags.items() for w in (f"--{k}", str(v))), *words])


class Watch(Explorer):
    """Keeps what it was given; `bonus` for each group's first rollout, by its reward."""

    seen: ClassVar[list[tuple[Any, torch.Tensor]]] = []

    def __init__(self, bonus: float = 0.0) -> None:
        self.bonus = bonus

    def rewards(self, rollouts: Any) -> torch.Tensor:
        paid_pg = torch.zeros_like(rollouts.rewards_pg)
        paid_pg[:, 0] = self.bonus
        return rollouts.rewards_pg + paid_pg

    def advantages(self, rollouts: Any, advantages_pg: torch.Tensor) -> torch.Tensor:
        self.seen.append((rollouts, advantages_pg.clone()))
        return advantages_pg


def short(completions: Any, gold: Any, **columns: Any) -> list[float]:
    assert all(isinstance(answer, str) for answer in gold)
    return [-len(text) / 10 for text in completions]


REWARDS = ["--rewards", "verifier", "format", f"{__name__}:short", "--reward_weights", "1", "0.1", "0.5"]


@pytest.mark.parametrize("bonus", [0.0, 0.3])
def test_advantages_come_from_the_weighted_sum_and_explorers_see_the_verifiers_0_and_1(tmp_path, bonus) -> None:
    words = [*REWARDS, "--explorer", f"{__name__}:Watch", "--explorer.bonus", str(bonus)]
    trainer = build_trainer(recipe_in(tmp_path / "run", *words, monitor_every=0, max_steps=1))
    sys.modules[__name__].Watch.seen.clear()  # the trial has been there
    trainer.train()
    ((rollouts, advantages_pg),) = sys.modules[__name__].Watch.seen
    logged = trainer._logs["rewards"]
    assert list(logged) == ["correct", "format", "short"]
    assert set(rollouts.rewards_pg.flatten().tolist()) <= {0.0, 1.0}
    assert rollouts.rewards_pg.flatten().tolist() == list(logged["correct"])
    weights = {"correct": 1.0, "format": 0.1, "short": 0.5}
    sums_pg = sum(w * torch.tensor(list(logged[name])) for name, w in weights.items()).view_as(rollouts.rewards_pg)
    sums_pg[:, 0] += bonus
    mixed_p = (rollouts.rewards_pg == 0).any(1)
    assert mixed_p.any()
    assert torch.allclose(advantages_pg[mixed_p], normalized(sums_pg, "group")[mixed_p], atol=1e-5)


def test_an_explorer_that_would_ignore_the_other_rewards_is_refused_by_name(tmp_path) -> None:
    recipe = recipe_in(tmp_path, *REWARDS, "--explorer", "maxrl")
    with pytest.raises(ConfigError, match=r"MaxRl.*1 x verifier, 0\.1 x format"):
        build_trainer(recipe)
    with pytest.raises(ConfigError, match=r"MaxRl.*2 x verifier"):
        build_trainer(recipe_in(tmp_path, "--reward_weights", "2", "--explorer", "maxrl"))
    words = [*REWARDS, "--explorer", "unlikeliness", "--multi_objective_aggregation", "normalize_then_sum"]
    with pytest.raises(ConfigError, match=r"Unlikeliness.*multi_objective_aggregation"):
        build_trainer(recipe_in(tmp_path, *words))


def test_the_monitor_measures_the_probe_task_and_the_card_names_it(tmp_path) -> None:
    trainer = train(recipe_in(tmp_path / "run", probe_task=f"{__name__}:Elsewhere", max_steps=1))
    assert trainer is not None
    (monitor,) = (each for each in trainer.callback_handler.callbacks if isinstance(each, SupportCallback))
    assert (monitor.task.name, trainer.verifier.task.name) == ("elsewhere", "countdown")
    assert "held-out problems of elsewhere" in (tmp_path / "run" / "README.md").read_text()
    assert any(path.name.startswith("elsewhere") for path in (tmp_path / "base-pools").iterdir())


def test_contamination_is_found_across_tasks(tmp_path) -> None:
    same = f"{__name__}:SamePrompts"
    with pytest.raises(ConfigError, match="4 of 4 probe problems"):
        build_trainer(recipe_in(tmp_path, probe_task=same, probe_args='{"n": 4}'))


class Elsewhere(Countdown):
    """Another task, on the splits of this one."""

    name = "elsewhere"


class SamePrompts:
    """Another task on prompts of the training problems."""

    name, version = "same", "1"

    def __init__(self, n: int) -> None:
        found = load_task("countdown", split="train", n=16).problems[:n]
        self.problems = [Problem(f"other-{i}", problem.prompt, problem.gold) for i, problem in enumerate(found)]

    def verify(self, problems: Any, completions: Any, truncated: Any = None) -> Any:
        raise NotImplementedError

    def correct_answers(self, problem: Any) -> None:
        return None


BEST = {"save_strategy": "best", "load_best_model_at_end": "true", "metric_for_best_model": NSCR, "max_steps": "3"}


def test_the_final_model_is_the_best_by_nscr_also_when_it_is_exported_later(tmp_path, capsys, monkeypatch) -> None:
    planted = {1: -0.5, 2: 0.5, 3: 0.1}
    measure = SupportCallback.measure

    def known(self: Any, step: int) -> dict[str, float]:
        metrics = measure(self, step)
        metrics[NSCR] = planted.get(step, 0.0)
        return metrics

    monkeypatch.setattr(SupportCallback, "measure", known)
    folder = tmp_path / "run"
    trainer = train(recipe_in(folder, **BEST))
    assert trainer is not None
    assert "final has the weights of step 2" in capsys.readouterr().out
    best, final = (load_file(folder / name / "model.safetensors") for name in ("checkpoint-2", "final"))
    assert all((best[name] == final[name]).all() for name in best)
    assert "| step 2 |" in (folder / "README.md").read_text()
    history = json.loads((folder / "checkpoint-2" / "trainer_state.json").read_text())["log_history"]
    assert [row["step"] for row in history if f"eval_{NSCR}" in row] == [0, 1, 2]

    again = train(recipe_in(folder, "--resume", "true", **BEST))
    assert again is None
    assert "already finished (checkpoint-2: at step 3)" in capsys.readouterr().out

    steps = {**BEST, "save_strategy": "best"}
    (folder / "checkpoint-3").mkdir()
    shutil.copytree(folder / "checkpoint-2", folder / "checkpoint-3", dirs_exist_ok=True)
    state = json.loads((folder / "checkpoint-3" / "trainer_state.json").read_text())
    (folder / "checkpoint-3" / "trainer_state.json").write_text(json.dumps({**state, "global_step": 3}))
    (folder / "checkpoint-3" / "checksums.json").unlink()
    (folder / "checkpoint-3" / "model.safetensors").write_bytes(
        (folder / "checkpoint-1" / "model.safetensors").read_bytes()
    )
    shutil.rmtree(folder / "final")
    assert train(recipe_in(folder, "--resume", "true", **steps)) is None
    assert "exported from checkpoint-2" in capsys.readouterr().out
    exported = load_file(folder / "final" / "model.safetensors")
    assert all((best[name] == exported[name]).all() for name in best)


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"metric_for_best_model": "support/unit/nsrc"}, "did you mean support/unit/nscr"),
        ({"load_best_model_at_end": "true"}, "'loss'"),
        ({"metric_for_best_model": NSCR, "monitor_every": "0"}, "monitor_every"),
        ({"metric_for_best_model": NSCR, "load_best_model_at_end": "true"}, "save_strategy"),
        ({"metric_for_best_model": NSCR, "save_strategy": "best", "guards": "best nscr"}, "guard"),
        ({"eval_strategy": "steps", "eval_steps": "2"}, "eval_strategy"),
    ],
)
def test_a_best_metric_that_is_never_measured_or_kept_is_refused(tmp_path, settings, told) -> None:
    with pytest.raises(ConfigError, match=told):
        build_trainer(recipe_in(tmp_path, **settings))

"""Weights between a run's policy and its base: at their ends they are the policy and the base."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
import yaml
from transformers import AutoModelForCausalLM, AutoTokenizer

from offleash.eval import load_task
from offleash.eval.engines.model import resolve_model
from offleash.eval.scoring.exact import exact_units
from offleash.recipes.lab.interpolated import between
from offleash.train.variants.planned.exact import outcomes, read_path

pytestmark = pytest.mark.long

TASK = {"split": "probe", "n": 6, "min_edges": 7, "max_edges": 10}


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """As a sweep leaves it: its settings, the policy, and the exact probabilities before and after."""
    folder, place = tmp_path_factory.mktemp("run"), resolve_model("lab_colouring").path
    model, tokenizer = AutoModelForCausalLM.from_pretrained(place), AutoTokenizer.from_pretrained(place)
    task = load_task("colouring", **TASK)
    settings = {"task": "colouring", "probe_args": TASK, "model_name_or_path": "lab_colouring"}
    (folder / "recipe.yaml").write_text(yaml.safe_dump({**settings, "max_completion_length": 8}))
    (folder / "exact").mkdir()
    for step in (0, 80):
        units = exact_units(model, tokenizer, task, task.problems, max_new_tokens=8)
        units.save(folder / "exact" / f"step-{step:06d}.npz")
        with torch.no_grad():
            model.lm_head.weight += 0.3 * torch.randn(model.lm_head.weight.shape, generator=torch.manual_seed(0))
    with torch.no_grad():  # the policy is what was measured last
        model.lm_head.weight -= 0.3 * torch.randn(model.lm_head.weight.shape, generator=torch.manual_seed(0))
    model.save_pretrained(folder / "final")
    tokenizer.save_pretrained(folder / "final")
    return SimpleNamespace(folder=folder, seed=0)


def test_the_ends_are_the_policy_and_the_base_and_the_middle_is_neither(run, tmp_path):
    policy = outcomes(read_path(run.folder))
    ends = [between(run, alpha, "all", tmp_path) for alpha in (0.0, 0.5, 1.0)]
    assert ends[0].pass_tg[-1, 0] == pytest.approx(policy.pass_tg[-1, 0], rel=1e-4)
    assert ends[0].nscr_tge[-1] == pytest.approx(policy.nscr_tge[-1], nan_ok=True)
    assert ends[2].pass_tg[-1, 0] == pytest.approx(policy.pass_tg[0, 0], rel=1e-4)
    assert np.nan_to_num(ends[2].nscr_tge[-1]) == pytest.approx(0.0)
    assert abs(ends[1].pass_tg[-1, 0] - ends[0].pass_tg[-1, 0]) > 1e-3
    assert abs(ends[1].pass_tg[-1, 0] - ends[2].pass_tg[-1, 0]) > 1e-3


def test_what_was_computed_is_found_again(run, tmp_path):
    first = between(run, 0.5, "late", tmp_path)
    file = tmp_path / "late-0.5" / "seed-0.npz"
    before = file.stat().st_mtime_ns
    assert np.array_equal(between(run, 0.5, "late", tmp_path).pass_tg, first.pass_tg)
    assert file.stat().st_mtime_ns == before

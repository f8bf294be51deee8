"""Rewards of a recipe: known names, a weight for each, functions that TRL can call; anything else in one line."""

import pytest
import yaml

from offleash.eval.errors import ConfigError
from offleash.eval.registry import announced_imports
from offleash.train.recipe.config import parse_recipe
from offleash.train.recipe.reward_names import check_reward_names, check_reward_weights, find_rewards

FUNCTIONS = """
import subprocess

calls = []

def short(completions, **columns):
    return [-len(text) / 100 for text in completions]

async def later(completion_ids, **columns):
    return [1.0 for ids in completion_ids]

def narrow(completions):
    return [0.0 for text in completions]

def blind(**columns):
    return []

def correct(completions, **columns):
    return [0.0 for text in completions]

class Short:
    pass
"""


@pytest.fixture
def module(tmp_path, monkeypatch):
    """A module of its own in the working directory."""
    name = f"rewards_{tmp_path.name.replace('-', '_')}"
    (tmp_path / f"{name}.py").write_text(FUNCTIONS)
    monkeypatch.chdir(tmp_path)
    return name


@pytest.mark.parametrize(
    ("rewards", "told"),
    [
        ("verifier", r"list.*'verifier'"),
        ([], "begin with verifier"),
        (["format"], r"begin with verifier, got \['format'\]"),
        (["format", "verifier"], "begin with verifier"),
        (["verifier", "formt"], "'formt'; did you mean format"),
        (["verifier", "length"], "'length'; there are verifier and format"),
        (["verifier", "format", "format"], "'format' is duplicated"),
        (["verifier", 3], "list"),
    ],
)
def test_names_that_cannot_be_used_are_refused(rewards, told):
    with pytest.raises(ConfigError, match=told):
        check_reward_names(rewards)


@pytest.mark.parametrize(
    ("weights", "told"),
    [
        ([1.0], r"1 values for 2 rewards \(verifier, format\)"),
        ([1.0, 0.1, 0.1], "3 values for 2"),
        ([1.0, float("nan")], "format must be a number, got nan"),
        ([0.0, 0.0], "all 0"),
    ],
)
def test_there_is_a_finite_weight_for_each_reward(weights, told):
    with pytest.raises(ConfigError, match=told):
        check_reward_weights(["verifier", "format"], weights)
    check_reward_weights(["verifier", "format"], [0.0, 0.1])
    check_reward_weights(["verifier", "format"], None)


def test_they_come_from_the_file_or_by_flags(tmp_path):
    values = {"task": "countdown", "model_name_or_path": "lab", "use_cpu": True, "bf16": False}
    (tmp_path / "r.yaml").write_text(
        yaml.safe_dump({**values, "rewards": ["verifier", "format"], "reward_weights": [1, 0.1]})
    )
    recipe = parse_recipe(["--config", str(tmp_path / "r.yaml")])
    assert (recipe.run.rewards, recipe.training.reward_weights) == (["verifier", "format"], [1, 0.1])
    flags = ["--rewards", "verifier", "a:b", "--reward_weights", "1", "0.5"]
    recipe = parse_recipe(["--config", str(tmp_path / "r.yaml"), *flags])
    assert (recipe.run.rewards, recipe.training.reward_weights) == (["verifier", "a:b"], [1, 0.5])
    with pytest.raises(ConfigError, match="2 values for 1 rewards"):
        parse_recipe(["--config", str(tmp_path / "r.yaml"), "--rewards", "verifier"])
    (tmp_path / "plain.yaml").write_text(yaml.safe_dump(values))
    assert parse_recipe(["--config", str(tmp_path / "plain.yaml")]).run.rewards == ["verifier"]


def test_functions_are_found_in_the_working_directory_and_announced_before_they_are_imported(module):
    told = []
    with announced_imports(lambda kind, name: told.append((kind, name))):
        found = find_rewards(["verifier", "format", f"{module}:short", f"{module}:later"])
    assert list(found) == [f"{module}:short", f"{module}:later"]
    assert told == [("reward", f"{module}:short"), ("reward", f"{module}:later")]


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("{module}:nothing", "no 'nothing'"),
        ("{module}:Short", "is a type: it must be a function"),
        ("{module}:narrow", r"narrow'.*\*\*columns"),
        ("{module}:blind", "none of prompts, completions, completion_ids"),
        ("{module}:correct", "verifier would both be logged as 'correct'"),
        ("os:system", "must be a function"),
        ("{module}:calls", "no 'calls'"),
        ("no_such_module:f", "cannot be imported"),
        (":f", "path of a function"),
    ],
)
def test_what_trl_could_not_call_is_refused(module, name, told):
    name = name.format(module=module)
    with pytest.raises(ConfigError, match=told):
        find_rewards(["verifier", name])


def test_two_functions_of_one_name_are_refused(module, tmp_path):
    (tmp_path / f"{module}_b.py").write_text(FUNCTIONS)
    with pytest.raises(ConfigError, match=r"both be logged as 'short'"):
        find_rewards(["verifier", f"{module}:short", f"{module}_b:short"])

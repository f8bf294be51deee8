"""Explorers chosen in a recipe and by flags."""

from pathlib import Path

import pytest

from offleash.eval.errors import ConfigError
from offleash.train.config import load_recipe
from offleash.train.explorers.choice import explorer_mapping, take_explorers


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        (None, {}),
        ("focal", {"focal": {}}),
        (["focal", "pkpo"], {"focal": {}, "pkpo": {}}),
        ({"pass_at_k": {"k": 4}, "focal": None}, {"pass_at_k": {"k": 4}, "focal": {}}),
        ('{"pass_at_k": {"k": 4}}', {"pass_at_k": {"k": 4}}),
    ],
)
def test_a_recipe_may_write_it_short(written, meant) -> None:
    assert explorer_mapping(written) == meant


def test_a_flags_argument_goes_to_the_explorer_that_takes_it() -> None:
    words = [
        "--seed",
        "1",
        "--explorer",
        "pass_at_k",
        "focal",
        "--explorer.k",
        "8",
        "--explorer.gamma=1",
        "--bf16",
        "0",
    ]
    chosen, rest = take_explorers(words, None)
    assert chosen == {"pass_at_k": {"k": 8}, "focal": {"gamma": 1}}
    assert rest == ["--seed", "1", "--bf16", "0"]


def test_flags_change_the_recipes_explorer_or_replace_it() -> None:
    assert take_explorers(["--explorer.k", "2"], {"pass_at_k": {"k": 4}})[0] == {"pass_at_k": {"k": 2}}
    assert take_explorers(["--explorer", "focal"], {"pass_at_k": {"k": 4}})[0] == {"focal": {}}


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (["--explorer.k", "2"], "none is"),
        (["--explorer", "focal", "--explorer.k", "2"], "takes k"),
        (["--explorer", "pass_at_k", "pkpo", "--explorer.k", "2"], "both take k: say --explorer.pass_at_k.k"),
        (["--explorer", "pass_at_k", "--explorer.k"], "needs one value"),
        (["--explorer", "pas_at_k", "--explorer.k", "2"], "did you mean pass_at_k"),
    ],
)
def test_an_argument_that_belongs_to_none_or_to_two_is_refused(words: list[str], error: str) -> None:
    with pytest.raises(ConfigError, match=error):
        take_explorers(words, None)


def test_two_explorers_that_take_the_same_argument_are_told_apart_by_name() -> None:
    words = ["--explorer", "pass_at_k", "pkpo", "--explorer.pass_at_k.k", "2", "--explorer.pkpo.k", "3"]
    assert take_explorers(words, None)[0] == {"pass_at_k": {"k": 2}, "pkpo": {"k": 3}}


def test_a_later_recipe_wins_key_by_key(tmp_path: Path) -> None:
    overlay = tmp_path / "mine.yaml"
    overlay.write_text("explorer: {focal: {gamma: 2}}\nbeta: 0.5\n")
    recipe = load_recipe(["--config", "lab", "--config", str(overlay), "--seed", "7", "--output_dir", str(tmp_path)])
    assert recipe.run.explorers == {"focal": {"gamma": 2}}
    assert (recipe.training.beta, recipe.training.seed, recipe.training.num_generations) == (0.5, 7, 8)
    assert load_recipe(["--config", "lab", "--config", "variants/pass_at_k"]).run.explorers == {"pass_at_k": {"k": 4}}


def test_a_saved_recipe_is_read_back_with_its_explorers(tmp_path: Path) -> None:
    from offleash.train.config import save_resolved

    save_resolved(load_recipe(["--config", "lab", "--config", "variants/kl_cov"]), tmp_path / "recipe.yaml")
    assert load_recipe(["--config", str(tmp_path / "recipe.yaml")]).run.explorers == {
        "kl_cov": {"ratio": 0.02, "weight": 1.0}
    }

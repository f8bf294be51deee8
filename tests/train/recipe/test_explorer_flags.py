"""Explorers chosen in a recipe and by flags."""

from pathlib import Path

import pytest

from offleash.eval.errors import ConfigError
from offleash.train.explorers import load_explorers
from offleash.train.explorers.base import Explorer
from offleash.train.recipe.config import parse_recipe
from offleash.train.recipe.explorer_flags import explorer_mapping, take_explorers


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        (None, {}),
        ("focal", {"focal": {}}),
        (["focal", "pkpo"], {"focal": {}, "pkpo": {}}),
        (["focal", {"pkpo": {"k": 2}, "ucpo": None}], {"focal": {}, "pkpo": {"k": 2}, "ucpo": {}}),
        ({"pass_at_k": {"k": 4}, "focal": None}, {"pass_at_k": {"k": 4}, "focal": {}}),
        ('{"pass_at_k": {"k": 4}}', {"pass_at_k": {"k": 4}}),
    ],
)
def test_a_recipe_may_write_it_short(written, meant) -> None:
    assert explorer_mapping(written) == meant


@pytest.mark.parametrize(
    ("written", "error"),
    [
        (["focal", "focal"], "'focal'"),
        (["focal", 3], "got 3"),
        (["focal", None], "got None"),
        ([["focal"]], r"got \['focal'\]"),
        ([{"pkpo": 2}], "must be a mapping, got 2"),
    ],
)
def test_what_is_no_name_with_arguments_is_refused(written, error: str) -> None:
    with pytest.raises(ConfigError, match=error):
        explorer_mapping(written)


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
        (["--explorer.k", "2"], "--explorer.k"),
        (["--explorer", "focal", "--explorer.k", "2"], "takes k"),
        (["--explorer", "pass_at_k", "pkpo", "--explorer.k", "2"], "pass_at_k and pkpo .*--explorer.pass_at_k.k"),
        (["--explorer", "pass_at_k", "--explorer.k"], "needs one value"),
        (["--explorer", "pas_at_k", "--explorer.k", "2"], "did you mean pass_at_k"),
        (["--explorer", "focal", "--explorer", "focal"], "'focal'"),
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
    recipe = parse_recipe(["--config", "lab", "--config", str(overlay), "--seed", "7", "--output_dir", str(tmp_path)])
    assert recipe.run.explorers == {"focal": {"gamma": 2}}
    assert (recipe.training.beta, recipe.training.seed, recipe.training.num_generations) == (0.5, 7, 8)
    assert parse_recipe(["--config", "lab", "--config", "variants/pass_at_k"]).run.explorers == {"pass_at_k": {"k": 4}}


def test_a_saved_recipe_is_read_back_with_its_explorers(tmp_path: Path) -> None:
    from offleash.train.recipe.config import save_resolved

    save_resolved(parse_recipe(["--config", "lab", "--config", "variants/kl_cov"]), tmp_path / "recipe.yaml")
    assert parse_recipe(["--config", str(tmp_path / "recipe.yaml")]).run.explorers == {
        "kl_cov": {"ratio": 0.02, "weight": 1.0}
    }


@pytest.mark.parametrize("words", [["--explorer"], ["--explorer="], ["--explorer", ""], ["--explorer", "{}"]])
def test_an_explorer_flag_without_a_name_is_refused(words: list[str]) -> None:
    with pytest.raises(ConfigError, match="--explorer identity"):
        parse_recipe(["--config", "lab", "--config", "variants/pass_at_k", *words])
    off = parse_recipe(["--config", "lab", "--config", "variants/pass_at_k", "--explorer", "identity"])
    assert off.run.explorers == {"identity": {}}


@pytest.mark.parametrize("text", ["@data/traces.jsonl", "a: b: c", "[x"])
def test_a_flag_that_is_no_yaml_is_refused_and_quotes_help(text: str) -> None:
    with pytest.raises(ConfigError, match=r"--explorer\.source: .*YAML"):
        take_explorers(["--explorer", "seeding", "--explorer.source", text], None)
    chosen, _ = take_explorers(["--explorer", "seeding", "--explorer.source", f'"{text}"'], None)
    assert chosen["seeding"]["source"] == text


@pytest.mark.parametrize(
    ("name", "argument", "text", "meant"),
    [
        ("focal", "gamma", "5e-1", 0.5),
        ("focal", "gamma", "1", 1),
        ("pass_at_k", "k", "4.0", 4),
        ("seeding", "source", "2024", "2024"),
        ("seeding", "problems", "null", None),
        ("seeding", "problems", "8", 8),
        ("reference_reset", "reset_optimizer", "false", False),
    ],
)
def test_arguments_get_the_type_that_the_explorer_asks_for(name, argument, text, meant, tmp_path: Path) -> None:
    by_flag = take_explorers(["--explorer", name, f"--explorer.{argument}", text], None)[0][name][argument]
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(f"explorer: {{{name}: {{{argument}: {text}}}}}\n")
    in_recipe = parse_recipe(["--config", "lab", "--config", str(recipe)]).run.explorers[name][argument]
    assert [by_flag, in_recipe] == [meant, meant]
    assert type(by_flag) is type(in_recipe) is type(meant)


@pytest.mark.parametrize(
    ("name", "argument", "value", "error"),
    [
        ("pass_at_k", "k", "x", "'pass_at_k': k must be .*, got 'x'"),
        ("pass_at_k", "k", 4.5, "k must be .*, got 4.5"),
        ("pass_at_k", "k", True, "k must be .*, got True"),
        ("pass_at_k", "k", None, "k must be .*, got None"),
        ("pass_at_k", "k", [4], r"k must be .*, got \[4\]"),
        ("focal", "gamma", "half", "gamma must be a number, got 'half'"),
        ("seeding", "problems", "all", "problems must be .* null, got 'all'"),
        ("reference_reset", "reset_optimizer", 1, "reset_optimizer must be true or false, got 1"),
    ],
)
def test_a_value_of_a_wrong_type_is_refused(name: str, argument: str, value, error: str) -> None:
    with pytest.raises(ConfigError, match=error):
        load_explorers({name: {argument: value}})
    with pytest.raises(ConfigError, match=error):
        take_explorers([], {name: {argument: value}})


class Free(Explorer):
    """Of arguments that no rule covers."""

    def __init__(self, plain=1, answers: "list[str] | None" = None, **others: int) -> None:
        self.given = (plain, answers, others)


def test_arguments_without_a_simple_type_stay_as_they_are() -> None:
    (mine,) = load_explorers({f"{__name__}:Free": {"plain": "x", "answers": ["a"], "more": "y"}})
    assert isinstance(mine, Free)
    assert mine.given == ("x", ["a"], {"more": "y"})


def test_what_is_no_explorer_is_refused() -> None:
    with pytest.raises(ConfigError, match="collections:Counter"):
        load_explorers({"collections:Counter": {}})

"""`offleash recipes` and `init`: every shipped recipe says what it does, and is copied out but never over a file."""

from pathlib import Path

import pytest

from offleash.eval.errors import ConfigError
from offleash.train.cli import main
from offleash.train.recipe.catalogue import RECIPES, find_recipe, find_shipped, shipped_names, shipped_recipes


def test_every_shipped_recipe_has_a_sentence_and_a_command_and_those_of_models_their_hardware() -> None:
    found = list(shipped_recipes())
    assert [recipe.name for recipe in found] == shipped_names()
    assert {"lab", "lab/vllm", "models/dapo-7b", "variants/pass_at_k"} <= {recipe.name for recipe in found}
    for recipe in found:
        assert recipe.summary.endswith("."), recipe.name
        assert recipe.command.startswith(("offleash train --config", "sbatch ")), recipe.name
        assert recipe.name.split("/")[-1] in recipe.command
        assert "\\" not in recipe.command
    assert all(recipe.hardware for recipe in found if recipe.name.startswith(("models/", "lab_")))


def test_a_name_is_found_here_first_and_then_among_the_shipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("lab", "lab.yaml", "recipes/lab.yaml"):
        assert find_recipe(name) == find_shipped(name) == RECIPES / "lab.yaml"
    (tmp_path / "lab.yaml").write_text("seed: 1\n")
    assert find_recipe("lab.yaml") == Path("lab.yaml")
    assert find_shipped("lab.yaml") == RECIPES / "lab.yaml"
    with pytest.raises(ConfigError, match="lab_colouring"):
        find_recipe("lab_coloring")
    with pytest.raises(ConfigError, match="README"):
        find_shipped("../README.md")


def test_the_commands_list_print_and_copy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["recipes"]) == 0
    listed = capsys.readouterr().out
    assert all(f"\n{name}\n" in f"\n{listed}" for name in shipped_names())
    assert main(["recipes", "models/dapo"]) == 0
    assert "models/dapo-7b\n" in (few := capsys.readouterr().out)
    assert "lab" not in few.split()
    assert main(["recipes", "lab"]) == 0
    text = (RECIPES / "lab.yaml").read_text()
    assert capsys.readouterr().out.strip() == text.strip()
    assert main(["init", "models/dapo-7b"]) == 0
    assert (tmp_path / "dapo-7b.yaml").read_bytes() == (RECIPES / "models" / "dapo-7b.yaml").read_bytes()


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["init", "lab", "mine.yaml"], "mine.yaml"),
        (["init", "lab", "no/such/mine.yaml"], "no/such"),
        (["init", "labb"], "lab"),
        (["init", "/etc/hostname"], "hostname"),
        (["recipes", "nothing-like-it"], "nothing-like-it"),
    ],
)
def test_a_copy_never_overwrites_and_unknown_names_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], words: list[str], named: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.yaml").write_text("mine")
    assert main(words) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert named in err
    assert [path.read_text() for path in tmp_path.iterdir()] == ["mine"]

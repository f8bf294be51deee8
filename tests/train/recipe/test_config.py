import pytest
import yaml

from offleash.eval.errors import ConfigError
from offleash.train.recipe.config import load_recipe, parse_recipe, resolved, save_resolved

MINIMAL = {"task": "countdown", "model_name_or_path": "lab", "output_dir": "somewhere", "use_cpu": True, "bf16": False}


def recipe_file(tmp_path, text=None, **values):
    path = tmp_path / "recipe.yaml"
    path.write_text(text if text is not None else yaml.safe_dump({**MINIMAL, **values}))
    return str(path)


def test_a_flag_wins_over_the_file_and_the_file_over_the_default(tmp_path):
    path = recipe_file(tmp_path, beta=0.02, learning_rate="3e-5", monitor_k=32)
    recipe = parse_recipe(["--config", path, "--monitor_k", "128", "--temperature=0.8"])
    assert recipe.training.beta == 0.02
    assert recipe.training.learning_rate == 3e-5
    assert recipe.run.monitor_k == 128
    assert recipe.training.temperature == 0.8
    assert recipe.training.num_generations == 8


def test_task_arguments_come_as_a_mapping_or_as_json(tmp_path):
    path = recipe_file(tmp_path, train_args={"n": 5})
    recipe = parse_recipe(["--config", path, "--probe_args", '{"split": "probe", "n": 3}'])
    assert recipe.run.train_args == {"n": 5}
    assert recipe.run.probe_args == {"split": "probe", "n": 3}


@pytest.mark.parametrize(
    ("values", "flags", "message"),
    [
        ({"learning_rat": 1}, [], "unknown key in .*recipe.yaml: learning_rat .did you mean learning_rate?"),
        ({}, ["--bet", "0.1"], "unknown key as a flag: bet .did you mean beta?"),
        ({}, ["--max_step=3"], "unknown key as a flag: max_step .did you mean max_steps?"),
        ({}, ["stray"], "belong to no flag: stray"),
        ({}, ["--beta", "much"], "invalid float value: 'much'"),
        ({}, ["--probe_args", "{n: 3}"], "probe_args must be JSON"),
        ({}, ["--monitor_k", "0"], "monitor_k must be at least 1, got 0"),
        ({"monitor_k": 6.5}, [], "monitor_k must be an integer, got 6.5"),
        ({}, ["--monitor_successes", "65"], r"monitor_successes must lie in 1..monitor_k .64., got 65"),
        ({"monitor_successes": 2.5}, [], "monitor_successes.*2.5"),
        ({"monitor_successes": 5, "monitor_importance": True}, [], "monitor_importance.*monitor_successes"),
        ({"num_generations": 3}, [], "cannot be used"),
        ({"model_name_or_path": None}, [], "model_name_or_path is missing"),
    ],
)
def test_what_cannot_be_used_is_refused_by_name_in_one_line(tmp_path, values, flags, message):
    with pytest.raises(ConfigError, match=message) as caught:
        parse_recipe(["--config", recipe_file(tmp_path, **values), *flags])
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("beta: 1\nbeta: 2\n", "'beta' is duplicated .line 2"),
        ("- a\n- b\n", "a recipe is a mapping"),
        ("beta: [1\n", "recipe.yaml"),
        ("", "a recipe is a mapping"),
    ],
)
def test_a_broken_file_is_refused_with_its_name(tmp_path, text, message):
    with pytest.raises(ConfigError, match=message):
        parse_recipe(["--config", recipe_file(tmp_path, text)])


def test_a_missing_recipe_is_refused_with_those_that_exist():
    with pytest.raises(ConfigError, match=r"no recipe 'labs'.*close: lab,"):
        parse_recipe(["--config", "labs"])


def test_a_shipped_recipe_is_found_by_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    recipe = parse_recipe(["--config", "lab", "--use_cpu", "true"])
    assert recipe.training.beta > 0
    assert recipe.model.model_name_or_path.endswith("base")


def test_the_resolved_recipe_holds_every_value_and_can_be_loaded_again(tmp_path):
    recipe = parse_recipe(
        ["--config", "lab", "--use_cpu", "true", "--output_dir", str(tmp_path), "--guards", "srr < 0.9"]
    )
    save_resolved(recipe, tmp_path / "out.yaml")
    values = yaml.safe_load((tmp_path / "out.yaml").read_text())
    assert values["beta"] == recipe.training.beta
    assert values["epsilon"] == 0.2
    assert values["guards"] == ["srr < 0.9"]
    assert values["probe_args"] == recipe.run.probe_args
    again = parse_recipe(["--config", str(tmp_path / "out.yaml")])
    assert again.run == recipe.run
    assert {k: v for k, v in again.training.to_dict().items() if v != recipe.training.to_dict()[k]} == {}


SCALE = {"max_steps": 2, "learning_rate": 0.3, "per_device_train_batch_size": 0.5, "temperature": 0.5}


def test_a_file_over_another_multiplies_whatever_files_and_flags_say(tmp_path):
    base, over = tmp_path / "base.yaml", tmp_path / "over.yaml"
    numbers = {"max_steps": 9, "learning_rate": 1e-4, "per_device_train_batch_size": 8, "temperature": 1.0}
    base.write_text(yaml.safe_dump({**MINIMAL, **numbers}))
    over.write_text(yaml.safe_dump({"scale": SCALE, "num_generations": 2}))
    files = ["--config", str(base), "--config", str(over)]

    def scaled(*flags: str) -> tuple[float, ...]:
        training = parse_recipe([*files, *flags]).training
        return tuple(getattr(training, key) for key in SCALE)

    assert scaled() == (18, pytest.approx(3e-5), 4, 0.5)
    assert scaled("--max_steps", "50", "--learning_rate=1e-3") == (100, pytest.approx(3e-4), 4, 0.5)
    assert scaled("--max-steps", "50", "--learning-rate=1", "--temperature", "1") == (100, pytest.approx(0.3), 4, 0.5)
    over.write_text(yaml.safe_dump({"scale": {"max_steps": 0.5, "save_steps": 0.5, "warmup_steps": 0.5}}))
    halves = parse_recipe([*files, "--save_steps", "25"]).training
    assert (halves.max_steps, halves.save_steps, halves.warmup_steps) == (5, 13, 0)  # steps are rounded up
    assert parse_recipe([*files, "--save_steps", "0.5"]).training.save_steps == 0.5  # a share of the run
    assert parse_recipe([*files, *files[2:]]).training.max_steps == 3  # a half of a half
    save_resolved(parse_recipe(files), tmp_path / "resolved.yaml")
    assert parse_recipe(["--config", str(tmp_path / "resolved.yaml")]).training.max_steps == 5  # once


@pytest.mark.parametrize(
    ("scale", "message"),
    [
        ({"max_stepz": 2}, r"unknown key in .*max_stepz \(did you mean max_steps\?\)"),
        ({"max_steps": 2}, r"scale: max_steps is -1"),  # the default: as many as the epochs have
        ({"learning_rate": "much"}, r"learning_rate is 'much', which is not a number"),
        ({"num_generations": 0.3}, r"0.3 x num_generations \(8\) is not an integer"),
        ({"learning_rate": -1}, r"learning_rate.* by -1"),
        ({"bf16": 2}, r"scale: bf16 is"),
        ("twice", r"scale must be JSON"),
    ],
)
def test_a_factor_that_makes_no_sense_is_refused(tmp_path, scale, message):
    path = tmp_path / "r.yaml"
    path.write_text(yaml.safe_dump({**MINIMAL, "scale": scale}))
    with pytest.raises(ConfigError, match=message):
        parse_recipe(["--config", str(path)])


def test_keys_given_in_python_override_the_files(tmp_path):
    path = recipe_file(tmp_path, beta=0.02, max_steps=9)
    recipe = load_recipe(path, max_steps=2, train_args={"n": 5}, explorer={"pass_at_k": {"k": 2}})
    assert (recipe.training.max_steps, recipe.training.beta) == (2, 0.02)
    assert recipe.run.train_args == {"n": 5}
    assert recipe.run.explorers == {"pass_at_k": {"k": 2}}
    flags = ["--max_steps", "2", "--train_args", '{"n": 5}', "--explorer", "pass_at_k", "--explorer.k", "2"]
    assert resolved(recipe) == resolved(parse_recipe(["--config", path, *flags]))


def test_a_python_argument_that_is_no_key_is_refused_with_the_nearest_one():
    with pytest.raises(ConfigError, match=r"max_step \(did you mean max_steps\?\)"):
        load_recipe("lab", max_step=2)


def test_a_recipe_is_resolved_as_in_a_launch_of_several_processes():
    sizes = {n: parse_recipe(["--config", "lab"], processes=n).training.generation_batch_size for n in (1, 4)}
    assert sizes[4] == 4 * sizes[1]

"""A run trains in the numbers its recipe names, and not in ones that swallow its updates."""

from contextlib import nullcontext
from types import SimpleNamespace

import pytest
from accelerate.utils.deepspeed import HfDeepSpeedConfig

from offleash.eval.errors import ConfigError
from offleash.train.grpo import build_trainer
from offleash.train.preflight.precision import accumulate_in_float32, check_precision, check_rounding, precision
from offleash.train.recipe.config import Recipe, parse_recipe


def lab(*words: str) -> Recipe:
    return parse_recipe(["--config", "lab", "--use_cpu", "true", *words])


@pytest.mark.parametrize(
    ("launcher", "words", "runs", "refused"),
    [
        ("no", (), "no", None),
        (None, (), "no", None),
        ("bf16", (), "bf16", "--bf16 true"),
        ("fp16", (), "fp16", "--fp16 true"),
        ("fp8", (), "fp8", None),  # no key of a recipe says fp8
        ("no", ("--bf16", "true"), "bf16", None),
        ("bf16", ("--bf16", "true"), "bf16", None),
        ("fp16", ("--bf16", "true"), "bf16", None),  # the recipe wins
    ],
)
def test_a_launcher_in_half_precision_does_not_overrule_a_recipe_in_silence(
    launcher, words, runs, refused, monkeypatch
):
    monkeypatch.delenv("ACCELERATE_MIXED_PRECISION", raising=False)
    if launcher is not None:
        monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", launcher)
    training = lab(*words).training
    assert precision(training) == runs
    if refused is None:
        check_precision(training)
    else:
        with pytest.raises(ConfigError, match=refused):
            check_precision(training)


@pytest.mark.parametrize(
    ("dtype", "sharding", "precision", "peft", "lost"),
    [
        ("bfloat16", "none", "bf16", False, True),
        ("float16", "none", "no", False, True),
        ("bfloat16", "fsdp2", "no", False, True),
        ("bfloat16", "fsdp2", "bf16", False, False),
        ("bfloat16", "zero2", "bf16", False, False),
        ("bfloat16", "zero3", "no", False, False),
        ("bfloat16", "none", "bf16", True, False),
        ("float32", "none", "bf16", False, False),
    ],
)
def test_half_weights_train_only_where_something_keeps_them_in_float32(dtype, sharding, precision, peft, lost):
    with pytest.raises(ConfigError, match=dtype) if lost else nullcontext():
        check_rounding(dtype, sharding, precision, peft)


@pytest.mark.parametrize("words", [("--dtype", "bfloat16"), ("--model_init_kwargs", '{"dtype": "bfloat16"}')])
def test_a_run_whose_updates_would_round_away_does_not_start(words, tmp_path):
    with pytest.raises(ConfigError, match=r"dtype: bfloat16 .* dtype: float32"):
        build_trainer(lab(*words, "--output_dir", str(tmp_path)))


@pytest.mark.parametrize(
    ("stage", "bf16", "given", "found"),
    [
        (2, True, None, "fp32"),
        (3, True, None, "fp32"),
        (3, True, "bf16", "bf16"),  # the user's own config wins
        (1, True, None, None),
        (0, True, None, None),  # DeepSpeed refuses it there
        (3, False, None, None),
    ],
)
def test_zero_adds_up_gradients_in_float32_where_weights_are_bfloat16(stage, bf16, given, found) -> None:
    config = {"zero_optimization": {"stage": stage}, "bf16": {"enabled": bf16}}
    if given:
        config["data_types"] = {"grad_accum_dtype": given}
    plugin = SimpleNamespace(hf_ds_config=HfDeepSpeedConfig(config))
    accumulate_in_float32(SimpleNamespace(deepspeed_plugin=plugin))
    assert plugin.hf_ds_config.config.get("data_types", {}).get("grad_accum_dtype") == found
    accumulate_in_float32(SimpleNamespace(deepspeed_plugin=None))

"""The size of a checkpoint, against one that was written; those of ZeRO: tests/recipes/test_dry_runs.py."""

from pathlib import Path
from typing import Any

import pytest
from transformers import AutoConfig

from offleash.train.forecast.disk import Disk, disk
from offleash.train.forecast.forecast import layout_of
from offleash.train.forecast.hardware import GPUS, Machines, Sharding
from offleash.train.forecast.model_size import ModelSize, measure_model
from offleash.train.recipe.config import parse_recipe

BIG = ModelSize(32_763_876_352, 32_763_876_352, 64, 5120, 5120, 1024, 27648, 152064, None)


def made(name: str, size: ModelSize, sharding: Sharding, *flags: str) -> Disk | None:
    recipe = parse_recipe(["--config", name, "--use_cpu", "true", *flags])
    return disk(recipe, size, layout_of(recipe, Machines(GPUS["H100"], 8, sharding), 100))


def test_a_32b_checkpoint_takes_459_gb_and_three_are_on_disk_at_once() -> None:
    found = made("models/qwen2.5-32b-dapo", BIG, "zero3")
    assert found == Disk(14 * BIG.trained, 2 * BIG.trained, 3)
    assert found.checkpoint / 1e9 == pytest.approx(459, abs=0.5)
    assert made("models/qwen2.5-32b-dapo", BIG, "zero2") == Disk(16 * BIG.trained, 2 * BIG.trained, 3)


def test_the_weights_alone_an_adapter_and_nothing() -> None:
    only = made("models/qwen2.5-32b-dapo", BIG, "zero3", "--save_only_model", "true")
    assert only == Disk(2 * BIG.trained, 2 * BIG.trained, 3)
    adapted = BIG._replace(trained=10_000_000, adapter=True)
    found = made("models/qwen2.5-0.5b-gsm8k-lora", adapted, "none")
    assert found is not None
    assert found.checkpoint == 12 * adapted.trained
    assert made("models/qwen2.5-32b-dapo", BIG, "zero3", "--save_strategy", "no") is None


@pytest.mark.long
def test_it_is_what_a_run_writes(make_trainer: Any, lab_base: Path, tmp_path: Path) -> None:
    make_trainer("run", [], max_steps=1, save_strategy="steps", save_steps=1, per_device_train_batch_size=4).train()
    folder = tmp_path / "run" / "checkpoint-1"
    written = sum((folder / name).stat().st_size for name in ("model.safetensors", "optimizer.pt"))
    found = made("lab", measure_model(AutoConfig.from_pretrained(lab_base)), "none")
    assert found is not None
    assert found.checkpoint == pytest.approx(written, rel=0.05)

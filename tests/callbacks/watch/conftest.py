"""Checkpoints of the lab model, as trainers write them."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture(scope="session")
def write_checkpoint(lab_base: Path) -> Callable[..., Path]:
    """The embedded model with its last norm scaled, which is another policy for another scale."""
    from safetensors.torch import load_file, save_file

    def write(path: Path, scale: float = 1.0, *, trainer: bool = True, max_steps: int = 100) -> Path:
        path.mkdir(parents=True, exist_ok=True)
        tensors = load_file(lab_base / "model.safetensors")
        tensors["model.norm.weight"] = tensors["model.norm.weight"] * scale
        save_file(tensors, path / "model.safetensors", {"format": "pt"})
        for file in lab_base.iterdir():
            if file.suffix != ".safetensors":
                shutil.copy(file, path / file.name)
        if trainer:
            (path / "optimizer.pt").write_bytes(b"only training needs it")
            (path / "training_args.bin").write_bytes(b"and this")
            state: dict[str, Any] = {"global_step": int(path.name.rpartition("-")[2]), "max_steps": max_steps}
            (path / "trainer_state.json").write_text(json.dumps(state))
        return path

    return write

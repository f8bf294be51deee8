from pathlib import Path

import pytest

from offleash.eval.errors import ConfigError
from offleash.train.checkpoints import export_final, last_whole_checkpoint, remove_torn, require_resumable


def checkpoint(folder: Path, step: int, files: list[str], state: str = "{}") -> Path:
    path = folder / f"checkpoint-{step}"
    path.mkdir()
    for name in files:
        (path / name).write_text("x")
    (path / "trainer_state.json").write_text(state)
    return path


@pytest.mark.parametrize("state", ["", '{"global_step": 3', "\x00"])
def test_the_last_whole_checkpoint_is_found_and_only_torn_ones_are_removed(tmp_path, state):
    early = checkpoint(tmp_path, 3, ["rng_state.pth"])
    good = checkpoint(tmp_path, 20, ["rng_state.pth"])
    torn = checkpoint(tmp_path, 100, ["rng_state.pth"], state)
    (tmp_path / "checkpoint-best").mkdir()
    assert last_whole_checkpoint(tmp_path) == good
    assert remove_torn(tmp_path) == [torn]
    assert early.exists()
    assert good.exists()
    assert not torn.exists()
    assert (tmp_path / "checkpoint-best").exists()


@pytest.mark.parametrize(
    ("files", "world_size", "message"),
    [
        (["rng_state.pth"], 2, "was written by 1 processes"),
        (["rng_state_0.pth", "rng_state_1.pth"], 1, "was written by 2 processes"),
        (["model.safetensors"], 1, "save_only_model"),
    ],
)
def test_a_whole_checkpoint_that_does_not_fit_is_refused_and_kept(tmp_path, files, world_size, message):
    path = checkpoint(tmp_path, 4, files)
    with pytest.raises(ConfigError, match=message):
        require_resumable(path, world_size)
    assert path.exists()


def test_a_fitting_checkpoint_is_taken(tmp_path):
    require_resumable(checkpoint(tmp_path, 4, ["rng_state_0.pth", "rng_state_1.pth"]), 2)


def test_an_empty_or_missing_folder_has_no_checkpoint(tmp_path):
    assert last_whole_checkpoint(tmp_path) is None
    assert last_whole_checkpoint(tmp_path / "missing") is None


def test_the_final_model_leaves_training_state_behind(tmp_path):
    path = checkpoint(
        tmp_path, 4, ["model.safetensors", "config.json", "optimizer.pt", "rng_state.pth", "scheduler.pt"]
    )
    export_final(path, tmp_path / "final")
    assert {p.name for p in (tmp_path / "final").iterdir()} == {"model.safetensors", "config.json"}

from pathlib import Path

import pytest

from offleash.train.checkpoints import is_whole, last_whole_checkpoint, remove_torn


def checkpoint(folder: Path, step: int, files: list[str], state: str = "{}") -> Path:
    path = folder / f"checkpoint-{step}"
    path.mkdir()
    for name in files:
        (path / name).write_text("x")
    (path / "trainer_state.json").write_text(state)
    return path


def test_the_last_checkpoint_that_every_rank_finished_is_found_and_later_ones_are_removed(tmp_path):
    good = checkpoint(tmp_path, 20, ["rng_state_0.pth", "rng_state_1.pth"])
    checkpoint(tmp_path, 3, ["rng_state_0.pth", "rng_state_1.pth"])
    torn = checkpoint(tmp_path, 100, ["rng_state_0.pth"])
    (tmp_path / "checkpoint-best").mkdir()
    assert last_whole_checkpoint(tmp_path, world_size=2) == good
    assert remove_torn(tmp_path, good) == [torn]
    assert good.exists()
    assert not torn.exists()
    assert (tmp_path / "checkpoint-best").exists()


@pytest.mark.parametrize("state", ["", '{"global_step": 3', "\x00"])
def test_a_half_written_state_is_not_whole(tmp_path, state):
    assert not is_whole(checkpoint(tmp_path, 1, ["rng_state.pth"], state))


def test_an_empty_or_missing_folder_has_no_checkpoint(tmp_path):
    assert last_whole_checkpoint(tmp_path) is None
    assert last_whole_checkpoint(tmp_path / "missing") is None

import zipfile
from pathlib import Path

import pytest

from offleash.eval.errors import ConfigError
from offleash.train.run_folder.checkpoints import (
    check_resumable,
    export_final,
    last_complete_checkpoint,
    remove_incomplete,
)


def checkpoint(folder: Path, step: int, files: list[str], state: str = "{}") -> Path:
    path = folder / f"checkpoint-{step}"
    path.mkdir()
    for name in files:
        if name.endswith(".pth"):
            zipfile.ZipFile(path / name, "w").close()  # as torch.save does
        else:
            (path / name).write_text("x")
    (path / "trainer_state.json").write_text(state)
    return path


@pytest.mark.parametrize("state", ["", '{"global_step": 3', "\x00"])
def test_the_last_complete_checkpoint_is_found_and_only_torn_ones_are_removed(tmp_path, state):
    early = checkpoint(tmp_path, 3, ["rng_state.pth"])
    good = checkpoint(tmp_path, 20, ["rng_state.pth"])
    incomplete = checkpoint(tmp_path, 100, ["rng_state.pth"], state)
    (tmp_path / "checkpoint-best").mkdir()
    assert last_complete_checkpoint(tmp_path) == good
    assert remove_incomplete(tmp_path) == [incomplete]
    assert early.exists()
    assert good.exists()
    assert not incomplete.exists()
    assert (tmp_path / "checkpoint-best").exists()


@pytest.mark.parametrize(
    ("files", "world_size", "message"),
    [
        (["rng_state.pth"], 2, "was written by 1 processes"),
        (["rng_state_0.pth", "rng_state_1.pth"], 1, "was written by 2 processes"),
        (["model.safetensors"], 1, "save_only_model"),
        (["rng_state_0.pth", "rng_state_1.pth", "global_step4"], 2, "no optimizer state that this launch"),
    ],
)
def test_a_whole_checkpoint_that_does_not_fit_is_refused_and_kept(tmp_path, files, world_size, message):
    path = checkpoint(tmp_path, 4, files)
    with pytest.raises(ConfigError, match=message):
        check_resumable(path, world_size)
    assert path.exists()


def test_a_fitting_checkpoint_is_taken(tmp_path):
    ranks = ["rng_state_0.pth", "rng_state_1.pth"]
    check_resumable(checkpoint(tmp_path, 4, [*ranks, "optimizer.pt"]), 2)
    check_resumable(checkpoint(tmp_path, 6, [*ranks, "optimizer_0"]), 2, "fsdp2")
    zero = checkpoint(tmp_path, 8, [*ranks, "global_step8"])
    check_resumable(zero, 2, "zero3")
    with pytest.raises(ConfigError, match="sharding none"):
        check_resumable(zero, 2)


@pytest.mark.parametrize("cut", [None, b"", b"PK\x03\x04 the beginning of a zip archive"])
def test_a_checkpoint_without_the_random_state_of_every_process_is_incomplete(tmp_path, cut):
    good = checkpoint(tmp_path, 2, ["rng_state_0.pth", "rng_state_1.pth"])
    incomplete = checkpoint(tmp_path, 4, ["rng_state_0.pth"])
    if cut is not None:
        (incomplete / "rng_state_1.pth").write_bytes(cut)
    assert last_complete_checkpoint(tmp_path) == incomplete  # of a run whose number of processes is not known
    assert last_complete_checkpoint(tmp_path, 2) == good
    assert remove_incomplete(tmp_path, 2) == [incomplete]
    assert last_complete_checkpoint(tmp_path, 2) == good


def test_where_no_checkpoint_has_all_random_states_none_is_taken_for_incomplete(tmp_path):
    """As on nodes with disks of their own."""
    for step in (2, 4):
        last = checkpoint(tmp_path, step, ["rng_state_0.pth"])
    assert last_complete_checkpoint(tmp_path, 2) == last
    assert remove_incomplete(tmp_path, 2) == []
    with pytest.raises(ConfigError, match="was written by 1 processes"):
        check_resumable(last, 2)
    model_only = checkpoint(tmp_path, 6, ["model.safetensors"])
    assert last_complete_checkpoint(tmp_path, 2) == model_only


def test_an_empty_or_missing_folder_has_no_checkpoint(tmp_path):
    assert last_complete_checkpoint(tmp_path) is None
    assert last_complete_checkpoint(tmp_path / "missing") is None


def test_the_final_model_leaves_training_state_behind(tmp_path):
    path = checkpoint(
        tmp_path, 4, ["model.safetensors", "config.json", "optimizer.pt", "rng_state.pth", "scheduler.pt"]
    )
    export_final(path, tmp_path / "final")
    assert {p.name for p in (tmp_path / "final").iterdir()} == {"model.safetensors", "config.json"}

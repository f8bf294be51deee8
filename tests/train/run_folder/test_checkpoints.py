import json
import shutil
import zipfile
from pathlib import Path

import pytest

from offleash.callbacks.watch.sealed import SEAL, seal
from offleash.eval.errors import ConfigError
from offleash.train.run_folder.checkpoints import (
    check_resumable,
    choose_checkpoint,
    clear_later,
    export_final,
    last_complete_checkpoint,
)
from offleash.train.run_folder.integrity import damage

ONE = ["rng_state.pth", "scheduler.pt", "optimizer.pt"]
TWO = ["rng_state_0.pth", "rng_state_1.pth", "scheduler.pt", "optimizer.pt"]


def checkpoint(folder: Path, step: int, files: list[str], state: str | None = None) -> Path:
    path = folder / f"checkpoint-{step}"
    path.mkdir()
    for name in ["model.safetensors", *files]:
        if name.endswith((".pt", ".pth")):
            with zipfile.ZipFile(path / name, "w") as archive:  # as torch.save does
                archive.writestr("data.pkl", name * 100)
        elif name.endswith(".safetensors"):
            header = b'{"w": {"dtype": "U8", "shape": [9], "data_offsets": [0, 9]}}'
            (path / name).write_bytes(len(header).to_bytes(8, "little") + header + b"123456789")
        else:
            (path / name).write_text("{}")
    (path / "trainer_state.json").write_text(json.dumps({"global_step": step}) if state is None else state)
    return path


def chosen(folder: Path, processes: int | None = None) -> Path | None:
    return choose_checkpoint(folder, processes).checkpoint


@pytest.mark.parametrize("state", ["", '{"global_step": 3', "\x00"])
def test_the_last_complete_checkpoint_is_found_and_only_torn_ones_are_removed(tmp_path, state):
    early = checkpoint(tmp_path, 3, ONE)
    good = checkpoint(tmp_path, 20, ONE)
    incomplete = checkpoint(tmp_path, 100, ONE, state)
    (tmp_path / "checkpoint-best").mkdir()
    assert last_complete_checkpoint(tmp_path) == good
    choice = choose_checkpoint(tmp_path)
    assert choice == (good, (incomplete,), ())
    clear_later(choice)
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
    good = checkpoint(tmp_path, 2, TWO)
    incomplete = checkpoint(tmp_path, 4, [name for name in TWO if "_1" not in name])
    if cut is not None:
        (incomplete / "rng_state_1.pth").write_bytes(cut)
    assert last_complete_checkpoint(tmp_path) == incomplete  # of a run whose number of processes is not known
    assert last_complete_checkpoint(tmp_path, 2) == good
    choice = choose_checkpoint(tmp_path, 2)
    assert choice == (good, (incomplete,), ())
    clear_later(choice)
    assert chosen(tmp_path, 2) == good


def test_where_no_checkpoint_has_all_random_states_none_is_taken_for_incomplete(tmp_path):
    """As on nodes with disks of their own."""
    for step in (2, 4):
        last = checkpoint(tmp_path, step, [name for name in TWO if "_1" not in name])
    assert last_complete_checkpoint(tmp_path, 2) == last
    assert choose_checkpoint(tmp_path, 2) == (last, (), ())
    with pytest.raises(ConfigError, match="was written by 1 processes"):
        check_resumable(last, 2)
    model_only = checkpoint(tmp_path, 6, [])
    assert last_complete_checkpoint(tmp_path, 2) == model_only
    assert chosen(tmp_path, 2) == model_only


def test_an_empty_or_missing_folder_has_no_checkpoint(tmp_path):
    assert last_complete_checkpoint(tmp_path) is None
    assert last_complete_checkpoint(tmp_path / "missing") is None


def test_the_final_model_leaves_training_state_behind(tmp_path):
    path = checkpoint(tmp_path, 4, ["config.json", *ONE])
    seal(path)
    export_final(path, tmp_path / "final")
    assert {p.name for p in (tmp_path / "final").iterdir()} == {"model.safetensors", "config.json"}


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def garble(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 0xFF
    path.write_bytes(data)


@pytest.mark.parametrize("name", ["model.safetensors", "trainer_state.json", "explorer.json", SEAL, *ONE])
@pytest.mark.parametrize("harm", [Path.unlink, cut, garble, lambda path: path.write_bytes(b"")])
def test_a_sealed_checkpoint_with_any_file_missing_or_altered_is_damaged_and_the_one_before_is_taken(
    tmp_path, name, harm, capsys
):
    good, bad = checkpoint(tmp_path, 2, ["explorer.json", *ONE]), checkpoint(tmp_path, 4, ["explorer.json", *ONE])
    for path in (good, bad):
        seal(path)
        assert damage(path) is None
    harm(bad / name)
    if name == SEAL and not (bad / SEAL).exists():  # then nobody can tell, and the files themselves are sound
        assert chosen(tmp_path) == bad
        return
    choice = choose_checkpoint(tmp_path)
    assert choice == (good, (), (bad,))
    told = capsys.readouterr().out
    assert "checkpoint-4 is damaged" in told
    assert "falling back to checkpoint-2" in told
    left = {path.name: path.read_bytes() for path in bad.iterdir()}
    clear_later(choice)
    assert not bad.exists()
    assert {path.name: path.read_bytes() for path in (tmp_path / "damaged-1-checkpoint-4").iterdir()} == left


@pytest.mark.parametrize("name", ["model.safetensors", *ONE])
@pytest.mark.parametrize("harm", [Path.unlink, cut, lambda path: path.write_bytes(b"")])
def test_without_a_seal_a_missing_or_truncated_file_is_found(tmp_path, name, harm):
    good, bad = checkpoint(tmp_path, 2, ONE), checkpoint(tmp_path, 4, ONE)
    assert chosen(tmp_path) == bad
    harm(bad / name)
    assert chosen(tmp_path) == good


def test_a_state_of_another_step_is_not_taken_for_this_ones(tmp_path):
    good, bad = checkpoint(tmp_path, 2, ONE), checkpoint(tmp_path, 4, ONE)
    shutil.copyfile(good / "trainer_state.json", bad / "trainer_state.json")
    assert chosen(tmp_path) == good


def test_where_every_checkpoint_is_damaged_the_run_is_not_started_over(tmp_path):
    bad = checkpoint(tmp_path, 4, ONE)
    seal(bad)
    (bad / "scheduler.pt").unlink()
    with pytest.raises(ConfigError, match="scheduler"):
        choose_checkpoint(tmp_path)
    assert bad.exists()

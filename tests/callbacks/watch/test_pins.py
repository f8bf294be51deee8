"""A pinned checkpoint stays what it was, or is known to have changed."""

import json
import shutil

import pytest

from offleash.callbacks.watch.checkpoints import Checkpoint
from offleash.callbacks.watch.pins import PINNED, pin, pinned, unpin
from offleash.callbacks.watch.sealed import seal
from offleash.eval.engines.model import resolve_model
from offleash.eval.errors import ConfigError
from offleash.eval.fingerprint import weights_fingerprint


@pytest.fixture(scope="module")
def base():
    return resolve_model("lab")


def test_a_pin_outlives_the_checkpoint_and_has_its_weights(tmp_path, write_checkpoint, base):
    path = write_checkpoint(tmp_path / "checkpoint-5", 1.01)
    weights = weights_fingerprint(path)
    held = pin(Checkpoint(5, path), tmp_path / "place", base)
    assert held.source == path
    shutil.rmtree(path)
    again = pinned(tmp_path / "place")
    assert again == held
    assert weights_fingerprint(again.path) == weights
    assert not (again.path / "optimizer.pt").exists()
    unpin(tmp_path / "place")
    assert pinned(tmp_path / "place") is None


def test_a_pin_is_a_link_and_costs_no_disk_where_links_are_possible(tmp_path, write_checkpoint, base, monkeypatch):
    path = write_checkpoint(tmp_path / "checkpoint-5")
    held = pin(Checkpoint(5, path), tmp_path / "linked", base)
    assert (held.path / "model.safetensors").stat().st_ino == (path / "model.safetensors").stat().st_ino

    def refuse(source, target):
        raise OSError(18, "Invalid cross-device link")

    monkeypatch.setattr("os.link", refuse)
    copied = pin(Checkpoint(5, path), tmp_path / "copied", base)
    assert copied.files == held.files
    assert weights_fingerprint(copied.path) == weights_fingerprint(path)


def test_a_checkpoint_that_is_written_again_in_place_is_noticed(tmp_path, write_checkpoint, base):
    path = write_checkpoint(tmp_path / "checkpoint-5", 1.01)
    held = pin(Checkpoint(5, path), tmp_path / "place", base)
    assert held.is_unchanged
    with (path / "model.safetensors").open("r+b") as file:  # the same file, through the link
        file.write(file.read())
    write_checkpoint(path, 1.02)
    assert not held.is_unchanged
    assert pinned(tmp_path / "place") is None


def test_a_checkpoint_that_vanishes_leaves_nothing_behind(tmp_path, write_checkpoint, base, monkeypatch):
    path = write_checkpoint(tmp_path / "checkpoint-5")
    real = shutil.copy2

    def delete_then_copy(source, target):
        shutil.rmtree(path, ignore_errors=True)
        return real(source, target)

    monkeypatch.setattr("os.link", lambda source, target: (_ for _ in ()).throw(OSError("no links")))
    monkeypatch.setattr("shutil.copy2", delete_then_copy)
    with pytest.raises(FileNotFoundError):
        pin(Checkpoint(5, path), tmp_path / "place", base)
    assert not (tmp_path / "place" / PINNED).exists()
    assert list((tmp_path / "place").iterdir()) == []


def test_a_sealed_checkpoint_that_is_not_what_was_written_is_refused(tmp_path, write_checkpoint, base):
    path = write_checkpoint(tmp_path / "checkpoint-5", 1.01)
    seal(path)
    assert pin(Checkpoint(5, path), tmp_path / "sound", base) is not None
    write_checkpoint(path, 1.02)
    with pytest.raises(ConfigError, match=r"checkpoint-5.*model.safetensors"):
        pin(Checkpoint(5, path), tmp_path / "damaged", base)
    assert pinned(tmp_path / "damaged") is None


def adapter(folder, named):
    folder.mkdir()
    (folder / "adapter_config.json").write_text(json.dumps({"base_model_name_or_path": named, "r": 8}))
    (folder / "adapter_model.safetensors").write_bytes(b"\x02\0\0\0\0\0\0\0{}")
    return Checkpoint(5, folder)


def test_an_adapter_of_another_machine_is_put_on_the_base_and_the_original_is_not_touched(tmp_path, base):
    checkpoint = adapter(tmp_path / "checkpoint-5", "/home/somebody/models/lab")
    held = pin(checkpoint, tmp_path / "place", base)
    assert json.loads((held.path / "adapter_config.json").read_text()) == {
        "base_model_name_or_path": base.path,
        "r": 8,
    }
    assert "somebody" in (checkpoint.path / "adapter_config.json").read_text()
    assert pinned(tmp_path / "place") == held


def test_an_adapter_of_another_model_is_refused_by_name(tmp_path, write_checkpoint, base):
    other = write_checkpoint(tmp_path / "other", 1.5, trainer=False)
    with pytest.raises(ConfigError, match="other"):
        pin(adapter(tmp_path / "checkpoint-5", str(other)), tmp_path / "place", base)

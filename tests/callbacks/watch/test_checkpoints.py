"""Which checkpoints there are, whether they are complete, which are measured."""

import json

import pytest

from offleash.callbacks.watch.checkpoints import (
    Checkpoint,
    chosen,
    files_of,
    find_checkpoints,
    is_settled,
    what_is_missing,
)
from offleash.eval.errors import ConfigError


@pytest.mark.parametrize(
    ("path", "step"),
    [
        ("checkpoint-50", 50),
        ("step_50", 50),
        ("weights/step_50", 50),
        ("global_step_50/actor/huggingface", 50),
        ("iter_0000050", 50),
        ("50", 50),
    ],
)
def test_the_folders_of_any_trainer_are_found_by_the_step_in_their_path(tmp_path, path, step):
    (tmp_path / path).mkdir(parents=True)
    (tmp_path / path / "config.json").write_text("{}")
    assert find_checkpoints(tmp_path) == [Checkpoint(step, tmp_path / path)]


@pytest.mark.parametrize(
    "path", ["final", "lab-1/final", "checkpoint-latest", "pools/step-000050", "watch/step-000050/pinned", ".hidden-5"]
)
def test_other_folders_are_not_checkpoints(tmp_path, path):
    (tmp_path / path).mkdir(parents=True)
    (tmp_path / path / "config.json").write_text("{}")
    assert find_checkpoints(tmp_path) == []


def test_adapters_are_found_and_steps_are_in_the_order_of_numbers(tmp_path):
    for step in (100, 20, 3):
        (tmp_path / f"checkpoint-{step}").mkdir()
        (tmp_path / f"checkpoint-{step}" / "adapter_config.json").write_text("{}")
    assert [one.step for one in find_checkpoints(tmp_path)] == [3, 20, 100]


def test_two_folders_of_one_step_are_refused_by_name(tmp_path):
    for part in ("actor", "critic"):
        (tmp_path / "global_step_5" / part).mkdir(parents=True)
        (tmp_path / "global_step_5" / part / "config.json").write_text("{}")
    with pytest.raises(ConfigError, match=r"actor.*critic.*step 5"):
        find_checkpoints(tmp_path)


def test_links_are_followed_and_a_second_name_is_not_a_second_checkpoint(tmp_path):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "config.json").write_text("{}")
    (run := tmp_path / "run").mkdir()
    for name in ("checkpoint-5", "best-checkpoint-5"):
        (run / name).symlink_to(tmp_path / "elsewhere")
    assert [one.step for one in find_checkpoints(run)] == [5]


def test_a_folder_that_does_not_exist_holds_no_checkpoints(tmp_path):
    assert find_checkpoints(tmp_path / "later") == []


def test_a_checkpoint_of_the_trainer_is_complete_once_its_state_is_written(tmp_path, write_checkpoint):
    path = write_checkpoint(tmp_path / "checkpoint-5")
    assert what_is_missing(path) is None
    assert is_settled(path)
    (path / "trainer_state.json").unlink()
    assert "trainer_state.json" in what_is_missing(path)


@pytest.mark.parametrize("broken", ["model.safetensors", "config.json", "tokenizer.json"])
def test_a_file_that_is_cut_short_is_incomplete(tmp_path, write_checkpoint, broken):
    path = write_checkpoint(tmp_path / "checkpoint-5")
    data = (path / broken).read_bytes()
    (path / broken).write_bytes(data[: len(data) // 2])
    assert broken in what_is_missing(path)


def test_a_shard_that_is_missing_is_noticed_and_weights_must_be_there(tmp_path, write_checkpoint):
    path = write_checkpoint(tmp_path / "step_5", trainer=False)
    assert not is_settled(path)  # who knows what this trainer writes last
    index = {"weight_map": {"a": "model.safetensors", "b": "model-00002-of-00002.safetensors"}}
    (path / "model.safetensors.index.json").write_text(json.dumps(index))
    assert "index.json" in what_is_missing(path)
    (path / "model.safetensors.index.json").unlink()
    assert what_is_missing(path) is None
    (path / "model.safetensors").unlink()
    assert "weights" in what_is_missing(path)


def test_files_of_a_model_leave_out_what_only_training_needs(tmp_path, write_checkpoint):
    path = write_checkpoint(tmp_path / "checkpoint-5")
    (path / "global_step5").mkdir()
    files = files_of(path)
    assert {"model.safetensors", "config.json", "tokenizer.json"} <= set(files)
    assert not {"optimizer.pt", "training_args.bin", "global_step5"} & set(files)


def test_every_and_behind_choose_and_the_order_is_as_asked(tmp_path, write_checkpoint):
    found = [Checkpoint(step, tmp_path / f"checkpoint-{step}") for step in (10, 15, 20, 30)]
    steps = lambda **how: [one.step for one in chosen(found, **{"every": 1, "behind": None, "order": "oldest", **how})]  # noqa: E731
    assert steps() == [10, 15, 20, 30]
    assert steps(order="newest") == [30, 20, 15, 10]
    assert steps(every=10) == [10, 20, 30]
    assert steps(behind=2, order="newest") == [30, 20]
    assert steps(behind=2) == [20, 30]
    assert steps(every=20) == [20]
    write_checkpoint(tmp_path / "checkpoint-30", max_steps=30)
    assert steps(every=20) == [20, 30]  # the last step of a run is always measured

"""`offleash check`: the lab passes; what would fail or not fit is said in a line, with status 1."""

import shutil

import pytest

from offleash.eval.cli import main
from offleash.eval.errors import ConfigError
from offleash.train.commands.check import _launch

SMALL = ["--train_args", '{"split": "train", "n": 32}', "--probe_args", '{"split": "probe", "n": 8}']
LAB = ["check", "lab", "--gpu", "cpu", *SMALL]


def problems(capsys) -> list[str]:
    return [line for line in capsys.readouterr().out.splitlines() if line.startswith("PROBLEM")]


def test_the_lab_passes_and_its_parts_are_shown(capsys):
    assert main(LAB) == 0
    shown = capsys.readouterr().out
    assert "32 training and 8 probe problems" in shown
    assert "llama, 0.81 M parameters, all trained, float32" in shown
    assert "256 rollouts of 13 + 10 tokens" in shown
    assert "5 x 512 samples" in shown
    assert "PROBLEM" not in shown


def test_a_price_becomes_money_and_a_flag_of_the_recipe_counts(capsys):
    assert main([*LAB, "--price", "36000", "--max_steps", "10", "--monitor_every", "0"]) == 0
    shown = capsys.readouterr().out
    assert "10 steps" in shown
    assert "$" in shown
    assert "monitor " not in shown


def test_probe_problems_among_the_training_problems_are_refused(capsys):
    assert main(["check", "lab", "--gpu", "cpu", *SMALL[:2], "--probe_args", '{"split": "train", "n": 8}']) == 1
    (said,) = problems(capsys)
    assert "8 of 8 probe problems are among the training problems" in said


def test_what_does_not_fit_is_refused_with_its_size(capsys):
    assert main(["check", "lab", "--gpu", "4090", *SMALL, "--per_device_train_batch_size", "80000"]) == 1
    (said,) = problems(capsys)
    assert "GiB are needed and a 4090 has 24.0" in said


def test_a_vllm_without_room_for_a_sequence_is_refused(capsys):
    vllm = ["--use_vllm", "true", "--vllm_mode", "colocate", "--vllm_gpu_memory_utilization", "0.05"]
    assert main(["check", "lab", "--gpu", "4090", *SMALL, *vllm]) == 1
    assert any("raise vllm_gpu_memory_utilization" in said for said in problems(capsys))


def test_completions_beyond_the_models_context_are_refused(capsys):
    assert main([*LAB, "--max_completion_length", "120"]) == 1
    (said,) = problems(capsys)
    assert "make 135 tokens, more than the model's context of 128" in said


def test_a_model_that_cannot_be_reached_is_named_with_the_way_out_and_the_rest_is_still_checked(capsys):
    assert main([*LAB, "--model_name_or_path", "nobody/nothing"]) == 1
    shown = capsys.readouterr().out
    assert "--model_name_or_path FOLDER" in shown
    assert "32 training and 8 probe problems" in shown


def test_a_folder_without_a_tokenizer_is_refused_and_still_estimated(lab_base, tmp_path, capsys):
    shutil.copy(lab_base / "config.json", tmp_path)
    assert main([*LAB, "--model_name_or_path", str(tmp_path)]) == 1
    shown = capsys.readouterr().out
    assert "tokenizer" in shown.split("PROBLEM")[1]
    assert "in all" in shown


def test_a_task_that_cannot_be_built_is_refused_and_the_memory_still_estimated(capsys):
    assert main([*LAB, "--train_args", '{"path": "nowhere"}']) == 1
    assert "in all" in capsys.readouterr().out


def test_an_accelerate_config_says_how_many_gpus_and_what_they_share(tmp_path):
    made = tmp_path / "config.yaml"
    for text, found in (
        ("{distributed_type: DEEPSPEED, num_processes: 16, deepspeed_config: {zero_stage: 2}}", ("zero2", 16)),
        ("{distributed_type: FSDP, num_processes: 8}", ("fsdp", 8)),
        ("{distributed_type: MULTI_GPU, num_processes: 4}", ("none", 4)),
    ):
        made.write_text(text)
        assert _launch(made) == found
    made.write_text("beta: 1")
    with pytest.raises(ConfigError, match="is not an accelerate config"):
        _launch(made)


def test_batches_are_divided_as_on_so_many_gpus(capsys):
    batch = ["--per_device_train_batch_size", "2", "--monitor_every", "0"]
    assert main([*LAB, *batch]) == 2  # two rollouts are no group of eight
    assert "num_generations" in capsys.readouterr().err
    assert main([*LAB, *batch, "--gpus", "4"]) == 0
    assert "8 rollouts of" in capsys.readouterr().out
    assert main([*LAB, *batch, "--gpus", "4", "--generation_batch_size", "64"]) == 0
    assert "8 rollouts of" in capsys.readouterr().out


def test_unknown_keys_are_refused_as_in_training(capsys):
    assert main([*LAB, "--bet", "1"]) == 2
    assert "did you mean beta?" in capsys.readouterr().err

"""`offleash check`: the lab passes; what would fail or not fit is said in a line, with status 1."""

import json
import re
import shutil

import pytest

from offleash.callbacks.metrics import measured
from offleash.callbacks.tags import SPELLING
from offleash.eval.errors import ConfigError
from offleash.train.cli import main
from offleash.train.grpo import train
from offleash.train.preflight.launch import read_accelerate_config
from offleash.train.recipe.config import parse_recipe

SMALL = ["--train_args", '{"split": "train", "n": 32}', "--probe_args", '{"split": "probe", "n": 8, "strict": true}']
LAB = ["check", "lab", "--gpu", "cpu", *SMALL]


def problems(capsys) -> list[str]:
    return [line for line in capsys.readouterr().out.splitlines() if line.startswith("PROBLEM")]


def test_the_lab_passes_and_its_parts_are_shown(capsys):
    assert main(LAB) == 0
    shown = capsys.readouterr().out
    assert "32 training and 8 probe problems" in shown
    assert "llama, 0.46 M parameters, all trained, float32" in shown
    assert "128 rollouts of 13 + 9 tokens" in shown
    assert "5 x 512 samples" in shown
    assert "PROBLEM" not in shown


def test_a_price_becomes_money_and_a_flag_of_the_recipe_counts(capsys):
    assert main([*LAB, "--price", "36000", "--max_steps", "10", "--monitor_every", "0"]) == 0
    shown = capsys.readouterr().out
    assert "10 steps" in shown
    assert "$" in shown
    assert "monitor " not in shown


def test_hours_and_money_have_bounds_which_a_given_mfu_narrows_and_a_plan_that_stops_early_has_an_upper_one(capsys):
    def hours(*flags):
        assert main([*LAB, "--gpu", "H100", "--max_steps", "100000", *flags]) == 0
        shown = capsys.readouterr().out
        found = re.search(r"training  .* ([\d.,]+) GPU hours \[([\d.,]+), ([\d.,]+)\]", shown)
        return shown, *(float(number.replace(",", "")) for number in found.groups())

    shown, usual, low, high = hours("--monitor_successes", "5")
    assert 2 < usual / low < 6
    assert 1.5 < high / usual < 6
    assert re.search(r"monitor   at most \d+ x 512 samples", shown)
    _, _, fast, slow = hours("--mfu", "0.9")
    assert slow / fast <= high / low


def test_probe_problems_among_the_training_problems_are_refused(capsys):
    assert main(["check", "lab", "--gpu", "cpu", *SMALL[:2], "--probe_args", '{"split": "train", "n": 8}']) == 1
    (said,) = problems(capsys)
    assert "8 of 8 probe problems" in said


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
    assert "GiB  in total" in shown


def test_a_task_that_cannot_be_built_is_refused_and_the_memory_still_estimated(capsys):
    assert main([*LAB, "--train_args", '{"path": "nowhere"}']) == 1
    assert "GiB  in total" in capsys.readouterr().out


def test_an_accelerate_config_says_how_many_gpus_and_what_they_share(tmp_path):
    made = tmp_path / "config.yaml"
    for text, found in (
        ("{distributed_type: DEEPSPEED, num_processes: 16, deepspeed_config: {zero_stage: 2}}", ("zero2", 16)),
        ("{distributed_type: FSDP, num_processes: 8}", ("fsdp", 8)),
        ("{distributed_type: MULTI_GPU, num_processes: 4}", ("none", 4)),
    ):
        made.write_text(text)
        assert read_accelerate_config(made) == found
    made.write_text("beta: 1")
    with pytest.raises(ConfigError, match=r"config\.yaml"):
        read_accelerate_config(made)


def test_batches_are_divided_as_on_so_many_gpus(capsys):
    batch = ["--per_device_train_batch_size", "2", "--monitor_every", "0"]
    assert main([*LAB, *batch]) == 2  # two rollouts are no group of eight
    assert "num_generations" in capsys.readouterr().err
    assert main([*LAB, *batch, "--gpus", "4"]) == 0
    assert "8 rollouts of" in capsys.readouterr().out
    assert main([*LAB, *batch, "--gpus", "4", "--generation_batch_size", "64", "--save_steps", "48"]) == 0
    assert "8 rollouts of" in capsys.readouterr().out


def test_explorers_that_training_would_refuse_are_named(capsys, tmp_path):
    recipe = tmp_path / "recipe.yaml"
    for chosen, said in (
        ("nope", "no explorer is called 'nope'"),
        ("{pass_at_k: {k: 16}}", "k is 16, but a group has 8 rollouts"),
        ("{pkpo: {k: 16}}", "k is 16, but a group has 8 rollouts"),
        ("{pkpo: {size: 4}}", "its arguments are: k, scale"),
        ("kl_cov", "explorer kl_cov"),
    ):
        recipe.write_text(f"explorer: {chosen}\n")
        assert main([*LAB, "--config", str(recipe)]) != 0
        printed = capsys.readouterr()
        assert said in printed.out + printed.err
    recipe.write_text("explorer: {pass_at_k: {k: 7}}\n")
    assert main([*LAB, "--config", str(recipe)]) == 0


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--guards", "srrr < 0.9"], "guard 'srrr < 0.9': no metric 'srrr'; did you mean srr?"),
        (["--guards", "srr is low"], "'srr is low'"),
        (["--guards", "best srr", "best sds"], "only one 'best' rule"),
        (["--guards", "srr < 0.9", "--monitor_every", "0"], "monitor_every"),
        (
            ["--steps_per_generation", "2", "--gradient_accumulation_steps", "1", "--save_steps", "3"],
            "save_steps is 3, but each rollout serves 2 steps",
        ),
        (["--sync_ref_model", "true"], "sync_ref_model"),
        (["--use_peft", "true", "--lora_target_modules", "nonsense_proj"], "lora_target_modules nonsense_proj"),
        (["--monitor_max_new_tokens", "4000"], "monitor_max_new_tokens (4000) make 4015 tokens, more than the model's"),
        (
            ["--use_vllm", "true", "--vllm_mode", "colocate", "--vllm_tensor_parallel_size", "3", "--gpus", "8"],
            "divide",
        ),
        (["--dtype", "bfloat16"], "dtype: bfloat16"),
    ],
)
def test_what_training_refuses_at_its_start_is_refused_here(flags, said, capsys):
    assert main([*LAB, *flags]) == 1
    (found,) = problems(capsys)
    assert said in found


def test_rules_and_lengths_that_training_takes_pass(capsys):
    rules = ["srr < 0.9", "best support/problem/nscr", "pass_at_k/64 < 0.1", "entropy/token_T1 < 0.1"]
    assert main([*LAB, "--guards", *rules, "--monitor_max_new_tokens", "30"]) == 0, capsys.readouterr().out


@pytest.mark.parametrize(
    ("flags", "config"),
    [(["--use_peft", "true"], "NO"), ([], "DEEPSPEED"), ([], "FSDP"), (["--dtype", "float32"], "NO")],
)
def test_half_weights_pass_where_they_are_frozen_or_have_a_float32_copy(flags, config, tmp_path, capsys):
    file = tmp_path / "config.yaml"
    file.write_text(f"{{distributed_type: '{config}', num_processes: 1, deepspeed_config: {{zero_stage: 2}}}}")
    words = [*LAB, "--accelerate", str(file), "--dtype", "bfloat16", "--bf16", "true", *flags]
    assert main(words) == 0, capsys.readouterr().out


def test_auto_is_the_dtype_of_the_models_config(lab_base, tmp_path, capsys):
    for file in lab_base.iterdir():
        shutil.copy(file, tmp_path)
    config = json.loads((lab_base / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"dtype": "bfloat16"}))
    assert main([*LAB, "--model_name_or_path", str(tmp_path), "--dtype", "auto"]) == 1
    assert "dtype: bfloat16" in problems(capsys)[0]


def test_packages_that_are_not_here_are_noted_and_no_problem(monkeypatch, capsys):
    monkeypatch.setattr("offleash.train.preflight.recipe_checks.find_spec", lambda name: None)
    assert main([*LAB, "--use_peft", "true", "--report_to", "wandb"]) == 0
    notes = [line for line in capsys.readouterr().out.splitlines() if line.startswith("note")]
    assert [line.split()[1] for line in notes] == ["peft", "wandb"]


def test_a_measurement_has_the_tags_that_guards_are_checked_against(tmp_path):
    short = ["--max_steps", "1", "--monitor_k", "4", "--monitor_exact", "false", "--output_dir", str(tmp_path / "run")]
    recipe = parse_recipe(["--config", "lab", "--use_cpu", "true", *short, *SMALL])
    train(recipe)
    record = json.loads((tmp_path / "run" / "support.json").read_text())
    always = {m.tag for m in measured(recipe.run.monitor_k, recipe.training.temperature)}
    # The spellings of its answers, where a task tells them apart.
    assert always == set(record["steps"]["0"]) - {m.tag for m in SPELLING}


def test_the_monitors_samples_are_counted_from_its_arguments_where_the_data_does_not_load(capsys):
    broken = ["check", "lab", "--gpu", "cpu", "--train_args", '{"path": "nowhere"}', "--probe_args"]
    assert main([*broken, '{"split": "probe", "n": 8}']) == 1
    assert "5 x 512 samples" in capsys.readouterr().out
    assert main([*broken, '{"split": "probe"}']) == 1
    assert "monitor   cost unknown" in capsys.readouterr().out
    assert main([*broken, '{"n": 8}', "--max_steps", "-1"]) == 1
    shown = capsys.readouterr().out
    assert "training  steps unknown" in shown
    assert "monitor   512 samples" in shown


def test_a_servers_gpus_are_said_not_to_be_counted(capsys):
    assert main([*LAB, "--use_vllm", "true", "--vllm_mode", "server"]) == 0
    assert "the vLLM server's GPUs are in neither memory nor cost" in capsys.readouterr().out


@pytest.mark.parametrize(
    "flags",
    [["--gpus", "-3"], ["--gpus", "0"], ["--mfu", "0"], ["--mfu", "1.5"], ["--mean-tokens", "21"],
     ["--mean-tokens", "0"], ["--prompt-tokens", "0"], ["--price", "-1"]],
    ids=" ".join,
)  # fmt: skip
def test_numbers_that_make_no_sense_are_refused(flags, capsys):
    assert main([*LAB, *flags]) == 2
    assert flags[0] in capsys.readouterr().err


def test_unknown_keys_are_refused_as_in_training(capsys):
    assert main([*LAB, "--bet", "1"]) == 2
    assert "did you mean beta?" in capsys.readouterr().err


def test_what_is_not_ours_is_named_before_it_is_imported(tmp_path, monkeypatch, capsys):
    for name in ("foreign_task", "foreign_explorer"):
        (tmp_path / f"{name}.py").write_text(f"import sys\nprint('IMPORTED {name}', file=sys.stderr)\nclass Own: ...\n")
    monkeypatch.chdir(tmp_path)
    main([*LAB, "--task", "foreign_task:Own"])
    main([*LAB, "--explorer", "foreign_explorer:Own"])
    lines = [line for line in capsys.readouterr().err.splitlines() if "foreign" in line]
    assert len(lines) == 5
    for name, (warned, imported) in zip(("foreign_task", "foreign_explorer"), (lines[:2], lines[2:4]), strict=True):
        assert "WARNING" in warned
        assert f"{name}:Own is not part of Offleash" in warned
        assert imported == f"IMPORTED {name}"
    assert lines[4].startswith("offleash: error: explorer 'foreign_explorer:Own' lacks ")


def test_a_model_with_code_of_its_own_is_warned_of(capsys):
    main([*LAB, "--trust_remote_code", "true"])
    assert "trust_remote_code runs code" in capsys.readouterr().err


def test_rewards_and_explorers_of_ones_own_are_announced_and_tried(tmp_path, monkeypatch, capsys):
    name = f"checked_{tmp_path.name.replace('-', '_')}"
    (tmp_path / f"{name}.py").write_text(
        "from offleash.train import Explorer\n\n"
        "def short(completions, **columns):\n    return [0.0 for _ in completions]\n\n"
        "class Split(Explorer):\n    def advantages(self, rollouts, advantages_pg):\n"
        "        return advantages_pg / advantages_pg.std()\n"
    )
    monkeypatch.chdir(tmp_path)
    words = ["--rewards", "verifier", "format", f"{name}:short", "--probe_task", "countdown"]
    assert main([*LAB, *words]) == 0
    said = capsys.readouterr()
    assert f"reward {name}:short is not part of Offleash" in said.err
    assert f"rewards verifier + format + {name}:short" in said.out
    assert main([*LAB, *words, "--explorer", f"{name}:Split"]) == 1
    (problem,) = problems(capsys)
    assert f"{name}:Split" in problem
    assert "advantages returned nan" in problem
    assert "one group, all correct" in problem


def test_the_probe_task_is_loaded_and_shown_and_its_name_must_be_known(capsys):
    small = ["--train_args", '{"split": "train", "n": 32}', "--probe_args", '{"split": "probe", "n": 8}']
    assert main(["check", "lab", "--gpu", "cpu", *small, "--probe_task", "change"]) in (0, 1)
    assert "task countdown, probe task change" in capsys.readouterr().out
    assert main([*LAB, "--probe_task", "countdwn"]) == 1
    (problem,) = problems(capsys)
    assert "did you mean countdown" in problem
    assert main([*LAB, "--metric_for_best_model", "support/unit/nsrc", "--save_strategy", "best"]) == 1
    (problem,) = problems(capsys)
    assert "did you mean support/unit/nscr" in problem

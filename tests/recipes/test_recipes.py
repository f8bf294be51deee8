"""Every shipped recipe, accelerate config and launch script: a header that says what a reader needs, keys that exist,
and a dry run that fits the hardware its header names.
"""

import json
import os
import re
import subprocess
from pathlib import Path

import pytest
import yaml
from accelerate.commands.config.config_args import load_config_from_file

from offleash import recipes
from offleash.train.commands.check import main as check
from offleash.train.commands.train import launch_command
from offleash.train.forecast.engine_weights import weight_notes
from offleash.train.preflight.recipe_checks import check_aligned_saves
from offleash.train.recipe.config import parse_recipe

RECIPES = Path(recipes.__path__[0])
LABS = sorted(RECIPES.glob("lab*.yaml"))
TRAINING = [*LABS, *sorted((RECIPES / "models").glob("*.yaml"))]
CONFIGS = sorted((RECIPES / "accelerate").glob("*.yaml"))
NODE = {"accelerate": "node_zero2", "gpu": "H100"}
ON = {
    **{path.stem: {"gpu": "cpu"} for path in LABS},
    "qwen2.5-0.5b-gsm8k": {"gpu": "4090"},
    "qwen2.5-0.5b-gsm8k-lora": {"gpu": "4090"},
    "qwen3-1.7b-math-lora": {"gpu": "4090"},
    "prorl-1.5b": NODE,
    "dapo-1.5b": NODE,
    "dapo-7b": NODE | {"accelerate": "node_zero3"},
    "qwen2.5-32b-dapo": NODE | {"accelerate": "nodes_zero3"},
    "qwen2.5-vl-3b-mathvision-lora": {"gpu": "A100"},
}
"""What each header says it runs on."""


def header(path: Path) -> str:
    lines = path.read_text().splitlines()
    return "\n".join(line for line in lines[: next(i for i, line in enumerate(lines) if not line.startswith("#"))])


@pytest.mark.parametrize("path", TRAINING, ids=lambda path: path.stem)
def test_a_recipe_says_hardware_command_and_expectation_and_has_only_known_keys(path):
    text = header(path)
    for word in ("Hardware", "Command", "Expect"):
        assert re.search(rf"^# {word}:", text, re.MULTILINE), word
    for name in re.findall(r"recipes/[\w./-]+\.(?:yaml|sh)", text):
        assert (RECIPES.parent / name).is_file(), name
    recipe = parse_recipe(["--config", str(path), "--use_cpu", "true"])
    assert recipe.training.output_dir == f"runs/{path.stem}"
    assert recipe.run.monitor_every > 0
    check_aligned_saves(recipe)


@pytest.mark.parametrize("path", [path for path in TRAINING if path not in LABS], ids=lambda path: path.stem)
def test_a_recipe_for_a_real_model_uses_vllm_beside_the_trainer_in_bf16_and_quotes_its_estimate(path):
    recipe, with_images = parse_recipe(["--config", str(path), "--use_cpu", "true"]), "-vl-" in path.stem
    assert (recipe.training.use_vllm, recipe.training.vllm_mode) == (not with_images, "colocate")
    assert recipe.training.bf16
    assert recipe.model.attn_implementation == "sdpa"
    assert recipe.training.ddp_timeout == 7200
    assert weight_notes(recipe.training) == []
    if recipe.training.use_vllm and recipe.training.max_completion_length >= 1024:
        assert recipe.training.vllm_importance_sampling_mode == "token_truncate"
    assert f"offleash check models/{path.stem} " in header(path)


PAIRS = sorted((RECIPES / "pairs").glob("*.yaml"))
OPEN_THOUGHT = ("DeepSeek-R1-Distill", "Skywork-OR1", "AceReason")
"""Parts of the names of models whose chat template ends in an open think block."""


@pytest.mark.parametrize("path", [*TRAINING, *PAIRS], ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_a_recipe_of_a_model_whose_template_opens_a_think_block_says_so(path):
    values = yaml.safe_load(path.read_text())
    models = [values.get(key, "") for key in ("model_name_or_path", "base", "policy")]
    arguments = [values.get(key) for key in ("task_args", "train_args", "probe_args") if key in values]
    opens = any(part in model for part in OPEN_THOUGHT for model in models)
    assert [each.get("thinking", False) for each in arguments] == [opens] * len(arguments)
    assert arguments or not opens


PNG = (
    "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAAAAAA6fptVAAAACklEQVR42mNgAAAAAgABSK+kcQAAAABJRU5ErkJggg=="
)


def local_rows(task: str, folder: Path, **more: bool) -> tuple[str, str]:
    """A training and a probe file of a task's published schema, instead of the hub's; `more` arguments of the task."""
    made = []
    for name, first in (("train", 0), ("probe", 50)):
        rows = [{"problem": f"What is {i} + 1?", "answer": f"{i + 1}"} for i in range(first, first + 50)]
        if task == "mathvision":
            image = {"decoded_image": PNG, "options": [], "level": 1, "subject": "algebra"}
            rows = [{"id": f"{r['answer']}", "question": r["problem"], "answer": r["answer"], **image} for r in rows]
        path = folder / f"{name}.jsonl"
        path.write_text("\n".join(map(json.dumps, rows)))
        made.append(json.dumps({"path": str(path), **more}))
    return made[0], made[1]


@pytest.mark.parametrize("path", TRAINING, ids=lambda path: path.stem)
def test_a_recipe_fits_what_its_header_names(path, tmp_path, model_folder, capsys):
    values, on = yaml.safe_load(path.read_text()), dict(ON[path.stem])
    words = [str(path), "--gpu", on.pop("gpu")]
    if on:
        words += ["--accelerate", str(RECIPES / "accelerate" / f"{on['accelerate']}.yaml")]
    if path not in LABS:
        kept = {key: value for key, value in values["train_args"].items() if key == "thinking"}
        train, probe = local_rows(values["task"], tmp_path, **kept)
        words += ["--train_args", train, "--probe_args", probe]
        words += ["--model_name_or_path", str(model_folder(values["model_name_or_path"]))]
    status, shown = check(words), capsys.readouterr().out
    problems = [line for line in shown.splitlines() if line.startswith("PROBLEM")]
    assert (status, problems) == (0, []), shown
    if "-vl-" in path.stem:  # no torchvision without a GPU
        assert "assumed to have 256 tokens, images included" in shown
        assert re.search("note .*requires the Torchvision library", shown)


def test_a_reasoning_model_is_refused_without_thinking_and_its_checkpoints_are_told(tmp_path, model_folder, capsys):
    train, probe = local_rows("math500", tmp_path)
    words = [str(RECIPES / "models" / "prorl-1.5b.yaml"), "--train_args", train, "--probe_args", probe]
    words += ["--accelerate", str(RECIPES / "accelerate" / "node_zero2.yaml"), "--vllm_importance_sampling_mode"]
    words += ["sequence_mask", "--model_name_or_path", str(model_folder("deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B"))]
    assert check(words) == 1
    shown = capsys.readouterr().out
    assert re.search("PROBLEM .*think block.*thinking: true", shown)
    assert re.search("note .*sequence_mask.*7072 tokens", shown)
    assert "28.4 GB each checkpoint (3.6 GB with save_only_model" in shown
    assert "up to 3 at a time, 85.3 GB" in shown


def test_a_14b_model_fits_as_the_32b_recipe_says(tmp_path, model_folder, capsys):
    path = RECIPES / "models" / "qwen2.5-32b-dapo.yaml"
    train, probe = local_rows("math500", tmp_path)
    words = [str(path), "--accelerate", str(RECIPES / "accelerate" / "nodes_zero3.yaml"), "--train_args", train]
    words += ["--probe_args", probe, "--vllm_tensor_parallel_size", "2"]
    assert check([*words, "--model_name_or_path", str(model_folder("Qwen/Qwen2.5-14B"))]) == 0, capsys.readouterr().out


def test_all_weights_of_qwen3_do_not_fit_a_24_gb_gpu_as_its_header_says(tmp_path, model_folder, capsys):
    path = RECIPES / "models" / "qwen3-1.7b-math-lora.yaml"
    train, probe = local_rows("math500", tmp_path)
    words = [str(path), "--gpu", "4090", "--train_args", train, "--probe_args", probe]
    words += ["--model_name_or_path", str(model_folder("Qwen/Qwen3-1.7B-Base"))]
    assert check([*words, "--use_peft", "false", "--dtype", "float32"]) == 1
    assert "GiB are needed and a 4090 has 24.0" in capsys.readouterr().out


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_an_accelerate_config_loads_and_starts_what_it_says(path):
    config = load_config_from_file(str(path))
    assert path.read_text().startswith("#")
    kind = {"zero2": "DEEPSPEED", "zero3": "DEEPSPEED", "fsdp2": "FSDP"}.get(path.stem.rpartition("_")[2])
    assert kind is None or config.distributed_type.value == kind
    assert (config.num_processes > 1) == (config.distributed_type.value != "NO")


def launched(line, folder, **env):
    """The words that the launcher gets, with programs that stand for Slurm's and for the launchers."""
    programs = {
        "scontrol": "echo node-0; echo node-1",
        "srun": 'shift 3; exec "$@"',
        **dict.fromkeys(("offleash", "torchrun"), 'printf "%s\\n" "$@"'),
    }
    for name, text in programs.items():
        (folder / name).write_text(f"#!/bin/bash\n{text}\n")
        (folder / name).chmod(0o755)
    env = {**os.environ, **env, "PATH": f"{folder}:{os.environ['PATH']}"}
    return subprocess.run(line, env=env, capture_output=True, text=True, check=True).stdout.splitlines()


def test_slurm_kubernetes_and_torchrun_give_training_the_recipe_and_all_flags(tmp_path):
    slurm = {"SLURM_JOB_NODELIST": "node-[0-3]", "SLURM_CPUS_PER_TASK": "64", "SLURM_NNODES": "4", "SLURM_NODEID": "2"}
    flags = ["--model_name_or_path", "Qwen/Qwen2.5-14B", "--output_dir", "runs/a b"]
    words = launched(["bash", str(RECIPES / "launch" / "slurm.sh"), "models/dapo-7b", *flags], tmp_path, **slurm)
    assert words[-6:] == ["--config", "models/dapo-7b", *flags]
    job = list(yaml.safe_load_all((RECIPES / "launch" / "kubernetes.yaml").read_text()))[1]["spec"]
    container = job["template"]["spec"]["containers"][0]
    env = {each["name"]: each["value"] for each in container["env"]} | {"JOB_COMPLETION_INDEX": "2"}
    env |= {"RECIPE": "models/dapo-7b", "FLAGS": "--learning_rate 2e-6"}
    pod = launched([*container["command"], *container["args"]], tmp_path, **env)
    assert pod[-4:] == ["--config", "models/dapo-7b", "--learning_rate", "2e-6"]
    differ = {(a, b) for a, b in zip(words[:-5], pod[:-3], strict=True) if a != b}
    assert differ == {("node-0", "offleash-0.offleash")}
    assert launch_command(words)[-6:] == words[-6:]
    assert job["completions"] == job["parallelism"] == int(env["NODES"]) == 4
    one = launched(["bash", str(RECIPES / "launch" / "torchrun.sh"), "models/dapo-7b", "2", *flags], tmp_path)
    assert one[-7:] == ["--config", "models/dapo-7b", "--resume", *flags]


def test_slurm_gives_each_node_its_cores():
    text = (RECIPES / "launch" / "slurm.sh").read_text()
    assert re.search(r"^#SBATCH --cpus-per-task \d+", text, re.MULTILINE)
    assert 'srun --cpus-per-task "$SLURM_CPUS_PER_TASK"' in text  # srun does not take it from sbatch


@pytest.mark.parametrize("path", sorted((RECIPES / "launch").glob("*.sh")), ids=lambda path: path.name)
def test_a_launch_script_is_valid_shell(path):
    assert subprocess.run(["bash", "-n", str(path)]).returncode == 0

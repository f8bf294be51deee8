"""TRL's own script, `trl/scripts/grpo.py` as it is installed, with three lines of Offleash added and nothing else."""

import importlib.util
import json
import runpy
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.long

LINES = """
    from offleash import SupportCallback
    held_out = dataset["test"].select(range(4))
    trainer.add_callback(SupportCallback(trainer, probe=held_out, correct=accuracy_reward, k=4, every=1))

"""
BEFORE = "    # Train the model\n"


def write_rows(path, first, count):
    rows = [
        {"prompt": [{"role": "user", "content": f"What is {n} + {n}?"}], "solution": f"${2 * n}$"}
        for n in range(first, first + count)
    ]
    path.write_text("\n".join(map(json.dumps, rows)))


def test_three_lines_are_all_that_a_stock_script_needs(chat_model, tmp_path, monkeypatch):
    pytest.importorskip("math_verify")
    text = Path(importlib.util.find_spec("trl.scripts.grpo").origin).read_text()
    assert text.count(BEFORE) == 1
    (script := tmp_path / "grpo.py").write_text(text.replace(BEFORE, LINES + BEFORE))
    (tmp_path / "data").mkdir()
    write_rows(tmp_path / "data" / "train.jsonl", 10, 40)
    write_rows(tmp_path / "data" / "test.jsonl", 60, 8)
    flags = {
        "model_name_or_path": chat_model, "dataset_name": tmp_path / "data", "output_dir": tmp_path / "run",
        "max_steps": 1, "num_generations": 4, "per_device_train_batch_size": 8, "max_completion_length": 8,
        "use_cpu": True, "bf16": False, "report_to": "none",
    }  # fmt: skip
    words = [word for name, value in flags.items() for word in (f"--{name}", str(value))]
    rewards = ["--reward_funcs", "think_format_reward", "accuracy_reward"]
    monkeypatch.setattr(sys, "argv", [str(script), *words, *rewards])
    runpy.run_path(str(script), run_name="__main__")
    assert set(json.loads((tmp_path / "run" / "support.json").read_text())["steps"]) == {"0", "1"}

"""The script of TRL's own GRPO documentation with the three lines of Offleash added, and nothing else.

As in the quick start of "GRPO Trainer" (trl 1.16): a dataset with a chat prompt and a column, `accuracy_reward` from
`trl.rewards`, the name of a model. Only what has to come from the hub is replaced: the dataset and the model.
"""

import json
from pathlib import Path

import datasets
import pytest
from datasets import Dataset

STOCK = """
from datasets import load_dataset
from trl import GRPOTrainer
from trl.rewards import accuracy_reward

dataset = load_dataset("trl-lib/DeepMath-103K", split="train")

trainer = GRPOTrainer(
    model="Qwen/Qwen2-0.5B-Instruct",
    reward_funcs=accuracy_reward,
    train_dataset=dataset,
)
trainer.train()
"""
IMPORT = "from offleash import SupportCallback\n"
HELD_OUT = 'held_out = load_dataset("trl-lib/DeepMath-103K", split="test[:8]")\n'
CALLBACK = "trainer.add_callback(SupportCallback(trainer, probe=held_out, k=64, every=50))\n"


def rows(first, count):
    return [
        {"prompt": [{"role": "user", "content": f"What is {n} + {n}?"}], "solution": f"${2 * n}$"}
        for n in range(first, first + count)
    ]


def test_three_lines_are_all_that_a_stock_script_needs(chat_model, tmp_path, monkeypatch):
    pytest.importorskip("math_verify")
    monkeypatch.chdir(tmp_path)
    sets = {"train": Dataset.from_list(rows(10, 40)), "test[:8]": Dataset.from_list(rows(60, 4))}
    monkeypatch.setattr(datasets, "load_dataset", lambda name, split: sets[split])
    script = STOCK.replace("trainer.train()", HELD_OUT + CALLBACK + "trainer.train()")
    script = IMPORT + script.replace("Qwen/Qwen2-0.5B-Instruct", str(chat_model)).replace(
        "k=64, every=50", "k=4, every=1"
    )
    small = {"max_steps": 1, "num_generations": 4, "per_device_train_batch_size": 8, "max_completion_length": 8}
    monkeypatch.setattr(
        "trl.GRPOTrainer.__init__", _with(small | {"use_cpu": True, "bf16": False, "report_to": "none"})
    )
    exec(compile(script, "script", "exec"), {"__name__": "__main__"})
    (record,) = Path().rglob("support.json")
    assert set(json.loads(record.read_text())["steps"]) == {"0", "1"}


def _with(settings):
    """GRPOTrainer's constructor, with arguments that a test can pay in place of its defaults."""
    from trl import GRPOConfig, GRPOTrainer

    plain = GRPOTrainer.__init__

    def init(self, **kwargs):
        plain(self, args=GRPOConfig(output_dir="stock-GRPO", **settings), **kwargs)

    return init

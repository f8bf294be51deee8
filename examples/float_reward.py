"""GRPO with a reward between 0 and 1 and several correct answers: which of them does training keep?

python examples/float_reward.py [MODEL]    one small GPU; on a CPU a tiny model and bf16=False in GRPOConfig
"""

import re
import sys

from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

from offleash import SupportCallback, task_from_dataset

model = sys.argv[1] if len(sys.argv) > 1 else "Qwen/Qwen2.5-0.5B-Instruct"


def divisors(number: int) -> list[str]:
    return [str(n) for n in range(2, number) if number % n == 0]


def first_number(text: str) -> str | None:
    return str(int(found.group())) if (found := re.search(r"\d{1,9}", text)) else None


def closeness(completions, answers, **columns):
    """1 for a divisor, and less the further the number is from one."""
    named = [first_number(text) for text in completions]
    gaps = [min(abs(int(n) - int(d)) for d in right) if n else 99 for n, right in zip(named, answers, strict=True)]
    return [1 / (1 + gap) for gap in gaps]


rows = [{"prompt": f"A divisor of {n}: ", "answers": divisors(n)} for n in range(12, 200) if len(divisors(n)) > 3]
probe = task_from_dataset(rows[::4], closeness, threshold=1, answer=first_number, answers="answers", name="divisors")
train = Dataset.from_list([row for row in rows if row not in rows[::4]])

args = GRPOConfig(output_dir="runs/float_reward", max_steps=100, max_completion_length=8, report_to="tensorboard")
trainer = GRPOTrainer(model, reward_funcs=closeness, args=args, train_dataset=train)
trainer.add_callback(SupportCallback(trainer, probe, k=64, every=50))
trainer.train()

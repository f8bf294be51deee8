"""GRPO with LoRA on arithmetic word problems, in chat format, and what becomes of the base's solutions meanwhile.

python examples/chat_lora.py [MODEL]    one small GPU; on a CPU a tiny model and bf16=False in GRPOConfig
"""

import random
import re
import sys

from datasets import Dataset
from peft import LoraConfig
from trl import GRPOConfig, GRPOTrainer

from offleash import SupportCallback

model = sys.argv[1] if len(sys.argv) > 1 else "Qwen/Qwen2.5-0.5B-Instruct"


def problem(rng: random.Random) -> dict:
    apples, price, paid = rng.randint(2, 9), rng.randint(2, 9), 100
    text = f"Ann buys {apples} apples for {price} coins each and pays with {paid}. How many coins does she get back?"
    return {"prompt": [{"role": "user", "content": text}], "answer": str(paid - apples * price)}


def correct(completions, answer, **columns):
    replies = [re.findall(r"\d+", completion[0]["content"]) for completion in completions]
    return [float(bool(numbers) and numbers[-1] == gold) for numbers, gold in zip(replies, answer, strict=True)]


rng = random.Random(0)
problems = list({str(row["prompt"]): row for row in (problem(rng) for _ in range(400))}.values())
train, held_out = Dataset.from_list(problems[16:]), Dataset.from_list(problems[:16])

args = GRPOConfig(
    output_dir="runs/chat_lora", max_steps=100, beta=0.001, max_completion_length=64, report_to="tensorboard"
)
trainer = GRPOTrainer(model, reward_funcs=correct, args=args, train_dataset=train, peft_config=LoraConfig())
trainer.add_callback(SupportCallback(trainer, probe=held_out, k=64, every=50))
trainer.train()

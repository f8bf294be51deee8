"""GRPO in an environment that is also the judge: the tool must be asked for the right letter, and for no other.

python examples/environment.py [MODEL]    one small GPU; on a CPU a tiny model that calls tools, and bf16=False
"""

import string
import sys

from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

from offleash import SupportCallback

model = sys.argv[1] if len(sys.argv) > 1 else "Qwen/Qwen3-0.6B"


class Register:
    def reset(self, letter: str, **columns) -> None:
        self.letter, self.asked = letter, []

    def lookup(self, key: str) -> str:
        """Look up the digit that belongs to a letter.

        Args:
            key: the letter
        """
        self.asked.append(key)
        return str(ord(key) % 10)

    def get_reward(self) -> float:
        return float(self.asked == [self.letter])


rows = [{"prompt": [{"role": "user", "content": f"{x}?"}], "letter": x} for x in string.ascii_lowercase]
train, held_out = Dataset.from_list(rows[8:]), Dataset.from_list(rows[:8])
args = GRPOConfig(output_dir="runs/environment", max_steps=100, beta=0.001, max_completion_length=256)
trainer = GRPOTrainer(model, environment_factory=Register, args=args, train_dataset=train)
trainer.add_callback(SupportCallback(trainer, probe=held_out, k=64, every=50))
trainer.train()

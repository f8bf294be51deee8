"""A stock GRPO script with the three lines, launched in two processes, and resumed."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from offleash import recipes
from offleash.eval.pool.pool import Pool

SCRIPT = """
import sys
import torch
from accelerate import PartialState
from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

steps = int(sys.argv[3])
rows = [{"prompt": f"{n}+{n + 1}=", "digit": str(n % 10)} for n in range(10, 40)]

async def has_digit(completions, digit, **columns):
    return [float(one in text) for text, one in zip(completions, digit, strict=True)]

args = GRPOConfig(
    output_dir=sys.argv[2], max_steps=steps, save_steps=1, num_generations=4, per_device_train_batch_size=4,
    max_completion_length=8, report_to="none", use_cpu=True, bf16=False, disable_tqdm=True,
    ddp_find_unused_parameters=False,
)
# In several CPU processes the device is "cpu:0", to which torch.load cannot map a checkpoint.
args.device
PartialState().device = args.__dict__["_setup_devices"] = torch.device("cpu")
trainer = GRPOTrainer(
    model=sys.argv[1],
    reward_funcs=has_digit,
    args=args,
    train_dataset=Dataset.from_list(rows[6:]),
)
from offleash import SupportCallback
trainer.add_callback(SupportCallback(trainer, probe=rows[:5], k=4, every=1))
assert trainer.accelerator.num_processes == 2
trainer.train(resume_from_checkpoint=steps > 1)
"""


@pytest.mark.slow
def test_two_processes_measure_and_a_resume_finds_the_base_pool_again(tmp_path, lab_base):
    (tmp_path / "script.py").write_text(SCRIPT)
    config = str(Path(recipes.__path__[0]) / "accelerate" / "cpu_two_processes.yaml")
    launcher = ["-m", "accelerate.commands.launch", "--main_process_port", "0", "--config_file", config]

    def launch(steps):
        line = [sys.executable, *launcher, "script.py", str(lab_base), "run", str(steps)]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        done = subprocess.run(line, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=600)
        assert done.returncode == 0, done.stderr[-3000:]
        return done.stdout

    assert "probe" in launch(1)
    (base,) = (tmp_path / "base-pools").iterdir()
    assert Pool.open(base).is_complete
    assert "complete, reused" in launch(2)
    steps = json.loads((tmp_path / "run" / "support.json").read_text())["steps"]
    assert set(steps) == {"0", "1", "2"}
    assert [path.name for path in (tmp_path / "base-pools").iterdir()] == [base.name]
